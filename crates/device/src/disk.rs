//! A disk: one arm over rotating platters.
//!
//! **Problem.** Claims about queues in solid-state drives are said not to hold on disks. Only a
//! model of a disk can test this. **Model.** A command consists of positioning and transfer, and
//! the disk does one at a time. *Seek:* a seek within a cylinder takes no time. Other seeks take
//! from the time for one track up to that for the full stroke; it grows with the root of the
//! distance and with the distance itself, in the proportion that gives the stated average over
//! random places. *Rotation:* the platter turns by the clock, and each place passes the head once
//! in each turn. *Transfer:* one track in each turn. *Queue:* the disk takes the queued command
//! that it can reach first (native command queueing); a command that continues where the last one
//! ended is reached at once, because the disk reads ahead.
//!
//! **Left out.** Zones (all tracks have the same length), skew, a cache for writes, which are
//! queued like reads, and any limit on a command's wait.
//!
//! **Parameters.** The profile has them as data, with points that the model must reproduce, like
//! the profiles of [`crate::ssd`].

use fairq_core::Op;
use serde::Deserialize;

use crate::profile::{Count, Micros, Point, ProfileError};
use crate::ssd::Completed;

/// A disk's properties.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DiskProfile {
    /// Its name.
    pub name: String,
    /// The drive that it models.
    pub model: String,
    /// Its capacity in GB (10^9 bytes).
    pub capacity_gb: Count<1, 1_000_000>,
    /// The most commands that it takes at a time.
    pub queue: Count<1, 4096>,
    /// Turns a minute.
    pub rpm: Count<1000, 100_000>,
    /// Tracks of a cylinder.
    pub heads: Count<1, 64>,
    /// Length of a track, in KiB.
    pub track_kib: Count<1, 65_536>,
    /// Seek time from one track to the next, in milliseconds.
    pub track_seek_ms: f64,
    /// Mean seek time between random places, in milliseconds.
    pub average_seek_ms: f64,
    /// Seek time from rim to hub, in milliseconds.
    pub full_stroke_ms: f64,
    /// Additional time of each command.
    pub overhead_us: Micros,
    /// Its measured performance.
    #[serde(default, rename = "point")]
    pub points: Vec<Point>,
}

impl DiskProfile {
    /// Reads a profile.
    pub fn parse(text: &str) -> Result<DiskProfile, ProfileError> {
        let profile: DiskProfile =
            toml::from_str(text).map_err(|error| ProfileError::Syntax(Box::new(error)))?;
        let seeks = [0.0, profile.track_seek_ms, profile.average_seek_ms, profile.full_stroke_ms];
        // `Disk::new` divides by the additional time of the full stroke. NaN is not sorted either.
        if !seeks.is_sorted() || seeks[1] == seeks[3] {
            return Err(ProfileError::Contradiction(
                "a seek over a longer distance takes longer: track-seek-ms < average-seek-ms < \
                 full-stroke-ms"
                    .to_owned(),
            ));
        }
        Ok(profile)
    }

    /// The built-in profile.
    pub fn deskstar() -> DiskProfile {
        DiskProfile::parse(include_str!("../profiles/deskstar-7k500.toml"))
            .expect("a test reads it")
    }

    /// Its capacity in bytes: whole MiB.
    pub fn capacity(&self) -> u64 {
        (u64::from(self.capacity_gb.get()) * 1_000_000_000) >> 20 << 20
    }
}

/// A model of a disk in time.
pub struct Disk {
    turn_ns: u64,
    track_bytes: u64,
    cylinder_bytes: u64,
    cylinders: u64,
    track_seek_ns: f64,
    /// The additional time of the full stroke, and the part of it that grows with the root of the
    /// distance.
    stroke_ns: f64,
    root_part: f64,
    overhead_ns: u64,
    /// End of the last command, in bytes.
    at: u64,
    waiting: Vec<Command>,
    /// The command in progress, and the time of its end.
    busy: Option<(u64, u32)>,
}

