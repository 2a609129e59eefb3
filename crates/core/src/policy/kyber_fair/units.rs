//! Units, the elements of a port's queues: requests or, with merging, chains of requests that go as
//! one command.
//!
//! Merging is local to a port, as its queues are: each port has a [`Merger`] of its own.

use crate::contract::flow::Weight;
use crate::contract::port::{Class, Next, Outcome, Request, Tag};
use crate::policy::serial::merge::{Merger, Piece, Placed};
use crate::policy::serial::{Arrival, Job, SerialConfig};

/// The units of one port. Without merging a unit is a request and has its tag for a number.
pub struct Units {
    merger: Option<Merger>,
    bound: usize,
}

impl Units {
    /// For the tags `0..tags` of the flows in `seats` seats; `merge_bytes` of 0 merges nothing.
    pub fn new(seats: usize, tags: usize, merge_bytes: u32) -> Units {
        let flows = seats;
        let config = SerialConfig { ports: 1, flows, tags, merge_bytes, ..SerialConfig::default() };
        let merger = (merge_bytes > 0).then(|| Merger::new(&config));
        let bound = if merger.is_some() { config.jobs() } else { tags };
        Units { merger, bound }
    }

    /// All units' numbers are below this.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Puts a request of the flow in the seat into a staged unit or makes it a new one, which is to
    /// be staged.
    #[inline]
    pub fn place(&mut self, request: &Request, seat: usize, weight: Weight) -> Placed {
        let Request { tag: Tag(tag), op, offset, length, .. } = *request;
        let Some(merger) = &mut self.merger else { return Placed::New(Job(tag)) };
        merger.place(&Arrival { job: Job(tag), flow: seat, weight, op, offset, length, cost: 0 })
    }

    /// The next part of the command that the port is in the midst of.
    #[inline]
    pub fn piece(&mut self) -> Option<Piece> {
        self.merger.as_mut()?.piece(0)
    }

    /// Begins a unit, which is no longer staged; gives its first part.
    #[inline]
    pub fn begin(&mut self, unit: u32) -> Option<Piece> {
        let Some(merger) = &mut self.merger else {
            return Some(Piece { job: unit, goes_on: false });
        };
        merger.leave(Job(unit));
        merger.begin(0, Job(unit));
        merger.piece(0)
    }

    /// Notes that a request has completed; gives whether its unit has.
    #[inline]
    pub fn completed(&mut self, tag: Tag, outcome: Outcome) -> bool {
        self.merger.as_mut().is_none_or(|merger| merger.completed(Job(tag.0), outcome).is_some())
    }

    /// The number of a request's unit, if the unit has no other request.
    pub fn alone(&self, tag: Tag) -> Option<u32> {
        match &self.merger {
            None => Some(tag.0),
            Some(merger) => merger.unit_alone(Job(tag.0)).map(|unit| unit.0),
        }
    }

    /// Takes back a staged unit of one request; the caller takes it out of its queue.
    pub fn cancel(&mut self, tag: Tag, unit: u32) {
        if let Some(merger) = &mut self.merger {
            // Its part counts as completed, so that the unit's number is free again.
            merger.leave(Job(unit));
            merger.completed(Job(tag.0), Outcome::Done);
        }
    }

    /// The first request of a unit.
    pub fn first(&self, unit: u32) -> Option<Tag> {
        match &self.merger {
            None => Some(Tag(unit)),
            Some(merger) => merger.first(Job(unit)).map(|job| Tag(job.0)),
        }
    }

    /// Whether the port is in the midst of a command.
    pub fn is_in_command(&self) -> bool {
        self.merger.as_ref().is_some_and(|merger| merger.is_in_unit(0))
    }

    /// Whether requests are merged here.
    pub fn merges(&self) -> bool {
        self.merger.is_some()
    }

    /// From now on no request is merged with those that the flow in the seat has staged.
    #[inline]
    pub fn barrier(&mut self, seat: usize) {
        if let Some(merger) = &mut self.merger {
            merger.barrier(seat);
        }
    }
}

/// A part of a command, as `next` returns it.
#[inline]
pub fn next_of(piece: &Piece) -> Next {
    let tag = Tag(piece.job);
    if piece.goes_on { Next::Join { tag } } else { Next::Issue { tag, class: Class::Medium } }
}
