//! The status of `fairq serve`, once a second: on a terminal a table that is redrawn in place,
//! otherwise (with `--status`) one line for each tenant.
//!
//! A tenant is *active* in a second in which it completed a request or has one in flight. Its
//! entitled share is its part among the active tenants, by weight.
//!
//! The program never waits for a reader: lines that do not fit are dropped, and their number is in
//! the next line ([`unread`]); a stopped terminal keeps its table.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{show_bandwidth, show_count, show_duration, show_percent};
use fairq_host::observe::stats::TenantStats;

use crate::unread::{self, Lost};
use crate::view::LastSecond;

/// A tenant in one second.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    /// `None` while the tenant is idle.
    pub(crate) now: Option<LastSecond>,
}

/// Each tenant's row from the counts of `seconds`. `stores` has each tenant's store; shares are
/// parts of the store's total.
pub(crate) fn rows<'a>(
    tenants: &[(&'a str, u16)],
    stores: &[u16],
    counted: &[Arc<TenantStats>],
    seconds: f64,
) -> Vec<Row<'a>> {
    let is_active = |stats: &TenantStats| stats.operations() > 0 || stats.in_flight > 0;
    // For each store, the weights of active tenants, and the bytes of all.
    let mut sums: HashMap<u16, (f64, u64)> = HashMap::new();
    for (((_, weight), store), stats) in tenants.iter().zip(stores).zip(counted) {
        let (weights, bytes) = sums.entry(*store).or_default();
        *weights += if is_active(stats) { f64::from(*weight) } else { 0.0 };
        *bytes += stats.bytes();
    }
    tenants
        .iter()
        .zip(stores)
        .zip(counted)
        .map(|(((name, weight), store), stats)| (name, weight, stats, sums[store]))
        .map(|(name, weight, stats, (weights, bytes))| Row {
            name,
            now: is_active(stats).then(|| LastSecond {
                entitled: f64::from(*weight) / weights,
                // A tenant may be active without a byte, if it flushes or waits.
                share: if bytes == 0 { 0.0 } else { stats.bytes() as f64 / bytes as f64 },
                iops: stats.operations() as f64 / seconds,
                bytes_per_s: stats.bytes() as f64 / seconds,
                p50_ns: stats.latency_ns.value_at_quantile(0.5),
                p99_ns: stats.latency_ns.value_at_quantile(0.99),
                staged_ns: stats.staged_ns as f64 / stats.operations().max(1) as f64,
                device_ns: stats.device_ns as f64 / stats.operations().max(1) as f64,
            }),
        })
        .collect()
}

