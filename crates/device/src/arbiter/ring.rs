//! One round robin: the queues of a class that have commands, and the queue that has the turn.
//!
//! Each queue has a bit for "has commands", and a summary word has a bit for each word with such
//! bits. So a search for the next queue reads two words for any number of queues, and empty queues
//! cost nothing.

/// The most queues: the summary is one word over words.
pub(super) const MAX_QUEUES: usize = 64 * 64;

pub(super) struct Ring {
    active: Box<[u64]>,
    summary: u64,
    /// The queue that was served most recently.
    current: usize,
    /// The commands that it may still start before the next queue.
    left: u32,
}

impl Ring {
    /// A ring of queues below `queues`, none of which has commands. The lowest queue has the first
    /// turn.
    pub(super) fn new(queues: usize) -> Self {
        let words = queues.div_ceil(64).max(1);
        Ring { active: vec![0; words].into(), summary: 0, current: words * 64 - 1, left: 0 }
    }

    #[inline]
    pub(super) fn has_commands(&self) -> bool {
        self.summary != 0
    }

    /// The queue has commands.
    #[inline]
    pub(super) fn activate(&mut self, queue: usize) {
        self.active[queue >> 6] |= 1 << (queue & 63);
        self.summary |= 1 << (queue >> 6);
    }

    /// Removes a queue from the ring if `is_empty`; otherwise the ring stays as it is.
    #[inline]
    pub(super) fn deactivate_if(&mut self, is_empty: bool, queue: usize) {
        let word = &mut self.active[queue >> 6];
        *word &= !(u64::from(is_empty) << (queue & 63));
        self.summary &= !(u64::from(*word == 0) << (queue >> 6));
    }

    #[inline]
    fn is_active(&self, queue: usize) -> bool {
        self.active[queue >> 6] >> (queue & 63) & 1 != 0
    }

    /// The queue that starts one command now; there must be one with commands.
    #[inline]
    pub(super) fn pick(&mut self, burst: u32) -> usize {
        if self.left == 0 || !self.is_active(self.current) {
            self.current = self.after(self.current);
            self.left = burst;
        }
        self.left -= 1;
        self.current
    }

    /// A turn of the class begins. The queue's turn ended with the class's last turn, even in the
    /// middle of its burst.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        self.left = 0;
    }

    /// The next queue with commands, around the ring; `queue` itself comes last.
    #[inline]
    fn after(&self, queue: usize) -> usize {
        let word = queue >> 6;
        // The mask is shifted twice, because one shift by 64 would overflow. For the highest bit
        // the result is 0.
        let above = self.active[word] & (u64::MAX << (queue & 63)) << 1;
        if above != 0 {
            return word << 6 | above.trailing_zeros() as usize;
        }
        let words_above = self.summary & (u64::MAX << word) << 1;
        // The round is over: the next round begins at the lowest queue that has commands.
        let words = if words_above != 0 { words_above } else { self.summary };
        let word = words.trailing_zeros() as usize;
        word << 6 | self.active[word].trailing_zeros() as usize
    }
}
