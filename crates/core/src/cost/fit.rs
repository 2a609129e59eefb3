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
//! is the mean of `d d` over windows, plus `ridge` times the square of the distance to the present
//! shares, which decide where windows do not differ. It is solved by moving time from one part to
//! another, for each pair of parts in turn.
//!
//! A device that becomes slower or faster for all requests moves all `d` of a window alike; that
//! adds the same to `c S c` whatever `c` is, and does not change the solution.
//!
//! **Example.** 4,000 requests a second, whatever their size. One window has 3,900 small ones and
//! 100 large, another one 2,000 of each: requests have `d = 0` and bytes a large `d`, so the base
//! takes all the time and bytes take none.
//!
//! **Bounds.** At most [`WINDOWS`] windows, [`SWEEPS`] times 15 pairs of 6 parts; integers only.

use core::array;

use super::REQUEST_BYTES;
use super::tally::{BLOCK, KINDS, SOME};

/// Bases and prices of bytes.
pub(super) const PARTS: usize = KINDS + 2;
/// Windows that are remembered: 0.8 seconds, in which a device hardly changes; 8 to 32.
pub(super) const WINDOWS: usize = 16;
/// Times that each pair of parts is visited: the shares are then exact to a thousandth.
const SWEEPS: usize = 24;
/// The largest base, in bytes (4 MiB), and the highest price of a byte, in 65536ths of one (64).
const MOST: u64 = 1 << 22;
/// The least `ridge`, as a square of [`FINE`]: a deviation of 0.3 %. Windows that differ by some
/// thousandths carry no information.
const LEAST_RIDGE: i64 = 160;
/// Otherwise `ridge` is the difference of windows by chance, divided by this: some 40 of them
/// count, and shares are some three tenths off the present ones (40 times 0.3 squared).
const DOUBT: i64 = 4;
/// Other costs have to explain windows better than the present ones by this, in multiples of the
/// mean effect of chance (an F-test); 4 to 16.
const CLEARLY: i64 = 8;
/// A kind with one part in this of the requests, or less, is not seen: random requests that are
/// near each other by chance count as sequential.
const FEW: u64 = 1024;
/// One in the scale of `c`, and of the prices of bytes.
pub(super) const ONE: u64 = 1 << 16;
/// One in the scale of `d`: sums of 16 squares fit into a word.
const FINE: u64 = 1 << 12;

/// One value for each part. Costs: bases in bytes, then prices of a byte read and one written, in
/// 65536ths. Rates: requests, and blocks of 512 bytes, in
/// some seconds.
pub(super) type Parts = [u64; PARTS];
type Matrix = [[i64; PARTS]; PARTS];

/// The costs before anything is known: requests cost their bytes.
pub(super) const FIRST: Parts = [0, 0, 0, 0, ONE, ONE];

/// The costs that windows, given by their rates, show clearly to be better than the present ones.
pub(super) fn fit(windows: &[Parts], now: &Parts) -> Option<Parts> {
    let count = windows.len().max(1) as u64;
    let sums: Parts = array::from_fn(|part| windows.iter().map(|rates| rates[part]).sum());
    let few = sums.iter().take(KINDS).sum::<u64>() / FEW;
    let mean = array::from_fn(|part| if sums[part] > few { sums[part] / count } else { 0 });
    let spent: Parts = array::from_fn(|part| mean[part].saturating_mul(now[part] * scale(part)));
    let total = spent.iter().fold(1u64, |sum, &spent| sum.saturating_add(spent));
    let before = spent.map(|spent| part_of(spent, ONE, total) as i64);
    let apart = |rates: &Parts, part: usize| {
        let rate = rates[part].saturating_mul(FINE).checked_div(mean[part]);
        rate.map_or(0, |rate| rate as i64 - FINE as i64)
    };
    let cell = |i, j| windows.iter().map(|rates| apart(rates, i) * apart(rates, j)).sum::<i64>();
    let scatter = array::from_fn(|i| array::from_fn(|j| cell(i, j) / count as i64));
    // Solved twice: the remainder at the least ridge determines the ridge.
    let left = left(&descend(&before, &mean, &scatter, LEAST_RIDGE), &scatter);
    let shares = descend(&before, &mean, &scatter, (left / DOUBT).max(LEAST_RIDGE));
    let left = self::left(&shares, &scatter);
    let better = (self::left(&before, &scatter) - left) * (count as i64 - 2);
    (better > CLEARLY * left.max(LEAST_RIDGE)).then(|| costs(&shares, &mean, now))
}

