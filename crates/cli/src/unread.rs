//! Output that never waits for its reader: the log, and status lines.
//!
//! **Problem.** The control thread of a server writes the log and the status lines, and a pipe
//! without a reader is full after some hundred lines. A write to a full pipe would block the thread
//! for ever, and with it all calls to the server. **Model.** Lines are written while there is
//! space. Lines that find none within [`PATIENCE`] are lost, and so are the lines after them,
//! without waiting, until there is space again. Then a line reports the number of lost ones. A text
//! that is too long for one write is divided at the end of a line if possible, so that only a very
//! long line is ever cut.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Time for a reader to make space.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Bytes that fit into a pipe with any space (PIPE_BUF).
const PART: usize = 4096;

/// The lost lines of one output after the last line that was written.
#[derive(Default, Debug)]
pub(crate) struct Lost {
    lines: u64,
    /// Whether the first of them was written in part.
    is_cut: bool,
}

impl Lost {
    /// No lost lines.
    pub(crate) const fn nothing() -> Lost {
        Lost { lines: 0, is_cut: false }
    }
}

/// Writes lines if their reader makes space. If lines were `lost` before them, a line with their
/// number, from `say`, comes first.
pub(crate) fn deliver(
    out: &mut (impl Write + AsFd),
    text: &[u8],
    lost: &mut Lost,
    say: impl FnOnce(u64) -> String,
) -> io::Result<()> {
    if lost.lines > 0 && has_room(out, &Timespec::default())? {
        let end_of_cut = if lost.is_cut { "\n" } else { "" };
        out.write_all(format!("{end_of_cut}{}\n", say(lost.lines)).as_bytes())?;
        *lost = Lost::default();
    }
    let mut rest = text;
    while !rest.is_empty() {
        if lost.lines > 0 || !has_room(out, &PATIENCE)? {
            let written = &text[..text.len() - rest.len()];
            lost.is_cut |= written.last().is_some_and(|&byte| byte != b'\n');
            lost.lines += rest.split_inclusive(|&byte| byte == b'\n').count() as u64;
            break;
        }
        let (part, after) = rest.split_at(part_of(rest));
        out.write_all(part)?;
        rest = after;
    }
    out.flush()
}

/// The length of the next part to write: whole lines, if one fits.
fn part_of(text: &[u8]) -> usize {
    if text.len() <= PART {
        return text.len();
    }
    text[..PART].iter().rposition(|&byte| byte == b'\n').map_or(PART, |end| end + 1)
}

/// Whether a write can proceed or fail at once.
pub(crate) fn has_room_now(out: &impl AsFd) -> io::Result<bool> {
    has_room(out, &Timespec::default())
}

/// Whether a write can proceed or fail within this time.
fn has_room(out: &impl AsFd, patience: &Timespec) -> io::Result<bool> {
    loop {
        match poll(&mut [PollFd::new(out, PollFlags::OUT)], Some(patience)) {
            // A signal interrupted the wait, which starts again.
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn said(lines: u64) -> String {
        format!("lost={lines}")
    }

    /// Reads the rest of the pipe.
    fn rest_of(mut reader: io::PipeReader, writer: io::PipeWriter) -> String {
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        rest
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted_and_nobody_waits_for_them() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let mut lost = Lost::nothing();
        let long = format!("{}\n", "x".repeat(10_000));
        for _ in 0..100 {
            deliver(&mut writer, long.as_bytes(), &mut lost, said).unwrap();
        }
        assert!((80..100).contains(&lost.lines) && lost.is_cut, "{}", lost.lines);
        let read = reader.read(&mut vec![0; 1 << 16]).unwrap();
        assert!(read > 4096);
        let before = lost.lines;
        deliver(&mut writer, b"{}\n", &mut lost, said).unwrap();
        assert_eq!(lost.lines, 0);
        let rest = rest_of(reader, writer);
        assert!(rest.ends_with(&format!("\nlost={before}\n{{}}\n")), "{rest}");
        // Without a reader a write fails as usual.
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(
            deliver(&mut writer, b"x", &mut lost, said).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }

    #[test]
    fn of_many_lines_none_is_cut() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let mut lost = Lost::nothing();
        let text: String = (0..1000).map(|line| format!("status line={line}\n")).collect();
        let mut wrote = 0;
        while lost.lines == 0 {
            deliver(&mut writer, text.as_bytes(), &mut lost, said).unwrap();
            wrote += 1000;
        }
        let before = lost.lines;
        // Makes space for one part of a text.
        let mut read = vec![0; 4096];
        reader.read_exact(&mut read).unwrap();
        deliver(&mut writer, b"status line=last\n", &mut lost, said).unwrap();
        let all = String::from_utf8(read).unwrap() + &rest_of(reader, writer);
        assert!(
            all.lines().all(|line| line.starts_with("status line=") || line == said(before)),
            "{all}"
        );
        assert_eq!(all.lines().count() as u64, wrote - before + 2);
        assert!(all.ends_with(&format!("lost={before}\nstatus line=last\n")));
    }
}
