//! Anticipation: the requests that a flow with nothing staged may be about to send.
//!
//! A tenant that waits for each answer before it sends again has nothing staged while its answer is
//! on the way: it seems idle and is not. A scheduler that turns to another flow at that moment
//! takes the tenant's share away; one that keeps the device for it wastes the device's time. All
//! anticipating schedulers here use this module, which gives the time until which to wait.
//!
//! A scheduler waits for a flow while the flow has requests on the device, and then for `idle_ns`
//! from its last completion. It does not wait if the flow's last request was no read, since clients
//! that write seldom wait for the answer; nor if the flow's think time, on average over its last
//! eight pauses or so, is longer than `idle_ns`, since the wait would be useless.
//!
//! **Paper.** Iyer, Druschel: Anticipatory scheduling, SOSP 2001.

use fairq_core::contract::bounds::MAX_KNOB_NS;
use fairq_core::contract::port::Op;
use fairq_core::entry::knobs::Knob;

/// The longest wait for a flow's next request; with 0 a scheduler does not wait.
pub const IDLE: Knob =
    Knob::duration("idle", 0, MAX_KNOB_NS, "the longest wait for a tenant's next request");

/// The state of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anticipation {
    in_service: u32,
    reads: bool,
    /// The time at which its last request was completed.
    idle_since_ns: u64,
    /// Mean time from an answer to its next request.
    think_ns: u64,
}

impl Anticipation {
    /// Records that a request of the flow arrives; `alone` if the flow has no other request staged.
    #[inline]
    pub fn arrived(&mut self, now_ns: u64, alone: bool, idle_ns: u64) {
        if alone && self.in_service == 0 && self.idle_since_ns > 0 {
            // A pause counts for at most twice `idle_ns`: a longer one only shows that it was too
            // long.
            let pause_ns = now_ns.saturating_sub(self.idle_since_ns).min(idle_ns.saturating_mul(2));
            self.think_ns = self.think_ns - self.think_ns / 8 + pause_ns / 8;
        }
    }

    /// Records that a request of the flow goes to the device.
    #[inline]
    pub fn served(&mut self, op: Op) {
        self.in_service = self.in_service.wrapping_add(1);
        self.reads = op == Op::Read;
    }

    /// Records that a request of the flow is completed.
    #[inline]
    pub fn completed(&mut self, now_ns: u64) {
        self.in_service = self.in_service.saturating_sub(1);
        self.idle_since_ns = now_ns;
    }

    /// Number of its requests on the device.
    #[inline]
    pub fn in_service(&self) -> u32 {
        self.in_service
    }

    /// The time until which to wait for the flow, which has nothing staged; `None` if not at all.
    /// `idle_ns` of 0 switches anticipation off.
    #[inline]
    pub fn until(&self, now_ns: u64, idle_ns: u64) -> Option<u64> {
        if idle_ns == 0 || !self.reads || self.think_ns > idle_ns {
            return None;
        }
        // An answer is on the way: the completion calls the scheduler, so no time is needed.
        if self.in_service > 0 {
            return Some(u64::MAX);
        }
        let until_ns = self.idle_since_ns.saturating_add(idle_ns);
        (now_ns < until_ns).then_some(until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_that_come_back_soon_are_waited_for() {
        let mut flow = Anticipation::default();
        flow.arrived(10, true, 100);
        flow.served(Op::Read);
        assert_eq!(flow.until(10, 100), Some(u64::MAX), "its answer is on the way");
        flow.completed(50);
        assert_eq!((flow.until(60, 100), flow.until(150, 100)), (Some(150), None));
        assert_eq!(flow.until(60, 0), None);
        flow.arrived(60, true, 100);
        flow.served(Op::Write);
        assert_eq!(flow.until(60, 100), None, "a flow that writes is not expected");
    }

    #[test]
    fn long_thinkers_are_not_waited_for_any_more() {
        let mut flow = Anticipation::default();
        let mut now_ns = 1_000_000;
        let mut vain = 0;
        for _ in 0..20 {
            flow.arrived(now_ns, true, 100);
            flow.served(Op::Read);
            flow.completed(now_ns);
            vain += u32::from(flow.until(now_ns, 100).is_some());
            now_ns += 1_000_000;
        }
        assert!((1..=8).contains(&vain), "waited {vain} times in vain");
        for _ in 0..20 {
            flow.arrived(now_ns, true, 100);
            flow.served(Op::Read);
            flow.completed(now_ns);
            now_ns += 10;
        }
        assert!(flow.until(now_ns, 100).is_some(), "it has become quick again");
    }
}
