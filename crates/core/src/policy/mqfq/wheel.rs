//! The wheel of throttled ports (Section 3.3): the virtual time at which each port is to be woken.
//!
//! **Problem.** A port whose lead request is more than the window W ahead of virtual time (T less
//! the reserve for arrears, see `mqfq`) must stop, and must go on as soon as virtual time has
//! caught up; polling costs a pass over each port per period. **Model.** The wheel is a ring of
//! [`BUCKETS`] buckets. Each stands for an interval of `b` units of virtual time and holds a set of
//! ports, as a bit mask. A port that must wait until virtual time `w` = lead - W enters the bucket
//! that begins at or next after `w`, but at most the last bucket of the ring: a woken port checks
//! again. A port that moves virtual time into another interval empties the buckets that have begun
//! and wakes their ports.
//!
//! **The width** `b` is the largest power of two that is at most W/8, and 1 if W is below 8. A
//! power of two divides the 2^56 units after which virtual time wraps, so bucket numbers wrap
//! evenly. An eighth keeps the loss by rounding small, while the ring reaches 4 W to 8 W ahead.
//!
//! **The port with the least lead never sleeps.** This needs a width of at most max(W, 1): a port
//! with lead `s` waits for a bucket that begins before s - W + b, thus not after s. If s is the
//! least lead, virtual time is at least s: that bucket has begun. So some port can always run, and
//! virtual time moves on with it.
//!
//! **No wake-up is lost.** A port sets its bit and *then* reads virtual time (and W) again; a
//! *turner*, a port that moves virtual time, does so and *then* reads the buckets. All these
//! accesses are sequentially consistent, so one of the two sees the other's write: either the port
//! finds that its bucket has begun, and removes its bit, or the turner finds the bit. Several
//! turners agree through `turned`, the virtual time up to which some turner has undertaken to empty
//! buckets: the turner that moves it on empties the buckets in between. A turner that finds
//! `turned` beyond its own time leaves the work to the other turner, which moved virtual time (or
//! saw it moved) later, and therefore sees every bit that the first turner would have seen.
//!
//! **Changing W** empties all buckets, because bucket numbers depend on the width (see above the
//! verbs).
//!
//! **Worked example.** W = 46,080: b = 4,096. Virtual time 100,000 is in bucket 24. A port whose
//! lead is 150,000 waits for 103,920, in bucket 25; it enters the next bucket, 26, which begins at
//! 106,496. Virtual time moves to 104,000: bucket 25 begins and is empty. Virtual time moves to
//! 107,000: bucket 26 begins and the port is woken; its lead is 43,000 ahead.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use crate::contract::bounds::boxed;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port_set::{PortId, PortSet, SharedPorts, words};
use crate::contract::vtime::{STAMP_BITS, VTime};
use crate::structures::mindicator::VirtualTime;

/// The number of buckets. 64 intervals of an eighth of W reach farther than ports commonly run
/// ahead. (Models have eight buckets, because each is a word to explore.)
pub const BUCKETS: u64 = if cfg!(loom) { 8 } else { 64 };

/// The part of W that is a bucket's width, as a power of two: an eighth.
const WIDTH_SHIFT: u32 = 3;

/// The window W and the values derived from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// W in units from bit 8 on; bit 7 is set if T follows the device; bits 0 to 5 are the width's
    /// logarithm.
    word: u64,
}

impl Window {
    pub fn new(units: u64, follows: bool) -> Self {
        // W is less than 2^53 units for any weights (`MAX_THRESHOLD`), so no bit is shifted out.
        let shift = (units >> WIDTH_SHIFT).checked_ilog2().unwrap_or(0);
        Window { word: units << 8 | u64::from(follows) << 7 | u64::from(shift) }
    }

    /// Whether T follows the device: the late time of several ports then counts once (see
    /// `follow`).
    #[inline]
    pub fn follows(self) -> bool {
        self.word & 0x80 != 0
    }

    /// W in units.
    #[inline]
    pub fn units(self) -> u64 {
        self.word >> 8
    }

    #[inline]
    fn shift(self) -> u32 {
        // The shift is below 64 anyway; the mask shows this to the compiler.
        (self.word & 63) as u32
    }

    /// The width of a bucket in units, or 0 if it is a single unit: the most that the published tag
    /// of a running port may lag behind its lead.
    #[inline]
    pub fn lag(self) -> i64 {
        if self.shift() == 0 { 0 } else { 1 << self.shift() }
    }

