//! Opening one backing file: creating it, locking it, and detecting its alignment and features.
//!
//! A file is served by one process at a time. A regular file is locked with `flock`. A block device
//! is opened with `O_EXCL`, which fails if it is mounted, and also locked, so that udev does not
//! open it. Both steps are retried for two seconds, because some holders release the file soon:
//! udev reads a block device that has just appeared, and the kernel frees an io_uring with
//! registered files some time *after* its process has ended, so a server that is restarted at once
//! would find its own files locked. The server never unlocks a file: the lock ends with the last
//! request that the kernel has for the file, so no write of a killed server lands after the writes
//! of the next one. Opening may block on the file system, so a running server opens files on
//! separate threads (`server::opening`).

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, StatxFlags};
use serde::{Deserialize, Serialize};

use crate::device::CutOff;
use crate::device::error::DeviceError;
use crate::device::file::stores::{Key, Store, Stores};
use crate::io::memory::{PAGE, Region};

/// The largest block with which direct I/O is used, in bytes; bounce buffers and guard regions are
/// larger.
const BLOCK_MAX: u32 = 64 << 10;
/// The number of tries to get a file that is in use, and the pause between them: 2 seconds in all.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// One file to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSpec {
    /// Its path, of a regular file or a block device.
    pub path: PathBuf,
    /// The size in bytes of a file that is created, as a sparse file, if it does not exist or is
    /// empty. An existing file must have exactly this size.
    pub create_size: Option<u64>,
    /// Whether it may be created; otherwise a file that does not exist is refused.
    pub create: bool,
    /// The operator's name for its store; by default, all files on one device form a store.
    pub store: Option<String>,
}

impl FileSpec {
    /// An existing file, or one that is created with this many bytes.
    pub fn new(path: impl Into<PathBuf>, create_size: Option<u64>) -> FileSpec {
        let create = create_size.is_some();
        FileSpec { path: path.into(), create_size, create, store: None }
    }
}

/// An open file that a program passes on to the next one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeftFile {
    /// The path at which it was opened.
    pub path: PathBuf,
    /// Its descriptor.
    pub file: RawFd,
    /// The descriptor of its witness: a second opening that reports failed write-backs.
    pub witness: Option<RawFd>,
    size: u64,
    intact: u64,
    identity: (u64, u64),
}

impl LeftFile {
    /// Whether the path still names this file.
    pub fn is_there(&self) -> bool {
        identity_at(&self.path) == Some(self.identity)
    }

    /// The same file, with the descriptors that the next program owns.
    pub(crate) fn open(&self, file: File, witness: Option<File>) -> OpenFile {
        OpenFile { path: self.path.clone(), file, witness, size: self.size, intact: self.intact }
    }
}

/// A file that the previous program has left open.
pub(crate) struct OpenFile {
    pub(super) path: PathBuf,
    file: File,
    witness: Option<File>,
    size: u64,
    intact: u64,
}

/// Whether the page cache is bypassed (`O_DIRECT`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Direct {
    /// If the backing store allows it.
    #[default]
    Auto,
    /// Always: a store that does not allow it is refused.
    On,
    /// Never.
    Off,
}

/// An opened file.
pub(super) struct Backing {
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// The size in bytes when it was opened, or when it was last found to have grown.
    size: AtomicU64,
    /// The length in bytes of the part, from the start, that has never been cut off.
    intact: AtomicU64,
    pub(super) is_block_device: bool,
    /// The unit of offsets and lengths of I/O, in bytes; 1 through the page cache.
    pub(super) block: u32,
    /// The unit of offsets and lengths of zeroing and discarding, in bytes: `block`, except that a
    /// block device always has its own logical block here.
    pub(super) zero_block: u32,
    /// The alignment of addresses of I/O, in bytes; 1 through the page cache.
    pub(super) memory_align: u32,
    pub(super) preferred_size: u32,
    /// The same file, opened a second time, if the page cache is used. The kernel reports a failed
    /// write-back once to each open file description, and this one can be queried at any time.
    witness: Option<File>,
    /// The store that it belongs to.
    pub(super) store: Arc<Store>,
    /// Whether its file system is in memory, so that no call waits for a device.
    pub(super) is_in_memory: bool,
    /// Its identity by `stat`: device and inode, or the block device.
    identity: (u64, u64),
    /// Whether direct reads and writes support `RWF_NOWAIT`.
    pub(super) no_wait: Support,
    /// Whether holes can be punched.
    pub(super) punch: Support,
    /// Whether a range can be zeroed and stay allocated.
    pub(super) zero_range: Support,
}