/// The cost of a unit of this part is a multiple of its number by this: a price is for a byte, in
/// parts of [`ONE`].
fn scale(part: usize) -> u64 {
    if part < KINDS { ONE / BLOCK } else { 1 }
}

/// `value * by / of`.
fn part_of(value: u64, by: u64, of: u64) -> u64 {
    let part = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// `c S c`, in squares of [`FINE`].
fn left(shares: &[i64; PARTS], scatter: &Matrix) -> i64 {
    scatter.iter().zip(shares).map(|(row, share)| dot(row, shares) * share / ONE as i64).sum()
}

/// The product of a row of `S` and the shares, in squares of [`FINE`].
fn dot(row: &[i64; PARTS], shares: &[i64; PARTS]) -> i64 {
    row.iter().zip(shares).map(|(cell, share)| cell * share).sum::<i64>() / ONE as i64
}

/// The shares of the device's time that fit best, from the present ones.
fn descend(before: &[i64; PARTS], mean: &Parts, scatter: &Matrix, ridge: i64) -> [i64; PARTS] {
    let mut shares = *before;
    let pairs = (0..PARTS).flat_map(|i| (0..i).map(move |j| (i, j)));
    let pairs = pairs.filter(|&(i, j)| mean[i] > 0 && mean[j] > 0);
    for (i, j) in (0..SWEEPS).flat_map(|_| pairs.clone()) {
        // The slope and the curvature for time that moves from j to i.
        let slope = |part: usize| {
            dot(&scatter[part], &shares) + (shares[part] - before[part]) * ridge / ONE as i64
        };
        let curve = scatter[i][i] + scatter[j][j] - 2 * scatter[i][j] + 2 * ridge;
        let moved = (slope(j) - slope(i)) * ONE as i64 / curve.max(1);
        let moved = moved.clamp(-shares[i], shares[j]);
        shares[i] += moved;
        shares[j] -= moved;
    }
    shares
}

/// Costs with which parts take these shares. 4 KiB of the first kind that takes a [`SOME`]th of the
/// time cost 4,096: of random reads, if there are some. A part that was not seen keeps its cost.
fn costs(shares: &[i64; PARTS], mean: &Parts, now: &Parts) -> Parts {
    // The time of one unit of each part, in some unit of time: 48 bits.
    let each: Parts = array::from_fn(|part| match mean[part] {
        0 => 0,
        mean => part_of(shares[part] as u64, ONE * ONE, mean),
    });
    let takes = |kind: usize| {
        each[kind].saturating_add((REQUEST_BYTES / BLOCK).saturating_mul(each[KINDS + kind / 2]))
    };
    let share = |kind: usize| (shares[kind] + shares[KINDS + kind / 2]) as u64;
    let first = (0..KINDS).find(|&kind| mean[kind] > 0 && share(kind) >= ONE / SOME);
    let unit = first.map_or(1, takes);
    array::from_fn(|part| {
        let cost = part_of(each[part], REQUEST_BYTES * (ONE / BLOCK) / scale(part), unit);
        if mean[part] > 0 { cost.min(MOST) } else { now[part] }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// A part of a load: the kind and length of its requests, and the device's time that one takes,
    /// in nanoseconds.
    type Each = (usize, u64, u64);

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Windows of a device on which the parts of the load take equal times on average, give or take
    /// `apart` hundredths, and which is a little faster or slower (`noise`, in hundredths) from
    /// window to window.
    fn windows(load: &[Each], apart: u64, noise: u64) -> Vec<Parts> {
        let mut state = 88_172_645_463_325_252u64;
        let mut chance = |most: u64| random(&mut state) % (2 * most + 1);
        let window = |_| {
            let parts: Vec<u64> = load.iter().map(|_| 100 - apart + chance(apart)).collect();
            let speed = 100 - noise + chance(noise);
            let mut rates = Parts::default();
            for ((kind, length, takes_ns), part) in load.iter().zip(&parts) {
                let time_ns = 1_000_000_000 * speed * part / parts.iter().sum::<u64>();
                // Requests in 100 seconds.
                let rate = time_ns / takes_ns;
                rates[*kind] += rate;
                rates[KINDS + kind / 2] += rate * (length / BLOCK);
            }
            rates
        };
        (0..WINDOWS).map(window).collect()
    }

    /// The costs found after some rounds, each of which begins with the costs of the last.
    fn found(load: &[Each], apart: u64, noise: u64) -> Parts {
        let windows = windows(load, apart, noise);
        (0..12).fold(FIRST, |now, _| fit(&windows, &now).unwrap_or(now))
    }

    fn cost(parts: &Parts, kind: usize, length: u64) -> f64 {
        parts[kind] as f64 + (parts[KINDS + kind / 2] * length) as f64 / 65_536.0
    }

    /// Checks that costs are in proportion to the times that requests take, up to a part of them.
    fn check(load: &[Each], apart: u64, noise: u64, within: f64) {
        let parts = found(load, apart, noise);
        let price = |&(kind, length, takes): &Each| cost(&parts, kind, length) / takes as f64;
        let prices: Vec<f64> = load.iter().map(price).collect();
        for price in &prices {
            let ratio = price / prices[0];
            let is_near = ratio <= 1.0 + within && ratio >= 1.0 / (1.0 + within);
            assert!(is_near, "{load:?}, {noise}: {parts:?}, {prices:?}");
        }
    }

    const US: u64 = 1000;
    /// A number of requests, whatever their length; both requests and bytes; writes that take five
    /// times what reads do, also longer ones; random reads that take longer than sequential ones.
    const LOADS: [&[Each]; 5] = [
        &[(0, 512, 20 * US), (0, 1 << 20, 20 * US)],
        &[(0, 4096, 10 * US), (0, 65_536, 25 * US)],
        &[(0, 4096, 2 * US), (2, 4096, 10 * US)],
        &[(0, 4096, 2 * US), (2, 65_536, 90 * US), (2, 4096, 15 * US)],
        &[(0, 4096, 9 * US), (1, 4096, 3 * US)],
    ];

    #[test]
    fn what_requests_take_is_found() {
        for load in LOADS {
            check(load, 10, 0, 0.1);
            check(load, 10, 1, 0.8);
        }
        // Bytes, where bytes are already charged.
        check(&[(0, 4096, 4 * US), (0, 65_536, 64 * US)], 10, 0, 0.1);
    }

    #[test]
    fn a_random_read_of_4_kib_costs_its_bytes() {
        for load in LOADS {
            let cost = cost(&found(load, 10, 1), 0, 4096);
            assert!((4000.0..4200.0).contains(&cost), "{load:?}: {cost}");
        }
    }

    /// Costs that windows cannot separate stay as they are, and so do those of an absent kind.
    #[test]
    fn loads_that_never_vary_teach_nothing() {
        assert_eq!(found(&[(0, 4096, 3 * US), (2, 65_536, 100 * US)], 0, 5), FIRST);
        let parts = found(LOADS[2], 10, 0);
        assert_eq!((parts[1], parts[3]), (FIRST[1], FIRST[3]));
    }

    /// Windows with no completion, with few, and with as many as a device of 100 GB/s has.
    #[test]
    fn no_window_is_too_strange() {
        assert_eq!(fit(&[], &FIRST), None);
        assert_eq!(fit(&[[0; PARTS]; 8], &FIRST), None);
        let mut state = 1u64;
        for round in 0..2000 {
            let mut part = || random(&mut state) >> 32 >> (random(&mut state) % 32);
            let windows = [(); 8].map(|()| [(); PARTS].map(|()| part()));
            let mut now = FIRST;
            for _ in 0..3 {
                let Some(found) = fit(&windows, &now) else { break };
                now = found;
                assert!(now.iter().all(|&cost| cost <= MOST), "round {round}: {found:?}");
            }
        }
    }
}
