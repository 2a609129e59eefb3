//! An agenda: events by their times, the earliest first.
//!
//! Events of one kind are added nearly in the order of their times, because each kind takes about
//! the same time. So an agenda is a sorted ring into which events are inserted from the late end:
//! an event passes the later ones, which are few. A heap would cost its logarithm each time.

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) at_ns: u64,
    /// The subject of the event: a command, by its slot, or a die.
    pub(super) subject: u32,
    /// A detail of the event.
    pub(super) detail: u32,
}

/// The time of an event that will not happen.
pub(super) const NEVER: u64 = u64::MAX;

/// Events in the order of their times; events of the same time in the order in which they were
/// added.
pub(super) struct Agenda {
    events: Box<[Event]>,
    mask: usize,
    first: usize,
    /// One past the last event; `first` and `end` count without bound and are masked.
    end: usize,
    /// Time of the first event: kept here, so that reading it costs one load.
    next_ns: u64,
}

impl Agenda {
    /// An agenda for up to `events` events at a time.
    pub(super) fn new(events: usize) -> Self {
        let room = events.max(1).next_power_of_two();
        let empty = Event { at_ns: NEVER, subject: 0, detail: 0 };
        Agenda {
            events: vec![empty; room].into(),
            mask: room - 1,
            first: 0,
            end: 0,
            next_ns: NEVER,
        }
    }

    /// Time of the first event; [`NEVER`] without events.
    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    #[inline]
    pub(super) fn add(&mut self, event: Event) {
        debug_assert!(self.end - self.first <= self.mask, "the bound was computed");
        let mut at = self.end;
        while at != self.first {
            let earlier = self.events[(at - 1) & self.mask];
            if earlier.at_ns <= event.at_ns {
                break;
            }
            self.events[at & self.mask] = earlier;
            at -= 1;
        }
        self.events[at & self.mask] = event;
        self.end += 1;
        self.next_ns = self.next_ns.min(event.at_ns);
    }

    /// Takes the first event out; there must be one.
    #[inline]
    pub(super) fn take(&mut self) -> Event {
        debug_assert!(self.first != self.end, "an event that has a time is there");
        let event = self.events[self.first & self.mask];
        self.first += 1;
        self.next_ns =
            if self.first == self.end { NEVER } else { self.events[self.first & self.mask].at_ns };
        event
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any order of calls, events leave the agenda as from a stable sort.
        #[test]
        fn the_earliest_first(steps in prop::collection::vec((any::<bool>(), 0u64..20), 0..200)) {
            let mut agenda = Agenda::new(200);
            let mut plain: Vec<(u64, u32)> = Vec::new();
            for (index, (add, at_ns)) in (0..).zip(steps) {
                if add {
                    agenda.add(Event { at_ns, subject: index, detail: 0 });
                    plain.push((at_ns, index));
                    plain.sort();
                } else if !plain.is_empty() {
                    let event = agenda.take();
                    prop_assert_eq!((event.at_ns, event.subject), plain.remove(0));
                }
                prop_assert_eq!(agenda.next_ns(), plain.first().map_or(NEVER, |first| first.0));
            }
        }
    }
}