/// Whether a file system or device supports an operation. Only an attempt shows it.
#[derive(Default)]
pub(super) struct Support {
    works: AtomicBool,
    is_refused: AtomicBool,
}

impl Support {
    /// Records that the operation has succeeded.
    pub(super) fn note_done(&self) {
        // Without this check, each call would write the word and so invalidate it in other CPUs'
        // caches.
        if !self.works() {
            self.works.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the operation is not supported.
    pub(super) fn note_refused(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    pub(super) fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }
}

impl Backing {
    /// Whether zeroing is known to write no data. If a block device has no command for zeroing, the
    /// kernel writes zeroes and does not report that. If the device has the command, it can also
    /// punch holes, so a successful punch is the evidence.
    pub(super) fn zeroes_by_map(&self, no_hole: bool) -> bool {
        let punches = self.punch.works();
        let is_asked_to_punch = !no_hole && !self.punch.is_refused();
        if is_asked_to_punch {
            punches
        } else {
            self.zero_range.works() && (punches || !self.is_block_device)
        }
    }

    /// The length in bytes, from the file's start, that commands may use. Lost bytes stay lost. If
    /// the value is outdated for a moment, the read itself finds the end of the file.
    #[inline]
    pub(super) fn intact(&self) -> u64 {
        self.intact.load(Ordering::Relaxed)
    }

    /// Its size in bytes.
    #[inline]
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Records that the file now ends at `end`.
    pub(super) fn note_end(&self, end: u64) {
        let (size, whole) = (self.size(), end / u64::from(self.block) * u64::from(self.block));
        // If a part was lost, a file that grows again has zeroes there instead of the lost data.
        if whole > size && self.intact() == size {
            self.size.store(whole, Ordering::Relaxed);
            self.intact.store(whole, Ordering::Relaxed);
            tracing::info!(path = %self.path.display(), from = size, to = whole, "a file has grown");
            return;
        }
        let before = self.intact.fetch_min(end, Ordering::Relaxed);
        if end < before {
            tracing::error!(
                path = %self.path.display(),
                size,
                intact = end,
                "a file became shorter while it was served: the data beyond its end are lost, and \
                 requests there fail with EIO; restore the file from a backup and restart fairq"
            );
        }
    }

    /// Whether a write-back has failed since the last call.
    pub(super) fn write_back_failed(&self) -> bool {
        /// An offset beyond the end of any file: no write is in flight there for which the call
        /// would wait.
        const BEYOND: i64 = 1 << 62;
        let Some(witness) = &self.witness else { return false };
        // SAFETY: the call queries an open file.
        let result = unsafe {
            libc::sync_file_range(
                witness.as_raw_fd(),
                BEYOND,
                PAGE as i64,
                libc::SYNC_FILE_RANGE_WAIT_BEFORE,
            )
        };
        // These errors are reported for write-backs; any other error is the call's own.
        result != 0
            && matches!(
                io::Error::last_os_error().raw_os_error(),
                Some(libc::EIO | libc::ENOSPC | libc::EDQUOT)
            )
    }

    /// Whether its writes end when their data are in the page cache, before they are on the disk.
    /// Without the witness, only the thread that starts a write-back would receive its error.
    #[inline]
    pub(super) fn is_cached(&self) -> bool {
        self.witness.is_some() && !self.is_in_memory
    }

    /// Makes the kernel write a range to the disk, and waits for it if `waits`. The kernel reports
    /// an error to each open file description, the witness included, so this call need not return
    /// it.
    pub(super) fn write_out(&self, range: Range<u64>, waits: bool) {
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let flags = if waits { all } else { libc::SYNC_FILE_RANGE_WRITE };
        let (start, length) = (range.start as i64, (range.end - range.start) as i64);
        // SAFETY: the arguments are plain numbers and an open file.
        unsafe { libc::sync_file_range(self.file.as_raw_fd(), start, length, flags) };
    }

    /// Makes a range durable, or the whole file if the length is 0.
    pub(super) fn sync(&self, offset: u64, length: u64) -> rustix::io::Result<()> {
        match self.map(offset, length) {
            Some(map) => map.sync(),
            None => rustix::fs::fdatasync(&self.file),
        }
    }

    /// Maps a cached range for `msync`. `None` if that is impossible or useless.
    fn map(&self, offset: u64, length: u64) -> Option<Map> {
        let start = offset / PAGE as u64 * PAGE as u64;
        let length = (offset - start).checked_add(length)?;
        if length == 0 || !self.is_cached() {
            return None;
        }
        Map::new(&self.file, start, length.try_into().ok()?)
    }

    /// Checks the size of the file.
    pub(super) fn inspect(&self) {
        // The size of a block device is the position of its end; no other call uses the position
        // that this moves.
        let end = match self.is_block_device {
            true => rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0)).ok(),
            false => self.file.metadata().ok().map(|metadata| metadata.len()),
        };
        if let Some(end) = end.filter(|end| !self.is_block_device || *end > self.size()) {
            self.note_end(end);
        }
    }

