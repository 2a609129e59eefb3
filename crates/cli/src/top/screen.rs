//! The screen has a summary, a table with bars, and a line of keys. It needs 80 columns, and shows
//! more columns in wider terminals. The column of latency targets replaces a less important column
//! while a tenant has a target. A missed target has a mark, and its cause is in the summary.

use fairq_config::units::{show_bandwidth, show_count, show_duration, show_percent, show_size};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget};

use super::order::Order;
use crate::view::{
    ClassWeights, DepthState, Group, LastSecond, LatencyTarget, Look, PolicyState, TenantRow,
};

/// Width of a bar, in columns.
const BAR: usize = 12;
/// Width of the bar of slots, in columns.
const SLOTS: usize = 8;
/// Width of a terminal from which on all columns fit.
const WIDE: u16 = 110;
/// The least width for all columns with the column of latency targets.
const WIDE_WITH_TARGETS: u16 = 120;
/// The most lines about stores, if there are several.
const STORE_LINES: usize = 4;
/// The most lines about groups.
const PROMISED_LINES: usize = 3;
/// The most lines about missed targets.
const MISSED_LINES: usize = 3;

/// The state of the screen without the server's numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    pub(crate) order: Order,
    /// The selected row. `chosen` is the name of its tenant, which may move to another row each
    /// second.
    pub(crate) selected: usize,
    pub(crate) chosen: Option<String>,
    pub(crate) is_paused: bool,
    /// The tenant whose weight is being typed, and the typed digits.
    pub(crate) typed: Option<(String, String)>,
    /// The last error.
    pub(crate) complaint: Option<String>,
}

impl Screen {
    /// Selects the row of the selected tenant after a new view.
    pub(crate) fn follow(&mut self, look: &Look) {
        let place = self
            .chosen
            .as_ref()
            .and_then(|name| look.tenants.iter().position(|tenant| tenant.name == *name));
        self.selected = place.unwrap_or(self.selected).min(look.tenants.len().saturating_sub(1));
        self.chosen = look.tenants.get(self.selected).map(|tenant| tenant.name.clone());
    }

    /// Moves the selection down by `rows`; a negative number moves it up.
    pub(crate) fn step(&mut self, rows: isize) {
        self.selected = self.selected.saturating_add_signed(rows);
        // Until the next `follow` the row itself is selected, and no longer the tenant that was in
        // it.
        self.chosen = None;
    }
}

/// Draws a view of a server.
pub(crate) fn draw(look: &Look, screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let lines = summary(look, screen, area.width);
    let height = Constraint::Length(lines.len() as u16);
    let [head, table, foot] =
        Layout::vertical([height, Constraint::Min(1), Constraint::Length(1)]).areas(area);
    Paragraph::new(lines).render(head, buffer);
    tenants(look, screen, table, buffer);
    Paragraph::new(keys(screen)).render(foot, buffer);
}

/// The number of lines that all tenants of a view need at this width.
pub(crate) fn height(look: &Look, screen: &Screen, width: u16) -> u16 {
    let keys_and_heads = 2;
    (summary(look, screen, width).len() + look.tenants.len() + keys_and_heads) as u16
}

fn summary(look: &Look, screen: &Screen, width: u16) -> Vec<Line<'static>> {
    let status = &look.status;
    let active = || look.tenants.iter().filter_map(|tenant| tenant.last_second);
    let iops: f64 = active().map(|last| last.iops).sum();
    let bytes: f64 = active().map(|last| last.bytes_per_s).sum();
    let state = &status.policy_state;
    let mut first =
        format!("fairq · up {:.0} s · {} connections", status.uptime_s, status.connections);
    if status.draining {
        first += " · draining";
    }
    if screen.is_paused {
        first += " · PAUSED";
    }
    first += &format!(" · {}", status.device);
    let second =
        format!("{} · {} IOPS · {}", status.policy, show_count(iops), show_bandwidth(bytes));
    let mut third = of_policy(state);
    let targets = look.tenants.iter().filter_map(|tenant| tenant.latency_target.as_ref());
    if let Some(bound) = targets.filter_map(|target| target.slots_bound).min() {
        third.push(format!("held to {bound} for latency targets"));
    }
    if let Some(ClassWeights { high, medium, low }) = state.class_weights {
        third.push(format!("H/M/L {high}/{medium}/{low}"));
    }
    let stores = &look.status.stores;
    if stores.len() > 1 {
        third.push(format!("{} stores, weights and shares count within each", stores.len()));
    }
    for store in stores.iter().filter(|store| store.stuck) {
        // A stuck store is first in the line, because the screen cuts off the end of a long line.
        third.insert(0, format!("STUCK: {} for {:.0} s", store.name, store.oldest_s));
    }
    third.extend(ahead(state));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines =
        vec![Line::styled(first, bold), Line::raw(second), Line::raw(third.join(" · "))];
    // Each of several stores has a policy of its own.
    for store in stores.iter().filter(|_| stores.len() > 1).take(STORE_LINES) {
        let state = &store.policy_state;
        let parts: Vec<String> = of_policy(state).into_iter().chain(ahead(state)).collect();
        let is_chosen = store_of(look, screen) == Some(&*store.name);
        let mark = if is_chosen { "▸" } else { " " };
        lines.push(Line::raw(format!("{mark} {}: {}", store.name, parts.join(" · "))));
    }
    lines.extend(promised(look, screen, width).into_iter().map(Line::raw));
    lines.extend(missed(look, screen, width).into_iter().map(|line| Line::styled(line, bold)));
    lines
}

