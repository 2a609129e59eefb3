//! `fairq`: share one fast SSD between tenants by weight.
//!
//! The only place that knows about arguments, configuration files and terminals; the work is done in `fairq-host`
//! and `fairq-core`. Exit status: 0 when all went well, 1 when something failed while running, 2 when the command line or
//! the configuration cannot be used.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use fairq_host::control::ControlError;
use fairq_host::device::error::DeviceError;
use fairq_host::server::ServerError;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Cli, Command};
use crate::refusal::Refusal;

mod args;
mod bench;
mod calibrate;
mod config;
mod connection;
mod ctl;
mod device;
mod engine;
mod fairness;
mod files;
mod fiojob;
mod job;
mod lab;
mod manual;
mod operate;
mod pairs;
mod refusal;
mod report;
mod series;
mod serve;
mod status;
mod table;
mod top;
mod trace;
mod units;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
    // A server's log is one JSON object a line where no person reads it, its last words too.
    let is_json = matches!(cli.command, Command::Serve(_)) && !std::io::stderr().is_terminal();
    match run(cli, is_json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let said = in_words(&error);
            if !is_json || (!tracing::dispatcher::has_been_set() && start_log(None, "error", true).is_err()) {
                eprintln!("fairq: {said}");
            } else {
                tracing::error!("{said}");
            }
            ExitCode::from(if is_refusal(&error) { 2 } else { 1 })
        }
    }
}

/// The command line cannot be used, or asks for help only.
fn misunderstood(error: &clap::Error) -> ExitCode {
    let is_server = std::env::args_os().any(|word| word == "serve");
    let is_json = is_server && error.use_stderr() && !std::io::stderr().is_terminal();
    if !is_json || start_log(None, "error", true).is_err() {
        error.exit();
    }
    let said = error.render().to_string();
    tracing::error!("{}", said.trim_start_matches("error: ").trim_end());
    ExitCode::from(2)
}

/// An error and what caused it; a cause that has been told already is not told again.
fn in_words(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |said, cause| {
        let cause = cause.to_string();
        if said.contains(&cause) { said } else { format!("{said}: {cause}") }
    })
}

/// Whether it is the command line or the configuration that cannot be used: trying again is in vain.
fn is_refusal(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let inner = cause.downcast_ref().and_then(std::io::Error::get_ref);
        cause.is::<Refusal>()
            || inner.and_then(|inner| inner.downcast_ref()).is_some_and(ControlError::is_refusal)
            || cause.downcast_ref().is_some_and(DeviceError::is_refusal)
            || cause.downcast_ref().is_some_and(ServerError::is_refusal)
    })
}

fn run(cli: Cli, is_json: bool) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(args) => {
            let sources = serve::settings(*args)?;
            start_log(cli.log.or(sources.settings.log.clone()), "info", is_json)?;
            serve::run(sources)
        }
        Command::Ctl(args) => ctl::run(args),
        Command::Top(args) => top::run(args),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { folder } => manual::pages(&folder),
        Command::Bench(args) => {
            start_log(cli.log, "warn", false)?;
            bench::run(args)
        }
        Command::Calibrate(args) => {
            start_log(cli.log, "warn", false)?;
            calibrate::run(args)
        }
        Command::Device { command } => {
            start_log(cli.log, "warn", false)?;
            device::run(command)
        }
        Command::Lab(args) => {
            start_log(cli.log, "warn", false)?;
            lab::run(args)
        }
    }
}

/// Logs to standard error: what is said here, else in FAIRQ_LOG, else what is usual; for people or as JSON.
fn start_log(level: Option<String>, usual: &str, is_json: bool) -> Result<(), Refusal> {
    // Under inetd standard error may be the client's connection, into which nobody must write.
    let is_socket = rustix::net::getsockname(std::io::stderr()).is_ok();
    if is_socket && std::env::var_os("JOURNAL_STREAM").is_none() {
        return Ok(());
    }
    let level = level.or_else(|| std::env::var("FAIRQ_LOG").ok()).unwrap_or_else(|| usual.to_owned());
    let refuse = |what: &str| {
        Refusal::new(format!(
            "log: {what}: write error, warn, info, debug, trace or off, or for a part, info,fairq_host=debug"
        ))
    };
    // A word alone would be taken for the name of a part of the program, and nothing would be logged.
    let is_word = |part: &&str| !part.contains('=') && part.parse::<LevelFilter>().is_err();
    if let Some(word) = level.split(',').find(is_word) {
        return Err(refuse(&format!("`{word}` is not a level")));
    }
    // The allocator tells each step at level debug.
    let directives = format!("offset_allocator=warn,{level}");
    let filter = EnvFilter::builder().parse(directives).map_err(|error| refuse(&format!("`{level}`: {error}")))?;
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(|| status::LogWriter);
    if is_json {
        log.json().flatten_event(true).init()
    } else {
        log.init()
    }
    Ok(())
}
