//! The laws of the timing model under any load, and each of its parts by its effect on a load.

use fairq_core::{Class, ClassWeights, Op};
use fairq_device::profile::{BUILT_IN, Count, ReadAhead, Spare};
use fairq_device::{
    Arbiter, Arbitration, Burst, Completed, Mechanism, Profile, QueueIndex, Setup, Ssd, State,
    Window,
};
use proptest::prelude::*;

const US: u64 = 1000;

fn profile(name: &str) -> Profile {
    Profile::named(name).expect("it is built in")
}

/// A built-in profile with other values.
fn changed(name: &str, changes: &[(&str, &str)]) -> Profile {
    let text = BUILT_IN.iter().find(|(known, _)| *known == name).expect("it is built in").1;
    let lines = text.lines().map(|line| {
        let change = changes.iter().find(|(key, _)| line.starts_with(&format!("{key} = ")));
        change.map_or(line.to_owned(), |(key, value)| {
            if value.is_empty() { String::new() } else { format!("{key} = {value}") }
        })
    });
    Profile::parse(&lines.collect::<Vec<_>>().join("\n")).expect("the changes are legal")
}

fn setup(state: State, outstanding: u32) -> Setup {
    Setup { capacity: 1 << 36, state, outstanding, seed: 7 }
}

fn ssd(profile: &Profile) -> Ssd {
    Ssd::new(profile, &setup(State::Fresh, 1024))
}

/// Takes everything that completes until the device is empty.
fn drain(ssd: &mut Ssd) -> Vec<Completed> {
    let mut completed = Vec::new();
    while let Some(now_ns) = ssd.next_ns() {
        while let Some(one) = ssd.pop(now_ns) {
            completed.push(one);
        }
    }
    completed
}

/// The time of one command on a device that has nothing else to do.
fn alone(ssd: &mut Ssd, now_ns: u64, op: Op, offset: u64, length: u32) -> u64 {
    ssd.start(now_ns, 0, op, offset, length);
    drain(ssd)[0].at_ns - now_ns
}

/// A stream of requests; the loop decides their times.
struct Stream {
    op: Op,
    bytes: u32,
    random: bool,
    position: u64,
}

impl Stream {
    fn new(op: Op, bytes: u32, random: bool) -> Stream {
        Stream { op, bytes, random, position: 12345 }
    }

    fn offset(&mut self) -> u64 {
        if self.random {
            self.position = self
                .position
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.position >> 29) / u64::from(self.bytes) * u64::from(self.bytes)
        } else {
            self.position += 1;
            self.position * u64::from(self.bytes)
        }
    }
}

/// Keeps `depth` requests of each stream outstanding until `bytes` have been moved in all; returns
/// MB/s of each stream.
fn closed(
    ssd: &mut Ssd,
    streams: &mut [Stream],
    depth: u32,
    now_ns: u64,
    bytes: u64,
) -> (Vec<f64>, u64) {
    let mut moved = vec![0u64; streams.len()];
    for id in 0..depth * streams.len() as u32 {
        let stream = &mut streams[(id / depth) as usize];
        ssd.start(now_ns, id, stream.op, stream.offset(), stream.bytes);
    }
    let mut last_ns = now_ns;
    while moved.iter().sum::<u64>() < bytes {
        let next_ns = ssd.next_ns().expect("requests are outstanding");
        while let Some(Completed { id, at_ns }) = ssd.pop(next_ns) {
            let stream = &mut streams[(id / depth) as usize];
            moved[(id / depth) as usize] += u64::from(stream.bytes);
            ssd.start(at_ns, id, stream.op, stream.offset(), stream.bytes);
            last_ns = at_ns;
        }
    }
    let rates = moved.iter().map(|&moved| moved as f64 * 1e3 / (last_ns - now_ns) as f64).collect();
    drain(ssd);
    (rates, last_ns + 1_000_000_000)
}

fn rate(ssd: &mut Ssd, stream: Stream, depth: u32, bytes: u64) -> f64 {
    closed(ssd, &mut [stream], depth, 0, bytes).0[0]
}

