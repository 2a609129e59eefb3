//! The controllers of a server: started when a client connects, and reached by the flows of their
//! tenants.

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fairq_core::FlowId;
use rustix::event::{EventfdFlags, eventfd};

use crate::front::attach::{Attachment, Disk};
use crate::front::vfio_user::bridge::{Bridge, doorbells};
use crate::front::vfio_user::controller_state::{Registers, Session, VECTORS, lock};
use crate::front::vfio_user::dialogue::run;
use crate::front::vfio_user::left_controller::LeftController;
use crate::front::vfio_user::pci_config::PciConfig;

pub use crate::front::vfio_user::controller_state::Send;

/// Bytes of an entry of the MSI-X table.
const MSIX_ENTRY: usize = 16;
/// The pause between two attempts to lock a session.
const PAUSE: Duration = Duration::from_micros(200);

/// The controllers of a server.
#[derive(Default)]
pub struct Controllers {
    next: AtomicU32,
    /// Some may have ended.
    all: Mutex<Vec<Started>>,
}

/// A controller that may have ended.
type Started = (Weak<Bridge>, Weak<Mutex<Session>>);

/// Sessions of controllers, for the next program.
pub struct Paused(Vec<Arc<Mutex<Session>>>);

impl Controllers {
    /// Starts the session of a client that has connected. `shards` is the number of shards that
    /// `send` reaches; `attachment` has the places of the controller's queues.
    pub fn spawn(
        &self,
        stream: UnixStream,
        disk: Disk,
        shards: usize,
        send: Send,
        attachment: Arc<Attachment>,
    ) -> io::Result<JoinHandle<()>> {
        let session = self.session(stream, doorbells()?, disk, shards, send, attachment)?;
        self.run(session)
    }

    /// Continues a session of the last program in this process, whose files `open` gives.
    pub fn resume(
        &self,
        left: LeftController,
        mut open: impl FnMut(RawFd) -> io::Result<OwnedFd>,
        disk: Disk,
        shards: usize,
        send: Send,
        attachment: Arc<Attachment>,
    ) -> io::Result<JoinHandle<()>> {
        let stream = UnixStream::from(open(left.stream())?);
        let page = open(left.page())?.into();
        let mut session = self.session(stream, page, disk, shards, send, attachment)?;
        session.go_on(left, open)?;
        self.run(session)
    }

    fn session(
        &self,
        stream: UnixStream,
        page: File,
        disk: Disk,
        shards: usize,
        send: Send,
        attachment: Arc<Attachment>,
    ) -> io::Result<Session> {
        let Disk { name, volume, block, preferred, whole } = disk;
        let shards = shards.max(1);
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let bridge = Bridge::new(name, volume.flow, stream, bell, volume.size, shards, page)
            .map_err(io::Error::other)?;
        Ok(Session {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            bridge: Arc::new(bridge),
            volume,
            block,
            preferred,
            whole,
            shards,
            send,
            attachment,
            is_open: false,
            offers_page: false,
            guest: Arc::default(),
            blind: Vec::new(),
            config: PciConfig::new(VECTORS),
            table: vec![0; usize::from(VECTORS) * MSIX_ENTRY],
            vectors: vec![None; VECTORS.into()],
            registers: Registers::default(),
            admin: None,
        })
    }

    /// Starts the thread of a session.
    fn run(&self, session: Session) -> io::Result<JoinHandle<()>> {
        let bridge = session.bridge.clone();
        let session = Arc::new(Mutex::new(session));
        let mut all = lock(&self.all);
        all.retain(|(bridge, _)| bridge.strong_count() > 0);
        all.push((Arc::downgrade(&bridge), Arc::downgrade(&session)));
        drop(all);
        let run = move || run(&bridge, &session);
        std::thread::Builder::new().name("fairq-guest".into()).spawn(run)
    }

    /// The sessions, of which [`Paused::with_states`] lets none handle a message.
    pub fn pause(&self) -> Paused {
        let all = lock(&self.all);
        Paused(all.iter().filter_map(|(_, session)| session.upgrade()).collect())
    }

    fn of(&self, flow: FlowId) -> Vec<Arc<Bridge>> {
        let all = lock(&self.all);
        let bridges = all.iter().filter_map(|(bridge, _)| bridge.upgrade());
        bridges.filter(|bridge| bridge.flow == flow).collect()
    }

    /// Whether no client is connected.
    pub fn is_empty(&self) -> bool {
        lock(&self.all).iter().all(|(bridge, _)| bridge.strong_count() == 0)
    }

    /// Gives the namespaces of a flow another size. `notify_shards` sends the shards a
    /// [`crate::shard::Notice::Resize`], before the guests get the size: they may use it at once.
    pub fn resize(&self, flow: FlowId, size: u64, notify_shards: impl FnOnce()) {
        let bridges = self.of(flow);
        bridges.iter().for_each(|bridge| *bridge.size() = size);
        notify_shards();
        bridges.iter().for_each(|bridge| bridge.resized());
    }

    /// Ends the sessions of a flow.
    pub fn hang_up(&self, flow: FlowId) {
        self.of(flow).iter().for_each(|bridge| bridge.hang_up());
    }
}

impl Paused {
    /// Calls `act` with a function that gives the state of the sessions once the shards stand
    /// still; none of them handles a message meanwhile. `None` if one of them stays in the middle
    /// of one for `patience`.
    pub fn with_states<T>(
        &self,
        patience: Duration,
        act: impl FnOnce(&dyn Fn() -> Vec<LeftController>) -> T,
    ) -> Option<T> {
        let deadline = Instant::now() + patience;
        let guards: Option<Vec<_>> = self.0.iter().map(|one| lock_until(one, deadline)).collect();
        let guards = guards?;
        Some(act(&|| guards.iter().map(|session| session.left()).collect()))
    }
}

/// Locks a session, whose messages take no time unless they wait for the device or for a client.
fn lock_until(session: &Mutex<Session>, deadline: Instant) -> Option<MutexGuard<'_, Session>> {
    loop {
        match session.try_lock() {
            Ok(session) => return Some(session),
            Err(_) if Instant::now() > deadline => return None,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}
