//! The record on storage.
//!
//! | pool | place of the record |
//! |---|---|
//! | a regular file | `FILE.layout` beside it |
//! | a block device | the last MiB of the device |
//! | a block device whose last MiB is a tenant's | the state directory, by the device's identity |
//!
//! A file and its record have the same identifier, the file in an extended attribute (`ATTRIBUTE`).
//! Nothing ties a device to a record in the state directory: on another machine the device has to
//! be adopted.
//!
//! The bytes of tenants may have the form of a record, by chance or by intent. So a record is
//! accepted only in the last MiB of a device, where no tenant's bytes can be, or where this machine
//! last used it: a server writes the identifier and the place of a device's record to the state
//! directory, by the device's identity (`Known`). Tenants do not know the identifier. A record that
//! only the search finds has to be adopted.
//!
//! A pool without any trace of a record is new, or it was laid out by version 0.1.0. A file is then
//! adopted: its tenants are where that version's rule places them, and keep their data. A block
//! device is adopted automatically only if it is blank, because one that has grown has no record at
//! its end, either. Any trace that does not fit is refused: half of a pool must not count as a new
//! one.
//!
//! **Bounds.** If a block device has grown without a server, on a machine that has not had it, the
//! search for its record near the end takes at most `SEARCH`.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{FlockOperation, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::place::{self, Placed};
use super::record::{COPY, Copied, Held, Record, SPACE, decode, encode, newest};
use crate::device::SECTOR;
use crate::refusal::Refusal;
use crate::tenant::{Tenant, layout};
use crate::units::exact_size;

/// The extended attribute with the identifier of a file's record.
const ATTRIBUTE: &str = "user.fairq.layout";
/// Prefix of an identifier without a mark, for files whose file system has no such attributes.
const UNMARKED: &str = "unmarked-";
/// Files in a device's folder in sysfs that identify it: disks, the disks of partitions, volumes,
/// files behind loop devices.
const IDENTITY: [&str; 10] = [
    "wwid",
    "device/wwid",
    "serial",
    "dm/uuid",
    "loop/backing_file",
    "start",
    "../wwid",
    "../device/wwid",
    "../serial",
    "../loop/backing_file",
];
/// Time limit of the search for the record of a device that has grown.
const SEARCH: Duration = Duration::from_secs(2);
/// Number of tries in steps of a MiB before the steps become [`FAR`].
const NEAR: u64 = 4096;
/// Step of the search in bytes, the size of LVM's extents.
const FAR: u64 = 4 << 20;
/// The number of attempts to lock a pool, and the pause between them.
const TRIES: u32 = 25;
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes that are checked at the start of each range and at the end of a blank device.
const BLANK: u64 = 1 << 20;
/// Alignment of records, in bytes.
const ALIGNED: u64 = 4096;

/// A file or block device that tenants share.
pub struct Media {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    size: u64,
}

/// A record, and its place on storage.
pub struct Pool {
    path: PathBuf,
    /// The file with the record, and its offset there.
    file: File,
    at: u64,
    is_block_device: bool,
    /// The file of a block device's [`Known`].
    known: Option<PathBuf>,
    record: Record,
    sequence: u64,
}

/// The record that a device had when this machine last used it.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    id: String,
    /// Its place on the device; 0 for a record in the state directory.
    at: u64,
}

/// The state of a pool's record.
pub enum Found {
    /// No trace of a record.
    Nothing,
    /// A record that belongs to the pool.
    Whole(Box<Pool>),
    /// A trace that does not fit: the reason, and the record, if there is one.
    Trouble(String, Option<Box<Pool>>),
}

/// The start of a server on a pool.
pub struct Start {
    /// The record on storage.
    pub pool: Pool,
    /// The places of the tenants.
    pub placed: Placed,
    /// Whether the pool had data without a record, and its layout was adopted.
    pub adopted: bool,
}

fn fault(path: &Path, what: &str, error: &io::Error) -> Refusal {
    Refusal::new(format!("{}: cannot {what}: {error}", path.display()))
}

