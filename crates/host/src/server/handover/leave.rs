//! The outgoing side of an upgrade: the state that a program leaves for the next one.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::front::vfio_user::left_controller::LeftController;
use crate::front::vhost::left::LeftSession;
use crate::io::area::Area;
use crate::io::clock::Clock;
use crate::nbd::serve::conn::Packed;
use crate::nbd::serve::front::Message as NbdMessage;
use crate::server::guests::GuestSocket;
use crate::server::handover::{
    Counts, HEAD, LeftCaps, LeftDoor, LeftGroup, LeftTenant, PATIENCE, Role, State, copy, keep_open,
};
use crate::server::{AdminError, AttachmentKind, Listen, Successor};
use crate::server::{ControlThread, Drain};
use crate::shard::Message;
use crate::shard::halt::Halt;

/// The pause between two checks for threads that wait for a file system.
const PAUSE: Duration = Duration::from_millis(2);
/// The time after which an upgrade no longer waits for handshakes that are under way.
const HANDSHAKES: Duration = Duration::from_millis(500);
/// The time without an upgrade after which clients are accepted again.
const ABANDONED: Duration = Duration::from_secs(2);

/// The descriptors that a program opens for itself at its start, at most.
const DESCRIPTORS: u64 = 512;

impl Successor {
    /// Executes it with the state in `area`; returns only the error.
    fn execute(&self, area: &File) -> io::Result<Infallible> {
        let before = File::open("/proc/self/exe")?;
        let predecessor = Predecessor { program: before.as_raw_fd(), state: area.as_raw_fd() };
        let mut args = self.args.clone();
        if let Some(last) = args.last_mut() {
            last.push(predecessor.to_string());
        }
        keep_open([predecessor.program, predecessor.state], true)?;
        Err(Command::new(&self.program).arg0(&self.name).args(args).exec())
    }
}

/// The previous program in this process and its state, by their descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Predecessor {
    pub(super) program: RawFd,
    pub(super) state: RawFd,
}

impl fmt::Display for Predecessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.program, self.state)
    }
}

impl FromStr for Predecessor {
    type Err = String;

    fn from_str(text: &str) -> Result<Predecessor, String> {
        let numbers = text.split_once(':').and_then(|(program, state)| {
            Some(Predecessor { program: program.parse().ok()?, state: state.parse().ok()? })
        });
        numbers.ok_or_else(|| format!("{text}: expected two descriptors, as in 7:9"))
    }
}

impl Predecessor {
    /// Its state.
    pub fn state(self) -> io::Result<State> {
        State::read(&File::from(copy(self.state)?))
    }

    /// Executes the previous program again, in this process; returns only the error.
    pub fn execute(self, name: &OsStr, args: &[OsString]) -> io::Error {
        let program = format!("/proc/self/fd/{}", self.program);
        Command::new(program).arg0(name).args(args).exec()
    }
}

fn refuse(error: impl ToString) -> AdminError {
    AdminError::Upgrade(error.to_string())
}

