//! The file device: regular files or block devices through the shard's io_uring.
//!
//! A device has one file or several (one per tenant), which may be added and closed while it is
//! used (`files`). Each shard registers them with its ring. Files that allow it bypass the page
//! cache (`O_DIRECT`), and then use a registered buffer if it covers the memory.
//!
//! **Alignment.** A command may have any offset and length. Direct I/O needs whole blocks, so a
//! command is carried out as a sequence of parts: whole blocks directly between memory and file,
//! and partial blocks through a bounce buffer. Reads fetch the blocks around the range; writes read
//! the block, change it and write it back, under the guard of `device::guard`. Through the page
//! cache the kernel does all this, so each command is one part. The shard makes the call itself if
//! it does not block (`at_once`); threads of the file's store make calls that may block
//! (`workers`). Discards shrink to whole blocks. Data in several stretches of memory are one
//! vectored call if each stretch is aligned, and are otherwise copied through the bounce buffer
//! (`device::vectors`).
//!
//! **Durability.** A flush is `fdatasync`; through the page cache it is `msync` of the tenant's
//! range only. FUA is `RWF_DSYNC` on each write of the command (for writing zeroes, an `fdatasync`
//! at the end). Both are acknowledged only after the kernel has reported that the data are on
//! stable storage; this process caches no data. So no data that was flushed or written with FUA is
//! lost when the process is killed, at any moment. (Unflushed writes are in the kernel or the
//! device when they are acknowledged, so they survive a kill, too, but not a power cut.)
//!
//! **Errors.** A failed system call ends the one command that it belongs to, with the kernel's
//! errno. Short reads and writes are continued; `EAGAIN` and `EINTR` are retried. A file that is
//! found to be shorter than when it was opened has lost data: from then on commands that reach
//! beyond the remaining part fail with `EIO`, even if the file grows again, since zeroes would
//! replace the lost data. A short read shows this, and each file is also checked once a second. A
//! discard that is not supported succeeds, since it is only advice. If zeroing is not supported,
//! zeroes are written, unless the command must be fast or fail.
//!
//! **Bounds.** Bounce buffers of a queue take at most 4 MiB; commands that need one wait in order
//! of arrival. A queue has as many operations as the shard has commands in flight, each with at
//! most one io_uring operation.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::device::error::DeviceError;
use crate::device::{CutOff, Device, Extent, Info, Place, WriteOutJob};
use crate::io::ring::Ring;

mod at_once;
mod call;
mod files;
mod open;
mod operation;
mod part;
mod queue;
mod stores;
#[cfg(test)]
mod tests;
mod workers;

pub use open::{Direct, FileSpec};
pub(super) use part::{around, inside};
pub use queue::FileQueue;
pub use stores::{LATER_STORES, MAX_STORES};

use crate::device::guard::Guard;
use files::Files;
use open::Backing;
pub use open::LeftFile;
pub(super) use open::OpenFile;
use stores::Stores;

/// The most files that may be added to an open device.
pub const LATER_FILES: usize = 256;
/// The largest part of one command that goes through a bounce buffer, in bytes.
const BOUNCE: u32 = 256 << 10;
/// The bounce memory of one queue, in bytes. Only its used part is allocated.
const BOUNCE_MEMORY: usize = 4 << 20;

/// The device: regular files or block devices.
pub struct FileDevice {
    info: Info,
    shared: Arc<Shared>,
}

/// A file that is to be closed and may have data that are not yet on stable storage.
pub struct Unsettled {
    backing: Arc<Backing>,
}

impl Unsettled {
    /// Makes a thread of the file's store write its data to stable storage.
    pub fn settle(self) {
        let Unsettled { backing } = self;
        let store = backing.store.clone();
        store.push(Box::new(move || {
            if let Err(error) = rustix::fs::fdatasync(&backing.file) {
                let path = backing.path.display();
                tracing::error!(%path, %error, "cannot flush a removed tenant's file: its \
                 last writes may be lost");
            }
        }));
    }
}

/// The state that all queues share.
struct Shared {
    files: Files,
    stores: Stores,
    direct: Direct,
    guard: Guard,
}

