//! One of the devices, which a [`DeviceSpec`] selects when the program starts; calls are dispatched
//! by a `match`.

use std::io;
use std::path::PathBuf;

use fairq_core::{ClassWeights, PortSet};
use serde::{Deserialize, Serialize};

use crate::device::error::DeviceError;
use crate::device::file::{Direct, FileDevice, FileQueue, FileSpec, LeftFile, OpenFile, Unsettled};
use crate::device::null::{NullDevice, NullQueue};
use crate::device::nvme_soft::{NvmeQueue, NvmeSoft, NvmeSoftSpec};
use crate::device::paced::{Pace, PacedDevice, PacedQueue};
use crate::device::ram::{RamDevice, RamQueue};
use crate::device::store::Store;
use crate::device::{
    Command, Completion, ControllerLimits, CutOff, Device, Extent, Info, Place, Queue, WriteOutJob,
};
use crate::io::area::{Area, Span, SpanReader};
use crate::io::memory::Memory;
use crate::io::ring::{Event, Ring};

/// A device to open, as plain data.
#[derive(Clone, Debug)]
pub enum DeviceSpec {
    /// A device that completes at once and stores nothing.
    Null {
        /// The size in bytes.
        size: u64,
    },
    /// A device in memory.
    Ram {
        /// The size in bytes.
        size: u64,
    },
    /// Memory with the timing of a slower device.
    Paced {
        /// The size in bytes.
        size: u64,
        /// Its limits.
        pace: Pace,
    },
    /// Regular files or block devices.
    File {
        /// The files, in the order of their numbers.
        files: Vec<FileSpec>,
        /// Whether to bypass the page cache.
        direct: Direct,
    },
    /// A software NVMe controller whose namespaces are in memory or files.
    NvmeSoft(Box<NvmeSoftSpec>),
}

/// One of the devices.
pub enum AnyDevice {
    /// The null device.
    Null(NullDevice),
    /// The RAM device.
    Ram(RamDevice),
    /// The paced device.
    Paced(PacedDevice),
    /// The file device.
    File(FileDevice),
    /// The software NVMe controller.
    NvmeSoft(NvmeSoft),
}

/// One shard's queue on it.
pub enum AnyQueue {
    /// On the null device.
    Null(NullQueue),
    /// On the RAM device.
    Ram(RamQueue),
    /// On the paced device.
    Paced(PacedQueue),
    /// On the file device.
    File(FileQueue),
    /// On the software NVMe controller.
    NvmeSoft(NvmeQueue),
}

impl DeviceSpec {
    /// Opens the device.
    pub fn open(&self) -> Result<AnyDevice, DeviceError> {
        self.open_after(Inherited::default())
    }

    /// Opens the device from the state that the previous program in this process has left.
    pub fn open_after(&self, left: Inherited) -> Result<AnyDevice, DeviceError> {
        let Inherited { files: open, memory: parts } = left;
        let device = self.opened(open)?;
        let (AnyDevice::Ram(_) | AnyDevice::Paced(_)) = &device else { return Ok(device) };
        let size = device.info().sizes.first().copied().unwrap_or(0);
        for (at, part) in parts {
            let store = device.store().expect("it keeps its data in memory");
            store.take(at, part).map_err(|source| DeviceError::Memory { size, source })?;
        }
        Ok(device)
    }

    fn opened(&self, open: Vec<OpenFile>) -> Result<AnyDevice, DeviceError> {
        let memory = |size| move |source| DeviceError::Memory { size, source };
        Ok(match self {
            &DeviceSpec::Null { size } => AnyDevice::Null(NullDevice::new(size)),
            &DeviceSpec::Ram { size } => {
                AnyDevice::Ram(RamDevice::new(size).map_err(memory(size))?)
            }
            &DeviceSpec::Paced { size, pace } => {
                AnyDevice::Paced(PacedDevice::new(size, pace).map_err(memory(size))?)
            }
            DeviceSpec::File { files, direct } => {
                AnyDevice::File(FileDevice::open_after(files, *direct, open)?)
            }
            DeviceSpec::NvmeSoft(spec) => AnyDevice::NvmeSoft(NvmeSoft::open(spec)?),
        })
    }
}

/// The state of a device for the next program in this process.
#[derive(Default, Serialize, Deserialize)]
pub struct Left {
    /// Its files.
    pub files: Vec<LeftFile>,
    /// Parts of its memory, each with its start in bytes.
    pub memory: Vec<(u64, Span)>,
}

