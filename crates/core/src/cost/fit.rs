//! The estimator: the costs of requests, from the completions of a busy device.
//!
//! **Problem.** A request takes a base and a price for each byte of a busy device's time, and both
//! are to be found from windows of time in which many requests of several kinds completed. The
//! unknowns are six *parts*: a base for each of four kinds, and a price of a byte read and one
//! written. **Model.** If `x` is the rate at which a window had a part's units (requests, bytes)
//! and the costs are right, `sum(cost * x)` is the same in each window, since all its time was
//! used. Let `c` be the share of the device's time that the part takes on average, and `d` the
//! difference of its rate in a window from its mean rate, relative to that. Then `sum(c) = 1`, and
//! in each window `sum(c * d) = 0`: if one part takes more time, others take as much less. The `c`
//! that come nearest to that are a least-squares problem on a simplex: minimise `c S c`, where `S`
//! is the mean of `d d` over windows, plus `ridge` times the square of the distance to the [usual
//! costs](FIRST), which decide where windows do not differ. It is solved by moving time from one
//! part to another, for each pair of parts in turn.
//!
//! A device that becomes slower or faster for all requests moves all `d` of a window alike; that
//! adds the same to `c S c` whatever `c` is, and does not change the solution.
//!
//! **Example.** 4,000 requests a second, whatever their size. One window has 3,900 small ones and
//! 100 large, another one 2,000 of each: requests have `d = 0` and bytes a large `d`, so the base
//! takes all the time and bytes take none.
//!
//! **Bounds.** At most [`WINDOWS`] windows, [`SWEEPS`] times 15 pairs of 6 parts; integers only.

use super::tally::KINDS;

/// Bases and prices of bytes.
pub(super) const PARTS: usize = KINDS + 2;
/// Windows that are remembered.
pub(super) const WINDOWS: usize = 64;
/// Windows after which a window counts half as much.
const HALF_LIFE: usize = 16;
/// Times that each pair of parts is visited.
const SWEEPS: usize = 24;
/// A part with fewer units in all windows keeps its cost.
const FEW: u64 = 16;
/// The longest base, in bytes, and the highest price of a byte, in 65536ths of one.
pub(super) const MAX_BASE: u64 = 1 << 20;
pub(super) const MAX_PRICE: u64 = 64 << 16;
/// The least `ridge`, in 2^24ths: windows that differ by some thousandths carry no information.
const LEAST_RIDGE: i64 = 160;
/// Otherwise `ridge` is the difference of windows by chance, divided by this: some 40 of them
/// count, and shares are some three tenths off the usual ones (40 times 0.3 squared).
const DOUBT: i64 = 4;
/// One in the scale of `c` and of prices, and in that of `d`; `S` is in 2^24ths.
const ONE: i64 = 1 << 16;
const ONE_D: i64 = 1 << 12;

/// The costs of requests: bases in bytes, then prices of a byte read and one written, in 65536ths.
pub(super) type Parts = [u64; PARTS];

/// The costs before anything is known: requests cost their bytes.
pub(super) const FIRST: Parts = [0, 0, 0, 0, 1 << 16, 1 << 16];
/// Costs begin to count where they explain windows better than bytes do by this, in multiples of
/// the mean effect of chance; from twice that on they count fully.
const CLEARLY: u64 = 8;

/// The completions in a time in which the device was busy.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Window {
    /// Requests of each kind, and blocks of 512 bytes read and written.
    pub(super) units: [u64; PARTS],
    pub(super) time_us: u64,
}

/// Bytes of a block.
const BLOCK: u64 = 512;

impl Window {
    /// The units of each part in 1,073 seconds.
    fn rates(&self) -> [u64; PARTS] {
        let time_us = self.time_us.max(1000);
        self.units.map(|units| (units.min(1 << 33) << 30) / time_us)
    }
}

/// The result of [`fit`].
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The costs of requests.
    pub(super) parts: Parts,
    /// The share of each part in the device's time, in 65536ths; 0 for a part that was not seen.
    pub(super) shares: [u64; PARTS],
    /// The remaining `c S c`, in 2^24ths.
    pub(super) left: u64,
    /// The weight of the evidence that requests do not cost their bytes, in 256ths.
    pub(super) belief: u64,
}

