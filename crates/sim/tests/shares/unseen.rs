//! The search for D on devices that no profile of the tree describes: 17 rows of seven devices.
//!
//! Two tenants 300:100 keep the least D that fills the device outstanding each, twice as much
//! together. The least D is measured: the smallest depth of one tenant without a scheduler that has
//! 97 % of the rate at a depth of 512. The goal is a ratio of 2.85 to 3.15 at 0.97 of `none`;
//! decision 36 has the rows that miss it, and the test fails where a row is worse than these.

use super::changed;
use super::depth::{Auto, Load, got, tenants};
use fairq_device::Profile;
use fairq_sim::policies::{AnySubject, MqfqSubject};
use fairq_sim::run;
use fairq_sim::scenario::{Job, MS, SECOND, Scenario, Tenant};

/// A device by what distinguishes it: turns of the controller for reads and writes, its fixed times
/// (us), the link (MB/s each way), channels, dies of each, read and program (us), bytes of a
/// program (KiB), a channel's bandwidth, the window, and the buffer (KiB).
struct Device {
    name: &'static str,
    turns_us: [f64; 2],
    fixed_us: [f64; 2],
    link: [u32; 2],
    dies: [u32; 2],
    cells_us: [f64; 2],
    program_kib: u32,
    channel: u32,
    window: u32,
    buffer_kib: u32,
}

impl Device {
    fn profile(&self) -> Profile {
        let mut lines = Vec::new();
        let mut set = |key: &str, value: String| lines.push((format!("\n{key} ="), value));
        let [read, write] = self.turns_us;
        let [fixed_read, fixed_write] = self.fixed_us;
        let [channels, each] = self.dies;
        let [cell, program] = self.cells_us;
        set("window", self.window.to_string());
        set("read-us", format!("{read:?}"));
        set("write-us", format!("{write:?}"));
        set("read-fixed-us", format!("{fixed_read:?}"));
        set("write-fixed-us", format!("{fixed_write:?}"));
        set("read-mb-s", self.link[0].to_string());
        set("write-mb-s", self.link[1].to_string());
        set("channels", channels.to_string());
        set("dies-per-channel", each.to_string());
        set("page-kib", "16".into());
        set("program-us", format!("{program:?}"));
        set("program-kib", self.program_kib.to_string());
        set("channel-mb-s", self.channel.to_string());
        set("size-kib", self.buffer_kib.to_string());
        let lines: Vec<_> = lines
            .iter()
            .map(|(key, value)| (key.as_str(), format!("{key} {value} #")))
            .chain([("read-us = 3 ", format!("read-us = {cell:?} #"))])
            .collect();
        let lines: Vec<_> = lines.iter().map(|(key, line)| (*key, line.as_str())).collect();
        changed("z-ssd", &lines)
    }
}

