//! The census of active flows, which the ports keep up to date.
//!
//! **Problem.** To begin a period the weights of the active flows have to be added up, and a port
//! that begins one is in the midst of a verb: it cannot walk over all flows. **Model.** A flow is
//! in the *bucket* of the last period that it was *seen* in: a port sees a flow when it takes
//! tokens for it for the first time in a period. A bucket has the number of its flows and the sum
//! of their weights. The first port that sees a flow in a period moves it there from its old
//! bucket. The port that begins a period adds up the buckets of the last `reach` periods: one, and
//! on a slow device up to 63, since all of a flow's requests may be in the device for longer than a
//! period.
//!
//! **Words.** There is a bucket for each of the last [`BUCKETS`] periods, of two words; each has
//! the low bits of its period's number above the sum. The port that begins a period empties its
//! bucket before the period is published. A sum is changed by a compare-and-swap that finds its own
//! period's number there, so a port that is suspended in the midst of a move, however long, changes
//! no other period's sums (except after 2^18 periods, a multiple of 64).
//!
//! **Transient errors.** A port enters the flow in this period's bucket, then changes the flow's
//! word, then takes it out of the old bucket, or out of this one if another port was faster. A
//! period that begins between these steps counts the flow twice, and ends when its time is over; no
//! token is handed out twice because of that. No error is permanent: a flow is taken out of the
//! bucket that its word named, once, by the port that changed the word; that port sees the flow's
//! entry in that bucket, since the word is changed with acquire and release. The sums themselves
//! are Relaxed. A port that finds a flow seen finds it `counted` as well, for the same reason.

use crate::contract::flow::Weight;
use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// Number of periods that have a bucket. Flows that were seen longer ago do not count, however long
/// requests take.
pub(super) const BUCKETS: usize = 64;

/// Bits of the number of flows, of which there are at most 2^24.
const COUNT_BITS: u32 = 25;
/// Bits of the sum of weights: 2^24 times 10,000 times 256 is below 2^46. The 18 bits of the
/// period's number above them distinguish the periods that share a bucket.
const WEIGHT_BITS: u32 = 46;

/// The flows that were last seen in one period.
struct Bucket<P: Platform> {
    count: P::U64,
    weights: P::U64,
}

/// The buckets of the last periods.
pub(super) struct Census<P: Platform>([Bucket<P>; BUCKETS]);

impl<P: Platform> Census<P> {
    pub(super) fn new() -> Self {
        let bucket = |_| Bucket { count: P::U64::new(0), weights: P::U64::new(0) };
        let census = Census(core::array::from_fn(bucket));
        census.open(1);
        census
    }

    #[inline]
    fn bucket(&self, number: u64) -> Option<&Bucket<P>> {
        self.0.get(number as usize % BUCKETS)
    }

    /// Empties the bucket of a period that is about to begin.
    pub(super) fn open(&self, number: u64) {
        if let Some(Bucket { count, weights }) = self.bucket(number) {
            count.store(number << COUNT_BITS, Ordering::Relaxed);
            weights.store(number << WEIGHT_BITS, Ordering::Relaxed);
        }
    }

    /// Enters a flow that has been seen for the first time in this period.
    pub(super) fn enter(&self, number: u64, weight: Weight) {
        if let Some(Bucket { count, weights }) = self.bucket(number) {
            change(count, number, COUNT_BITS, |count| count + 1);
            change(weights, number, WEIGHT_BITS, |sum| sum + u64::from(weight.in_256ths()));
        }
    }

    /// Takes a flow, which has entered this period, out of its bucket.
    pub(super) fn leave(&self, number: u64, weight: Weight) {
        if let Some(Bucket { count, weights }) = self.bucket(number) {
            change(count, number, COUNT_BITS, |count| count.saturating_sub(1));
            change(weights, number, WEIGHT_BITS, |sum| {
                sum.saturating_sub(weight.in_256ths().into())
            });
        }
    }

    /// The flows of the last `reach` periods up to this one, and the sum of their weights in
    /// 256ths.
    pub(super) fn sum(&self, number: u64, reach: u8) -> (u64, u64) {
        let of = |word: &P::U64, number: u64, bits: u32| {
            let word = word.load(Ordering::Relaxed);
            if is_of(word, number, bits) { word & ((1 << bits) - 1) } else { 0 }
        };
        (0..u64::from(reach)).filter_map(|back| number.checked_sub(back)).fold(
            (0, 0),
            |(flows, sum), number| match self.bucket(number) {
                Some(Bucket { count, weights }) => {
                    (flows + of(count, number, COUNT_BITS), sum + of(weights, number, WEIGHT_BITS))
                }
                None => (flows, sum),
            },
        )
    }
}

