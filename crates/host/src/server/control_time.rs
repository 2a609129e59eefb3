//! The control thread's turns: the CPU time that each event takes.
//!
//! While the thread handles one event, it handles no other event and no handshake. So the server is
//! unresponsive for at least the CPU time of the longest turn.

/// Upper bounds of the classes of turns, in nanoseconds. The last class has no upper bound.
pub const TURN_BOUNDS_NS: [u64; 6] =
    [1_000_000, 5_000_000, 20_000_000, 50_000_000, 200_000_000, 1_000_000_000];

/// The control thread's turns so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turns {
    /// The number of turns in each class of CPU time; the counts are not cumulative.
    pub classes: [u64; TURN_BOUNDS_NS.len() + 1],
    /// The CPU time of all turns, in nanoseconds.
    pub cpu_ns: u64,
    /// The CPU time of the longest turn, in nanoseconds.
    pub longest_ns: u64,
}

impl Turns {
    /// Carries out one turn.
    pub(super) fn turn<T>(&mut self, turn: impl FnOnce() -> T) -> T {
        let before = cpu_ns();
        let result = turn();
        self.count(cpu_ns().saturating_sub(before));
        result
    }

    fn count(&mut self, took_ns: u64) {
        self.classes[TURN_BOUNDS_NS.partition_point(|bound| *bound < took_ns)] += 1;
        self.cpu_ns += took_ns;
        self.longest_ns = self.longest_ns.max(took_ns);
    }

    /// The number of turns.
    pub fn count_all(&self) -> u64 {
        self.classes.iter().sum()
    }
}

/// The CPU time of this thread, in nanoseconds. rustix is not used for it, because it needs a page
/// of clocks that user-mode Linux does not have.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the length of the call.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } {
        0 => time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_counted_by_their_length() {
        let mut turns = Turns::default();
        [1, 1_000_000, 1_000_001, 2_000_000_000].iter().for_each(|&took_ns| turns.count(took_ns));
        assert_eq!(turns.classes, [2, 1, 0, 0, 0, 0, 1]);
        assert_eq!((turns.count_all(), turns.longest_ns), (4, 2_000_000_000));
        turns.turn(|| std::hint::black_box((0..1000).sum::<u64>()));
        assert!(turns.count_all() == 5 && turns.cpu_ns > 2_002_000_002, "it takes some time");
    }
}