const DEVICES: [(Device, &[(u32, u32)]); 7] = [
    (
        Device {
            name: "slow TLC",
            turns_us: [4.0, 4.0],
            fixed_us: [12.0, 25.0],
            link: [1600, 1200],
            dies: [4, 2],
            cells_us: [85.0, 900.0],
            program_kib: 64,
            channel: 400,
            window: 64,
            buffer_kib: 2048,
        },
        &[(4, 100), (64, 100), (4, 0)],
    ),
    (
        Device {
            name: "fast TLC",
            turns_us: [0.8, 0.9],
            fixed_us: [6.0, 9.0],
            link: [7200, 6000],
            dies: [8, 6],
            cells_us: [45.0, 420.0],
            program_kib: 64,
            channel: 1400,
            window: 256,
            buffer_kib: 16_384,
        },
        &[(4, 100), (64, 100), (4, 0)],
    ),
    (
        Device {
            name: "PCIe 5",
            turns_us: [0.45, 0.6],
            fixed_us: [5.0, 7.0],
            link: [14_000, 11_000],
            dies: [16, 8],
            cells_us: [38.0, 380.0],
            program_kib: 64,
            channel: 2000,
            window: 512,
            buffer_kib: 32_768,
        },
        &[(64, 100), (4, 0)],
    ),
    (
        Device {
            name: "QLC",
            turns_us: [1.6, 1.6],
            fixed_us: [10.0, 14.0],
            link: [3500, 3000],
            dies: [8, 16],
            cells_us: [130.0, 2400.0],
            program_kib: 64,
            channel: 640,
            window: 128,
            buffer_kib: 8192,
        },
        &[(4, 100), (64, 100), (64, 0)],
    ),
    (
        Device {
            name: "written in place",
            turns_us: [1.7, 1.9],
            fixed_us: [4.0, 5.0],
            link: [2500, 2200],
            dies: [7, 2],
            cells_us: [6.0, 9.0],
            program_kib: 4,
            channel: 1100,
            window: 32,
            buffer_kib: 256,
        },
        &[(4, 100), (16, 100)],
    ),
    (
        Device {
            name: "volume of a cloud",
            turns_us: [60.0, 60.0],
            fixed_us: [500.0, 700.0],
            link: [250, 250],
            dies: [32, 4],
            cells_us: [90.0, 200.0],
            program_kib: 64,
            channel: 800,
            window: 128,
            buffer_kib: 65_536,
        },
        &[(4, 100), (16, 0)],
    ),
    (
        Device {
            name: "old MLC",
            turns_us: [11.0, 12.0],
            fixed_us: [40.0, 45.0],
            link: [540, 480],
            dies: [8, 2],
            cells_us: [55.0, 1300.0],
            program_kib: 32,
            channel: 166,
            window: 32,
            buffer_kib: 1024,
        },
        &[(4, 100), (64, 100)],
    ),
];

/// The smallest depth of one tenant that fills the device.
fn least(profile: &Profile, bytes: u32, read_percent: u32) -> u32 {
    let rate = |depth| {
        let job = Job { read_percent, ..Job::random_read(bytes, depth) };
        let all = vec![Tenant::new("one", 100, vec![0], job)];
        let mut scenario = Scenario::new(profile.clone(), 2, all, 500 * MS);
        scenario.warmup_ns = 300 * MS;
        AnySubject::None.measure(&scenario).unwrap().iops()
    };
    let enough = 0.97 * rate(512);
    let (mut not, mut depth) = (0, 512);
    while depth - not > 1 {
        let middle = (not + depth) / 2;
        if rate(middle) >= enough { depth = middle } else { not = middle }
    }
    depth
}

#[test]
#[ignore = "a step of tests/long: ignored"]
fn weights_hold_on_devices_that_are_not_in_the_tree() {
    let mut missed = Vec::new();
    println!("| device | load | least D | ratio | of `none` | D | ratio with the least D |");
    println!("|---|---|---|---|---|---|---|");
    for (device, loads) in &DEVICES {
        let profile = device.profile();
        for &(kib, read_percent) in *loads {
            let depth = least(&profile, kib << 10, read_percent);
            let all = tenants(Load(kib << 10, read_percent, depth), (0, u64::MAX)).to_vec();
            let mut scenario = Scenario::new(profile.clone(), 2, all, 4 * SECOND);
            scenario.warmup_ns = 2 * SECOND;
            let (_, possible) = got(&AnySubject::None.measure(&scenario).unwrap());
            let fixed = AnySubject::Mqfq(MqfqSubject { slots: depth, threshold: 45 << 10 });
            let (usual, _) = got(&fixed.measure(&scenario).unwrap());
            let found = run(&scenario, &Auto, vec![]).unwrap();
            let (ratio, total) = got(&found);
            let (kept, slots) = (total as f64 / possible as f64, found.stats.slots.unwrap_or(0));
            let load = if read_percent == 0 { "writes" } else { "reads" };
            let row = format!(
                "| {} | {kib} KiB {load} | {depth} | {ratio:.2} | {kept:.3} | {slots} | {usual:.2} |",
                device.name
            );
            println!("{row}");
            // Where two or three requests fill the device no D gives the weights.
            let is_possible = usual >= 2.85;
            if is_possible && !((2.8..=3.15).contains(&ratio) && kept >= 0.96) {
                missed.push(row);
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