/// The times at which the last periods ended, in nanoseconds.
pub(super) struct Ends([u64; BUCKETS]);

impl Default for Ends {
    fn default() -> Self {
        Ends([0; BUCKETS])
    }
}

impl Ends {
    /// Notes that the period ends now. Gives the number of periods whose flows count in the next:
    /// this one, and the earlier ones that began after `since_ns`. (A flow with requests in the
    /// device is seen in each period, unless periods are shorter than the device's latency.)
    pub(super) fn reach(&mut self, number: u64, now_ns: u64, since_ns: u64) -> u8 {
        if let Some(end_ns) = self.0.get_mut(number as usize % BUCKETS) {
            *end_ns = now_ns;
        }
        let began_after = |back: &u64| {
            let end_before = number.checked_sub(*back + 1).map(|before| before as usize % BUCKETS);
            end_before.and_then(|at| self.0.get(at)).is_some_and(|&end_ns| end_ns > since_ns)
        };
        // All buckets but the next period's may count.
        1 + (1..BUCKETS as u64 - 1).take_while(began_after).count() as u8
    }
}

/// Whether the word is a sum of this period.
fn is_of(word: u64, number: u64, bits: u32) -> bool {
    word >> bits << bits == number << bits
}

/// Changes a sum of this period, unless its bucket is another period's by now.
fn change<W: AtomicWord>(word: &W, number: u64, bits: u32, to: impl Fn(u64) -> u64) {
    let mut old = word.load(Ordering::Relaxed);
    while is_of(old, number, bits) {
        let new = number << bits | to(old & ((1 << bits) - 1));
        match word.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use proptest::prelude::*;

    fn weight(weight: u16) -> Weight {
        Weight::new(weight).unwrap()
    }

    #[test]
    fn flows_are_where_they_were_last_seen() {
        let census = Census::<Native>::new();
        census.enter(1, weight(100));
        census.enter(1, weight(300));
        census.open(2);
        census.enter(2, weight(150));
        census.leave(1, weight(100));
        let sums = [census.sum(2, 1), census.sum(2, 2)];
        assert_eq!(sums, [(1, 150 << 8), (2, 450 << 8)]);
        assert_eq!(census.sum(2, 62), (2, 450 << 8), "nothing is before the first");
        // 64 periods later the bucket is another period's.
        census.open(65);
        census.leave(1, weight(300));
        census.enter(1, weight(300));
        assert_eq!(census.sum(65, 1), (0, 0));
    }

    #[test]
    fn flows_count_from_the_periods_that_began_lately() {
        let mut ends = Ends::default();
        let mut at = |number, now_ns, since_ns| ends.reach(number, now_ns, since_ns);
        assert_eq!(at(1, 100, 0), 1);
        assert_eq!(at(2, 200, 0), 1, "the first began at 0");
        assert_eq!([at(3, 300, 99), at(4, 400, 99)], [2, 3]);
        assert_eq!(at(5, 500, 500), 1);
        (6..200).for_each(|number| _ = at(number, 100 * number, 0));
        assert_eq!(at(200, 20_000, 0), 63, "as many as are remembered");
    }

    proptest! {
        /// With the most flows, of any weight, no sum overflows.
        #[test]
        fn sums_hold_all_flows(number in 1u64.., heavy in 1u16..=10_000) {
            let census = Census::<Native>::new();
            census.open(number);
            let Bucket { count, weights } = census.bucket(number).unwrap();
            let most = u64::from(Weight::MAX.in_256ths());
            let (flows, sum) = ((1 << 24) - 1, ((1 << 24) - 1) * most);
            count.fetch_add(flows, Ordering::Relaxed);
            weights.fetch_add(sum, Ordering::Relaxed);
            census.enter(number, weight(heavy));
            prop_assert_eq!(census.sum(number, 1), (flows + 1, sum + (u64::from(heavy) << 8)));
            census.leave(number, weight(heavy));
            prop_assert_eq!(census.sum(number, 1), (flows, sum));
        }
    }
}
