//! T in units of virtual time, of a run in which flows come and go: policies mean it in bytes at
//! the reference weight.

use fairq_core::{ReferenceWeight, Weight};

use crate::fact::Fact;

/// Follows the weights of the flows that there are.
pub(super) struct Threshold {
    bytes: u64,
    /// By flow, while it is there.
    weights: Vec<Option<Weight>>,
    units: u64,
    /// The largest that was in force when something was sent.
    largest: u64,
}

impl Threshold {
    pub(super) fn new(bytes: u64) -> Self {
        let units = ReferenceWeight::default().units(bytes);
        Threshold { bytes, weights: Vec::new(), units, largest: 0 }
    }

    /// The largest that has been in force, in units: a flow may still be ahead by an earlier one.
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
