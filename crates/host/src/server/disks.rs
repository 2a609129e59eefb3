//! The block devices of tenants (ublk), and the thread that creates and deletes them.
//!
//! **Model.** The control thread sends the list of desired devices ([`Wanted`]) each time it may
//! have changed. The thread compares it with the existing devices, and adds, recovers, resizes,
//! renames and deletes devices one after the other. A control command may block until the device's
//! requests end, so the control thread itself never sends one. A device that cannot be created is
//! retried every ten seconds; its status contains the reason.
//!
//! **Recovery.** A device outlives the server, and its requests wait for the next server. For each
//! device, a file in the server's state directory records the tenant's name, the location of the
//! tenant's bytes, and a random mark that the kernel also keeps for the device. A device is
//! recovered only for the same name and the same location. A device that belongs to no tenant is
//! deleted: its tenant was removed, and the range may now belong to another tenant.
//!
//! A device whose data end with the process (in memory) is deleted when the process ends, or, after
//! a kill, by the next server.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fairq_core::FlowId;
use rand::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::front::attach::{Attachment, Places};
use crate::front::ublk::control_commands::{Control, NoUblk};
use crate::front::ublk::disk_queue::{Attach, MAX_BYTES};
use crate::front::ublk::disk_queues::Message;
use crate::front::ublk::sys::{self, BasicParams, DiscardParams, Params};
use crate::nbd::session::users::Users;
use crate::server::ControlThread;
use crate::server::{AttachmentKind, AttachmentStatus, Member};
use crate::shard::volume::Volume;

/// The number of requests of a queue.
const DEPTH: u16 = 128;
const SECTOR: u64 = 512;
/// The pause before the creation of a device is retried.
const AGAIN: Duration = Duration::from_secs(10);
/// The longest wait for the shards to serve a device's queues, and for the kernel to notice that
/// the previous server has ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two checks during these waits.
const PAUSE: Duration = Duration::from_millis(20);
/// The folder of links to devices, by the names of tenants.
const LINKS: &str = "/dev/fairq";

/// A desired device.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The tenant's name.
    pub name: String,
    /// The tenant's range.
    pub volume: Volume,
    /// The name of the storage that has the tenant's bytes.
    pub storage: String,
    /// Whether the bytes outlive this process.
    pub is_lasting: bool,
    /// The size of requests that the device serves best, in bytes.
    pub preferred: u32,
    /// The users who may open it.
    pub users: Users,
}

/// The file that records which tenant a device belongs to.
#[derive(Serialize, Deserialize)]
struct Note {
    name: String,
    mark: u64,
    storage: String,
    base: u64,
    /// The control socket of the server that created the device; needed because servers may share a
    /// directory.
    #[serde(default)]
    server: String,
}

/// A device that is served.
struct Disk {
    number: u32,
    name: String,
    size: u64,
    is_lasting: bool,
}

/// The directory of notes, and the server's name in them.
pub(super) struct Notes {
    folder: PathBuf,
    server: String,
}

/// Sends a shard's front end a message.
type Send = Box<dyn Fn(usize, Message) + std::marker::Send>;

enum Job {
    Want(Vec<Wanted>),
    End,
}

/// The state of each device, by the number of its tenant.
type Status = Arc<Mutex<BTreeMap<u16, AttachmentStatus>>>;

/// The thread, and the states of devices that it reports.
pub(super) struct Disks {
    jobs: Sender<Job>,
    status: Status,
    thread: JoinHandle<()>,
}

impl Disks {
    /// Starts the thread; `send` sends messages to the shards.
    pub(super) fn start(
        notes: Notes,
        shards: usize,
        places: Arc<Places>,
        send: Send,
    ) -> Result<Disks, NoUblk> {
        let control = Control::open()?;
        let (jobs, receiver) = channel();
        let status = Status::default();
        let maker = Maker {
            control,
            notes,
            shards,
            send,
            disks: HashMap::new(),
            again: HashMap::new(),
            status: status.clone(),
            places,
            has_swept: false,
        };
        let thread =
            std::thread::Builder::new().name("fairq-ublk".into()).spawn(|| maker.run(receiver))?;
        Ok(Disks { jobs, status, thread })
    }

    /// Sets the list of desired devices.
    pub(super) fn want(&self, wanted: Vec<Wanted>) {
        let _ = self.jobs.send(Job::Want(wanted));
    }

