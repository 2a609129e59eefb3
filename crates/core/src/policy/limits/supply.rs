//! The measured rate of the device, and the part of it that is reserved.
//!
//! **Model.** A *window* of [`LONG_NS`] counts if requests waited all along: then the device did
//! what it can. The rate rises to that of such a window at once, and falls over some seconds.
//! Reservations may have [`MOST_PPM`] of it, so that flows without one always have some service. If
//! they are more, each is granted the same part.
//!
//! **Example.** The device does 20,000 requests a second, flows have reserved 15,000 and 10,000:
//! 125 %. Each is granted 0.75 of that, 11,250 and 7,500.

use crate::contract::port::ReservedStats;
use crate::contract::share::Reservation;
use crate::policy::depth::meter::{LONG_NS, PPM, Sum, per_second};

/// If no request is staged, this number of them outstanding shows a busy device; 16 to 128.
const MANY: u64 = 32;
/// With each window a rate falls by at most this part of itself: an eighth in a second.
const FORGETS: u64 = 32;
/// One part in this of the device is left to flows without reservations, and of the room on the
/// device to bursts. 8 to 32.
const PARTS: u64 = 16;
/// The most of the device that all reservations together may have, in millionths.
const MOST_PPM: u64 = PPM - PPM / PARTS;

/// The ports' counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Total {
    /// Requests completed since the start, and their bytes; wrapping.
    pub(super) done: [u64; 2],
    /// Requests that policies hold, and these together with the ones on the device.
    pub(super) staged: u64,
    pub(super) live: u64,
}

impl Total {
    pub(super) fn of(sum: &Sum) -> Total {
        Total { done: [sum.requests, sum.bytes], staged: sum.staged, live: sum.live }
    }
}

/// The measured rates of the device, and the part that is reserved.
pub(super) struct Supply {
    /// The start of the window and the counts then, and whether requests have waited all along.
    window: Option<(u64, [u64; 2])>,
    is_busy: bool,
    /// Requests and bytes a second; 0 is not known.
    rates: [u64; 2],
    asked_ppm: u64,
    granted_ppm: u64,
}

impl Supply {
    pub(super) fn new() -> Self {
        Supply { window: None, is_busy: true, rates: [0; 2], asked_ppm: 0, granted_ppm: PPM }
    }

    /// Updates the rates from the ports' counts.
    pub(super) fn look(&mut self, now_ns: u64, total: &Total) {
        // A direct policy holds nothing; enough requests on the device show that it is busy.
        self.is_busy &= total.staged > 0 || total.live >= MANY;
        let (began_ns, begun) = *self.window.get_or_insert((now_ns, total.done));
        let lasted_ns = now_ns.saturating_sub(began_ns);
        if lasted_ns < LONG_NS {
            return;
        }
        if self.is_busy {
            let all = self.rates.iter_mut().zip(begun).zip(total.done);
            for ((rate, before), now) in all {
                let new = per_second(now.wrapping_sub(before), lasted_ns);
                *rate = new.max(*rate - *rate / FORGETS);
            }
        }
        (self.window, self.is_busy) = (Some((now_ns, total.done)), true);
    }

    /// The part of the device that the reservation is, in millionths.
    pub(super) fn part_ppm(&self, reservation: Reservation) -> u64 {
        let parts = reservation.rates().into_iter().zip(self.rates);
        // A rate of 0 is not known, and left out.
        let parts = parts.filter_map(|(asked, has)| asked.saturating_mul(PPM).checked_div(has));
        parts.max().unwrap_or(0)
    }

    /// The most requests on the device at once with which a flow that keeps `live` of them
    /// outstanding has its reservation: by Little's law each request is there for all / rate, and
    /// the flow's rate is live / that time. A part is left for bursts.
    pub(super) fn most(&self, live: u64, granted: Reservation) -> Option<u64> {
        let most = |(granted, has): (u64, u64)| {
            (has > 0).then(|| live.saturating_mul(has).checked_div(granted))?
        };
        let least = granted.rates().into_iter().zip(self.rates).filter_map(most).min()?;
        Some(least - least / PARTS)
    }

    /// Sets the sum of the active flows' reservations, in millionths of the device.
    pub(super) fn asked(&mut self, ppm: u64) {
        self.asked_ppm = ppm;
        self.granted_ppm = match ppm > MOST_PPM {
            true => MOST_PPM * PPM / ppm.min(u64::MAX / PPM),
            false => PPM,
        };
    }

    /// Whether less than the reservations is granted.
    pub(super) fn is_short(&self) -> bool {
        self.granted_ppm < PPM
    }

    /// The granted part of the reservation; at least 1 of each rate that is not 0.
    pub(super) fn granted(&self, reservation: Reservation) -> Reservation {
        let part = |rate: u64| {
            let part =
                (rate / PPM).saturating_mul(self.granted_ppm) + rate % PPM * self.granted_ppm / PPM;
            part.max(rate.min(1))
        };
        Reservation::of_rates(reservation.rates().map(part))
    }

    pub(super) fn stats(&self) -> ReservedStats {
        let [requests_per_s, bytes_per_s] = self.rates;
        let (asked_ppm, granted_ppm) = (self.asked_ppm, self.granted_ppm);
        ReservedStats { requests_per_s, bytes_per_s, asked_ppm, granted_ppm }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn total(done: u64, staged: u64) -> Total {
        Total { done: [done, done * 4096], staged, live: staged }
    }

    /// From 20,000 a second to 25,000, and down to 10,000; the rate of an idle device says nothing.
    #[test]
    fn what_the_device_does_while_requests_wait_is_believed() {
        let mut supply = Supply::new();
        let (mut now_ns, mut done) = (0, 0);
        let mut second = |supply: &mut Supply, per_second: u64, staged: u64| {
            for _ in 0..100 {
                supply.look(now_ns, &total(done, staged));
                (now_ns, done) = (now_ns + 10_000_000, done + per_second / 100);
            }
            supply.look(now_ns, &total(done, staged));
            supply.stats().requests_per_s
        };
        assert_eq!(second(&mut supply, 7000, 0), 0, "nothing waits");
        assert_eq!(second(&mut supply, 20_000, 1), 20_000);
        assert_eq!(second(&mut supply, 25_000, 40), 25_000);
        assert_eq!(second(&mut supply, 100, 0), 25_000);
        let later: Vec<u64> = (0..10).map(|_| second(&mut supply, 10_000, 9)).collect();
        assert!(later[0] > 20_000 && later[9] == 10_000, "{later:?}");
    }

    #[test]
    fn what_is_too_much_is_granted_in_proportion() {
        let mut supply = Supply::new();
        let iops = |iops| Reservation::new(iops, 0).unwrap();
        assert_eq!(supply.part_ppm(iops(5)), 0, "not known");
        supply.rates = [20_000, 80_000_000];
        let all = [15_000, 10_000].map(iops);
        supply.asked(all.iter().map(|&one| supply.part_ppm(one)).sum());
        assert_eq!(supply.stats().asked_ppm, 1_250_000);
        assert_eq!(all.map(|one| supply.granted(one).iops()), [11_250, 7_500]);
        assert_eq!([0, 1].map(|one| supply.granted(iops(one)).iops()), [0, 1]);
        supply.asked(900_000);
        assert_eq!(supply.granted(all[0]), all[0]);
        let both = Reservation::new(2000, 40_000_000).unwrap();
        assert_eq!(supply.part_ppm(both), 500_000, "the larger part");
        supply.asked(u64::MAX);
        assert_eq!(supply.granted(all[0]).iops(), 1, "never nothing");
    }

    use std::vec::Vec;
}
