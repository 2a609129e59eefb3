//! The sockets at which guests attach their disks (vhost-user, vfio-user).
//!
//! **Problem.** A client of these protocols sends no tenant name, so the socket determines the
//! tenant. **Model.** A tenant without an identity has a socket `NAME.sock` in each directory of
//! `--listen vhost-user:DIR`, and a socket `NAME/cntrl` in each directory of `--listen
//! vfio-user:DIR`. Every tenant also has the sockets of its keys `vhost-user` and `vfio-user`. With
//! `--listen vfio-user-device:DIR` the only tenant has the socket `DIR/cntrl`. The sockets are
//! opened and closed with the tenant; the addition of a tenant fails if one of them cannot be
//! opened. A socket belongs to a flow, so a change of the policy does not affect it. If the tenant
//! is renamed, the file of the socket is renamed, too.
//!
//! **Rights.** Owner and mode of a socket follow the tenant's users (`listeners::bind_for`), and
//! the credentials of each peer are checked.
//!
//! **One guest at a time** is attached at a socket. The next guest waits in the socket's queue, and
//! so does a guest that connects before the tenant's range is prepared. A guest's session and
//! queues hold its [`Attachment`], with its part of the memory.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use fairq_core::FlowId;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::front::attach::{Attachment, Disk, Exhausted};
use crate::front::vfio_user::left_controller::LeftController;
use crate::front::vhost::left::LeftSession;
use crate::io::budget::Budget;
use crate::nbd::session::users::{User, Users};
use crate::observe::log_limit::STRANGERS;
use crate::server::ControlThread;
use crate::server::disks::Disks;
use crate::server::handover::{LeftDoor, Role};
use crate::server::listeners::{self, Listener, Stream};
use crate::server::{
    AdminError, AttachmentKind, AttachmentStatus, Listen, Member, Server, Tenant, calls,
};

/// The unit of a guest's requests, in bytes: a sector of virtio.
const SECTOR: u32 = 512;

/// The guest that is attached at a socket, if there is one.
#[derive(Default)]
struct Attached {
    guest: Mutex<Weak<Attachment>>,
    /// Notified when the guest has detached.
    freed: Notify,
}

impl Attached {
    fn guest(&self) -> Option<Arc<Attachment>> {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    fn set(&self, guest: &Arc<Attachment>) {
        *self.guest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(guest);
    }

    /// Waits until no guest is attached.
    async fn wait(&self) {
        // `Notify` keeps a notification that comes between the check and the wait.
        while self.guest().is_some() {
            self.freed.notified().await;
        }
    }
}

/// A socket of one tenant.
pub(super) struct GuestSocket {
    kind: AttachmentKind,
    /// Its tenant; `None` until the tenant has been added.
    flow: Option<FlowId>,
    path: PathBuf,
    socket: OwnedFd,
    attached: Arc<Attached>,
    /// The task that accepts guests, once the tenant's range is prepared.
    task: Option<AbortHandle>,
    /// Whether the socket's file is removed when the socket is closed.
    owns_name: bool,
    /// The directory that was made for this socket alone, if there is one; removed with the file.
    folder: Option<PathBuf>,
}

impl Drop for GuestSocket {
    fn drop(&mut self) {
        self.stop();
        if self.owns_name {
            let _ = std::fs::remove_file(&self.path);
            // The directory stays if it contains other files.
            self.folder.iter().for_each(|folder| drop(std::fs::remove_dir(folder)));
        }
    }
}

impl GuestSocket {
    /// Accepts no more guests.
    pub(super) fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    /// The state that the next program in this process takes over.
    pub(super) fn left(&self) -> LeftDoor {
        LeftDoor {
            at: Listen::Unix(self.path.clone()),
            role: match self.kind {
                AttachmentKind::VfioUser => Role::Controllers,
                AttachmentKind::VhostUser | AttachmentKind::Ublk => Role::Guests,
            },
            fd: self.socket.as_raw_fd(),
            is_inherited: false,
            name: Some(self.path.clone()),
        }
    }