/// The store of the selected tenant.
fn store_of<'a>(look: &'a Look, screen: &Screen) -> Option<&'a str> {
    look.tenants.get(screen.selected)?.store.as_deref()
}

/// The slots of a policy, and the reason for D.
fn of_policy(state: &PolicyState) -> Vec<String> {
    let mut parts = Vec::new();
    if let (None, Some(depth)) = (state.slots, &state.depth) {
        parts.push(format!("the device is busy with {}", depth.slots));
    }
    if let (Some(slots), Some(used)) = (state.slots, state.slots_in_use) {
        // Rounded up, so that a single slot in use is visible.
        let filled = (used as usize * SLOTS).div_ceil(slots.max(1) as usize).min(SLOTS);
        let empty = SLOTS - filled;
        parts.push(format!("D {}{} {used}/{slots}", "▪".repeat(filled), "·".repeat(empty)));
        parts.extend(state.depth.as_ref().map(|depth| match depth.state {
            DepthState::Found => format!(
                "{} fill the device ({} IOPS, {})",
                depth.slots,
                show_count(depth.requests_per_s as f64),
                show_bandwidth(depth.bytes_per_s as f64)
            ),
            DepthState::Searching => "searching for D".into(),
            DepthState::Alone => "no D for one tenant".into(),
            _ => "all requests are on it".into(),
        }));
    }
    parts
}

/// The distance of the foremost request from virtual time.
fn ahead(state: &PolicyState) -> Option<String> {
    let spread = state.virtual_time_spread?;
    Some(format!("foremost {} ahead of virtual time", show_size(spread)))
}

/// The lines about groups and about the selected tenant's promises.
fn promised(look: &Look, screen: &Screen, width: u16) -> Vec<String> {
    let group = |of: &Group| {
        let promised = of.promised.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        format!("{} weight {}, {}/{} active{promised}", of.name, of.weight, of.active, of.members)
    };
    let groups: Vec<String> = look.groups.iter().map(group).collect();
    let mut lines = match groups.is_empty() {
        true => Vec::new(),
        false => wrapped(&format!("groups  {}", groups.join("; ")), width.into()),
    };
    lines.truncate(PROMISED_LINES);
    let tenant = look.tenants.get(screen.selected);
    if let Some((name, text)) = tenant.and_then(|of| Some((&of.name, of.promised.as_ref()?))) {
        lines.extend(wrapped(&format!("{name}  {text}"), width.into()).into_iter().take(2));
    }
    lines
}

/// The missed latency targets with their causes: the selected tenant's in full, or else the first
/// one's.
fn missed(look: &Look, screen: &Screen, width: u16) -> Vec<String> {
    let target = |tenant: &'_ TenantRow| tenant.latency_target.clone().filter(|of| of.is_missed());
    let mut missed: Vec<(&str, LatencyTarget)> =
        look.tenants.iter().filter_map(|tenant| Some((&*tenant.name, target(tenant)?))).collect();
    // The sort is stable: after the selected tenant the others keep their order.
    missed.sort_by_key(|(name, _)| screen.chosen.as_deref() != Some(name));
    let Some((name, of)) = missed.first() else { return Vec::new() };
    let late = of.late as f64 / of.completed.max(1) as f64;
    let others = match missed.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let cause = of.cause.as_deref().unwrap_or("other tenants are throttled for it");
    let text = format!(
        "! {name}{others}: {} later than {}, limit {}: {cause}",
        show_percent(late),
        show_duration(of.target_ns as f64),
        show_percent(1.0 - of.percentile / 100.0),
    );
    let mut lines = wrapped(&text, width.into());
    lines.truncate(MISSED_LINES);
    lines
}