    /// The state of each tenant's device, by the tenants' numbers.
    pub(super) fn status(&self) -> Vec<(u16, AttachmentStatus)> {
        let all = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(tenant, status)| (*tenant, status.clone())).collect()
    }

    /// Begins to delete the devices whose data end with the server, while shards still serve them.
    /// Other devices remain.
    pub(super) fn end(&self) {
        let _ = self.jobs.send(Job::End);
    }

    /// Whether the thread has ended.
    pub(super) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }
}

/// The thread's state.
struct Maker {
    control: Control,
    notes: Notes,
    shards: usize,
    send: Send,
    disks: HashMap<FlowId, Disk>,
    /// The time of the next attempt to create a device, for each flow whose device failed.
    again: HashMap<FlowId, Instant>,
    status: Status,
    places: Arc<Places>,
    /// Whether the devices of earlier servers that belong to no tenant have been deleted.
    has_swept: bool,
}

impl Maker {
    fn run(mut self, jobs: Receiver<Job>) {
        let mut wanted = Vec::new();
        loop {
            let next =
                self.again.values().min().map(|at| at.saturating_duration_since(Instant::now()));
            let job = match next {
                Some(pause) => jobs.recv_timeout(pause),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(Job::Want(list)) => wanted = list,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => break,
            }
            // Only the newest list is used.
            while let Ok(job) = jobs.try_recv() {
                match job {
                    Job::Want(list) => wanted = list,
                    Job::End => return self.end(),
                }
            }
            self.converge(&wanted);
        }
        self.end();
    }

    fn end(mut self) {
        let ending: Vec<FlowId> =
            self.disks.iter().filter(|(_, disk)| !disk.is_lasting).map(|(flow, _)| *flow).collect();
        ending.into_iter().for_each(|flow| self.delete(flow));
    }

    /// Makes the existing devices equal to the desired ones.
    fn converge(&mut self, wanted: &[Wanted]) {
        let flows = |flow: &FlowId| wanted.iter().find(|want| want.volume.flow == *flow);
        let gone: Vec<FlowId> =
            self.disks.keys().filter(|flow| flows(flow).is_none()).copied().collect();
        gone.into_iter().for_each(|flow| self.delete(flow));
        self.again.retain(|flow, _| flows(flow).is_some());
        if !std::mem::replace(&mut self.has_swept, true) {
            self.sweep(wanted);
        }
        for want in wanted {
            let flow = want.volume.flow;
            if self.disks.contains_key(&flow) {
                self.adjust(want);
                continue;
            }
            if self.again.get(&flow).is_some_and(|at| Instant::now() < *at) {
                continue;
            }
            let status = match self.make(want) {
                Ok(disk) => {
                    let number = disk.number;
                    let device = format!("/dev/ublkb{number}");
                    tracing::info!(tenant = want.name, device, "the block device is ready");
                    self.again.remove(&flow);
                    self.disks.insert(flow, disk);
                    status(number, self.shards, None)
                }
                Err(error) => {
                    let is_new = self.again.insert(flow, Instant::now() + AGAIN).is_none();
                    if is_new {
                        tracing::error!(
                            tenant = want.name,
                            %error,
                            "cannot make the tenant's block device; trying again every 10 s"
                        );
                    }
                    status(0, 0, Some(error.to_string()))
                }
            };
            self.report(want.volume.tenant, Some(status));
        }
    }

    fn report(&self, tenant: u16, status: Option<AttachmentStatus>) {
        let mut all = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        match status {
            Some(status) => all.insert(tenant, status),
            None => all.remove(&tenant),
        };
    }

    /// Deletes devices of earlier servers that belong to no wanted tenant.
    fn sweep(&mut self, wanted: &[Wanted]) {
        for (number, note) in self.left() {
            let is_wanted = wanted.iter().any(|want| note.is_of(want));
            let is_own = note.server == self.notes.server;
            match self.control.info(number) {
                Ok(info) if info.ublksrv_flags == note.mark => {
                    if is_own && !is_wanted && info.state != sys::S_LIVE {
                        tracing::warn!(
                            tenant = note.name,
                            device = number,
                            "deleting the block device of a tenant that no longer exists"
                        );
                        self.remove(number, &note.name);
                    }
                }
                _ => drop(std::fs::remove_file(self.note_path(number))),
            }
        }
    }

    fn note_of(&self, want: &Wanted, mark: u64) -> Note {
        let (name, storage) = (want.name.clone(), want.storage.clone());
        Note { name, mark, storage, base: want.volume.base, server: self.notes.server.clone() }
    }

