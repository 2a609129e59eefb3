//! The search for D: the least that keeps a device at [`KEPT`] of its full rate with this load.
//!
//! **Model.** The search only knows the completions while D had one value or another. It makes
//! *trials*: it sets a value of D, waits until the device has adapted, and counts for a while. Let
//! X(D) be the rate so counted. D is *enough* if X(D) is at least [`KEPT`] of X(2 D).
//!
//! ```text
//!   Begin  D itself, four times: how steady is the rate?
//!   Rise   X(2D) is more? ──── yes ─▶ D = 2D, again     no ─▶ Fall
//!   Fall   X(D/2) is enough? ─ yes ─▶ D = D/2, again    no ─▶ Close
//!   Close  halves what is between D/2 and D, until it is a step
//!   Hold   D; now and then a trial of a step less and one of 2D, whose counts add up until they
//!          say clearly that D is to move by a step. Another load: Begin
//! ```
//!
//! **Example.** A device takes 10 us a request and serves 16 at a time; two tenants have 64
//! requests each. D is 16: X(16) is 1.6 M a second and X(32) no more, so Rise ends. X(8) is 0.8 M,
//! not enough; X(11) and X(13) are not enough either: D is 16.
//!
//! **Units.** A rate is counted in requests and in bytes. With more requests on the device their
//! mixture may change, because weights hold less. So D is enough only if it is enough in both; but
//! if it does less in the one and much more in the other, it may lose up to
//! [`PRICE_OF_WEIGHTS`](super::rate::PRICE_OF_WEIGHTS) more.
//!
//! **All the demand** is the most requests that ports have had recently (`all`).
//!
//! **A light load** leaves slots free at a D that is tried: fewer requests than D are there on
//! average. Its rate is the same at any D, so it is no evidence for a small one. D keeps its value,
//! and nothing is held back: there are slots for the requests that the device does within
//! [`ALONE_MOST_NS`]. When D would hold requests back, it applies again.
//!
//! **A bound**, for a latency target (`target`), is the most that D may be. The search goes on
//! below it: if a smaller D is enough for the device's rate at the bound, D is that one. A D that
//! was found without a bound comes back when the bound is removed.
//!
//! **Few completions.** A trial takes a quarter of a second at most, or a second with fewer than
//! [`SOME`] completions; it ends after [`CLEAR`] of them if the smaller D is far from enough. The
//! possible deviation by chance then counts for the smaller D, once a search and not with each half
//! of D. A device of less than [`FEW`] requests a second is not judged, and its D is at most the
//! initial one. A trial with a pause in it is dropped.
//!
//! **Bounds.** From one trial to the next D, or all the demand if that is less, changes by a factor
//! of four at most (from 2 D to D / 2), except that a flow that is alone has room for all its
//! requests, if the device does them within [`ALONE_MOST_NS`]. A search compares at most [`RISES`]
//! times up, as often down, and three times in between. While D holds, one trial in 32 is of
//! another D, half of them of a larger one. A change of load is accepted when two trials in a row
//! show it, and not sooner than four trials after the last.

use super::hold::{Hold, Trial, Verdict, step_down, step_up};
use super::meter::Sum;
use super::rate::{Answer, CLEAR, ENOUGH, KEPT, Rate};
use crate::contract::port::{DepthState, DepthStats};

// **Twice D.** For a device that does X = min(D / R, Xmax) the least D that is enough is the knee;
// for one whose rate approaches Xmax as 1 - exp(-D / k) it gives 98.5 % of Xmax; for the slowest
// approach, D / (D + k), 97 %. A fixed gain over rate times latency misses all three by up to a
// factor of two. Rates that are compared are counted within a second of each other, so that a
// device that slows down is not taken for a D that is too small.

