//! BFQ as the papers measured it.

use fairq_core::bfq::{Bfq, BfqConfig};
use fairq_core::{ConfigError, Platform};

use crate::scenario::Scenario;
use crate::subject::{Built, Promise, Subject};

/// BFQ as in Linux, behind one lock.
#[derive(Clone, Copy, Debug)]
pub struct BfqSubject {
    /// D: as many as the device works on.
    pub slots: u32,
    /// The largest budget, in bytes.
    pub budget: u64,
    /// Whether it waits for the flow in service also where all have the same weight, as Linux does
    /// where flows are control groups (from 4.20 on); where weights differ it always does. Writes
    /// are synchronous.
    pub in_groups: bool,
}

impl BfqSubject {
    /// With Linux's budget, and without control groups.
    pub fn new(slots: u32) -> BfqSubject {
        BfqSubject { slots, budget: BfqConfig::default().budget_bytes, in_groups: false }
    }

    /// It waits for whomever it serves.
    #[must_use]
    pub fn in_groups(self) -> BfqSubject {
        BfqSubject { in_groups: true, ..self }
    }
}

/// More than BFQ serves one flow in a turn.
const TURN: u64 = 1 << 30;

impl<P: Platform> Subject<P> for BfqSubject {
    type Policy = Bfq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Bfq<P>>, ConfigError> {
        let bounds = scenario.serial(self.slots);
        let usual = BfqConfig::default();
        let bfq = usual.with(|config| {
            config.budget_bytes = self.budget;
            config.waits_for_equals = self.in_groups;
            config.sync_writes = true;
        });
        Bfq::new(&bounds, &bfq)
    }

    fn promise(&self) -> Promise {
        Promise { slots: Some(self.slots), holds_back: true, turn: TURN, ..Promise::NONE }
    }
}
