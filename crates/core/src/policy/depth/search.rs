//! The search for D: the least that keeps a device at [`KEPT`] of its full rate with this load.
//!
//! **Model.** The search only knows the completions while D had one value or another. In *windows*
//! of at least [`TICK_NS`] it counts X(D), the service charged a second, with [`REQUEST`] more
//! for each request. *Base* windows are counted at D, *probes* at another value; the ratio of a
//! probe to the base windows before it shows whether D is to move. D is *enough* if X(D) is at
//! least [`KEPT`] of X(2 D).
//!
//! ```text
//!   Rise    probe of 2 D: is D enough?      no ─▶ D = 2 D, again      yes ─▶ Fall
//!   Fall    probes of D / 2, D / 1.4, D / 1.2: the first one is repeated while it is enough
//!   Hold    probes of 2 D and D / 1.2 in turn, ever more rarely
//! ```
//!
//! **Doubt.** Base windows differ from one another, by chance or because the host's CPUs have other
//! work. A difference of less than this spread (`doubt`) moves nothing: base and probe are counted
//! again, in turn, until the difference is clear or probes took [`PROBES_NS`]. If it is not clear
//! then, a larger D is refused, and the mean decides about a smaller one; before a slow device the
//! smaller one is accepted, and D is found to a factor of two.
//!
//! **All the demand.** If the most requests that ports had recently are no more than D, D holds
//! nothing back, and weights have no effect. So all the demand goes onto the device only if less
//! does not keep [`KEPT_OF_ALL`] of its rate; and probes are of a part of the demand.
//!
//! **A light load** (fewer requests than D, or than three quarters of the demand, are waiting or on
//! the device on average) has the same rate at any D. Its windows change nothing. As long as no
//! load has shown the device's need, D is at least the number of requests that the device does one
//! after the other within [`TICK_NS`], so that a flood that comes next is not held back.
//!
//! **Another load.** Two base windows in a row whose rate or latency differ clearly from the
//! earlier ones begin the search again, from the present D. A window with a pause in it is dropped.
//!
//! **A bound**, for a latency target (`target`), is the most that D may be. The search goes on
//! below it. A D that was found without a bound comes back when the bound is removed.
//!
//! **Example.** A device takes 10 us a request and serves 16 at a time; two tenants have 64
//! requests each. D is 16: X(32) is no more than X(16), so Rise ends. X(8), X(12) and X(14) are not
//! enough: D is 16.

use super::meter::{LONG_NS, SECOND_NS, Sum, TICK_NS, per_second};
use crate::contract::port::{DepthState, DepthStats};

// **Twice D.** For a device that does X = min(D / R, Xmax) the least D that is enough is the knee;
// for one whose rate approaches Xmax as 1 - exp(-D / k) it gives 98.4 % of Xmax; for the slowest
// approach, D / (D + k), 97 %. A fixed gain over rate times latency misses all three by up to a
// factor of two.

