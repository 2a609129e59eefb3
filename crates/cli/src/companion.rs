//! `fairq serve --run`: a command that runs while the server serves. When the command ends, the
//! server ends with the command's exit status. When the server ends, it ends the command.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use fairq_config::listen::Listen;
use rustix::process::{Pid, Signal, getpid, kill_process};
use tempfile::TempDir;

/// The time that a command has to end after the server has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// A command, before and while it runs.
#[derive(Debug)]
pub(crate) struct Companion {
    command: String,
    /// A folder for the server's sockets, which no other user and no other server uses.
    folder: TempDir,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    pid: Pid,
    status: Arc<OnceLock<ExitStatus>>,
    /// The server has ended.
    is_over: Arc<AtomicBool>,
    waiter: JoinHandle<()>,
}

/// Ends this server by SIGTERM, as an operator does.
pub(crate) fn end_server() {
    // A process may always signal itself, so this cannot fail.
    let _ = kill_process(getpid(), Signal::TERM);
}

impl Companion {
    /// The command that `/bin/sh` is to run.
    pub(crate) fn new(command: String) -> anyhow::Result<Companion> {
        let folder = tempfile::Builder::new().prefix("fairq-").tempdir();
        let folder = folder.context("--run: a folder for the sockets cannot be made")?;
        Ok(Companion { command, folder, running: None })
    }

    /// The path of a socket of this name, in a folder of its own.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the command. Its variables: `uri` of the first tenant, `unixsocket` if clients connect
    /// to one, and `control`.
    pub(crate) fn start(
        &mut self,
        addresses: &[Listen],
        uri: Option<String>,
        control: Option<PathBuf>,
    ) -> anyhow::Result<()> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &self.command]);
        let socket = addresses.iter().find_map(|address| match address {
            Listen::Unix(path) => Some(path.as_os_str().to_owned()),
            _ => None,
        });
        let variables = [
            ("uri", uri.map(Into::into)),
            ("unixsocket", socket),
            ("control", control.map(PathBuf::into_os_string)),
        ];
        for (name, value) in variables {
            value.map(|value| shell.env(name, value));
        }
        let mut child = shell.spawn().context("--run: /bin/sh cannot be started")?;
        let status = Arc::new(OnceLock::new());
        let pid = Pid::from_child(&child);
        let is_over = Arc::new(AtomicBool::new(false));
        let (seen, is_server_gone) = (Arc::clone(&status), Arc::clone(&is_over));
        let waiter = std::thread::Builder::new().name("fairq-run".into()).spawn(move || {
            if let Ok(ended) = child.wait() {
                let _ = seen.set(ended);
            }
            if !is_server_gone.load(Ordering::SeqCst) {
                end_server();
            }
        })?;
        self.running = Some(Running { pid, status, is_over, waiter });
        Ok(())
    }

    /// Ends the command if it still runs, and returns its exit status in the form of a shell.
    pub(crate) fn end(self) -> ExitCode {
        let Some(running) = self.running else { return ExitCode::FAILURE };
        let Running { pid, status, is_over, waiter } = running;
        is_over.store(true, Ordering::SeqCst);
        // The command may ignore the first signal, and cannot ignore the second one.
        for signal in [Signal::TERM, Signal::KILL] {
            let until = Instant::now() + PATIENCE;
            if !waiter.is_finished() && status.get().is_none() {
                let _ = kill_process(pid, signal);
            }
            while !waiter.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let code = status.get().map(|status| {
            status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
        });
        ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
    }
}
