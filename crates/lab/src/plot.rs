//! Figures as SVG. Text stays text in the SVG, so drawing needs no font, and the text can be
//! scaled.

use std::fmt::Display;

use anyhow::anyhow;
use plotters::chart::{ChartBuilder, ChartContext, MeshStyle};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::element::{Circle, Cross, PathElement, Rectangle};
use plotters::prelude::{Cartesian2d, DrawingArea, IntoDrawingArea, IntoLogRange, SVGBackend};
use plotters::series::LineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle, WHITE};

use crate::figure::{Figure, Line};

/// Size in pixels, without the legend above the figure.
const SIZE: (u32, u32) = (720, 380);
/// Height of a row of the legend, and the horizontal start of the legend and the figure's axis; in
/// pixels.
const ROW: i32 = 20;
const FIRST: i32 = 74;
/// Width of the colour mark and the gap of an entry of the legend, in addition to its text; in
/// pixels.
const BESIDE: i32 = 36;
/// Approximate width of a letter in pixels; no font is measured.
const LETTER: f64 = 7.0;
const INK: RGBColor = RGBColor(0x33, 0x3a, 0x44);
const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xea);
/// Colours that are distinguishable with colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x77, 0x77, 0x77),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The figure as a document of its own.
pub(crate) fn svg(figure: &Figure) -> anyhow::Result<String> {
    let mut text = String::new();
    let (entries, below) = legend(figure);
    let size = (SIZE.0, SIZE.1 + below as u32);
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(|error| error.to_string()).and_then(|()| {
        let (above, rest) = area.split_vertically(below);
        entries.iter().try_for_each(|entry| entry.draw(&above))?;
        draw(figure, &rest)
    });
    drawn.map_err(|error| anyhow!("figure {}: {error}", figure.id))?;
    area.present().map_err(|error| anyhow!("figure {}: {error}", figure.id))?;
    drop(area);
    Ok(text)
}

/// The least and the greatest finite value, widened so that they differ.
fn range(values: impl Iterator<Item = f64>, is_log: bool) -> (f64, f64) {
    let shown = values.filter(|value| value.is_finite() && (!is_log || *value > 0.0));
    let (least, most) = shown
        .fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    match (least <= most, is_log) {
        (false, _) => (1.0, 10.0),
        (true, true) => (least / 1.2, most * 1.2),
        (true, false) => (least.min(0.0), if most > 0.0 { most * 1.05 } else { 1.0 }),
    }
}

/// An entry of the legend, for a measured line or for the paper's values.
struct Entry<'a> {
    name: &'a str,
    colour: Option<RGBColor>,
    place: (i32, i32),
}

impl Entry<'_> {
    fn draw(&self, area: &Area<'_>) -> Result<(), String> {
        let (x, y) = self.place;
        let style = font().pos(Pos::new(HPos::Left, VPos::Center));
        let key = match self.colour {
            Some(colour) => {
                area.draw(&Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour.filled()))
            }
            None => area.draw(&Cross::new((x + 7, y), 4, INK.stroke_width(2))),
        };
        key.and_then(|()| area.draw_text(self.name, &style, (x + 20, y)))
            .map_err(|error| error.to_string())
    }
}

/// The entries of a legend, in as many rows as they need, and the height of all rows. The legend
/// stands above the figure, so that it covers no line.
fn legend(figure: &Figure) -> (Vec<Entry<'_>>, i32) {
    let measured = measured(figure).map(|(line, colour)| (line.name.as_str(), Some(colour)));
    let of_paper = figure.lines.iter().any(|line| line.paper && !line.points.is_empty());
    let all = measured.chain(of_paper.then_some(("the paper", None)));
    let (mut x, mut y) = (FIRST, 10 + ROW / 2);
    let mut entries = Vec::new();
    for (name, colour) in all {
        let width = BESIDE + (name.chars().count() as f64 * LETTER) as i32;
        if x > FIRST && x + width > SIZE.0 as i32 {
            (x, y) = (FIRST, y + ROW);
        }
        entries.push(Entry { name, colour, place: (x, y) });
        x += width;
    }
    // A single entry repeats the title, so there is no legend.
    if entries.len() < 2 { (Vec::new(), 0) } else { (entries, y + ROW / 2) }
}

/// The measured lines with their colours.
fn measured(figure: &Figure) -> impl Iterator<Item = (&Line, RGBColor)> + Clone {
    figure.lines.iter().filter(|line| !line.paper).zip(COLOURS.into_iter().cycle())
}

