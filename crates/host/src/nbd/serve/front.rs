//! The NBD front end of a shard: its connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use fairq_core::{FlowId, Port, PortId};

use crate::device::Device;
use crate::io::area::Area;
use crate::io::budget::Budget;
use crate::io::memory::Region;
use crate::io::ring::{Event, Ring};
use crate::nbd::serve::conn::{self, Conn, Connect, Limits, Packed, Pass};
use crate::nbd::serve::survey::SurveyClient;
use crate::nbd::session::revoked::Revoked;
use crate::shard::path::{DataPath, Finished};
use crate::shard::turns::{Turn, Turns, Weights};
use crate::shard::{Front, Meeting, Notice};

/// The part of a connection's memory that is registered with the ring, in bytes: enough for a deep
/// queue of small requests.
const FIXED_BYTES: usize = 4 << 20;

/// The most memory that a shard's idle connections return to the system in a second, in bytes. This
/// takes a few milliseconds, in which the shard does nothing else.
const GIVEN_BACK: usize = 64 << 20;

/// A message to an NBD front end.
pub enum Message {
    /// Serve this connection.
    Connect(Box<Connect>),
    /// A client of this flow connects to the shard with this number. Find its other clients that
    /// have ended, so that the new client's requests wait for theirs; then arrive at the barrier.
    CheckEnds {
        /// The flow.
        flow: FlowId,
        /// The shard.
        shard: PortId,
        /// The barrier that holds the new connection back.
        gate: Arc<Meeting>,
    },
    /// Close the connections whose client's certificate ends at or before this time, in seconds
    /// since 1970.
    Expire(u64),
    /// Close the connections whose client has presented one of these certificates.
    Revoke(Arc<Revoked>),
    /// Serialise all connections for the next program, while the shard is paused.
    Pack {
        /// The area to write to.
        area: Arc<Area>,
        /// Receives the connections, with the shard's number.
        reply: Sender<(usize, io::Result<Vec<Packed>>)>,
        /// The shard's number.
        shard: usize,
    },
    /// All connections from the previous program have been connected: arrive at their barrier.
    Arrive {
        /// The barrier that holds these connections back.
        gate: Arc<Meeting>,
        /// The number of shards.
        shards: usize,
    },
}

/// The connections of one shard.
pub struct NbdFront {
    conns: Vec<Option<Conn>>,
    passes: Vec<Pass>,
    /// The shard's side of the surveyor, for block status requests.
    survey: SurveyClient,
    /// Connections that have had events since they were last flushed.
    active: Vec<u32>,
    is_active: Vec<bool>,
    /// The order in which connections submit their orders. The first ones may use up all free tags.
    turns: Turns,
    weights: Arc<Weights>,
    limits: Limits,
    budget: Option<Arc<Budget>>,
    /// The number of this shard's connections, which the accepting thread reads.
    count: Arc<AtomicUsize>,
    stopping: bool,
}

impl NbdFront {
    /// A front end with at most `most` connections at a time. It maintains `count` for the thread
    /// that distributes connections over shards; `survey` is the shard's side of the surveyor.
    pub fn new(
        most: usize,
        limits: Limits,
        count: Arc<AtomicUsize>,
        survey: SurveyClient,
    ) -> NbdFront {
        NbdFront {
            conns: (0..most).map(|_| None).collect(),
            passes: (0..most).map(|_| Pass::default()).collect(),
            survey,
            active: Vec::with_capacity(most),
            is_active: vec![false; most],
            turns: Turns::default(),
            weights: Arc::new(Weights::new(0)),
            limits,
            budget: None,
            count,
            stopping: false,
        }
    }

    /// This front end with weights by which tenants share the shard's CPU; the default is equal
    /// weights.
    pub fn weighed_by(self, weights: Arc<Weights>) -> NbdFront {
        NbdFront { weights, ..self }
    }

    /// This front end with a bound on the memory of its connections.
    pub fn within(self, budget: Arc<Budget>) -> NbdFront {
        NbdFront { budget: Some(budget), ..self }
    }