#[track_caller]
fn near(value: f64, expected: f64, part: f64) {
    assert!((value / expected - 1.0).abs() <= part, "{value} is not within {part} of {expected}");
}

/// One command of a random load.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    after_ns: u64,
    op: Op,
    offset: u64,
    length: u32,
}

fn any_arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let op = prop_oneof![
        6 => Just(Op::Read), 6 => Just(Op::Write), 1 => Just(Op::Flush), 1 => Just(Op::Discard), 1 => Just(Op::WriteZeroes)
    ];
    let length = prop_oneof![4 => 0u32..16, 2 => 0u32..600, 1 => 0u32..20_000]
        .prop_map(|sectors| sectors * 512);
    let follows = prop::bool::weighted(0.4);
    let arrival = (0u64..30_000, op, 0u64..1 << 20, length, follows);
    prop::collection::vec(arrival, 1..120).prop_map(|drawn| {
        let mut end = 0;
        let arrival = |(after_ns, op, sector, length, follows)| {
            let offset = if follows { end } else { sector * 512 };
            end = offset + u64::from(length);
            Arrival { after_ns, op, offset, length }
        };
        drawn.into_iter().map(arrival).collect()
    })
}

/// A built-in profile that reads ahead or does not, and whose reads take turns or do not.
fn any_profile() -> impl Strategy<Value = Profile> {
    let ahead = (16u32..80, 1u32..4).prop_map(|(kib, streams)| ReadAhead {
        kib: Count::new(kib),
        streams: Count::new(streams),
    });
    let at_once = prop::option::of((1u32..9).prop_map(Count::new));
    (0..BUILT_IN.len(), prop::option::of(ahead), at_once).prop_map(|(index, ahead, at_once)| {
        let mut profile = Profile { read_ahead: ahead, ..profile(BUILT_IN[index].0) };
        profile.controller.pages_at_once = at_once;
        profile.check().expect("it is small");
        profile
    })
}

/// Starts each command at its time and takes completions, polling every `every_ns` and at each
/// arrival; with 0, at the times that the device returns.
fn replay(profile: &Profile, state: State, arrivals: &[Arrival], every_ns: u64) -> Vec<Completed> {
    let mut ssd = Ssd::new(profile, &setup(state, arrivals.len() as u32));
    let mut completed = Vec::new();
    let mut now_ns = 0;
    for (id, arrival) in (0..).zip(arrivals) {
        let next_ns = now_ns + arrival.after_ns;
        if every_ns == 0 {
            while let Some(event_ns) = ssd.next_ns().filter(|&event_ns| event_ns <= next_ns) {
                completed.extend(ssd.pop(event_ns));
            }
        }
        now_ns = next_ns;
        ssd.start(now_ns, id, arrival.op, arrival.offset, arrival.length);
        if every_ns != 0 {
            while let Some(one) = ssd.pop(now_ns) {
                completed.push(one);
            }
        }
    }
    while ssd.outstanding() > 0 {
        now_ns = if every_ns == 0 {
            ssd.next_ns().expect("some are outstanding")
        } else {
            now_ns + every_ns
        };
        while let Some(one) = ssd.pop(now_ns) {
            completed.push(one);
        }
    }
    assert_eq!(ssd.next_ns(), None);
    completed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Each command completes once, in the order of completion, none sooner than the controller,
    /// the link and the fixed time allow; and the frequency of polls has no effect.
    #[test]
    fn each_completes_once_whoever_looks(
        profile in any_profile(),
        steady in any::<bool>(),
        arrivals in any_arrivals(),
        every_ns in 1u64..2_000_000,
    ) {
        let state = if steady { State::Steady } else { State::Fresh };
        let exact = replay(&profile, state, &arrivals, 0);
        let mut ids: Vec<u32> = exact.iter().map(|one| one.id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..arrivals.len() as u32).collect::<Vec<_>>());
        prop_assert!(exact.is_sorted_by_key(|one| one.at_ns));
        let started: Vec<u64> = arrivals.iter().scan(0, |now_ns, one| { *now_ns += one.after_ns; Some(*now_ns) }).collect();
        for one in &exact {
            let arrival = arrivals[one.id as usize];
            let (controller, link) = (&profile.controller, &profile.link);
            let (turn, fixed, speed) = match arrival.op {
                Op::Read => (controller.read_us, controller.read_fixed_us, link.read_mb_s),
                _ => (controller.write_us, controller.write_fixed_us, link.write_mb_s),
            };
            let bytes = if matches!(arrival.op, Op::Read | Op::Write) { u64::from(arrival.length) } else { 0 };
            let least_ns = turn.ns() + fixed.ns() + ((bytes * speed.ns_per_mib()) >> 20) * 99 / 100;
            let took_ns = one.at_ns - started[one.id as usize];
            prop_assert!(took_ns >= least_ns, "{arrival:?} took {took_ns} ns, less than \
             {least_ns}");
        }
        prop_assert_eq!(&exact, &replay(&profile, state, &arrivals, every_ns), "polls change it");
    }
}