    /// The loss of data at its end, if it has lost some.
    pub(super) fn cut_off(&self) -> Option<CutOff> {
        let (size, intact) = (self.size(), self.intact());
        (intact < size).then(|| CutOff { path: self.path.clone(), size, intact })
    }

    /// Whether it is the file with this identity, as [`identity_at`] returns it.
    pub(super) fn is(&self, identity: (u64, u64)) -> bool {
        self.identity == identity
    }

    /// Opens the file, and creates it if necessary.
    pub(super) fn open(
        spec: &FileSpec,
        direct: Direct,
        stores: &Stores,
    ) -> Result<Backing, DeviceError> {
        let path = &spec.path;
        let is_block_device = match std::fs::metadata(path) {
            Ok(metadata) if metadata.file_type().is_block_device() => true,
            Ok(metadata) if metadata.is_file() => false,
            Ok(_) => return Err(DeviceError::NotStorage { path: path.clone() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Backing::create(spec, direct, stores);
            }
            Err(error) => return Err(open_error(path, error)),
        };
        // On a block device O_EXCL requests exclusive use; on a regular file it has no effect.
        let flags = if is_block_device { libc::O_EXCL } else { 0 };
        let open = || File::options().read(true).write(true).custom_flags(flags).open(path);
        let file = until(libc::EBUSY, open).map_err(|error| open_error(path, error))?;
        lock(path, &file)?;
        let mut size = size_of(path, &file)?;
        if size == 0
            && !is_block_device
            && let Some(wanted) = spec.create_size
        {
            allocate(path, &file, wanted)?;
            size = wanted;
        }
        if size == 0 {
            return Err(DeviceError::Empty { path: path.clone() });
        }
        if let Some(wanted) = spec.create_size.filter(|&wanted| wanted != size) {
            return Err(DeviceError::OtherSize { path: path.clone(), actual: size, wanted });
        }
        Backing::prepare(spec, file, size, direct, stores)
    }

    /// Takes over a file that the previous program has left open and locked.
    pub(super) fn take(
        spec: &FileSpec,
        open: OpenFile,
        direct: Direct,
        stores: &Stores,
    ) -> Result<Backing, DeviceError> {
        let backing = Backing::prepare(spec, open.file, open.size, direct, stores)?;
        backing.intact.store(open.intact, Ordering::Relaxed);
        // A second opening made now would not receive the errors of earlier write-backs.
        let witness = open.witness.or(backing.witness);
        Ok(Backing { witness, ..backing })
    }

    /// Describes the file for the next program.
    pub(super) fn leave(&self) -> LeftFile {
        LeftFile {
            path: self.path.clone(),
            file: self.file.as_raw_fd(),
            witness: self.witness.as_ref().map(AsRawFd::as_raw_fd),
            size: self.size(),
            intact: self.intact(),
            identity: self.identity,
        }
    }

    fn create(spec: &FileSpec, direct: Direct, stores: &Stores) -> Result<Backing, DeviceError> {
        let path = &spec.path;
        let Some(size) = spec.create_size.filter(|_| spec.create) else {
            let has_size = spec.create_size.is_some();
            return Err(DeviceError::Missing { path: path.clone(), has_size });
        };
        if size == 0 {
            return Err(DeviceError::Empty { path: path.clone() });
        }
        // A file that has appeared under this name in the meantime belongs to another program, so
        // the call must create a new file.
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DeviceError::NoDirectory { path: path.clone() },
            _ => open_error(path, error),
        })?;
        let created = lock(path, &file)
            .and_then(|()| allocate(path, &file, size))
            .and_then(|()| Backing::prepare(spec, file, size, direct, stores));
        if created.is_err() {
            let _ = std::fs::remove_file(path);
        }
        created
    }

    /// Detects the file's alignment and whether direct I/O is possible.
    fn prepare(
        spec: &FileSpec,
        file: File,
        size: u64,
        direct: Direct,
        stores: &Stores,
    ) -> Result<Backing, DeviceError> {
        let path = &*spec.path;
        let metadata = file.metadata().map_err(io_error(path, "read its metadata"))?;
        let is_block_device = metadata.file_type().is_block_device();
        let device = if is_block_device { metadata.rdev() } else { metadata.dev() };
        let store = stores.of(spec.store.clone().map_or(Key::Device(device), Key::Named))?;
        let statx =
            rustix::fs::statx(&file, "", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::all());
        let preferred = statx.map_or(PAGE as u32, |statx| statx.stx_blksize);
        let (block, memory_align) = match direct {
            Direct::Off => (1, 1),
            Direct::On | Direct::Auto => match set_direct(&file, size, is_block_device) {
                Ok(alignment) => alignment,
                Err(why) if direct == Direct::On => {
                    return Err(DeviceError::NoDirect { path: path.into(), why });
                }
                Err(why) => {
                    tracing::info!(path = %path.display(), "the page cache is used, since {why}");
                    (1, 1)
                }
            },
        };
        let sector = if is_block_device {
            rustix::fs::ioctl_blksszget(&file).unwrap_or(PAGE as u32)
        } else {
            1
        };
        Ok(Backing {
            path: path.into(),
            size: AtomicU64::new(size),
            intact: AtomicU64::new(size),
            is_block_device,
            block,
            zero_block: block.max(sector),
            memory_align,
            preferred_size: preferred.next_power_of_two().clamp(PAGE as u32, BLOCK_MAX).max(block),
            witness: if block == 1 { open_again(path, &file) } else { None },
            store,
            is_in_memory: !is_block_device && is_in_memory(&file),
            identity: identity(&metadata),
            no_wait: Support::default(),
            punch: Support::default(),
            zero_range: Support::default(),
            file,
        })
    }
}