impl ControlThread<'_> {
    /// See [`crate::server::Admin::upgrade_state`].
    pub(in crate::server) fn state_to_check(
        &self,
        operator: serde_json::Value,
    ) -> Result<File, AdminError> {
        self.may_leave()?;
        let area = Area::new(HEAD as u64).map_err(refuse)?;
        let state = self.state(operator, self.device.leave_files(), Vec::new());
        let written = state.write(&area).and_then(|()| area.file()?.try_clone());
        written.map_err(refuse)
    }

    /// Whether everything can be handed over now.
    fn may_leave(&self) -> Result<(), AdminError> {
        let tenants = self.server.tenants();
        let resized = tenants.changing().find(|member| member.resizing.is_some());
        if let Some(why) = self.device.refuses_to_leave() {
            return Err(refuse(format!("{why}: restart the server instead")));
        }
        if self.server.config.listen.contains(&Listen::Stdio) {
            return Err(refuse("the server ends with the connection on its standard input"));
        }
        if self.drain != Drain::No {
            return Err(refuse("the server is ending"));
        }
        if self.leaving.is_some() {
            return Err(refuse("the policy is being changed: try again when that is over"));
        }
        if let Some(member) = resized {
            let name = &member.tenant.name;
            return Err(refuse(format!("tenant {name} is being resized: try again later")));
        }
        // The next program needs a copy of each descriptor, since this one may have to go on.
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        if 2 * open + DESCRIPTORS > limit {
            return Err(refuse(format!(
                "{open} descriptors are open, the next program needs a copy of each and up to \
                 {DESCRIPTORS} of its own, and the limit is {limit}: raise LimitNOFILE=, or \
                 restart the server instead"
            )));
        }
        if !(self.closing.is_empty() && self.openings.is_empty()) {
            return Err(refuse("files of tenants are being opened or closed: try again later"));
        }
        Ok(())
    }

    /// See [`crate::server::Admin::is_ready_for_upgrade`].
    pub(in crate::server) fn pause_accepting(&mut self) -> bool {
        let now = Instant::now();
        if self.accepts_again.is_none() {
            self.listeners.iter().for_each(|listening| listening.task.abort());
            self.guests.values_mut().for_each(GuestSocket::stop);
            self.accepts_again = Some(now + ABANDONED);
        }
        let since = self.accepts_again.map(|at| at - ABANDONED);
        let is_late = since.is_some_and(|since| since + HANDSHAKES < now);
        is_late || self.server.handshakes.is_empty()
    }

    /// Accepts clients again; they waited meanwhile.
    pub(in crate::server) fn accept_again(&mut self) {
        if self.accepts_again.take().is_none() {
            return;
        }
        for listening in &mut self.listeners {
            if let Err(error) = listening.accept(&self.server) {
                tracing::error!(at = %listening.at, %error, "cannot accept clients any more");
            }
        }
        self.fit_guests_or_log();
    }

    /// Accepts clients again if the announced upgrade has not come in time.
    pub(in crate::server) fn accept_after_all(&mut self) {
        if self.accepts_again.is_some_and(|at| at < Instant::now()) {
            self.accept_again();
        }
    }

    /// See [`crate::server::Admin::upgrade`].
    pub(in crate::server) fn hand_over(
        &mut self,
        successor: &Successor,
        operator: serde_json::Value,
    ) -> AdminError {
        if let Err(error) = self.may_leave() {
            return error;
        }
        // `with_states` locks the sessions of guests, which then handle no message while the shards
        // stand still.
        let (guests, controllers) = (self.server.sessions.pause(), self.server.controllers.pause());
        let error = controllers.with_states(PATIENCE, |controllers| {
            guests.with_states(|guests| {
                self.stand_still()?;
                self.execute(successor, operator, guests, controllers())
            })
        });
        let error = error.unwrap_or_else(|| {
            Err(refuse(
                "a guest resets its controller or deletes a queue, and this waits for the device: \
                 try again later",
            ))
        });
        for shard in 0..self.server.shards.count() {
            self.server.shards.send(shard, Message::GoOn);
        }
        self.accept_again();
        match error {
            Err(error) => error,
            Ok(never) => match never {},
        }
    }

    /// Waits until no shard has an operation on a device or on its ring.
    fn stand_still(&self) -> Result<(), AdminError> {
        let (reply, replies) = channel();
        let shards = self.server.shards.count();
        for shard in 0..shards {
            self.server.shards.send(shard, Message::Halt(Halt::new(reply.clone())));
        }
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..shards {
            let left = deadline.saturating_duration_since(Instant::now());
            if replies.recv_timeout(left).is_err() {
                return Err(refuse(format!(
                    "the device has not answered its requests within {} ms: check the device, or \
                     try again",
                    PATIENCE.as_millis()
                )));
            }
        }
        // The kernel ends all threads before it executes a program, and cannot end uninterruptible
        // ones.
        while has_uninterruptible_thread() {
            if Instant::now() > deadline {
                return Err(refuse(
                    "a thread waits for a file system or a device that does not answer: check both, \
                     and try again",
                ));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Writes the state and executes the next program; returns only the error.
    fn execute(
        &self,
        successor: &Successor,
        operator: serde_json::Value,
        guests: Vec<LeftSession>,
        controllers: Vec<LeftController>,
    ) -> Result<Infallible, AdminError> {
        let area = Arc::new(Area::new(HEAD as u64).map_err(refuse)?);
        let device = self.device.leave(&area).map_err(refuse)?;
        let connections = self.pack(&area).map_err(refuse)?;
        let state = State { guests, controllers, ..self.state(operator, device, connections) };
        state.write(&area).map_err(refuse)?;
        let fds = state.descriptors();
        block_signals();
        let kept = keep_open(fds.iter().copied(), true);
        let result = kept.and_then(|()| successor.execute(area.file()?));
        // The failed attempt has set SIGPIPE to its default action, which ends the process. SAFETY:
        // ignoring a signal installs no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        unblock_signals();
        keep_open(fds, false).map_err(refuse)?;
        let program = successor.program.display();
        result.map_err(|error| refuse(format!("cannot execute {program}: {error}")))
    }

    fn pack(&self, area: &Arc<Area>) -> io::Result<Vec<Packed>> {
        let (reply, replies) = channel();
        for shard in 0..self.server.shards.count() {
            let pack = NbdMessage::Pack { area: area.clone(), reply: reply.clone(), shard };
            self.server.send_nbd(shard, pack);
        }
        drop(reply);
        let mut packed = Vec::new();
        for (_, of_shard) in replies {
            packed.extend(of_shard?);
        }
        Ok(packed)
    }

    fn state(
        &self,
        operator: serde_json::Value,
        device: crate::device::any::Left,
        connections: Vec<Packed>,
    ) -> State {
        let totals = self.server.shards.stats();
        let tenants = self.server.tenants();
        let waited: std::collections::HashMap<u16, u64> =
            self.fences.stats().map(|(number, stats)| (number, stats.waited)).collect();
        let tenant = |member: &crate::server::Member| {
            let number = member.number();
            let preparing = member.preparing.as_ref();
            let stats = &totals.tenants[usize::from(number)];
            let has_counted = stats.operations() > 0 || stats.starved_ns > 0;
            LeftTenant {
                name: member.tenant.name.clone(),
                base: member.tenant.base,
                size: member.tenant.size,
                zero: preparing.is_some_and(|wiping| wiping.size() > 0),
                number,
                caps: self.schedulers.caps(member.flow).map(|stats| LeftCaps::of(&stats)),
                write_back: self.write_back.left(number),
                waited: waited.get(&number).copied().unwrap_or(0),
                counts: has_counted.then(|| Counts(stats.clone())),
            }
        };
        let cells = (0u8..).zip(totals.matrix.iter()).flat_map(|(row, cells)| {
            (0u8..).zip(cells).map(move |(column, &ns)| (row, column, ns))
        });
        let group = |(name, caps): (String, Vec<Option<fairq_core::CapStats>>)| LeftGroup {
            name,
            caps: caps.iter().map(|caps| caps.as_ref().map(LeftCaps::of)).collect(),
        };
        State {
            program: env!("CARGO_PKG_VERSION").into(),
            operator,
            upgrades: self.upgrades,
            device,
            tenants: tenants.members().map(tenant).collect(),
            default: self.default.clone().map(|default| (default.name, default.is_named)),
            clock_origin_ns: Clock::default().origin_ns(),
            elapsed: self.started.elapsed(),
            doors: self.doors(),
            guest_directories: self.directories(AttachmentKind::VhostUser),
            controller_directories: self.directories(AttachmentKind::VfioUser),
            groups: self.schedulers.caps_of_groups().into_iter().map(group).collect(),
            connections,
            guests: Vec::new(),
            controllers: Vec::new(),
            shards: totals.shards.clone(),
            interference: cells.filter(|(_, _, ns)| *ns > 0).collect(),
            policies: self.policy_counts(),
            caller: self.caller.clone(),
        }
    }

    fn doors(&self) -> Vec<LeftDoor> {
        let clients = self.listeners.iter().map(|listening| listening.left(Role::Clients));
        let others = self.others.iter().map(|(role, listening)| listening.left(*role));
        clients.chain(others).chain(self.guests.values().map(GuestSocket::left)).collect()
    }
}

/// Whether a thread of this process waits uninterruptibly.
fn has_uninterruptible_thread() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return false };
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses and may itself contain parentheses.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
    })
}

/// Blocks the signals that the server handles, which would end a program that does not handle them
/// yet.
fn block_signals() {
    mask(libc::SIG_BLOCK);
}

/// Accepts the signals that were blocked, and new ones.
pub(in crate::server) fn unblock_signals() {
    mask(libc::SIG_UNBLOCK);
}

fn mask(how: libc::c_int) {
    // SAFETY: a set of signals is a plain value, which the calls fill and read; the mask is that
    // of this thread alone.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::pthread_sigmask(how, &signals, std::ptr::null_mut());
    }
}
