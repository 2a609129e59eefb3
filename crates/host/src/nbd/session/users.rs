//! Users of this machine: the peer of a Unix socket, and users by name.
//!
//! The kernel records the user who connected ([`User::of_peer`]), so a client cannot claim another
//! one. Groups are those of the client's process when it connected, supplementary ones included.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The most supplementary groups of a process (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;
/// The largest entry of the database of users, in bytes.
const ENTRY_MAX: usize = 1 << 20;

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
    /// The user who connected a Unix socket, with its groups at that time.
    pub fn of_peer(socket: impl AsFd) -> io::Result<User> {
        let socket = socket.as_fd();
        let peer = rustix::net::sockopt::socket_peercred(socket)?;
        let mut gids = vec![0_u32; 64];
        let mut length = size_of_val(&gids[..]) as libc::socklen_t;
        loop {
            // SAFETY: the kernel writes at most `length` bytes to `gids`, which has that many, and
            // the length to `length`; any bytes are numbers.
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
                // The kernel answers a buffer that is too small with the length that it needs.
                _ if count > gids.len() && count <= GROUPS_MAX => gids.resize(count, 0),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        // `SO_PEERGROUPS` gives the supplementary groups only.
        gids.push(peer.gid.as_raw());
        Ok(User { uid: peer.uid.as_raw(), gids })
    }
}

/// The number of the user of this name; `None` if there is none. May wait for a directory service.
pub fn uid_of(name: &str) -> io::Result<Option<u32>> {
    look_up(name, |name, buffer| {
        let (mut entry, mut found) = (MaybeUninit::<libc::passwd>::uninit(), std::ptr::null_mut());
        // SAFETY: name is a C string, entry and buffer are written to within their sizes, and
        // found points to entry or to nothing.
        let result = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &mut found,
            )
        };
        // SAFETY: a result that was found has been written to entry.
        (result, (!found.is_null()).then(|| unsafe { entry.assume_init().pw_uid }))
    })
}

/// The number of the group of this name; `None` if there is none. May wait for a directory service.
pub fn gid_of(name: &str) -> io::Result<Option<u32>> {
    look_up(name, |name, buffer| {
        let (mut entry, mut found) = (MaybeUninit::<libc::group>::uninit(), std::ptr::null_mut());
        // SAFETY: as for users.
        let result = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &mut found,
            )
        };
        // SAFETY: as for users.
        (result, (!found.is_null()).then(|| unsafe { entry.assume_init().gr_gid }))
    })
}

/// Calls `query` with a buffer that is large enough for the entry.
fn look_up(
    name: &str,
    ask: impl Fn(&CStr, &mut [u8]) -> (i32, Option<u32>),
) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    let mut buffer = vec![0; 4096];
    loop {
        match ask(&name, &mut buffer) {
            (0, number) => return Ok(number),
            (libc::ERANGE, _) if buffer.len() < ENTRY_MAX => buffer.resize(2 * buffer.len(), 0),
            // Some databases report these where no entry is found.
            (libc::ENOENT | libc::ESRCH, _) => return Ok(None),
            (error, _) => return Err(io::Error::from_raw_os_error(error)),
        }
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
