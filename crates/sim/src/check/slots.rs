//! **Outstanding <= D.** No more commands are issued and not completed than the policy has slots.
//! Where cores race, each core may be in a verb that has freed a slot which another core has
//! already taken.

use super::Check;
use crate::fact::Fact;

/// Counts outstanding commands.
pub struct Slots {
    slots: u32,
    outstanding: u32,
}

impl Slots {
    /// A check for this many slots.
    pub fn new(slots: u32) -> Self {
        Slots { slots, outstanding: 0 }
    }
}

impl Check for Slots {
    fn name(&self) -> &'static str {
        "slots"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            // Of a merged command's requests all but one are joined; the one that is not joined
            // counts for the command's slot.
            Fact::Issued(request) => self.outstanding += u32::from(!request.joined),
            Fact::Completed(request, _) => self.outstanding -= u32::from(!request.joined),
            _ => {}
        }
        if self.outstanding <= self.slots {
            return Ok(());
        }
        Err(format!("{} requests are outstanding, of at most {}", self.outstanding, self.slots))
    }
}
