//! The sessions of a server: started when a monitor connects or when another program has passed one
//! on, and paused during an upgrade.

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use fairq_core::FlowId;
use vhost::vhost_user::message::VhostUserInflight;

use crate::front::attach::{Attachment, Disk};
use crate::front::guest_memory::Guest;
use crate::front::vhost::conversation::{Session, Vring, lock, run};
use crate::front::vhost::left::LeftSession;
use crate::front::vhost::link::Link;
use crate::front::vhost::vrings::Message;

/// The largest number of queues of a guest.
pub const QUEUES: usize = 64;

/// Sends a message to the front end of a shard.
pub type Send = Arc<dyn Fn(usize, Message) + std::marker::Send + Sync>;

/// The sessions of a server.
#[derive(Default)]
pub struct Sessions {
    next: AtomicU32,
    all: Mutex<Vec<Started>>,
}

/// A session that may have ended.
type Started = (Weak<Link>, Weak<Mutex<Session>>);

/// The sessions that an upgrade is to pass on; see [`Paused::with_states`].
pub struct Paused(Vec<Arc<Mutex<Session>>>);

impl Sessions {
    /// Starts the session of a monitor that has connected. `shards` is the number of shards to
    /// which `send` can send; `attachment` provides the places of the session's queues.
    pub fn spawn(
        &self,
        stream: UnixStream,
        disk: Disk,
        shards: usize,
        send: Send,
        attachment: Arc<Attachment>,
    ) -> io::Result<JoinHandle<()>> {
        let session = self.session(stream, disk, shards, send, attachment)?;
        self.run(session)
    }

    /// Starts the thread of a session.
    fn run(&self, session: Session) -> io::Result<JoinHandle<()>> {
        let (stream, link) = (session.stream.try_clone()?, Arc::downgrade(&session.link));
        let session = Arc::new(Mutex::new(session));
        let mut all = lock(&self.all);
        all.retain(|(link, _)| link.strong_count() > 0);
        all.push((link, Arc::downgrade(&session)));
        drop(all);
        let run = move || run(&stream, &session);
        std::thread::Builder::new().name("fairq-guest".into()).spawn(run)
    }

    /// Continues a session of the last program in this process; `open` returns its files.
    pub fn resume(
        &self,
        left: &LeftSession,
        mut open: impl FnMut(RawFd) -> io::Result<OwnedFd>,
        disk: Disk,
        shards: usize,
        send: Send,
        attachment: Arc<Attachment>,
    ) -> io::Result<JoinHandle<()>> {
        let stream = UnixStream::from(open(left.stream)?);
        let mut session = self.session(stream, disk, shards, send, attachment)?;
        session.features = left.features;
        session.protocol = left.protocol;
        session.status = left.status;
        session.link.caches_writes.store(left.caches_writes, Ordering::Relaxed);
        if let Some(back) = left.back {
            *lock(&session.link.back) = Some(UnixStream::from(open(back)?));
        }
        let mut regions = Vec::new();
        for &(plan, fd) in &left.memory {
            regions.push((plan, File::from(open(fd)?)));
        }
        session.guest = Arc::new(Guest::map(regions).map_err(io::Error::other)?);
        if let Some((fd, [size, offset], [queues, queue_size], is_own)) = left.inflight {
            let shape = VhostUserInflight {
                mmap_size: size,
                mmap_offset: offset,
                num_queues: queues,
                queue_size,
            };
            session.inflight = Some((File::from(open(fd)?), shape));
            session.is_area_own = is_own;
        }
        for vring in &left.vrings {
            let Some(place) = session.vrings.get_mut(usize::from(vring.index)) else { continue };
            let mut file = |fd: Option<RawFd>| fd.map(&mut open).transpose();
            *place = Vring {
                size: vring.size,
                base: vring.base,
                addresses: vring.addresses,
                kick: file(vring.kick)?,
                call: file(vring.call)?,
                error: file(vring.error)?,
                is_enabled: vring.is_enabled,
                is_started: false,
                is_left: vring.is_started,
            };
        }
        session.start_all().map_err(io::Error::other)?;
        self.run(session)
    }

    /// The present sessions, which [`Paused::with_states`] pauses.
    pub fn pause(&self) -> Paused {
        let all = lock(&self.all);
        Paused(all.iter().filter_map(|(_, session)| session.upgrade()).collect())
    }

    fn session(
        &self,
        stream: UnixStream,
        disk: Disk,
        shards: usize,
        send: Send,
        attachment: Arc<Attachment>,
    ) -> io::Result<Session> {
        let link = Arc::new(Link {
            name: disk.name,
            flow: disk.volume.flow,
            stream: stream.try_clone()?,
            back: Mutex::new(None),
            size: Mutex::new(disk.volume.size),
            has_failed: AtomicBool::new(false),
            caches_writes: AtomicBool::new(true),
        });
        Ok(Session {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            stream,
            link,
            volume: disk.volume,
            block: disk.block,
            preferred: disk.preferred,
            shards: shards.max(1),
            send,
            attachment,
            features: 0,
            protocol: 0,
            status: 0,
            guest: Arc::default(),
            inflight: None,
            area: None,
            is_area_own: false,
            vrings: (0..QUEUES).map(|_| Vring::default()).collect(),
        })
    }

    fn of(&self, flow: FlowId) -> Vec<Arc<Link>> {
        let all = lock(&self.all);
        let links = all.iter().filter_map(|(link, _)| link.upgrade());
        links.filter(|link| link.flow == flow).collect()
    }

    /// Whether no guest is attached.
    pub fn is_empty(&self) -> bool {
        lock(&self.all).iter().all(|(link, _)| link.strong_count() == 0)
    }

    /// The number of guests of a flow.
    pub fn count(&self, flow: FlowId) -> usize {
        self.of(flow).len()
    }

    /// Changes the size of a flow's disks. `tell_vrings` sends a [`crate::shard::Notice::Resize`]
    /// to the shards; this comes before the guests receive the new size, because they may use it at
    /// once.
    pub fn resize(&self, flow: FlowId, size: u64, tell_vrings: impl FnOnce()) {
        let links = self.of(flow);
        links.iter().for_each(|link| *link.size() = size);
        tell_vrings();
        links.iter().for_each(|link| link.notify());
    }

    /// Ends the sessions of a flow, also those without vrings, which no shard could end.
    pub fn hang_up(&self, flow: FlowId) {
        self.of(flow).iter().for_each(|link| link.hang_up());
    }
}

impl Paused {
    /// Calls `act` with the state of the sessions, none of which handles a message during the
    /// call. A session that is just handling a message is left out, and ends with this program.
    pub fn with_states<T>(&self, act: impl FnOnce(Vec<LeftSession>) -> T) -> T {
        let guards: Vec<_> = self.0.iter().filter_map(|session| session.try_lock().ok()).collect();
        act(guards.iter().map(|session| session.left()).collect())
    }
}