    /// Whether a request with start tag `lead` must wait at virtual time `now`.
    #[inline]
    pub fn holds_back(self, lead: VTime, now: VTime) -> bool {
        lead.since(now) > self.units() as i64
    }

    /// The number of the bucket that `time` is in.
    #[inline]
    fn bucket(self, time: VTime) -> u64 {
        time.units() >> self.shift()
    }

    /// The number of buckets from `earlier` to `later`; bucket numbers wrap with virtual time.
    #[inline]
    fn distance(self, later: u64, earlier: u64) -> u64 {
        later.wrapping_sub(earlier) & self.last_bucket()
    }

    #[inline]
    fn last_bucket(self) -> u64 {
        u64::MAX >> STAMP_BITS >> self.shift()
    }

    /// Whether the bucket has begun by virtual time `now`.
    fn has_begun(self, bucket: u64, now: VTime) -> bool {
        // Numbers wrap: the half of the circle behind `now` has begun, the other half is to come.
        self.distance(self.bucket(now), bucket) <= self.last_bucket() / 2
    }

    /// The bucket to wait in for `lead`, which is held back at `now`.
    fn bucket_for(self, lead: VTime, now: VTime) -> u64 {
        // The bucket is rounded up, so that the port is not woken while it is still held back. A
        // bucket beyond the ring would share the word of a nearer bucket.
        let begins = lead.minus(self.units()).plus((1 << self.shift()) - 1);
        let current = self.bucket(now);
        current.wrapping_add(self.distance(self.bucket(begins), current).min(BUCKETS - 1))
    }
}

/// The wheel.
pub struct Wheel<P: Platform> {
    window: CachePadded<P::U64>,
    /// The wanted window.
    wanted: CachePadded<P::U64>,
    /// Virtual time up to which buckets have been emptied, or are being emptied.
    turned: CachePadded<P::U64>,
    /// The ports that sleep in each bucket, `words` words a bucket.
    buckets: Box<[P::U64]>,
    words: usize,
}

/// A port's place in the wheel; private to the port.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    lead: VTime,
    bucket: u64,
}

// **Changing W.** Bucket numbers depend on the width, so a new W empties all buckets. The control
// side, which sets the wanted W (`Wheel::want`), may have no means to wake ports, so a thread that
// has them *adopts* W (`Wheel::adopt`): the thread writes W and then wakes all sleepers. A port
// that entered by the old W finds the change when it checks again, or is found in its bucket. After
// a thread has written W, it checks whether W is still the wanted one. So if several threads adopt
// at the same time, the last one that writes W has read the last wanted W, or ports are notified of
// that W afterwards. The loop repeats once for each W that is wanted meanwhile.
impl<P: Platform> Wheel<P> {
    /// An empty wheel at virtual time 0.
    pub fn new(window: Window, ports: usize) -> Self {
        Wheel {
            window: CachePadded::new(P::U64::new(window.word)),
            wanted: CachePadded::new(P::U64::new(window.word)),
            turned: CachePadded::new(P::U64::new(0)),
            buckets: boxed(BUCKETS as usize * words(ports), |_| P::U64::new(0)),
            words: words(ports),
        }
    }

    /// W and the values derived from it.
    #[inline]
    pub fn window(&self) -> Window {
        Window { word: self.window.load(Ordering::SeqCst) }
    }

    /// Sets the wanted W; returns whether it differs from the W in force. If so, the caller has a
    /// thread adopt it; if not, a thread that is adopting an earlier wanted W will find this one.
    pub fn want(&self, window: Window) -> bool {
        self.wanted.store(window.word, Ordering::SeqCst);
        P::fence();
        self.window() != window
    }

    /// Makes the wanted W the W in force. If that changes W, removes all ports from the wheel and
    /// returns them, to be woken.
    pub fn adopt(&self) -> PortSet {
        let mut ports = PortSet::EMPTY;
        while let Some(more) = self.adopt_once() {
            ports.extend(more);
        }
        ports
    }