    fn connect<P, D: Device>(
        &mut self,
        ring: &mut Ring,
        path: &DataPath<P, D>,
        mut connect: Connect,
    ) {
        let Some(index) = self.conns.iter().position(Option::is_none) else {
            // The accepting thread has counted the connection and passed it to the shard
            // (`Place::handed_over`). The shard therefore decrements the count: here, and wherever
            // a connection ends.
            tracing::error!("no free connection slot on the shard");
            self.count.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        let mapped = match &self.budget {
            Some(budget) => {
                Region::within(self.limits.memory, budget.clone(), connect.volume.tenant)
            }
            None => Region::map(self.limits.memory),
        };
        let mut region = match mapped {
            Ok(region) => region,
            Err(error) => {
                tracing::error!(%error, "no memory for a connection's buffers");
                self.count.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        };
        // Registered pages stay in memory while the connection exists.
        if path.device().has_fixed_buffers() && region.reserve(FIXED_BYTES) {
            region.prefer_large_pages();
            let (address, length) = region.head(FIXED_BYTES);
            // SAFETY: the region is unmapped only in `flush`, after the index has been cleared.
            if unsafe { ring.register_buffer(index as u32, address, length) } {
                region.set_fixed(index as u32, length);
            }
        }
        let mut pass = std::mem::take(&mut connect.pass);
        let (client, gate) = (path.client(connect.volume.tenant), pass.gate.take());
        let rest = pass.rest.take();
        let conn = Conn::new(index as u32, connect, client, region, self.limits);
        let conn = conn.after(gate).with_rest(rest);
        self.passes[index] = pass;
        self.conns[index] = Some(conn);
        self.touch(index);
    }

    /// Handles the cancelled orders; no other finished orders are left.
    fn take_finished<P: Port, D: Device>(&mut self, now_ns: u64, path: &mut DataPath<P, D>) {
        while let Some(finished) = path.finished() {
            self.finished(now_ns, finished);
        }
    }

    /// Serialises the connections that continue under the next program, and ends the others.
    fn pack<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        area: &Area,
    ) -> io::Result<Vec<Packed>> {
        let packed = self.conns.iter().flatten().filter_map(|conn| conn.pack(area).transpose());
        let packed = packed.collect::<io::Result<Vec<_>>>()?;
        if self.conns.iter().flatten().any(Conn::is_bound) {
            let conns = &self.conns;
            path.cancel(now_ns, libc::ESHUTDOWN, |cookie| {
                let conn = conns.get(conn::cookie_index(cookie)).and_then(Option::as_ref);
                conn.is_some_and(Conn::is_bound)
            });
            self.take_finished(now_ns, path);
            let bound = self.conns.iter_mut().flatten().filter(|conn| conn.is_bound());
            bound.for_each(|conn| conn.end_bound(now_ns, ring, path));
        }
        Ok(packed)
    }

    /// Marks a connection as active, so that it is flushed; returns it if it still exists.
    fn touch(&mut self, index: usize) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(index)?.as_mut()?;
        if !std::mem::replace(&mut self.is_active[index], true) {
            self.active.push(index as u32);
        }
        Some(conn)
    }
}

impl Front for NbdFront {
    type Message = Message;

