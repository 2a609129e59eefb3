//! Laws, each in a file of its own, checked while a run goes on.
//!
//! A check hears every [`Fact`] and says what is wrong as soon as it is. The broken policies in
//! `tests/canaries` show that each notices what it is for.

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
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Looks at a fact; says what is wrong, if something is.
    fn see(&mut self, now_ns: u64, fact: &Fact) -> Result<(), String>;

    /// Looks back when the run has ended.
    fn end(&mut self, _now_ns: u64) -> Result<(), String> {
        Ok(())
    }
}

/// How many verbs may be under way at the same time as another: where cores race, one on each.
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
        // Theorem 2's bound is in D: without slots there is none.
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
