//! The upgrade: the next program is executed in this process, and takes over the server.
//!
//! **Problem.** A program is replaced while it has clients, and none of them may notice. **Model.**
//! The shards stand still ([`crate::shard::halt`]): nothing is on the device or in a ring. The
//! state is written to a file in memory (`leave`), descriptors stay open, and the process executes
//! the next program. It builds its server from the state, and only then begins to read sockets
//! (`take`). Up to that point everything is unchanged: each program uses copies of the descriptors,
//! so the previous one can be executed again and go on.
//!
//! ```text
//!   head: mark, version, span of the text │ bytes of connections and memory │ text: State
//! ```
//!
//! **Bounds.** The device has 500 ms to complete its requests; otherwise the upgrade fails and the
//! server goes on.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fairq_core::{CapStats, Taken};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::device::any::{Inherited, Left};
use crate::front::vfio_user::left_controller::LeftController;
use crate::front::vhost::left::LeftSession;
use crate::io::area::{Area, Piece, Span, SpanReader};
use crate::io::clock::Clock;
use crate::nbd::serve::conn::Packed;
use crate::observe::stats::{ShardCounters, TenantStats};
use crate::server::Listen;
use crate::server::calls::Caller;
use crate::server::schedulers::PolicyCounts;

mod leave;
mod take;

pub use leave::Predecessor;
pub(super) use leave::unblock_signals;

/// The time that the device may take to complete its requests.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// The version of the state; a program refuses any other.
const VERSION: u32 = 1;
/// The first bytes of a state.
const MARK: &[u8; 8] = b"fairq-up";
/// Mark, version, and the span of the text.
const HEAD: usize = 32;

/// The state that a program leaves for the next one.
#[derive(Serialize, Deserialize)]
pub struct State {
    /// The version of the program.
    pub program: String,
    /// The value that the caller of [`crate::server::Admin::upgrade`] has passed on.
    pub operator: serde_json::Value,
    /// The number of upgrades in this process.
    pub upgrades: u64,
    /// The device's part of the state.
    pub device: Left,
    /// The tenants in their order.
    pub tenants: Vec<LeftTenant>,
    /// The default tenant, for clients that name no export, and whether the operator has chosen it.
    pub default: Option<(String, bool)>,
    clock_origin_ns: u64,
    elapsed: Duration,
    doors: Vec<LeftDoor>,
    /// The directories with a socket for the guests of each tenant.
    #[serde(default)]
    guest_directories: Vec<PathBuf>,
    /// The directories with a socket for the controllers of each tenant.
    #[serde(default)]
    controller_directories: Vec<PathBuf>,
    groups: Vec<LeftGroup>,
    connections: Vec<Packed>,
    /// The sessions of guests.
    #[serde(default)]
    guests: Vec<LeftSession>,
    /// The controllers of guests.
    #[serde(default)]
    controllers: Vec<LeftController>,
    shards: Vec<ShardCounters>,
    interference: Vec<(u8, u8, u64)>,
    #[serde(default)]
    policies: PolicyCounts,
    caller: Option<Caller>,
}

/// A tenant.
#[derive(Serialize, Deserialize)]
pub struct LeftTenant {
    /// Its name.
    pub name: String,
    /// Start of its range in its file, in bytes.
    pub base: u64,
    /// The size of its range, in bytes.
    pub size: u64,
    /// Whether the range has to be zeroed before clients can open the tenant.
    pub zero: bool,
    number: u16,
    caps: Option<LeftCaps>,
    /// Whether it may have writes that are not on stable storage, and the errno of a failed write
    /// or sync.
    write_back: (bool, Option<i32>),
    waited: u64,
    /// `None` for a tenant that has had no requests.
    counts: Option<Counts>,
}

/// A tenant's counts.
struct Counts(Arc<TenantStats>);

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Counts, D::Error> {
        TenantStats::deserialize(deserializer).map(|stats| Counts(Arc::new(stats)))
    }
}

/// A group: its caps in each store.
#[derive(Serialize, Deserialize)]
struct LeftGroup {
    name: String,
    caps: Vec<Option<LeftCaps>>,
}

/// The statistics of a flow's or a group's caps, and the amounts taken from them.
#[derive(Serialize, Deserialize)]
struct LeftCaps {
    held: u64,
    held_ns: u64,
    taken: Vec<u64>,
}

impl LeftCaps {
    fn of(stats: &CapStats) -> LeftCaps {
        let CapStats { held, held_ns, taken, .. } = *stats;
        LeftCaps { held, held_ns, taken: taken.to_words().to_vec() }
    }

    fn stats(&self, now: &CapStats) -> CapStats {
        let mut taken = Taken::default().to_words();
        taken.iter_mut().zip(&self.taken).for_each(|(word, left)| *word = *left);
        let taken = Taken::from_words(taken);
        CapStats { held: self.held, held_ns: self.held_ns, taken, ..*now }
    }
}

