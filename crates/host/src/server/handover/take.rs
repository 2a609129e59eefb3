//! The incoming side of an upgrade: a program takes over the state of the previous one.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::net::UnixStream;

use crate::device::write_back::WriteBack;
use crate::io::area::SpanReader;
use crate::io::budget::Budget;
use crate::nbd::serve::conn::{Connect, Pass};
use crate::nbd::serve::conn::{Packed, Rest};
use crate::nbd::serve::front::Message as NbdMessage;
use crate::nbd::session::place::{Connections, Place};
use crate::observe::interference::{Matrix, empty_matrix};
use crate::observe::stats::Counted;
use crate::server::ControlThread;
use crate::server::guests::GuestSocket;
use crate::server::handover::{Before, Counts, LeftDoor, LeftTenant, Role, State, take_copy};
use crate::server::listeners::Listener;
use crate::server::{AttachmentKind, Listen, Member, ServerError, TenantList, calls, system};
use crate::shard::fence::Fences;
use crate::shard::pool::Shards;
use crate::shard::volume::Volume;
use crate::shard::{Meeting, Message};

impl State {
    /// The tenants of the state, each with its current member.
    fn with_members<'a>(
        &'a self,
        tenants: &'a TenantList,
    ) -> impl Iterator<Item = (&'a LeftTenant, &'a Member)> {
        self.tenants.iter().filter_map(|left| Some((left, tenants.find(&left.name)?)))
    }

    /// The time at which the first program started the server.
    pub(in crate::server) fn started(&self) -> Instant {
        Instant::now().checked_sub(self.elapsed).unwrap_or_else(Instant::now)
    }

    /// Restores the write-back and fence state of tenants' data; called before any shard runs.
    pub(in crate::server) fn resume_data(
        &self,
        tenants: &TenantList,
        write_back: &WriteBack,
        fences: &Fences,
    ) {
        for (left, member) in self.with_members(tenants) {
            write_back.go_on(member.number(), left.write_back);
            fences.count_before(member.number(), left.waited);
        }
    }

    /// Restores the counters.
    fn resume_counts<D: crate::device::Device, F: crate::shard::Front + Send>(
        &mut self,
        tenants: &TenantList,
        shards: &Shards<D, F>,
    ) {
        let mut left = self.with_members(tenants);
        let are_same = left.all(|(left, member)| left.number == member.number());
        drop(left);
        for shard in 0..shards.count() {
            let counters = self.shards.get(shard).copied().unwrap_or_default();
            let mut counted = Counted { counters, ..Counted::default() };
            if shard == 0 {
                let stats = |left: &mut LeftTenant| {
                    let Counts(stats) = left.counts.take()?;
                    Some((tenants.find(&left.name)?.number(), Arc::unwrap_or_clone(stats)))
                };
                counted.tenants = self.tenants.iter_mut().filter_map(stats).collect();
                // The matrix is indexed by the tenants' numbers.
                counted.matrix = are_same.then(|| self.matrix());
            }
            shards.send(shard, Message::Count(Box::new(counted)));
        }
    }

    fn matrix(&self) -> Matrix {
        let mut matrix = empty_matrix();
        for &(row, column, ns) in &self.interference {
            let cell = matrix.get_mut(usize::from(row));
            if let Some(cell) = cell.and_then(|row| row.get_mut(usize::from(column))) {
                *cell = ns;
            }
        }
        matrix
    }
}

