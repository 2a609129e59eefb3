//! Replaces the policy of a data path: requests that wait for a cap move to the next port, and if
//! the old port has to be abandoned, all its requests are issued to the device.

use fairq_core::{Class, Held, Port, Submitted, Tag};

use super::{DataPath, Holder, Live};
use crate::device::Device;
use crate::io::ring::Ring;
use crate::observe::stats::Counted;

impl<P: Port, D: Device> DataPath<P, D> {
    /// Removes from the port the requests that wait for a cap, because they may wait for an hour;
    /// [`Self::resubmit`] submits them to the next port.
    #[cold]
    pub fn withdraw(&mut self, now_ns: u64) {
        for index in 0..self.live.len() {
            let tag = Tag(index as u32);
            let is_staged =
                |live: &&mut Live| live.held_by == Holder::Policy && live.issued_ns == 0;
            let Some(live) = self.live[index].as_mut().filter(is_staged) else { continue };
            let held = self.port.reason(Some(tag)).held;
            if matches!(held, Some(Held::Cap | Held::GroupCap))
                && self.port.cancel(now_ns, tag, &mut self.wake)
            {
                live.held_by = Holder::Nothing;
                self.withdrawn += 1;
            }
        }
    }

    /// Submits the requests that were withdrawn from the previous port, in order of arrival.
    #[cold]
    pub fn resubmit(&mut self, now_ns: u64, ring: &mut Ring) {
        if self.withdrawn == 0 {
            return;
        }
        let all = (0..).zip(&self.live);
        let mut withdrawn: Vec<(u64, u32)> = all
            .filter_map(|(tag, live)| Some((tag, live.as_ref()?)))
            .filter(|(_, live)| live.held_by == Holder::Nothing)
            .map(|(tag, live)| (live.arrived_ns, tag))
            .collect();
        withdrawn.sort_unstable();
        self.withdrawn = 0;
        for (_, tag) in withdrawn {
            let tag = Tag(tag);
            let Some(live) = self.live[tag.0 as usize].as_mut() else { continue };
            live.held_by = Holder::Policy;
            let live = *live;
            match self.give(now_ns, tag, &live) {
                Ok(Submitted::Staged) => {}
                Ok(Submitted::Issue { class }) => self.issue(now_ns, ring, tag, class),
                // The request's tenant has been removed.
                Err(_) => self.cancelled(now_ns, tag, &live, libc::ESHUTDOWN),
            }
        }
    }

    /// Takes all requests from the port, which must not be called again. Staged requests are issued
    /// to the device in any order, and the port is not notified of completions.
    #[cold]
    pub fn let_go(&mut self, now_ns: u64, ring: &mut Ring) {
        (self.wait_until_ns, self.blocked) = (None, false);
        for index in 0..self.live.len() {
            let is_known = |live: &&mut Live| live.held_by == Holder::Policy;
            let Some(live) = self.live[index].as_mut().filter(is_known) else { continue };
            live.held_by = Holder::Device;
            self.orphans += 1;
            // The device already has the request, so only its completion is awaited.
            if live.issued_ns != 0 {
                continue;
            }
            let tag = Tag(index as u32);
            self.leave(now_ns, tag, Class::Medium);
            if self.is_void(tag) {
                self.void.push(tag);
            } else {
                self.issue_alone(now_ns, ring, tag);
            }
        }
    }

    /// Issues nothing until the next [`DataPath::dispatch`], and clears its deadline.
    #[cold]
    pub fn halt(&mut self) {
        (self.wait_until_ns, self.blocked) = (None, false);
    }

    /// Whether the device has a request.
    #[cold]
    pub fn is_on_device(&self) -> bool {
        self.live.iter().flatten().any(|live| live.issued_ns != 0)
    }

    /// Adds the counts of the previous program.
    #[cold]
    pub fn count_before(&mut self, counted: Counted) {
        let Counted { tenants, counters, matrix } = counted;
        for (tenant, stats) in tenants {
            if let Some(own) = self.stats.get_mut(usize::from(tenant)) {
                own.add(&stats);
                self.changed[usize::from(tenant)] = true;
            }
        }
        self.counters.add(&counters);
        if let Some(matrix) = matrix {
            self.observed.add(&matrix);
        }
    }
}