/// The state of a device in the next program.
#[derive(Default)]
pub struct Inherited {
    pub(crate) files: Vec<OpenFile>,
    pub(crate) memory: Vec<(u64, SpanReader)>,
}

/// The most memory that one program passes to the next in an upgrade, in bytes. It is copied twice
/// while clients wait.
const LEFT_MAX: u64 = 256 << 20;

impl AnyDevice {
    /// The store of a device that keeps its data in memory.
    fn store(&self) -> Option<&Store> {
        match self {
            AnyDevice::Ram(device) => Some(device.store()),
            AnyDevice::Paced(device) => Some(device.store()),
            _ => None,
        }
    }

    /// The reason why this device cannot be passed to the next program in this process, if there is
    /// one.
    pub fn refuses_to_leave(&self) -> Option<String> {
        if let AnyDevice::NvmeSoft(_) = self {
            return Some("the state of a software controller cannot be passed on".into());
        }
        let used = self.store().map_or(0, Store::used);
        (used > LEFT_MAX).then(|| {
            format!(
                "the device in memory holds {} MiB, and at most {} MiB can be passed on",
                used >> 20,
                LEFT_MAX >> 20
            )
        })
    }

    /// Writes its state for the next program; no command may be in flight.
    pub fn leave(&self, area: &Area) -> io::Result<Left> {
        let memory = self.store().map(|store| store.leave(area)).transpose()?.unwrap_or_default();
        Ok(Left { memory, ..self.leave_files() })
    }

    /// Its state, without the data in memory.
    pub fn leave_files(&self) -> Left {
        let files = if let AnyDevice::File(device) = self { device.leave() } else { Vec::new() };
        Left { files, memory: Vec::new() }
    }

    /// Opens one more file while the device is used, or cancels the pending closing of an open one;
    /// returns its number and its size in bytes.
    pub fn add_file(&self, spec: &FileSpec) -> Result<(u16, u64), DeviceError> {
        match self {
            AnyDevice::File(device) => device.add(spec, |_| Ok(())),
            AnyDevice::NvmeSoft(device) => device.add_file(spec),
            _ => Err(DeviceError::NoFiles(self.info().name.clone())),
        }
    }

    /// The path of a file; `None` if the device keeps its data in memory.
    pub fn path_of(&self, number: u16) -> Option<PathBuf> {
        match self {
            AnyDevice::File(file) => file.path_of(number),
            _ => None,
        }
    }

    /// The largest number of stores: 1 for a device without files; otherwise the stores of its
    /// first files, and a few more for files on other devices that are added later.
    pub fn room_for_stores(&self) -> usize {
        if let AnyDevice::File(device) = self { device.room_for_stores() } else { 1 }
    }

    /// See [`FileDevice::size_of`]; `None` for all other devices, whose sizes never change.
    pub fn size_of(&self, number: u16) -> Option<u64> {
        if let AnyDevice::File(device) = self { device.size_of(number) } else { None }
    }

    /// See [`FileDevice::keep_open`].
    pub fn keep_file_open(&self, number: u16) {
        match self {
            AnyDevice::File(device) => device.keep_open(number),
            AnyDevice::NvmeSoft(device) => device.keep_file_open(number),
            _ => {}
        }
    }

    /// See [`FileDevice::retire`].
    pub fn retire_file(&self, number: u16) -> Option<Unsettled> {
        match self {
            AnyDevice::File(device) => device.retire(number),
            AnyDevice::NvmeSoft(device) => device.retire_file(number),
            _ => None,
        }
    }

    /// See [`FileDevice::close`].
    pub fn close_file(&self, number: u16) -> bool {
        match self {
            AnyDevice::File(device) => device.close(number),
            AnyDevice::NvmeSoft(device) => device.close_file(number),
            _ => true,
        }
    }
}

/// Runs the same expression on the device or queue of any variant.
macro_rules! each {
    ($kind:ident, $any:expr, $one:pat => $run:expr) => {
        match $any {
            $kind::Null($one) => $run,
            $kind::Ram($one) => $run,
            $kind::Paced($one) => $run,
            $kind::File($one) => $run,
            $kind::NvmeSoft($one) => $run,
        }
    };
}

impl Device for AnyDevice {
    type Queue = AnyQueue;