/// The kind of clients that connect at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    Clients,
    Http,
    Control,
    Guests,
    Controllers,
}

/// A listening socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LeftDoor {
    pub(super) at: Listen,
    pub(super) role: Role,
    pub(super) fd: RawFd,
    pub(super) is_inherited: bool,
    /// The name of a Unix socket that this process has made.
    pub(super) name: Option<PathBuf>,
}

impl State {
    /// Reads a state that a program has written.
    pub fn read(file: &File) -> io::Result<State> {
        let mut head = [0; HEAD];
        file.read_exact_at(&mut head, 0)?;
        let word = |at: usize| {
            head[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        if !head.starts_with(MARK) {
            return Err(io::Error::other("this is not the state of a fairq server"));
        }
        let version = word(8);
        if version != u64::from(VERSION) {
            return Err(io::Error::other(format!(
                "the server's state has version {version}, and this program reads version \
                 {VERSION}: restart the server instead"
            )));
        }
        let text =
            SpanReader::new(Arc::new(file.try_clone()?), Span { at: word(16), length: word(24) });
        Ok(serde_json::from_slice(&text.rest()?)?)
    }

    fn write(&self, area: &Area) -> io::Result<()> {
        let span = area.add(&[Piece::Bytes(serde_json::to_vec(self)?.into())])?;
        let words = [u64::from(VERSION), span.at, span.length].map(u64::to_le_bytes);
        area.set_head(&[&MARK[..], words.as_flattened()].concat())
    }

    /// All descriptors that the state names.
    fn descriptors(&self) -> Vec<RawFd> {
        let files = self.device.files.iter().flat_map(|file| [Some(file.file), file.witness]);
        let doors = self.doors.iter().map(|door| door.fd);
        let connections = self.connections.iter().map(|one| one.fd);
        let caller = self.caller.iter().map(|caller| caller.fd);
        let guests = self.guests.iter().flat_map(LeftSession::descriptors);
        let controllers = self.controllers.iter().flat_map(LeftController::descriptors);
        let guests = guests.chain(controllers);
        files.flatten().chain(doors).chain(connections).chain(guests).chain(caller).collect()
    }
}

/// The previous program's state and descriptors; kept until this program serves.
pub struct Before {
    /// The state.
    pub state: State,
    area: Arc<File>,
    predecessor: Predecessor,
    /// Copies of the descriptors, by the numbers that they had in the previous program, which may
    /// still need the originals.
    copies: HashMap<RawFd, OwnedFd>,
    /// The numbers of the originals.
    left: Vec<RawFd>,
}

impl Before {
    /// Takes over the state that a program has left in this process.
    pub fn new(predecessor: Predecessor) -> io::Result<Before> {
        let area = File::from(copy(predecessor.state)?);
        let state = State::read(&area)?;
        let left = state.descriptors();
        let mut copies = HashMap::new();
        for &fd in &left {
            copies.insert(fd, copy(fd)?);
        }
        Clock::go_on_from(state.clock_origin_ns);
        Ok(Before { state, area: Arc::new(area), predecessor, copies, left })
    }

    /// The device's part of the state, with its open files.
    pub fn device(&mut self) -> io::Result<Inherited> {
        let mut files = Vec::new();
        for left in &self.state.device.files {
            let file = take_copy(&mut self.copies, left.file)?;
            let witness = left.witness.map(|fd| take_copy(&mut self.copies, fd)).transpose()?;
            files.push(left.open(file.into(), witness.map(File::from)));
        }
        let part = |&(at, span): &(u64, Span)| (at, SpanReader::new(self.area.clone(), span));
        Ok(Inherited { files, memory: self.state.device.memory.iter().map(part).collect() })
    }

    /// Closes the previous program's descriptors, because this program serves from now on.
    fn commit(&mut self) {
        let Predecessor { program, state } = self.predecessor;
        for fd in self.left.drain(..).chain([program, state]) {
            // SAFETY: it was left for this program, which uses a copy of it; nothing else in the
            // process knows it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

/// Duplicates a descriptor that a program has left open.
fn copy(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call only checks whether the descriptor is open, and takes no pointer.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has found it open, and nothing closes it before this program serves.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}

fn take_copy(copies: &mut HashMap<RawFd, OwnedFd>, fd: RawFd) -> io::Result<OwnedFd> {
    copies.remove(&fd).ok_or_else(|| io::Error::other("a descriptor is named twice"))
}

/// Sets whether descriptors stay open when this process executes another program.
fn keep_open(fds: impl IntoIterator<Item = RawFd>, keep: bool) -> io::Result<()> {
    let flags = if keep { rustix::io::FdFlags::empty() } else { rustix::io::FdFlags::CLOEXEC };
    for fd in fds {
        // SAFETY: the server has the descriptor open, and closes none during an upgrade.
        let open = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_setfd(open, flags)?;
    }
    Ok(())
}