/// A text in lines of at most this width, unless a word is longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                *line += " ";
                *line += word;
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The columns of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    Weight,
    Bar,
    Share,
    Iops,
    Bandwidth,
    P50,
    P99,
    Target,
    Staged,
    Device,
    Queue,
    HurtBy,
}

impl Column {
    /// The columns that fit, with their widths.
    fn of(width: u16, has_targets: bool) -> Vec<(Column, usize)> {
        use Column::*;
        let mut columns =
            vec![(Name, 9), (Weight, 6), (Bar, BAR), (Share, 7), (Iops, 7), (Bandwidth, 9)];
        columns.extend_from_slice(match has_targets {
            false if width >= WIDE => {
                &[(P50, 8), (P99, 7), (Staged, 7), (Device, 8), (Queue, 9), (HurtBy, 20)]
            }
            false => &[(P99, 7), (Staged, 7), (HurtBy, 8)],
            true if width >= WIDE_WITH_TARGETS => {
                &[(P99, 7), (Target, 14), (Staged, 7), (Device, 8), (Queue, 9), (HurtBy, 14)]
            }
            true => &[(P99, 7), (Target, 8), (HurtBy, 7)],
        });
        columns
    }

    fn head(self) -> &'static str {
        match self {
            Column::Name => "tenant",
            Column::Weight => "weight",
            Column::Bar => "got, │ due",
            Column::Share => "share",
            Column::Iops => "IOPS",
            Column::Bandwidth => "bandwidth",
            Column::P50 => "p50",
            Column::P99 => "p99",
            Column::Target => "target",
            Column::Staged => "staged",
            Column::Device => "device",
            Column::Queue => "queue",
            Column::HurtBy => "hurt by",
        }
    }

    /// Whether the column is text. Numbers and their heads are aligned to the right.
    fn is_text(self) -> bool {
        matches!(self, Column::Name | Column::Bar | Column::HurtBy)
    }

    /// The column's text for a tenant.
    fn text(self, tenant: &TenantRow, width: usize) -> String {
        match (self, tenant.last_second) {
            (Column::Name, _) => tenant.name.clone(),
            (Column::Weight, _) => tenant.weight.to_string(),
            (Column::Target, _) => tenant.latency_target.as_ref().map_or("".into(), |target| {
                let percentile = format!("p{} ", target.percentile);
                let long = if width > 8 && target.percentile != 99.0 { &*percentile } else { "" };
                let mark = if target.is_missed() { "!" } else { "" };
                format!("{mark}{long}{}", show_duration(target.target_ns as f64))
            }),
            (Column::Bar, None) => "idle".into(),
            (_, None) => String::new(),
            (_, Some(last)) => self.active(tenant, &last),
        }
    }

    /// The column's text for an active tenant.
    fn active(self, tenant: &TenantRow, last: &LastSecond) -> String {
        match self {
            Column::Bar => bar(last.share, last.entitled),
            Column::Share => show_percent(last.share),
            Column::Iops => show_count(last.iops),
            Column::Bandwidth => show_bandwidth(last.bytes_per_s),
            Column::P50 => show_duration(last.p50_ns as f64),
            Column::P99 => show_duration(last.p99_ns as f64),
            Column::Staged => show_duration(last.staged_ns),
            Column::Device => show_duration(last.device_ns),
            Column::Queue => {
                format!("{}+{}", tenant.staged, tenant.in_flight.saturating_sub(tenant.staged))
            }
            Column::HurtBy => tenant
                .worst()
                .map_or(String::new(), |(name, part)| format!("{:.0}% {name}", part * 100.0)),
            Column::Name | Column::Weight | Column::Target => String::new(),
        }
    }

    /// A cell with a head or a value.
    fn cell(self, text: String, width: usize) -> Cell<'static> {
        Cell::new(if self.is_text() { text } else { format!("{text:>width$}") })
    }
}

