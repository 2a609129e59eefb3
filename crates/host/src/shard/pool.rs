//! The shards of one run: starts a pinned thread for each shard, sends messages to them, and ends
//! them.

use std::io;
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fairq_core::{Port, PortId, PortSet};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::device::Device;
use crate::io::wakers::Wakers;
use crate::observe::record::Recording;
use crate::observe::stats::{Ledger, Totals};
use crate::shard::shared::Common;
use crate::shard::{Change, Exchange, Front, Message, PolicyLoop, Shard};

/// The running shards.
pub struct Shards<D: Device, F: Front> {
    inboxes: Vec<Sender<Message<D, F>>>,
    wakers: Arc<Wakers>,
    threads: Vec<JoinHandle<()>>,
    /// The last report of each shard.
    ledger: Mutex<Ledger>,
}

/// The ports of a policy, for shards to run under.
pub type PolicyLoops<D, F> = Vec<Box<dyn PolicyLoop<D, F>>>;

/// The loops for the ports of a policy.
pub fn policy_loops<P: Port + 'static, D: Device, F: Front>(ports: Vec<P>) -> PolicyLoops<D, F> {
    ports.into_iter().map(|port| Box::new(port) as Box<dyn PolicyLoop<D, F>>).collect()
}

impl<D: Device, F: Front + Send> Shards<D, F> {
    /// Starts one shard for each port, with the front end that `front` makes for it. Each thread is
    /// pinned to the CPU at its index in `cpus`, if there is one. When this returns, all shards
    /// have opened their rings, queues and front ends.
    pub fn start(
        ports: PolicyLoops<D, F>,
        common: &Common<D>,
        cpus: &[usize],
        front: impl FnMut(usize) -> io::Result<F>,
    ) -> io::Result<Self> {
        let open = |id, port, common: &Common<D>, front, inbox| {
            let shard = Shard::open(id, common, front, inbox)?;
            Ok(move || shard.run(port))
        };
        Shards::start_with(ports, common, cpus, front, open)
    }

    /// [`Self::start`] for threads that do other work: each thread calls `open` and then runs the
    /// function that it returns. That function must answer its inbox as a [`Shard`] does.
    pub(crate) fn start_with<P, O, R>(
        ports: Vec<P>,
        common: &Common<D>,
        cpus: &[usize],
        mut front: impl FnMut(usize) -> io::Result<F>,
        open: O,
    ) -> io::Result<Self>
    where
        P: Send + 'static,
        O: Fn(PortId, P, &Common<D>, F, Receiver<Message<D, F>>) -> io::Result<R>
            + Copy
            + Send
            + 'static,
        R: FnOnce(),
    {
        let mut shards = Shards {
            inboxes: Vec::new(),
            wakers: common.wakers.clone(),
            threads: Vec::new(),
            ledger: Mutex::new(Ledger::new(ports.len(), common.tenants)),
        };
        let (opened, openings) = channel();
        let count = ports.len();
        for (index, port) in ports.into_iter().enumerate() {
            let (sender, inbox) = channel();
            let front = front(index)?;
            let (common, opened, cpu) = (common.clone(), opened.clone(), cpus.get(index).copied());
            let open = move || open(PortId(index as u8), port, &common, front, inbox);
            let body = move || run(index, cpu, open, &opened);
            let thread = std::thread::Builder::new().name(format!("shard-{index}")).spawn(body)?;
            shards.inboxes.push(sender);
            shards.threads.push(thread);
        }
        drop(opened);
        let results: Vec<io::Result<()>> = openings.iter().take(count).collect();
        match results.into_iter().find_map(Result::err) {
            None => Ok(shards),
            Some(error) => {
                shards.stop();
                Err(error)
            }
        }
    }

    /// The number of shards.
    pub fn count(&self) -> usize {
        self.inboxes.len()
    }

    /// Sends a message to a shard. A shard that has ended does not receive it.
    pub fn send(&self, shard: usize, message: Message<D, F>) {
        let _ = self.inboxes[shard].send(message);
        self.wakers.wake(shard);
    }