    /// Makes the socket's file be removed when the socket is closed.
    pub(super) fn own(&mut self) {
        self.owns_name = true;
    }
}

/// A directory of sockets for guests, and their kind.
pub(super) fn directory(at: &Listen) -> Option<(AttachmentKind, &Path)> {
    match at {
        Listen::VhostUser(directory) => Some((AttachmentKind::VhostUser, directory)),
        Listen::VfioUser(directory) | Listen::VfioUserDevice(directory) => {
            Some((AttachmentKind::VfioUser, directory))
        }
        _ => None,
    }
}

/// The socket of a tenant in a directory of sockets.
fn in_directory(at: &Listen, name: &str) -> Option<(AttachmentKind, PathBuf)> {
    let (kind, directory) = directory(at)?;
    let path = match kind {
        _ if is_whole(at) => directory.join("cntrl"),
        // Clients of vfio-user expect this name, so each tenant has a directory of its own.
        AttachmentKind::VfioUser => directory.join(name).join("cntrl"),
        AttachmentKind::VhostUser | AttachmentKind::Ublk => directory.join(format!("{name}.sock")),
    };
    Some((kind, path))
}

/// Whether the address is that of a controller over the whole device.
fn is_whole(at: &Listen) -> bool {
    matches!(at, Listen::VfioUserDevice(_))
}

/// The directory that a socket has for itself, if it is the socket of a controller in a listed
/// directory.
fn own_folder<'a>(directories: &[Listen], path: &'a Path) -> Option<&'a Path> {
    let folder = path.parent()?;
    let is_in = |at: &Listen| matches!(at, Listen::VfioUser(directory) if Some(&**directory) == folder.parent());
    directories.iter().any(is_in).then_some(folder)
}

/// Creates a socket's own directory.
fn make_folder(folder: Option<&Path>) -> io::Result<()> {
    match folder {
        Some(folder) if !folder.is_dir() => std::fs::create_dir(folder),
        _ => Ok(()),
    }
}

/// The kinds and the paths of the sockets that a tenant has.
fn paths(directories: &[Listen], tenant: &Tenant) -> Vec<(AttachmentKind, PathBuf)> {
    let shared = directories.iter().filter(|_| tenant.settings.identity.is_none());
    let shared = shared.filter_map(|directory| in_directory(directory, &tenant.name));
    let vhost_user =
        tenant.settings.vhost_user.iter().map(|path| (AttachmentKind::VhostUser, path));
    let vfio_user = tenant.settings.vfio_user.iter().map(|path| (AttachmentKind::VfioUser, path));
    let own = vhost_user.chain(vfio_user).map(|(kind, path)| (kind, path.clone()));
    shared.chain(own).collect()
}

fn refusal(path: &Path, cause: impl ToString) -> AdminError {
    AdminError::Listen { at: Listen::Unix(path.into()), cause: cause.to_string() }
}