/// The initial D.
pub(crate) const FIRST: u32 = 16;
/// The most doublings of one search.
const RISES: u32 = 16;
/// Trials of D that a search begins with.
const STEADY: u32 = 3;
/// The most trials in a comparison of two values of D, besides the first two.
const REPEATS: u32 = 8;
/// The shortest and the longest time of counting in a trial, in nanoseconds.
const COUNT_MIN_NS: u64 = 10_000_000;
const COUNT_MAX_NS: u64 = 250_000_000;
/// A trial of fewer completions than this goes on for up to [`COUNT_SLOW_NS`].
const SOME: u64 = ENOUGH / 4;
const COUNT_SLOW_NS: u64 = 1_000_000_000;
/// A trial with fewer completions says nothing.
const FEW: u64 = 32;
/// A flow is alone when no request of another has completed for this time, in nanoseconds. A
/// scheduler that serves one flow at a time goes on to the next sooner.
const ALONE_AFTER_NS: u64 = 400_000_000;
/// A flow that is alone has no limit if the device does all its requests within this time, in
/// nanoseconds.
const ALONE_MOST_NS: u64 = 10_000_000;
/// Time between two checks whether a flow is still alone, in nanoseconds.
const ALONE_NS: u64 = 2_000_000;
/// The shortest time for the device to adapt to another D, in nanoseconds.
const SETTLE_MIN_NS: u64 = 200_000;

/// State of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// D itself is tried a few times, which shows how steady the rate is.
    Begin { rate: Rate, is_first: bool },
    /// D is compared with twice as much, `left` more times at most.
    Rise { duel: Duel, left: u32 },
    /// D is enough: it is compared with half of it.
    Fall { duel: Duel },
    /// `low` is not enough, `high` is: a value between them is compared with `high` as it was at
    /// first.
    Close { duel: Duel, low: u32, high: u32 },
    /// D holds.
    Hold(Hold),
}

/// Two values of D that are compared, by trials of each in turn until the result is clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Duel {
    low: u32,
    high: u32,
    /// Rates counted at each.
    below: Rate,
    above: Rate,
    /// Trials without a clear result.
    unclear: u32,
}

impl Duel {
    /// The value to try first. At least one of them has been tried; the other one is next.
    fn first(&self) -> u32 {
        if self.below.trials == 0 { self.low } else { self.high }
    }

    /// Notes a trial of one of them. Gives the result once it is clear, or will not become clear;
    /// until then, the value to try next.
    fn note(&mut self, tried: u32, rate: &Rate, jitter: u64) -> Result<Answer, u32> {
        (if tried == self.low { &mut self.below } else { &mut self.above }).add(rate);
        match self.below.against(&self.above, jitter) {
            Answer::Unclear if self.unclear < REPEATS => {
                self.unclear += 1;
                Err(if tried == self.low { self.high } else { self.low })
            }
            Answer::Unclear if self.below.against(&self.above, 0) == Answer::Enough => {
                Ok(Answer::Enough)
            }
            answer => Ok(answer),
        }
    }

    /// Whether `high` is all the demand and does more than `low`: then `low` is kept for the
    /// weights only.
    fn is_for_weights(&self) -> bool {
        self.above.is_short && !self.below.is_short && self.below.keeps(&self.above) < KEPT
    }
}

/// The search.
#[derive(Debug)]
pub(super) struct Search {
    /// The D that is taken to be enough, and the D that is being tried.
    slots: u32,
    tried: u32,
    /// The largest useful D. D is at most `most`: this, or less for a latency target.
    useful: u32,
    most: u32,
    /// D when a latency target lowered it, until a D below the target's bound is enough.
    missed: Option<u32>,
    /// At most D requests are on the device.
    is_bound: bool,
    state: State,
    /// Mean difference of the last few trials of the same D, in ten thousandths. On a host that is
    /// short of CPUs they differ by far more than by chance.
    jitter: u64,
    /// `slots` has been found.
    is_found: bool,
    /// One flow is alone, and has all its requests on the device.
    is_alone: bool,
    /// The load leaves slots free: nothing is held back.
    is_light: bool,
    /// Time from which all completions were of one flow.
    one_since_ns: Option<u64>,
    /// Another flow has come just now, and the device still works on the earlier requests.
    is_mixed: bool,
    /// The most live requests recently, at the end of a trial, and at any time.
    peak: u64,
    demand: u64,
    /// Counting has begun at this time, with these sums.
    begun: Option<(u64, Sum)>,
    /// Time when completions were last seen, and their number then.
    looked: (u64, u64),
    deadline_ns: u64,
    /// A request's time on the device in the last trial.
    latency_ns: u64,
    /// Time for which the last trial was counted.
    count_ns: u64,
    /// The last rate at D.
    rate: Rate,
}