/// Bytes that a request counts besides its own: a sixteenth of a small one. A larger D may serve a
/// few large requests in the place of many small ones, which moves 6 % more bytes and is no gain.
const REQUEST: u64 = 256;
/// The initial D: no wider than a D that suits slow devices; 8 to 32.
pub(crate) const FIRST: u32 = 16;
/// One, in the unit of ratios; its root is an integer.
const WHOLE: u64 = 1 << 16;
/// The part of the rate at twice D that D is to keep (98.4 %), so that a rate with the slowest
/// growth (above) has 97 %; at 99 % D is up to 1.5 times the needed one.
const KEPT: u64 = WHOLE - WHOLE / 64;
/// One part in this is the step of D while it holds; the gain from all the demand that is no reason
/// for it, since a host that does the device's work gains 12 % by a doubling; and the fading of the
/// spread. Two parts are the difference between a load and its demand (with one, six requests are
/// never enough, and an old MLC drive with 64 KiB reads has 1.18 for 2.75), and the time between
/// reads of a window. With a step of 3/16 and a gain of 11 % the rows of decision 36 are the same.
const EIGHTH: u64 = 8;
/// A rate or latency is another one if it differs by more than one part in this. At 8 a load that
/// changes every 20 ms has 0.64 of its rate, at 6 it has 0.99.
const FAR: u64 = 6;
/// The part of the rate with all the demand that less than it is to keep.
const KEPT_OF_ALL: u64 = WHOLE - WHOLE / EIGHTH;
/// The stages of Fall, and the part of D that a probe has in each: 1/2, its root and the root of
/// that. With 1/2, 3/4 and 7/8 D is 1.11 times a sharp knee, not 1.27, but the reader of a Z-SSD
/// that has been written over has 0.58 of its rate alone, not 0.63.
const STEPS: usize = 3;
const PARTS: [u64; STEPS] = [WHOLE / 2, 46_336, 55_040];
/// The stage after these, in which D holds; stage 0 is Rise.
const HOLD: usize = STEPS + 1;
/// Completions that end a window: two of them differ by chance by 3 %. With 512 and with 4,096 a
/// load that changes every 20 ms has 0.73 and 0.76 of its rate, with this 0.99.
const ENOUGH: u64 = 1024;
/// Completions that end a window of [`LONG_NS`]. Without this rule a device of 4,000 requests a
/// second and fewer has windows of up to a second: a short queue beside many large requests has
/// 0.46 of a paced device in place of half of it.
const SOME: u64 = 256;
/// Completions without which a window says nothing, and with which a clear result ends it: with 16
/// chance decides, and with 64 a search costs a device of some hundred requests a second too much.
const FEW: u64 = 32;
/// Time in windows of one probe that ends a stage without a clear result, in nanoseconds.
const PROBES_NS: u64 = EIGHTH * TICK_NS;
/// The least time for the requests of another D to leave the device, in nanoseconds: some requests
/// of a fast device. With 1.25 ms the reader beside 64 KiB writes on a P3700 has 0.24 of its rate
/// alone, not 0.38.
const SETTLE_NS: u64 = 200_000;
/// Windows whose mean is compared, at most: older ones are of another time; 8 to 32.
const MEMORY: u64 = 16;
/// Base windows before the first probe of a load, which show its spread, and between two probes
/// while D holds: at first, and at most. A probe in 64 windows costs less than a hundredth;
/// with 32 a device that needs all the demand has less than 0.99 of its rate.
const OFTEN: u32 = 2;
const RARELY: u32 = 64;

/// The value of D in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Probe {
    #[default]
    Base,
    Less,
    More,
}

/// The counts of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    requests: u64,
    bytes: u64,
    time_ns: u64,
    /// Bytes a second, with [`REQUEST`] more for each request.
    rate: u64,
    /// Mean time of a request on the device, in nanoseconds.
    latency_ns: u64,
    /// Requests waiting or on the device, and on the device, on average (Little's law).
    live: u64,
    outstanding: u64,
    /// The most live requests recently.
    demand: u64,
    /// D was at least all the demand.
    is_short: bool,
    /// All requests that came were of one flow.
    is_one: bool,
}

impl Window {
    fn new(begun: &Sum, sum: &Sum, lasts_ns: u64, tried: u32) -> Window {
        let new = sum.since(begun);
        let time_ns = lasts_ns.max(1);
        let service = new.charged.saturating_add(new.requests.saturating_mul(REQUEST));
        Window {
            requests: new.requests,
            bytes: new.bytes,
            time_ns,
            rate: per_second(service, time_ns),
            latency_ns: new.spent_ns / new.requests.max(1),
            live: new.took_ns / time_ns,
            outstanding: new.spent_ns / time_ns,
            demand: sum.most,
            is_short: sum.most <= tried.into(),
            // The variance of their flows' numbers is 0.
            is_one: new.flows.wrapping_mul(new.flows) == new.sent.wrapping_mul(new.squares),
        }
    }
}

/// A mean of windows, of which the last [`MEMORY`] count: a rate in bytes a second, or a ratio of
/// rates.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: u64,
    windows: u64,
    latency_ns: u64,
    is_short: bool,
}

impl Mean {
    fn add(&mut self, value: u64, window: &Window) {
        self.windows = (self.windows + 1).min(MEMORY);
        let others = self.value.saturating_mul(self.windows - 1);
        self.value = others.saturating_add(value) / self.windows;
        (self.latency_ns, self.is_short) = (window.latency_ns, window.is_short);
    }

    /// The possible deviation of the mean, if single windows differ by `jitter`.
    fn doubt(&self, jitter: u64) -> u64 {
        // A mean of n differs by the square root of n less.
        let one = WHOLE.isqrt();
        jitter * one / (self.windows * WHOLE).isqrt().max(one)
    }
}

