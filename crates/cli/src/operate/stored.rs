//! The service manager's store of descriptors. It holds the sockets on which the server listens.
//! After a crash the service manager restarts the server, and clients that connect meanwhile wait
//! and are not refused. The sockets of a socket unit always belong to the service manager.
//!
//! A server that ends normally removes its sockets from the store, because the next server opens
//! the addresses of its own configuration.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use fairq_host::server::{Admin, Listen, STORED};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sd_notify::NotifyState;

/// Longest name of an address, in bytes; systemd allows 255 for the whole name.
const NAME: usize = 200;

/// The names of the sockets in the store.
#[derive(Default)]
pub(super) struct Stored(BTreeSet<String>);

impl Stored {
    /// Puts new sockets into the store.
    pub(super) fn put(&mut self, admin: &dyn Admin) {
        for (at, socket) in admin.sockets() {
            let name = name(&at);
            if self.0.contains(&name) {
                continue;
            }
            if let Err(error) = store(&name, socket) {
                tracing::debug!(%error, "cannot store a socket in the service manager");
            }
            self.0.insert(name);
        }
    }

    /// Removes from the store the sockets of addresses at which the server no longer listens.
    pub(super) fn keep(&mut self, listening: &[Listen]) {
        let kept: BTreeSet<String> = listening.iter().map(name).collect();
        for gone in self.0.difference(&kept) {
            let name = format!("FDNAME={gone}");
            super::notify(&[NotifyState::Custom("FDSTOREREMOVE=1"), NotifyState::Custom(&name)]);
        }
        self.0.retain(|name| kept.contains(name));
    }
}

/// Puts a descriptor into the store, if there is a service manager.
fn store(name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    let Some(manager) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match manager.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&manager)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let text = format!("FDSTORE=1\nFDNAME={name}");
    sendmsg(&socket, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::empty())?;
    Ok(())
}

/// The name of an address in the store; a colon would end it.
fn name(at: &Listen) -> String {
    let name: String = at.to_string().replace(':', "-").chars().take(NAME).collect();
    format!("{STORED}{name}")
}