/// A new identifier from the system's random numbers; a service may have no `/proc/sys`.
fn identifier() -> io::Result<String> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// The folder of the server's own files: records that do not fit on their device, and the names of
/// tenants that may have lost data.
pub fn state_directory() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    // The service manager may name several folders; the first one is for this.
    if let Some(list) = of("STATE_DIRECTORY") {
        return list.to_string_lossy().split(':').next().map(PathBuf::from).unwrap_or_default();
    }
    let of_service = Path::new("/var/lib/fairq");
    if of_service.is_dir() {
        return of_service.into();
    }
    let home = || PathBuf::from(of("HOME").unwrap_or_default()).join(".local/state");
    of("XDG_STATE_HOME").map_or_else(home, PathBuf::from).join("fairq")
}

/// The name of a file in the state directory that belongs to `owner`, without its ending.
pub fn named_by(owner: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, owner.as_bytes());
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl Media {
    /// Opens a pool's file, even if another process has it open.
    pub fn open(path: &Path) -> Result<Media, Refusal> {
        let open = || {
            let real = std::fs::canonicalize(path)?;
            let file = File::options().read(true).write(true).open(&real)?;
            let (metadata, size) =
                (file.metadata()?, rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?);
            Ok(Media { path: real, file, metadata, size })
        };
        open().map_err(|error| fault(path, "open it for its layout record", &error))
    }

    /// Opens a pool's file exclusively: no server may have it while this value lives.
    pub fn open_alone(path: &Path) -> Result<Media, Refusal> {
        let mut media = Media::open(path)?;
        // After a server was killed the kernel takes a moment to release its files.
        for _ in 0..TRIES {
            match media.claim() {
                Ok(()) => return Ok(media),
                Err(Errno::BUSY | Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(error) => return Err(fault(path, "open it alone", &error.into())),
            }
        }
        Err(Refusal::new(format!(
            "{} is in use: stop the server that has it, or use fairq ctl",
            path.display()
        )))
    }

    /// Locks the file; a block device is also opened exclusively.
    fn claim(&mut self) -> Result<(), Errno> {
        let lock = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
        if !self.is_block_device() {
            return lock(&self.file);
        }
        let mut options = File::options();
        let options = options.read(true).write(true).custom_flags(libc_o_excl());
        let from = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let file = options.open(&self.path).map_err(from)?;
        lock(&file)?;
        self.file = file;
        Ok(())
    }

    /// Limits the file to the served bytes.
    #[must_use]
    pub fn within(mut self, served: u64) -> Media {
        // The record at a device's end is found by its true size, so a device is not limited.
        if !self.is_block_device() {
            self.size = self.size.min(served);
        }
        self
    }

    fn is_block_device(&self) -> bool {
        self.metadata.file_type().is_block_device()
    }

    /// Offset of the record at the end of a device of this size.
    fn tail(size: u64) -> u64 {
        size.saturating_sub(SPACE) / ALIGNED * ALIGNED
    }

    /// Bytes for tenants if the record is in its usual place.
    fn room(&self) -> u64 {
        if self.is_block_device() { Media::tail(self.size) } else { self.size / SECTOR * SECTOR }
    }

    fn beside(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".layout");
        path.into()
    }

    fn in_state(&self) -> PathBuf {
        state_directory().join(format!("{}.layout", named_by(&self.identity())))
    }

    /// A block device's identifiers, which do not depend on where it is attached; its path if it
    /// has none.
    fn identity(&self) -> String {
        let number = self.metadata.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let read = |name: &&str| {
            let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{name}"));
            // A disk without a serial number has an empty one.
            let text = text.ok().map(|text| text.trim().to_owned());
            text.filter(|text| !text.is_empty()).map(|text| format!("{name} {text}"))
        };
        let names: Vec<String> = IDENTITY.iter().filter_map(read).collect();
        if names.is_empty() { self.path.display().to_string() } else { names.join("\n") }
    }

    /// The identifier in the file's attribute.
    fn mark(&self) -> Option<String> {
        let mut bytes = [0; 128];
        let length = rustix::fs::fgetxattr(&self.file, ATTRIBUTE, &mut bytes[..]).ok()?;
        String::from_utf8(bytes.get(..length)?.to_vec()).ok()
    }

    fn pool(&self, file: File, at: u64, record: Record, sequence: u64) -> Box<Pool> {
        let (path, is_block_device) = (self.path.clone(), self.is_block_device());
        let known = is_block_device.then(|| self.known_file());
        Box::new(Pool { path, file, at, is_block_device, known, record, sequence })
    }

    fn known_file(&self) -> PathBuf {
        state_directory().join(format!("{}.known", named_by(&self.identity())))
    }

    fn known(&self) -> Option<Known> {
        serde_json::from_slice(&std::fs::read(self.known_file()).ok()?).ok()
    }

    /// Finds the record of the pool.
    pub fn find(&self) -> Result<Found, Refusal> {
        let cannot = |error: io::Error| fault(&self.path, "read its layout record", &error);
        if self.is_block_device() {
            return self.find_on_device().map_err(cannot);
        }
        let (mark, beside) = (self.mark(), self.beside());
        let file = match File::options().read(true).write(true).open(&beside) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(match mark {
                    None => Found::Nothing,
                    Some(id) => {
                        let beside = beside.display();
                        Found::Trouble(format!("its layout record {beside} ({id}) is lost"), None)
                    }
                });
            }
            Err(error) => return Err(fault(&beside, "open it", &error)),
        };
        let trouble = |what: &str| format!("its layout record {} {what}", beside.display());
        Ok(match read(&file, 0).map_err(cannot)? {
            // The operator may have made this empty file for a server that cannot make files in the
            // folder. If the pool has data, the file may be a lost record instead.
            Copied::Nothing
                if mark.is_none()
                    && self.is_all_hole()
                    && file.metadata().map_err(cannot)?.len() == 0 =>
            {
                Found::Nothing
            }
            Copied::Nothing => Found::Trouble(trouble("is empty or is not a record"), None),
            Copied::Damaged(why) => Found::Trouble(trouble(&format!("is damaged: {why}")), None),
            Copied::Whole(record, sequence) => {
                let id = record.id.clone();
                let pool = self.pool(file, 0, *record, sequence);
                match mark {
                    Some(mark) if mark == id.trim_start_matches(UNMARKED) => Found::Whole(pool),
                    None if id.starts_with(UNMARKED) => Found::Whole(pool),
                    None => Found::Trouble(
                        trouble(&format!(
                            "is that of a file with the identifier {id}, and this file has none: \
                             it was copied, restored or made anew"
                        )),
                        Some(pool),
                    ),
                    Some(mark) => Found::Trouble(
                        trouble(&format!("is that of {id}, and this file is {mark}")),
                        Some(pool),
                    ),
                }
            }
        })
    }

    fn find_on_device(&self) -> io::Result<Found> {
        let (tail, beside) = (Media::tail(self.size), self.in_state());
        let known = self.known();
        let is_known = |id: &str| known.as_ref().is_some_and(|known| known.id == id);
        let again = || self.file.try_clone();
        let own = match read(&self.file, tail)? {
            Copied::Nothing => None,
            found => Some(found),
        };
        let of_state = match File::options().read(true).write(true).open(&beside) {
            Ok(file) => Some((read(&file, 0)?, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let whole = |found: &Option<Copied>| match found {
            Some(Copied::Whole(record, _)) => Some(record.id.clone()),
            _ => None,
        };
        let beside = beside.display();
        Ok(match (own, of_state) {
            (None, None) => self.find_before(known)?,
            (Some(Copied::Whole(record, sequence)), None) => {
                Found::Whole(self.pool(again()?, tail, *record, sequence))
            }
            (Some(Copied::Damaged(why)), None) => {
                Found::Trouble(format!("its layout record is damaged: {why}"), None)
            }
            (own, Some((Copied::Whole(record, sequence), file))) => match whole(&own) {
                // The record in the state directory may be that of another device like this one.
                Some(id) if !is_known(&record.id) => {
                    let Some(Copied::Whole(own, of_own)) = own else { return Ok(Found::Nothing) };
                    let pool = self.pool(again()?, tail, *own, of_own);
                    let text = format!("it has two layout records: in its last MiB, and {beside}");
                    if is_known(&id) {
                        Found::Whole(pool)
                    } else {
                        Found::Trouble(text, Some(pool))
                    }
                }
                // The last MiB is a tenant's, and may hold anything.
                _ if record.size == self.size => {
                    Found::Whole(self.pool(file, 0, *record, sequence))
                }
                _ => Found::Trouble(
                    format!(
                        "its layout record {beside} is that of a device of {}, and this one has {}",
                        exact_size(record.size),
                        exact_size(self.size)
                    ),
                    Some(self.pool(file, 0, *record, sequence)),
                ),
            },
            (_, Some((Copied::Damaged(why), _))) => {
                Found::Trouble(format!("its layout record {beside} is damaged: {why}"), None)
            }
            (_, Some((Copied::Nothing, _))) => {
                Found::Trouble(format!("its layout record {beside} is no record"), None)
            }
            (Some(Copied::Nothing), None) => Found::Nothing,
        })
    }

    /// Finds the record of a device that has grown without a server.
    fn find_before(&self, known: Option<Known>) -> io::Result<Found> {
        if let Some(Known { id, at }) = known.filter(|known| known.at > 0)
            && let Copied::Whole(record, sequence) = read(&self.file, at)?
            && (&record.id, record.size) == (&id, at)
        {
            return Ok(Found::Whole(self.pool(self.file.try_clone()?, at, *record, sequence)));
        }
        Ok(match self.search()? {
            Some((at, Copied::Whole(record, sequence))) => Found::Trouble(
                format!(
                    "it has a layout record at {at}, which is not its end: it has grown, or these \
                     bytes are a tenant's"
                ),
                Some(self.pool(self.file.try_clone()?, at, *record, sequence)),
            ),
            _ => Found::Nothing,
        })
    }

    /// Searches for the record of a device that has grown.
    fn search(&self) -> io::Result<Option<(u64, Copied)>> {
        let until = Instant::now() + SEARCH;
        let (mut step, mut end, mut tries) = (1 << 20, self.size, 0);
        let mut head = [0; 8];
        while end > SPACE && Instant::now() < until {
            end = (end - 1) / step * step;
            let at = Media::tail(end);
            self.file.read_exact_at(&mut head, at)?;
            if head == super::record::MAGIC
                && let Copied::Whole(record, sequence) = read(&self.file, at)?
                && record.size == at
            {
                return Ok(Some((at, Copied::Whole(record, sequence))));
            }
            tries += 1;
            step = if tries < NEAR { 1 << 20 } else { FAR };
        }
        Ok(None)
    }

    /// Whether the file has no data at all.
    fn is_all_hole(&self) -> bool {
        matches!(rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(0)), Err(Errno::NXIO))
    }

    /// Whether the starts of these ranges and the device's end are zero.
    fn is_blank(&self, record: &Record) -> Result<bool, Refusal> {
        let starts = record.ranges().iter().map(|held| held.offset);
        let starts = starts.chain([Media::tail(self.size)]);
        let mut bytes = vec![0; BLANK as usize];
        for start in starts {
            let length = BLANK.min(self.size - start) as usize;
            self.file
                .read_exact_at(&mut bytes[..length], start)
                .map_err(|error| fault(&self.path, "read it", &error))?;
            if bytes[..length].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the record in its usual place, or in the state directory if `is_full`.
    fn create(&self, mut record: Record, is_full: bool) -> Result<Pool, Refusal> {
        if self.is_block_device() && !is_full {
            let file = self.file.try_clone().map_err(|error| fault(&self.path, "open it", &error));
            let mut pool = *self.pool(file?, Media::tail(self.size), record, 0);
            pool.save_own()?;
            return Ok(pool);
        }
        let path = if is_full { self.in_state() } else { self.beside() };
        let cannot = |error: io::Error| {
            let path = path.display();
            Refusal::new(format!(
                "{path}: cannot write the layout record: {error}: the record holds the owner of \
                 each range, so the server's user must be able to write it: touch {path} and chown \
                 it to that user"
            ))
        };
        if is_full {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder).map_err(cannot)?;
        }
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(cannot)?;
        // If root makes the record, it belongs to the pool's owner; any other user owns it already.
        let (uid, gid) = (self.metadata.uid(), self.metadata.gid());
        let _ = std::os::unix::fs::fchown(file.as_fd(), Some(uid), Some(gid));
        if !is_full {
            // The record's identifier has this prefix until the file has its mark, so that a start
            // accepts the record in both states.
            record.id = format!("{UNMARKED}{}", record.id);
        }
        let mut pool = *self.pool(file, 0, record, 0);
        pool.save_own()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new("."))).and_then(|it| it.sync_all());
        folder.map_err(cannot)?;
        self.mark_as(&mut pool)?;
        Ok(pool)
    }

    /// Gives the file its record's identifier, if it has none and its file system allows it.
    fn mark_as(&self, pool: &mut Pool) -> Result<(), Refusal> {
        let Some(id) = pool.record.id.strip_prefix(UNMARKED).map(str::to_owned) else {
            return Ok(());
        };
        let marked = match rustix::fs::fsetxattr(
            &self.file,
            ATTRIBUTE,
            id.as_bytes(),
            XattrFlags::empty(),
        ) {
            Ok(()) => self.file.sync_all(),
            Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
            Err(error) => Err(error.into()),
        };
        marked.map_err(|error| fault(&self.path, "mark it with its identifier", &error))?;
        pool.record.id = id;
        pool.save_own()
    }

    /// A record of these tenants by version 0.1.0's rule, in which all keep their data; and whether
    /// it needs the device's last MiB.
    pub fn adopt(
        &self,
        tenants: &[Tenant],
        own: &[u64],
        is_new: bool,
    ) -> Result<(Record, bool), Refusal> {
        let id = identifier().map_err(|error| fault(&self.path, "make an identifier", &error))?;
        let room = self.room();
        let all = if is_new { room } else { self.size / SECTOR * SECTOR };
        let ranges = layout(tenants, Some(all), own)?;
        let shared = || tenants.iter().zip(&ranges).filter(|(tenant, _)| tenant.path.is_none());
        let is_full = shared().any(|(_, range)| range.offset + range.size > room);
        // The contents of the free space are unknown if the pool has data, or if it is a block
        // device.
        let is_zero = is_new && !self.is_block_device();
        let size = if is_full { all } else { room };
        let mut record = Record::new(id, size, if is_zero { 0 } else { size });
        let held = shared().map(|(tenant, range)| Held {
            name: tenant.name.clone(),
            offset: range.offset,
            size: range.size,
            zeroed: true,
        });
        record.claim_all(held).map_err(|error| {
            Refusal::new(format!("{}: the layout: {error}", self.path.display()))
        })?;
        Ok((record, is_full))
    }

    /// Writes an adopted record, which replaces any other.
    pub fn write(&self, record: Record, is_full: bool) -> Result<Pool, Refusal> {
        let old = match self.find()? {
            Found::Whole(pool) | Found::Trouble(_, Some(pool)) => pool.sequence,
            _ => 0,
        };
        let mut pool = self.create(record, is_full)?;
        pool.sequence = pool.sequence.max(old);
        pool.save_own()?;
        self.settle(&pool)?;
        Ok(pool)
    }

    /// Makes an adopted record the only one of a block device.
    fn settle(&self, pool: &Pool) -> Result<(), Refusal> {
        let beside = self.in_state();
        if pool.is_in_tail() && beside.exists() {
            let aside = beside.with_extension("layout.replaced");
            std::fs::rename(&beside, &aside)
                .map_err(|error| fault(&beside, "rename the other layout record", &error))?;
        }
        pool.remember();
        Ok(())
    }

    /// Keeps a found record, and ties it to this pool.
    pub fn bind(&self, mut pool: Pool) -> Result<Pool, Refusal> {
        if self.is_block_device() {
            pool.fit(self.size)?;
            self.settle(&pool)?;
            return Ok(pool);
        }
        let id = identifier().map_err(|error| fault(&self.path, "make an identifier", &error))?;
        let mut record = pool.record;
        record.id = id;
        self.write(record, false)
    }

    /// The refusal of a start on a pool whose record does not fit.
    fn refuse(&self, what: &str, kept: Option<&Pool>, tenants: &[Tenant], own: &[u64]) -> Refusal {
        let path = self.path.display();
        let would = match kept {
            Some(pool) => format!(
                "`fairq layout adopt {path}` would keep that record for this pool:{}\nand `fairq \
                 layout adopt {path} --config FILE` would place the tenants by the configuration, \
                 as version 0.1.0 did; a pool that is new needs no record: {}",
                lines(&pool.record),
                match pool.is_in_tail() {
                    true => format!("zero its MiB at {} first", pool.at),
                    false if self.is_block_device() =>
                        format!("remove {}", self.in_state().display()),
                    false => format!("remove {}", self.beside().display()),
                }
            ),
            None => match self.adopt(tenants, own, false) {
                Ok((record, _)) => format!(
                    "`fairq layout adopt {path} --config FILE` would place the tenants by the \
                     configuration, as version 0.1.0 did, and zero nothing:{}\nthat is right only \
                     if this is where their data are; or restore the record from a backup",
                    lines(&record)
                ),
                Err(error) => format!("it cannot be adopted: {error}"),
            },
        };
        Refusal::new(format!("{path}: {what}; nothing was changed. {would}"))
    }

    /// The first step of a server: finds or makes the record, and places the tenants. `is_made`
    /// means that the server has just made the file.
    pub fn start(&self, is_made: bool, tenants: &[Tenant], own: &[u64]) -> Result<Start, Refusal> {
        let path = self.path.display().to_string();
        let (mut pool, adopted) = match self.find()? {
            Found::Trouble(what, kept) => {
                return Err(self.refuse(&what, kept.as_deref(), tenants, own));
            }
            Found::Whole(mut pool) => {
                if !self.is_block_device() {
                    self.mark_as(&mut pool)?;
                }
                (*pool, false)
            }
            Found::Nothing if self.is_block_device() => {
                // If the tenants' sizes take the whole device, they use its last MiB, too.
                let (record, is_full) =
                    self.adopt(tenants, own, true).or_else(|_| self.adopt(tenants, own, false))?;
                if !self.is_blank(&record)? {
                    let what = "it has data and no layout record: it was laid out by version \
                                0.1.0, or has grown, or is something else";
                    return Err(self.refuse(what, None, tenants, own));
                }
                (self.create(record, is_full)?, false)
            }
            Found::Nothing => {
                let is_new = is_made || self.is_all_hole();
                (self.create(self.adopt(tenants, own, is_new)?.0, false)?, !is_new)
            }
        };
        pool.fit(self.size)?;
        let placed = place::start(&path, tenants, &pool.record, own)?;
        if placed.record != pool.record {
            pool.save(&placed.record)
                .map_err(|error| fault(&self.path, "write its layout record", &error))?;
        }
        pool.remember();
        Ok(Start { pool, placed, adopted })
    }
}

