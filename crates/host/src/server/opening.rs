//! Opens files on separate threads, because the file system may be slow or hang.
//!
//! The control thread waits for [`MOMENT`], which suffices for nearly every file. If an opening
//! takes longer, the call is repeated until the file is open. A file that no call uses in time is
//! closed.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::device::error::DeviceError;
use crate::device::file::FileSpec;
use crate::server::AdminError;
use crate::server::ControlThread;
use crate::server::closing::Closing;

/// The longest time for which the control thread waits for a file.
const MOMENT: Duration = Duration::from_millis(20);
/// The longest time that an open file waits for a call that uses it.
const UNCLAIMED: Duration = Duration::from_secs(60);

/// The largest number of files that are being opened. Each has a thread, which may hang.
const MOST: usize = 16;

/// A file's number and its size in bytes.
type Opened = Result<(u16, u64), DeviceError>;

/// A file that is being opened, or is open and not yet used by a call.
pub(super) struct Opening {
    spec: FileSpec,
    since: Instant,
    thread: Receiver<Opened>,
    opened: Option<Opened>,
}

impl Opening {
    fn start(control: &ControlThread<'_>, spec: &FileSpec) -> Result<Opening, DeviceError> {
        let (sender, thread) = channel();
        let (device, wanted) = (control.device.clone(), spec.clone());
        // The result is ignored, because the control thread may end before the file is open.
        let open = move || drop(sender.send(device.add_file(&wanted)));
        std::thread::Builder::new()
            .name("fairq-open".into())
            .spawn(open)
            .map_err(|source| DeviceError::Thread { source })?;
        Ok(Opening { spec: spec.clone(), since: Instant::now(), thread, opened: None })
    }

    /// Whether the file is open, or could not be opened; waits for at most `timeout`.
    fn is_over(&mut self, timeout: Duration) -> bool {
        if self.opened.is_none() {
            self.opened = match self.thread.recv_timeout(timeout) {
                Ok(opened) => Some(opened),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => unreachable!("the thread answers"),
            };
        }
        self.opened.is_some()
    }

    fn unfinished(&self) -> AdminError {
        AdminError::Opening { path: self.spec.path.clone(), waited: self.since.elapsed() }
    }
}

impl ControlThread<'_> {
    /// Begins to open a file, or waits for one that is already being opened, for at most
    /// [`MOMENT`]. Returns its index among the openings when it is open or has failed.
    pub(super) fn prepared(&mut self, spec: &FileSpec) -> Result<usize, AdminError> {
        let index = match self.openings.iter().position(|opening| opening.spec == *spec) {
            Some(index) => index,
            // Each opening has a thread that may hang; the error names the first of the files.
            None if self.openings.len() == MOST => return Err(self.openings[0].unfinished()),
            None => {
                let opening = Opening::start(self, spec)?;
                self.openings.push(opening);
                self.openings.len() - 1
            }
        };
        let opening = &mut self.openings[index];
        if opening.is_over(MOMENT) { Ok(index) } else { Err(opening.unfinished()) }
    }

    /// Opens a file, or continues its opening; returns its number and its size in bytes.
    pub(super) fn opened(&mut self, spec: &FileSpec) -> Result<(u16, u64), AdminError> {
        let index = self.prepared(spec)?;
        let opened = self.openings.swap_remove(index).opened;
        Ok(opened.expect("it is over")?)
    }

    /// Closes open files that no call has used in time.
    pub(super) fn close_unclaimed(&mut self) {
        let (device, closing) = (self.device, &mut self.closing);
        self.openings.retain_mut(|opening| {
            if opening.since.elapsed() < UNCLAIMED || !opening.is_over(Duration::ZERO) {
                return true;
            }
            if let Some(Ok((file, _))) = opening.opened {
                device.keep_file_open(file);
                closing.push(Closing::new(file));
            }
            false
        });
    }
}