impl FileDevice {
    /// Opens (or creates) all files.
    pub fn open(files: &[FileSpec], direct: Direct) -> Result<FileDevice, DeviceError> {
        FileDevice::open_after(files, direct, Vec::new())
    }

    /// Opens the device with files that the previous program in this process has left open.
    pub(super) fn open_after(
        files: &[FileSpec],
        direct: Direct,
        mut left: Vec<OpenFile>,
    ) -> Result<FileDevice, DeviceError> {
        if files.is_empty() || files.len() > usize::from(u16::MAX) + 1 {
            return Err(DeviceError::FileCount(files.len()));
        }
        let mut stores = Stores::new(MAX_STORES);
        let backings = files
            .iter()
            .map(|spec| match left.iter().position(|open| open.path == spec.path) {
                Some(place) => Backing::take(spec, left.swap_remove(place), direct, &stores),
                None => Backing::open(spec, direct, &stores),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let kind = if backings[0].is_block_device { "block device" } else { "file" };
        let others =
            if files.len() > 1 { format!(" and {} more", files.len() - 1) } else { String::new() };
        let info = Info {
            name: format!("{kind} {}{others}", files[0].path.display()),
            sizes: backings.iter().map(|backing| backing.size()).collect(),
            block_size: backings.iter().map(|backing| backing.block).max().unwrap_or(1),
            preferred_size: backings
                .iter()
                .map(|backing| backing.preferred_size)
                .max()
                .unwrap_or(4096),
            has_classes: false,
            // A discard does not change the partial blocks at the range's ends, and some backing
            // stores do not zero discarded blocks.
            discard_zeroes: false,
        };
        stores.limit();
        let files = Files::new(backings);
        let shared = Shared { files, stores, direct, guard: Guard::default() };
        Ok(FileDevice { info, shared: Arc::new(shared) })
    }

    /// Opens (or creates) one more file, or cancels the pending closing of an open one; returns its
    /// number and its size in bytes. `suits` checks the size. May block on its file system.
    pub fn add(
        &self,
        spec: &FileSpec,
        suits: impl Fn(u64) -> Result<(), DeviceError>,
    ) -> Result<(u16, u64), DeviceError> {
        let Shared { files, stores, direct, .. } = &*self.shared;
        // The size is checked first, so that no file of a wrong size is created.
        spec.create_size.map_or(Ok(()), &suits)?;
        let open = || {
            let backing = Backing::open(spec, *direct, stores)?;
            suits(backing.size()).map(|()| backing)
        };
        let (number, backing) = files.add(spec, open)?;
        Ok((number, backing.size()))
    }

    /// Describes all files for the next program in this process.
    pub(super) fn leave(&self) -> Vec<LeftFile> {
        self.shared.files.all().iter().map(|backing| backing.leave()).collect()
    }

    /// Marks a file that has no tenant, so that it can be retired when no command uses it. Until it
    /// is closed, [`Self::add`] can make it a tenant's file again.
    pub fn keep_open(&self, number: u16) {
        self.shared.files.keep_open(number);
    }

    /// Begins to close a marked file that no command uses: every queue releases it in its shard's
    /// next turn. [`Unsettled::settle`] must be called on the result. `None` if the file is not
    /// marked ([`Self::keep_open`]).
    pub fn retire(&self, number: u16) -> Option<Unsettled> {
        self.shared.files.retire(number).map(|backing| Unsettled { backing })
    }

    /// Closes a retired file if its data are on stable storage and all queues have released it.
    /// True once a thread of its store has closed it; the number may then be given to another file.
    pub fn close(&self, number: u16) -> bool {
        self.shared.files.close(number)
    }

    /// The size of a file when it was last checked, in bytes.
    pub fn size_of(&self, number: u16) -> Option<u64> {
        self.shared.files.get(number).map(|backing| backing.size())
    }

    /// The path of a file.
    pub fn path_of(&self, number: u16) -> Option<PathBuf> {
        self.shared.files.get(number).map(|backing| backing.path.clone())
    }

    /// The largest number of stores.
    pub fn room_for_stores(&self) -> usize {
        self.shared.stores.most()
    }

    /// Whether at least one file bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.info.block_size > 1
    }
}

impl Device for FileDevice {
    type Queue = FileQueue;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(&self, place: &Place, ring: &mut Ring) -> io::Result<FileQueue> {
        FileQueue::open(self.shared.clone(), place, ring)
    }

