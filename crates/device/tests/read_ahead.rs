//! Reading ahead: its effect on sequential reads, and the loads on which it has none.

use fairq_core::Op;
use fairq_device::profile::{BUILT_IN, Count, ReadAhead};
use fairq_device::{Completed, Profile, Setup, Ssd, State};

const MS: u64 = 1_000_000;
const SETUP: Setup = Setup { capacity: 1 << 36, state: State::Fresh, outstanding: 256, seed: 7 };

/// The built-in profiles that have dies to wait for, without reading ahead and with.
fn pairs() -> impl Iterator<Item = (Profile, Profile)> {
    let flash = BUILT_IN.into_iter().filter(|(name, _)| !["p4800x", "nvmf-ramdisk"].contains(name));
    flash.map(|(name, _)| {
        let without = Profile::named(name).expect("it is built in");
        (without.clone(), ahead(without, 128, 4))
    })
}

fn ahead(profile: Profile, kib: u32, streams: u32) -> Profile {
    let section = ReadAhead { kib: Count::new(kib), streams: Count::new(streams) };
    let profile = Profile { read_ahead: Some(section), ..profile };
    profile.check().expect("there is room for it");
    profile
}

fn drain(ssd: &mut Ssd) -> Vec<Completed> {
    let mut completed = Vec::new();
    while let Some(now_ns) = ssd.next_ns() {
        completed.extend(std::iter::from_fn(|| ssd.pop(now_ns)));
    }
    completed
}

/// The time of one command on a device that has nothing else to do.
fn alone(ssd: &mut Ssd, now_ns: u64, op: Op, offset: u64, length: u32) -> u64 {
    ssd.start(now_ns, 0, op, offset, length);
    drain(ssd)[0].at_ns - now_ns
}

/// Keeps `depth` reads outstanding at these places; returns the completions.
fn closed(ssd: &mut Ssd, depth: u32, length: u32, offsets: &[u64]) -> Vec<Completed> {
    let mut offsets = offsets.iter();
    for id in 0..depth {
        ssd.start(0, id, Op::Read, *offsets.next().expect("there are more"), length);
    }
    let mut completed = Vec::new();
    while let Some(now_ns) = ssd.next_ns() {
        while let Some(one) = ssd.pop(now_ns) {
            completed.push(one);
            if let Some(&offset) = offsets.next() {
                ssd.start(one.at_ns, one.id, Op::Read, offset, length);
            }
        }
    }
    completed
}

fn in_a_row(length: u32, reads: u64) -> Vec<u64> {
    (0..reads).map(|read| read * u64::from(length)).collect()
}