    fn info(&self) -> &Info {
        each!(AnyDevice, self, device => device.info())
    }

    fn open_queue(&self, place: &Place, ring: &mut Ring) -> io::Result<AnyQueue> {
        Ok(match self {
            AnyDevice::Null(device) => AnyQueue::Null(device.open_queue(place, ring)?),
            AnyDevice::Ram(device) => AnyQueue::Ram(device.open_queue(place, ring)?),
            AnyDevice::Paced(device) => AnyQueue::Paced(device.open_queue(place, ring)?),
            AnyDevice::File(device) => AnyQueue::File(device.open_queue(place, ring)?),
            AnyDevice::NvmeSoft(device) => AnyQueue::NvmeSoft(device.open_queue(place, ring)?),
        })
    }

    fn controller_limits(&self) -> ControllerLimits {
        each!(AnyDevice, self, device => device.controller_limits())
    }

    fn set_class_weights(&self, weights: ClassWeights) -> io::Result<()> {
        each!(AnyDevice, self, device => device.set_class_weights(weights))
    }

    fn extents(&self, file: u16, offset: u64, length: u64, most: usize) -> io::Result<Vec<Extent>> {
        each!(AnyDevice, self, device => device.extents(file, offset, length, most))
    }

    fn sync(&self) -> Vec<(u16, io::Error)> {
        each!(AnyDevice, self, device => device.sync())
    }

    fn write_back_failed(&self, file: u16) -> bool {
        each!(AnyDevice, self, device => device.write_back_failed(file))
    }

    fn write_out(&self, file: u16, job: WriteOutJob) {
        each!(AnyDevice, self, device => device.write_out(file, job))
    }

    fn inspect(&self) {
        each!(AnyDevice, self, device => device.inspect())
    }

    fn cut_off(&self) -> Vec<CutOff> {
        each!(AnyDevice, self, device => device.cut_off())
    }

    fn take_memory(&self, file: u16, offset: u64, length: u64) -> io::Result<()> {
        each!(AnyDevice, self, device => device.take_memory(file, offset, length))
    }

    fn store_of(&self, file: u16) -> u16 {
        each!(AnyDevice, self, device => device.store_of(file))
    }

    fn stores(&self) -> Vec<String> {
        each!(AnyDevice, self, device => device.stores())
    }

    fn has_fixed_buffers(&self) -> bool {
        each!(AnyDevice, self, device => device.has_fixed_buffers())
    }

    fn zeroes_by_map(&self, file: u16, no_hole: bool) -> bool {
        each!(AnyDevice, self, device => device.zeroes_by_map(file, no_hole))
    }

    fn is_polled(&self) -> bool {
        each!(AnyDevice, self, device => device.is_polled())
    }

    fn runs_on_shards(&self) -> bool {
        each!(AnyDevice, self, device => device.runs_on_shards())
    }
}

impl Queue for AnyQueue {
    #[inline]
    unsafe fn issue(&mut self, now_ns: u64, ring: &mut Ring, command: &Command, rest: &[Memory]) {
        // SAFETY: the caller's guarantee for the memory holds here.
        each!(AnyQueue, self, queue => unsafe { queue.issue(now_ns, ring, command, rest) })
    }

    #[inline]
    fn ring(&mut self, now_ns: u64, ring: &mut Ring, wake: &mut PortSet) {
        each!(AnyQueue, self, queue => queue.ring(now_ns, ring, wake))
    }

    #[inline]
    fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event) {
        each!(AnyQueue, self, queue => queue.event(now_ns, ring, event))
    }

    #[inline]
    fn reap(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        done: &mut Vec<Completion>,
        wake: &mut PortSet,
    ) {
        each!(AnyQueue, self, queue => queue.reap(now_ns, ring, done, wake))
    }

    fn store_of(&self, file: u16) -> u16 {
        each!(AnyQueue, self, queue => queue.store_of(file))
    }

    #[inline]
    fn is_cached(&self, file: u16) -> bool {
        each!(AnyQueue, self, queue => queue.is_cached(file))
    }

    #[inline]
    fn deadline_ns(&self) -> Option<u64> {
        each!(AnyQueue, self, queue => queue.deadline_ns())
    }

    #[inline]
    fn is_idle(&self) -> bool {
        each!(AnyQueue, self, queue => queue.is_idle())
    }
}