#[test]
fn the_seed_says_where_pages_lie() {
    let times = |seed| {
        let mut ssd = Ssd::new(&profile("p3700"), &Setup { seed, ..setup(State::Fresh, 64) });
        let mut stream = Stream::new(Op::Read, 4096, true);
        (0..64).for_each(|id| ssd.start(0, id, Op::Read, stream.offset(), 4096));
        drain(&mut ssd)
    };
    assert_eq!(times(1), times(1));
    assert_ne!(times(1), times(2));
}

#[test]
#[should_panic(expected = "more commands than the setup allows")]
fn the_bound_holds_until_commands_are_popped() {
    let mut ssd = Ssd::new(&profile("z-ssd"), &setup(State::Fresh, 1));
    ssd.start(0, 0, Op::Read, 0, 4096);
    ssd.start(1, 1, Op::Read, 0, 4096);
}

/// Throughput never falls with depth, and it is at its highest at the device's window.
#[test]
fn the_window_fills_the_device() {
    for (name, bytes) in [
        ("z-ssd", 4096),
        ("p3700", 4096),
        ("p4500", 4096),
        ("980-pro", 4096),
        ("nvmf-ramdisk", 1024),
    ] {
        let profile = profile(name);
        // The ramdisk takes 4096 commands, and 128 keep it busy.
        let window = profile.host.window.get().min(128);
        let at = |depth| {
            rate(
                &mut ssd(&profile),
                Stream::new(Op::Read, bytes, true),
                depth,
                30_000 * u64::from(bytes),
            )
        };
        let rates: Vec<f64> = [1, 4, 16, window, 4 * window].map(at).into();
        assert!(rates.windows(2).all(|pair| pair[1] >= pair[0] * 0.995), "{name}: {rates:?}");
        near(rates[3], rates[4], 0.02);
    }
}

/// Requests larger than the buffer, and more pages than can be under way.
#[test]
fn large_requests_take_their_time_and_end() {
    for (name, _) in BUILT_IN {
        let mut ssd = ssd(&profile(name));
        for id in 0..64 {
            let op = if id % 2 == 0 { Op::Read } else { Op::Write };
            ssd.start(0, id, op, u64::from(id) << 25, 32 << 20);
        }
        assert_eq!(drain(&mut ssd).len(), 64, "{name}");
    }
}

