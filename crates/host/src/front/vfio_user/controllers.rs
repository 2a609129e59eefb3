//! The controllers of a server: started when a client connects, and reached by the flows of their
//! tenants.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use fairq_core::FlowId;
use rustix::event::{EventfdFlags, eventfd};

use crate::front::attach::{Attachment, Disk};
use crate::front::vfio_user::bridge::Bridge;
use crate::front::vfio_user::controller_state::{Registers, Session, VECTORS, lock};
use crate::front::vfio_user::dialogue::run;
use crate::front::vfio_user::pci_config::PciConfig;

pub use crate::front::vfio_user::controller_state::Send;

/// Bytes of an entry of the MSI-X table.
const MSIX_ENTRY: usize = 16;

/// The controllers of a server.
#[derive(Default)]
pub struct Controllers {
    next: AtomicU32,
    /// Some may have ended.
    all: Mutex<Vec<Weak<Bridge>>>,
}

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
        let Disk { name, volume, block, preferred, whole } = disk;
        let shards = shards.max(1);
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let bridge = Bridge::new(name, volume.flow, stream, bell, volume.size, shards)
            .map_err(io::Error::other)?;
        let bridge = Arc::new(bridge);
        let session = Session {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            bridge: bridge.clone(),
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
        };
        let mut all = lock(&self.all);
        all.retain(|bridge| bridge.strong_count() > 0);
        all.push(Arc::downgrade(&bridge));
        drop(all);
        let session = Mutex::new(session);
        let run = move || run(&bridge, &session);
        std::thread::Builder::new().name("fairq-guest".into()).spawn(run)
    }

    fn of(&self, flow: FlowId) -> Vec<Arc<Bridge>> {
        let all = lock(&self.all);
        all.iter().filter_map(Weak::upgrade).filter(|bridge| bridge.flow == flow).collect()
    }

    /// Whether no client is connected.
    pub fn is_empty(&self) -> bool {
        lock(&self.all).iter().all(|bridge| bridge.strong_count() == 0)
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