fn font() -> TextStyle<'static> {
    ("sans-serif", 13).into_font().color(&INK)
}

fn draw(figure: &Figure, area: &Area<'_>) -> Result<(), String> {
    let said = |error: &dyn Display| error.to_string();
    let points = || figure.lines.iter().flat_map(|line| &line.points);
    let (mut left, mut right) = range(points().map(|point| point.0), figure.x.log);
    let (bottom, top) = range(points().map(|point| point.1), figure.y.log);
    let is_bars = !figure.groups.is_empty();
    if is_bars {
        (left, right) = (-0.5, figure.groups.len() as f64 - 0.5);
    } else if !figure.x.log {
        // `range` begins at 0 and leaves space at the top, which suits the vertical axis;
        // horizontally, lines fill the whole width.
        (left, right) = (points().map(|point| point.0).fold(f64::MAX, f64::min), right / 1.05);
        // The range of a single point has no width and so no scale; it is widened.
        right = if right > left { right } else { left + 1.0 };
    }
    let mut builder = ChartBuilder::on(area);
    let below = if is_bars && figure.groups.len() > 6 { 74 } else { 44 };
    builder.margin(10).x_label_area_size(below).y_label_area_size(64);
    // The four combinations of linear and logarithmic axes are four types.
    match (figure.x.log, figure.y.log) {
        (false, false) => {
            let mut chart = builder
                .build_cartesian_2d(left..right, bottom..top)
                .map_err(|error| said(&error))?;
            fill(figure, area, &mut chart, (bottom, top))
        }
        (true, false) => {
            let x = (left..right).log_scale();
            let mut chart =
                builder.build_cartesian_2d(x, bottom..top).map_err(|error| said(&error))?;
            fill(figure, area, &mut chart, (bottom, top))
        }
        (false, true) => {
            let y = (bottom..top).log_scale();
            let mut chart =
                builder.build_cartesian_2d(left..right, y).map_err(|error| said(&error))?;
            fill(figure, area, &mut chart, (bottom, top))
        }
        (true, true) => {
            let (x, y) = ((left..right).log_scale(), (bottom..top).log_scale());
            let mut chart = builder.build_cartesian_2d(x, y).map_err(|error| said(&error))?;
            fill(figure, area, &mut chart, (bottom, top))
        }
    }
}

/// A number on an axis, without trailing zeros.
fn number(value: &f64) -> String {
    let rounded = format!("{value:.3}");
    rounded.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn fill<'c, 's: 'c, X, Y>(
    figure: &Figure,
    area: &Area<'s>,
    chart: &mut ChartContext<'c, SVGBackend<'s>, Cartesian2d<X, Y>>,
    (bottom, top): (f64, f64),
) -> Result<(), String>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let said = |error: &dyn Display| error.to_string();
    let is_bars = !figure.groups.is_empty();
    let mut mesh: MeshStyle<'_, '_, X, Y, SVGBackend<'_>> = chart.configure_mesh();
    mesh.axis_style(INK).light_line_style(WHITE.mix(0.0)).bold_line_style(GRID).label_style(font());
    mesh.x_desc(figure.x.label.as_str()).y_desc(figure.y.label.as_str());
    mesh.x_label_formatter(&number).y_label_formatter(&number).y_labels(6).x_labels(8);
    if is_bars {
        mesh.disable_x_mesh().disable_x_axis();
    }
    mesh.draw().map_err(|error| said(&error))?;
    let shown = |line: &Line| {
        let is_shown = |&(x, y): &(f64, f64)| {
            x.is_finite()
                && y.is_finite()
                && (!figure.x.log || x > 0.0)
                && (!figure.y.log || y > 0.0)
        };
        line.points.iter().copied().filter(is_shown).collect::<Vec<_>>()
    };
    // Bars of a group stand side by side.
    let width = if is_bars { 0.8 / measured(figure).count() as f64 } else { 0.0 };
    let place = |x: f64, index: usize| match is_bars {
        true => x - 0.4 + width * (index as f64 + 0.45),
        false => x,
    };
    for (index, (line, colour)) in measured(figure).enumerate() {
        let points = shown(line);
        if is_bars {
            let bar = |(x, y): (f64, f64)| {
                let from = x - 0.4 + width * index as f64;
                Rectangle::new([(from, bottom), (from + 0.9 * width, y)], colour.filled())
            };
            chart.draw_series(points.into_iter().map(bar)).map_err(|error| said(&error))?;
        } else {
            // More than 40 dots hide the line.
            if line.points.len() <= 40 {
                let dot = |&point: &(f64, f64)| Circle::new(point, 3, colour.filled());
                chart.draw_series(points.iter().map(dot)).map_err(|error| said(&error))?;
            }
            let style: ShapeStyle = colour.stroke_width(2);
            chart.draw_series(LineSeries::new(points, style)).map_err(|error| said(&error))?;
        }
        let whisker = |(&(x, y), half): (&(f64, f64), &f64)| {
            // An interval is clipped at the border, because the axes fit the means only.
            let (least, most) = ((y - half).max(bottom), (y + half).min(top));
            let x = place(x, index);
            PathElement::new(vec![(x, least), (x, most)], INK.stroke_width(1))
        };
        let whiskers = line.points.iter().zip(&line.halves).map(whisker);
        chart.draw_series(whiskers).map_err(|error| said(&error))?;
    }
    for line in figure.lines.iter().filter(|line| line.paper) {
        // A mark of the paper stands on the bar, or has the colour of the line, with which it is
        // compared.
        let of = measured(figure).enumerate().find(|(_, (one, _))| one.name == line.name);
        let colour = of.filter(|_| !is_bars).map_or(INK, |(_, (_, colour))| colour);
        let at = |(x, y)| (of.map_or(x, |(index, _)| place(x, index)), y);
        for style in [WHITE.stroke_width(5), colour.stroke_width(2)] {
            let marks = shown(line).into_iter().map(|point| Cross::new(at(point), 5, style));
            chart.draw_series(marks).map_err(|error| said(&error))?;
        }
    }
    if is_bars {
        name_groups(figure, area, chart, bottom)?;
    }
    Ok(())
}

