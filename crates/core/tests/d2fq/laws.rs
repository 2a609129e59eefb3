//! **Laws of shares.** D2FQ gives its flows weighted max-min fair shares: a flow that wants less
//! than its share gets all it wants, and the others share the rest by weight, where a ratio of
//! 256:1 between two classes suffices. Where it does not suffice, no flow does worse than one of
//! less weight. And a flow that is entitled to more than it gets without a scheduler gets at least
//! that.
//!
//! The demand of a flow follows from its depth: the device takes the same time for every command,
//! so a flow with n requests in flight is served at most n commands in that time. It is served a
//! little less, since a command waits for the rest of the arbiter's round.

use fairq_core::d2fq::{D2fq, D2fqConfig, D2fqPort, Ratio};
use fairq_core::none::{NonePolicy, NonePort};
use fairq_core::{Class, Native, Policy, Topology};

use crate::lab::{Device, Lab, SECOND, Thread};
use crate::strict::d2fq::{StrictD2fq, TrackerKind};

/// The window of a Z-SSD, but slower, so that runs are short: 100,000 commands a second.
const SLOW: Device = Device { window: 64, service_ns: 640_000 };

/// A flow: weight, requests in flight of each job, number of jobs.
#[derive(Clone, Copy, Debug)]
struct Flow(u16, usize, usize);

impl Flow {
    /// Commands a second that it is served if none of its commands waits.
    fn wants(self) -> f64 {
        (self.1 * self.2) as f64 * SECOND as f64 / SLOW.service_ns as f64
    }
}

/// Commands a second of each flow in the second half of a run. Jobs are spread over the ports; a
/// request is 4 KiB.
fn run<P: Policy>(
    build: impl FnOnce(usize, usize, usize) -> (P, Vec<P::Port>),
    twist: fn(Class) -> Class,
    flows: &[Flow],
    ports: usize,
    seconds: u64,
) -> Vec<f64> {
    let jobs = flows
        .iter()
        .enumerate()
        .flat_map(|(flow, &Flow(_, depth, jobs))| std::iter::repeat_n((flow, depth), jobs));
    let on_port = |(job, (flow, depth))| Thread { flow, port: job % ports, depth, length: 4096 };
    let threads: Vec<Thread> = jobs.enumerate().map(on_port).collect();
    let weights: Vec<u16> = flows.iter().map(|flow| flow.0).collect();
    let mut lab = Lab::new(build, &weights, &threads, SLOW);
    lab.twist = twist;
    (0..flows.len()).for_each(|flow| lab.start(flow));
    lab.run(seconds * SECOND);
    let bytes = lab.bytes_since(lab.now_ns - seconds * SECOND / 2);
    bytes.iter().map(|&bytes| bytes as f64 / 4096.0 / (seconds as f64 / 2.0)).collect()
}

fn none(ports: usize, flows: usize, tags: usize) -> (NonePolicy, Vec<NonePort>) {
    NonePolicy::new(ports, flows, tags).expect("legal")
}

/// D2FQ, or a canary's version of it.
#[derive(Clone, Copy)]
struct Subject {
    change: fn(&mut D2fqConfig),
    /// Whether it is the paper's policy.
    is_strict: bool,
    twist: fn(Class) -> Class,
}

const D2FQ: Subject = Subject { change: |_| (), is_strict: false, twist: |class| class };
const AS_IN_PAPER: Subject = Subject { is_strict: true, ..D2FQ };
const RATIO_2: Subject = Subject { change: |config| config.ratio = Ratio::Static(2), ..D2FQ };
const UPSIDE_DOWN: Subject = Subject { twist: upside_down, ..D2FQ };

fn upside_down(class: Class) -> Class {
    match class {
        Class::High => Class::Low,
        Class::Low => Class::High,
        other => other,
    }
}

impl Subject {
    fn run(self, flows: &[Flow], ports: usize, seconds: u64) -> Vec<f64> {
        let config = |ports, flows, tags| {
            D2fqConfig::new(Topology::flat(ports), flows, tags).with(self.change)
        };
        let build = |ports, flows, tags| -> (D2fq, Vec<D2fqPort>) {
            D2fq::new(config(ports, flows, tags)).expect("legal")
        };
        let build_strict = |ports, flows, tags| -> (StrictD2fq<Native>, _) {
            StrictD2fq::new(&config(ports, flows, tags), TrackerKind::Sloppy)
        };
        match self.is_strict {
            true => run(build_strict, self.twist, flows, ports, seconds),
            false => run(build, self.twist, flows, ports, seconds),
        }
    }
}

