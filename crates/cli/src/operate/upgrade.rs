//! `upgrade`: the next program takes over the server; see [`crate::take_over`].

use std::path::PathBuf;

use fairq_host::server::Admin;
use fairq_host::server::handover::State;
use serde_json::{Value, json};

use super::Console;
use super::record;
use super::rpc::Fault;
use crate::take_over::{self, Left};

/// The state of upgrades.
#[derive(Default)]
pub(super) struct Upgrades {
    /// The path from which the server was started.
    program: PathBuf,
    /// The outcome of the call that waits for its answer.
    outcome: Option<Result<Value, String>>,
    /// The recording of the previous program.
    pub(super) recording: Option<record::Left>,
}

impl Upgrades {
    /// The state of a server that is being started.
    pub(super) fn new() -> Upgrades {
        // The path is read at the start, because another file may have it later.
        let program = std::env::current_exe().unwrap_or_else(|_| "fairq".into());
        Upgrades { program, ..Upgrades::default() }
    }
}

impl Console {
    /// Continues the state of the previous program.
    pub(crate) fn follow(&mut self, left: Left, state: &State) {
        let upgrades = &mut self.upgrades;
        upgrades.recording = serde_json::from_value(left.recording).unwrap_or_else(|error| {
            tracing::warn!(%error, "the recording of the previous program is lost");
            None
        });
        upgrades.outcome = Some(match self.given.failure.take() {
            Some(why) => {
                upgrades.program = left.program;
                Err(why)
            }
            None => Ok(json!({
                "from": state.program,
                "to": env!("CARGO_PKG_VERSION"),
                "program": upgrades.program,
            })),
        });
    }

    /// Whether this program has taken over from another one. False if it continues because its own
    /// successor has failed.
    pub(super) fn has_followed(&self) -> bool {
        self.upgrades.outcome.as_ref().is_some_and(Result::is_ok)
    }

    /// Starts the upgrade to the program at this path, by default the path of this server. The next
    /// program answers the call.
    pub(super) fn upgrade(
        &mut self,
        admin: &mut dyn Admin,
        program: Option<PathBuf>,
    ) -> Result<Value, Fault> {
        if let Some(outcome) = self.upgrades.outcome.take() {
            return outcome.map_err(|why| {
                Fault::refused(format!(
                    "not upgraded: the program that was to take over has failed, and the previous \
                     program continues: {why}"
                ))
            });
        }
        if self.given.companion.is_some() {
            return Err(Fault::refused(
                "not upgraded: this server ends with the command of --run, and an upgrade would \
                 lose the command: wait for the command to end, and start the new program",
            ));
        }
        let program = program.unwrap_or_else(|| self.upgrades.program.clone());
        if program.is_relative() {
            let shown = program.display();
            return Err(Fault::params(format!("`program`: {shown}: write an absolute path")));
        }
        if self.layout.as_ref().is_some_and(|layout| layout.is_writing()) {
            return Err(Fault::unfinished("the layout record is being written: try again later"));
        }
        let settings = toml::to_string(&*self.settings).map_err(Fault::refused)?;
        let left = Left::new(settings, self.upgrades.program.clone());
        let mut operator = serde_json::to_value(left).map_err(Fault::refused)?;
        operator["recording"] = serde_json::to_value(self.trace_outline(admin)).unwrap_or_default();
        let key = program.display().to_string();
        let what = format!("upgrade: {key} checks the configuration and the state");
        if !self.checking.is_begun(&key) {
            let state = admin.upgrade_state(operator).map_err(Fault::refused)?;
            let checked = program.clone();
            self.checking.result(&key, &what, move || take_over::check(&checked, state)).ok();
            // The first call is always refused as unfinished, so that the server repeats it: then
            // the answers of earlier calls of the batch are known and are passed on, and the next
            // program does not make these calls again.
            return Err(Fault::unfinished(format!("{what}: try again")));
        }
        let never = || Err("the check has not begun".into());
        let result = self.checking.result(&key, &what, never)?;
        if result.is_ok() && !admin.is_ready_for_upgrade() {
            return Err(Fault::unfinished("clients are connecting: try again"));
        }
        self.checking.forget(&key);
        result.map_err(|why| {
            Fault::refused(format!("not upgraded, and nothing has changed: {why}"))
        })?;
        tracing::info!(program = key, "another program takes over");
        operator["recording"] = serde_json::to_value(self.trace_leave(admin)).unwrap_or_default();
        let error = admin.upgrade(&take_over::successor(program), operator);
        self.trace_stays(admin);
        Err(Fault::refused(error))
    }
}
