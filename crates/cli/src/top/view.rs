//! How it is shown: a summary, a table with bars, a line of keys; 80 columns are enough, and more
//! show more.

use fairq_config::units::{show_bandwidth, show_count, show_duration, show_percent, show_size};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget};

use super::order::Order;
use crate::look::{LastSecond, Look, Tenant};

/// Columns of a bar.
const BAR: usize = 12;
/// Columns of the bar of slots.
const SLOTS: usize = 8;
/// From here on there is room for the columns that an 80-column terminal lacks.
const WIDE: u16 = 110;

/// What is on the screen beside the numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    pub(crate) order: Order,
    /// The row that is selected, and whose it is: others may overtake it from one second to the
    /// next.
    pub(crate) selected: usize,
    pub(crate) chosen: Option<String>,
    pub(crate) is_paused: bool,
    /// The tenant whose weight is being typed, and what there is of it.
    pub(crate) typed: Option<(String, String)>,
    /// What went wrong last.
    pub(crate) complaint: Option<String>,
}

impl Screen {
    /// Stays with the tenant that is selected, wherever it is now.
    pub(crate) fn follow(&mut self, look: &Look) {
        let place = self
            .chosen
            .as_ref()
            .and_then(|name| look.tenants.iter().position(|tenant| tenant.name == *name));
        self.selected = place.unwrap_or(self.selected).min(look.tenants.len().saturating_sub(1));
        self.chosen = look.tenants.get(self.selected).map(|tenant| tenant.name.clone());
    }

    /// Selects the row so many below.
    pub(crate) fn step(&mut self, rows: isize) {
        self.selected = self.selected.saturating_add_signed(rows);
        self.chosen = None;
    }
}

/// Draws a look at a server.
pub(crate) fn draw(look: &Look, screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let [head, table, foot] =
        Layout::vertical([Constraint::Length(3), Constraint::Min(1), Constraint::Length(1)])
            .areas(area);
    Paragraph::new(summary(look, screen)).render(head, buffer);
    tenants(look, screen, table, buffer);
    Paragraph::new(keys(screen)).render(foot, buffer);
}

fn summary(look: &Look, screen: &Screen) -> Vec<Line<'static>> {
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
    let mut third = Vec::new();
    if let (Some(slots), Some(used)) = (state.slots, state.slots_in_use) {
        let filled = (used as usize * SLOTS).div_ceil(slots.max(1) as usize).min(SLOTS);
        third.push(format!(
            "D {}{} {used}/{slots}",
            "▪".repeat(filled),
            "·".repeat(SLOTS - filled)
        ));
        if let Some(depth) = &state.depth {
            third.push(match &depth.state[..] {
                "found" => format!("{} fill the device", depth.slots),
                "searching" => "D is being found".into(),
                "alone" => "no D for one tenant".into(),
                _ => "all is on the device".into(),
            });
        }
    }
    if let Some(weights) = &state.class_weights {
        let of = |class: &str| weights.get(class).copied().unwrap_or(0);
        third.push(format!("H/M/L {}/{}/{}", of("high"), of("medium"), of("low")));
    }
    let stores = &look.status.stores;
    if stores.len() > 1 {
        third.push(format!("{} stores, weights count within each", stores.len()));
    }
    for store in stores.iter().filter(|store| store.stuck) {
        third.insert(0, format!("STUCK: {} for {:.0} s", store.name, store.oldest_s));
    }
    if let Some(spread) = state.virtual_time_spread {
        third.push(format!("foremost {} ahead of virtual time", show_size(spread)));
    }
    vec![
        Line::styled(first, Style::new().add_modifier(Modifier::BOLD)),
        Line::raw(second),
        Line::raw(third.join(" · ")),
    ]
}

fn tenants(look: &Look, screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let is_wide = area.width >= WIDE;
    let mut columns = vec![
        ("tenant", 9),
        ("weight", 6),
        ("got, │ due", BAR),
        ("share", 7),
        ("IOPS", 7),
        ("bandwidth", 9),
        ("p99", 7),
        ("staged", 7),
        ("hurt by", 8),
    ];
    if is_wide {
        columns.splice(6..6, [("p50", 8)]);
        columns.splice(9..9, [("device", 8), ("queue", 9)]);
        columns.last_mut().expect("there are columns").1 = 20;
    }
    // Numbers stand to the right, and their heads with them.
    let is_text = |head: &str| ["tenant", "got, │ due", "hurt by"].contains(&head);
    let heads = columns.iter().map(|&(head, width)| match is_text(head) {
        true => head.to_owned(),
        false => format!("{head:>width$}"),
    });
    let heads: Vec<String> = heads.collect();
    let widths = columns.iter().map(|&(_, width)| width as u16);
    let most = usize::from(area.height.saturating_sub(1));
    // The selected one stays in sight.
    let from = screen.selected.saturating_sub(most.saturating_sub(1));
    let rows = look.tenants.iter().enumerate().skip(from).take(most).map(|(index, tenant)| {
        let style = if index == screen.selected {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        Row::new(cells(tenant, is_wide)).style(style)
    });
    let head = Row::new(heads).style(Style::new().add_modifier(Modifier::UNDERLINED));
    Widget::render(Table::new(rows, widths).header(head).column_spacing(1), area, buffer);
}

fn cells(tenant: &Tenant, is_wide: bool) -> Vec<Cell<'static>> {
    let right = |text: String, width: usize| Cell::new(format!("{text:>width$}"));
    let Some(last) = tenant.last_second else {
        let mut cells = vec![
            Cell::new(tenant.name.clone()),
            right(tenant.weight.to_string(), 6),
            Cell::new("idle"),
        ];
        cells.resize(if is_wide { 12 } else { 9 }, Cell::new(""));
        return cells;
    };
    let LastSecond { entitled, share, iops, bytes_per_s, p50_ns, p99_ns, staged_ns, device_ns } =
        last;
    let hurt =
        tenant.worst().map_or(String::new(), |(name, part)| format!("{:.0}% {name}", part * 100.0));
    let mut cells = vec![
        Cell::new(tenant.name.clone()),
        right(tenant.weight.to_string(), 6),
        Cell::new(bar(share, entitled)),
        right(show_percent(share), 7),
        right(show_count(iops), 7),
        right(show_bandwidth(bytes_per_s), 9),
        right(show_duration(p99_ns), 7),
        right(show_duration(staged_ns), 7),
        Cell::new(hurt),
    ];
    if is_wide {
        cells.insert(6, right(show_duration(p50_ns), 8));
        cells.insert(9, right(show_duration(device_ns), 8));
        cells.insert(
            10,
            right(
                format!("{}+{}", tenant.staged, tenant.in_flight.saturating_sub(tenant.staged)),
                9,
            ),
        );
    }
    cells
}

/// What it got, and a mark at what it is entitled to: told apart by shape, not by colour.
fn bar(share: f64, entitled: f64) -> String {
    let at = |part: f64| ((part * BAR as f64).round() as usize).min(BAR);
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

/// The same as text, for a terminal of this size.
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
            "it has gone: who is in its place now"
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