/// Whether `idle_ns` without a completion is a pause, after requests completed at this rate.
fn is_pause(rate: &Rate, idle_ns: u64) -> bool {
    let apart_ns = rate.time_us.saturating_mul(1000).checked_div(rate.requests).unwrap_or(0);
    idle_ns >= COUNT_MIN_NS && idle_ns > apart_ns.saturating_mul(4)
}

impl Search {
    /// D is at most `most`. `is_bound`: it bounds the requests on the device.
    pub(super) fn new(most: u32, is_bound: bool) -> Search {
        let slots = FIRST.min(most);
        Search {
            slots,
            tried: slots,
            useful: most,
            most,
            missed: None,
            is_bound,
            state: State::Begin { rate: Rate::default(), is_first: true },
            jitter: 0,
            is_found: false,
            is_alone: false,
            is_light: false,
            one_since_ns: None,
            is_mixed: false,
            peak: 0,
            demand: 0,
            begun: None,
            looked: (0, 0),
            deadline_ns: 0,
            latency_ns: 0,
            count_ns: COUNT_MIN_NS,
            rate: Rate::default(),
        }
    }

    /// Time of the next look, in nanoseconds.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Whether no value of D is being tried because the load is new.
    pub(super) fn is_over(&self) -> bool {
        self.is_alone || self.is_light || matches!(self.state, State::Hold(_))
    }

    /// The search's state and result.
    pub(super) fn stats(&self) -> DepthStats {
        let state = match self.state {
            _ if self.is_alone => DepthState::Alone,
            _ if self.is_light => DepthState::AllDemand,
            State::Hold(Hold { is_short: true, .. }) => DepthState::AllDemand,
            State::Hold(_) => DepthState::Found,
            _ => DepthState::Searching,
        };
        let per_second = |count: u64| count.saturating_mul(1_000_000) / self.rate.time_us.max(1);
        DepthStats {
            slots: if self.is_open() { self.tried } else { self.slots },
            state,
            requests_per_s: per_second(self.rate.requests),
            bytes_per_s: per_second(self.rate.blocks).saturating_mul(512),
        }
    }

    /// Reads the counts.
    pub(super) fn look(&mut self, now_ns: u64, sum: &Sum) {
        self.trial(now_ns, sum);
        if self.slots < self.most {
            // A D below the target's bound is enough.
            self.missed = None;
        }
    }

    /// Bounds D for a latency target. The search is then for the least D that is enough for the
    /// device's rate at the bound.
    pub(super) fn bound(&mut self, now_ns: u64, bound: u32) {
        let most = self.useful.min(bound).max(1);
        if most == self.most {
            return;
        }
        self.most = most;
        let wanted = self.missed.unwrap_or(self.slots);
        if wanted.min(most) == self.slots && self.tried <= most {
            return;
        }
        self.missed = Some(wanted).filter(|&wanted| wanted > most);
        self.slots = wanted.min(most);
        match () {
            () if self.is_open() => self.make_room(0),
            () if self.is_found => self.hold(self.slots),
            () => self.restart(),
        }
        self.settle(now_ns);
    }

    /// The D that the policy is to have now.
    pub(super) fn tried(&self) -> u32 {
        self.tried
    }

    /// The largest D that trials reach from here without a bound.
    pub(super) fn reach(&self) -> u32 {
        self.missed.unwrap_or(self.slots).saturating_mul(2).min(self.useful)
    }

    /// Drops the present counts, which say nothing about D; with `is_much` also the earlier ones.
    pub(super) fn wait(&mut self, is_much: bool) {
        if self.is_open() {
            return;
        }
        self.rest();
        if is_much {
            self.jitter = 0;
            self.restart();
        }
        self.begun = None;
    }