/// The weighted max-min fair share of each flow, in commands a second: flows that want less than
/// their share of the rest get all they want, until all others want more.
fn entitled(flows: &[Flow]) -> Vec<f64> {
    let mut left = f64::from(SLOW.window) * SECOND as f64 / SLOW.service_ns as f64;
    let mut of = vec![0.0; flows.len()];
    let mut open: Vec<usize> = (0..flows.len()).collect();
    while !open.is_empty() {
        let weights: f64 = open.iter().map(|&flow| f64::from(flows[flow].0)).sum();
        let share = |flow: usize| left * f64::from(flows[flow].0) / weights;
        let (full, more): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|&&flow| flows[flow].wants() <= share(flow));
        let done = if full.is_empty() { &more } else { &full };
        done.iter().for_each(|&flow| of[flow] = flows[flow].wants().min(share(flow)));
        left -= done.iter().map(|&flow| of[flow]).sum::<f64>();
        open = if full.is_empty() { full } else { more };
    }
    of
}

/// Commands of all flows for each one of the lightest flow that wants more than it is entitled to:
/// the ratio of two classes must reach this.
fn apart(flows: &[Flow]) -> f64 {
    let all = flows.iter().zip(entitled(flows));
    let hungry = all.clone().filter(|(flow, entitled)| flow.wants() > 1.01 * entitled);
    let least = hungry.map(|(_, entitled)| entitled).fold(f64::INFINITY, f64::min);
    all.map(|(_, entitled)| entitled).sum::<f64>() / least
}

/// The result of a run; the error names the law that is broken.
type Verdict = Result<(), String>;

/// Law: each flow gets at least this part of its entitled share.
fn each_has(part: f64, flows: &[Flow], got: &[f64]) -> Verdict {
    for ((flow, got), entitled) in flows.iter().zip(got).zip(entitled(flows)) {
        if *got < part * entitled {
            return Err(format!("{flow:?} has {got:.0} of {entitled:.0}; all: {flows:?}"));
        }
    }
    Ok(())
}

/// Law: flows that want 1.5 times their entitled share are served by weight, within this part.
fn hungry_share_by_weight(part: f64, flows: &[Flow], got: &[f64]) -> Verdict {
    let all = flows.iter().zip(got).zip(entitled(flows));
    let hungry = all.filter(|((flow, _), entitled)| flow.wants() > 1.5 * entitled);
    let per_weight = hungry.map(|((flow, got), _)| got / f64::from(flow.0));
    let (least, most) =
        per_weight.fold((f64::INFINITY, 0f64), |(least, most), x| (least.min(x), most.max(x)));
    if most > least * (1.0 + part) {
        return Err(format!("{least:.3} to {most:.3} per weight: {got:.0?} of {flows:?}"));
    }
    Ok(())
}

/// Law: a flow that is entitled to more than it gets without a scheduler gets at least this part of
/// that.
fn none_is_harmed(part: f64, flows: &[Flow], got: &[f64], without: &[f64]) -> Verdict {
    for (flow, entitled) in entitled(flows).into_iter().enumerate() {
        if entitled > without[flow] && got[flow] < part * without[flow] {
            let (got, without, of) = (got[flow], without[flow], flows[flow]);
            return Err(format!("{of:?} has {got:.0}, without {without:.0}; all: {flows:?}"));
        }
    }
    Ok(())
}

/// Law: a flow is served at least as much as one of less weight, unless it wants less.
fn no_inversion(flows: &[Flow], got: &[f64]) -> Verdict {
    for (heavy, got_heavy) in flows.iter().zip(got) {
        for (light, got_light) in flows.iter().zip(got) {
            if heavy.0 >= light.0 && *got_heavy < 0.9 * got_light.min(0.9 * heavy.wants()) {
                let got = format!("{got_heavy:.0} and {got_light:.0}");
                return Err(format!("{heavy:?} and {light:?} have {got}; all: {flows:?}"));
            }
        }
    }
    Ok(())
}

/// A flow of weight 300 and one of weight 100, both deep, beside shallow flows of weight 100.
fn shallow(depth: usize, jobs: usize, count: usize) -> Vec<Flow> {
    let mut flows = vec![Flow(300, 64, 2), Flow(100, 64, 2)];
    flows.extend(std::iter::repeat_n(Flow(100, depth, jobs), count));
    flows
}

/// Shallow flows take no share from the others, and get all they want.
fn shallow_flows_void_no_weights(subject: Subject) -> Verdict {
    for (depth, jobs, count) in [
        (1, 1, 1),
        (2, 1, 1),
        (4, 1, 1),
        (8, 1, 1),
        (1, 2, 1),
        (4, 2, 1),
        (8, 2, 1),
        (2, 1, 3),
        (8, 1, 2),
        (4, 2, 3),
    ] {
        let flows = shallow(depth, jobs, count);
        let (got, without) = (subject.run(&flows, 8, 6), run(none, |class| class, &flows, 8, 1));
        hungry_share_by_weight(0.05, &flows, &got)?;
        each_has(0.9, &flows, &got)?;
        none_is_harmed(0.95, &flows, &got, &without)?;
    }
    Ok(())
}