/// Pages of commands mix at dies, channels and link in the order of arrival; with `pages-at-once` a
/// small read does not wait for all of the large ones before it, and all together are as fast.
#[test]
fn reads_take_turns_if_they_send_few_pages_at_once() {
    for name in ["z-ssd", "p3700", "p4500", "980-pro"] {
        let whole = profile(name);
        let mut turns = whole.clone();
        // Eight commands with a quarter of the dies each keep all dies busy.
        turns.controller.pages_at_once = Some(Count::new(whole.dies() / 4));
        let small_and_all_ns = |profile: &Profile| {
            let mut ssd = ssd(profile);
            (0..8).for_each(|id| ssd.start(0, id, Op::Read, u64::from(id) << 30, 4 << 20));
            ssd.start(0, 8, Op::Read, 1 << 35, 4096);
            let completed = drain(&mut ssd);
            let small = completed.iter().find(|one| one.id == 8).expect("it completes").at_ns;
            (small, completed.last().expect("they complete").at_ns)
        };
        let (small, all) = small_and_all_ns(&whole);
        let (in_turn, all_in_turn) = small_and_all_ns(&turns);
        assert!(in_turn * 4 < small, "{name}: {in_turn} ns, {small} ns without turns");
        near(all_in_turn as f64, all as f64, 0.03);
        // Alone, with at most that many pages, a read takes the same time.
        let alone_ns = |profile| alone(&mut ssd(profile), 0, Op::Read, 1 << 30, 32_768);
        assert_eq!(alone_ns(&whole), alone_ns(&turns), "{name}");
    }
}

/// A page that is still in a die's register is not read again: small sequential reads are faster
/// than random ones.
#[test]
fn the_register_serves_neighbours() {
    let profile = profile("p3700");
    let mut ssd = ssd(&profile);
    let first = alone(&mut ssd, 0, Op::Read, 0, 4096);
    let second = alone(&mut ssd, US * 1000, Op::Read, 4096, 4096);
    let elsewhere = alone(&mut ssd, US * 2000, Op::Read, 1 << 30, 4096);
    assert_eq!(first - second, profile.media.read_us.ns());
    assert_eq!(first, elsewhere);
}

/// One link for both directions on SATA, one for each on NVMe.
#[test]
fn sata_moves_one_way_at_a_time() {
    let both = |name| {
        let profile = changed(name, &[("program-us", "1"), ("size-kib", "65536")]);
        let streams =
            &mut [Stream::new(Op::Read, 131_072, false), Stream::new(Op::Write, 131_072, false)];
        let rates = closed(&mut ssd(&profile), streams, 16, 0, 400 << 20).0;
        (rates[0] + rates[1], profile.link.read_mb_s.get(), profile.link.write_mb_s.get())
    };
    let (sata, link, _) = both("intel-530");
    near(sata, link, 0.03);
    let (nvme, read, write) = both("z-ssd");
    near(nvme, read + write, 0.05);
}

/// With one die per channel, a die that is held until its page has left takes the time of read and
/// transfer for each page; a die that is not held takes the longer of the two.
#[test]
fn a_held_die_waits_for_its_channel() {
    let at = |held| {
        let dies =
            [("channels", held), ("read-us", "20"), ("read-fixed-us", "0"), ("channel-mb-s", "82")];
        let profile = changed("intel-530", &dies);
        // 4 KiB pass the channel in 50 us, which hides the 20 us of reading.
        rate(&mut ssd(&profile), Stream::new(Op::Read, 4096, true), 256, 4096 * 20_000) * 1e6
            / 4096.0
    };
    near(at("1"), 1e6 / 50.0, 0.02);
    near(at("1\nheld-through-transfer = true"), 1e6 / 70.0, 0.02);
}

/// A held die's reservation of its channel for a later time does not block other dies until then.
#[test]
fn a_held_die_does_not_keep_its_channel_from_others_before_it_needs_it() {
    let at = |more: &str| {
        let dies = [("channels", "2"), ("dies-per-channel", more), ("channel-mb-s", "10000")];
        let profile = changed("intel-530", &dies);
        rate(&mut ssd(&profile), Stream::new(Op::Read, 4096, true), 32, 4096 * 20_000)
    };
    near(at("8\nheld-through-transfer = true"), at("8"), 0.02);
}