fn at_random(length: u32, reads: u64) -> Vec<u64> {
    let scattered = |read: u64| (read + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 28;
    (0..reads).map(|read| scattered(read) / u64::from(length) * u64::from(length)).collect()
}

fn mean_ns(completed: &[Completed]) -> f64 {
    completed.last().expect("there were reads").at_ns as f64 / completed.len() as f64
}

/// The time of a read that finds its data in the buffer: its turn, the link, and the fixed time.
fn hit_ns(profile: &Profile, length: u32) -> u64 {
    let link_ns = (u64::from(length) * profile.link.read_mb_s.ns_per_mib()) >> 20;
    profile.controller.read_us.ns() + link_ns + profile.controller.read_fixed_us.ns()
}

/// One sequential 4 KiB read at a time: each takes only the times of the controller and the link.
#[test]
fn small_reads_in_a_row_wait_for_no_die() {
    for (without, with) in pairs() {
        let offsets = in_a_row(4096, 20_000);
        let mean = |profile| mean_ns(&closed(&mut Ssd::new(profile, &SETUP), 1, 4096, &offsets));
        let (slow, fast, hit) = (mean(&without), mean(&with), hit_ns(&with, 4096) as f64);
        println!("{}: {fast:.0} ns, {slow:.0} ns without", with.name);
        assert!(fast < 0.9 * slow, "{}: {fast} ns, {slow} ns without", with.name);
        assert!((0.999..1.02).contains(&(fast / hit)), "{}: {fast} ns, not {hit}", with.name);
    }
}

/// With two large reads at a time the link is full, or nearly full where the dies are only as fast
/// as the link.
#[test]
fn large_reads_in_a_row_fill_the_link() {
    for (without, with) in pairs() {
        let offsets = in_a_row(131_072, 4000);
        // Dies have to be as fast as the link: half a megabyte ahead is enough for all profiles.
        let with = ahead(with, 512, 1);
        let mb_s = |profile| {
            131_072.0e3 / mean_ns(&closed(&mut Ssd::new(profile, &SETUP), 2, 131_072, &offsets))
        };
        let (slow, fast, link) = (mb_s(&without), mb_s(&with), with.link.read_mb_s.get());
        assert!(fast >= slow && fast > 0.96 * link, "{}: {slow} {fast} {link} MB/s", with.name);
    }
}

/// Random reads take the same time to the nanosecond.
#[test]
fn random_reads_do_not_change() {
    for (without, with) in pairs() {
        for (depth, length) in [(1, 4096), (32, 4096), (32, 65_536)] {
            let offsets = at_random(length, 10_000);
            let run = |profile| closed(&mut Ssd::new(profile, &SETUP), depth, length, &offsets);
            assert_eq!(run(&without), run(&with), "{} x {depth}", with.name);
        }
    }
}

/// Data that were overwritten or discarded after they were read ahead come from the media again;
/// data beside them do not.
#[test]
fn what_is_written_over_is_not_taken_from_the_buffer() {
    for (_, with) in pairs() {
        for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
            let mut ssd = Ssd::new(&with, &SETUP);
            let hit_ns = hit_ns(&with, 4096);
            let page = u64::from(with.media.page_kib.get()) << 10;
            let page = page.max(4096);
            let read = |ssd: &mut Ssd, ms: u64, offset| alone(ssd, ms * MS, Op::Read, offset, 4096);
            (0..4).for_each(|at| {
                read(&mut ssd, at * 100, at * 4096);
            });
            // Far enough from the stream's end for each to have pages of its own.
            let [before, written, after] = [1, 2, 3].map(|at| 32_768 + at * page);
            alone(&mut ssd, 500 * MS, op, written, 4096);
            let took_ns =
                [before, written, after].map(|offset| read(&mut ssd, 600 + offset, offset));
            let name = &with.name;
            assert_eq!(took_ns[0], hit_ns, "{name}: before what was changed by {op:?}");
            assert!(took_ns[1] > hit_ns, "{name}: stale after {op:?}");
            assert_eq!(took_ns[2], hit_ns, "{name}: after what was changed by {op:?}");
        }
    }
}

/// A page that is overwritten while it is under way is not used when it arrives.
#[test]
fn what_is_written_over_on_its_way_is_not_taken() {
    let with = ahead(Profile::named("p4500").expect("it is built in"), 128, 4);
    let mut ssd = Ssd::new(&with, &SETUP);
    (0..2).for_each(|at| {
        alone(&mut ssd, at * MS, Op::Read, at * 16_384, 16_384);
    });
    // The third read of the row requests its own page and the next ones.
    ssd.start(2 * MS, 0, Op::Read, 32_768, 16_384);
    ssd.start(2 * MS, 1, Op::Discard, 65_536, 16_384);
    drain(&mut ssd);
    let took_ns =
        [49_152, 65_536].map(|offset| alone(&mut ssd, offset * MS, Op::Read, offset, 16_384));
    assert_eq!(took_ns[0], hit_ns(&with, 16_384));
    // The die has the page in its register, so that it costs only the time of the channel.
    let channel_ns = (16_384 * with.media.channel_mb_s.ns_per_mib()) >> 20;
    assert_eq!(took_ns[1], hit_ns(&with, 16_384) + channel_ns);
}