/// A part of a rate, at most eight times as much.
fn ratio(part: u64, of: u64) -> u64 {
    (part.saturating_mul(WHOLE) / of.max(1)).min(EIGHTH * WHOLE)
}

/// The search.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The D that is taken to be enough, and the one that the policy has now.
    slots: u32,
    tried: u32,
    /// The largest useful D. D is at most `most`: this, or less for a latency target. `slots` may
    /// be more, so that it applies again without the target.
    useful: u32,
    most: u32,
    /// At most D requests are on the device.
    is_bound: bool,
    /// Rise (0), the steps of Fall, or [`HOLD`].
    stage: usize,
    probe: Probe,
    /// The rate at D, and the ratios of probes to it.
    base: Mean,
    less: Mean,
    more: Mean,
    /// The largest difference of a base window from the mean of those before it. It
    /// fades by an eighth with each window.
    jitter: u64,
    /// Base windows before the next probe, and their number before the last one.
    left: u32,
    between: u32,
    /// The last probe while D holds was of 2 D.
    was_more: bool,
    /// Base windows in a row that were like another load's.
    strange: u32,
    /// `slots` has been found.
    is_found: bool,
    /// The load is light, or one flow is alone and nothing is held back.
    is_light: bool,
    is_alone: bool,
    /// Time when there were several flows.
    several_ns: u64,
    /// Counting has begun at this time, with these sums.
    begun: Option<(u64, Sum)>,
    /// Time when completions were last seen, and their number then.
    looked: (u64, u64),
    deadline_ns: u64,
    /// The last window at D.
    last: Window,
}

impl Search {
    /// D is at most `most`. `is_bound`: it bounds the requests on the device.
    pub(super) fn new(most: u32, is_bound: bool) -> Search {
        let slots = FIRST.min(most);
        let mut search =
            Search { slots, tried: slots, useful: most, most, is_bound, ..Search::default() };
        search.restart(0);
        search
    }

    /// Time of the next check, in nanoseconds.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Whether no value of D is being tried because the load is new.
    pub(super) fn is_over(&self) -> bool {
        self.is_alone || self.is_light || self.stage == HOLD
    }

    /// The search's state and result.
    pub(super) fn stats(&self) -> DepthStats {
        let state = match () {
            () if self.is_alone => DepthState::Alone,
            () if self.is_light => DepthState::AllDemand,
            () if self.stage < HOLD => DepthState::Searching,
            () if self.base.is_short => DepthState::AllDemand,
            () => DepthState::Found,
        };
        let per_second = |count: u64| per_second(count, self.last.time_ns);
        DepthStats {
            slots: if self.is_alone { self.tried } else { self.slots() },
            state,
            requests_per_s: per_second(self.last.requests),
            bytes_per_s: per_second(self.last.bytes),
        }
    }

    /// D.
    fn slots(&self) -> u32 {
        self.slots.min(self.most)
    }

    /// The D that the policy is to have now.
    pub(super) fn tried(&self) -> u32 {
        self.tried
    }

    /// The largest D that probes reach from here without a bound.
    pub(super) fn reach(&self) -> u32 {
        self.slots.saturating_mul(2).min(self.useful)
    }

    /// Bounds D for a latency target. The search is then for the least D that is enough for the
    /// device's rate at the bound.
    pub(super) fn bound(&mut self, now_ns: u64, bound: u32) {
        let most = self.useful.min(bound).max(1);
        if most == self.most {
            return;
        }
        let before = self.slots();
        self.most = most;
        if self.slots() != before || self.tried > most {
            self.restart(if self.is_found { HOLD } else { 0 });
            self.settle(now_ns);
        }
    }

    /// Drops the present counts, which say nothing about D, and those of some time; with `is_much`
    /// also the earlier ones. Costs vary for windows of a twentieth of a second and more.
    pub(super) fn wait(&mut self, now_ns: u64, is_much: bool) {
        if self.is_alone {
            return;
        }
        self.deadline_ns = now_ns.saturating_add(LONG_NS);
        self.rest();
        if is_much {
            self.jitter = 0;
            self.restart(0);
        }
        self.begun = None;
    }

