//! The floor of a vhost-user-blk server: `floor SOCKET QUEUES POLL_US` takes descriptors and
//! returns them as successful requests, without reading their content, with rust-vmm's library for
//! vhost-user servers. Each queue has a thread, which polls for POLL_US microseconds before it
//! sleeps.

use std::io;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

const SECTORS: u64 = (128 << 20) / 512;
/// Flush, queues, the most segments; indirect descriptors, event index, protocol features, version 1.
const FEATURES: u64 = 1 << 9 | 1 << 12 | 1 << 2 | 1 << 28 | 1 << 29 | 1 << 30 | 1 << 32;

struct Floor {
    queues: usize,
    poll: Duration,
    memory: RwLock<Option<Memory>>,
    has_event_index: AtomicBool,
}

impl VhostUserBackend for Floor {
    type Bitmap = ();
    type Vring = VringRwLock<Memory>;

    fn num_queues(&self) -> usize {
        self.queues
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&self, enabled: bool) {
        self.has_event_index.store(enabled, Ordering::Relaxed);
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut config = [0; 256];
        config[..8].copy_from_slice(&SECTORS.to_le_bytes());
        config[12..16].copy_from_slice(&126u32.to_le_bytes());
        config[34..36].copy_from_slice(&(self.queues as u16).to_le_bytes());
        config[offset as usize..].iter().copied().take(size as usize).collect()
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        *self.memory.write().expect("no thread panics") = Some(memory);
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.queues).map(|queue| 1 << queue).collect()
    }

    fn handle_event(&self, event: u16, _: EventSet, vrings: &[Self::Vring], _: usize) -> io::Result<()> {
        let Some(memory) = self.memory.read().expect("no thread panics").clone() else { return Ok(()) };
        let (memory, vring) = (memory.memory(), &vrings[usize::from(event)]);
        let failed = |error| io::Error::other(format!("{error:?}"));
        let mut last = Instant::now();
        loop {
            let mut state = vring.get_mut();
            let queue = state.get_queue_mut();
            queue.set_event_idx(self.has_event_index.load(Ordering::Relaxed));
            queue.disable_notification(&*memory).map_err(failed)?;
            let mut count = 0;
            while let Some(chain) = queue.pop_descriptor_chain(memory.clone()) {
                let head = chain.head_index();
                if let Some(status) = chain.last() {
                    let at = status.addr().0 + u64::from(status.len()) - 1;
                    memory.write_obj(0u8, vm_memory::GuestAddress(at)).map_err(|e| io::Error::other(e.to_string()))?;
                }
                queue.add_used(&*memory, head, 1).map_err(failed)?;
                count += 1;
            }
            if count > 0 {
                if queue.needs_notification(&*memory).map_err(failed)? {
                    state.signal_used_queue()?;
                }
                last = Instant::now();
            } else if last.elapsed() >= self.poll && !queue.enable_notification(&*memory).map_err(failed)? {
                return Ok(());
            }
            drop(state);
            std::hint::spin_loop();
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, queues, poll] = &args[..] else { panic!("floor SOCKET QUEUES POLL_US") };
    let poll = Duration::from_micros(poll.parse().expect("microseconds"));
    let queues = queues.parse().expect("a number");
    let memory = RwLock::new(None);
    let floor = Floor { queues, poll, memory, has_event_index: AtomicBool::new(false) };
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let mut daemon = VhostUserDaemon::new("floor".into(), Arc::new(floor), memory).expect("a daemon");
    let _ = daemon.serve(socket);
    // The library's threads stay, so the next client gets a new program in the same process.
    panic!("{}", std::process::Command::new("/proc/self/exe").args(&args).exec());
}
