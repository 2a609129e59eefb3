//! The machine's memory, and the process's mark as an I/O flusher.

use std::fs;
use std::path::Path;

use rustix::process::configure_io_flusher_behavior;
use rustix::thread::{CapabilitySet, capabilities, clear_ambient_capability_set, set_capabilities};

/// Assumed memory if the system does not report it, in bytes.
const MEMORY: u64 = 2 << 30;

/// The memory that this process may use, in bytes: the machine's, or less if a cgroup of the
/// process has a limit (`MemoryMax=` of a service).
pub(crate) fn memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // A limit applies to all cgroups below. The value `max` means no limit; it is not a number, and
    // is left out.
    let limits = Path::new(group).ancestors().filter_map(|group| {
        fs::read_to_string(Path::new("/sys/fs/cgroup").join(group).join("memory.max"))
            .ok()?
            .trim()
            .parse()
            .ok()
    });
    limits.chain(machine).min().unwrap_or(MEMORY)
}

/// `PF_MEMALLOC_NOIO` of `include/linux/sched.h`.
const MEMALLOC_NOIO: u64 = 0x0008_0000;

/// Marks this thread, and the threads that it starts later, as I/O flushers: the kernel gives them
/// memory without waiting for disks. If this machine's kernel uses a disk that the server serves,
/// the kernel may wait for memory that only the server can free, by writing. The server must not
/// wait for such memory. The function then drops the capability that the call needs. A failure is
/// not logged if the device is in memory (`is_in_memory`), because the kernel never waits for that
/// device to free memory.
pub(crate) fn become_io_flusher(is_in_memory: bool) {
    if let Err(error) = configure_io_flusher_behavior(true)
        && !is_in_memory
        && !is_io_flusher()
    {
        tracing::info!(
            %error,
            "not marked as an I/O flusher, which needs CAP_SYS_RESOURCE: if this machine itself \
             uses the disks that are served here, it can stall when its memory is short"
        );
    }
    let given_up = || {
        clear_ambient_capability_set()?;
        let mut sets = capabilities(None)?;
        for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
            set.remove(CapabilitySet::SYS_RESOURCE);
        }
        set_capabilities(None, sets)
    };
    if let Err(error) = given_up() {
        tracing::warn!(%error, "cannot give up CAP_SYS_RESOURCE");
    }
}

/// Whether this thread is marked already: the mark outlives the `exec` of an upgrade, and the
/// capability does not.
fn is_io_flusher() -> bool {
    fs::read_to_string("/proc/thread-self/stat").is_ok_and(|stat| flags(&stat) & MEMALLOC_NOIO != 0)
}

/// The ninth field of a thread's `stat`, its flags. The second one, its name, may contain anything.
fn flags(stat: &str) -> u64 {
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    after_name.split(' ').nth(6).and_then(|flags| flags.parse().ok()).unwrap_or(0)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_tells_its_memory() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB"), None);
        assert!((1 << 20..1 << 50).contains(&memory()));
    }

    #[test]
    fn the_flags_of_a_thread_are_found_whatever_its_name() {
        let stat = "7 (a) b (c) S 1 2 3 0 -1 4718848 102 0 0 0\n";
        assert_eq!(flags(stat) & MEMALLOC_NOIO, MEMALLOC_NOIO);
        assert_eq!(flags("7 (fairq) S 1 2 3 0 -1 4194304 102") & MEMALLOC_NOIO, 0);
        assert_eq!(flags(""), 0);
        assert!(!is_io_flusher());
    }
}