fn tenants(look: &Look, screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let has_targets = look.tenants.iter().any(|tenant| tenant.latency_target.is_some());
    let columns = Column::of(area.width, has_targets);
    let widths = columns.iter().map(|&(_, width)| width as u16);
    let most = usize::from(area.height.saturating_sub(1));
    // The selected row stays visible.
    let from = screen.selected.saturating_sub(most.saturating_sub(1));
    let rows = look.tenants.iter().enumerate().skip(from).take(most).map(|(index, tenant)| {
        let style = if index == screen.selected {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        let cell =
            |&(column, width): &(Column, usize)| column.cell(column.text(tenant, width), width);
        Row::new(columns.iter().map(cell)).style(style)
    });
    let heads = columns.iter().map(|&(column, width)| column.cell(column.head().into(), width));
    let head = Row::new(heads).style(Style::new().add_modifier(Modifier::UNDERLINED));
    Widget::render(Table::new(rows, widths).header(head).column_spacing(1), area, buffer);
}

/// A bar for the tenant's share, with a mark at its entitled share: they differ by shape, not
/// colour.
fn bar(share: f64, entitled: f64) -> String {
    let at = |part: f64| ((part * BAR as f64).round() as usize).min(BAR);
    // The mark is in the last entitled column: at 100 % it is still inside the bar.
    let (filled, mark) = (at(share), at(entitled).saturating_sub(1));
    (0..BAR)
        .map(|column| match (column == mark, column < filled) {
            (true, true) => '╋',
            (true, false) => '│',
            (false, true) => '━',
            (false, false) => ' ',
        })
        .collect()
}

fn keys(screen: &Screen) -> Line<'static> {
    if let Some((tenant, typed)) = &screen.typed {
        return Line::raw(format!(
            "weight of {tenant}, 1 to 10000: {typed}_   Enter sets it, Esc does not"
        ));
    }
    if let Some(complaint) = &screen.complaint {
        return Line::styled(complaint.clone(), Style::new().add_modifier(Modifier::BOLD));
    }
    let key = |text: &'static str| Span::styled(text, Style::new().add_modifier(Modifier::BOLD));
    Line::from(vec![
        key("q"),
        Span::raw(" quit  "),
        key("s"),
        Span::raw(format!(" sort ({})  ", screen.order.name())),
        key("↑↓"),
        Span::raw(" select  "),
        key("w"),
        Span::raw(" weight  "),
        key("space"),
        Span::raw(if screen.is_paused { " go on" } else { " pause" }),
    ])
}