    /// Reads the counts.
    pub(super) fn look(&mut self, now_ns: u64, sum: &Sum) {
        let Some((begun_ns, begun)) = self.begun else {
            return self.begin(now_ns, sum);
        };
        let lasts_ns = now_ns.saturating_sub(begun_ns);
        let window = Window::new(&begun, sum, lasts_ns, self.tried);
        if self.is_alone && !window.is_one {
            // Another flow has come; the counts are of no use.
            (self.is_alone, self.several_ns) = (false, now_ns);
            self.rest();
            return self.settle(now_ns);
        }
        let (looked_ns, looked) = self.looked;
        let own_ns = lasts_ns.checked_div(window.requests).unwrap_or(0);
        if sum.requests != looked {
            self.looked = (now_ns, sum.requests);
        } else if now_ns.saturating_sub(looked_ns) >= TICK_NS.max(own_ns.saturating_mul(EIGHTH)) {
            // A pause says nothing about the device.
            self.rest();
            return self.begin(now_ns, sum);
        }
        // A probe that does far less or more than D, or serves another mixture, ends when D would
        // have had some completions.
        let expected = self.expected(&window);
        let is_clear = self.probe != Probe::Base
            && expected >= FEW
            && (self.is_far(window.rate, self.base.value)
                || self.is_far(window.requests, expected));
        let is_long = lasts_ns >= LONG_NS && window.requests >= SOME;
        let is_over = window.requests >= ENOUGH || is_long || lasts_ns >= SECOND_NS || is_clear;
        if lasts_ns < TICK_NS || !is_over {
            let mut after_ns = (lasts_ns / EIGHTH * 2).max(TICK_NS / EIGHTH);
            if self.is_alone {
                self.make_room(sum.most);
                after_ns = TICK_NS / EIGHTH;
            }
            self.deadline_ns = now_ns.saturating_add(after_ns);
            return;
        }
        let before = self.tried;
        let allowed = u64::from(before) + u64::from(before) / 2 + 1;
        if self.is_bound && !self.is_alone && window.outstanding > allowed {
            // Requests that a larger D let onto the device are still there.
            return self.settle(now_ns);
        }
        if !window.is_one {
            self.several_ns = now_ns;
        }
        self.is_alone = now_ns.saturating_sub(self.several_ns) >= LONG_NS
            && window.demand.saturating_mul(own_ns) <= TICK_NS;
        self.judge(&window);
        if self.tried == before { self.begin(now_ns, sum) } else { self.settle(now_ns) }
    }

    /// Begins to count.
    fn begin(&mut self, now_ns: u64, sum: &Sum) {
        (self.begun, self.looked) = (Some((now_ns, *sum)), (now_ns, sum.requests));
        let first_ns = if self.is_alone { TICK_NS / EIGHTH } else { TICK_NS };
        self.deadline_ns = now_ns.saturating_add(first_ns);
    }

    /// Waits until the requests on the device are as many as D allows; counting begins then.
    fn settle(&mut self, now_ns: u64) {
        self.begun = None;
        let after_ns = self.last.latency_ns.saturating_add(self.last.latency_ns / 2);
        let after_ns = after_ns.clamp(SETTLE_NS, LONG_NS);
        self.deadline_ns = now_ns.saturating_add(after_ns);
    }

    /// Gives D to the policy, or another value for a probe.
    fn attempt(&mut self, probe: Probe) {
        self.probe = probe;
        self.tried = match probe {
            Probe::Base => self.slots(),
            Probe::Less => self.less(),
            Probe::More => self.slots().saturating_mul(2).min(self.most),
        };
    }

    /// The next probe of a smaller D; 0 below 1.
    fn less(&self) -> u32 {
        let is_all = self.stage == HOLD && self.base.is_short;
        let part = if is_all { PARTS[0] } else { PARTS[self.stage.clamp(1, STEPS) - 1] };
        let reach = u64::from(self.slots()).min(self.last.demand).max(1);
        (reach * part).div_ceil(WHOLE).min(reach - 1) as u32
    }

    /// D applies, and no probe.
    fn rest(&mut self) {
        self.strange = 0;
        if !self.is_alone {
            self.attempt(Probe::Base);
        }
    }

    /// Begins again at this stage, with no windows counted.
    fn restart(&mut self, stage: usize) {
        (self.stage, self.left, self.between) = (stage, OFTEN, OFTEN);
        (self.base, self.less, self.more) = Default::default();
        self.rest();
    }

