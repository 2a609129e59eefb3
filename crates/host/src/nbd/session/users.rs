//! Users of this machine: the peer of a Unix socket, and users by name.
//!
//! The kernel records the user who connected ([`User::of_peer`]), so a client cannot claim to be
//! another one. The groups are those of the client's process when it connected, including
//! supplementary ones.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::unistd;

/// The largest number of supplementary groups of a process (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// A user, by the kernel's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The numbers of its process's groups.
    pub gids: Vec<u32>,
}

/// A set of users: the named ones, and the members of the named groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Users.
    pub uids: Vec<u32>,
    /// Groups.
    pub gids: Vec<u32>,
}

impl Users {
    /// Whether no user and no group is named.
    pub fn is_empty(&self) -> bool {
        self.uids.is_empty() && self.gids.is_empty()
    }

    /// Whether `user` is in the set.
    pub fn include(&self, user: &User) -> bool {
        self.uids.contains(&user.uid) || user.gids.iter().any(|gid| self.gids.contains(gid))
    }
}

impl User {
    /// The user who connected to a Unix socket, with its groups at that time.
    pub fn of_peer(socket: impl AsFd) -> io::Result<User> {
        let socket = socket.as_fd();
        let peer = rustix::net::sockopt::socket_peercred(socket)?;
        let mut gids = vec![0_u32; 64];
        let mut length = size_of_val(&gids[..]) as libc::socklen_t;
        loop {
            // SAFETY: the kernel writes at most `length` bytes to `gids`, which has that many, and
            // the used length to `length`; any bytes are valid numbers.
            let result = unsafe {
                libc::getsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_PEERGROUPS,
                    gids.as_mut_ptr().cast(),
                    &mut length,
                )
            };
            let count = length as usize / size_of::<u32>();
            match result {
                0 => break gids.truncate(count),
                // If the buffer is too small, the kernel returns the required length.
                _ if count > gids.len() && count <= GROUPS_MAX => gids.resize(count, 0),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        // `SO_PEERGROUPS` returns only the supplementary groups.
        gids.push(peer.gid.as_raw());
        Ok(User { uid: peer.uid.as_raw(), gids })
    }
}

/// The number of the user with this name; `None` if there is none. May block on a directory
/// service.
pub fn uid_of(name: &str) -> io::Result<Option<u32>> {
    found(unistd::User::from_name(name)).map(|user| user.map(|user| user.uid.as_raw()))
}

/// The number of the group with this name; `None` if there is none. May block on a directory
/// service.
pub fn gid_of(name: &str) -> io::Result<Option<u32>> {
    found(unistd::Group::from_name(name)).map(|group| group.map(|group| group.gid.as_raw()))
}

/// Some databases report an error where no entry is found.
fn found<T>(entry: nix::Result<Option<T>>) -> io::Result<Option<T>> {
    match entry {
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        entry => Ok(entry?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_kernel_says_who_connected() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let user = User::of_peer(&ours).unwrap();
        assert_eq!(user.uid, rustix::process::geteuid().as_raw());
        assert!(user.gids.contains(&rustix::process::getegid().as_raw()));
        for group in rustix::process::getgroups().unwrap() {
            assert!(user.gids.contains(&group.as_raw()));
        }
    }

    #[test]
    fn names_are_looked_up() {
        assert_eq!((uid_of("root").unwrap(), gid_of("root").unwrap()), (Some(0), Some(0)));
        assert_eq!(
            (uid_of("no such user").unwrap(), gid_of("no such group").unwrap()),
            (None, None)
        );
    }

    #[test]
    fn a_user_is_included_by_number_or_by_group() {
        let users = Users { uids: vec![7], gids: vec![100] };
        let user = |uid, gids: &[u32]| User { uid, gids: gids.to_vec() };
        assert!(users.include(&user(7, &[])) && users.include(&user(8, &[1, 100])));
        assert!(!users.include(&user(8, &[7])) && !users.include(&user(100, &[101])));
        assert!(!Users::default().include(&user(0, &[0])) && Users::default().is_empty());
    }
}