    fn trial(&mut self, now_ns: u64, sum: &Sum) {
        let Some((begun_ns, begun)) = self.begun else {
            return self.begin(now_ns, sum);
        };
        if let State::Hold(Hold { is_short: true, .. }) = self.state
            && !self.is_open()
            && sum.most > u64::from(self.slots)
        {
            // There is more demand than when D was found, which held nothing back then.
            self.restart();
            return self.settle(now_ns);
        }
        if self.is_alone && (sum.are_several || sum.others != begun.others) {
            // Another flow has come; the counts are of no use.
            self.protect();
            return self.settle(now_ns);
        }
        if self.is_light && sum.live > self.tried.into() {
            // More requests have come than there are slots.
            self.protect();
            return self.settle(now_ns);
        }
        let lasts_ns = now_ns.saturating_sub(begun_ns);
        let rate = Rate {
            requests: sum.requests.wrapping_sub(begun.requests),
            blocks: sum.bytes.wrapping_sub(begun.bytes) >> 9,
            time_us: lasts_ns / 1000,
            spent_us: sum.spent_ns.wrapping_sub(begun.spent_ns) / 1000,
            waited_us: sum.waited_ns.wrapping_sub(begun.waited_ns) / 1000,
            trials: 1,
            is_short: sum.most <= self.tried.into(),
        };
        let (looked_ns, looked) = self.looked;
        let is_moving = sum.requests != looked;
        if is_moving {
            self.looked = (now_ns, sum.requests);
        } else if is_pause(&rate, now_ns.saturating_sub(looked_ns)) {
            // A pause says nothing about the device.
            self.rest();
            return self.begin(now_ns, sum);
        }
        let (enough, longest_ns) =
            if lasts_ns < COUNT_MAX_NS { (ENOUGH, COUNT_MAX_NS) } else { (SOME, COUNT_SLOW_NS) };
        let above = self.slow_above();
        let is_clear = above.is_some_and(|above| rate.is_far_below(above));
        let is_over = rate.requests >= enough || lasts_ns >= longest_ns || is_clear;
        if lasts_ns < COUNT_MIN_NS || !is_over {
            let wanted = if above.is_some() && rate.requests < CLEAR { CLEAR } else { enough };
            let missing = wanted.saturating_sub(rate.requests);
            let needs_ns = (lasts_ns / rate.requests.max(1)).saturating_mul(missing);
            let next_ns = now_ns.saturating_add(needs_ns.max(COUNT_MIN_NS / 8));
            let (least_ns, most_ns) = (begun_ns + COUNT_MIN_NS, begun_ns + longest_ns);
            self.deadline_ns = next_ns.clamp(least_ns, most_ns);
            if self.is_open() {
                self.make_room(sum.live);
                let is_soon = is_moving && self.is_alone;
                let soon_ns = if is_soon { ALONE_NS } else { COUNT_MIN_NS };
                self.deadline_ns = self.deadline_ns.min(now_ns.saturating_add(soon_ns));
            }
            return;
        }
        self.count_ns = lasts_ns.clamp(COUNT_MIN_NS, COUNT_MAX_NS);
        if core::mem::take(&mut self.is_mixed)
            || self.is_bound && rate.outstanding() > 150 * u64::from(self.tried) + 100
        {
            // Requests that a larger D let onto the device are still there.
            return self.settle(now_ns);
        }
        if rate.requests >= FEW {
            // One turn is allowed, the change from an earlier flow to this one. Flows on ports of
            // their own make no turns, but the sum of their numbers is not that of one flow.
            let is_one = sum.turns.wrapping_sub(begun.turns) <= 1
                && sum.others == begun.others
                && !sum.are_several
                && sum.flows.wrapping_sub(begun.flows) == rate.requests.wrapping_mul(sum.last);
            let since_ns = self.one_since_ns.filter(|_| is_one).unwrap_or(begun_ns);
            self.one_since_ns = is_one.then_some(since_ns);
            let is_alone = is_one && now_ns.saturating_sub(since_ns) >= ALONE_AFTER_NS;
            self.demand = sum.most;
            self.latency_ns = rate.latency_ns();
            self.peak = (self.peak - self.peak / 8).max(sum.live);
            self.judge(&rate, is_alone && self.is_light(&rate));
        } else {
            self.give_up();
        }
        self.settle(now_ns);
    }

    /// The rate with which the tried smaller D is compared, on a device so slow that a trial has
    /// few completions: a trial that does far less costs much, and ends as soon as that is clear.
    fn slow_above(&self) -> Option<&Rate> {
        let above = match &self.state {
            State::Fall { duel } if self.tried == duel.low => &duel.above,
            State::Hold(hold) if hold.trial == Trial::Less => hold.most(),
            _ => return None,
        };
        let (requests, time_us) = (above.requests, above.time_us);
        let is_slow = requests.saturating_mul(COUNT_MAX_NS / 1000) < ENOUGH.saturating_mul(time_us);
        is_slow.then_some(above)
    }

