//! Tenants' service over time: a run is divided into intervals of the same length, and into phases.
//! A phase ends when a tenant starts or stops.
//!
//! A phase is the time between two changes of the set of present tenants. In each phase, present
//! tenants are entitled to their shares of its bytes; a tenant's entitled bytes of the whole run
//! are the sum over its phases.

use std::time::Duration;

use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{show_duration, show_percent};
use fairq_core::ClassWeights;
use serde::{Deserialize, Serialize};

use crate::fairness::{Demand, entitled};

/// The time in which a tenant is present, with its weight and demand.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Start, in nanoseconds from the start of the measurement.
    pub starts_ns: u64,
    /// End, in nanoseconds from the start of the measurement.
    pub stops_ns: u64,
    /// Its weight.
    pub weight: f64,
    /// The most bytes a second that it submits.
    pub most: f64,
}

/// A run over time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Length of an interval, in nanoseconds.
    pub interval_ns: u64,
    /// Bytes of each tenant in each interval.
    pub bytes: Vec<Vec<u64>>,
    /// The phases: each from one change of the set of present tenants to the next.
    pub phases: Vec<Phase>,
    /// The weights of the device's classes, with the times from which on the policy set them.
    pub class_weights: Vec<Wanted>,
}

/// A time in which the same tenants are present.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// Start, in nanoseconds from the start of the measurement.
    pub from_ns: u64,
    /// End, in nanoseconds from the start of the measurement.
    pub to_ns: u64,
    /// Bytes of all tenants.
    pub bytes: u64,
    /// One entry for each tenant of the run.
    pub flows: Vec<PhaseFlow>,
}

/// One tenant in one phase.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PhaseFlow {
    /// The tenant.
    pub name: String,
    /// The fraction of the phase's bytes to which it is entitled; 0 if it is not present.
    pub entitled: f64,
    /// The fraction of the phase's bytes that it received.
    pub share: f64,
    /// Standard deviation over mean of its share in the phase's intervals; null if it received
    /// nothing.
    pub share_cv: Option<f64>,
}

/// Weights of the device's classes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// Start, in nanoseconds from the start of the measurement.
    pub at_ns: u64,
    /// Weight of the high class.
    pub high: u16,
    /// Weight of the medium class.
    pub medium: u16,
    /// Weight of the low class.
    pub low: u16,
}

impl Series {
    /// Builds a series from the bytes of each tenant in each interval; `lives` are the tenants by
    /// name.
    pub fn new(
        interval: Duration,
        bytes: Vec<Vec<u64>>,
        lives: &[(String, Life)],
        class_weights: &[(Duration, ClassWeights)],
    ) -> Series {
        let interval_ns = interval.as_nanos() as u64;
        let intervals = bytes.first().map_or(0, Vec::len);
        // An interval belongs to the phase in which its middle is.
        let mut edges: Vec<usize> = lives
            .iter()
            .flat_map(|(_, life)| [life.starts_ns, life.stops_ns])
            .map(|edge_ns| {
                ((edge_ns.saturating_add(interval_ns / 2) / interval_ns) as usize).min(intervals)
            })
            .chain([0, intervals])
            .collect();
        edges.sort_unstable();
        edges.dedup();
        let phase = |edges: &[usize]| Phase::new(edges[0], edges[1], interval_ns, &bytes, lives);
        let phases = edges.windows(2).map(phase).collect();
        let wanted = |&(at, weights): &(Duration, ClassWeights)| Wanted {
            at_ns: at.as_nanos() as u64,
            high: weights.high,
            medium: weights.medium,
            low: weights.low,
        };
        Series {
            interval_ns,
            bytes,
            phases,
            class_weights: class_weights.iter().map(wanted).collect(),
        }
    }

