//! A binary heap of flows in a fixed array: the flow with the least tag first, the earliest arrival among equals.

use alloc::boxed::Box;

use crate::vtime::VTime;

/// A flow in the heap, with what it is ordered by.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The order: least first, by signed difference.
    pub tag: VTime,
    /// Decides between equal tags: least first.
    pub arrival: u64,
    /// The flow's slot.
    pub flow: u32,
}

impl Entry {
    #[inline]
    fn is_before(&self, other: &Entry) -> bool {
        self.tag.is_before(other.tag) || (self.tag == other.tag && self.arrival < other.arrival)
    }
}

/// A heap of at most as many entries as it was made for.
pub struct FlowHeap {
    entries: Box<[Entry]>,
    len: usize,
}

impl FlowHeap {
    /// A heap of at most `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        let entries = (0..capacity).map(|_| Entry { tag: VTime::ZERO, arrival: 0, flow: 0 }).collect();
        FlowHeap { entries, len: 0 }
    }

    /// Whether nothing is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an entry in; ignored when the heap is full.
    #[inline]
    pub fn push(&mut self, entry: Entry) {
        if self.len < self.entries.len() {
            let at = self.len;
            self.len += 1;
            self.rise(at, entry);
        }
    }

    /// The position of the first entry whose flow is eligible: the very first at once, and no others are looked at
    /// than what is below entries that are not eligible.
    #[inline]
    pub fn first(&self, eligible: impl Fn(usize) -> bool) -> Option<usize> {
        let top = self.get(0)?;
        if eligible(top.flow as usize) {
            return Some(0);
        }
        let mut best: Option<(usize, Entry)> = None;
        let mut at = 1;
        while let Some(entry) = self.get(at) {
            let candidate = best.is_none_or(|(_, best)| entry.is_before(&best));
            let found = candidate && eligible(entry.flow as usize);
            if found {
                best = Some((at, entry));
            }
            let below = at * 2 + 1;
            at = if candidate && !found && below < self.len { below } else { self.beside(at) };
        }
        best.map(|(at, _)| at)
    }

    /// The position after `at` and all below it, from left to right and from top to bottom; beyond the end if there is none.
    #[inline]
    fn beside(&self, mut at: usize) -> usize {
        while at > 0 {
            let is_left = at % 2 == 1;
            if is_left && at + 1 < self.len {
                return at + 1;
            }
            at = (at - 1) / 2;
        }
        usize::MAX
    }

    /// The entry at a position that [`Self::first`] gave.
    #[inline]
    pub fn get(&self, at: usize) -> Option<Entry> {
        self.entries.get(at).copied().filter(|_| at < self.len)
    }

    /// Puts `entry` in the place of the one at `at`, or takes that out if there is none.
    #[inline]
    pub fn replace(&mut self, at: usize, entry: Option<Entry>) {
        if at >= self.len {
            return;
        }
        let moved = match entry {
            Some(entry) => entry,
            None => {
                self.len -= 1;
                match self.get_raw(self.len) {
                    Some(last) if at < self.len => last,
                    _ => return,
                }
            }
        };
        let parent = at.checked_sub(1).and_then(|below| self.get_raw(below / 2));
        match parent {
            Some(parent) if moved.is_before(&parent) => self.rise(at, moved),
            _ => self.sink(at, moved),
        }
    }

    #[inline]
    fn rise(&mut self, mut at: usize, entry: Entry) {
        while let Some(below) = at.checked_sub(1) {
            let Some(parent) = self.get_raw(below / 2) else { break };
            if !entry.is_before(&parent) {
                break;
            }
            self.put(at, parent);
            at = below / 2;
        }
        self.put(at, entry);
    }

    #[inline]
    fn sink(&mut self, mut at: usize, entry: Entry) {
        loop {
            let left = at * 2 + 1;
            let Some(mut least) = self.get(left) else { break };
            let mut child = left;
            if let Some(right) = self.get(left + 1).filter(|right| right.is_before(&least)) {
                least = right;
                child = left + 1;
            }
            if !least.is_before(&entry) {
                break;
            }
            self.put(at, least);
            at = child;
        }
        self.put(at, entry);
    }

    #[inline]
    fn get_raw(&self, at: usize) -> Option<Entry> {
        self.entries.get(at).copied()
    }

    #[inline]
    fn put(&mut self, at: usize, entry: Entry) {
        if let Some(place) = self.entries.get_mut(at) {
            *place = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u64),
        Replace(u64),
        Take { skip: u32 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0u64..20).prop_map(Step::Push),
            (0u64..20).prop_map(Step::Replace),
            (0u32..4).prop_map(|skip| Step::Take { skip }),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        /// Against a sorted list: the first eligible entry is the least of the eligible ones.
        #[test]
        fn gives_the_least_eligible_entry(steps in steps()) {
            let mut heap = FlowHeap::new(16);
            let mut list: Vec<(u64, u64, u32)> = Vec::new();
            // Tags start just below the wrap, so that the order is the wrapped one.
            let tag = |units: u64| VTime::from_units((1 << 56) - 10).plus(units);
            for (arrival, step) in steps.into_iter().enumerate() {
                let arrival = arrival as u64;
                let flow = (arrival % 4) as u32;
                match step {
                    Step::Push(units) => {
                        heap.push(Entry { tag: tag(units), arrival, flow });
                        if list.len() < 16 {
                            list.push((units, arrival, flow));
                        }
                    }
                    Step::Replace(units) => {
                        if heap.is_empty() { continue }
                        heap.replace(0, Some(Entry { tag: tag(units), arrival, flow }));
                        list[0] = (units, arrival, flow);
                    }
                    Step::Take { skip } => {
                        let at = heap.first(|flow| flow as u32 != skip);
                        let expected = list.iter().position(|entry| entry.2 != skip);
                        prop_assert_eq!(at.is_some(), expected.is_some());
                        if let (Some(at), Some(expected)) = (at, expected) {
                            prop_assert_eq!(heap.get(at).unwrap().arrival, list[expected].1);
                            heap.replace(at, None);
                            list.remove(expected);
                        }
                    }
                }
                list.sort_unstable();
                prop_assert_eq!(heap.is_empty(), list.is_empty());
            }
        }
    }
}