/// A flush waits for the media if and only if nothing protects the buffer.
#[test]
fn a_flush_waits_for_the_media_unless_the_buffer_is_safe() {
    for (name, waits) in
        [("980-pro", true), ("intel-530", true), ("z-ssd", false), ("p4800x", false)]
    {
        let profile = profile(name);
        let mut ssd = ssd(&profile);
        let nothing_ns = alone(&mut ssd, 0, Op::Flush, 0, 0);
        assert!(nothing_ns < 60 * US, "{name}: nothing to write");
        // Data for less than a program stays in the buffer until a flush needs it.
        alone(&mut ssd, 1_000_000 * US, Op::Write, 0, 4096);
        let flush_ns = alone(&mut ssd, 2_000_000 * US, Op::Flush, 0, 0);
        let program_ns =
            profile.slc.as_ref().map_or(profile.media.program_us, |slc| slc.program_us).ns();
        assert_eq!(flush_ns >= nothing_ns + program_ns, waits, "{name}: {flush_ns} ns");
        let again_ns = alone(&mut ssd, 3_000_000 * US, Op::Flush, 0, 0);
        assert_eq!(again_ns, nothing_ns, "{name}: it is there already");
    }
}

/// A flush waits for earlier writes and not for later ones, however many there are.
#[test]
fn a_flush_does_not_wait_for_later_writes() {
    let profile = profile("980-pro");
    let mut ssd = ssd(&profile);
    (0..100).for_each(|id| ssd.start(0, id, Op::Write, u64::from(id) << 20, 65536));
    ssd.start(1, 1000, Op::Flush, 0, 0);
    // The flush waits for 6.5 MB at 5 GB/s, while the writes last for a second.
    let (mut flushed_ns, mut later) = (0, 0u64);
    while later < 20_000 {
        let now_ns = ssd.next_ns().expect("there is more");
        while let Some(Completed { id, at_ns }) = ssd.pop(now_ns) {
            if id == 1000 {
                flushed_ns = at_ns;
            } else {
                later += 1;
                ssd.start(at_ns, id, Op::Write, later << 20, 65536);
            }
        }
    }
    assert!((1000 * US..20_000 * US).contains(&flushed_ns), "{flushed_ns} ns");
}

/// Programs delay reads, unless they can be suspended; and then reads do not stop programs for
/// ever.
#[test]
fn reads_suspend_programs_within_reason() {
    let die =
        [("channels", "1"), ("dies-per-channel", "1"), ("program-us", "1000"), ("size-kib", "64")];
    let without = changed("z-ssd", &[die.as_slice(), &[("suspend-us", "")]].concat());
    let with = changed("z-ssd", &die);
    let read_ns = |profile: &Profile| {
        let mut ssd = ssd(profile);
        ssd.start(0, 0, Op::Write, 0, 4096);
        ssd.start(100 * US, 1, Op::Read, 1 << 30, 2048);
        drain(&mut ssd).iter().find(|one| one.id == 1).expect("it completes").at_ns - 100 * US
    };
    let calm_ns = alone(&mut ssd(&with), 0, Op::Read, 1 << 30, 2048);
    assert_eq!(read_ns(&with), calm_ns + 2 * US, "what it takes to suspend");
    assert!(read_ns(&without) > 900 * US, "it waits for the program");

    // A flood of reads delays each program at most by its own time: half of the writes remain.
    let streams = || [Stream::new(Op::Write, 4096, true), Stream::new(Op::Read, 2048, true)];
    let alone = rate(&mut ssd(&with), Stream::new(Op::Write, 4096, true), 32, 4096 * 2000);
    let flooded = closed(&mut ssd(&with), &mut streams(), 32, 0, 4096 * 20_000).0[0];
    assert!((0.3..0.7).contains(&(flooded / alone)), "{flooded} of {alone} MB/s");
}

