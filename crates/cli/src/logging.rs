//! The log, on standard error.
//!
//! The program never waits for the log's reader ([`unread`]).

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use fairq_config::refusal::Refusal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::status;
use crate::unread::{self, Lost};

/// The lines that were lost after the last line that was written.
static LOST: Mutex<Lost> = Mutex::new(Lost::nothing());

/// Starts the log on standard error, as text or as JSON. The level is `level`, else the value of
/// FAIRQ_LOG, else `usual`.
pub(crate) fn start(level: Option<String>, usual: &str, is_json: bool) -> Result<(), Refusal> {
    // Under inetd standard error may be the client's connection, which no line may enter.
    let is_socket = rustix::net::getsockname(std::io::stderr()).is_ok();
    // The journal of systemd is a socket, too: systemd then sets this variable.
    if is_socket && std::env::var_os("JOURNAL_STREAM").is_none() {
        return Ok(());
    }
    let level =
        level.or_else(|| std::env::var("FAIRQ_LOG").ok()).unwrap_or_else(|| usual.to_owned());
    let refuse = |what: &str| {
        Refusal::new(format!(
            "log: {what}: write error, warn, info, debug, trace or off, or for a part, \
             info,fairq_host=debug"
        ))
    };
    // The filter would take a word without `=` for the name of a module, and nothing would be
    // logged.
    let is_word = |part: &&str| !part.contains('=') && part.parse::<LevelFilter>().is_err();
    if let Some(word) = level.split(',').find(is_word) {
        return Err(refuse(&format!("`{word}` is not a level")));
    }
    // The allocator logs each step at level debug.
    let directives = format!("offset_allocator=warn,{level}");
    let filter = EnvFilter::builder()
        .parse(directives)
        .map_err(|error| refuse(&format!("`{level}`: {error}")))?;
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(move || LogWriter { is_json });
    if is_json {
        log.json().flatten_event(true).init()
    } else {
        log.init()
    }
    Ok(())
}

/// Standard error for the log.
#[derive(Clone, Copy, Debug)]
struct LogWriter {
    is_json: bool,
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The status table may be on the same terminal, and the line of the log would be written
        // into the table.
        status::take_away()?;
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        unread::deliver(&mut io::stderr(), line, &mut lost, |lines| {
            let said =
                format!("{lines} lines of the log were lost, because their reader was too slow");
            if self.is_json { format!(r#"{{"level":"WARN","message":"{said}"}}"#) } else { said }
        })?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