    fn note_path(&self, number: u32) -> PathBuf {
        self.notes.folder.join(format!("ublk-{number}.json"))
    }

    /// The notes of earlier servers, by device.
    fn left(&self) -> Vec<(u32, Note)> {
        let Ok(entries) = std::fs::read_dir(&self.notes.folder) else { return Vec::new() };
        let read = |entry: io::Result<std::fs::DirEntry>| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let number = name.strip_prefix("ublk-")?.strip_suffix(".json")?.parse().ok()?;
            let bytes = std::fs::read(self.note_path(number)).ok()?;
            Some((number, serde_json::from_slice(&bytes).ok()?))
        };
        entries.filter_map(read).collect()
    }

    fn write_note(&self, number: u32, note: &Note) -> io::Result<()> {
        let (path, new) =
            (self.note_path(number), self.notes.folder.join(format!(".ublk-{number}")));
        std::fs::create_dir_all(&self.notes.folder)?;
        std::fs::write(&new, serde_json::to_vec(note)?)?;
        std::fs::rename(new, path)
    }

    /// Makes a device: recovers the one that an earlier server has left, or adds one.
    fn make(&mut self, want: &Wanted) -> io::Result<Disk> {
        let left = self.left().into_iter().find(|(number, note)| {
            let info = self.control.info(*number);
            note.is_of(want) && info.is_ok_and(|info| info.ublksrv_flags == note.mark)
        });
        let number = match left {
            Some((number, _)) => {
                self.recover(number, want)?;
                // The kernel announces no new device, so `link` and not udev sets the owner.
                self.link(number, None, want);
                number
            }
            None => {
                let number = self.add(want)?;
                if !Path::new("/run/udev/control").exists() {
                    self.link(number, None, want);
                }
                number
            }
        };
        let size = want.volume.size;
        let disk = Disk { number, name: want.name.clone(), size, is_lasting: want.is_lasting };
        Ok(disk)
    }

    /// Adds a device.
    fn add(&mut self, want: &Wanted) -> io::Result<u32> {
        let mark = rand::rngs::SmallRng::from_os_rng().next_u64();
        let number = self.control.add(self.shards as u16, DEPTH, MAX_BYTES, mark)?;
        let made = self.start(number, mark, want);
        if made.is_err() {
            self.remove(number, &want.name);
        }
        made.map(|()| number)
    }

    fn start(&mut self, number: u32, mark: u64, want: &Wanted) -> io::Result<()> {
        self.write_note(number, &self.note_of(want, mark))?;
        self.control.set_params(number, &params(want))?;
        self.serve(number, self.shards as u16, DEPTH, want)?;
        // udev requests the owner from this server before the kernel has started the device.
        self.report(want.volume.tenant, Some(status(number, 0, None)));
        self.control.start(number)
    }

    /// Takes over a device that an earlier server has left.
    fn recover(&mut self, number: u32, want: &Wanted) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        // The kernel notices the end of the earlier server only when that server's files are
        // closed.
        while let Err(error) = self.control.begin_recovery(number) {
            if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() > deadline {
                let info = self.control.info(number)?;
                let held = info.state == sys::S_LIVE;
                let why = format!("/dev/ublkb{number} is served by process {}", info.ublksrv_pid);
                return Err(if held { io::Error::other(why) } else { error });
            }
            std::thread::sleep(PAUSE);
        }
        let info = self.control.info(number)?;
        self.serve(number, info.nr_hw_queues, info.queue_depth, want)?;
        self.control.end_recovery(number)?;
        if self.control.can_resize() {
            self.control.resize(number, want.volume.size)?;
        }
        Ok(())
    }

    /// Makes the shards serve the queues of a device.
    fn serve(&mut self, number: u32, queues: u16, depth: u16, want: &Wanted) -> io::Result<()> {
        let path = format!("/dev/ublkc{number}");
        let deadline = Instant::now() + PATIENCE;
        let file = loop {
            match File::options().read(true).write(true).open(&path) {
                Ok(file) => break Arc::new(file),
                // udev may not have set the owner yet, or the earlier server may have it open.
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(PAUSE),
            }
        };
        let (reply, replies) = channel();
        let attachment = Attachment::new(self.places.clone());
        let shard_of = |queue: u16| usize::from(queue) % self.shards;
        // All places come first: a device is served by all of its queues or by none.
        let places = (0..queues).map(|queue| attachment.take(shard_of(queue)));
        let places = places.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
        for (queue, place) in (0..queues).zip(places) {
            let (file, volume) = (file.clone(), want.volume.clone());
            let attach = Attach { file, queue, depth, volume, place };
            (self.send)(shard_of(queue), Message::Attach(Box::new(attach), reply.clone()));
        }
        for _ in 0..queues {
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            replies.recv_timeout(PATIENCE).map_err(late)??;
        }
        Ok(())
    }

    /// Applies the changes of a tenant's size, name and users to its device.
    fn adjust(&mut self, want: &Wanted) {
        let Some(disk) = self.disks.get_mut(&want.volume.flow) else { return };
        let number = disk.number;
        if disk.size != want.volume.size {
            disk.size = want.volume.size;
            if let Err(error) = self.control.resize(number, want.volume.size) {
                tracing::error!(tenant = want.name, %error, "cannot resize the block device");
            }
        }
        if disk.name != want.name {
            let before = std::mem::replace(&mut disk.name, want.name.clone());
            let noted = self
                .control
                .info(number)
                .and_then(|info| self.write_note(number, &self.note_of(want, info.ublksrv_flags)));
            if let Err(error) = noted {
                tracing::error!(tenant = want.name, %error, "cannot record the device's new name");
            }
            self.link(number, Some(&before), want);
        }
    }

    /// Links `/dev/fairq/NAME` to a device, and sets its owner to the tenant's users. For a new
    /// device, udev does this where it runs.
    fn link(&self, number: u32, before: Option<&str>, want: &Wanted) {
        let device = format!("/dev/ublkb{number}");
        let links = Path::new(LINKS);
        if let Some(before) = before {
            let _ = std::fs::remove_file(links.join(before));
        }
        let _ = std::fs::create_dir_all(links);
        let link = links.join(&want.name);
        let _ = std::fs::remove_file(&link);
        let (uid, gid, mode) = owner(&want.users);
        let done = symlink(format!("../ublkb{number}"), &link)
            .and_then(|()| chown(&device, uid, gid))
            .and_then(|()| std::fs::set_permissions(&device, Permissions::from_mode(mode)));
        if let Err(error) = done {
            tracing::warn!(tenant = want.name, device, %error, "cannot link the block device");
        }
    }

    /// Deletes the device of a flow.
    fn delete(&mut self, flow: FlowId) {
        if let Some(disk) = self.disks.remove(&flow) {
            self.remove(disk.number, &disk.name);
            self.report(flow.slot() as u16, None);
            tracing::info!(tenant = disk.name, device = disk.number, "the block device is deleted");
        }
    }

    fn remove(&mut self, number: u32, name: &str) {
        let ended = self.control.stop(number).and_then(|()| self.control.delete(number));
        if let Err(error) = ended {
            tracing::error!(device = number, %error, "cannot delete a block device");
        }
        let link = Path::new(LINKS).join(name);
        if std::fs::read_link(&link).is_ok_and(|to| to.ends_with(format!("ublkb{number}"))) {
            let _ = std::fs::remove_file(link);
        }
        let _ = std::fs::remove_file(self.note_path(number));
    }
}

