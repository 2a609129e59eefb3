//! Traces of block devices, as loads: recorded requests with their times and addresses.
//!
//! | format | a request is |
//! |---|---|
//! | `msr` | `timestamp in 100 ns,host,disk,Read or Write,offset,bytes,response` (Microsoft Research Cambridge) |
//! | `systor` | `timestamp in s,response,R or W,LUN,offset,bytes` (SYSTOR'17), with a header or without |
//! | `tencent` | `timestamp in s,sector,sectors,0 read or 1 write,volume` (Tencent CBS) |
//! | `alibaba` | `volume,R or W,offset,bytes,timestamp in us` (Alibaba) |
//! | `mqsim` | `time in ns,device,sector,sectors,1 read or 0 write`, between spaces |
//! | `blkparse` | a line of `blkparse`'s usual text; queued requests (Q) count, discards and flushes are left out |
//! | `fairq` | `time in ns,shard,event,tenant,tag,read or write,offset,bytes,…`: the output of `fairq ctl trace --format csv`; only arrivals count |
//! | `vscsi` | a binary record of 32 bytes (version 1) or 40 (version 2): reads and writes by SCSI's opcodes |
//!
//! **Edges.** A trace is untrusted. Each field is read once, here, and an impossible value is an
//! error with its line or record: lengths of 0 or above [`LARGEST`], ends beyond 2^63, more than
//! [`MOST`] requests, lines longer than [`LONGEST_LINE`]. Times count from the first request; a
//! time before that of the previous request (some traces are sorted by completion) counts as the
//! latest time so far. The replay takes addresses modulo the device's size, in whole sectors.

use std::io::{BufRead, Read};
use std::sync::Arc;

use fairq_core::Op;

mod line;
#[cfg(test)]
mod tests;
mod vscsi;

/// The largest request, in bytes.
pub const LARGEST: u64 = 64 << 20;
/// The most requests of a trace.
pub const MOST: usize = 50_000_000;
/// The longest line, in bytes.
pub const LONGEST_LINE: u64 = 4096;

/// Sectors, in bytes.
const SECTOR: u64 = 512;

/// The format of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Microsoft Research Cambridge.
    Msr,
    /// SYSTOR'17.
    Systor,
    /// Tencent's block storage.
    Tencent,
    /// Alibaba's block storage.
    Alibaba,
    /// MQSim's.
    Mqsim,
    /// The text output of `blkparse`.
    Blkparse,
    /// CloudPhysics' binary records.
    Vscsi,
    /// The output of `fairq ctl trace --format csv`.
    Fairq,
}

/// A request of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Time since the first request, in nanoseconds.
    pub at_ns: u64,
    /// A read or a write.
    pub op: Op,
    /// Address, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u32,
}

/// Requests, in the order in which they were made.
#[derive(Clone, Debug)]
pub struct Trace {
    asked: Arc<[Asked]>,
}

/// The reason why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The trace cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line (or record) does not have the format.
    #[error("{unit} {number}: {what}")]
    Bad {
        /// Lines or records.
        unit: &'static str,
        /// Number of the line or record, from 1.
        number: usize,
        /// Description of the error.
        what: String,
    },
    /// The trace has no requests.
    #[error("no \
     requests{}", .volume.as_ref().map(|volume| format!(" of volume \
      {volume}")).unwrap_or_default())]
    Empty {
        /// The selected volume, if one was selected.
        volume: Option<String>,
    },
}

/// A request before times are made relative.
struct Raw<'a> {
    /// Time in nanoseconds, from the trace's own origin.
    at_ns: u128,
    volume: &'a str,
    op: Op,
    offset: u64,
    bytes: u64,
}

impl Format {
    /// All formats, by name.
    pub const ALL: [(&'static str, Format); 8] = [
        ("msr", Format::Msr),
        ("systor", Format::Systor),
        ("tencent", Format::Tencent),
        ("alibaba", Format::Alibaba),
        ("mqsim", Format::Mqsim),
        ("blkparse", Format::Blkparse),
        ("vscsi", Format::Vscsi),
        ("fairq", Format::Fairq),
    ];

    /// The format with this name.
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.iter().find(|format| format.0 == name).map(|format| format.1)
    }
}

impl Trace {
    /// Reads a trace; only one volume, disk or LUN of it, if one is named.
    pub fn read(
        format: Format,
        from: impl BufRead,
        volume: Option<&str>,
    ) -> Result<Trace, TraceError> {
        let mut reader = Reader { asked: Vec::new(), first_ns: None };
        match format {
            Format::Vscsi => vscsi::read(from, &mut reader)?,
            _ => lines(format, from, volume, &mut reader)?,
        }
        if reader.asked.is_empty() {
            return Err(TraceError::Empty { volume: volume.map(str::to_owned) });
        }
        Ok(Trace { asked: reader.asked.into() })
    }

    /// Its requests.
    pub fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// The fraction of reads among all requests, and the mean length in bytes.
    pub fn mix(&self) -> (f64, f64) {
        let count = self.asked.len() as f64;
        let reads = self.asked.iter().filter(|asked| asked.op == Op::Read).count();
        let bytes: u64 = self.asked.iter().map(|asked| u64::from(asked.length)).sum();
        (reads as f64 / count, bytes as f64 / count)
    }
}

fn lines(
    format: Format,
    mut from: impl BufRead,
    volume: Option<&str>,
    reader: &mut Reader,
) -> Result<(), TraceError> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        // Reading one byte more than allowed distinguishes a line that is too long from one that
        // fits.
        let read = from.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        let bad = |what: String| TraceError::Bad { unit: "line", number, what };
        if read as u64 > LONGEST_LINE {
            return Err(bad(format!("longer than {LONGEST_LINE} bytes: this is not a text trace")));
        }
        let text = std::str::from_utf8(&line)
            .map_err(|_| bad("not text: unpack the file first".into()))?
            .trim();
        if text.is_empty()
            || (format == Format::Systor && number == 1 && text.starts_with("Timestamp"))
        {
            continue;
        }
        let Some(raw) = line::parse(format, text).map_err(bad)? else { continue };
        if volume.is_none_or(|volume| volume == raw.volume) {
            reader.take(&raw).map_err(bad)?;
        }
    }
    Ok(())
}

/// Collects the requests of a trace.
struct Reader {
    asked: Vec<Asked>,
    first_ns: Option<u128>,
}

impl Reader {
    fn take(&mut self, raw: &Raw<'_>) -> Result<(), String> {
        let Raw { at_ns, op, offset, bytes, .. } = *raw;
        if bytes == 0 || bytes > LARGEST {
            return Err(format!("a request of {bytes} bytes: there must be 1 to {LARGEST}"));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
            return Err(format!("a request at {offset}, which is beyond any device"));
        }
        if self.asked.len() == MOST {
            return Err(format!("more than {MOST} requests: cut the trace"));
        }
        // Computed in 128 bits, because a time of 64 bits in microseconds may not fit into 64 bits
        // in nanoseconds.
        let first_ns = *self.first_ns.get_or_insert(at_ns);
        let latest_ns = self.asked.last().map_or(0, |asked| asked.at_ns);
        let at_ns =
            u64::try_from(at_ns.saturating_sub(first_ns)).unwrap_or(u64::MAX).max(latest_ns);
        self.asked.push(Asked { at_ns, op, offset, length: bytes as u32 });
        Ok(())
    }
}
