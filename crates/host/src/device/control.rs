//! The control side of a run: ticks the policy when it is due, delivers the wake-ups, and sets the
//! weights of the device's classes as the policy requires.
//!
//! A program that runs shards (a server, a load) starts a [`Control`] beside them and calls
//! [`Control::tick`] at [`Control::deadline_ns`]. This is not on the data path: it runs a few times
//! a second, in a thread that is not a shard.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use fairq_core::{ClassWeights, Policy, PortSet};

use crate::device::Device;
use crate::io::wakers::Wakers;

/// The reason why a policy cannot run on a device.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The policy schedules with classes, and the device has none.
    #[error(
        "the policy leaves scheduling to the device's queue classes, and the device ({device}) has \
         none: use one that \
         arbitrates between classes, such as --device nvme-soft,backing=PATH, or another policy"
    )]
    NoClasses {
        /// The device's name.
        device: String,
    },
    /// The device refuses the weights.
    #[error("the device ({device}) refuses {weights:?} for its classes: {source}")]
    Weights {
        /// The device's name.
        device: String,
        /// The refused weights.
        weights: ClassWeights,
        /// The device's error.
        source: io::Error,
    },
}

impl ControlError {
    /// Whether the policy can never run on the device; otherwise a retry may help.
    pub fn is_refusal(&self) -> bool {
        matches!(self, ControlError::NoClasses { .. })
    }
}

/// Makes the periodic calls of a run; `L` is the pointer to the policy.
pub struct Control<'a, L, D> {
    policy: L,
    device: &'a D,
    wakers: Arc<Wakers>,
    /// The weights that the device has now; `None` for a policy that sets none.
    weights: Option<ClassWeights>,
    /// The time of the policy's next tick.
    next_ns: Option<u64>,
}

impl<'a, L, D: Device> Control<'a, L, D>
where
    L: Deref,
    L::Target: Policy,
{
    /// Applies the policy's class weights to the device, before any shard runs under the policy.
    pub fn start(policy: L, device: &'a D, wakers: Arc<Wakers>) -> Result<Self, ControlError> {
        let mut control = Control::new(policy, device, wakers)?;
        control.fit()?;
        Ok(control)
    }

    /// As [`Self::start`], but the device does not change until [`Control::fit`], since the policy
    /// may still be refused.
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

    /// The pointer to the policy.
    pub fn shared_policy(&self) -> &L {
        &self.policy
    }

    /// The time of the next [`Self::tick`], in the run's time; `None` if the policy needs none.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Makes the next tick due at once, after a change that the policy applies in its ticks.
    pub fn hurry(&mut self) {
        self.next_ns = Some(0);
    }

    /// The weights of the device's classes, if the policy sets them.
    pub fn class_weights(&self) -> Option<ClassWeights> {
        self.weights
    }

    /// Sets the weights of the device's classes as the policy requires, whatever their present
    /// weights.
    pub fn fit(&mut self) -> Result<(), ControlError> {
        self.weights = None;
        self.pass_weights()
    }

    /// Ticks the policy if it is due.
    pub fn tick(&mut self, now_ns: u64) {
        if !self.tick_policy(now_ns) {
            return;
        }
        if let Err(error) = self.pass_weights() {
            // The device keeps its old weights; the next tick retries.
            tracing::error!("{error}");
        }
    }

    /// Ticks the policy if it is due, without changing the device's classes. It is for an old
    /// policy whose last requests are being dispatched while the classes have another policy's
    /// weights. True if the policy was due.
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

    /// A policy with a given weight for the high class, and a tick every 10 ns.
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

    /// A device that records the weights that it is given, and refuses weights above 256.
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
