//! The device `nvme-soft`: a software NVMe controller before memory or files, and the driver in
//! front of it.
//!
//! **Problem.** Policies that leave scheduling to the device (D2FQ) need one that arbitrates
//! between classes of queues by weighted round robin, which few disks do. **Model.** A
//! [`Controller`] as specified, with the driver's part in the shards, each of which has a `Set` of
//! queues: one submission queue for each class, on one completion queue (`layout`). Commands are
//! put in the queue of their class; every doorbell that needs it is rung once, at the end of the
//! batch; completions are taken by looking at the completion queue. The weights of the classes are
//! set with the Arbitration feature.
//!
//! **Polling.** By default the shards poll: a shard that rings or reaps does the controller's work
//! unless another shard is doing it. With [`Poller::Core`] a thread does nothing else. A completion
//! for another shard wakes it.
//!
//! **Alignment.** The controller has blocks of 512 bytes; requests may have any offset and length
//! (`job`). Writes of whole blocks and read-modify-write cycles keep apart by the guard that the
//! file device also uses.
//!
//! **Errors.** Status codes become errnos again; those of files pass through unchanged.
//!
//! **Knobs.** `window`: how many commands the controller fetches at a time, over all queues; the
//! smaller, the more of the order is the arbiter's. `queues`: I/O queues of each kind. `wrr`:
//! whether classes mean anything.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use fairq_core::{ClassWeights, PortSet};

use crate::device::error::DeviceError;
use crate::device::file::{Direct, FileDevice, FileSpec, LATER_FILES, Unsettled};
use crate::device::guard::Guard;
use crate::device::nvme::controller::{Controller, Options, QUEUES_MAX};
use crate::device::nvme::namespaces::Namespaces;
use crate::device::nvme::spec::LBA;
use crate::device::store::Store;
use crate::device::{ControllerLimits, CutOff, Device, Extent, Info, Place};
use crate::io::clock::Clock;
use crate::io::ring::Ring;
use crate::io::wakers::Wakers;

use bus::Bus;
use driver::Driver;
use lane::{Backing, Lane};
use layout::QUEUES_MIN;
use queue::Hold;

mod bus;
mod driver;
mod job;
mod lane;
mod layout;
mod queue;
mod set;
#[cfg(test)]
mod tests;

pub use crate::device::nvme::controller::Timing;
pub use queue::NvmeQueue;

/// Commands fetched at a time if nobody says.
pub const WINDOW: u16 = 64;
/// I/O queues of each kind if nobody says.
pub const QUEUES: u16 = 32;
/// The range of the number of I/O queues of each kind.
pub const QUEUES_RANGE: std::ops::RangeInclusive<u16> = QUEUES_MIN..=QUEUES_MAX;
/// The range of the number of commands that are fetched and not completed.
pub const WINDOW_RANGE: std::ops::RangeInclusive<u16> = 1..=4096;

/// A controller and what is behind it, as plain data.
#[derive(Clone, Debug)]
pub struct NvmeSoftSpec {
    /// Where the data is.
    pub backing: BackingSpec,
    /// The drive whose timing it has; `None` over files.
    pub timing: Option<Timing>,
    /// The most commands fetched and not completed, in [`WINDOW_RANGE`].
    pub window: u16,
    /// I/O queues of each kind, in [`QUEUES_RANGE`].
    pub queues: u16,
    /// Whether it offers weighted round robin.
    pub wrr: bool,
    /// The threads that poll it.
    pub poller: Poller,
}

/// Where a controller's data is.
#[derive(Clone, Debug)]
pub enum BackingSpec {
    /// Nowhere: commands do nothing.
    Null {
        /// Bytes.
        size: u64,
    },
    /// Memory.
    Ram {
        /// Bytes.
        size: u64,
    },
    /// Regular files or block devices, a namespace each.
    File {
        /// Which, in the order of their numbers.
        files: Vec<FileSpec>,
        /// Whether to pass the page cache by.
        direct: Direct,
    },
}

/// The threads that poll a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Poller {
    /// The shards, on the way.
    #[default]
    Inline,
    /// A thread that does nothing else.
    Core,
}

