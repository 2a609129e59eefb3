//! The ublk front end of a shard, with one queue of each device.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fairq_core::Port;

use super::disk_queue::{Attach, MAX_BYTES, Queue, cookie_index, event_index};
use crate::device::Device;
use crate::io::budget::Budget;
use crate::io::memory::Region;
use crate::io::ring::{Event, Ring};
use crate::shard::fence::Client;
use crate::shard::path::{DataPath, Finished};
use crate::shard::turns::{Turn, Turns, Weights};
use crate::shard::{Front, Notice};

/// The largest amount of memory for a queue's data, in bytes.
const MEMORY: usize = 16 << 20;

/// A message to the front end.
pub enum Message {
    /// Serve a queue of a device, and report whether its commands are on the ring.
    Attach(Box<Attach>, Sender<io::Result<()>>),
}

/// The queues of one shard.
pub struct UblkFront {
    queues: Vec<Option<Queue>>,
    /// Queues that have had events since their last turn.
    active: Vec<u32>,
    is_active: Vec<bool>,
    turns: Turns,
    weights: Arc<Weights>,
    budget: Arc<Budget>,
    is_stopping: bool,
}

impl UblkFront {
    /// A front end without queues. Its tenants share the shard's CPU by these weights, and their
    /// buffers are charged to this budget.
    pub fn new(weights: Arc<Weights>, budget: Arc<Budget>) -> UblkFront {
        UblkFront {
            queues: Vec::new(),
            active: Vec::new(),
            is_active: Vec::new(),
            turns: Turns::default(),
            weights,
            budget,
            is_stopping: false,
        }
    }

    fn attach(&mut self, ring: &mut Ring, attach: Attach, client: Client) -> io::Result<()> {
        if self.is_stopping {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        let index = self.queues.iter().position(Option::is_none).unwrap_or_else(|| {
            self.queues.push(None);
            self.is_active.push(false);
            self.queues.len() - 1
        });
        let memory = MEMORY.min(usize::from(attach.depth) * MAX_BYTES as usize);
        let region = Region::within(memory, self.budget.clone(), attach.volume.tenant)?;
        self.queues[index] = Some(Queue::new(index as u32, attach, (region, client), ring)?);
        Ok(())
    }

    /// Marks a queue as active, so that it gets a turn; returns it if it still exists.
    fn activate(&mut self, index: usize) -> Option<&mut Queue> {
        let queue = self.queues.get_mut(index)?.as_mut()?;
        if !std::mem::replace(&mut self.is_active[index], true) {
            self.active.push(index as u32);
        }
        Some(queue)
    }
}

impl Front for UblkFront {
    type Message = Message;

    fn message<P: Port, D: Device>(
        &mut self,
        _now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        message: Message,
    ) {
        match message {
            Message::Attach(attach, reply) => {
                let client = path.client(attach.volume.tenant);
                let _ = reply.send(self.attach(ring, *attach, client));
            }
        }
    }

    fn notice<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        _ring: &mut Ring,
        path: &mut DataPath<P, D>,
        notice: Notice,
    ) {
        let queues = self.queues.iter_mut().flatten();
        match notice {
            Notice::Detach { flow, .. } => {
                queues.filter(|queue| queue.is_of(flow)).for_each(Queue::detach);
                let queues = &self.queues;
                path.cancel(now_ns, libc::ESHUTDOWN, |cookie| {
                    let queue = queues.get(cookie_index(cookie)).and_then(Option::as_ref);
                    queue.is_some_and(|queue| queue.is_of(flow))
                });
                while let Some(finished) = path.finished() {
                    self.finished(now_ns, finished);
                }
            }
            Notice::Resize { flow, size } => {
                queues.filter(|queue| queue.is_of(flow)).for_each(|queue| queue.resize(size));
            }
            // The kernel accepts every answer, and keeps unanswered requests, so nothing has to be
            // closed.
            Notice::HangUp => {}
            Notice::Second => {
                for index in 0..self.queues.len() {
                    if let Some(queue) = self.activate(index) {
                        queue.second();
                    }
                }
            }
        }
    }

    fn event(&mut self, _now_ns: u64, ring: &mut Ring, event: Event) {
        if let Some(queue) = self.activate(event_index(event.data.value)) {
            queue.event(ring, event.data.value, event.result);
        }
    }

    fn arrivals<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        for &index in &self.active {
            if let Some(queue) = &mut self.queues[index as usize] {
                queue.arrivals(ring);
                if queue.wants_turn() {
                    self.turns.push(queue.tenant(), index);
                }
            }
        }
        while path.has_room()
            && let Some(Turn { connection, orders }) = self.turns.next(&self.weights)
        {
            // A policy that stages can stage all orders and schedules them itself.
            let most = if P::IS_DIRECT { orders } else { u32::MAX };
            let queue = self.queues[connection as usize].as_mut();
            let (given, has_more) =
                queue.map_or((0, false), |queue| queue.take_turn(now_ns, ring, path, most));
            self.turns.end(given, has_more);
        }
    }

    fn finished(&mut self, _now_ns: u64, finished: Finished) {
        if let Some(queue) = self.activate(cookie_index(finished.cookie)) {
            queue.finished(finished.cookie, finished.errno);
        }
    }

    fn flush(&mut self, _now_ns: u64, _ring: &mut Ring) -> bool {
        let (queues, is_active) = (&mut self.queues, &mut self.is_active);
        self.active.retain(|&active| {
            let index = active as usize;
            let queue = &mut queues[index];
            if queue.as_ref().is_some_and(Queue::is_closed) {
                *queue = None;
            }
            // Tags and memory become free with events of this front end, which cause a turn.
            is_active[index] = queue.as_ref().is_some_and(Queue::has_unsubmitted);
            is_active[index]
        });
        false
    }

    fn resume(&mut self) {
        for index in 0..self.queues.len() {
            self.activate(index);
        }
    }

    fn halt(&mut self, ring: &mut Ring, _cancel: bool) -> bool {
        self.queues.iter_mut().flatten().fold(true, |is_quiet, queue| queue.halt(ring) & is_quiet)
    }

    fn go_on(&mut self, _ring: &mut Ring) {
        self.queues.iter_mut().flatten().for_each(Queue::go_on);
        self.resume();
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        self.queues.iter_mut().flatten().for_each(Queue::stop);
    }

    fn is_stopped(&self) -> bool {
        self.queues.iter().flatten().all(Queue::is_idle)
    }
}
