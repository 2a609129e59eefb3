//! The log, on standard error.
//!
//! **Nobody waits for its reader.** The control thread of a server logs, and a pipe that nobody reads is full after some hundred lines.
//! A write to it would wait for ever, and with it all that is asked of the server. So a line is written as far as there is room; one that
//! finds none within [`PATIENCE`] is lost, and so is what follows, without waiting, until there is room again. Then it is told how
//! many were lost.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::refusal::Refusal;
use crate::status;

/// How long a reader may take to make room.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// A pipe that has any room has room for so much (PIPE_BUF).
const PART: usize = 4096;

/// What was lost since the last line that was written.
static LOST: Mutex<Lost> = Mutex::new(Lost { lines: 0, is_cut: false });

#[derive(Default)]
struct Lost {
    lines: u64,
    /// The first of them was written in part.
    is_cut: bool,
}

/// Logs to standard error: what is said here, else in FAIRQ_LOG, else what is usual; for people or as JSON.
pub(crate) fn start(level: Option<String>, usual: &str, is_json: bool) -> Result<(), Refusal> {
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
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(move || LogWriter { is_json });
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
        status::take_away()?;
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        deliver(&mut io::stderr(), line, &mut lost, self.is_json)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Writes a line if its reader makes room, after what was `lost` before it.
fn deliver(out: &mut (impl Write + AsFd), line: &[u8], lost: &mut Lost, is_json: bool) -> io::Result<()> {
    if lost.lines > 0 && has_room(out, &Timespec::default())? {
        let said = format!("{} lines of the log were lost, as nobody read it", lost.lines);
        let said = if is_json { format!(r#"{{"level":"WARN","message":"{said}"}}"#) } else { said };
        out.write_all(format!("{}{said}\n", if lost.is_cut { "\n" } else { "" }).as_bytes())?;
        *lost = Lost::default();
    }
    for (number, part) in line.chunks(PART).enumerate() {
        if lost.lines > 0 || !has_room(out, &PATIENCE)? {
            lost.is_cut |= number > 0;
            lost.lines += 1;
            break;
        }
        out.write_all(part)?;
    }
    Ok(())
}

/// Whether something can be written within a time, or fails at once.
fn has_room(out: &impl AsFd, patience: &Timespec) -> io::Result<bool> {
    loop {
        match poll(&mut [PollFd::new(out, PollFlags::OUT)], Some(patience)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted_and_nobody_waits_for_them() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let mut lost = Lost::default();
        let long = format!("{}\n", "x".repeat(10_000));
        for _ in 0..100 {
            deliver(&mut writer, long.as_bytes(), &mut lost, true).unwrap();
        }
        assert!((80..100).contains(&lost.lines) && lost.is_cut, "{}", lost.lines);
        let mut room = vec![0; 1 << 16];
        let read = reader.read(&mut room).unwrap();
        assert!(read > 4096);
        let before = lost.lines;
        deliver(&mut writer, b"{}\n", &mut lost, true).unwrap();
        assert_eq!(lost.lines, 0);
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let expected = format!(
            "{{\"level\":\"WARN\",\"message\":\"{before} lines of the log were lost, as nobody read it\"}}\n{{}}\n"
        );
        assert!(rest.ends_with(&expected), "{}", &rest[rest.len() - 200..]);
        // Without a reader it fails as any write does.
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(deliver(&mut writer, b"x", &mut lost, false).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
