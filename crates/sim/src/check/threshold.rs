//! T in units of virtual time in a run in which flows come and go: policies state T in bytes at the
//! reference weight.

use fairq_core::{ReferenceWeight, Weight};

use crate::fact::Fact;

/// Follows the weights of the present flows.
pub(super) struct Threshold {
    bytes: u64,
    /// Weights by flow; `None` for a flow that is not present.
    weights: Vec<Option<Weight>>,
    units: u64,
    /// The largest T that was in force at a dispatch, in units.
    largest: u64,
}

impl Threshold {
    pub(super) fn new(bytes: u64) -> Self {
        let units = ReferenceWeight::default().units(bytes);
        Threshold { bytes, weights: Vec::new(), units, largest: 0 }
    }

    /// The largest T that has been in force, in units: a flow may still be ahead by an earlier T.
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    pub(super) fn see(&mut self, fact: &Fact) {
        match *fact {
            Fact::Added { weight, .. } => self.weights.push(Weight::new(weight)),
            Fact::Weighed { flow, weight } => self.weights[flow] = Weight::new(weight),
            Fact::Removed { flow } => self.weights[flow] = None,
            Fact::Issued(_) => {
                self.largest = self.largest.max(self.units);
                return;
            }
            _ => return,
        }
        let weights = self.weights.iter().copied().flatten();
        self.units = ReferenceWeight::of(weights).units(self.bytes);
    }
}