/// A mapped range of a file, whose addresses are never read or written. `msync` on a mapping is the
/// kernel's only `fdatasync` of a range.
struct Map {
    address: *mut std::ffi::c_void,
    length: usize,
}

impl Map {
    fn new(file: &File, start: u64, length: usize) -> Option<Map> {
        let address = std::ptr::null_mut();
        let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::NORESERVE;
        let protection = rustix::mm::ProtFlags::empty();
        // SAFETY: the kernel chooses the addresses, so no other mapping is replaced.
        let mapped = unsafe { rustix::mm::mmap(address, length, protection, flags, file, start) };
        mapped.ok().map(|address| Map { address, length })
    }

    fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: the addresses are this map's.
        unsafe { rustix::mm::msync(self.address, self.length, rustix::mm::MsyncFlags::SYNC) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the addresses are this map's, and no reference to them exists.
        let _ = unsafe { rustix::mm::munmap(self.address, self.length) };
    }
}

/// The identity of a file by `stat`: device and inode, or 0 and the block device's own number.
fn identity(metadata: &Metadata) -> (u64, u64) {
    if metadata.file_type().is_block_device() {
        (0, metadata.rdev())
    } else {
        (metadata.dev(), metadata.ino())
    }
}

/// The identity of the file that is at this path now; `None` if there is none.
pub(super) fn identity_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| identity(&metadata))
}

/// Whether the file system keeps its files in memory, and has no device to wait for.
fn is_in_memory(file: &File) -> bool {
    /// The magic numbers of tmpfs and ramfs.
    const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];
    rustix::fs::fstatfs(file).is_ok_and(|fs| IN_MEMORY.contains(&fs.f_type))
}