    /// Begins to count.
    fn begin(&mut self, now_ns: u64, sum: &Sum) {
        (self.begun, self.looked) = (Some((now_ns, *sum)), (now_ns, sum.requests));
        let count_ns = match () {
            () if self.is_alone => ALONE_NS,
            () if self.is_light || self.slow_above().is_some() => COUNT_MIN_NS,
            () => self.count_ns,
        };
        self.deadline_ns = now_ns.saturating_add(count_ns);
    }

    /// Waits until the requests on the device are as many as D allows; counting begins then.
    fn settle(&mut self, now_ns: u64) {
        self.begun = None;
        let settles_ns = (self.latency_ns / 2 * 3).clamp(SETTLE_MIN_NS, COUNT_MAX_NS);
        self.deadline_ns = now_ns.saturating_add(if self.is_alone { 0 } else { settles_ns });
    }

    fn attempt(&mut self, slots: u32) {
        self.tried = slots.clamp(1, self.most);
    }

    fn hold(&mut self, slots: u32) {
        self.slots = slots.clamp(1, self.most);
        self.is_found = true;
        self.attempt(self.slots);
        self.state = State::Hold(Hold::new());
    }

    /// Whether nothing is held back: one flow is alone, or the load is light.
    fn is_open(&self) -> bool {
        self.is_alone || self.is_light
    }

    /// Another flow has come, or more requests than D: D applies again.
    fn protect(&mut self) {
        if self.is_light && !self.is_found {
            // D has not been found: the search begins at the D with which nothing was held back.
            self.slots = self.tried;
        }
        (self.is_alone, self.is_light) = (false, false);
        (self.one_since_ns, self.is_mixed) = (None, true);
        if self.is_found { self.hold(self.slots) } else { self.restart() }
    }

    fn restart(&mut self) {
        self.attempt(self.slots);
        self.state = State::Begin { rate: Rate::default(), is_first: true };
    }

    /// Nothing completes: the next requests are to find D, not the value that was being tried.
    fn rest(&mut self) {
        self.count_ns = COUNT_MIN_NS;
        let is_open = self.is_open();
        if let State::Hold(hold) = &mut self.state
            && !is_open
        {
            hold.trial = Trial::Base;
            // The trial before the pause may have ended in it.
            hold.strange = 0;
            self.attempt(self.slots);
        }
    }

    /// Too few requests complete for trials: D is at most the initial one.
    fn give_up(&mut self) {
        self.is_alone = false;
        self.slots = self.slots.min(FIRST);
        if !self.is_light {
            self.restart();
        }
    }

    /// Whether the device does all requests within [`ALONE_MOST_NS`].
    fn is_light(&self, rate: &Rate) -> bool {
        let most = rate.requests.saturating_mul(ALONE_MOST_NS / 1000);
        self.peak.saturating_mul(rate.time_us) <= most
    }

    /// A flow that is alone gets room for the most requests that it had recently, and D more slots
    /// for another flow that comes. A light load also has slots for as many requests as the device
    /// does one after the other within [`ALONE_MOST_NS`].
    fn make_room(&mut self, live: u64) {
        self.peak = self.peak.max(live);
        let mut room = self.peak.saturating_add(self.slots.into());
        if self.is_light {
            room = room.max(ALONE_MOST_NS.checked_div(self.latency_ns).unwrap_or(0));
        }
        self.attempt(u32::try_from(room).unwrap_or(u32::MAX));
    }

