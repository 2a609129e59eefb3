//! Control commands of ublk: add, start, resize, recover and delete devices.
//!
//! A command blocks in the kernel, in some cases until the device's queues are served, so a
//! separate thread sends commands (`server::disks`). Commands go through an io_uring with long
//! entries, since their argument takes 32 bytes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::sys::{self, ControlCommand, DeviceInfo, Params};

/// The file of control commands, and a ring for them.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    features: u64,
}

/// The reason why ublk cannot be used on this machine.
#[derive(Debug, thiserror::Error)]
pub enum NoUblk {
    /// The kernel's driver is not loaded.
    #[error(
        "there is no {control}: load the kernel's driver with `modprobe ublk_drv` (Linux 6.5 or later)",
        control = sys::CONTROL
    )]
    NoDriver,
    /// The control file cannot be opened.
    #[error(
        "cannot open {control}: {0}; run as root, or let a udev rule give the file to this user",
        control = sys::CONTROL
    )]
    NoAccess(io::Error),
    /// The driver is older than Linux 6.5.
    #[error("the kernel's ublk driver lacks {0}, which Linux 6.5 has")]
    TooOld(&'static str),
    /// The ring could not be set up, or the driver does not answer.
    #[error("cannot use the kernel's ublk driver: {0}")]
    Other(#[from] io::Error),
}

impl Control {
    /// Opens the driver's control file.
    pub fn open() -> Result<Control, NoUblk> {
        let file = File::options().read(true).write(true).open(sys::CONTROL);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NoUblk::NoDriver,
            _ if error.raw_os_error() == Some(libc::ENXIO) => NoUblk::NoDriver,
            _ => NoUblk::NoAccess(error),
        })?;
        let ring = IoUring::builder().build(4)?;
        let mut control = Control { file, ring, features: 0 };
        let mut features = 0_u64;
        let command = control.with_buffer(u32::MAX, &mut features);
        // A driver without this command has none of the required later features.
        control
            .run(sys::GET_FEATURES, command)
            .map_err(|_| NoUblk::TooOld("a list of its features"))?;
        if features & sys::F_USER_COPY == 0 {
            return Err(NoUblk::TooOld("copies by the server (UBLK_F_USER_COPY)"));
        }
        control.features = features;
        Ok(control)
    }

    /// Whether a device's size can change while it is used (Linux 6.16).
    pub fn can_resize(&self) -> bool {
        self.features & sys::F_UPDATE_SIZE != 0
    }

    /// Adds a device with this many queues of this depth; the kernel keeps `mark` for it. Returns
    /// the device's number.
    pub fn add(&mut self, queues: u16, depth: u16, max_bytes: u32, mark: u64) -> io::Result<u32> {
        let wanted = sys::F_CMD_IOCTL_ENCODE
            | sys::F_USER_COPY
            | sys::F_USER_RECOVERY
            | sys::F_USER_RECOVERY_REISSUE
            | sys::F_UPDATE_SIZE;
        let mut info = DeviceInfo {
            nr_hw_queues: queues,
            queue_depth: depth,
            max_io_buf_bytes: max_bytes,
            dev_id: u32::MAX,
            flags: wanted & self.features,
            ublksrv_flags: mark,
            ..DeviceInfo::default()
        };
        let command = self.with_buffer(u32::MAX, &mut info);
        self.run(sys::ADD_DEV, command)?;
        Ok(info.dev_id)
    }

    /// The kernel's record of a device.
    pub fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        let command = self.with_buffer(device, &mut info);
        self.run(sys::GET_DEV_INFO, command)?;
        Ok(info)
    }

    /// Sets the parameters of a device that is not started.
    pub fn set_params(&mut self, device: u32, params: &Params) -> io::Result<()> {
        let mut params = Params { len: size_of::<Params>() as u32, ..*params };
        let command = self.with_buffer(device, &mut params);
        self.run(sys::SET_PARAMS, command)
    }

    /// Starts a device. The call ends when the device's queues have fetched their requests.
    pub fn start(&mut self, device: u32) -> io::Result<()> {
        self.run(sys::START_DEV, self.own(device, u64::from(std::process::id())))
    }

    /// Begins the recovery of a device whose server has ended.
    pub fn begin_recovery(&mut self, device: u32) -> io::Result<()> {
        self.run(sys::START_USER_RECOVERY, self.own(device, 0))
    }

    /// Ends the recovery. The call ends when the device's queues have fetched their requests.
    pub fn end_recovery(&mut self, device: u32) -> io::Result<()> {
        self.run(sys::END_USER_RECOVERY, self.own(device, u64::from(std::process::id())))
    }

    /// Changes the size of a device.
    pub fn resize(&mut self, device: u32, bytes: u64) -> io::Result<()> {
        self.run(sys::UPDATE_SIZE, self.own(device, bytes / 512))
    }

    /// Stops a device: its requests fail, and its block device disappears.
    pub fn stop(&mut self, device: u32) -> io::Result<()> {
        self.run(sys::STOP_DEV, self.own(device, 0))
    }

    /// Deletes a device when its last user has closed it.
    pub fn delete(&mut self, device: u32) -> io::Result<()> {
        self.run(sys::DEL_DEV, self.own(device, 0))
    }

    fn own(&self, device: u32, data: u64) -> ControlCommand {
        ControlCommand { dev_id: device, queue_id: u16::MAX, data, ..ControlCommand::default() }
    }

    fn with_buffer<T>(&self, device: u32, buffer: &mut T) -> ControlCommand {
        let (addr, len) = (std::ptr::from_mut(buffer) as u64, size_of::<T>() as u16);
        ControlCommand { addr, len, ..self.own(device, 0) }
    }

    /// Sends a command and waits until it has ended.
    fn run(&mut self, operation: u32, command: ControlCommand) -> io::Result<()> {
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, operation).cmd(command.to_bytes()).build();
        // SAFETY: the callers' buffers live until this function returns, and it returns when the
        // kernel has completed the command.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(done) = self.ring.completion().next() {
                return match done.result() {
                    result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                    _ => Ok(()),
                };
            }
        }
    }
}