    /// The fraction of all bytes to which each tenant is entitled; `None` if no tenant received
    /// any. Bytes that completed when no tenant was present, such as the last ones of a tenant that
    /// stopped, belong to no tenant's entitled share.
    pub fn entitled(&self) -> Option<Vec<f64>> {
        let is_due = |phase: &&Phase| phase.flows.iter().any(|flow| flow.entitled > 0.0);
        let phases = || self.phases.iter().filter(is_due);
        let total: u64 = phases().map(|phase| phase.bytes).sum();
        let due = |index: usize| {
            let due = phases().map(|phase| phase.flows[index].entitled * phase.bytes as f64);
            due.sum::<f64>() / total as f64
        };
        // Without a byte the fractions would be 0/0; the caller then uses the weights alone.
        (total > 0).then(|| (0..self.bytes.len()).map(due).collect())
    }

    /// A table of phases and tenants, and the ratios of the classes' weights.
    pub fn text(&self) -> String {
        let mut table = plain_table();
        let cv = format!("CV in {}", show_duration(self.interval_ns as f64));
        table.set_header(["phase", "tenant", "entitled", "share", cv.as_str()]);
        for phase in &self.phases {
            let seconds = |ns: u64| ns as f64 / 1e9;
            // The first row of a phase takes the text and leaves an empty one for the rows below
            // it.
            let mut when = format!("{:.1}–{:.1} s", seconds(phase.from_ns), seconds(phase.to_ns));
            for flow in phase.flows.iter().filter(|flow| flow.entitled > 0.0) {
                let cv = flow.share_cv.map_or("–".into(), show_percent);
                table.add_row([
                    std::mem::take(&mut when),
                    flow.name.clone(),
                    show_percent(flow.entitled),
                    show_percent(flow.share),
                    cv,
                ]);
            }
        }
        align_right(&mut table);
        let mut text = format!("{table}\n");
        if !self.class_weights.is_empty() {
            let ratio = |wanted: &Wanted| format!("{}", wanted.high / wanted.low.max(1));
            let mut ratios: Vec<String> = self.class_weights.iter().map(ratio).collect();
            ratios.dedup();
            text += &format!(" H/L {}\n", ratios.join(" → "));
        }
        text
    }
}

impl Phase {
    fn new(
        from: usize,
        to: usize,
        interval_ns: u64,
        bytes: &[Vec<u64>],
        lives: &[(String, Life)],
    ) -> Phase {
        let (from_ns, to_ns) = (from as u64 * interval_ns, to as u64 * interval_ns);
        let total_of = |at: usize| -> u64 { bytes.iter().map(|bytes| bytes[at]).sum() };
        let totals: Vec<u64> = (from..to).map(total_of).collect();
        let total: u64 = totals.iter().sum();
        // Edges are rounded to whole intervals, so a start or stop may be just inside a phase: the
        // phase's middle decides.
        let middle_ns = from_ns + (to_ns - from_ns) / 2;
        let seconds = (to_ns - from_ns) as f64 / 1e9;
        let is_there = |life: &Life| (life.starts_ns..life.stops_ns).contains(&middle_ns);
        let demand = |(_, life): &(String, Life)| match is_there(life) {
            true => Demand { weight: life.weight, most: life.most * seconds },
            false => Demand { weight: 0.0, most: 0.0 },
        };
        let nobody = lives.iter().all(|(_, life)| !is_there(life));
        // With all weights 0 `entitled` would divide by 0.
        let due = match nobody {
            true => vec![0.0; lives.len()],
            false => entitled(&lives.iter().map(demand).collect::<Vec<_>>(), total as f64),
        };
        let flow = |((name, _), (bytes, &entitled)): (&(String, Life), (&Vec<u64>, &f64))| {
            let bytes = &bytes[from..to];
            let got: u64 = bytes.iter().sum();
            // An interval without a byte has no shares, so it does not count for their spread.
            let shares = bytes.iter().zip(&totals).filter(|(_, total)| **total > 0);
            let shares: Vec<f64> =
                shares.map(|(&bytes, &total)| bytes as f64 / total as f64).collect();
            let share = if total == 0 { 0.0 } else { got as f64 / total as f64 };
            PhaseFlow { name: name.clone(), entitled, share, share_cv: cv(&shares) }
        };
        let flows = lives.iter().zip(bytes.iter().zip(&due)).map(flow).collect();
        Phase { from_ns, to_ns, bytes: total, flows }
    }
}