    /// Judges a trial. `is_alone`: it was of one flow that is alone.
    fn judge(&mut self, rate: &Rate, is_alone: bool) {
        if is_alone {
            (self.is_alone, self.is_light) = (true, false);
            self.rate = *rate;
            return self.make_room(0);
        }
        if self.is_alone || self.is_light && !rate.leaves_free(self.slots) {
            return self.protect();
        }
        let is_small = match &self.state {
            State::Fall { duel } | State::Close { duel, .. } => self.tried == duel.low,
            _ => false,
        };
        if self.is_light || is_small && rate.leaves_free(self.tried) {
            return self.open_up(rate);
        }
        match self.state {
            State::Begin { rate: before, is_first } => self.go_on(before, rate, is_first),
            State::Rise { mut duel, left } => match duel.note(self.tried, rate, self.jitter) {
                Err(next) => {
                    self.state = State::Rise { duel, left };
                    self.attempt(next);
                }
                Ok(Answer::TooLittle) if left > 0 => {
                    (self.slots, self.rate) = (duel.high, *rate);
                    if duel.above.is_short {
                        // All the demand is on the device, and half of it was not enough.
                        return self.hold(self.slots);
                    }
                    self.rise(&duel.above, left - 1);
                }
                // A gain that may be chance is no gain.
                Ok(_) => self.fall(&duel.below),
            },
            State::Fall { mut duel } => match duel.note(self.tried, rate, self.jitter) {
                Err(next) => {
                    self.state = State::Fall { duel };
                    self.attempt(next);
                }
                Ok(answer) => self.fallen(&duel, rate, answer),
            },
            State::Close { mut duel, low, high } => {
                match duel.note(self.tried, rate, self.jitter) {
                    Err(next) => {
                        self.state = State::Close { duel, low, high };
                        self.attempt(next);
                    }
                    Ok(Answer::Enough) => {
                        (self.slots, self.rate) = (duel.low, duel.below);
                        self.close(&duel, low, duel.low);
                    }
                    Ok(_) => self.close(&duel, duel.low, high),
                }
            }
            State::Hold(hold) => self.keep(hold, rate),
        }
    }

    /// Stops holding requests back, since the load leaves slots free.
    fn open_up(&mut self, rate: &Rate) {
        self.rate = *rate;
        if !self.is_light {
            // Requests that a smaller D has delayed are still there.
            (self.is_light, self.is_mixed) = (true, true);
        }
        self.make_room(0);
    }

    /// Notes a trial of D at the beginning of a search. The first trial has the load's beginning in
    /// it, so it does not show how steady the rate is.
    fn go_on(&mut self, mut before: Rate, rate: &Rate, is_first: bool) {
        let is_few = rate.requests < ENOUGH;
        // With few completions `Rate::against` needs no jitter, so a slow device is not tried again
        // for it.
        if is_first && !is_few {
            self.state = State::Begin { rate: before, is_first: false };
            return;
        }
        match before.trials {
            0 => {}
            1 => self.jitter = rate.apart(&before),
            _ => self.note_jitter(rate, &before),
        }
        before.add(rate);
        self.rate = before;
        if before.trials < STEADY && !is_few {
            self.state = State::Begin { rate: before, is_first: false };
        } else if rate.is_short {
            self.fall(&before);
        } else {
            self.rise(&before, RISES);
        }
    }

    // **Steadiness of a rate** (`jitter`): if the host's CPUs are the limit, trials of the same D
    // differ by a tenth. Two values that differ by no more are tried again, in turn, `REPEATS`
    // times. If twice D is not clearly more then, D stays; the mean decides whether less is enough.
    fn note_jitter(&mut self, rate: &Rate, usual: &Rate) {
        self.jitter = (3 * self.jitter + rate.apart(usual)) / 4;
    }

    /// Compares D, at which `below` was counted, with twice as much.
    fn rise(&mut self, below: &Rate, left: u32) {
        let (low, high) = (self.slots, self.slots.saturating_mul(2).min(self.most));
        if high == low {
            return self.fall(below);
        }
        let duel = Duel { low, high, below: *below, above: Rate::default(), unclear: 0 };
        self.state = State::Rise { duel, left };
        self.attempt(duel.first());
    }

    /// Holds a D for all the demand, which is needed on the device.
    fn hold_all(&mut self) {
        let demand = self.all();
        let most = demand.saturating_mul(2).max(FIRST);
        self.hold(self.slots.clamp(demand, most));
        // The D that the device needs is not known.
        self.is_found = false;
    }

    // **All the demand** is the most requests that ports have had recently. A D of at least that
    // holds nothing back, and weights have no effect. So it is taken only if half of the demand
    // keeps less than `KEPT_OF_ALL` of its rate, and half is tried again now and then. A rate with
    // all the demand on the device says nothing about a larger D, so D stays where it was, up to
    // twice the demand or `FIRST`: the next load may have more requests. As soon as it has, the
    // search begins.
    /// All the demand, at least one.
    fn all(&self) -> u32 {
        u32::try_from(self.demand).unwrap_or(u32::MAX).max(1)
    }