impl ControlThread<'_> {
    /// Restores the amounts taken from caps, and the counters.
    pub(in crate::server) fn resume(&mut self, before: &mut Before) {
        let (state, tenants) = (&mut before.state, self.server.tenants());
        for (left, member) in state.with_members(&tenants) {
            if let Some(caps) = &left.caps {
                self.schedulers.resume_caps(member.flow, |now| caps.stats(now));
            }
        }
        for group in &state.groups {
            for (store, caps) in group.caps.iter().enumerate() {
                if let Some(caps) = caps {
                    self.schedulers.resume_group(&group.name, store, |now| caps.stats(now));
                }
            }
        }
        state.resume_counts(&tenants, &self.server.shards);
        (self.started, self.upgrades) = (state.started(), state.upgrades);
        self.counted = state.policies;
    }

    /// Listens on the sockets that the previous program has left. Their files are removed with them
    /// only after [`Self::take_over`], because the previous program may have to go on.
    pub(in crate::server) fn open_left(
        &mut self,
        before: &mut Before,
        calls: &calls::Calls,
    ) -> Result<(), ServerError> {
        let (guests, controllers) =
            (&before.state.guest_directories, &before.state.controller_directories);
        let listen_at = match self.server.whole {
            Some(_) => Listen::VfioUserDevice,
            None => Listen::VfioUser,
        };
        let controllers = controllers.iter().cloned().map(listen_at);
        self.guest_directories =
            guests.iter().cloned().map(Listen::VhostUser).chain(controllers).collect();
        for LeftDoor { at, role, fd, is_inherited, .. } in before.state.doors.clone() {
            let socket = take_copy(&mut before.copies, fd);
            let kind = match role {
                Role::Guests => Some(AttachmentKind::VhostUser),
                Role::Controllers => Some(AttachmentKind::VfioUser),
                Role::Clients | Role::Http | Role::Control => None,
            };
            if let Some(kind) = kind {
                let socket = socket.map_err(system("cannot take over a socket for guests"))?;
                self.take_guest(kind, &at, socket);
                continue;
            }
            let listener = socket.and_then(Listener::of);
            let opened = listener
                .and_then(|listener| self.open_door(role, &at, is_inherited, listener, calls));
            opened.map_err(system("cannot take over a listening socket"))?;
        }
        Ok(())
    }

    /// Takes over the connections; this program serves from here on.
    pub(in crate::server) fn take_over(&mut self, mut before: Before, calls: &calls::Calls) {
        before.commit();
        for door in &before.state.doors {
            let Some(path) = &door.name else { continue };
            if matches!(door.role, Role::Guests | Role::Controllers) {
                self.guests.get_mut(path).into_iter().for_each(GuestSocket::own);
                continue;
            }
            let others = self.others.iter_mut().map(|(_, listening)| listening);
            let mut all = self.listeners.iter_mut().chain(others);
            if let Some(listening) = all.find(|listening| listening.at == door.at) {
                listening.own(path);
            }
        }
        self.take_connections(&mut before);
        self.take_guests(&mut before);
        self.fit_guests_or_log();
        if let Some(caller) = before.state.caller.take()
            && let Ok(fd) = take_copy(&mut before.copies, caller.fd)
            && let Ok(stream) = UnixStream::from_std(fd.into())
        {
            let timeouts = self.server.config.timeouts;
            tokio::spawn(calls::go_on(stream, caller, calls.clone(), timeouts));
        }
    }

    fn take_connections(&mut self, before: &mut Before) {
        let gate = Arc::new(Meeting::new(self.server.shards.count()));
        let mut members = self.server.tenants().to_members();
        let tenants = self.server.tenants();
        let left = before.state.tenants.iter();
        let places: HashMap<u16, usize> =
            left.filter_map(|left| Some((left.number, tenants.place_of(&left.name)?))).collect();
        let (mut taken, mut lost) = (0, 0);
        for packed in std::mem::take(&mut before.state.connections) {
            // A connection whose tenant is not there ends: the tenant was removed.
            let fd = take_copy(&mut before.copies, packed.fd);
            let member = places.get(&packed.tenant);
            let member = member.map(|&place| Arc::make_mut(&mut members[place]));
            match (fd, member) {
                (Ok(fd), Some(member)) => {
                    match self.take_connection(before, fd, packed, member, &gate) {
                        true => taken += 1,
                        false => lost += 1,
                    }
                }
                _ => lost += 1,
            }
        }
        let shards = self.server.shards.count();
        self.server.send_nbd_all(|| NbdMessage::Arrive { gate: gate.clone(), shards });
        if let Err(error) = self.put_members(members) {
            tracing::error!(%error, "cannot list the tenants");
        }
        tracing::info!(connections = taken, lost, "this program has taken over from the last one");
    }

    /// Takes over the guests, before their sockets accept others.
    fn take_guests(&mut self, before: &mut Before) {
        let left = before.state.tenants.iter();
        let names: HashMap<u16, String> =
            left.map(|left| (left.number, left.name.clone())).collect();
        let (mut taken, mut lost) = (0, 0);
        let mut count = |name: &str, resumed: io::Result<()>| match resumed {
            Ok(()) => taken += 1,
            Err(error) => {
                tracing::error!(tenant = name, %error, "cannot take over a guest");
                lost += 1;
            }
        };
        let name_of = |tenant| names.get(&tenant).cloned().unwrap_or_default();
        for guest in std::mem::take(&mut before.state.guests) {
            let (name, open) = (name_of(guest.tenant), |fd| take_copy(&mut before.copies, fd));
            count(&name, self.resume_guest(&name, &guest, open));
        }
        for controller in std::mem::take(&mut before.state.controllers) {
            let (name, open) = (name_of(controller.tenant), |fd| take_copy(&mut before.copies, fd));
            count(&name, self.resume_controller(&name, controller, open));
        }
        if taken + lost > 0 {
            tracing::info!(guests = taken, lost, "this program has taken over guests");
        }
    }

    fn take_connection(
        &self,
        before: &Before,
        fd: OwnedFd,
        packed: Packed,
        member: &mut Member,
        gate: &Arc<Meeting>,
    ) -> bool {
        let Packed { negotiated, input, output, has_ended, .. } = packed;
        let reader = |span| SpanReader::new(before.area.clone(), span);
        let Ok(output) = reader(output).rest() else { return false };
        let counted = counted_for(member, negotiated.size).clone();
        let Some((shard, place)) = self.server.place_again(member, counted) else { return false };
        let rest = Rest { input: reader(input), output: output.into(), has_ended };
        let volume = member.volume(negotiated.blocks.min);
        let volume = Volume { size: negotiated.size.min(volume.size), ..volume };
        // Only other clients' connections wait for the gate, so the requests of ended clients reach
        // the fence first, and later writes to the same bytes wait for them.
        let gate = (!has_ended).then(|| gate.clone());
        let place = Some(place.handed_over());
        let pass = Pass { place, gate, rest: Some(rest), ..Pass::default() };
        let connect = Connect { fd, tls: None, negotiated, volume, pass };
        self.server.send_nbd(shard, NbdMessage::Connect(Box::new(connect)));
        true
    }
}

