//! Files are opened by threads of their own: the file system may take its time, or hang.
//!
//! The control thread waits for a moment, in which nearly every file is open. Where it takes longer
//! the operator is told so and asks again; what was opened for nobody is closed.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::device::error::DeviceError;
use crate::device::file::FileSpec;
use crate::server::AdminError;
use crate::server::closing::Closing;
use crate::server::desk::Desk;

/// How long the control thread waits for a file.
const MOMENT: Duration = Duration::from_millis(100);
/// How long an open file waits for somebody who wants it.
const UNCLAIMED: Duration = Duration::from_secs(60);

/// Files that are being opened at a time: each has a thread, which may hang.
const MOST: usize = 16;

/// A file that is being opened.
pub(super) struct Opening {
    spec: FileSpec,
    since: Instant,
    opened: Receiver<Result<(u16, u64), DeviceError>>,
}

impl Desk<'_> {
    /// Opens a file, or goes on with that; its number and its size.
    pub(super) fn opened(&mut self, spec: &FileSpec) -> Result<(u16, u64), AdminError> {
        let index = match self.openings.iter().position(|opening| opening.spec == *spec) {
            Some(index) => index,
            None if self.openings.len() == MOST => {
                let Opening { spec, since, .. } = &self.openings[0];
                let (path, waited) = (spec.path.clone(), since.elapsed());
                return Err(AdminError::Opening { path, waited });
            }
            None => {
                let (sender, opened) = channel();
                let (device, wanted) = (self.device.clone(), spec.clone());
                let open = move || drop(sender.send(device.add_file(&wanted)));
                std::thread::Builder::new()
                    .name("fairq-open".into())
                    .spawn(open)
                    .map_err(|source| DeviceError::Thread { source })?;
                let (spec, since) = (spec.clone(), Instant::now());
                self.openings.push(Opening { spec, since, opened });
                self.openings.len() - 1
            }
        };
        match self.openings[index].opened.recv_timeout(MOMENT) {
            Ok(result) => {
                self.openings.swap_remove(index);
                Ok(result?)
            }
            Err(RecvTimeoutError::Timeout) => {
                let opening = &self.openings[index];
                let (path, waited) = (spec.path.clone(), opening.since.elapsed());
                Err(AdminError::Opening { path, waited })
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread answers"),
        }
    }

    /// Closes what was opened and has been asked for no more.
    pub(super) fn close_unclaimed(&mut self) {
        let (device, closing) = (self.device, &mut self.closing);
        self.openings.retain(|opening| {
            if opening.since.elapsed() < UNCLAIMED {
                return true;
            }
            match opening.opened.try_recv() {
                Ok(Ok((file, _))) => {
                    device.linger_file(file);
                    closing.push(Closing::new(file));
                    false
                }
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => false,
                Err(TryRecvError::Empty) => true,
            }
        });
    }
}