    /// One iteration of [`Self::adopt`]; `None` if W is the wanted one.
    pub fn adopt_once(&self) -> Option<PortSet> {
        let wanted = self.wanted.load(Ordering::SeqCst);
        if wanted == self.window.load(Ordering::SeqCst) {
            return None;
        }
        self.window.store(wanted, Ordering::SeqCst);
        P::fence();
        let mut ports = PortSet::EMPTY;
        (0..BUCKETS).for_each(|bucket| ports.extend(self.bucket(bucket).take(Ordering::SeqCst)));
        Some(ports)
    }

    /// Puts the port to sleep on `lead`, which `window` holds back at `now`. `None`: virtual time
    /// or W has changed meanwhile, and the caller checks again.
    pub fn enter(
        &self,
        port: PortId,
        lead: VTime,
        window: Window,
        now: VTime,
        time: &VirtualTime<P>,
    ) -> Option<Place> {
        let place = Place { lead, bucket: window.bucket_for(lead, now) };
        self.bucket(place.bucket).insert(port, Ordering::SeqCst);
        P::fence();
        let now = time.now();
        let begun = window.has_begun(place.bucket, now);
        // If W has changed, the port that changed it may have emptied the bucket before this port
        // entered it.
        if self.window() == window && window.holds_back(lead, now) && !begun {
            return Some(place);
        }
        self.leave(port, place);
        None
    }

    /// Whether the port still sleeps in `place` for that lead: it has not been woken.
    #[inline]
    pub fn sleeps(&self, port: PortId, lead: VTime, place: Place) -> bool {
        place.lead == lead && self.bucket(place.bucket).contains(port, Ordering::SeqCst)
    }

    /// Removes the port from the wheel, if no other port did.
    pub fn leave(&self, port: PortId, place: Place) {
        self.bucket(place.bucket).remove(port, Ordering::SeqCst);
    }

    /// Empties the buckets that have begun by virtual time `now`; returns the ports to wake. Called
    /// by the port that has moved virtual time there.
    #[inline]
    pub fn turn(&self, now: VTime) -> PortSet {
        // The caller moved virtual time before this fence; the reads of W and of the buckets come
        // after it.
        P::fence();
        let window = self.window();
        let mut old = self.turned.load(Ordering::SeqCst);
        loop {
            let turned = VTime::from_word(old);
            let passed = window.distance(window.bucket(now), window.bucket(turned));
            // While virtual time stays in a bucket, no other bucket begins and `turned` does not
            // change, so it is written once per bucket.
            if !turned.is_before(now) || passed == 0 {
                return PortSet::EMPTY;
            }
            match self.turned.compare_exchange(
                old,
                now.to_word(),
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return self.empty(window.bucket(turned), passed),
                Err(newer) => old = newer,
            }
        }
    }

    /// Empties the `count` buckets after `last`; returns their ports.
    fn empty(&self, last: u64, count: u64) -> PortSet {
        let mut ports = PortSet::EMPTY;
        // The ring has no more buckets: beyond them the same buckets repeat.
        for step in 1..=count.min(BUCKETS) {
            let bucket = self.bucket(last.wrapping_add(step));
            // Most buckets are empty, and reading is cheaper than swapping.
            if !bucket.is_empty(Ordering::SeqCst) {
                ports.extend(bucket.take(Ordering::SeqCst));
            }
        }
        ports
    }

    #[inline]
    fn bucket(&self, number: u64) -> SharedPorts<'_, P::U64> {
        let first = (number % BUCKETS) as usize * self.words;
        SharedPorts::of(self.buckets.get(first..first + self.words).unwrap_or(&[]))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use crate::structures::topology::Topology;
    use proptest::prelude::*;

    /// Virtual time with two ports, of which port 1 moves it.
    fn time_at(start: VTime) -> VirtualTime<Native> {
        let time = VirtualTime::new(Topology::flat(2).tree());
        time.pin(PortId(1), VTime::ZERO);
        time.raise(PortId(1), Some(VTime::from_units(start.units() / 2)));
        time.raise(PortId(1), Some(start));
        time
    }

