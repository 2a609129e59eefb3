//! Parsers for a line of each text format.

use fairq_core::Op;

use super::{Format, Raw, SECTOR};

/// The request of a line; `None` if it has none that is replayed.
pub(super) fn parse(format: Format, line: &str) -> Result<Option<Raw<'_>>, String> {
    match format {
        Format::Msr => msr(line).map(Some),
        Format::Systor => systor(line).map(Some),
        Format::Tencent => tencent(line).map(Some),
        Format::Alibaba => alibaba(line).map(Some),
        Format::Mqsim => mqsim(line).map(Some),
        Format::Blkparse => blkparse(line),
        Format::Fairq => fairq(line),
        Format::Vscsi => Err("records are not lines".into()),
    }
}

/// Splits a line into exactly `N` fields.
fn fields<'a, const N: usize>(
    line: &'a str,
    mut split: impl Iterator<Item = &'a str>,
) -> Result<[&'a str; N], String> {
    let mut fields = [""; N];
    for field in &mut fields {
        *field = split
            .next()
            .ok_or_else(|| format!("fewer than {N} fields: `{}`", shortened(line)))?
            .trim();
    }
    match split.next() {
        None => Ok(fields),
        Some(_) => Err(format!("more than {N} fields: `{}`", shortened(line))),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{what} `{}` is not a whole number", shortened(text)))
}

fn sectors(text: &str, what: &str) -> Result<u64, String> {
    number(text, what)?
        .checked_mul(SECTOR)
        .ok_or_else(|| format!("{what} `{}` is too large", shortened(text)))
}

/// Seconds with up to nine digits after the point, exactly.
fn seconds(text: &str) -> Result<u128, String> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || whole.len() > 18 || (text.contains('.') && !is_number(part)) {
        return Err(format!("time `{}` is not a number of seconds", shortened(text)));
    }
    // `part` has only ASCII digits here, so the cut below is at a character boundary.
    let digits = format!("{part:0<9}");
    let nanoseconds: u128 =
        digits[..9].parse().map_err(|_| format!("time `{}`", shortened(text)))?;
    Ok(whole.parse::<u128>().unwrap_or(0) * 1_000_000_000 + nanoseconds)
}

fn operation(text: &str, read: &str, write: &str) -> Result<Op, String> {
    if text.eq_ignore_ascii_case(read) {
        Ok(Op::Read)
    } else if text.eq_ignore_ascii_case(write) {
        Ok(Op::Write)
    } else {
        Err(format!("`{}` is neither {read} (a read) nor {write} (a write)", shortened(text)))
    }
}

fn msr(line: &str) -> Result<Raw<'_>, String> {
    let [time, _host, volume, op, offset, bytes, _response] = fields(line, line.split(','))?;
    let at_ns = u128::from(number(time, "timestamp")?) * 100;
    let op = operation(op, "Read", "Write")?;
    Ok(Raw { at_ns, volume, op, offset: number(offset, "offset")?, bytes: number(bytes, "size")? })
}

fn systor(line: &str) -> Result<Raw<'_>, String> {
    let [time, _response, op, volume, offset, bytes] = fields(line, line.split(','))?;
    let op = operation(op, "R", "W")?;
    Ok(Raw {
        at_ns: seconds(time)?,
        volume,
        op,
        offset: number(offset, "offset")?,
        bytes: number(bytes, "size")?,
    })
}

fn tencent(line: &str) -> Result<Raw<'_>, String> {
    let [time, sector, count, op, volume] = fields(line, line.split(','))?;
    let at_ns = u128::from(number(time, "timestamp")?) * 1_000_000_000;
    let op = operation(op, "0", "1")?;
    Ok(Raw {
        at_ns,
        volume,
        op,
        offset: sectors(sector, "offset")?,
        bytes: sectors(count, "size")?,
    })
}

fn alibaba(line: &str) -> Result<Raw<'_>, String> {
    let [volume, op, offset, bytes, time] = fields(line, line.split(','))?;
    let at_ns = u128::from(number(time, "timestamp")?) * 1_000;
    let op = operation(op, "R", "W")?;
    Ok(Raw { at_ns, volume, op, offset: number(offset, "offset")?, bytes: number(bytes, "size")? })
}

fn mqsim(line: &str) -> Result<Raw<'_>, String> {
    let [time, volume, sector, count, op] = fields(line, line.split_ascii_whitespace())?;
    let at_ns = u128::from(number(time, "time")?);
    let op = operation(op, "1", "0")?;
    Ok(Raw {
        at_ns,
        volume,
        op,
        offset: sectors(sector, "sector")?,
        bytes: sectors(count, "size")?,
    })
}

/// A decision of a scheduler; only arrivals of reads and writes are requests. The first line names
/// the columns.
fn fairq(line: &str) -> Result<Option<Raw<'_>>, String> {
    let [
        time,
        _shard,
        event,
        volume,
        _tag,
        op,
        offset,
        bytes,
        _class,
        _free_slots,
        _now,
        _start,
        _why,
    ] = fields(line, line.split(',').take(13))?;
    // Skips flushes and discards, which also arrive, and the line that names the columns.
    if event != "arrive" || !["read", "write"].contains(&op) {
        return Ok(None);
    }
    let at_ns = u128::from(number(time, "time")?);
    let op = operation(op, "read", "write")?;
    Ok(Some(Raw {
        at_ns,
        volume,
        op,
        offset: number(offset, "offset")?,
        bytes: number(bytes, "size")?,
    }))
}

/// `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`: device, CPU, number, time, process,
/// action, kind, place. The lines of `blkparse`'s summary at the end do not begin with a device and
/// are skipped.
fn blkparse(line: &str) -> Result<Option<Raw<'_>>, String> {
    let mut words = line.split_ascii_whitespace();
    let mut word = || words.next();
    let Some(volume) = word().filter(|device| is_device(device)) else { return Ok(None) };
    let (Some(_cpu), Some(_number), Some(time), Some(_process), Some(action), Some(kind)) =
        (word(), word(), word(), word(), word(), word())
    else {
        return Err(format!("fewer than 7 fields: `{}`", shortened(line)));
    };
    // A kind is a string of letters: D discards, R reads, W writes; further letters (S, M, A) do
    // not matter.
    let op = match (kind.contains('D'), kind.contains('R'), kind.contains('W')) {
        (false, true, _) => Op::Read,
        (false, _, true) => Op::Write,
        _ => return Ok(None),
    };
    if action != "Q" {
        return Ok(None);
    }
    let (Some(sector), Some("+"), Some(count)) = (word(), word(), word()) else {
        // A flush is queued as a write without sectors.
        return Ok(None);
    };
    let at_ns = seconds(time)?;
    Ok(Some(Raw {
        at_ns,
        volume,
        op,
        offset: sectors(sector, "sector")?,
        bytes: sectors(count, "size")?,
    }))
}

fn is_device(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}
