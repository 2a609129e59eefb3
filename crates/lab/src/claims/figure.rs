//! Figures and tables as data; `plot`, `page` and `text` render them.

/// A figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Identifier of the figure and of its files, as in `d-11a`.
    pub id: &'static str,
    /// Title of the figure.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, or groups of bars.
    pub shape: Shape,
    /// The compared series, and the paper's values.
    pub lines: Vec<Line>,
}

/// An axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Quantity and unit.
    pub label: &'static str,
    /// Whether the axis is logarithmic.
    pub is_log: bool,
}

/// Way in which a figure is drawn.
#[derive(Clone, PartialEq, Debug)]
pub enum Shape {
    /// Points that are connected by lines.
    Lines,
    /// Groups of bars; a point's x is the number of its group.
    Bars(Vec<String>),
}

/// One series of a figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Points as (x, y).
    pub points: Vec<(f64, f64)>,
    /// Whether the points are the paper's values for the line of this name, or for the figure.
    pub paper: bool,
}

/// A table, for results that are not drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Identifier of the table and of its file.
    pub id: &'static str,
    /// Title of the table.
    pub title: String,
    /// Column names.
    pub header: Vec<String>,
    /// Cells by row, as many as there are columns.
    pub rows: Vec<Vec<String>>,
}

impl Figure {
    /// A figure of lines.
    pub fn lines(id: &'static str, title: &str, axes: [Axis; 2], lines: Vec<Line>) -> Figure {
        let [x, y] = axes;
        Figure { id, title: title.into(), x, y, shape: Shape::Lines, lines }
    }

    /// A figure with groups of bars.
    pub fn bars(
        id: &'static str,
        title: &str,
        label: &'static str,
        groups: impl IntoIterator<Item = impl Into<String>>,
        lines: Vec<Line>,
    ) -> Figure {
        let shape = Shape::Bars(groups.into_iter().map(Into::into).collect());
        let (x, y) = (Axis::linear(""), Axis::linear(label));
        Figure { id, title: title.into(), x, y, shape, lines }
    }
}

impl Axis {
    /// A linear axis.
    pub const fn linear(label: &'static str) -> Axis {
        Axis { label, is_log: false }
    }

    /// A logarithmic axis.
    pub const fn log(label: &'static str) -> Axis {
        Axis { label, is_log: true }
    }
}

impl Line {
    /// A measured line through these points.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, paper: false }
    }

    /// A measured series with one bar in each group.
    pub fn bars(name: impl Into<String>, values: &[f64]) -> Line {
        let points =
            values.iter().enumerate().map(|(group, &value)| (group as f64, value)).collect();
        Line { name: name.into(), points, paper: false }
    }

    /// The paper's values for the line of this name; only values that the paper's text states.
    pub fn of_paper(of: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: of.into(), points, paper: true }
    }

    /// Bytes of each interval as MB (10^6) a second over seconds, averaged over `together`
    /// intervals.
    pub fn bandwidth(
        name: impl Into<String>,
        series: &[u64],
        interval_ns: u64,
        together: usize,
    ) -> Line {
        // Whole chunks only: one that the run's end cuts short would be drawn as a drop.
        let interval_s = (interval_ns * together as u64) as f64 / 1e9;
        let point = |(number, chunk): (usize, &[u64])| {
            let bytes: u64 = chunk.iter().sum();
            (number as f64 * interval_s, bytes as f64 / 1e6 / interval_s)
        };
        Line {
            name: name.into(),
            points: series.chunks_exact(together).enumerate().map(point).collect(),
            paper: false,
        }
    }
}