    /// A function that sends messages to the shards' front ends, from any thread.
    pub fn sender(&self) -> impl Fn(usize, F::Message) + Send + Sync + 'static {
        let (inboxes, wakers) = (self.inboxes.clone(), self.wakers.clone());
        move |shard, message| {
            let _ = inboxes[shard].send(Message::Front(message));
            wakers.wake(shard);
        }
    }

    /// Makes the shards complete their requests under their policy and change to the policy of
    /// these ports, one for each shard. New requests wait during the change. The caller must tick
    /// the old policy until the exchange is over. `patience` bounds the wait for requests on a
    /// store that does not answer. The last shard to finish calls `hand_over`, when no port of the
    /// old policy holds a request any longer and no shard uses the new policy yet.
    pub fn change(
        &self,
        ports: PolicyLoops<D, F>,
        patience: Duration,
        hand_over: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Exchange> {
        assert_eq!(ports.len(), self.count(), "a policy has a port for each shard");
        let exchange = Arc::new(Exchange::new(self.count(), Box::new(hand_over)));
        let patience_ns = patience.as_nanos() as u64;
        for (shard, next) in ports.into_iter().enumerate() {
            let change = Change { next, exchange: exchange.clone(), patience_ns };
            self.send(shard, Message::Change(change));
        }
        exchange
    }

    /// Wakes the shards of `ports`, so that each runs a turn.
    pub fn wake(&self, ports: PortSet) {
        self.wakers.wake_all(ports);
    }

    /// The statistics of tenants and shards. A shard that has ended is represented by its last
    /// report.
    pub fn stats(&self) -> Totals {
        let (reply, replies) = channel();
        for shard in 0..self.count() {
            self.send(shard, Message::Stats(reply.clone()));
        }
        drop(reply);
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.take(replies);
        ledger.totals()
    }

    /// Makes each shard record its last `events` decisions.
    pub fn record(&self, events: usize) {
        (0..self.count()).for_each(|shard| self.send(shard, Message::Record(events)));
    }

    /// Stops recording; returns the recording of each shard that has not ended.
    pub fn recorded(&self) -> Vec<Recording> {
        let (reply, replies) = channel();
        for shard in 0..self.count() {
            self.send(shard, Message::Recorded(reply.clone()));
        }
        drop(reply);
        let mut recorded: Vec<Recording> =
            (0..self.count()).map(|_| Recording::default()).collect();
        replies.into_iter().for_each(|(shard, recording)| recorded[shard] = recording);
        recorded
    }

    /// Whether all shards have ended.
    pub fn are_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Makes every shard complete its requests in flight and end; waits until all have ended.
    pub fn stop(self) {
        for shard in 0..self.count() {
            self.send(shard, Message::Stop);
        }
        for thread in self.threads {
            thread.join().expect("a shard that panics ends the process");
        }
    }
}

/// The body of a shard's thread.
fn run<R: FnOnce()>(
    index: usize,
    cpu: Option<usize>,
    open: impl FnOnce() -> io::Result<R>,
    opened: &Sender<io::Result<()>>,
) {
    // A shard that panics abandons its clients and occupies its slots, so the whole process is
    // ended: no data acknowledged as durable is lost, clients notice at once, and a supervisor
    // starts the server again.
    let _abort = AbortOnPanic;
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu);
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(shard = index, cpu, %error, "cannot pin the shard to its CPU");
        }
    }
    // A shard that waits for a point in time must wake then; the default slack delays it by up to
    // 50 us.
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        tracing::debug!(%error, "cannot set the timer slack");
    }
    if let Err(error) = set_slice(SLICE_NS) {
        tracing::debug!(%error, "cannot set the scheduling slice");
    }
    match open() {
        Ok(run) => {
            let _ = opened.send(Ok(()));
            run();
        }
        Err(error) => drop(opened.send(Err(error))),
    }
}

/// The shortest scheduling slice that Linux allows, in nanoseconds.
const SLICE_NS: u64 = 100_000;

/// Sets this thread's scheduling slice to `slice_ns`. The thread gets no more CPU time, but runs
/// sooner after a wake-up. With the default slice it waits for some milliseconds if another thread
/// computes on its CPU, and other shards wait for it. Linux honours this from 6.12 on; older
/// kernels ignore it.
fn set_slice(slice_ns: u64) -> io::Result<()> {
    let mut attributes = own_attributes()?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        // The server was started with another scheduling policy, which has no such slice.
        return Ok(());
    }
    attributes.sched_runtime = slice_ns;
    set_attributes(&attributes)
}

fn set_attributes(attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel reads the number of bytes that the structure's `size` field gives.
    let written =
        unsafe { libc::syscall(libc::SYS_sched_setattr, SELF, &raw const *attributes, 0) };
    if written == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The nice levels that [`step_back`] adds to a shard's. The thread then gets a tenth of the
/// shard's CPU time if both are runnable on one CPU.
const BEHIND: i32 = 10;

/// Gives this thread less CPU time than shards on the same CPU, whatever priority the shards have.
/// It is for work that may take long.
pub(crate) fn step_back() -> io::Result<()> {
    let mut attributes = own_attributes()?;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_priority = 0;
    attributes.sched_nice = (attributes.sched_nice + BEHIND).min(19);
    set_attributes(&attributes)
}

/// The number that means the calling thread in these system calls.
const SELF: libc::pid_t = 0;

/// The scheduling attributes of this thread.
fn own_attributes() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the structure has only numbers, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes to the structure, which has that size.
    let read =
        unsafe { libc::syscall(libc::SYS_sched_getattr, SELF, &raw mut attributes, size, 0) };
    attributes.size = size;
    if read == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a shard panicked: ending the process");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_steps_back_is_behind_however_the_process_was_started() {
        let (before, after) = std::thread::spawn(|| {
            let before = own_attributes().unwrap();
            step_back().unwrap();
            (before, own_attributes().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(after.sched_policy, libc::SCHED_OTHER as u32);
        assert_eq!(after.sched_nice, (before.sched_nice + BEHIND).min(19));
    }

    #[test]
    fn a_short_slice_is_all_that_changes() {
        let (before, after) = std::thread::spawn(|| {
            // SAFETY: the call lowers the priority of this thread, which ends with the test.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) };
            let before = own_attributes().unwrap();
            set_slice(SLICE_NS).unwrap();
            (before, own_attributes().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, 7));
        let takes_notice = before.sched_runtime != 0;
        assert_eq!(after.sched_runtime, if takes_notice { SLICE_NS } else { 0 });
    }
}