#[derive(Clone, Copy)]
struct Command {
    id: u32,
    offset: u64,
    length: u32,
}

/// Means over random places, as fractions of the full stroke's: 8/15 for the root of the distance,
/// 1/3 for the distance.
const MEAN_ROOT: f64 = 8.0 / 15.0;
const MEAN_DISTANCE: f64 = 1.0 / 3.0;

impl Disk {
    /// An idle disk, its arm at the rim.
    pub fn new(profile: &DiskProfile) -> Disk {
        let track_bytes = u64::from(profile.track_kib.get()) << 10;
        let cylinder_bytes = track_bytes * u64::from(profile.heads.get());
        let stroke_ms = profile.full_stroke_ms - profile.track_seek_ms;
        let mean = (profile.average_seek_ms - profile.track_seek_ms) / stroke_ms;
        Disk {
            turn_ns: 60_000_000_000 / u64::from(profile.rpm.get()),
            track_bytes,
            cylinder_bytes,
            cylinders: profile.capacity().div_ceil(cylinder_bytes),
            track_seek_ns: profile.track_seek_ms * 1e6,
            stroke_ns: stroke_ms * 1e6,
            root_part: (mean - MEAN_DISTANCE) / (MEAN_ROOT - MEAN_DISTANCE),
            overhead_ns: profile.overhead_us.ns(),
            at: 0,
            waiting: Vec::with_capacity(profile.queue.get() as usize),
            busy: None,
        }
    }

    /// Starts a command that the caller calls `id`. Times never go back.
    pub fn start(&mut self, now_ns: u64, id: u32, op: Op, offset: u64, length: u32) {
        // Other commands transfer no data.
        let length = if matches!(op, Op::Read | Op::Write) { length } else { 0 };
        self.waiting.push(Command { id, offset, length });
        if self.busy.is_none() {
            self.take_up(now_ns);
        }
    }

    /// Time at which to call [`pop`](Self::pop); `None` when no command is in progress.
    pub fn next_ns(&self) -> Option<u64> {
        self.busy.map(|(until_ns, _)| until_ns)
    }

    /// Takes the next command that has completed by now.
    pub fn pop(&mut self, now_ns: u64) -> Option<Completed> {
        let (at_ns, id) = self.busy.filter(|&(until_ns, _)| until_ns <= now_ns)?;
        self.busy = None;
        self.take_up(at_ns);
        Some(Completed { id, at_ns })
    }

    /// Begins the command that can be reached first; of equal ones, the command that has waited
    /// longest.
    fn take_up(&mut self, now_ns: u64) {
        let reach = |command: &Command| self.reach_ns(now_ns, command.offset);
        let first = (0..self.waiting.len()).min_by_key(|&place| reach(&self.waiting[place]));
        let Some(place) = first else { return };
        let command = self.waiting.remove(place);
        let transfer_ns = u64::from(command.length) * self.turn_ns / self.track_bytes;
        // A command without data at the place of the last one also takes time, because otherwise a
        // closed loop of them would not advance time.
        let until_ns = now_ns + (self.reach_ns(now_ns, command.offset) + transfer_ns).max(1);
        self.at = command.offset + u64::from(command.length);
        self.busy = Some((until_ns, command.id));
    }

    /// The time from now until the place is under the head.
    fn reach_ns(&self, now_ns: u64, offset: u64) -> u64 {
        if offset == self.at {
            return 0;
        }
        let there_ns = now_ns
            + self.overhead_ns
            + self.seek_ns(self.at / self.cylinder_bytes, offset / self.cylinder_bytes);
        let angle_ns = offset % self.track_bytes * self.turn_ns / self.track_bytes;
        let turned_ns = there_ns % self.turn_ns;
        there_ns - now_ns + (angle_ns + self.turn_ns - turned_ns) % self.turn_ns
    }

