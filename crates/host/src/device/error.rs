//! Why a device could not be opened: what is wrong with which file, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Memory for a RAM or paced device.
    #[error("cannot map {size} bytes of memory for the device: {source}; choose a smaller size")]
    Memory {
        /// Bytes that were asked for.
        size: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file device without files, or with more than can be numbered.
    #[error("a file device has 1 to 65536 files, not {0}")]
    FileCount(usize),
    /// As many files are open as there can be.
    #[error(
        "{0} files are open, and there is no room for more: remove tenants with files of their own \
         first"
    )]
    LaterFiles(usize),
    /// No more stores than that.
    #[error(
        "its storage {store} has no scheduler yet, and there is none left ({most} in all): name a \
         store that it shares with other tenants (store = NAME), or restart the server"
    )]
    Stores {
        /// How many there are.
        most: usize,
        /// The store.
        store: String,
    },
    /// A store's threads.
    #[error("cannot start a thread for the store: {source}")]
    Thread {
        /// What the kernel said.
        source: io::Error,
    },
    /// A device that has no files.
    #[error(
        "the device ({0}) has no files, so a tenant cannot have one of its own: give it a size, \
         and a part of the device"
    )]
    NoFiles(String),
    /// The file is not there and was not to be created.
    #[error(
        "{}: there is no such file: add create{} to have it made, sparse",
        path.display(),
        if *has_size { "" } else { " and size=10G, say," }
    )]
    Missing {
        /// Which file.
        path: PathBuf,
        /// Whether its size is given.
        has_size: bool,
    },
    /// The file is not there and neither is its directory.
    #[error("{}: cannot be created, as its directory does not exist; create the \
     directory", path.display())]
    NoDirectory {
        /// Which file.
        path: PathBuf,
    },
    /// The caller may not read and write the file.
    #[error("{}: not allowed to read and write it ({source}); change its owner or mode, or run as \
     another user", path.display())]
    Forbidden {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A block device that somebody uses.
    #[error("{}: the block device is mounted or otherwise in use; unmount it, or serve \
     another", path.display())]
    Busy {
        /// Which block device.
        path: PathBuf,
    },
    /// A file that is served already.
    #[error("{}: another process, or this one, has it locked for serving; stop that one (which may \
     take a moment: writes of a server that was killed have to end first), or serve another file", path.display())]
    Locked {
        /// Which file.
        path: PathBuf,
    },
    /// Not a thing that stores data.
    #[error("{}: neither a regular file nor a block device: name one", path.display())]
    NotStorage {
        /// Which file.
        path: PathBuf,
    },
    /// A file without room.
    #[error("{}: is empty; give it a size, or extend it with truncate -s", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
    /// A file that exists with another size than asked for.
    #[error("{}: has {actual} bytes, not {wanted}; leave the size out to take it as it is, or \
     resize it first", path.display())]
    OtherSize {
        /// Which file.
        path: PathBuf,
        /// Its size in bytes.
        actual: u64,
        /// The size asked for.
        wanted: u64,
    },
    /// Direct I/O was demanded.
    #[error("{}: O_DIRECT was demanded but {why}; leave the choice to the server or use another \
     file system", path.display())]
    NoDirect {
        /// Which file.
        path: PathBuf,
        /// What stands against it.
        why: String,
    },
    /// A software controller with an option that makes no sense.
    #[error("nvme-soft: {0}")]
    NvmeOption(String),
    /// A software controller that could not be set up.
    #[error("nvme-soft: cannot be set up: {source}")]
    Nvme {
        /// What went wrong.
        source: io::Error,
    },
    /// Anything else that the kernel said while the file was being opened.
    #[error("{}: cannot {what}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl DeviceError {
    /// Whether what was asked for can never be had as things are; otherwise another try may help.
    pub fn is_refusal(&self) -> bool {
        use DeviceError::{
            Empty, FileCount, Missing, NoDirect, NoDirectory, NoFiles, NotStorage, NvmeOption,
            OtherSize,
        };
        matches!(
            self,
            FileCount(_)
                | NoFiles(_)
                | Missing { .. }
                | NoDirectory { .. }
                | NotStorage { .. }
                | Empty { .. }
                | OtherSize { .. }
                | NoDirect { .. }
                | NvmeOption(_)
        )
    }
}