/// The status of a device of which `queues` queues are served, or the reason why there is none.
fn status(number: u32, queues: usize, error: Option<String>) -> AttachmentStatus {
    let path = if error.is_none() { format!("/dev/ublkb{number}") } else { String::new() };
    let kind = AttachmentKind::Ublk;
    AttachmentStatus { kind, path: path.into(), is_connected: queues > 0, queues, error }
}

impl Note {
    /// Whether the note names the same tenant and the same bytes.
    fn is_of(&self, want: &Wanted) -> bool {
        (&self.name, &self.storage, self.base) == (&want.name, &want.storage, want.volume.base)
    }
}

/// The owner, group and mode of a device. The device has a single owner and group: the first user
/// and the first group. Others have no access.
pub(super) fn owner(users: &Users) -> (Option<u32>, Option<u32>, u32) {
    let mode = if users.gids.is_empty() { 0o600 } else { 0o660 };
    (users.uids.first().copied(), users.gids.first().copied(), mode)
}

/// The parameters of a tenant's device.
fn params(want: &Wanted) -> Params {
    let block = want.volume.block.max(512);
    let shift = block.trailing_zeros() as u8;
    let physical = shift.max(12);
    let preferred = want.preferred.max(1 << physical).ilog2() as u8;
    let read_only = if want.volume.read_only { sys::ATTR_READ_ONLY } else { 0 };
    let most = u32::MAX >> 9;
    Params {
        types: sys::PARAM_BASIC | sys::PARAM_DISCARD,
        basic: BasicParams {
            attrs: sys::ATTR_VOLATILE_CACHE | sys::ATTR_FUA | read_only,
            logical_bs_shift: shift,
            physical_bs_shift: physical,
            io_min_shift: physical,
            io_opt_shift: preferred,
            max_sectors: MAX_BYTES / 512,
            dev_sectors: want.volume.size / SECTOR,
            ..BasicParams::default()
        },
        discard: DiscardParams {
            discard_granularity: block.max(4096),
            max_discard_sectors: most,
            max_write_zeroes_sectors: most,
            max_discard_segments: 1,
            ..DiscardParams::default()
        },
        ..Params::default()
    }
}

