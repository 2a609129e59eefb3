//! A session that one program passes to the next in the same process: the state of its negotiation,
//! and its files. The in-flight area has the requests of its vrings.

use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};

use crate::front::guest_memory::Plan;
use crate::front::vhost::queue::Addresses;

/// A session between two programs; its files are given as descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub struct LeftSession {
    /// The number of its tenant.
    pub tenant: u16,
    pub(super) stream: RawFd,
    pub(super) back: Option<RawFd>,
    pub(super) features: u64,
    pub(super) protocol: u64,
    pub(super) status: u8,
    pub(super) caches_writes: bool,
    pub(super) memory: Vec<(Plan, RawFd)>,
    /// The in-flight area: size and offset, queues and their size, and whether it is the server's.
    pub(super) inflight: Option<(RawFd, [u64; 2], [u16; 2], bool)>,
    pub(super) vrings: Vec<LeftVring>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LeftVring {
    pub(super) index: u16,
    pub(super) size: u16,
    pub(super) base: u32,
    pub(super) addresses: Option<Addresses>,
    pub(super) kick: Option<RawFd>,
    pub(super) call: Option<RawFd>,
    pub(super) error: Option<RawFd>,
    pub(super) is_enabled: bool,
    pub(super) is_started: bool,
}

impl LeftSession {
    /// All descriptors that it contains.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let vrings = self.vrings.iter().flat_map(|vring| [vring.kick, vring.call, vring.error]);
        let memory = self.memory.iter().map(|&(_, fd)| fd);
        let area = self.inflight.iter().map(|&(fd, ..)| fd);
        [self.stream].into_iter().chain(self.back).chain(memory).chain(area).chain(vrings.flatten())
    }
}
