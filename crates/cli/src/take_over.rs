//! One program takes over from another in the same process: `fairq ctl upgrade`.
//!
//! The old server runs the next program twice: as a child that checks whether it could take over
//! (`serve --check-upgrade`, with the state on its standard input), and then in its own process
//! (`serve --take-over`). These arguments are appended to the arguments with which the server was
//! started. If the next program fails before it serves, it executes the old one again
//! (`--after-failure`). It does so by a descriptor, because the file at the old program's path may
//! be another one by now.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fairq_config::refusal::Refusal;
use fairq_config::settings::{self, Plan, Settings, Surroundings};
use fairq_config::units::Size;
use fairq_host::server::handover::{Predecessor, State};
use fairq_host::server::{Before, Successor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Spanned;

use crate::logging;

const CHECK: &str = "--check-upgrade";
const TAKE_OVER: &str = "--take-over=";
const AFTER_FAILURE: &str = "--after-failure=";

/// The output of a program that could take over.
const FITS: &str = "fits";
/// Time limit of the check.
const CHECK_TIME: Duration = Duration::from_secs(6);

/// The previous program, while it can still continue.
static PREDECESSOR: Mutex<Option<Predecessor>> = Mutex::new(None);

/// The state of the operator side, for the next program.
#[derive(Serialize, Deserialize)]
pub(crate) struct Left {
    /// The configuration in force, as TOML.
    pub(crate) settings: String,
    /// The path from which the server was started.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// The recording under way; null if there is none.
    #[serde(default)]
    pub(crate) recording: Value,
}

impl Left {
    /// The state of this program.
    pub(crate) fn new(settings: String, program: PathBuf) -> Left {
        Left { settings, program, args: own_args(), recording: Value::Null }
    }

    /// Reads the operator side's part of a server's state.
    pub(crate) fn of(state: &State) -> Result<Left, Refusal> {
        serde_json::from_value(state.operator.clone())
            .map_err(|error| Refusal::new(format!("the server's state: {error}")))
    }

    pub(crate) fn settings(&self) -> Result<Settings, Refusal> {
        let mut settings = settings::parse(&self.settings, "the configuration in force")?;
        // A default tenant that does not exist would be refused here; the server's state has the
        // default tenant.
        settings
            .default_tenant
            .take_if(|name| settings.tenant.iter().all(|one| one.get_ref().name != *name));
        Ok(settings)
    }

    /// The plan of these settings, with each tenant at its present place.
    pub(crate) fn plan(
        settings: &Settings,
        state: &State,
        surroundings: &Surroundings,
    ) -> Result<Plan, Refusal> {
        let mut settings = settings.clone();
        let tables = settings.tenant.iter_mut().map(Spanned::get_mut);
        for table in tables.filter(|table| table.path.is_none()) {
            if let Some(left) = state.tenants.iter().find(|left| left.name == table.name) {
                (table.size, table.offset) = (Some(Size(left.size)), Some(Size(left.base)));
            }
        }
        settings.plan(surroundings)
    }
}

/// The arguments of this program, without those of an upgrade.
fn own_args() -> Vec<OsString> {
    let is_own = |arg: &OsString| {
        let text = arg.to_string_lossy();
        text != CHECK && !text.starts_with(TAKE_OVER) && !text.starts_with(AFTER_FAILURE)
    };
    std::env::args_os().skip(1).filter(is_own).collect()
}

fn own_name() -> OsString {
    std::env::args_os().next().unwrap_or_else(|| "fairq".into())
}

/// The program at this path with the arguments for taking over.
pub(crate) fn successor(program: PathBuf) -> Successor {
    let mut args = own_args();
    args.push(TAKE_OVER.into());
    Successor { program, name: own_name(), args }
}

/// Whether the program at this path could take over with the state in this file.
pub(crate) fn check(program: &Path, state: File) -> Result<(), String> {
    let shown = program.display();
    let mut command = Command::new(program);
    command.args(own_args()).arg(CHECK);
    let child = command.stdin(state).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("cannot execute {shown}: {error}"))?;
    let since = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if since.elapsed() < CHECK_TIME => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                let seconds = CHECK_TIME.as_secs();
                return Err(format!("{shown} has not checked the state within {seconds} s"));
            }
            Err(error) => return Err(format!("{shown}: {error}")),
        }
    };
    let read = |from: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        if let Some(from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    let said = read(child.stdout.as_mut().map(|from| from as &mut dyn Read));
    if status.success() && said == FITS {
        return Ok(());
    }
    let why = read(child.stderr.as_mut().map(|from| from as &mut dyn Read));
    Err(match status.success() {
        true => format!("{shown} is not a fairq that can continue with the state of this one"),
        false if why.is_empty() => format!("{shown} cannot continue: it ended with {status}"),
        false => format!("{shown} cannot continue: {}", why.trim_start_matches("fairq: ")),
    })
}

/// Prints that this program could take over.
pub(crate) fn fits() {
    println!("{FITS}");
}

/// The state on standard input, for a check.
pub(crate) fn state_to_check() -> anyhow::Result<State> {
    use std::os::fd::AsFd;
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(State::read(&File::from(input))?)
}

/// Notes whether this program follows another one, which is executed again if this one panics.
pub(crate) fn begin() {
    let given = std::env::args_os()
        .find_map(|arg| arg.to_str()?.strip_prefix(TAKE_OVER).and_then(|text| text.parse().ok()));
    let is_last = std::env::args_os().any(|arg| arg.to_string_lossy().starts_with(AFTER_FAILURE));
    if given.is_none() || is_last {
        return;
    }
    *lock() = given;
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        fall_back("it panicked");
    }));
}

fn lock() -> std::sync::MutexGuard<'static, Option<Predecessor>> {
    PREDECESSOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Executes the previous program again, if it can continue; otherwise returns.
pub(crate) fn fall_back(why: &str) {
    let Some(predecessor) = lock().take() else { return };
    say(&format!("cannot take over: {why}: the previous program continues"));
    // This program's own arguments may be the reason for the failure.
    let left = predecessor.state().ok().and_then(|state| Left::of(&state).ok());
    let mut args = left.map_or_else(own_args, |left| left.args);
    args.push(format!("{TAKE_OVER}{predecessor}").into());
    args.push(format!("{AFTER_FAILURE}{why}").into());
    let error = predecessor.execute(OsStr::new(&own_name()), &args);
    say(&format!("cannot execute the previous program again: {error}"));
}

/// Logs a text, even if the log is not set up yet.
fn say(text: &str) {
    let has_begun = tracing::dispatcher::has_been_set();
    let is_json = !std::io::stderr().is_terminal();
    if has_begun || (is_json && logging::start(None, "error", true).is_ok()) {
        tracing::error!("{text}");
    } else {
        eprintln!("fairq: {text}");
    }
}

/// Notes that this program serves, so that the previous one cannot continue.
pub(crate) fn commit() {
    lock().take();
}

/// The state from the previous program.
pub(crate) fn before(predecessor: Option<Predecessor>) -> anyhow::Result<Option<Before>> {
    Ok(predecessor.map(Before::new).transpose()?)
}
