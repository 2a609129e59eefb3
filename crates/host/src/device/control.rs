//! The control side of a run: ticks the policy when it is due, delivers the wake-ups of that, and
//! passes the weights that the policy wants for the device's classes on to the device.
//!
//! A program that runs shards (a server, a load) starts one of these beside them and calls
//! [`Control::tick`] at [`Control::deadline_ns`]. It is slow path: some times a second, in a thread
//! that is no shard.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use fairq_core::{ClassWeights, Policy, PortSet};

use crate::device::Device;
use crate::io::wakers::Wakers;

/// Why a policy cannot run on a device.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It schedules with classes that are not there.
    #[error(
        "the policy leaves scheduling to the device's queue classes, and the device ({device}) has \
         none: use one that \
         arbitrates between classes, such as --device nvme-soft,backing=PATH, or another policy"
    )]
    NoClasses {
        /// The device's name.
        device: String,
    },
    /// The device does not take the weights.
    #[error("the device ({device}) refuses {weights:?} for its classes: {source}")]
    Weights {
        /// The device's name.
        device: String,
        /// What was asked for.
        weights: ClassWeights,
        /// What it said.
        source: io::Error,
    },
}

impl ControlError {
    /// Whether they never fit; otherwise another try may help.
    pub fn is_refusal(&self) -> bool {
        matches!(self, ControlError::NoClasses { .. })
    }
}

/// Calls what has to be called now and then; `L` is how the policy is held.
pub struct Control<'a, L, D> {
    policy: L,
    device: &'a D,
    wakers: Arc<Wakers>,
    /// What the device has; `None` for a policy that does not care.
    weights: Option<ClassWeights>,
    /// When the policy wants its next tick.
    next_ns: Option<u64>,
}

