//! A controller between two programs in the same process: its registers, queues and files, and the
//! commands that it has begun, which the next program carries out once more.
//!
//! The shards stand still, so the device has none of these commands: the scheduler holds their
//! orders, or a part of them. Their memory is the guest's until they complete, so they may be
//! carried out twice.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::channel;

use serde::{Deserialize, Serialize};

use crate::device::nvme::spec::Sqe;
use crate::front::guest_memory::{Guest, Plan};
use crate::front::vfio_user::bridge::LeftBridge;
use crate::front::vfio_user::controller_state::{AdminQueue, Registers, Session};
use crate::front::vfio_user::queue_group::{LeftCq, LeftQueues, LeftSq, NewSq};
use crate::front::vfio_user::queue_groups::Message;

/// A controller between two programs; files are descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub struct LeftController {
    /// The number of its tenant.
    pub tenant: u16,
    stream: RawFd,
    /// The file of the doorbells, which a client may have mapped.
    page: RawFd,
    is_open: bool,
    offers_page: bool,
    memory: Vec<(Plan, RawFd)>,
    blind: Vec<(u64, u64)>,
    config: Vec<u8>,
    table: Vec<u8>,
    vectors: Vec<(u16, RawFd)>,
    registers: Registers,
    bridge: LeftBridge,
    admin: Option<AdminQueue>,
    queues: LeftQueues,
}

impl LeftController {
    /// All descriptors that it names.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let memory = self.memory.iter().map(|&(_, fd)| fd);
        let vectors = self.vectors.iter().map(|&(_, fd)| fd);
        [self.stream, self.page].into_iter().chain(memory).chain(vectors)
    }

    /// Its client's socket.
    pub(super) fn stream(&self) -> RawFd {
        self.stream
    }

    /// The file of its doorbells.
    pub(super) fn page(&self) -> RawFd {
        self.page
    }
}

impl Session {
    /// The state for the next program, while the shards stand still.
    pub(super) fn left(&self) -> LeftController {
        let (reply, parts) = channel();
        for shard in 0..self.shards {
            (self.send)(shard, Message::Leave { session: self.number, reply: reply.clone() });
        }
        drop(reply);
        let mut queues = LeftQueues::default();
        for part in parts {
            queues.cqs.extend(part.cqs);
            queues.sqs.extend(part.sqs);
        }
        let vector = |(vector, call): (u16, &Option<Arc<OwnedFd>>)| {
            call.as_ref().map(|call| (vector, call.as_raw_fd()))
        };
        LeftController {
            tenant: self.volume.tenant,
            stream: self.bridge.stream.as_raw_fd(),
            page: self.bridge.page.as_raw_fd(),
            is_open: self.is_open,
            offers_page: self.offers_page,
            memory: self.guest.regions().collect(),
            blind: self.blind.clone(),
            config: self.config.bytes().to_vec(),
            table: self.table.clone(),
            vectors: (0..).zip(&self.vectors).filter_map(vector).collect(),
            registers: self.registers.clone(),
            bridge: self.bridge.left(),
            admin: self.admin.clone(),
            queues,
        }
    }

    /// Goes on with the state that the last program has left, whose files `open` gives.
    pub(super) fn go_on(
        &mut self,
        left: LeftController,
        mut open: impl FnMut(RawFd) -> io::Result<OwnedFd>,
    ) -> io::Result<()> {
        (self.is_open, self.offers_page) = (left.is_open, left.offers_page);
        let regions = left.memory.iter().map(|&(plan, fd)| Ok((plan, File::from(open(fd)?))));
        let regions: Vec<_> = regions.collect::<io::Result<_>>()?;
        self.guest = Arc::new(Guest::map(regions).map_err(io::Error::other)?);
        self.blind = left.blind;
        self.config.write(0, &left.config);
        self.table.iter_mut().zip(left.table).for_each(|(to, from)| *to = from);
        for (vector, fd) in left.vectors {
            if usize::from(vector) < self.vectors.len() {
                self.set_vector(vector.into(), Some(open(fd)?));
            }
        }
        self.registers = left.registers;
        self.bridge.go_on(&left.bridge);
        let Some(mut queue) = left.admin else { return Ok(()) };
        for LeftCq { id, ring } in left.queues.cqs {
            self.add_cq(&mut queue, id, ring);
        }
        for LeftSq { id, ring, qprio, begun } in left.queues.sqs {
            let (shard, _) =
                queue.place_of(ring.cqid.into(), true).ok_or(io::ErrorKind::InvalidData)?;
            let place = self.attachment.take(shard).map_err(io::Error::other)?;
            let begun = begun.into_iter().map(Sqe::from_words).collect();
            self.add_sq(&mut queue, NewSq { id, ring, qprio, begun, place });
        }
        self.admin = Some(queue);
        // An interrupt may have been missed.
        (0..self.vectors.len()).for_each(|vector| self.interrupt(vector));
        Ok(())
    }
}
