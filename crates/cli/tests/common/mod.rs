//! Helpers of the program's tests.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program without environment variables that it reads.
pub(crate) fn fairq(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairq"));
    command
        .args(args)
        .env_remove("FAIRQ_LOG")
        .env_remove("FAIRQ_CONTROL")
        .env_remove("LISTEN_FDS")
        .stdin(Stdio::null());
    command
}

/// Waits for a condition, at most a minute.
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