    proptest! {
        /// For any W, at any virtual time: a port sleeps only if it must, is woken at the latest
        /// when virtual time reaches its lead, not before its wait is over unless the ring is too
        /// short, and only once.
        #[test]
        fn wakes_in_time(
            units in prop_oneof![0u64..40, 40u64..100_000, Just(crate::contract::bounds::MAX_THRESHOLD)],
            origin in prop_oneof![Just(0u64), Just((1 << 56) - 1), 0u64..(1 << 56)],
            ahead in 1u64..300_000,
            steps in prop::collection::vec(1u64..9_000, 1..60),
        ) {
            let mut now = VTime::from_units(origin);
            let lead = now.plus(units).plus(ahead);
            let time = time_at(now);
            let wheel = Wheel::<Native>::new(Window::new(units, false), 2);
            wheel.turn(VTime::from_units(origin / 2));
            wheel.turn(now);
            let window = wheel.window();
            prop_assert!(window.holds_back(lead, now));
            let mut place = wheel.enter(PortId(0), lead, window, now, &time).unwrap();
            for step in steps {
                prop_assert!(wheel.sleeps(PortId(0), lead, place));
                now = now.plus(step);
                prop_assert_eq!(time.raise(PortId(1), Some(now)), Some(now));
                let woken = wheel.turn(now);
                prop_assert_eq!(wheel.turn(now), PortSet::EMPTY);
                prop_assert_eq!(wheel.sleeps(PortId(0), lead, place), woken.is_empty());
                let passed = now.since(lead) >= 0;
                prop_assert!(!passed || woken.contains(PortId(0)));
                if woken.is_empty() {
                    continue;
                }
                if !window.holds_back(lead, now) {
                    return Ok(());
                }
                // The ring was too short: the port has been woken at its end, no earlier.
                let entered = lead.minus(ahead).minus(units);
                prop_assert!(now.since(entered) as u64 >= (BUCKETS - 2) << window.shift());
                place = wheel.enter(PortId(0), lead, window, now, &time).unwrap();
            }
        }
    }

    #[test]
    fn the_width_is_a_power_of_two_of_at_most_an_eighth() {
        for units in (0..1000).chain([45 * 1024, crate::contract::bounds::MAX_THRESHOLD]) {
            let window = Window::new(units, false);
            assert_eq!(window.units(), units);
            assert_eq!(Window::new(units, true).units(), units);
            let width = 1u64 << window.shift();
            assert!(width <= (units / 8).max(1) && width * 16 > units, "{units}");
        }
    }

    #[test]
    fn the_worked_example() {
        let now = VTime::from_units(100_000);
        let time = time_at(now);
        let wheel = Wheel::<Native>::new(Window::new(45 * 1024, false), 2);
        wheel.turn(now);
        let lead = VTime::from_units(150_000);
        assert!(wheel.enter(PortId(0), lead, wheel.window(), now, &time).is_some());
        time.raise(PortId(1), Some(VTime::from_units(107_000)));
        assert_eq!(wheel.turn(VTime::from_units(104_000)), PortSet::EMPTY);
        assert_eq!(wheel.turn(VTime::from_units(107_000)), PortSet::only(PortId(0)));
    }

    #[test]
    fn who_enters_too_late_looks_again() {
        let time = time_at(VTime::from_units(500));
        let wheel = Wheel::<Native>::new(Window::new(100, false), 2);
        // The port read virtual time 0 and entered when virtual time was already 500.
        assert!(
            wheel
                .enter(PortId(0), VTime::from_units(300), wheel.window(), VTime::ZERO, &time)
                .is_none()
        );
        assert_eq!(wheel.turn(VTime::from_units(500)), PortSet::EMPTY, "it has left");
        // The port does not sleep either if W has changed meanwhile.
        let window = Window::new(50, false);
        assert!(
            wheel
                .enter(PortId(0), VTime::from_units(700), window, VTime::from_units(500), &time)
                .is_none()
        );
    }

    #[test]
    fn a_new_window_wakes_everybody() {
        let time = time_at(VTime::ZERO);
        let wheel = Wheel::<Native>::new(Window::new(100, false), 2);
        for (port, lead) in [(0, 150), (1, 5_000)] {
            let lead = VTime::from_units(lead);
            assert!(wheel.enter(PortId(port), lead, wheel.window(), VTime::ZERO, &time).is_some());
        }
        assert!(wheel.want(Window::new(1_000, false)) && !wheel.want(Window::new(100, false)));
        assert!(wheel.want(Window::new(1_000, false)));
        assert_eq!(wheel.window().units(), 100, "it has not been adopted");
        assert_eq!(wheel.adopt(), PortSet::first(2));
        assert_eq!(wheel.adopt(), PortSet::EMPTY);
        assert_eq!(wheel.window().units(), 1_000);
    }
}