impl<'a, L, D: Device> Control<'a, L, D>
where
    L: Deref,
    L::Target: Policy,
{
    /// Fits the device to the policy, before any shard runs under it.
    pub fn start(policy: L, device: &'a D, wakers: Arc<Wakers>) -> Result<Self, ControlError> {
        let mut control = Control::new(policy, device, wakers)?;
        control.fit()?;
        Ok(control)
    }

    /// For a policy that may still be refused: the device stays as it is until [`Control::fit`].
    pub fn new(policy: L, device: &'a D, wakers: Arc<Wakers>) -> Result<Self, ControlError> {
        if policy.class_weights().is_some() && !device.info().has_classes {
            return Err(ControlError::NoClasses { device: device.info().name.clone() });
        }
        Ok(Control { policy, device, wakers, weights: None, next_ns: Some(0) })
    }

    /// The policy.
    pub fn policy(&self) -> &L::Target {
        &self.policy
    }

    /// The same as it is held.
    pub fn shared_policy(&self) -> &L {
        &self.policy
    }

    /// When to call [`Self::tick`] next, in the run's time; never again if `None`.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Has it ticked soon: something was changed that its ticks are to look after.
    pub fn hurry(&mut self) {
        self.next_ns = Some(0);
    }

    /// The weights that the device's classes have, if the policy gives them any.
    pub fn class_weights(&self) -> Option<ClassWeights> {
        self.weights
    }

    /// Gives the device's classes the weights that the policy wants, whatever they have.
    pub fn fit(&mut self) -> Result<(), ControlError> {
        self.weights = None;
        self.pass_weights()
    }

    /// Ticks if it is due.
    pub fn tick(&mut self, now_ns: u64) {
        if !self.tick_policy(now_ns) {
            return;
        }
        if let Err(error) = self.pass_weights() {
            // The device goes on with those it has; the next tick tries again.
            tracing::error!("{error}");
        }
    }

    /// Ticks if it is due, for shards that run under it no longer than until they have got rid of
    /// what they have: the device's classes are another policy's already. True if it was due.
    pub fn tick_policy(&mut self, now_ns: u64) -> bool {
        if self.next_ns.is_none_or(|next_ns| now_ns < next_ns) {
            return false;
        }
        let mut wake = PortSet::EMPTY;
        self.next_ns = self.policy.tick(now_ns, &mut wake);
        self.wakers.wake_all(wake);
        true
    }

    fn pass_weights(&mut self) -> Result<(), ControlError> {
        let wanted = self.policy.class_weights();
        let Some(weights) = wanted.filter(|_| wanted != self.weights) else { return Ok(()) };
        let name = || self.device.info().name.clone();
        self.device.set_class_weights(weights).map_err(|source| ControlError::Weights {
            device: name(),
            weights,
            source,
        })?;
        self.weights = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU16, Ordering};

    use fairq_core::none::{NonePolicy, NonePort};
    use fairq_core::{FlowError, FlowId, Native, Stats, Weight};

    use super::*;
    use crate::device::null::{NullDevice, NullQueue};
    use crate::device::{Info, Place};
    use crate::io::ring::Ring;

    /// Wants a high weight of its own choosing and a tick each 10 ns.
    struct Weighted(NonePolicy<Native>, AtomicU16);

    impl Policy for Weighted {
        type Port = NonePort<Native>;
        fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
            self.0.add_flow_as(known, weight)
        }
        fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
            self.0.set_weight(flow, weight)
        }
        fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
            self.0.remove_flow(flow)
        }
        fn tick(&self, now_ns: u64, _wake: &mut PortSet) -> Option<u64> {
            Some(now_ns + 10)
        }
        fn class_weights(&self) -> Option<ClassWeights> {
            Some(ClassWeights { high: self.1.load(Ordering::Relaxed), medium: 2, low: 1 })
        }
        fn stats(&self) -> Stats {
            self.0.stats()
        }
    }

    /// Writes down the weights that it is given, and refuses those above 256.
    struct Classes(Info, Mutex<Vec<u16>>);

    impl Device for Classes {
        type Queue = NullQueue;
        fn info(&self) -> &Info {
            &self.0
        }
        fn open_queue(&self, _: &Place, _: &mut Ring) -> io::Result<NullQueue> {
            Ok(NullQueue::default())
        }
        fn set_class_weights(&self, weights: ClassWeights) -> io::Result<()> {
            self.1.lock().unwrap().push(weights.high);
            if weights.high > 256 { Err(io::Error::other("too much")) } else { Ok(()) }
        }
    }

    fn weighted(high: u16) -> Weighted {
        Weighted(NonePolicy::new(1, 1, 1).unwrap().0, AtomicU16::new(high))
    }

    fn classes() -> Classes {
        let info = Info { has_classes: true, ..NullDevice::new(512).info().clone() };
        Classes(info, Mutex::default())
    }

    fn wakers() -> Arc<Wakers> {
        Arc::new(Wakers::new(1).unwrap())
    }

    #[test]
    fn the_device_gets_the_weights_at_the_start_and_whenever_they_change() {
        let (policy, device) = (weighted(9), classes());
        let mut control = Control::start(&policy, &device, wakers()).unwrap();
        control.tick(0);
        policy.1.store(300, Ordering::Relaxed);
        control.tick(9);
        assert_eq!(*device.1.lock().unwrap(), [9], "a tick before its time does nothing");
        control.tick(10);
        control.tick(20);
        policy.1.store(7, Ordering::Relaxed);
        control.tick(30);
        control.tick(40);
        assert_eq!(*device.1.lock().unwrap(), [9, 300, 300, 7], "what was refused is tried again");
        assert_eq!(control.deadline_ns(), Some(50));
    }

    #[test]
    fn a_policy_that_needs_classes_is_refused_without_them() {
        let (policy, device) = (weighted(9), NullDevice::new(512));
        let error = Control::start(&policy, &device, wakers()).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("(null)") && error.contains("--device nvme-soft,backing="),
            "{error}"
        );
        let too_much = Control::start(&weighted(300), &classes(), wakers())
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(too_much.ends_with("too much"), "{too_much}");
    }
}