/// See the [module's text](self).
pub struct NvmeSoft {
    info: Info,
    limits: ControllerLimits,
    shared: Arc<Shared>,
    core: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

/// The state that all queues share.
struct Shared {
    controller: Controller<Bus>,
    backing: Backing,
    /// The files.
    namespaces: Arc<Namespaces>,
    guard: Guard,
    poller: Poller,
    driver: Mutex<Driver>,
    /// The wakers of the run's shards.
    wakers: Mutex<Option<Arc<Wakers>>>,
}

impl NvmeSoft {
    /// Opens what is behind it and starts the controller.
    pub fn open(spec: &NvmeSoftSpec) -> Result<NvmeSoft, DeviceError> {
        let impossible = |what| Err(DeviceError::NvmeOption(what));
        if !QUEUES_RANGE.contains(&spec.queues) {
            return impossible(format!(
                "{} queues: choose {QUEUES_MIN} to {QUEUES_MAX}",
                spec.queues
            ));
        }
        if !WINDOW_RANGE.contains(&spec.window) {
            return impossible(format!(
                "a window of {}: choose 1 to {}",
                spec.window,
                WINDOW_RANGE.end()
            ));
        }
        let (backing, info) = open_backing(spec)?;
        info.sizes.iter().try_for_each(|&size| whole_blocks(size))?;
        let namespaces = Arc::new(Namespaces::new(&info.sizes, LATER_FILES));
        let options = Options {
            namespaces: namespaces.clone(),
            queues: spec.queues,
            window: spec.window,
            wrr: spec.wrr,
            volatile_cache: matches!(backing, Backing::File(_)),
            discard_zeroes: info.discard_zeroes,
            timing: spec.timing.clone(),
        };
        let nvme = |source| DeviceError::Nvme { source };
        let controller = Controller::new(options, Driver::bus(spec.queues).map_err(nvme)?);
        let shared = Shared {
            driver: Mutex::new(Driver::new(controller.dma(), spec.queues)),
            controller,
            backing,
            namespaces,
            guard: Guard::default(),
            poller: spec.poller,
            wakers: Mutex::new(None),
        };
        let (window, queues, has_wrr) = (spec.window, spec.queues, spec.wrr);
        let limits = ControllerLimits { window, queues, has_wrr };
        let mut device = NvmeSoft { info, limits, shared: Arc::new(shared), core: None };
        if spec.poller == Poller::Core {
            device.core = Some(start_core(&device.shared).map_err(nvme)?);
        }
        device.reset().map_err(nvme)?;
        Ok(device)
    }

    /// Opens (or creates) one more file, as a namespace; see [`FileDevice::add`].
    pub fn add_file(&self, spec: &FileSpec) -> Result<(u16, u64), DeviceError> {
        let Backing::File(device) = &self.shared.backing else {
            return Err(DeviceError::NoFiles(self.info.name.clone()));
        };
        let (number, size) = device.add(spec, whole_blocks)?;
        self.shared.namespaces.attach(number.into(), size);
        Ok((number, size))
    }

    /// See [`FileDevice::keep_open`].
    pub fn keep_file_open(&self, number: u16) {
        if let Backing::File(device) = &self.shared.backing {
            device.keep_open(number);
        }
    }

    /// See [`FileDevice::retire`].
    pub fn retire_file(&self, number: u16) -> Option<Unsettled> {
        let Backing::File(device) = &self.shared.backing else { return None };
        let retired = device.retire(number)?;
        self.shared.namespaces.detach(number.into());
        Some(retired)
    }

    /// See [`FileDevice::close`].
    pub fn close_file(&self, number: u16) -> bool {
        if let Backing::File(device) = &self.shared.backing { device.close(number) } else { true }
    }

    /// Resets the controller and sets it up anew, with the weights that were set last. No queue may
    /// be open.
    pub fn reset(&self) -> io::Result<()> {
        self.shared.driver().reset(&self.shared)
    }
}

/// Whether a namespace may be so large.
fn whole_blocks(size: u64) -> Result<(), DeviceError> {
    if size > 0 && size.is_multiple_of(LBA.into()) {
        return Ok(());
    }
    Err(DeviceError::NvmeOption(format!(
        "{size} bytes are not whole blocks of {LBA}: choose a size that is"
    )))
}

fn open_backing(spec: &NvmeSoftSpec) -> Result<(Backing, Info), DeviceError> {
    let info = |name: &str, sizes: Vec<u64>, preferred_size: u32, discard_zeroes: bool| Info {
        name: format!("nvme-soft over {name}"),
        sizes,
        block_size: LBA,
        preferred_size,
        has_classes: spec.wrr,
        discard_zeroes,
    };
    match &spec.backing {
        BackingSpec::File { .. } if spec.timing.is_some() => Err(DeviceError::NvmeOption(
            "a profile makes memory as slow as a device, and files take their own time: leave one \
             of them out"
                .into(),
        )),
        &BackingSpec::Null { size } => {
            Ok((Backing::Null, info("nothing", vec![size], 4096, false)))
        }
        &BackingSpec::Ram { size } => {
            let store = Store::map(size).map_err(|source| DeviceError::Memory { size, source })?;
            // Only whole blocks are discarded: a part of a block at the range's ends keeps its
            // data.
            Ok((Backing::Ram(Arc::new(store)), info("ram", vec![size], 4096, false)))
        }
        BackingSpec::File { files, direct } => {
            let device = FileDevice::open(files, *direct)?;
            let of = device.info();
            let info = info(&of.name, of.sizes.clone(), of.preferred_size, false);
            Ok((Backing::File(device), info))
        }
    }
}

impl Drop for NvmeSoft {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.core.take() {
            stop.store(true, Ordering::Release);
            let _ = thread.join();
        }
    }
}