/// The costs that windows show; the newest window comes first. `now`: the present costs, which
/// determine the mean cost.
pub(super) fn fit<'a>(
    windows: impl Iterator<Item = &'a Window> + Clone,
    now: &Parts,
) -> Option<Found> {
    let windows = windows.take(WINDOWS);
    let weigh = |age: usize| {
        (256u64 >> (age / HALF_LIFE)) * (HALF_LIFE * 2 - age % HALF_LIFE) as u64
            / (HALF_LIFE * 2) as u64
    };
    let (mut mean, mut seen, mut weights) = ([0u64; PARTS], [0u64; PARTS], 0);
    for (age, window) in windows.clone().enumerate() {
        weights += weigh(age);
        for ((mean, seen), (rate, units)) in
            mean.iter_mut().zip(&mut seen).zip(window.rates().iter().zip(&window.units))
        {
            *mean += weigh(age) * (rate >> 8);
            *seen = seen.saturating_add(*units);
        }
    }
    let mean = mean.map(|sum| (sum / weights.max(1)) << 8);
    let is_seen: [bool; PARTS] = core::array::from_fn(|part| {
        seen.get(part).is_some_and(|&units| units >= FEW) && mean[part] > 256
    });
    // The cost of each part at these costs, the sum, and the shift of both.
    let spend = |parts: &Parts| {
        let spent: Parts = core::array::from_fn(|part| {
            let unit = if part < KINDS { parts[part] } else { (parts[part] * BLOCK) >> 16 };
            if is_seen[part] { unit.max(1).saturating_mul(mean[part] >> 8) >> 3 } else { 0 }
        });
        let total: u64 = spent.iter().sum();
        let shift = (64 - total.leading_zeros()).saturating_sub(46);
        (spent.map(|spent| spent >> shift), total >> shift, shift)
    };
    let (first, first_total, _) = spend(&FIRST);
    let (_, total, shift) = spend(now);
    if first_total == 0 || total == 0 {
        return None;
    }
    let before = first.map(|spent| ((spent << 16) / first_total) as i64);
    let scatter = scatter(windows, &mean, &is_seen, weigh, weights);
    let (shares, left) = solve(&before, &scatter, &is_seen);
    let parts = costs(&shares, &mean, &is_seen, now, (total, shift));
    // The improvement over bytes, relative to the remaining chance in a window (an F-test).
    let better = self::left(&before, &scatter).saturating_sub(left).saturating_mul(weights);
    let better = better / left.max(LEAST_RIDGE as u64);
    let belief = (better.saturating_sub(CLEARLY << 8) / CLEARLY).min(256);
    Some(Found { parts, shares: shares.map(|share| share as u64), left, belief })
}

/// `S`, in 2^24ths.
fn scatter<'a>(
    windows: impl Iterator<Item = &'a Window>,
    mean: &[u64; PARTS],
    is_seen: &[bool; PARTS],
    weigh: impl Fn(usize) -> u64,
    weights: u64,
) -> [[i64; PARTS]; PARTS] {
    let mut sum = [[0i64; PARTS]; PARTS];
    for (age, window) in windows.enumerate() {
        let rates = window.rates();
        let apart: [i64; PARTS] = core::array::from_fn(|part| {
            if !is_seen[part] {
                return 0;
            }
            let relative = (rates[part] >> 8 << 12) / (mean[part] >> 8).max(1);
            relative.min(32 << 12) as i64 - ONE_D
        });
        for (row, a) in sum.iter_mut().zip(apart) {
            for (cell, b) in row.iter_mut().zip(apart) {
                *cell += weigh(age) as i64 * a * b;
            }
        }
    }
    sum.map(|row| row.map(|cell| cell / weights.max(1) as i64))
}

/// The shares of the device's time that fit best, and the remaining `c S c`.
fn solve(
    before: &[i64; PARTS],
    scatter: &[[i64; PARTS]; PARTS],
    is_seen: &[bool; PARTS],
) -> ([i64; PARTS], u64) {
    // Solved twice: the remainder at the least ridge determines the ridge.
    let mut shares = *before;
    descend(&mut shares, before, scatter, is_seen, LEAST_RIDGE);
    let ridge = (left(&shares, scatter) as i64 / DOUBT).max(LEAST_RIDGE);
    shares = *before;
    descend(&mut shares, before, scatter, is_seen, ridge);
    (shares, left(&shares, scatter))
}

