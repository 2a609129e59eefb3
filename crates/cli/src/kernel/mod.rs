//! `fairq kernel`: the schedulers inside Linux (`fairq.ko`), by their files in sysfs and cgroups.
//!
//! The program keeps no state: it reads the values that it shows and writes the changes. [`sysfs`]
//! has the files, [`shares`] the shares between two samples.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;

use crate::args::{KernelArgs, KernelCommand};

mod carry;
mod exposition;
mod shares;
mod sysfs;
#[cfg(feature = "top")]
mod watch;

use sysfs::Machine;

#[cfg(feature = "top")]
pub(crate) use watch::run as watch;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) fn run(args: KernelArgs) -> anyhow::Result<()> {
    let machine = Machine::found()?;
    match args.command {
        KernelCommand::Status { devices, json } => {
            machine.has_module()?;
            let look = shares::two_looks(&machine, &devices, PERIOD)?;
            if json { print(&format!("{:#}", look.json())) } else { print(&look.text(width())) }
        }
        KernelCommand::Set { device, values } => machine.set(&device, &values),
        KernelCommand::Weight { cgroup, weight, device } => {
            machine.weigh(&cgroup, &weight, device.as_deref())
        }
        KernelCommand::Follow { every, once } => {
            machine.has_module()?;
            carry::run(&machine, Duration::from_nanos(every.0), once)
        }
        KernelCommand::Metrics { output, every } => {
            machine.has_module()?;
            exposition::run(&machine, output.as_deref(), Duration::from_nanos(every.0))
        }
    }
}

/// Columns of the terminal that standard output is, if it is one.
fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

fn print(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("cannot print")
}