impl Device for NvmeSoft {
    type Queue = NvmeQueue;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(&self, place: &Place, ring: &mut Ring) -> io::Result<NvmeQueue> {
        let shared = &self.shared;
        let lane = match shared.poller {
            Poller::Inline => Some(Lane::open(&shared.backing, place, true, ring)?),
            Poller::Core => None,
        };
        *shared.wakers.lock().unwrap_or_else(PoisonError::into_inner) = Some(place.wakers.clone());
        let (hold, at) = shared.driver().open(shared, place)?;
        NvmeQueue::open(shared.clone(), hold, at, lane)
    }

    fn controller_limits(&self) -> ControllerLimits {
        self.limits
    }

    fn set_class_weights(&self, weights: ClassWeights) -> io::Result<()> {
        self.shared.driver().set_weights(&self.shared, weights)
    }

    fn sync(&self) -> Vec<(u16, io::Error)> {
        if let Backing::File(device) = &self.shared.backing { device.sync() } else { Vec::new() }
    }

    fn write_back_failed(&self, file: u16) -> bool {
        matches!(&self.shared.backing, Backing::File(device) if device.write_back_failed(file))
    }

    fn inspect(&self) {
        if let Backing::File(device) = &self.shared.backing {
            device.inspect();
        }
    }

    fn cut_off(&self) -> Vec<CutOff> {
        if let Backing::File(device) = &self.shared.backing { device.cut_off() } else { Vec::new() }
    }

    fn take_memory(&self, _file: u16, offset: u64, length: u64) -> io::Result<()> {
        if let Backing::Ram(store) = &self.shared.backing {
            store.take_memory(offset, length)
        } else {
            Ok(())
        }
    }

    fn has_fixed_buffers(&self) -> bool {
        matches!(&self.shared.backing, Backing::File(device) if device.has_fixed_buffers())
    }

    fn zeroes_by_map(&self, file: u16, no_hole: bool) -> bool {
        match &self.shared.backing {
            Backing::Null | Backing::Ram(_) => true,
            Backing::File(device) => device.zeroes_by_map(file, no_hole),
        }
    }

    fn is_polled(&self) -> bool {
        // Files answer by events on the ring of who polls the controller.
        self.shared.poller == Poller::Core || !matches!(self.shared.backing, Backing::File(_))
    }

    fn runs_on_shards(&self) -> bool {
        self.shared.poller != Poller::Core
    }

    fn extents(&self, file: u16, offset: u64, length: u64, most: usize) -> io::Result<Vec<Extent>> {
        match &self.shared.backing {
            Backing::Null => Ok(vec![Extent { length, is_hole: false }]),
            Backing::Ram(store) => store.extents(offset, length, most),
            Backing::File(device) => device.extents(file, offset, length, most),
        }
    }
}

impl Shared {
    fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a set back.
    fn close(&self, set: usize, hold: Hold) {
        self.driver().close(set, hold);
    }

    fn wake(&self, ports: PortSet) {
        if ports.is_empty() {
            return;
        }
        if let Some(wakers) = &*self.wakers.lock().unwrap_or_else(PoisonError::into_inner) {
            wakers.wake_all(ports);
        }
    }
}

/// Starts the thread that polls.
fn start_core(shared: &Arc<Shared>) -> io::Result<(Arc<AtomicBool>, JoinHandle<()>)> {
    let stop = Arc::new(AtomicBool::new(false));
    let (shared, stopped) = (shared.clone(), stop.clone());
    // This thread polls and is never woken, so it has no bell.
    let place = Place { port: fairq_core::PortId(0), ports: 1, wakers: Arc::new(Wakers::new(0)?) };
    let thread = std::thread::Builder::new().name("nvme-soft".into()).spawn(move || {
        let opened = Ring::new(0).and_then(|mut ring| {
            let lane = Lane::open(&shared.backing, &place, false, &mut ring)?;
            Ok((ring, lane))
        });
        match opened {
            Ok((ring, lane)) => run_core(&shared, ring, lane, &stopped),
            Err(error) => tracing::error!(%error, "the controller's thread cannot start"),
        }
    })?;
    Ok((stop, thread))
}

/// Polls until `stop` is set.
fn run_core(shared: &Shared, mut ring: Ring, mut lane: Lane, stop: &AtomicBool) {
    /// Passes without work after which others who want the CPU get it.
    const PATIENT_PASSES: u32 = 10_000;
    let clock = Clock::default();
    let has_ring = matches!(lane, Lane::File(_));
    let mut idle = 0;
    while !stop.load(Ordering::Acquire) || !lane.is_idle() {
        let now_ns = clock.now_ns();
        if has_ring {
            ring.enter(0, None);
            while let Some(event) = ring.event() {
                lane.event(now_ns, &mut ring, event);
            }
        }
        if !lane.wants_poll(now_ns, &mut ring) && !shared.controller.wants_poll(now_ns) {
            idle += 1;
            if idle > PATIENT_PASSES {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
            continue;
        }
        idle = 0;
        let mut wake = PortSet::EMPTY;
        lane.poll(&shared.controller, 0, now_ns, &mut ring, &mut wake);
        shared.wake(wake);
    }
}
