//! Each profile against the known points of its device; and profiles derived from measured points.
//!
//! `cargo test -p fairq-device --test calibration -- --nocapture` prints the tables.

use fairq_device::closed::predict;
use fairq_device::derivation::Derivation;
use fairq_device::profile::{BUILT_IN, Count, Load, Point, ReadAhead, State};
use fairq_device::{Profile, derive};

fn row(profile: &Profile, point: &Point) -> (String, bool) {
    let (model, off) = predict(profile, point).against(point);
    let known =
        [point.iops, point.latency_us, point.mb_s].into_iter().flatten().next().unwrap_or(f64::NAN);
    let unit = if point.iops.is_some() {
        "IOPS"
    } else {
        ["us", "MB/s"][usize::from(point.mb_s.is_some())]
    };
    let state = if point.state == State::Fresh { "" } else { "steady" };
    let load = format!("{:?} {}k x {}", point.load, point.kib.get(), point.depth.get());
    let off = off * 100.0;
    let row = format!(
        "{:<13} {load:<26} {state:<6} {known:>9.1} {model:>9.1} {unit:<5} {off:>+6.1} % (within {} \
         %)  {}",
        profile.name, point.within, point.source
    );
    (row, off.abs() <= point.within)
}

#[track_caller]
fn all_hold<'a>(points: impl IntoIterator<Item = (&'a Profile, &'a Point)>) {
    let mut wrong = Vec::new();
    for (profile, point) in points {
        let (row, holds) = row(profile, point);
        println!("{row}");
        if !holds {
            wrong.push(row);
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn profiles_keep_to_their_points() {
    for (name, _) in BUILT_IN {
        let profile = Profile::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(profile.name, name);
        assert!(profile.points.len() >= 4, "{name} has too few points");
        all_hold(profile.points.iter().map(|point| (&profile, point)));
    }
}

/// The P4500's data sheet has 10 us for sequential reads of 4 KiB and 85 us for random ones: with
/// reading ahead the profile gives both.
#[test]
fn the_p4500_reads_ahead() {
    let mut profile = Profile::named("p4500").unwrap();
    profile.read_ahead = Some(ReadAhead { kib: Count::new(128), streams: Count::new(8) });
    let sequential = Point {
        load: Load::SequentialRead,
        latency_us: Some(10.0),
        within: 15.0,
        source: "[S] data sheet, sequential".into(),
        ..profile.points[0].clone()
    };
    all_hold(profile.points.iter().chain([&sequential]).map(|point| (&profile, point)));
}

/// The measurements that a probe would make of a device with a profile; every second point of reads
/// is kept for checking.
fn probed(profile: &Profile) -> (Vec<Point>, Vec<Point>) {
    let measure = |load, kib, depth| {
        let (kib, depth) = (Count::new(kib), Count::new(depth));
        let point = Point {
            load,
            kib,
            depth,
            state: State::Fresh,
            iops: None,
            latency_us: None,
            mb_s: None,
            within: 12.0,
            source: profile.name.clone(),
        };
        let figures = predict(profile, &point);
        match load {
            Load::SequentialRead | Load::SequentialWrite => {
                Point { mb_s: Some(figures.mb_s), ..point }
            }
            _ if depth.get() == 1 => Point { latency_us: Some(figures.latency_us), ..point },
            _ => Point { iops: Some(figures.iops), ..point },
        }
    };
    let known = [1, 4, 16, 64, 256].map(|depth| measure(Load::RandomRead, 4, depth));
    let unknown = [2, 8, 32, 128].map(|depth| measure(Load::RandomRead, 4, depth));
    let others = [
        measure(Load::SequentialRead, 128, 32),
        measure(Load::RandomWrite, 4, 1),
        measure(Load::RandomWrite, 4, 64),
        measure(Load::SequentialWrite, 128, 32),
    ];
    ([known.to_vec(), others.to_vec()].concat(), unknown.to_vec())
}

#[test]
fn a_derived_profile_does_what_was_measured() {
    for (name, _) in BUILT_IN {
        let (points, between) = probed(&Profile::named(name).unwrap());
        let what = Derivation {
            name: format!("like-{name}"),
            model: "a device".into(),
            capacity: 1 << 36,
            points,
        };
        let derived = derive(&what).unwrap();
        let again = Profile::parse(&derived.text)
            .unwrap_or_else(|error| panic!("{error}\n{}", derived.text));
        all_hold(again.points.iter().chain(&between).map(|point| (&again, point)));
    }
}

#[test]
fn without_writes_they_are_taken_to_be_like_reads() {
    let (mut points, _) = probed(&Profile::named("p3700").unwrap());
    points.retain(|point| matches!(point.load, Load::RandomRead | Load::SequentialRead));
    let what =
        Derivation { name: "half".into(), model: "a device".into(), capacity: 1 << 36, points };
    let derived = derive(&what).unwrap();
    let profile = &derived.profile;
    assert_eq!(profile.controller.write_us, profile.controller.read_us);
    assert!(derived.text.contains("writes were not measured"), "{}", derived.text);
}

#[test]
fn nothing_comes_of_too_few_points() {
    let (points, _) = probed(&Profile::named("p3700").unwrap());
    for missing in [Load::RandomRead, Load::SequentialRead] {
        let points = points.iter().filter(|point| point.load != missing).cloned().collect();
        let what =
            Derivation { name: "half".into(), model: "a device".into(), capacity: 1 << 36, points };
        assert!(derive(&what).unwrap_err().to_string().contains("needs"));
    }
}