/// Opens the same file a second time.
fn open_again(path: &Path, file: &File) -> Option<File> {
    let opened = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let failed = |error: &io::Error| {
        tracing::warn!(path = %path.display(), %error, "cannot open the file once more by /proc: \
         a failed write-back is reported only to the tenant whose flush comes first");
    };
    opened.inspect_err(failed).ok()
}

fn io_error(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> DeviceError {
    move |source| DeviceError::Io { path: path.into(), what, source }
}

fn open_error(path: &Path, source: io::Error) -> DeviceError {
    let path = path.to_path_buf();
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => DeviceError::Forbidden { path, source },
        Some(libc::EBUSY) => DeviceError::Busy { path },
        _ => DeviceError::Io { path, what: "open it for reading and writing", source },
    }
}

fn lock(path: &Path, file: &File) -> Result<(), DeviceError> {
    let lock = || Ok(rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)?);
    until(libc::EWOULDBLOCK, lock).map_err(|error| match error.raw_os_error() {
        Some(libc::EWOULDBLOCK) => DeviceError::Locked { path: path.into() },
        _ => io_error(path, "lock it")(error),
    })
}

/// Repeats an attempt for up to two seconds while it fails with the errno `taken`.
fn until<T>(taken: i32, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..TRIES {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(taken) => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
    attempt()
}

/// Size in bytes; the end of a block device is its size (as by `BLKGETSIZE64`).
fn size_of(path: &Path, file: &File) -> Result<u64, DeviceError> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))
        .map_err(|error| io_error(path, "find its size")(error.into()))
}

/// Gives a new file its size, and makes its directory entry durable.
fn allocate(path: &Path, file: &File, size: u64) -> Result<(), DeviceError> {
    file.set_len(size).and_then(|()| file.sync_all()).map_err(io_error(path, "set its size"))?;
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(io_error(path, "sync its directory"))
}

/// Switches the file to direct I/O; returns the alignment of offsets and of addresses, or the
/// reason why direct I/O is impossible.
fn set_direct(file: &File, size: u64, is_block_device: bool) -> Result<(u32, u32), String> {
    let (block, memory_align) = alignment(file, is_block_device)?;
    if !block.is_power_of_two()
        || !memory_align.is_power_of_two()
        || block > BLOCK_MAX
        || memory_align > PAGE as u32
    {
        return Err(format!("its alignment of {block} and {memory_align} bytes is not supported"));
    }
    if !size.is_multiple_of(u64::from(block)) {
        return Err(format!(
            "its size of {size} bytes is not a multiple of its block size of {block}"
        ));
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(|error| error.to_string())?;
    let refused = |error: io::Error| format!("its file system refuses direct I/O ({error})");
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).map_err(|error| refused(error.into()))?;
    // Some file systems accept the flag and then refuse to read. Other errors concern the data, and
    // are not handled here.
    match probe(file, block) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            rustix::fs::fcntl_setfl(file, flags).map_err(|error| error.to_string())?;
            Err(refused(error))
        }
        _ => Ok((block, memory_align)),
    }
}

/// The alignment of direct I/O that the kernel reports; if it reports none, an alignment that works
/// for any file with direct I/O.
fn alignment(file: &File, is_block_device: bool) -> Result<(u32, u32), String> {
    let statx = rustix::fs::statx(file, "", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    if let Ok(statx) = statx
        && statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        return match (statx.stx_dio_offset_align, statx.stx_dio_mem_align) {
            // In `statx(2)`, 0 means that this file has no direct I/O.
            (0, _) | (_, 0) => Err("its file system does not support direct I/O".into()),
            (block, memory_align) => Ok((block, memory_align)),
        };
    }
    // Linux reports the alignment from 6.1 on. On older kernels the alignment of a block device is
    // its sector size.
    let block = if is_block_device {
        rustix::fs::ioctl_blksszget(file).unwrap_or(PAGE as u32)
    } else {
        PAGE as u32
    };
    Ok((block, block.min(PAGE as u32)))
}

fn probe(file: &File, block: u32) -> io::Result<()> {
    let mut region = Region::map(block as usize)?;
    let mut buffer = region.allocate(block).ok_or(io::ErrorKind::OutOfMemory)?;
    let result = file.read_at(buffer.bytes_mut(), 0);
    region.free(buffer);
    result.map(|_| ())
}