impl ControlThread<'_> {
    /// Sets whether each tenant that needs no certificate has a block device.
    pub(super) fn set_disks_of_all(&mut self, all: bool) -> Result<(), NoUblk> {
        self.has_disks_of_all = all;
        self.disks_of = None;
        self.start_disks()
    }

    /// Starts the thread for block devices if a tenant needs one. Fails if the system has no ublk.
    pub(super) fn start_disks(&mut self) -> Result<(), NoUblk> {
        if self.disks.is_some() || self.wanted_disks().is_empty() {
            return Ok(());
        }
        let server = Arc::downgrade(&self.server);
        // The thread must not keep the server alive.
        let send = Box::new(move |shard, message: Message| {
            if let Some(server) = server.upgrade() {
                server.shards.send(shard, crate::shard::Message::Front(message.into()));
            }
        });
        let config = &self.server.config;
        let control = config.control.as_ref().map(|path| path.display().to_string());
        let notes = Notes { folder: config.state.clone(), server: control.unwrap_or_default() };
        let shards = self.server.shards.count();
        let places = self.server.places.clone();
        self.disks = Some(Disks::start(notes, shards, places, send)?);
        Ok(())
    }

    /// Sends the list of the present tenants' block devices to the thread.
    pub(super) fn update_disks(&mut self) {
        let tenants = self.server.tenants();
        if self.disks_of.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &tenants)) {
            return;
        }
        self.disks_of = Some(tenants);
        if let Err(error) = self.start_disks() {
            tracing::error!(%error, "cannot make the block device of a tenant");
        }
        if let Some(disks) = &self.disks {
            disks.want(self.wanted_disks());
        }
    }

    /// Begins to delete the block devices whose data end with this process.
    pub(super) fn end_disks(&self) {
        self.disks.iter().for_each(Disks::end);
    }

    /// Whether the thread for block devices has ended.
    pub(super) fn has_ended_disks(&self) -> bool {
        self.disks.as_ref().is_none_or(Disks::is_over)
    }

    fn wanted_disks(&self) -> Vec<Wanted> {
        let info = self.device.info();
        let block = info.block_size.clamp(512, 4096);
        let all = self.has_disks_of_all;
        let tenants = self.server.tenants();
        let wants = |member: &&Member| {
            let tenant = &member.tenant;
            (tenant.settings.ublk || all && tenant.settings.identity.is_none())
                && member.preparing.is_none()
        };
        let wanted = |member: &Member| {
            let file = self.device.path_of(member.tenant.file);
            let is_lasting = file.is_some();
            Wanted {
                name: member.tenant.name.clone(),
                volume: member.volume(block),
                storage: file.map_or_else(this_process, |path| storage_at(&path)),
                is_lasting,
                preferred: info.preferred_size,
                users: member.tenant.settings.users.clone(),
            }
        };
        tenants.members().filter(wants).map(wanted).collect()
    }
}

/// The identity of a file or device: its path, and its numbers, since another file may replace it
/// under the same path.
fn storage_at(path: &Path) -> String {
    let numbers = std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let (device, inode) = numbers.unwrap_or_default();
    format!("{} (device {device}, inode {inode})", path.display())
}

/// The identity of this process's memory. It stays the same when the process executes another
/// program.
fn this_process() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The start of the process, in ticks since boot. The name before this field may contain spaces.
    let started = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(20));
    format!("memory of process {}, started at {}", std::process::id(), started.unwrap_or("?"))
}