    /// Compares D, which is enough and at which `above` was counted, with half of it, or of all the
    /// demand.
    fn fall(&mut self, above: &Rate) {
        let all = if above.is_short { self.all() } else { u32::MAX };
        let (low, high) = (self.slots.min(all) / 2, self.slots);
        if low == 0 {
            return if above.is_short { self.hold_all() } else { self.hold(1) };
        }
        let duel = Duel { low, high, below: Rate::default(), above: *above, unclear: 0 };
        self.state = State::Fall { duel };
        self.attempt(duel.first());
    }

    /// Ends the comparison with half of D; the last trial had this rate.
    fn fallen(&mut self, duel: &Duel, rate: &Rate, answer: Answer) {
        let is_few = rate.requests < ENOUGH;
        match answer {
            Answer::Enough => {
                (self.slots, self.rate) = (duel.low, duel.below);
                // The doubt of few completions is not to add up.
                self.fall(if is_few { &duel.above } else { &duel.below });
            }
            // Weights are not given up for a gain that may be chance.
            Answer::Unclear if duel.is_for_weights() => self.hold(duel.low),
            // Few completions do not distinguish one step from another.
            Answer::Unclear => self.hold(self.slots),
            Answer::TooLittle if is_few => {
                self.hold(self.slots);
                if let State::Hold(hold) = &mut self.state
                    && step_down(self.slots) == duel.low
                {
                    hold.less = duel.below;
                }
            }
            Answer::TooLittle if duel.above.is_short => {
                self.close(duel, duel.low, self.slots.min(self.all()));
            }
            Answer::TooLittle => self.close(duel, duel.low, self.slots),
        }
    }

    /// `low` is not enough, `high` is; `duel.above` is the rate with which they are compared.
    fn close(&mut self, duel: &Duel, low: u32, high: u32) {
        if step_up(low) >= high {
            let is_all = duel.above.is_short && high == self.all();
            return if is_all { self.hold_all() } else { self.hold(high) };
        }
        // The geometric mean: a step is a part of D, so it leaves as many steps above as below.
        let middle = u64::from(low) * u64::from(high);
        let middle = (middle.isqrt() as u32).clamp(low + 1, high - 1);
        let duel = Duel { low: middle, below: Rate::default(), unclear: 0, ..*duel };
        self.state = State::Close { duel, low, high };
        self.attempt(middle);
    }

    /// Notes a trial while D holds.
    fn keep(&mut self, mut hold: Hold, rate: &Rate) {
        match hold.trial {
            Trial::Base => {
                self.rate = *rate;
                let last = hold.last;
                let is_free = !rate.is_short && rate.leaves_free(self.tried);
                hold.free = if is_free { hold.free + 1 } else { 0 };
                if hold.free >= 2 {
                    return self.open_up(rate);
                }
                if hold.note_base(rate, self.jitter) {
                    return self.restart();
                }
                if last.trials > 0 && hold.strange == 0 {
                    self.note_jitter(rate, &last);
                }
            }
            Trial::Less => hold.less.add(rate),
            Trial::More => hold.more.add(rate),
        }
        if hold.trial != Trial::Base {
            match hold.verdict(self.jitter) {
                Verdict::Search => return self.restart(),
                Verdict::More => return self.hold(step_up(self.slots)),
                Verdict::Half => return self.hold(hold.reached / 2),
                Verdict::Less => {
                    let is_short = hold.is_short;
                    self.hold(step_down(hold.reached));
                    // The search finds how much less.
                    return if is_short {
                        self.restart()
                    };
                }
                Verdict::Stay => hold.fade(),
            }
        }
        hold.choose(self.slots, self.demand, self.jitter);
        self.attempt(match hold.trial {
            Trial::Base => self.slots,
            Trial::Less => step_down(hold.reached),
            Trial::More if hold.is_short => hold.reached / 2,
            Trial::More => self.slots.saturating_mul(2),
        });
        self.state = State::Hold(hold);
    }
}