/// Standard deviation over mean; `None` if the mean is 0.
fn cv(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn life(starts_ns: u64, stops_ns: u64, weight: f64) -> Life {
        Life { starts_ns, stops_ns, weight, most: f64::INFINITY }
    }

    #[test]
    fn a_guest_is_due_its_share_of_the_time_it_is_there() {
        let lives = [
            ("base".into(), life(0, u64::MAX, 1.0)),
            ("guest".into(), life(SECOND, 2 * SECOND, 3.0)),
        ];
        let bytes = vec![vec![100, 25, 100], vec![0, 75, 0]];
        let series = Series::new(Duration::from_secs(1), bytes, &lives, &[]);
        assert_eq!(series.phases.len(), 3);
        let entitled: Vec<f64> = series.phases[1].flows.iter().map(|flow| flow.entitled).collect();
        assert_eq!(entitled, [0.25, 0.75]);
        assert_eq!(series.phases[0].flows[1].entitled, 0.0);
        assert_eq!(series.entitled(), Some(vec![225.0 / 300.0, 75.0 / 300.0]));
        assert_eq!(series.phases[1].flows[1].share, 0.75);
    }

    #[test]
    fn a_steady_share_does_not_vary_and_an_alternating_one_does() {
        let lives = [("a".into(), life(0, u64::MAX, 1.0)), ("b".into(), life(0, u64::MAX, 1.0))];
        let of = |a: Vec<u64>, b: Vec<u64>| {
            Series::new(Duration::from_millis(10), vec![a, b], &lives, &[]).phases[0].flows[0]
                .share_cv
                .unwrap()
        };
        assert_eq!(of(vec![50; 8], vec![50; 8]), 0.0);
        assert_eq!(of(vec![100, 0, 100, 0], vec![0, 100, 0, 100]), 1.0);
    }

    #[test]
    fn what_is_due_adds_up_to_one_whatever_came_after_a_tenant_stopped() {
        let lives = [
            ("early".into(), life(0, SECOND, 1.0)),
            ("late".into(), life(2 * SECOND, u64::MAX, 1.0)),
        ];
        let bytes = vec![vec![300, 50, 0], vec![0, 0, 100]];
        let series = Series::new(Duration::from_secs(1), bytes, &lives, &[]);
        assert_eq!(series.entitled(), Some(vec![0.75, 0.25]));
    }

    #[test]
    fn nobody_is_due_anything_when_nobody_is_there() {
        let lives = [("late".into(), life(SECOND, u64::MAX, 1.0))];
        let series = Series::new(Duration::from_millis(500), vec![vec![0, 0, 0, 0]], &lives, &[]);
        assert_eq!(series.phases[0].flows[0].entitled, 0.0);
        assert_eq!(series.phases[1].flows[0].entitled, 1.0);
        assert_eq!(series.entitled(), None);
    }

    #[test]
    fn the_text_shows_phases_and_the_way_of_the_ratio() {
        let lives = [
            ("base".into(), life(0, u64::MAX, 1.0)),
            ("guest".into(), life(SECOND, u64::MAX, 3.0)),
        ];
        let weights = |high, medium, low| ClassWeights { high, medium, low };
        let wanted = [
            (Duration::ZERO, weights(256, 16, 1)),
            (Duration::from_secs(1), weights(255, 170, 85)),
        ];
        let series =
            Series::new(Duration::from_secs(1), vec![vec![100, 25], vec![0, 75]], &lives, &wanted);
        let expected = " phase       tenant   entitled     share   CV in 1.00 s 
────────────────────────────────────────────────────────
 0.0–1.0 s     base    100.0 %   100.0 %          0.0 % 
 1.0–2.0 s     base     25.0 %    25.0 %          0.0 % 
              guest     75.0 %    75.0 %          0.0 % 
 H/L 256 → 3
";
        assert_eq!(series.text(), expected);
    }
}
