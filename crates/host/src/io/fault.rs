//! Mapped memory that another process may truncate: a file that shrinks does not end this process.
//!
//! **Problem.** Access to a page of a mapping beyond the file's end raises SIGBUS. A guest's memory
//! is a file that belongs to the guest's own process, which may shrink it at any time.
//!
//! **Model.** A mapping of such a file is [`Watched`]. The handler of SIGBUS finds the mapping of
//! the address, replaces the lost page by zeroed private memory, and sets a flag. The access then
//! continues; the owner of the mapping finds the flag ([`Watched::has_faulted`]) and stops serving
//! the guest. A SIGBUS at any other address is passed to the previous handler. The kernel's own
//! accesses, in system calls and on the ring, fail with `EFAULT` instead.
//!
//! **Bounds.** There are `SLOTS` slots for mappings. The handler scans them, and makes one system
//! call.
//!
//! *Memory ordering.* A slot's end and page size are stored before its start (Release), which the
//! handler loads first (Acquire). A slot is emptied before its mapping is unmapped, and a thread
//! that faults uses a mapping that still exists, so the handler finds no outdated slot.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The largest number of mappings at a time.
const SLOTS: usize = 4096;

/// The start of a slot that is being filled.
const RESERVED: usize = 1;

struct Slot {
    /// The first address; 0 if the slot is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The size of a page of the mapping, in bytes.
    page: AtomicUsize,
    has_faulted: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        has_faulted: AtomicBool::new(false),
    }
}; SLOTS];

/// The previous action for SIGBUS. It is leaked, since the handler may run at any time.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// A mapping whose lost pages are replaced, until this is dropped.
pub struct Watched {
    slot: &'static Slot,
}

impl Watched {
    /// Watches a mapping of these addresses, with pages of `page` bytes. The mapping must stay
    /// mapped as long as the result lives. Fails if all slots are taken.
    pub fn new(addresses: Range<usize>, page: usize) -> io::Result<Watched> {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let is_taken = |slot: &&Slot| {
            let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
            slot.start.compare_exchange(0, RESERVED, taken, failed).is_ok()
        };
        let no_place = || io::Error::other("too many regions of guests' memory are mapped");
        let slot = TABLE.iter().find(is_taken).ok_or_else(no_place)?;
        slot.end.store(addresses.end, Ordering::Relaxed);
        slot.page.store(page, Ordering::Relaxed);
        slot.has_faulted.store(false, Ordering::Relaxed);
        slot.start.store(addresses.start, Ordering::Release);
        Ok(Watched { slot })
    }

    /// Whether the process has used a lost page of the mapping.
    #[inline]
    pub fn has_faulted(&self) -> bool {
        self.slot.has_faulted.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.slot.start.store(0, Ordering::Release);
    }
}

/// Installs the handler.
fn install() {
    let mut before = Box::new(MaybeUninit::<libc::sigaction>::zeroed());
    // SAFETY: all zeroes are a valid action; the calls read and write whole structures of ours.
    unsafe {
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return;
        }
        BEFORE.store(Box::leak(before).as_mut_ptr(), Ordering::Release);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// The handler. It uses only atomics and system calls.
extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure.
    let address = unsafe { (*info).si_addr() } as usize;
    if !is_replaced(address) {
        pass_on(signal, info, context);
    }
}

/// Replaces the lost page of an address; false if it is in no watched mapping.
fn is_replaced(address: usize) -> bool {
    for slot in &TABLE {
        let start = slot.start.load(Ordering::Acquire);
        if start <= RESERVED || !(start..slot.end.load(Ordering::Relaxed)).contains(&address) {
            continue;
        }
        let page = slot.page.load(Ordering::Relaxed).max(1);
        // SAFETY: the call reads and writes the calling thread's own number.
        let errno = unsafe { *libc::__errno_location() };
        // SAFETY: the page lies in a mapping whose owner accepts that lost pages are replaced.
        let mapped = unsafe {
            libc::mmap(
                (address / page * page) as *mut libc::c_void,
                page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        slot.has_faulted.store(true, Ordering::Relaxed);
        return mapped != libc::MAP_FAILED;
    }
    false
}

/// Handles a signal as the previous action did.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: the pointer is null or a leaked structure that is not changed.
    let handler = unsafe { before.as_ref() }.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    if matches!(handler, libc::SIG_DFL | libc::SIG_IGN) {
        // The access is repeated when this returns, and the signal then ends the process. SAFETY:
        // the call sets the default disposition, which is always valid.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: this is the action that was installed before; handlers of one argument ignore the
    // others.
    unsafe {
        let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            std::mem::transmute(handler);
        call(signal, info, context);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use rustix::fs::MemfdFlags;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn a_file_that_shrinks_leaves_zeroes_and_a_note() {
        let file: File = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(4 * PAGE as u64).unwrap();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), 4 * PAGE, protection, flags, file.as_fd(), 0).unwrap()
        };
        let bytes = base.cast::<u8>();
        let watched = Watched::new(bytes as usize..bytes as usize + 4 * PAGE, PAGE).unwrap();
        // SAFETY: the addresses are mapped, and pages that are lost are replaced.
        unsafe {
            bytes.add(2 * PAGE).write_volatile(7);
            file.set_len(PAGE as u64).unwrap();
            assert!(!watched.has_faulted());
            assert_eq!(bytes.add(2 * PAGE).read_volatile(), 0);
            bytes.add(3 * PAGE + 5).write_volatile(9);
            assert_eq!(bytes.add(3 * PAGE + 5).read_volatile(), 9);
        }
        assert!(watched.has_faulted());
        let next = Watched::new(1 << 20..(1 << 20) + PAGE, PAGE).unwrap();
        assert!(!next.has_faulted(), "notes are per mapping");
        drop((watched, next));
        // SAFETY: the mapping is this test's own.
        unsafe { munmap(base, 4 * PAGE).unwrap() };
    }
}