/// The counter of connections whose clients have seen this size.
fn counted_for(member: &mut Member, size: u64) -> &Arc<Connections> {
    if size == member.tenant.size {
        return &member.connections;
    }
    let place = member.outdated.iter().position(|(seen, _)| *seen == size);
    let place = place.unwrap_or_else(|| {
        member.outdated.push((size, member.connections.anew()));
        member.outdated.len() - 1
    });
    &member.outdated[place].1
}

impl crate::server::Server {
    /// A place for a connection that had one, whatever the tenant's bound is now.
    fn place_again(&self, member: &Member, counted: Arc<Connections>) -> Option<(usize, Place)> {
        let number = member.number();
        let load = |shard: usize| self.counts[shard].load(Ordering::Relaxed);
        let crowd = |shard: &usize| (counted.count_on(*shard), load(*shard));
        let with_room = |shard: &usize| load(*shard) < self.config.connections;
        let shard = (0..self.counts.len()).filter(with_room).min_by_key(crowd)?;
        if !self.budget.take(number, Budget::CONNECTION) {
            tracing::error!(tenant = member.tenant.name, "no memory is left for a connection");
            return None;
        }
        self.counts[shard].fetch_add(1, Ordering::Relaxed);
        let on_shard = self.counts[shard].clone();
        Some((shard, Place::new(counted, shard, self.budget.clone(), number, on_shard)))
    }
}