    fn extents(&self, file: u16, offset: u64, length: u64, most: usize) -> io::Result<Vec<Extent>> {
        let backing = self.shared.files.get(file);
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let backing = backing.ok_or_else(invalid)?;
        let end =
            offset.checked_add(length).filter(|&end| end <= backing.size()).ok_or_else(invalid)?;
        if backing.is_block_device || length == 0 {
            return Ok(vec![Extent { length, is_hole: false }]);
        }
        extents_of(&backing, offset, end, most.max(1))
    }

    fn store_of(&self, file: u16) -> u16 {
        self.shared.files.get(file).map_or(0, |backing| backing.store.number)
    }

    fn stores(&self) -> Vec<String> {
        self.shared.stores.names()
    }

    fn zeroes_by_map(&self, file: u16, no_hole: bool) -> bool {
        self.shared.files.get(file).is_some_and(|backing| backing.zeroes_by_map(no_hole))
    }

    fn sync(&self) -> Vec<(u16, io::Error)> {
        let mut failed = Vec::new();
        for (number, backing) in self.shared.files.numbered() {
            if let Err(error) = rustix::fs::fdatasync(&backing.file) {
                let path = backing.path.display();
                tracing::error!(%path, %error, "a file cannot be put on stable storage: the \
                 last writes to it may be lost");
                failed.push((number, error.into()));
            }
        }
        failed
    }

    fn write_back_failed(&self, file: u16) -> bool {
        self.shared.files.get(file).is_some_and(|backing| backing.write_back_failed())
    }

    fn write_out(&self, file: u16, job: WriteOutJob) {
        // A closed file has no dirty bytes, since they were written to stable storage before.
        let Some(backing) = self.shared.files.get(file) else { return job(&mut |_, _| {}) };
        let store = backing.store.clone();
        store.push(Box::new(move || job(&mut |range, waits| backing.write_out(range, waits))));
    }

    fn inspect(&self) {
        let mut of_stores: [Vec<Arc<Backing>>; MAX_STORES] = Default::default();
        for backing in self.shared.files.all() {
            of_stores[usize::from(backing.store.number)].push(backing);
        }
        for files in of_stores {
            let Some(store) = files.first().map(|backing| backing.store.clone()) else { continue };
            store.inspect(move || {
                files.iter().for_each(|backing| backing.inspect());
            });
        }
    }

    fn cut_off(&self) -> Vec<CutOff> {
        self.shared.files.all().iter().filter_map(|backing| backing.cut_off()).collect()
    }

    /// Direct I/O pins the pages of an unregistered buffer for every command. The page cache only
    /// copies, so it does not need registered buffers.
    fn has_fixed_buffers(&self) -> bool {
        self.is_direct()
    }
}

/// Queries the file system for the extents of a range that is not empty.
fn extents_of(backing: &Backing, offset: u64, end: u64, most: usize) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut at = offset;
    while at < end && extents.len() < most {
        // Seeking moves a position that no other call uses. Past the last data it fails (ENXIO).
        let data = match rustix::fs::seek(&backing.file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(rustix::io::Errno::NXIO) => end,
            Err(rustix::io::Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        if data > at {
            extents.push(Extent { length: data - at, is_hole: true });
            at = data;
            continue;
        }
        let hole = match rustix::fs::seek(&backing.file, rustix::fs::SeekFrom::Hole(at)) {
            Ok(hole) if hole > at => hole.min(end),
            // The hole was filled in the meantime, or the file system does not report it: it counts
            // as data, to be safe.
            Ok(_) | Err(rustix::io::Errno::NXIO | rustix::io::Errno::INVAL) => end,
            Err(error) => return Err(error.into()),
        };
        extents.push(Extent { length: hole - at, is_hole: false });
        at = hole;
    }
    Ok(extents)
}