fn name_groups<'a, X, Y>(
    figure: &Figure,
    area: &Area<'a>,
    chart: &ChartContext<'_, SVGBackend<'a>, Cartesian2d<X, Y>>,
    bottom: f64,
) -> Result<(), String>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let style = font().pos(Pos::new(HPos::Center, VPos::Top));
    let is_crowded = figure.groups.len() > 6;
    for (index, group) in figure.groups.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(index as f64, bottom));
        // The legend is above the area, and the text's coordinates are relative to the area.
        let y = y - area.get_base_pixel().1;
        // Every other label is lower, so that neighbours do not overlap.
        let lower = if is_crowded && index % 2 == 1 { 22 } else { 0 };
        area.draw_text(group, &style, (x, y + 8 + lower)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Axis;

    fn figure(log: bool, groups: &[&str]) -> Figure {
        let axis = |label: &str| Axis { label: label.into(), log };
        let line = |name: &str| Line {
            name: name.into(),
            points: vec![(0.0, 0.0), (1.0, 3.0), (10.0, f64::NAN)],
            halves: vec![0.5, 9.0],
            paper: false,
        };
        Figure {
            id: "f".into(),
            title: "t".into(),
            x: axis("left < right"),
            y: axis("up"),
            groups: groups.iter().map(|group| group.to_string()).collect(),
            lines: vec![line("one & only"), line("two")],
        }
    }

    #[test]
    fn every_kind_is_drawn_and_text_is_escaped() {
        for figure in [figure(false, &[]), figure(true, &[]), figure(false, &["a", "b"])] {
            let svg = svg(&figure).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(svg.contains("left &lt; right") || !figure.groups.is_empty(), "{svg}");
            assert!(
                svg.contains("one &amp; only") && !svg.contains("NaN") && !svg.contains("inf"),
                "{svg}"
            );
        }
    }

    #[test]
    fn the_legend_is_above_and_the_paper_is_in_it_once() {
        let mut bars = figure(false, &["a", "b"]);
        let one = bars.lines[0].clone();
        bars.lines.push(Line { points: vec![(1.0, 2.0)], paper: true, ..one });
        let said = |figure: &Figure| {
            let (entries, below) = legend(figure);
            let names: Vec<String> = entries.iter().map(|entry| entry.name.to_owned()).collect();
            (names, below)
        };
        assert_eq!(said(&bars).0, ["one & only", "two", "the paper"]);
        assert!(svg(&bars).unwrap().matches("the paper").count() == 1);
        bars.lines.truncate(1);
        assert_eq!(said(&bars), (Vec::new(), 0));
        bars.lines = vec![Line { name: "x".repeat(60), ..bars.lines[0].clone() }; 3];
        assert!(said(&bars).1 >= 3 * ROW, "each in a row of its own");
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let mut empty = figure(true, &[]);
        empty.lines.iter_mut().for_each(|line| line.points.clear());
        assert!(svg(&empty).unwrap().contains("</svg>"));
    }
}