/// The table of at most `most` tenants: if there are more, of the tenants with the most bytes.
pub(crate) fn table(rows: &[Row<'_>], most: usize, summary: &str) -> String {
    let mut shown: Vec<&Row<'_>> = rows.iter().collect();
    let hidden = rows.len().saturating_sub(most);
    if hidden > 0 {
        let moved = |row: &&Row<'_>| row.now.map_or(0.0, |now| now.bytes_per_s);
        shown.sort_by(|a, b| moved(b).total_cmp(&moved(a)));
        shown.truncate(most);
    }
    let mut table = plain_table();
    table.set_header(["tenant", "entitled", "share", "IOPS", "bandwidth", "p99"]);
    for row in shown {
        let cells = match row.now {
            Some(now) => [
                show_percent(now.entitled),
                show_percent(now.share),
                show_count(now.iops),
                show_bandwidth(now.bytes_per_s),
                show_duration(now.p99_ns as f64),
            ],
            None => ["–".into(), "–".into(), "–".into(), "–".into(), "–".into()],
        };
        table.add_row([vec![row.name.to_owned()], cells.to_vec()].concat());
    }
    align_right(&mut table);
    // Constant widths keep the table steady.
    for (column, width) in [0, 8, 7, 7, 9, 8].into_iter().enumerate().skip(1) {
        if let Some(column) = table.column_mut(column) {
            column.set_constraint(comfy_table::ColumnConstraint::LowerBoundary(
                comfy_table::Width::Fixed(width + 2),
            ));
        }
    }
    let more = if hidden > 0 { format!("… and {hidden} more") } else { String::new() };
    let mut text = table.to_string();
    for line in [more.as_str(), summary].into_iter().filter(|line| !line.is_empty()) {
        text += "\n ";
        text += line;
    }
    text
}

/// One line for each tenant, for files and pipes: names and plain numbers.
pub(crate) fn lines(rows: &[Row<'_>], elapsed: Duration) -> String {
    let line = |row: &Row<'_>| match row.now {
        Some(now) => format!(
            "status seconds={} tenant={} entitled={:.4} share={:.4} iops={:.0} bytes_per_s={:.0} \
             p99_us={:.0}\n",
            elapsed.as_secs(),
            row.name,
            now.entitled,
            now.share,
            now.iops,
            now.bytes_per_s,
            now.p99_ns as f64 / 1e3,
        ),
        None => format!("status seconds={} tenant={} idle\n", elapsed.as_secs(), row.name),
    };
    rows.iter().map(line).collect()
}

/// The lines that were lost after the last written line.
static LOST: Mutex<Lost> = Mutex::new(Lost::nothing());

/// Writes lines to standard output.
pub(crate) fn write(lines: &str) -> io::Result<()> {
    let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
    unread::deliver(&mut io::stdout(), lines.as_bytes(), &mut lost, |lines| {
        format!("status lost_lines={lines}")
    })
}

/// Number of the table's lines on the terminal, above the cursor.
static DRAWN: Mutex<usize> = Mutex::new(0);

/// Replaces the table on the terminal.
pub(crate) fn redraw(text: &str) -> io::Result<()> {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out = io::stdout().lock();
    // A stopped terminal blocks a write, which would stop the control thread.
    if !unread::has_room_now(&out)? {
        return Ok(());
    }
    out.write_all(frame(*drawn, text).as_bytes())?;
    *drawn = text.lines().count();
    out.flush()
}

/// The output that replaces `drawn` lines by `text`: it moves up, then writes each line and erases
/// the rest of the old one.
fn frame(drawn: usize, text: &str) -> String {
    let up = if drawn > 0 { format!("\x1b[{drawn}A") } else { String::new() };
    let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
    format!("\r{up}{lines}\x1b[J")
}

/// Erases the table before other output to the terminal; in the next second it is drawn below that
/// output.
pub(crate) fn take_away() -> io::Result<()> {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    if *drawn > 0 {
        let mut out = io::stdout().lock();
        if !unread::has_room_now(&out)? {
            return Ok(());
        }
        out.write_all(frame(*drawn, "").as_bytes())?;
        out.flush()?;
        *drawn = 0;
    }
    Ok(())
}

/// Rows of the terminal on standard output, if it is one.
pub(crate) fn terminal_rows() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&out).ok();
    // Some terminals, for instance serial lines, report no size.
    Some(size.map(|size| usize::from(size.ws_row)).filter(|&rows| rows > 0).unwrap_or(24))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairq_core::Op;

    fn stats(reads: u64, latency_ns: u64) -> TenantStats {
        let mut stats = TenantStats::default();
        (0..reads).for_each(|_| stats.count(Op::Read, 4096, 0, latency_ns, 0));
        stats
    }

    fn three() -> Vec<Row<'static>> {
        let tenants = [("gold", 300), ("silver", 100), ("lead", 100)];
        rows(
            &tenants,
            &[0; 3],
            &[stats(600, 90_000), stats(200, 310_000), stats(0, 0)].map(Arc::new),
            0.5,
        )
    }

    #[test]
    fn an_idle_tenant_leaves_its_part_to_the_others() {
        let rows = three();
        let gold = rows[0].now.unwrap();
        assert_eq!(
            (gold.entitled, gold.share, gold.iops, gold.bytes_per_s),
            (0.75, 0.75, 1200.0, 4_915_200.0)
        );
        assert!((89_000..=91_000).contains(&gold.p99_ns), "{}", gold.p99_ns);
        assert_eq!(rows[2].now, None);
        let mut waiting = stats(0, 0);
        waiting.in_flight = 1;
        let tenants = [("a", 100), ("b", 300)];
        let rows = super::rows(&tenants, &[0; 2], &[stats(10, 1000), waiting].map(Arc::new), 1.0);
        assert_eq!(rows[1].now.unwrap().entitled, 0.75, "who waits is active");
    }

    #[test]
    fn the_table_shows_who_moves_most_if_it_cannot_show_all() {
        let text = table(&three(), 8, "2 connections");
        let expected = [
            " tenant   entitled     share      IOPS   bandwidth        p99 ",
            "──────────────────────────────────────────────────────────────",
            " gold       75.0 %    75.0 %    1.20 k   4.92 MB/s    90.1 µs ",
            " silver     25.0 %    25.0 %       400   1.64 MB/s     311 µs ",
            " lead            –         –         –           –          – ",
            " 2 connections",
        ];
        let expected = expected.join("\n");
        assert_eq!(text, expected, "\n{text}");
        let text = table(&three(), 1, "");
        assert!(
            text.contains("gold") && !text.contains("silver") && text.ends_with("\n … and 2 more"),
            "\n{text}"
        );
    }

    #[test]
    fn lines_are_for_programs() {
        let text = lines(&three(), Duration::from_millis(12_345));
        let mut lines = text.lines();
        let gold = lines.next().unwrap();
        assert!(gold.starts_with(
            "status seconds=12 tenant=gold entitled=0.7500 share=0.7500 iops=1200 \
             bytes_per_s=4915200"
        ));
        assert_eq!(lines.nth(1), Some("status seconds=12 tenant=lead idle"));
    }

    #[test]
    fn a_frame_takes_the_old_lines_away() {
        assert_eq!(frame(0, "a\nb"), "\ra\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(frame(3, "a"), "\r\x1b[3Aa\x1b[K\n\x1b[J");
        assert_eq!(frame(3, ""), "\r\x1b[3A\x1b[J");
    }

    #[test]
    fn shares_are_those_of_a_store() {
        let tenants = [("a", 300), ("b", 100), ("c", 7)];
        let counted = [stats(30, 1000), stats(10, 1000), stats(500, 1000)].map(Arc::new);
        let rows = super::rows(&tenants, &[0, 0, 1], &counted, 1.0);
        let entitled: Vec<f64> = rows.iter().map(|row| row.now.unwrap().entitled).collect();
        assert_eq!(entitled, [0.75, 0.25, 1.0]);
        assert_eq!(rows[2].now.unwrap().share, 1.0);
    }
}
