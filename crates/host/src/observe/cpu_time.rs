//! The kernel's times of a shard's thread: the time for which it ran, and the time for which it was
//! ready to run while other threads had its CPU.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A thread's time since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuTime {
    /// The time for which it ran, in nanoseconds.
    pub ran_ns: u64,
    /// The time for which it was ready to run while other threads had its CPU, in nanoseconds.
    pub waited_ns: u64,
}

/// The file with a thread's [`CpuTime`], if the kernel has it (`CONFIG_SCHED_INFO`).
pub(crate) struct CpuClock(Option<File>);

impl CpuClock {
    /// The clock of the calling thread. If another thread reads it, the time is still that of the
    /// first thread.
    pub(crate) fn of_this_thread() -> CpuClock {
        CpuClock(File::open("/proc/thread-self/schedstat").ok())
    }

    /// The thread's time until now. The call makes one system call.
    pub(crate) fn read(&self) -> Option<CpuTime> {
        let mut text = [0; 64];
        let length = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        parse(std::str::from_utf8(&text[..length]).ok()?)
    }
}

/// Reads `RAN WAITED SLICES`.
fn parse(text: &str) -> Option<CpuTime> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some(CpuTime { ran_ns: numbers.next()?.ok()?, waited_ns: numbers.next()?.ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_read() {
        assert_eq!(parse("59871 56743 1\n"), Some(CpuTime { ran_ns: 59871, waited_ns: 56743 }));
        assert_eq!(parse("0 0"), Some(CpuTime::default()));
        assert!(parse("").is_none() && parse("1").is_none() && parse("x 1 2").is_none());
    }

    /// This is also true if another thread reads the clock.
    #[test]
    fn time_is_that_of_the_thread_that_began_it() {
        let clock = CpuClock::of_this_thread();
        let Some(before) = clock.read() else { return eprintln!("this kernel does not tell") };
        while clock.read().unwrap().ran_ns < before.ran_ns + 5_000_000 {}
        let at_last = clock.read().unwrap();
        let from_another =
            std::thread::scope(|scope| scope.spawn(|| clock.read()).join().unwrap()).unwrap();
        assert!(
            from_another.ran_ns >= at_last.ran_ns && from_another.waited_ns >= before.waited_ns
        );
    }
}