    fn message<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        message: Message,
    ) {
        match message {
            Message::Connect(_) if self.stopping => {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            Message::Expire(now_s) => {
                for index in 0..self.conns.len() {
                    if self.passes[index].until.is_some_and(|until| until <= now_s)
                        && let Some(conn) = self.touch(index)
                    {
                        conn.hang_up();
                        // This is done once: the connection remains while the device has requests
                        // of it.
                        self.passes[index].until = None;
                        tracing::info!(connection = index, "the client's certificate has expired");
                    }
                }
            }
            Message::Revoke(revoked) => {
                for index in 0..self.conns.len() {
                    if revoked.has_one_of(&self.passes[index].shown)
                        && let Some(conn) = self.touch(index)
                    {
                        conn.hang_up();
                        self.passes[index].shown.clear();
                        tracing::info!(connection = index, "the client's certificate is revoked");
                    }
                }
            }
            Message::CheckEnds { flow, shard, gate } => {
                let conns = self.conns.iter_mut().flatten();
                conns.filter(|conn| conn.is_of(flow)).for_each(Conn::check_end);
                if gate.arrive() {
                    path.wake(shard);
                }
            }
            Message::Pack { area, reply, shard } => {
                let packed = self.pack(now_ns, ring, path, &area);
                let _ = reply.send((shard, packed));
            }
            Message::Arrive { gate, shards } => {
                if gate.arrive() {
                    (0..shards).for_each(|shard| path.wake(PortId(shard as u8)));
                }
            }
            Message::Connect(connect) => self.connect(ring, path, *connect),
        }
    }

    fn notice<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        _ring: &mut Ring,
        path: &mut DataPath<P, D>,
        notice: Notice,
    ) {
        match notice {
            Notice::Detach { flow, cut_off } => {
                for index in 0..self.conns.len() {
                    if self.conns[index].as_ref().is_some_and(|conn| conn.is_of(flow))
                        && let Some(conn) = self.touch(index)
                    {
                        conn.detach(cut_off);
                    }
                }
                // The flow is compared, because its slot may already belong to another flow.
                let conns = &self.conns;
                path.cancel(now_ns, libc::ESHUTDOWN, |cookie| {
                    let conn = conns.get(conn::cookie_index(cookie)).and_then(Option::as_ref);
                    conn.is_some_and(|conn| conn.is_of(flow))
                });
                self.take_finished(now_ns, path);
            }
            Notice::Resize { flow, size } => {
                let conns = self.conns.iter_mut().flatten().filter(|conn| conn.is_of(flow));
                conns.for_each(|conn| conn.resize(size));
            }
            Notice::Second => {
                let mut allowance = GIVEN_BACK;
                for index in 0..self.conns.len() {
                    let conn = self.conns[index].as_mut();
                    if conn.is_some_and(|conn| conn.second(&mut allowance)) {
                        self.touch(index);
                    }
                }
            }
            Notice::HangUp => {
                for index in 0..self.conns.len() {
                    if let Some(conn) = self.touch(index) {
                        conn.hang_up();
                    }
                }
            }
        }
    }

    fn event(&mut self, _now_ns: u64, ring: &mut Ring, event: Event) {
        if let Some(conn) = self.touch(conn::event_index(event.data.value)) {
            conn.event(ring, event.data.value, event.result);
        }
    }

    fn arrivals<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        while let Some(answer) = self.survey.answer() {
            if let Some(conn) = self.touch(answer.conn as usize) {
                conn.surveyed(answer);
            }
        }
        let mut cancels = false;
        for &index in &self.active {
            if let Some(conn) = &mut self.conns[index as usize] {
                conn.arrivals(ring, &mut self.survey);
                if conn.wants_turn() {
                    self.turns.push(conn.tenant(), index);
                }
                cancels |= conn.begin_cancel();
            }
        }
        while path.has_room()
            && let Some(Turn { connection, orders }) = self.turns.next(&self.weights)
        {
            // A policy that stages can stage all orders and schedules them itself.
            let most = if P::IS_DIRECT { orders } else { u32::MAX };
            let conn = self.conns[connection as usize].as_mut();
            let (given, has_more) =
                conn.map_or((0, false), |conn| conn.take_turn(now_ns, ring, path, most));
            self.turns.end(given, has_more);
        }
        if cancels {
            let conns = &self.conns;
            // One pass over all live requests suffices for all connections that have died in this
            // turn.
            path.cancel(now_ns, libc::ECANCELED, |cookie| {
                let conn = conns.get(conn::cookie_index(cookie)).and_then(Option::as_ref);
                conn.is_some_and(Conn::is_dead)
            });
            self.take_finished(now_ns, path);
        }
    }

    fn finished(&mut self, _now_ns: u64, finished: Finished) {
        if let Some(conn) = self.touch(conn::cookie_index(finished.cookie)) {
            conn.finished(finished);
        }
    }

    fn flush(&mut self, _now_ns: u64, ring: &mut Ring) -> bool {
        let mut busy = false;
        let (conns, passes) = (&mut self.conns, &mut self.passes);
        let (is_active, count) = (&mut self.is_active, &self.count);
        self.active.retain(|&active| {
            let index = active as usize;
            let Some(conn) = &mut conns[index] else { return false };
            let again = conn.flush(ring) || conn.wants_cancel();
            if conn.is_closed() {
                // The region is unmapped with its connection, so the ring must release it first.
                ring.clear_buffer(active);
                conns[index] = None;
                passes[index] = Pass::default();
                is_active[index] = false;
                count.fetch_sub(1, Ordering::Relaxed);
                return false;
            }
            busy |= again;
            // Tags become free with completions, which cause a turn anyway, so a connection that
            // waits for tags does not keep the shard awake.
            is_active[index] = again || conn.has_unsubmitted();
            is_active[index]
        });
        busy
    }

    fn resume(&mut self) {
        for index in 0..self.conns.len() {
            self.touch(index);
        }
    }

    fn halt(&mut self, ring: &mut Ring, cancel: bool) -> bool {
        let mut is_quiet = true;
        for conn in self.conns.iter_mut().flatten() {
            is_quiet &= conn.halt(ring, cancel);
        }
        is_quiet
    }

    fn go_on(&mut self, ring: &mut Ring) {
        self.conns.iter_mut().flatten().for_each(|conn| conn.go_on(ring));
    }

    fn stop(&mut self) {
        self.stopping = true;
        for index in 0..self.conns.len() {
            if let Some(conn) = self.touch(index) {
                conn.drain();
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.conns.iter().all(Option::is_none)
    }
}