/// Reads that find a page under way share it: the die reads it once.
#[test]
fn a_page_on_its_way_is_not_read_twice() {
    let with = ahead(Profile::named("p4500").expect("it is built in"), 128, 4);
    let mut ssd = Ssd::new(&with, &SETUP);
    let reads = 40_000;
    let completed = closed(&mut ssd, 8, 4096, &in_a_row(4096, reads));
    assert_eq!(completed.len() as u64, reads);
    let page_reads = ssd.usage().dies_ns[0] / with.media.read_us.ns();
    let pages = reads / 4;
    assert!((pages..pages + 20).contains(&page_reads), "{page_reads} for {pages} pages");
    // A page also passes its channel once, as a whole.
    let page_ns = (16_384 * with.media.channel_mb_s.ns_per_mib()) >> 20;
    let moved = ssd.usage().channels_ns / page_ns;
    assert!((pages..pages + 20).contains(&moved), "{moved} for {pages} pages");
}

/// Concurrent streams, up to the number that the drive distinguishes, all gain; more streams lose
/// little.
#[test]
fn streams_up_to_those_it_tells_apart() {
    let without = Profile::named("p4500").expect("it is built in");
    let with = ahead(without.clone(), 128, 4);
    let mean = |profile, streams: u64| {
        let offsets: Vec<u64> =
            (0..20_000).map(|read| ((read % streams) << 30) + read / streams * 4096).collect();
        mean_ns(&closed(&mut Ssd::new(profile, &SETUP), 1, 4096, &offsets))
    };
    let hit = hit_ns(&with, 4096) as f64;
    assert!(mean(&with, 4) < 1.03 * hit, "{} ns, not {hit}", mean(&with, 4));
    assert!(mean(&with, 8) < 1.02 * mean(&without, 8));
}

/// While dies are busy with reads of the host, a drive does not read ahead, so these reads take the
/// same time as without reading ahead.
#[test]
fn reads_of_the_host_go_first() {
    for (without, with) in pairs() {
        // One of 33 reads continues a row.
        let random = at_random(4096, 20_000);
        let mixed = |at: usize| match at % 33 {
            0 => (1 << 35) + at as u64 / 33 * 4096,
            _ => random[at],
        };
        let offsets: Vec<u64> = (0..random.len()).map(mixed).collect();
        let window = with.host.window.get();
        let mean =
            |profile| mean_ns(&closed(&mut Ssd::new(profile, &SETUP), window, 4096, &offsets));
        let (alone, beside) = (mean(&without), mean(&with));
        assert!(beside < 1.03 * alone, "{}: {beside} ns, {alone} without", with.name);
    }
}

/// A large read that sends few pages at once still finds its pages in the buffer.
#[test]
fn reads_that_take_turns_find_their_pages() {
    let mut with = ahead(Profile::named("p4500").expect("it is built in"), 256, 4);
    with.controller.pages_at_once = Some(Count::new(2));
    let mut ssd = Ssd::new(&with, &SETUP);
    let reads = 1000;
    closed(&mut ssd, 2, 131_072, &in_a_row(131_072, reads));
    let page_reads = ssd.usage().dies_ns[0] / with.media.read_us.ns();
    assert!((reads * 8..reads * 8 + 40).contains(&page_reads), "{page_reads} page reads");
}

/// Writes have the buffer without the part for reading ahead.
#[test]
fn its_room_is_a_part_of_the_buffer() {
    let with = ahead(Profile::named("p4500").expect("it is built in"), 128, 4);
    assert_eq!(Ssd::new(&with, &SETUP).parts().buffer, (4096 - 512) << 10);
}

/// Nothing is read ahead beyond the end of the device.
#[test]
fn the_device_has_an_end() {
    let with = ahead(Profile::named("p4500").expect("it is built in"), 128, 4);
    let mut ssd = Ssd::new(&with, &Setup { capacity: 1 << 20, ..SETUP });
    closed(&mut ssd, 1, 16_384, &in_a_row(16_384, 64));
    assert_eq!(ssd.usage().dies_ns[0], 64 * with.media.read_us.ns());
}