    /// A flow that is alone gets room for the most requests that it had recently, and D more for
    /// another flow that comes.
    fn make_room(&mut self, demand: u64) {
        let room = u32::try_from(demand).unwrap_or(u32::MAX).saturating_add(self.slots());
        self.tried = room.clamp(1, self.most);
    }

    /// Whether a rate or a latency differs clearly from the usual one.
    fn is_far(&self, a: u64, usual: u64) -> bool {
        let much = usual / FAR + 1 + usual.saturating_mul(2 * self.jitter) / WHOLE;
        a.abs_diff(usual) > much
    }

    /// The requests that would have completed at D in the time of this window.
    fn expected(&self, window: &Window) -> u64 {
        self.last.requests.saturating_mul(window.time_ns) / self.last.time_ns.max(1)
    }

    /// Judges a window.
    fn judge(&mut self, window: &Window) {
        if self.is_alone {
            self.last = *window;
            return self.make_room(window.demand);
        }
        let light = TICK_NS.checked_div(window.latency_ns).unwrap_or(0);
        let light = u32::try_from(light).unwrap_or(u32::MAX).max(FIRST).min(self.most);
        if self.probe == Probe::Base && window.requests < FEW {
            // The device is too slow for the search.
            self.slots = self.slots.min(light);
            return if self.is_light { self.rest() } else { self.restart(0) };
        }
        match self.probe {
            Probe::Base => {
                self.last = *window;
                let demand = window.demand - window.demand * 2 / EIGHTH;
                let busy = if window.is_short { demand } else { self.slots().into() };
                self.is_light = window.live < busy;
                if (self.is_light || window.is_short) && !self.is_found {
                    self.slots = self.slots.max(light);
                }
                if self.is_light {
                    return self.rest();
                }
                self.note_base(window);
            }
            // The probe has left slots free.
            Probe::Less if window.live < self.tried.into() => self.next_stage(),
            _ => self.judge_probe(window),
        }
        self.choose();
    }

    fn note_base(&mut self, window: &Window) {
        let is_known = self.base.windows > 0;
        let is_other = is_known && window.is_short != self.base.is_short;
        let is_strange = is_known
            && (self.is_far(window.rate, self.base.value)
                || self.is_far(window.latency_ns, self.base.latency_ns));
        self.strange = if is_strange { self.strange + 1 } else { 0 };
        if is_other || self.strange >= 2 {
            self.restart(0);
        } else if is_strange {
            return;
        } else if is_known {
            let apart = ratio(window.rate.abs_diff(self.base.value), self.base.value);
            self.jitter = apart.max(self.jitter - self.jitter / EIGHTH);
        }
        self.left = self.left.saturating_sub(1);
        self.base.add(window.rate, window);
    }

    /// Judges a probe; moves D if it is clear that D has to move.
    fn judge_probe(&mut self, window: &Window) {
        let (is_more, value) = (self.probe == Probe::More, ratio(window.rate, self.base.value));
        let probes = if is_more { &mut self.more } else { &mut self.less };
        probes.add(value, window);
        let (probes, base) = (*probes, Mean { value: WHOLE, ..self.base });
        // D is enough for 2 D, or the smaller one for D, which is twice as much in the first step
        // of Fall.
        let is_base = self.more.windows == 0 || self.more.is_short || base.is_short;
        let high = if is_base { base } else { self.more };
        let (low, high) = if is_more { (base, probes) } else { (probes, high) };
        let keeps = ratio(low.value, high.value);
        // One step less than all the demand is no gain for weights.
        let is_step = !is_more && self.stage == STEPS;
        let kept = if high.is_short && !is_step { KEPT_OF_ALL } else { KEPT };
        // Few completions differ by chance more than their windows show.
        let is_few = self.last.requests < ENOUGH;
        let chance = if is_few { WHOLE / 2 / window.requests.isqrt().max(1) } else { 0 };
        let doubt = low.doubt(self.jitter) + high.doubt(self.jitter);
        let is_clear = keeps.abs_diff(kept) >= doubt.max(chance);
        // Larger requests that take the places of small ones are tried no longer than is necessary.
        let is_mixed = is_more && is_few && self.is_far(window.requests, self.expected(window));
        let is_short = probes.windows * window.time_ns < PROBES_NS && !is_mixed;
        if !is_clear && (is_short || self.stage == HOLD) {
            self.left = 1;
            return;
        }
        // Weights are not given up for a gain that may be chance.
        let is_enough = keeps + chance >= kept || !is_clear && (is_more || high.is_short);
        let is_far = self.is_far(window.rate, self.base.value);
        match (is_more, is_enough) {
            (true, true) => self.stage = self.stage.max(1),
            // Few completions do not distinguish one step from another.
            (false, false) if is_few => self.stage = HOLD,
            (false, false) => self.next_stage(),
            (true, false) if self.stage == HOLD && !is_far => {
                let slots = self.slots();
                self.slots = slots.saturating_add((slots / EIGHTH as u32).max(1)).min(self.most);
                self.restart(HOLD);
            }
            (true, false) => self.move_to(0, &probes, Mean::default()),
            // A smaller D does not do much more.
            (false, true) if probes.value > WHOLE && is_far => self.restart(0),
            (false, true) => {
                let stage = if self.stage == 1 { 1 } else { (self.stage + 1).min(HOLD) };
                let more = Mean { value: ratio(high.value, low.value), ..high };
                self.move_to(stage, &probes, more);
            }
        }
    }