/// `c S c`, in 2^24ths.
fn left(shares: &[i64; PARTS], scatter: &[[i64; PARTS]; PARTS]) -> u64 {
    let sum: i64 =
        scatter.iter().zip(shares).map(|(row, share)| (dot(row, shares) * share) >> 16).sum();
    sum.max(0) as u64
}

/// The product of a row of `S` and the shares, in 2^24ths.
fn dot(row: &[i64; PARTS], shares: &[i64; PARTS]) -> i64 {
    row.iter().zip(shares).map(|(cell, share)| cell * share).sum::<i64>() >> 16
}

fn descend(
    shares: &mut [i64; PARTS],
    before: &[i64; PARTS],
    scatter: &[[i64; PARTS]; PARTS],
    is_seen: &[bool; PARTS],
    ridge: i64,
) {
    for _ in 0..SWEEPS {
        for i in 0..PARTS {
            for j in 0..i {
                if !is_seen[i] || !is_seen[j] {
                    continue;
                }
                // The slope and the curvature for time that moves from j to i.
                let pulled = |part: usize| ((shares[part] - before[part]) * ridge) >> 16;
                let slope =
                    dot(&scatter[i], shares) - dot(&scatter[j], shares) + (pulled(i) - pulled(j));
                let curve = scatter[i][i] + scatter[j][j] - 2 * scatter[i][j] + 2 * ridge;
                let moved = (-slope * ONE / curve.max(1)).clamp(-shares[i], shares[j]);
                shares[i] += moved;
                shares[j] -= moved;
            }
        }
    }
}

/// Costs with which parts take these shares.
fn costs(
    shares: &[i64; PARTS],
    mean: &[u64; PARTS],
    is_seen: &[bool; PARTS],
    now: &Parts,
    (total, shift): (u64, u32),
) -> Parts {
    // The time of one unit of each part, in some unit of time.
    let each: Parts = core::array::from_fn(|part| {
        if is_seen[part] { ((shares[part] as u64) << 40) / (mean[part] >> 8).max(1) } else { 0 }
    });
    // A random read of 4 KiB costs 4,096, if there are some; else the mean cost stays. In both
    // cases costs are in proportion to `each`.
    let read = each[0].saturating_add(each[KINDS].saturating_mul(8));
    let is_known = is_seen[0] && is_seen[KINDS] && shares[0] + shares[KINDS] > ONE / 64;
    let scaled = |each: u64, by: u64| {
        if is_known {
            // At most 2^22 units of 4 KiB read.
            ratio(each, read).saturating_mul(4096 * by) >> 20
        } else {
            // Shares are in 2^16ths, `each` has 2^40 more, and `total` 2^3 less.
            let bits = 53u32.saturating_sub(shift);
            ((u128::from(each) * u128::from(total) * u128::from(by)) >> bits)
                .min(u128::from(u64::MAX >> 16)) as u64
        }
    };
    core::array::from_fn(|part| match (is_seen[part], part < KINDS) {
        (false, _) => now[part],
        (true, true) => scaled(each[part], 1).min(MAX_BASE),
        (true, false) => scaled(each[part], ONE as u64 / BLOCK).min(MAX_PRICE),
    })
}