    fn seek_ns(&self, from: u64, to: u64) -> u64 {
        if from == to {
            return 0;
        }
        let part = from.abs_diff(to) as f64 / self.cylinders as f64;
        let grown = self.root_part * part.sqrt() + (1.0 - self.root_part) * part;
        (self.track_seek_ns + self.stroke_ns * grown) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Load;

    /// Scatters the bits of a number (splitmix64).
    fn scattered(number: u64) -> u64 {
        let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Runs requests in a closed loop; returns the mean latency in microseconds, and MB/s.
    fn measured(profile: &DiskProfile, load: Load, bytes: u32, depth: u32) -> (f64, f64) {
        const COUNT: u64 = 4000;
        let mut disk = Disk::new(profile);
        let places = profile.capacity() / u64::from(bytes);
        let mut number = 0;
        let mut start = |disk: &mut Disk, now_ns| {
            number += 1;
            let place = if load == Load::RandomRead { scattered(number) % places } else { number };
            disk.start(now_ns, 0, Op::Read, place * u64::from(bytes), bytes);
        };
        (0..depth).for_each(|_| start(&mut disk, 0));
        let mut now_ns = 0;
        for _ in 0..COUNT {
            now_ns = disk.next_ns().expect("something is under way");
            assert!(disk.pop(now_ns).is_some());
            start(&mut disk, now_ns);
        }
        let each_us = now_ns as f64 / 1e3 / COUNT as f64;
        (each_us * f64::from(depth), f64::from(bytes) / each_us)
    }

    #[test]
    fn it_does_what_it_is_known_to_do() {
        let profile = DiskProfile::deskstar();
        for point in &profile.points {
            let (latency_us, mb_s) =
                measured(&profile, point.load, point.kib.get() << 10, point.depth.get());
            let (model, known) = match (point.latency_us, point.mb_s) {
                (Some(known), _) => (latency_us, known),
                (None, known) => (mb_s, known.expect("a point says something")),
            };
            assert!(
                (model / known - 1.0).abs() <= point.within / 100.0,
                "{model} for {known}: {}",
                point.source
            );
        }
    }

    #[test]
    fn seeks_are_what_was_stated() {
        let profile = DiskProfile::deskstar();
        let disk = Disk::new(&profile);
        let places =
            (0..20_000).map(|number| scattered(number) % disk.cylinders).collect::<Vec<u64>>();
        let seeks = places.windows(2).map(|pair| disk.seek_ns(pair[0], pair[1]) as f64 / 1e6);
        let mean = seeks.sum::<f64>() / (places.len() - 1) as f64;
        assert!((mean / profile.average_seek_ms - 1.0).abs() < 0.02, "{mean} ms");
        assert!(
            (disk.seek_ns(0, disk.cylinders) as f64 / 1e6 - profile.full_stroke_ms).abs() < 0.01
        );
        assert!((disk.seek_ns(7, 8) as f64 / 1e6) < 1.2 * profile.track_seek_ms);
    }

    #[test]
    fn a_queue_saves_positioning_and_the_nearest_goes_first() {
        let profile = DiskProfile::deskstar();
        let rate = |depth| measured(&profile, Load::RandomRead, 4096, depth).1;
        assert!(
            rate(4) > 1.2 * rate(1) && rate(32) > 1.8 * rate(1),
            "{} {} {}",
            rate(1),
            rate(4),
            rate(32)
        );
        let mut disk = Disk::new(&profile);
        disk.start(0, 1, Op::Read, 0, 4096);
        disk.start(0, 2, Op::Read, profile.capacity() / 2, 4096);
        disk.start(0, 3, Op::Read, 4096, 4096);
        let order: Vec<u32> =
            std::iter::from_fn(|| disk.pop(u64::MAX)).map(|completed| completed.id).collect();
        assert_eq!(order, [1, 3, 2]);
    }

    #[test]
    fn a_profile_that_contradicts_itself_is_refused() {
        let text = include_str!("../profiles/deskstar-7k500.toml")
            .replace("full-stroke-ms = 14.7", "full-stroke-ms = 7");
        assert!(matches!(DiskProfile::parse(&text), Err(ProfileError::Contradiction(_))));
    }
}
