//! The reasons why a device could not be opened; each message gives the file, the fault and the
//! remedy.

use std::io;
use std::path::PathBuf;

/// The reason why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The memory for a RAM or paced device cannot be mapped.
    #[error("cannot map {size} bytes of memory for the device: {source}; choose a smaller size")]
    Memory {
        /// Bytes requested.
        size: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file device has no files, or more than can be numbered.
    #[error("a file device has 1 to 65536 files, not {0}")]
    FileCount(usize),
    /// The largest number of files is already open.
    #[error(
        "{0} files are open, and there is no room for more: remove tenants with files of their own \
         first"
    )]
    LaterFiles(usize),
    /// The largest number of stores is already in use.
    #[error(
        "its storage {store} needs a scheduler of its own, and all {most} are in use: name a \
         store that it shares with other tenants (store = NAME), or restart the server"
    )]
    Stores {
        /// The largest number of stores.
        most: usize,
        /// The store.
        store: String,
    },
    /// A store's thread cannot be started.
    #[error("cannot start a thread for the store: {source}")]
    Thread {
        /// The kernel's error.
        source: io::Error,
    },
    /// The device has no files.
    #[error(
        "the device ({0}) has no files, so a tenant cannot have one of its own: give it a size, \
         and a part of the device"
    )]
    NoFiles(String),
    /// The file does not exist, and the caller did not permit its creation.
    #[error(
        "{}: there is no such file: add create{} to create it as a sparse file",
        path.display(),
        if *has_size { "" } else { " and, for example, size=10G" }
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// Whether its size is given.
        has_size: bool,
    },
    /// Neither the file nor its directory exists.
    #[error("{}: cannot be created, as its directory does not exist; create the \
     directory", path.display())]
    NoDirectory {
        /// The file.
        path: PathBuf,
    },
    /// The caller may not read and write the file.
    #[error("{}: not allowed to read and write it ({source}); change its owner or mode, or run as \
     another user", path.display())]
    Forbidden {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The block device is in use.
    #[error("{}: the block device is mounted or otherwise in use; unmount it, or serve \
     another", path.display())]
    Busy {
        /// The block device.
        path: PathBuf,
    },
    /// The file is already being served.
    #[error("{}: another process, or this one, has it locked for serving; stop that server (which \
     may take a moment: writes of a killed server have to end first), or serve another file", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The path is neither a regular file nor a block device.
    #[error("{}: neither a regular file nor a block device: name one", path.display())]
    NotStorage {
        /// The file.
        path: PathBuf,
    },
    /// The file has a size of 0.
    #[error("{}: is empty; give it a size, or extend it with truncate -s", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file exists with another size than requested.
    #[error("{}: has {actual} bytes, not {wanted}; leave the size out to take it as it is, or \
     resize it first", path.display())]
    OtherSize {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        actual: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
    /// Direct I/O is required and not possible.
    #[error("{}: O_DIRECT is required, but {why}; leave the choice to the server or use another \
     file system", path.display())]
    NoDirect {
        /// The file.
        path: PathBuf,
        /// The obstacle.
        why: String,
    },
    /// An option of the software controller is invalid.
    #[error("nvme-soft: {0}")]
    NvmeOption(String),
    /// The software controller could not be set up.
    #[error("nvme-soft: cannot be set up: {source}")]
    Nvme {
        /// The error.
        source: io::Error,
    },
    /// Another error while the file was being opened.
    #[error("{}: cannot {what}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl DeviceError {
    /// Whether the request can never succeed; otherwise a retry may help.
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
