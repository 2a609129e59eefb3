//! Jobs on the direct path: a pinned thread that only submits requests and polls for their
//! completions.
//!
//! A turn reads the clock once. Requests that complete in a turn are counted with the time at the
//! beginning of the next turn, so a latency includes the whole turn, as on the path of the shards.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use fairq_core::{Port, PortId};

use super::LoadFront;
use crate::device::Device;
use crate::io::clock::Clock;
use crate::io::ring::Asker;
use crate::io::wakers::Wakers;
use crate::observe::interference::empty_matrix;
use crate::observe::record::Recording;
use crate::observe::stats::{ShardCounters, ShardReport, TenantStats};
use crate::shard::direct::{Completed, DirectPath};
use crate::shard::path::Finished;
use crate::shard::pool::Shards;
use crate::shard::shared::Common;
use crate::shard::{Front, Message};

/// Starts a thread for each port, with the jobs that `front` returns for it.
pub(super) fn start<P: Port + 'static, D: Device>(
    ports: Vec<P>,
    common: &Common<D>,
    cpus: &[usize],
    front: impl FnMut(usize) -> io::Result<LoadFront>,
) -> io::Result<Shards<D, LoadFront>> {
    let open = |id, port, common: &Common<D>, front, inbox| {
        let client = Client::open(id, port, common, front, inbox)?;
        Ok(move || client.run())
    };
    Shards::start_with(ports, common, cpus, front, open)
}

/// The state of one thread.
struct Client<P: Port, D: Device> {
    index: usize,
    path: DirectPath<P, D>,
    front: LoadFront,
    /// The completions of the last poll, not yet counted.
    completed: Vec<Completed>,
    stats: Vec<TenantStats>,
    inbox: Receiver<Message<D, LoadFront>>,
    wakers: Arc<Wakers>,
    clock: Clock,
}

impl<P: Port, D: Device> Client<P, D> {
    fn open(
        id: PortId,
        port: P,
        common: &Common<D>,
        front: LoadFront,
        inbox: Receiver<Message<D, LoadFront>>,
    ) -> io::Result<Client<P, D>> {
        Ok(Client {
            index: usize::from(id.0),
            path: DirectPath::open(id, port, common).map_err(io::Error::other)?,
            front,
            completed: Vec::with_capacity(common.tags),
            stats: vec![TenantStats::default(); common.tenants],
            inbox,
            wakers: common.wakers.clone(),
            clock: common.clock,
        })
    }

    /// Runs until the thread receives [`Message::Stop`] and all requests in flight are completed.
    fn run(mut self) {
        loop {
            self.take_messages();
            let now_ns = self.clock.now_ns();
            self.count(now_ns);
            let submitted = self.submit(now_ns);
            let completed = &mut self.completed;
            self.path.poll(now_ns, |one| completed.push(one));
            if !submitted && self.completed.is_empty() && self.path.is_idle() {
                if self.front.stopping {
                    break;
                }
                // Until the next job's time there is no work, so other threads may use the CPU.
                std::thread::yield_now();
            }
        }
    }

    fn take_messages(&mut self) {
        if !self.wakers.take_pending(self.index) {
            return;
        }
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Front(begins_ns) => self.front.begin(begins_ns),
                Message::Notice(_) | Message::Wipe(_) | Message::EndWipes(_) => {}
                Message::Cut(cut) => drop(cut),
                // The receiver may already have been dropped.
                Message::Stats(reply) => drop(reply.send((self.index, self.report()))),
                Message::Forget(_) | Message::Record(_) => {}
                Message::Recorded(reply) => drop(reply.send((self.index, Recording::default()))),
                Message::Change(_) => unreachable!("a load keeps its policy"),
                Message::Halt(_) | Message::GoOn | Message::Count(_) => {
                    unreachable!("a load ends with its program")
                }
                Message::Stop => self.front.stop(),
            }
        }
    }

    fn report(&self) -> ShardReport {
        let tenants = (0..).zip(self.stats.iter().cloned()).collect();
        ShardReport {
            tenants,
            counters: ShardCounters::default(),
            matrix: empty_matrix(),
            stores: Vec::new(),
        }
    }

    /// Counts the completed requests.
    #[inline]
    fn count(&mut self, now_ns: u64) {
        for Completed { cookie, errno, op, submitted_ns } in self.completed.drain(..) {
            let job = &self.front.jobs[(cookie >> 16) as usize].job;
            let stats = &mut self.stats[usize::from(job.tenant)];
            stats.in_flight -= 1;
            stats.count(op, job.block, errno, now_ns.saturating_sub(submitted_ns), 0);
            self.front.finished(now_ns, Finished { asker: Asker::Nbd, cookie, errno });
        }
    }

    /// Submits the jobs' next requests. True if there were any.
    #[inline]
    fn submit(&mut self, now_ns: u64) -> bool {
        let mut submitted = false;
        if self.front.stopping {
            return submitted;
        }
        self.front.look(now_ns);
        for index in 0..self.front.jobs.len() {
            while self.path.has_room() {
                let Some(order) = self.front.next(index, now_ns) else { break };
                self.stats[usize::from(order.tenant())].in_flight += 1;
                // SAFETY: the buffer left `idle`, and returns there when the order is finished;
                // until then no other code uses it, and the region lives as long as the front end,
                // which outlives its orders.
                unsafe { self.path.submit(now_ns, &order) }
                    .expect("flows of a load run are not removed");
                submitted = true;
            }
        }
        submitted
    }
}