/// `a / b` in 2^20ths, at most 2^40.
fn ratio(a: u64, b: u64) -> u64 {
    let spare = a.leading_zeros().min(20);
    (a << spare).checked_div((b >> (20 - spare)).max(1)).unwrap_or(0).min(1 << 40)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// A part of a load: the kind and length of its requests, and the device's time that one takes,
    /// in nanoseconds.
    type Some = (usize, u64, u64);

    /// Windows of a device on which the parts of the load take equal times on average, give or take
    /// `apart` hundredths, and which is a little faster or slower (`noise`, in hundredths) from
    /// window to window.
    fn windows(load: &[Some], apart: u64, noise: u64) -> Vec<Window> {
        let mut random = 88_172_645_463_325_252u64;
        let mut chance = |most: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % (2 * most + 1)
        };
        let window = |_| {
            let parts: Vec<u64> = load.iter().map(|_| 100 - apart + chance(apart)).collect();
            let speed = 100 - noise + chance(noise);
            let mut window = Window { time_us: 100_000, ..Window::default() };
            for ((kind, length, takes_ns), part) in load.iter().zip(&parts) {
                let time_ns = 1_000_000 * speed * part / parts.iter().sum::<u64>();
                let count = time_ns / takes_ns;
                window.units[*kind] += count;
                window.units[KINDS + (kind >> 1)] += count * (length / BLOCK);
            }
            window
        };
        (0..WINDOWS).map(window).collect()
    }

    /// The costs found after some rounds, each of which begins with the costs of the last.
    fn found(load: &[Some], apart: u64, noise: u64) -> Parts {
        let windows = windows(load, apart, noise);
        let round = |now: Parts, _| fit(windows.iter(), &now).expect("something completed").parts;
        (0..12).fold(FIRST, round)
    }

    fn cost(parts: &Parts, kind: usize, length: u64) -> f64 {
        parts[kind] as f64 + (parts[KINDS + (kind >> 1)] * length) as f64 / 65_536.0
    }

    /// Checks that costs are in proportion to the times that requests take, up to a part of them.
    fn check(load: &[Some], apart: u64, noise: u64, within: f64) {
        let parts = found(load, apart, noise);
        let prices = load
            .iter()
            .map(|&(kind, length, takes_ns)| cost(&parts, kind, length) / takes_ns as f64);
        let prices: Vec<f64> = prices.collect();
        for price in &prices {
            let ratio = price / prices[0];
            let is_near = ratio <= 1.0 + within && ratio >= 1.0 / (1.0 + within);
            assert!(is_near, "{load:?}, {noise}: {parts:?}, {prices:?}");
        }
    }

    const US: u64 = 1000;

    #[test]
    fn what_requests_take_is_found() {
        for (noise, within) in [(0, 0.03), (1, 0.25), (20, 10.0)] {
            // A number of requests, whatever their length; and a number of bytes.
            check(&[(0, 512, 20 * US), (0, 1 << 20, 20 * US)], 10, noise, within);
            check(&[(0, 4096, 4 * US), (0, 65_536, 64 * US)], 10, noise, within);
            // Both.
            check(&[(0, 4096, 10 * US), (0, 65_536, 25 * US)], 10, noise, within);
            // Writes that take five times what reads do, and longer ones.
            check(&[(0, 4096, 2 * US), (2, 4096, 10 * US)], 10, noise, within);
            check(
                &[(0, 4096, 2 * US), (2, 65_536, 90 * US), (2, 4096, 15 * US)],
                10,
                noise,
                within,
            );
            // Random reads that take longer than sequential ones.
            check(&[(0, 4096, 9 * US), (1, 4096, 3 * US)], 10, noise, within);
        }
    }

    #[test]
    fn a_random_read_of_4_kib_costs_its_bytes() {
        for load in [&[(0, 4096, US)][..], &[(0, 512, 3 * US), (2, 1 << 20, 90 * US)]] {
            let cost = cost(&found(load, 10, 5), 0, 4096);
            assert!((4000.0..4200.0).contains(&cost), "{load:?}: {cost}");
        }
    }

    /// Costs that windows cannot separate keep their usual proportion; an absent kind keeps its
    /// cost.
    #[test]
    fn loads_that_never_vary_teach_nothing() {
        let parts = found(&[(0, 4096, 3 * US), (2, 65_536, 100 * US)], 0, 5);
        let ratio = cost(&parts, 2, 65_536) / cost(&parts, 0, 4096);
        let first = cost(&FIRST, 2, 65_536) / cost(&FIRST, 0, 4096);
        assert!((0.95..1.05).contains(&(ratio / first)), "{parts:?}");
        assert_eq!((parts[1], parts[3]), (FIRST[1], FIRST[3]));
    }

    /// Windows with no completion, with few, and with as many as can be counted.
    #[test]
    fn no_window_is_too_strange() {
        let empty = [Window { time_us: 1000, ..Window::default() }; 3];
        assert_eq!(fit(empty.iter(), &FIRST), None);
        let mut random = 1u64;
        for round in 0..2000 {
            let windows = [(); 8].map(|()| {
                let units = [(); PARTS].map(|()| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random >> (random % 64)
                });
                Window { units, time_us: random % 2_000_000 }
            });
            let mut now = FIRST;
            for _ in 0..3 {
                let Some(found) = fit(windows.iter(), &now) else { break };
                now = found.parts;
                let sum: u64 = found.shares.iter().sum();
                assert!(sum <= 1 << 16, "round {round}: {found:?}");
                assert!(now[..KINDS].iter().all(|&base| base <= MAX_BASE), "{found:?}");
                assert!(now[KINDS..].iter().all(|&price| price <= MAX_PRICE), "{found:?}");
            }
        }
    }
}