/// Many flows with one request each share by weight, although each has nothing in flight for a
/// moment with each of its completions.
fn crowds_share_by_weight(subject: Subject) -> Verdict {
    for count in [100, 500] {
        let mut flows = vec![Flow(300, 1, 1); count];
        flows.extend(vec![Flow(100, 1, 1); count]);
        each_has(0.9, &flows, &subject.run(&flows, 8, 8))?;
    }
    Ok(())
}

/// A flow of the largest weight gets no less than without a scheduler.
fn large_weights_do_no_harm(subject: Subject) -> Verdict {
    for (weight, depth) in [(10_000, 1), (10_000, 4), (10_000, 64), (300, 1), (257, 32)] {
        let flows = [Flow(weight, depth, 1), Flow(1, 64, 2), Flow(1, 64, 2)];
        let (got, without) = (subject.run(&flows, 8, 6), run(none, |class| class, &flows, 8, 1));
        none_is_harmed(0.95, &flows, &got, &without)?;
        no_inversion(&flows, &got)?;
    }
    Ok(())
}

/// Random loads: 2 to 8 flows of 1 to 3 jobs, 1 to 64 deep, with weights up to `most`.
struct Loads {
    random: u64,
    most: &'static [u64],
}

impl Loads {
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % bound
    }
}

impl Iterator for Loads {
    type Item = Vec<Flow>;

    fn next(&mut self) -> Option<Vec<Flow>> {
        let count = 2 + self.below(7);
        let most = self.most[self.below(self.most.len() as u64) as usize];
        let scale = [1, 10, 39][self.below(3) as usize].min(10_000 / most);
        let mut flow = || {
            let weight = (1 + self.below(most)) * scale;
            Flow(weight as u16, 1 << self.below(7), 1 + self.below(3) as usize)
        };
        Some((0..count).map(|_| flow()).collect())
    }
}

/// Shares by weight up to 256:1. On 8 ports a shallow flow waits behind a deep one's requests in a
/// queue that they share, so it gets less than with a port for each job.
fn shares_are_max_min(subject: Subject, random: u64, count: usize) -> Verdict {
    let loads = Loads { random, most: &[2, 4, 16, 64, 256] };
    for (number, flows) in loads.filter(|flows| apart(flows) < 250.0).take(count).enumerate() {
        let (ports, part, by_weight) =
            if number % 2 == 0 { (32, 0.85, 0.1) } else { (8, 0.75, 0.3) };
        let got = subject.run(&flows, ports, 10);
        each_has(part, &flows, &got)?;
        hungry_share_by_weight(by_weight, &flows, &got)?;
        none_is_harmed(0.9, &flows, &got, &run(none, |class| class, &flows, ports, 1))?;
    }
    Ok(())
}

/// Ratios beyond 256:1.
fn order_is_kept(subject: Subject, random: u64, count: usize) -> Verdict {
    let loads = Loads { random, most: &[1_000, 10_000] };
    loads.take(count).try_for_each(|flows| no_inversion(&flows, &subject.run(&flows, 32, 8)))
}

#[track_caller]
fn caught(verdict: Verdict, why: &str) {
    let said = verdict.expect_err("the canary passes");
    assert!(said.contains(why), "{said}");
}

#[test]
fn weights_hold_beside_shallow_flows() {
    shallow_flows_void_no_weights(D2FQ).unwrap();
    caught(shallow_flows_void_no_weights(AS_IN_PAPER), "per weight");
    caught(shallow_flows_void_no_weights(RATIO_2), "per weight");
}

#[test]
fn a_crowd_of_single_requests_shares_by_weight() {
    crowds_share_by_weight(D2FQ).unwrap();
    caught(crowds_share_by_weight(AS_IN_PAPER), " of ");
    caught(crowds_share_by_weight(RATIO_2), " of ");
}

#[test]
fn a_large_weight_is_not_worse_than_no_scheduler() {
    large_weights_do_no_harm(D2FQ).unwrap();
    caught(large_weights_do_no_harm(UPSIDE_DOWN), "without");
}

#[test]
fn shares_are_max_min_fair() {
    shares_are_max_min(D2FQ, 1, 16).unwrap();
    caught(shares_are_max_min(RATIO_2, 1, 16), " of ");
    caught(shares_are_max_min(UPSIDE_DOWN, 1, 16), " of ");
}

#[test]
fn no_flow_is_served_less_than_one_of_less_weight() {
    order_is_kept(D2FQ, 1, 8).unwrap();
    caught(order_is_kept(UPSIDE_DOWN, 1, 8), "have");
}