/// The view as text, for a terminal of this size.
pub(crate) fn text(look: &Look, screen: &Screen, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(look, screen, area, &mut buffer);
    let line = |row: u16| {
        let cells: String = (0..width).map(|column| buffer[(column, row)].symbol()).collect();
        cells.trim_end().to_owned()
    };
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look() -> Look {
        let last = |entitled: f64, share: f64, iops: f64| {
            json!({
                "entitled": entitled, "share": share, "iops": iops, "bytes_per_s": iops * 4096.0, "p50_ns": 800_000,
                "p99_ns": 2_345_678, "staged_ns": 412_000, "device_ns": 101_000,
            })
        };
        let tenant = |name: &str, weight: u64, last: Value, hurt: Value| {
            json!({
                "name": name, "weight": weight, "staged": 24, "in_flight": 32, "errors": 0, "last_second": last,
                "hurt_by": hurt,
            })
        };
        use serde_json::Value;
        serde_json::from_value(json!({
            "status": {
                "uptime_s": 12.3, "device": "paced \
                 4G", "policy": "mqfq D=32 T=45k", "connections": 3, "draining": false,
                "policy_state": {
                    "virtual_time_spread": 41_000, "slots": 32, "slots_in_use": 30, "throttles": 5, "blocks": 9,
                    "class_weights": { "high": 256, "medium": 32, "low": 4 },
                },
            },
            "tenants": [
                tenant("lead", 100, Value::Null, Value::Null),
                tenant("silver", 100, last(0.25, 0.5, 9876.0), json!({ "silver": 0.5, "gold": 0.5 })),
                tenant("gold", 300, last(0.75, 0.5, 10_012.0), json!({ "silver": 0.62, "gold": 0.3, "(others)": 0.08 })),
            ],
        }))
        .unwrap()
    }

    #[test]
    fn eighty_columns_are_enough() {
        let mut look = look();
        look.sort(Order::Weight);
        let screen = Screen { order: Order::Weight, ..Screen::default() };
        let text = text(&look, &screen, 80, 8);
        let expected = [
            "fairq · up 12 s · 3 connections · paced 4G",
            "mqfq D=32 T=45k · 19.9 k IOPS · 81.5 MB/s",
            "D ▪▪▪▪▪▪▪▪ 30/32 · H/M/L 256/32/4 · foremost 40.0 KiB ahead of virtual time",
            "tenant    weight got, │ due     share    IOPS bandwidth     p99  staged hurt by",
            "gold         300 ━━━━━━  │     50.0 %  10.0 k 41.0 MB/s 2.35 ms  412 µs 62% silv",
            "lead         100 idle",
            "silver       100 ━━╋━━━        50.0 %  9.88 k 40.5 MB/s 2.35 ms  412 µs 50% gold",
            "q quit  s sort (weight)  ↑↓ select  w weight  space pause",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "\n{text}");
    }

    #[test]
    fn groups_and_what_the_selected_tenant_was_promised_are_told() {
        let mut look = look();
        let groups = serde_json::json!([
            { "name": "acme", "weight": 300, "members": 2, "active": 1, "promised": "max-iops=60 · 9 wait for a cap" },
            { "name": "solo", "weight": 100, "members": 1, "active": 0, "promised": null },
        ]);
        look.groups = serde_json::from_value(groups).unwrap();
        look.sort(Order::Weight);
        look.tenants[0].promised = Some("acme, effective weight 75 · min-iops=200 met".into());
        let screen = Screen::default();
        let shown = text(&look, &screen, 80, height(&look, &screen, 80));
        let lines = [
            "groups  acme weight 300, 1/2 active: max-iops=60 · 9 wait for a cap; solo weight",
            "100, 0/1 active",
            "gold  acme, effective weight 75 · min-iops=200 met",
        ];
        assert_eq!(shown.lines().skip(3).take(3).collect::<Vec<_>>(), lines, "\n{shown}");
        let screen = Screen { selected: 1, ..Screen::default() };
        assert!(!text(&look, &screen, 80, 12).contains("min-iops"), "of another tenant");
    }

    #[test]
    fn a_wide_terminal_shows_more_and_the_selected_stays_in_sight() {
        let mut look = look();
        look.sort(Order::Share);
        let screen = Screen {
            selected: 2,
            typed: Some(("lead".into(), "25".into())),
            is_paused: true,
            ..Screen::default()
        };
        let text = text(&look, &screen, 120, 6);
        assert!(
            text.contains("PAUSED") && text.contains("p50") && text.contains("queue"),
            "\n{text}"
        );
        assert!(text.contains("lead") && !text.contains("\ngold"), "only one row fits\n{text}");
        assert!(
            text.ends_with("weight of lead, 1 to 10000: 25_   Enter sets it, Esc does not"),
            "\n{text}"
        );
    }

    /// `gold` misses its target because of the floor, `silver` meets its own.
    fn look_with_targets() -> Look {
        let mut look = look();
        let target = |state: &str, percentile: f64, cause: Option<&str>| LatencyTarget {
            target_ns: 200_000,
            percentile,
            state: state.into(),
            cause: cause.map(str::to_owned),
            completed: 10_000,
            late: 312,
            slots_bound: (state != "met").then_some(5),
            ..LatencyTarget::default()
        };
        let cause = "the other tenants would have less than 50% of what weights give them: raise \
                     latency, lower floor, or give it more weight";
        look.tenants[1].latency_target = Some(target("met", 99.9, None));
        look.tenants[2].latency_target = Some(target("unreachable-floor", 99.0, Some(cause)));
        look.sort(Order::Weight);
        look
    }

    #[test]
    fn a_missed_target_has_a_mark_and_its_cause_within_eighty_columns() {
        let (look, screen) = (look_with_targets(), Screen::default());
        let text = text(&look, &screen, 80, height(&look, &screen, 80));
        let expected = [
            "D ▪▪▪▪▪▪▪▪ 30/32 · held to 5 for latency targets · H/M/L 256/32/4 · foremost 40.",
            "! gold: 3.1 % later than 200 µs, limit 1.0 %: the other tenants would have less",
            "than 50% of what weights give them: raise latency, lower floor, or give it more",
            "weight",
            "tenant    weight got, │ due     share    IOPS bandwidth     p99   target hurt by",
            "gold         300 ━━━━━━  │     50.0 %  10.0 k 41.0 MB/s 2.35 ms  !200 µs 62% sil",
            "lead         100 idle",
            "silver       100 ━━╋━━━        50.0 %  9.88 k 40.5 MB/s 2.35 ms   200 µs 50% gol",
        ];
        assert_eq!(text.lines().skip(2).take(8).collect::<Vec<_>>(), expected, "\n{text}");
    }

    #[test]
    fn a_wide_terminal_shows_the_percentile_of_a_target_and_the_selected_one_s_cause() {
        let mut look = look_with_targets();
        let mut screen = Screen { chosen: Some("silver".into()), ..Screen::default() };
        let text = |look: &Look, screen: &Screen| text(look, screen, 120, 12);
        assert!(text(&look, &screen).contains(" p99.9 200 µs "), "\n{}", text(&look, &screen));
        assert!(text(&look, &screen).contains("! gold: 3.1 % later"), "silver meets its own");
        look.tenants[2].latency_target.as_mut().unwrap().state = "missed".into();
        let shown = text(&look, &screen);
        let line = "! silver (and 1 more): 3.1 % later than 200 µs, limit 0.1 %: other tenants \
                    are throttled for it";
        assert!(shown.contains(line) && shown.contains("!p99.9 200 µs"), "\n{shown}");
        screen.chosen = Some("lead".into());
        assert!(text(&look, &screen).contains("! gold (and 1 more)"), "the first one's");
    }

    #[test]
    fn what_the_device_is_believed_to_do_stands_beside_d() {
        let mut look = look();
        look.status.policy_state.depth = serde_json::from_value(json!({
            "slots": 12, "state": "found", "requests_per_s": 20_000, "bytes_per_s": 81_920_000,
        }))
        .unwrap();
        let text = text(&look, &Screen::default(), 100, 8);
        assert!(text.contains("· 12 fill the device (20.0 k IOPS, 81.9 MB/s) ·"), "\n{text}");
    }

    #[test]
    fn each_of_several_stores_has_a_line_of_its_own() {
        let mut look = look();
        let store = |name: &str, slots: u64| {
            json!({
                "name": name,
                "policy_state": {
                    "slots": slots, "slots_in_use": 1, "virtual_time_spread": 4096,
                    "depth": { "slots": 3, "state": "searching" },
                },
            })
        };
        look.status.stores =
            serde_json::from_value(json!([store("fast", 4), store("slow", 16)])).unwrap();
        look.status.policy_state = serde_json::from_value(json!({ "slots": 20 })).unwrap();
        look.tenants[0].store = Some("slow".into());
        let text = text(&look, &Screen::default(), 100, 10);
        let lines = [
            "2 stores, weights and shares count within each",
            "  fast: D ▪▪······ 1/4 · searching for D · foremost 4.00 KiB ahead of virtual time",
            "▸ slow: D ▪······· 1/16 · searching for D · foremost 4.00 KiB ahead of virtual time",
        ];
        assert_eq!(text.lines().skip(2).take(3).collect::<Vec<_>>(), lines, "\n{text}");
    }

    #[test]
    fn the_selection_stays_with_its_tenant() {
        let mut look = look();
        look.sort(Order::Share);
        let mut screen = Screen::default();
        screen.step(1);
        screen.follow(&look);
        let before = (screen.selected, screen.chosen.clone());
        look.sort(Order::Name);
        screen.follow(&look);
        assert_eq!(
            (before, screen.selected),
            ((1, Some("silver".into())), 2),
            "others have overtaken it"
        );
        look.tenants.retain(|tenant| tenant.name != "silver");
        screen.follow(&look);
        assert_eq!(
            (screen.selected, screen.chosen.as_deref()),
            (1, Some("lead")),
            "the selected tenant has gone, and its row has another one"
        );
        screen.step(-9);
        screen.follow(&look);
        assert_eq!(screen.chosen.as_deref(), Some("gold"));
    }

    #[test]
    fn order_goes_round() {
        let names = |order: Order| {
            let mut look = look();
            look.sort(order);
            look.tenants.iter().map(|tenant| tenant.name.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(Order::Name), "gold lead silver");
        assert_eq!(names(Order::Iops), "gold silver lead");
        assert_eq!(names(Order::Share), "gold silver lead");
        let mut order = Order::Share;
        (0..5).for_each(|_| order = order.next());
        assert_eq!(order, Order::Share);
    }
}
