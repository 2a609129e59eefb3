//! Laws, each in a file of its own, checked while a run goes on.
//!
//! A check receives every [`Fact`] and reports a violation as soon as there is one. The broken
//! policies in `tests/canaries` show that each check catches its fault.

use crate::fact::Fact;
use crate::scenario::Scenario;
use crate::subject::Promise;

pub use bounds::Bounds;
pub use conservation::Conservation;
pub use share::Share;
pub use slots::Slots;
pub use starvation::Starvation;
pub use virtual_time::VirtualTime;
pub use work::Work;

mod bounds;
mod conservation;
mod share;
mod slots;
mod starvation;
mod threshold;
mod virtual_time;
mod work;

/// A law.
pub trait Check {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Examines a fact; returns a description of the violation, if there is one.
    fn see(&mut self, now_ns: u64, fact: &Fact) -> Result<(), String>;

    /// Checks the whole run when it has ended.
    fn end(&mut self, _now_ns: u64) -> Result<(), String> {
        Ok(())
    }
}

/// Number of verbs that may be in progress at the same time: where cores race, one on each core.
fn under_way(scenario: &Scenario) -> u32 {
    match &scenario.host {
        Some(host) if host.races => scenario.ports as u32,
        _ => 0,
    }
}

/// Every check that a policy with this promise must pass.
pub fn all(scenario: &Scenario, promise: &Promise) -> Vec<Box<dyn Check>> {
    let mut checks: Vec<Box<dyn Check>> = vec![
        Box::new(Conservation::new(scenario)),
        Box::new(Work::new(promise)),
        Box::new(Starvation::new(scenario, promise)),
    ];
    if let Some(slots) = promise.slots {
        checks.push(Box::new(Slots::new(slots + under_way(scenario))));
        // The bound of Theorem 2 contains D: without slots there is no bound.
        if let Some(threshold) = promise.threshold {
            checks.push(Box::new(Bounds::new(scenario, slots, threshold)));
        }
    }
    if promise.steady_time {
        checks.push(Box::new(VirtualTime::default()));
    }
    if promise.shares {
        checks.push(Box::new(Share::new(promise)));
    }
    checks
}
