//! The flows of a policy that runs in the laboratory alone, and the verbs that its runs never call.

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use fairq_core::platform::{AtomicWord, Ordering, Platform};
use fairq_core::{FlowError, FlowId, PortSet, SubmitError, Weight};

/// Bit of a word below the generation: the flow is there. The bits below are its weight in 256ths,
/// which stays when the flow is removed, because its last requests are still charged.
const OPEN: u64 = 1 << 31;

/// The flows of a policy: their names and weights, which ports read from a shared word for each
/// request, as in the core.
pub(super) struct Flows<P: Platform> {
    /// For each slot the generation, [`OPEN`] and the weight of its flow.
    words: Box<[P::U64]>,
    /// Live requests of each slot. Not traced, because the core's ports count them for themselves.
    live: Box<[AtomicU32]>,
    ports: PortSet,
    control: Mutex<()>,
}

/// The flow in a slot with this word.
fn flow_of(slot: usize, word: u64) -> FlowId {
    FlowId::new(slot as u32, (word >> 32) as u32)
}

fn weight_of(word: u64) -> Weight {
    Weight::of_256ths((word & (OPEN - 1)) as u32).unwrap_or_default()
}

impl<P: Platform> Flows<P> {
    pub(super) fn new(flows: usize, ports: usize) -> Self {
        Flows {
            words: (0..flows).map(|_| P::U64::new(0)).collect(),
            live: (0..flows).map(|_| AtomicU32::new(0)).collect(),
            ports: PortSet::first(ports),
            control: Mutex::new(()),
        }
    }

    fn word(&self, slot: usize) -> u64 {
        self.words.get(slot).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn set(&self, flow: FlowId, weight: Weight, open: u64) {
        let word = u64::from(flow.generation()) << 32 | u64::from(weight.in_256ths()) | open;
        self.words[flow.slot()].store(word, Ordering::Release);
    }

    /// Adds a flow; `prepare` sets up the policy's state of its slot.
    pub(super) fn add(
        &self,
        known: Option<FlowId>,
        weight: Weight,
        prepare: impl FnOnce(usize),
    ) -> Result<FlowId, FlowError> {
        let _control = self.control.lock();
        let is_free = |&slot: &usize| {
            let live = self.live.get(slot).map(|live| live.load(Ordering::Acquire));
            live == Some(0) && self.word(slot) & OPEN == 0
        };
        let flow = match known {
            Some(flow) => {
                Some(flow).filter(|flow| is_free(&flow.slot())).ok_or(FlowError::Taken)?
            }
            None => {
                let slot = (0..self.words.len()).find(is_free).ok_or(FlowError::Full)?;
                let before = flow_of(slot, self.word(slot));
                FlowId::new(slot as u32, before.generation().wrapping_add(1))
            }
        };
        prepare(flow.slot());
        self.set(flow, weight, OPEN);
        Ok(flow)
    }

    /// Changes a flow's weight; `None` removes the flow, whose slot is free when its last request
    /// has completed. Returns all ports, which a caller wakes after a removal.
    pub(super) fn weigh(&self, flow: FlowId, weight: Option<Weight>) -> Result<PortSet, FlowError> {
        let _control = self.control.lock();
        let before = self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
        self.set(flow, weight.unwrap_or(before), if weight.is_some() { OPEN } else { 0 });
        Ok(self.ports)
    }

    /// The flow's weight, if it is there.
    pub(super) fn weight(&self, flow: FlowId) -> Option<Weight> {
        self.in_slot(flow.slot()).filter(|(here, _)| *here == flow).map(|(_, weight)| weight)
    }

    /// The weight of the flow that is in a slot, or was there last.
    pub(super) fn weight_in(&self, slot: usize) -> Weight {
        weight_of(self.word(slot))
    }

    /// The flow in a slot and its weight, if there is one.
    pub(super) fn in_slot(&self, slot: usize) -> Option<(FlowId, Weight)> {
        let word = self.word(slot);
        (word & OPEN != 0).then(|| (flow_of(slot, word), weight_of(word)))
    }

    /// All flows with their weights.
    pub(super) fn all(&self) -> impl Iterator<Item = (FlowId, Weight)> + '_ {
        (0..self.words.len()).filter_map(|slot| self.in_slot(slot))
    }

    /// Counts a request of the flow; gives the flow's weight.
    pub(super) fn admit(&self, flow: FlowId) -> Result<Weight, SubmitError> {
        let weight = self.weight(flow).ok_or(SubmitError::NoSuchFlow)?;
        self.live[flow.slot()].fetch_add(1, Ordering::AcqRel);
        Ok(weight)
    }

    /// Counts a request as gone.
    pub(super) fn finish(&self, slot: usize) {
        self.live[slot].fetch_sub(1, Ordering::AcqRel);
    }
}

/// The verbs of a [`fairq_core::Port`] that no run of the laboratory calls. They refuse, and report
/// nothing.
macro_rules! unused_verbs {
    () => {
        fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
            self.shared.flows.weight(flow).map(|_| ()).ok_or(SubmitError::NoSuchFlow)
        }
        fn cancel(&mut self, _now_ns: u64, _tag: Tag, _wake: &mut PortSet) -> bool {
            false
        }
        fn expedite(&mut self, _now_ns: u64, _tag: Tag, _wake: &mut PortSet) -> bool {
            false
        }
        fn hold(&mut self, _tag: Tag, _flow: FlowId) -> Result<(), SubmitError> {
            Err(SubmitError::BadTag)
        }
        fn requeue(&mut self, _now: u64, _tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
            None
        }
        fn grow(&mut self, _now: u64, _tag: Tag, _growth: &Growth, _wake: &mut PortSet) -> bool {
            false
        }
        fn staged(&self, _flow: FlowId) -> Option<Tag> {
            None
        }
        fn flow_stats(&self, _flow: FlowId) -> FlowStats {
            FlowStats::default()
        }
        fn barrier(&mut self, _flow: FlowId) {}
        fn reason(&self, _tag: Option<Tag>) -> Reason {
            Reason::default()
        }
    };
}

pub(super) use unused_verbs;
