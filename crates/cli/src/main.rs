//! `fairq`: share one fast SSD between tenants by weight.
//!
//! Arguments, and the commands for a server: `serve`, `ctl`, `top`. Configuration files are in
//! `fairq-config`, the commands that measure in `fairq-bench`, and the lab in `fairq-lab`. Exit
//! status: 0 for success, 1 for a failure while running, 2 for an unusable command line or
//! configuration.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use fairq_config::refusal::Refusal;
use fairq_host::device::control::ControlError;
use fairq_host::device::error::DeviceError;
use fairq_host::server::ServerError;

use crate::args::{Cli, Command};

mod args;
mod companion;
mod connection;
mod ctl;
#[cfg(test)]
mod hostile;
mod kernel;
mod layout;
mod logging;
mod machine;
#[cfg(feature = "man")]
mod manual;
mod operate;
mod parts;
mod serve;
mod status;
mod take_over;
#[cfg(feature = "top")]
mod top;
mod trace;
mod unread;
mod view;

fn main() -> ExitCode {
    take_over::begin();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
    // Without a terminal a server logs one JSON object a line, its last error too.
    let is_server = matches!(&cli.command, Command::Serve(args) if !args.check_upgrade);
    let is_json = is_server && !std::io::stderr().is_terminal();
    match run(cli, is_json) {
        Ok(code) => code,
        Err(error) => {
            let said = in_words(&error);
            take_over::fall_back(&said);
            // A configuration may be refused before the log is started. The log is then started for
            // this line.
            if !is_json
                || (!tracing::dispatcher::has_been_set()
                    && logging::start(None, "error", true).is_err())
            {
                eprintln!("fairq: {said}");
            } else {
                tracing::error!("{said}");
            }
            ExitCode::from(if is_refusal(&error) { 2 } else { 1 })
        }
    }
}

/// Reports a command line that cannot be used, or prints help.
fn misunderstood(error: &clap::Error) -> ExitCode {
    take_over::fall_back("it does not know one of the server's arguments");
    let is_server = std::env::args_os().any(|word| word == "serve");
    let is_json = is_server && error.use_stderr() && !std::io::stderr().is_terminal();
    // Help and version are printed on standard output, and on a terminal clap prints its own text.
    if !is_json || logging::start(None, "error", true).is_err() {
        error.exit();
    }
    let said = error.render().to_string();
    tracing::error!("{}", said.trim_start_matches("error: ").trim_end());
    ExitCode::from(2)
}

/// An error and its causes; a cause that the text already contains is left out.
fn in_words(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |said, cause| {
        let cause = cause.to_string();
        if said.contains(&cause) { said } else { format!("{said}: {cause}") }
    })
}

/// Whether the command line or the configuration cannot be used, so that a retry would fail, too.
fn is_refusal(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let inner = cause.downcast_ref().and_then(std::io::Error::get_ref);
        cause.is::<Refusal>()
            || inner.and_then(|inner| inner.downcast_ref()).is_some_and(ControlError::is_refusal)
            || cause.downcast_ref().is_some_and(DeviceError::is_refusal)
            || cause.downcast_ref().is_some_and(ServerError::is_refusal)
    })
}

fn run(cli: Cli, is_json: bool) -> anyhow::Result<ExitCode> {
    let done = match cli.command {
        Command::Serve(args) => {
            let before = take_over::before(args.take_over)?;
            let sources = serve::settings(*args, before.as_ref())?;
            logging::start(cli.log.or(sources.settings.log.clone()), "info", is_json)?;
            return serve::run(sources, before);
        }
        Command::Ctl(args) => ctl::run(args),
        Command::Kernel(args) => kernel::run(args),
        Command::Layout(args) => layout::run(args.command),
        #[cfg(feature = "top")]
        Command::Top(args) => match args.kernel {
            Some(device) => kernel::watch(device.as_slice(), args.once, args.json),
            None => top::run(args),
        },
        #[cfg(feature = "man")]
        Command::Completions { shell } => manual::completions(shell),
        #[cfg(feature = "man")]
        Command::Man { folder } => manual::pages(&folder),
        Command::Bench(args) => {
            logging::start(cli.log, "warn", false)?;
            fairq_bench::bench::run(args)
        }
        Command::Calibrate(args) => {
            logging::start(cli.log, "warn", false)?;
            fairq_bench::calibrate::run(args)
        }
        Command::Device { command } => {
            logging::start(cli.log, "warn", false)?;
            fairq_bench::device::run(command)
        }
        #[cfg(feature = "lab")]
        Command::Lab(args) => {
            logging::start(cli.log, "warn", false)?;
            fairq_lab::run(args)
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}