/// A fresh device stays fresh until its free space is used up; then random writing is slower,
/// sequential writing is not, and discarding makes it fresh again.
#[test]
fn space_runs_out_and_comes_back() {
    let mut profile = profile("p4500");
    profile.garbage.as_mut().expect("it is flash").over_provisioning = Spare::new(0.1);
    let capacity = 64 << 20;
    let mut ssd = Ssd::new(&profile, &Setup { capacity, ..setup(State::Fresh, 64) });
    let random = || [Stream::new(Op::Write, 4096, true)];
    let sequential = || [Stream::new(Op::Write, 131_072, false)];
    let (fresh, now_ns) = closed(&mut ssd, &mut random(), 64, 0, 60 << 20);
    let (_, now_ns) = closed(&mut ssd, &mut random(), 64, now_ns, 40 << 20);
    let (steady, now_ns) = closed(&mut ssd, &mut random(), 64, now_ns, 40 << 20);
    assert!(steady[0] < 0.3 * fresh[0], "{steady:?} after {fresh:?} MB/s");
    let (in_order, now_ns) = closed(&mut ssd, &mut sequential(), 16, now_ns, 200 << 20);
    assert!(in_order[0] > 0.85 * fresh[0], "{in_order:?} after {fresh:?} MB/s");
    ssd.start(now_ns, 0, Op::Discard, 0, capacity as u32);
    assert_eq!(drain(&mut ssd).len(), 1);
    let (again, _) = closed(&mut ssd, &mut random(), 64, now_ns + 1_000_000_000, 60 << 20);
    near(again[0], fresh[0], 0.1);
}

/// Optane is written in place: it has no states, and earlier writes cost nothing.
#[test]
fn media_written_in_place_has_no_states() {
    let at = |state| {
        let mut ssd =
            Ssd::new(&profile("p4800x"), &Setup { capacity: 1 << 24, ..setup(state, 64) });
        rate(&mut ssd, Stream::new(Op::Write, 4096, true), 16, 256 << 20)
    };
    assert_eq!(at(State::Fresh), at(State::Steady));
}

/// The fast cells fill up.
#[test]
fn slc_cells_run_out() {
    let profile = changed("980-pro", &[("size-gb", "1")]);
    let mut ssd = ssd(&profile);
    let stream = || [Stream::new(Op::Write, 131_072, false)];
    let (fast, now_ns) = closed(&mut ssd, &mut stream(), 32, 0, 900_000_000);
    let (_, now_ns) = closed(&mut ssd, &mut stream(), 32, now_ns, 200_000_000);
    let (slow, _) = closed(&mut ssd, &mut stream(), 32, now_ns, 500_000_000);
    near(fast[0], 5000.0, 0.05);
    near(slow[0], 2000.0, 0.05);
}

/// Arbiter, window and model together: two classes of many commands on the Z-SSD, 4 KiB and 8 KiB.
/// Commands go 3:1 by the weights, and the link gives the same total whatever the mix (D2FQ Fig.
/// 11a).
#[test]
fn a_windowed_device_shares_by_weights() {
    let run = |high: u16, low: u16| {
        let weights = ClassWeights { high, medium: 1, low };
        let mut arbiter =
            Arbiter::new(Mechanism::Weighted, 2, Arbitration { burst: Burst::ONE, weights });
        let queues = [QueueIndex(0), QueueIndex(1)];
        arbiter.add(queues[0], Class::High);
        arbiter.add(queues[1], Class::Low);
        queues.iter().for_each(|&queue| arbiter.post(queue, 512));
        let (mut window, mut ssd) = (Window::new(64), ssd(&profile("z-ssd")));
        let mut streams = [Stream::new(Op::Read, 4096, true), Stream::new(Op::Read, 8192, true)];
        let (mut now_ns, mut completed) = (0, [0u64; 2]);
        while completed[0] + completed[1] < 40_000 {
            while window.free() > 0 {
                let Some(queue) = arbiter.next() else { break };
                assert!(window.take());
                let stream = &mut streams[usize::from(queue.0)];
                ssd.start(now_ns, u32::from(queue.0), stream.op, stream.offset(), stream.bytes);
            }
            now_ns = ssd.next_ns().expect("the window is full");
            while let Some(Completed { id, .. }) = ssd.pop(now_ns) {
                window.release();
                completed[id as usize] += 1;
                arbiter.post(queues[id as usize], 1);
            }
        }
        let bytes = completed[0] * 4096 + completed[1] * 8192;
        (completed[0] as f64 / completed[1] as f64, bytes as f64 * 1e3 / now_ns as f64)
    };
    let (ratio, total) = run(3, 1);
    near(ratio, 3.0, 0.01);
    let (equal, same_total) = run(1, 1);
    near(equal, 1.0, 0.01);
    near(total, same_total, 0.02);
}
