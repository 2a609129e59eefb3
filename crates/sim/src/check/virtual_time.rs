//! **Virtual time never goes back**, in the order that wraps around.

use fairq_core::vtime::VTime;

use super::Check;
use crate::fact::{Fact, Moment};

/// Keeps the last virtual time.
#[derive(Default)]
pub struct VirtualTime {
    last: VTime,
}

impl Check for VirtualTime {
    fn name(&self) -> &'static str {
        "virtual time"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        let Fact::Settled(Moment { virtual_time: Some(units), .. }) = *fact else { return Ok(()) };
        let now = VTime::from_units(units);
        if now.is_before(self.last) {
            return Err(format!("it went from {} back to {units}", self.last.units()));
        }
        self.last = now;
        Ok(())
    }
}