    /// D is the value of these probes.
    fn move_to(&mut self, stage: usize, probes: &Mean, more: Mean) {
        let value = self.base.value.saturating_mul(probes.value) / WHOLE;
        self.base = Mean { value, ..*probes };
        (self.less, self.more) = (Mean::default(), more);
        self.slots = self.tried;
        (self.stage, self.left, self.between) = (stage, 0, OFTEN);
    }

    /// Ends a step of Fall: the smaller D is not enough.
    fn next_stage(&mut self) {
        let not_enough = self.tried;
        while self.stage < HOLD {
            self.stage += 1;
            self.less = Mean::default();
            if self.less() > not_enough {
                break;
            }
        }
    }

    /// Chooses the next window's D.
    fn choose(&mut self) {
        if self.stage == 0 && (self.base.is_short || self.slots >= self.most) {
            self.stage = 1;
        }
        if self.stage > 0 && self.less() == 0 {
            self.stage = HOLD;
        }
        let is_held = self.stage == HOLD;
        if is_held {
            // With all the demand on the device its need is not known.
            self.is_found = !self.base.is_short;
            if self.probe != Probe::Base {
                self.between = (self.between * 2).min(RARELY);
                self.left = self.between;
            }
        }
        if self.left > 0 || self.strange > 0 {
            return self.attempt(Probe::Base);
        }
        if is_held {
            self.was_more = !self.was_more;
        }
        let is_most = self.base.is_short || self.slots >= self.most;
        let is_more = if is_held { self.was_more && !is_most } else { self.stage == 0 };
        let other = if self.less() == 0 { Probe::Base } else { Probe::Less };
        self.attempt(if is_more { Probe::More } else { other });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn rate(requests: u64, bytes: u64) -> u64 {
        let sum = Sum { requests, charged: bytes, ..Sum::default() };
        Window::new(&Sum::default(), &sum, SECOND_NS, 16).rate
    }

    /// Four tenants of 4 KiB beside four of 256 KiB at depth 4 before the Z-SSD.
    #[test]
    fn another_mixture_is_not_more() {
        let [at_16, at_14, at_12] =
            [(61_000, 3_197), (390_000, 3_127), (375_000, 3_009)].map(|(n, mb)| rate(n, mb << 20));
        assert!(ratio(at_14, at_16) >= KEPT);
        assert!(ratio(at_12, at_16) < KEPT);
    }

    #[test]
    fn the_price_of_small_requests_is_bounded() {
        for requests in [0, 1, 1000, 1 << 20] {
            let (bytes, kept) = (requests << 12, ratio(rate(requests, 9 << 30), rate(0, 9 << 30)));
            assert!(bytes <= 9 << 30 && kept <= WHOLE * 17 / 16, "{requests}: {kept}");
        }
        // Of the same mixture a part of the requests is the same part of the rate.
        assert_eq!(
            ratio(rate(98_000, 98_000 << 12), rate(100_000, 100_000 << 12)),
            WHOLE * 98 / 100
        );
    }
}