/// `O_EXCL`, which opens a block device exclusively.
fn libc_o_excl() -> i32 {
    rustix::fs::OFlags::EXCL.bits() as i32
}

/// A line for each range.
pub fn lines(record: &Record) -> String {
    record.ranges().iter().map(|held| format!("\n  {held}")).collect()
}

/// Reads the record at an offset.
fn read(file: &File, at: u64) -> io::Result<Copied> {
    let copy = |index: u64| -> io::Result<Copied> {
        let mut bytes = vec![0; COPY];
        let mut length = 0;
        while length < COPY {
            let place = at + index * COPY as u64 + length as u64;
            match file.read_at(&mut bytes[length..], place) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(decode(&bytes[..length]))
    };
    Ok(newest([copy(0)?, copy(1)?]))
}

impl Pool {
    /// The record on storage.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The path of the pool's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the record is in the device's last MiB.
    fn is_in_tail(&self) -> bool {
        self.is_block_device && self.at > 0
    }

    /// Writes a record to stable storage; it replaces this one.
    pub fn save(&mut self, record: &Record) -> io::Result<()> {
        let sequence = self.sequence + 1;
        let mut bytes = encode(record, sequence).map_err(io::Error::other)?;
        bytes.resize(bytes.len().next_multiple_of(ALIGNED as usize), 0);
        for copy in 0..2 {
            self.file.write_all_at(&bytes, self.at + copy * COPY as u64)?;
            self.file.sync_data()?;
        }
        (self.record, self.sequence) = (record.clone(), sequence);
        Ok(())
    }

    /// Writes the identifier of the device's record to the state directory. Without it this machine
    /// finds the record as any other machine does, so a failure is ignored.
    fn remember(&self) {
        let Some(path) = &self.known else { return };
        let known = Known { id: self.record.id.clone(), at: self.at };
        let before = std::fs::read(path).ok();
        if before.and_then(|bytes| serde_json::from_slice(&bytes).ok()).as_ref() == Some(&known) {
            return;
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let part = path.with_extension("part");
        let _ = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&part, serde_json::to_vec(&known)?))
            .and_then(|()| File::open(&part)?.sync_all())
            .and_then(|()| std::fs::rename(&part, path));
    }

    fn save_own(&mut self) -> Result<(), Refusal> {
        let record = self.record.clone();
        self.save(&record).map_err(|error| fault(&self.path, "write its layout record", &error))
    }

    /// Adapts the record to this size of the pool's file, in bytes: new space is free, and the
    /// record moves to the end. True if this changed something.
    pub fn fit(&mut self, size: u64) -> Result<bool, Refusal> {
        let refused =
            |error| Refusal::new(format!("{}: the layout record: {error}", self.path.display()));
        let (at, room) = match self.is_in_tail() {
            true => (Media::tail(size), Media::tail(size)),
            false => (0, size / SECTOR * SECTOR),
        };
        // The copies of the record must not overlap the ones that they replace.
        let overlaps = self.is_in_tail() && self.at.abs_diff(at) < SPACE;
        if room == self.record.size || overlaps {
            return Ok(false);
        }
        let mut record = self.record.clone();
        record.set_size(room, !self.is_block_device).map_err(refused)?;
        let before = std::mem::replace(&mut self.at, at);
        if let Err(error) = self.save(&record) {
            self.at = before;
            return Err(fault(&self.path, "write its layout record", &error));
        }
        // The old record is in free space; it is erased so that no search finds it.
        if self.is_in_tail() && before + SPACE <= at {
            for copy in 0..2 {
                let _ = self.file.write_all_at(&[0; 512], before + copy * COPY as u64);
            }
        }
        self.remember();
        Ok(true)
    }
}

/// Refuses to overwrite a pool.
pub fn refuse_pool(path: &Path, may_overwrite: bool) -> Result<(), Refusal> {
    if may_overwrite || !path.exists() {
        return Ok(());
    }
    let has_record = Media::open(path).and_then(|media| media.find());
    match has_record {
        Ok(Found::Whole(_) | Found::Trouble(..)) => Err(Refusal::new(format!(
            "{} is a pool with tenants' data (fairq layout show {0}): use another file or device, \
             or add --overwrite if they may be lost",
            path.display()
        ))),
        // A file that cannot be opened is refused when it is used.
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