impl ControlThread<'_> {
    /// Opens a socket, possibly for a tenant that is not yet added.
    pub(super) fn open_guest(
        &mut self,
        kind: AttachmentKind,
        path: &Path,
        users: &Users,
    ) -> Result<(), AdminError> {
        if self.guests.contains_key(path) {
            let why = match self.server.config.listen.iter().any(is_whole) {
                true => {
                    "the controller at this socket has the whole device (vfio-user-device), so \
                         no other tenant can be added"
                }
                false => "it is the socket of another tenant: choose another path",
            };
            return Err(refusal(path, why));
        }
        let folder = own_folder(&self.guest_directories, path);
        make_folder(folder).map_err(|error| refusal(path, error))?;
        let listener = listeners::bind_for(path, users).map_err(|cause| refusal(path, cause))?;
        let socket = listener.copy().map_err(|error| refusal(path, error))?;
        // From here on the `GuestSocket` is responsible for the file.
        listener.leave_name();
        self.put_guest(kind, path, socket, true);
        Ok(())
    }

    fn put_guest(&mut self, kind: AttachmentKind, path: &Path, socket: OwnedFd, owns_name: bool) {
        let (flow, attached, task) = (None, Arc::default(), None);
        let folder = own_folder(&self.guest_directories, path).map(Path::to_owned);
        let (name, path) = (path.to_owned(), path.to_owned());
        let guest = GuestSocket { kind, flow, path, socket, attached, task, owns_name, folder };
        self.guests.insert(name, guest);
    }

    /// Takes over a socket that the previous program in this process has left.
    pub(super) fn take_guest(&mut self, kind: AttachmentKind, at: &Listen, socket: OwnedFd) {
        if let Listen::Unix(path) = at {
            self.put_guest(kind, path, socket, false);
        }
    }

    /// Opens the sockets of a tenant that is about to be added; after an error none is open.
    pub(super) fn open_guests_of(&mut self, tenant: &Tenant) -> Result<(), AdminError> {
        let paths = paths(&self.guest_directories, tenant);
        for (done, (kind, path)) in paths.iter().enumerate() {
            if let Err(error) = self.open_guest(*kind, path, &tenant.settings.users) {
                paths[..done].iter().for_each(|(_, path)| drop(self.guests.remove(path)));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Closes the sockets of a tenant that was removed, or could not be added.
    pub(super) fn close_guests_of(&mut self, tenant: &Tenant) {
        for (_, path) in paths(&self.guest_directories, tenant) {
            self.guests.remove(&path);
        }
    }

    /// Opens the missing sockets of a tenant, and accepts guests if the tenant's range is prepared.
    pub(super) fn fit_guests_of(&mut self, member: &Member) -> Result<(), AdminError> {
        let Member { tenant, flow, preparing, .. } = member;
        for (kind, path) in paths(&self.guest_directories, tenant) {
            let owner = self.guests.get(&path).map(|guest| guest.flow);
            if owner.is_none_or(|owner| owner.is_some_and(|owner| owner != *flow)) {
                self.open_guest(kind, &path, &tenant.settings.users)?;
            }
            let Some(guest) = self.guests.get_mut(&path) else { continue };
            guest.flow = Some(*flow);
            if guest.task.is_none() && preparing.is_none() && self.accepts_again.is_none() {
                guest.accept(&self.server, *flow).map_err(|error| refusal(&path, error))?;
            }
        }
        Ok(())
    }

    /// [`Self::fit_guests_of`] for the tenants of these flows; logs errors.
    pub(super) fn fit_guests_of_flows(&mut self, flows: &[FlowId]) {
        let (tenants, flows) = (self.server.tenants(), HashSet::<&FlowId>::from_iter(flows));
        for member in tenants.members().filter(|member| flows.contains(&member.flow)) {
            if let Err(error) = self.fit_guests_of(member) {
                tracing::error!("{error}");
            }
        }
    }

    /// [`Self::fit_guests_of`] for all tenants; closes all other sockets. Returns the first error.
    pub(super) fn fit_guests(&mut self) -> Result<(), AdminError> {
        let tenants = self.server.tenants();
        let has_own = tenants.members().any(|member| {
            member.tenant.settings.vhost_user.is_some()
                || member.tenant.settings.vfio_user.is_some()
        });
        if !has_own && self.guest_directories.is_empty() && self.guests.is_empty() {
            return Ok(());
        }
        let mut wanted: HashMap<PathBuf, FlowId> = HashMap::new();
        for member in tenants.members() {
            let paths = paths(&self.guest_directories, &member.tenant);
            for (_, path) in paths {
                wanted.entry(path).or_insert(member.flow);
            }
        }
        self.guests.retain(|path, guest| {
            wanted.get(path).is_some_and(|flow| guest.flow.is_none_or(|owner| owner == *flow))
        });
        let mut result = Ok(());
        for member in tenants.members() {
            let fitted = self.fit_guests_of(member);
            result = result.and(fitted);
        }
        result
    }

    /// Calls [`Self::fit_guests`], and logs the error.
    pub(super) fn fit_guests_or_log(&mut self) {
        if let Err(error) = self.fit_guests() {
            tracing::error!("{error}");
        }
    }

    /// Adds a directory to the list, and opens the sockets of all tenants in it.
    pub(super) fn open_directory(&mut self, at: &Listen) -> Result<(), AdminError> {
        let refuse = |cause: &str| AdminError::Listen { at: at.clone(), cause: cause.into() };
        if !directory(at).is_some_and(|(_, directory)| directory.is_dir()) {
            return Err(refuse("there is no such directory: create it or choose another one"));
        }
        if is_whole(at) && !self.server.config.listen.contains(at) {
            return Err(refuse(
                "a controller of the whole device can be opened only when the server starts",
            ));
        }
        if self.guest_directories.contains(at) {
            return Err(refuse("it is listed twice"));
        }
        self.guest_directories.push(at.clone());
        self.fit_guests().inspect_err(|_| {
            self.guest_directories.pop();
            self.fit_guests_or_log();
        })
    }

    /// Closes the sockets in a directory; guests that are attached stay attached.
    pub(super) fn close_directory(&mut self, at: &Listen) -> Result<(), AdminError> {
        let before = self.guest_directories.len();
        self.guest_directories.retain(|known| known != at);
        if self.guest_directories.len() == before {
            return Err(AdminError::NotListening(at.clone()));
        }
        self.fit_guests()
    }

    /// Renames the sockets that contain a tenant's name; guests that are attached stay attached.
    pub(super) fn rename_guests(&mut self, name: &str, new: &str) -> Result<(), AdminError> {
        let directories = self.guest_directories.iter();
        let pairs = directories.filter_map(|all| {
            let [old, new] = [in_directory(all, name)?.1, in_directory(all, new)?.1];
            self.guests.contains_key(&old).then_some((old, new))
        });
        let pairs: Vec<_> = pairs.collect();
        for (_, new) in &pairs {
            if self.guests.contains_key(new) {
                return Err(refusal(new, "it is the socket of another tenant"));
            }
            let folder = own_folder(&self.guest_directories, new);
            make_folder(folder).map_err(|error| refusal(new, error))?;
            listeners::make_way(new).map_err(|cause| refusal(new, cause))?;
        }
        for (old, new) in pairs {
            std::fs::rename(&old, &new).map_err(|error| refusal(&new, error))?;
            if let Some(mut guest) = self.guests.remove(&old) {
                guest.path.clone_from(&new);
                let folder = own_folder(&self.guest_directories, &new).map(Path::to_owned);
                let before = std::mem::replace(&mut guest.folder, folder);
                before.iter().for_each(|folder| drop(std::fs::remove_dir(folder)));
                self.guests.insert(new, guest);
            }
        }
        Ok(())
    }

    /// The directories of sockets of a kind.
    pub(super) fn directories(&self, kind: AttachmentKind) -> Vec<PathBuf> {
        let all = self.guest_directories.iter().filter_map(directory);
        all.filter(|(of, _)| *of == kind).map(|(_, directory)| directory.into()).collect()
    }

    /// The sockets of all tenants, by the tenants' numbers.
    pub(super) fn attachments(&self) -> HashMap<u16, Vec<AttachmentStatus>> {
        let status = |guest: &GuestSocket| {
            let attached = guest.attached.guest();
            AttachmentStatus {
                kind: guest.kind,
                path: guest.path.clone(),
                is_connected: attached.is_some(),
                queues: attached.map_or(0, |attached| attached.queues()),
                error: None,
            }
        };
        let with_tenant = self.guests.values().filter_map(|guest| Some((guest.flow?, guest)));
        let mut all: HashMap<u16, Vec<AttachmentStatus>> = HashMap::new();
        for (flow, guest) in with_tenant {
            all.entry(flow.slot() as u16).or_default().push(status(guest));
        }
        all.values_mut().for_each(|list| list.sort_by(|a, b| a.path.cmp(&b.path)));
        for (tenant, disk) in self.disks.iter().flat_map(Disks::status) {
            all.entry(tenant).or_default().push(disk);
        }
        all
    }
}

impl ControlThread<'_> {
    /// Takes over a guest of the previous program; its socket accepts the next guest after it.
    pub(super) fn resume_guest(
        &mut self,
        name: &str,
        guest: &LeftSession,
        open: impl FnMut(RawFd) -> io::Result<OwnedFd>,
    ) -> io::Result<()> {
        let (disk, attachment) = self.disk_again(AttachmentKind::VhostUser, name)?;
        let (shards, send) = (self.server.shards.count(), self.server.to_guests.clone());
        self.server.sessions.resume(guest, open, disk, shards, send, attachment).map(drop)
    }

    /// [`Self::resume_guest`] for a controller.
    pub(super) fn resume_controller(
        &mut self,
        name: &str,
        controller: LeftController,
        open: impl FnMut(RawFd) -> io::Result<OwnedFd>,
    ) -> io::Result<()> {
        let (disk, attachment) = self.disk_again(AttachmentKind::VfioUser, name)?;
        let (shards, send) = (self.server.shards.count(), self.server.to_queues.clone());
        self.server.controllers.resume(controller, open, disk, shards, send, attachment).map(drop)
    }

    /// The disk of a guest of the previous program, and the guest's place at one of its sockets.
    fn disk_again(
        &self,
        wanted: AttachmentKind,
        name: &str,
    ) -> io::Result<(Disk, Arc<Attachment>)> {
        let tenants = self.server.tenants();
        let member = tenants.find(name);
        let member = member.ok_or_else(|| io::Error::other("its tenant was removed"))?;
        // The sockets of a tenant are equivalent, so any free one is taken for the guest.
        let paths = paths(&self.guest_directories, &member.tenant);
        let paths = paths.iter().filter(|(kind, _)| *kind == wanted);
        let mut sockets = paths.filter_map(|(_, path)| self.guests.get(path));
        let free = sockets.find(|socket| socket.attached.guest().is_none());
        let attached = free.map(|socket| socket.attached.clone()).unwrap_or_default();
        let attachment = self.server.attachment(member, &attached)?;
        Ok((self.server.disk(member), attachment))
    }
}

impl GuestSocket {
    fn accept(&mut self, server: &Arc<Server>, flow: FlowId) -> io::Result<()> {
        let listener = Listener::of(self.socket.try_clone()?)?;
        let (server, attached) = (server.clone(), self.attached.clone());
        let task = tokio::spawn(accept(server, self.kind, flow, listener, attached));
        self.task = Some(task.abort_handle());
        Ok(())
    }
}

/// Accepts guests of a tenant, one after the other, until the task is aborted.
async fn accept(
    server: Arc<Server>,
    kind: AttachmentKind,
    flow: FlowId,
    listener: Listener,
    attached: Arc<Attached>,
) {
    loop {
        attached.wait().await;
        match listener.accept(server.config.timeouts.peer).await {
            Ok((Stream::Unix(stream), _)) => {
                if let Err(error) = server.attach(kind, flow, stream, &attached)
                    && STRANGERS.allows()
                {
                    tracing::warn!(%error, "refused a guest");
                }
            }
            Ok(_) => unreachable!("a socket for guests is a Unix socket"),
            Err(error) => calls::make_room(&error, &server.handshakes).await,
        }
    }
}

/// The memory that is reserved for a guest until its last request has ended.
struct GuestPlace {
    budget: Arc<Budget>,
    number: u16,
    attached: Arc<Attached>,
}

impl Drop for GuestPlace {
    fn drop(&mut self) {
        self.budget.give(self.number, Budget::CONNECTION);
        self.attached.freed.notify_one();
    }
}

impl Server {
    /// Starts the thread of a guest.
    fn attach(
        &self,
        kind: AttachmentKind,
        flow: FlowId,
        stream: UnixStream,
        attached: &Arc<Attached>,
    ) -> io::Result<()> {
        let tenants = self.tenants();
        let member = tenants.members().find(|member| member.flow == flow);
        let member = member.ok_or_else(|| io::Error::other("its tenant was removed"))?;
        let Member { tenant, .. } = member;
        let user = User::of_peer(&stream)?;
        if !tenant.settings.users.is_empty() && !tenant.settings.users.include(&user) {
            let text = format!("user {} may not open tenant {}", user.uid, tenant.name);
            return Err(io::Error::other(text));
        }
        let attachment = self.attachment(member, attached)?;
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        let (shards, disk) = (self.shards.count(), self.disk(member));
        let thread = if kind == AttachmentKind::VfioUser {
            self.controllers.spawn(stream, disk, shards, self.to_queues.clone(), attachment)
        } else {
            self.sessions.spawn(stream, disk, shards, self.to_guests.clone(), attachment)
        };
        thread.map(drop)
    }

    /// The resources of a guest that is attached at a socket.
    fn attachment(&self, member: &Member, attached: &Arc<Attached>) -> io::Result<Arc<Attachment>> {
        let number = member.number();
        if !self.budget.take(number, Budget::CONNECTION) {
            return Err(io::Error::other(Exhausted::Memory));
        }
        let place = GuestPlace { budget: self.budget.clone(), number, attached: attached.clone() };
        let attachment = Attachment::with_guard(self.places.clone(), Box::new(place));
        attached.set(&attachment);
        Ok(attachment)
    }

    fn disk(&self, member: &Member) -> Disk {
        Disk {
            name: member.tenant.name.clone(),
            volume: member.volume(SECTOR),
            block: self.block,
            preferred: self.preferred,
            whole: self.whole,
        }
    }
}
