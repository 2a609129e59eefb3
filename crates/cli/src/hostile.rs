//! Laws for untrusted and mistaken input: configuration files, policies, tenants, job files, lines
//! on the control socket. Every input is accepted or refused with a reason, and none ends the
//! program. An accepted input has the same meaning after it is dumped and read again, gives no
//! tenant a byte of another's, and makes a policy that serves.
//!
//! The texts are made from the documentation (each key of the example file, with values of its own
//! or of another key), because random bytes fail in the first line.

use std::sync::LazyLock;

use fairq_bench::fiojob;
use fairq_config::access::Directory;
use fairq_config::device::SECTOR;
use fairq_config::engine::{Shape, WithPolicy, with_policy};
use fairq_config::policy::{PolicyTable, parse_list};
use fairq_config::settings::{self, Settings, Surroundings};
use fairq_config::tenant::{Tenant, TenantTable, layout};
use fairq_config::units::{Size, exact_size};
use fairq_core::{
    Limits, Native, Next, Op, Outcome, Port, PortSet, Request, Submitted, Tag, Topology, Weight,
};
use fairq_host::server::Answer;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::operate::rpc;

/// Values that are valid for some key, and values that are valid for none.
const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "64",
    "300",
    "-1",
    "1.5",
    "18446744073709551615",
    "9223372036854775807",
    "65536",
    "nan",
    "true",
    "false",
    "\"\"",
    "\"0\"",
    "\"1\"",
    "\"4k\"",
    "\"1G\"",
    "\"512\"",
    "\"1T\"",
    "\"8388607T\"",
    "\"99999999T\"",
    "\"1ms\"",
    "\"0s\"",
    "\"1h\"",
    "\"60s\"",
    "\"10%\"",
    "\"100k\"",
    "\"0.01\"",
    "\"1e9\"",
    "\"on\"",
    "\"off\"",
    "\"ram\"",
    "\"file\"",
    "\"null\"",
    "\"/dev/null\"",
    "\"nvme-soft\"",
    "\"z-ssd\"",
    "\"mqfq\"",
    "\"mqfq:D=0\"",
    "\"d2fq\"",
    "\"nass+cfq\"",
    "\"none\"",
    "\"static-1\"",
    "\"poll:1us\"",
    "\"poll:0us\"",
    "\"0-1\"",
    "\"0-4095\"",
    "\"1-0\"",
    "\"unix:/x\"",
    "\"tcp:[::1]:0\"",
    "\"tcp:x\"",
    "\"cgroup:/x\"",
    "\"\u{1F980}\"",
    "\"a b\"",
    "[]",
    "{}",
    "[\"unix:/x\"]",
    "{ name = \"bfq\" }",
    "1979-05-27",
];

fn surroundings() -> Surroundings {
    Surroundings {
        cpus: vec![0, 1],
        inherited_sockets: 0,
        default_socket: "/run/fairq.sock".into(),
        default_control: "/run/fairq.ctl".into(),
    }
}

/// The lines of the example file, also the commented ones (behind `#`).
static LINES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let text = include_str!("../../../docs/fairq.example.toml");
    let line = |line: &'static str| {
        let line = line.trim_start_matches(['#', ' ']);
        let key = line.split_once(" = ").map_or(line, |(key, _)| key);
        let plain =
            key.trim_matches(['[', ']']).chars().all(|c| c.is_ascii_lowercase() || c == '-');
        (plain && (line.contains(" = ") || line.starts_with('['))).then_some(line)
    };
    text.lines().filter_map(line).collect()
});

/// The keys of the example file's policy table.
static KNOBS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let table = LINES
        .iter()
        .skip_while(|line| **line != "[policy]")
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    table.filter_map(|line| Some(line.split_once(" = ")?.0)).filter(|key| *key != "name").collect()
});

const POLICIES: &[&str] = &[
    "none",
    "sfqd",
    "mqfq",
    "mqfq-serial",
    "d2fq",
    "kyber",
    "kyber-fair",
    "cfq",
    "cfq-na",
    "bfq",
    "bfq-na",
    "flashfq",
    "fiops",
    "nass+cfq",
    "nass+bfq",
    "nass+flashfq",
    "nass+fiops",
    "nass+mqfq",
];

/// A line of the example, or its key with another value.
fn line() -> impl Strategy<Value = String> {
    (select(LINES.as_slice()), proptest::option::of(select(VALUES))).prop_map(
        |(line, value)| match (line.split_once(" = "), value) {
            (Some((key, _)), Some(value)) => format!("{key} = {value}\n"),
            _ => format!("{line}\n"),
        },
    )
}

/// A configuration that may be valid: a device, a policy, tenants; and up to two lines anywhere
/// that may be wrong.
fn configuration() -> impl Strategy<Value = String> {
    let devices = [
        "ram",
        "null,size=1G",
        "paced,iops=100k",
        "file,path=/x,size=1G,create",
        "nvme-soft,profile=z-ssd",
        "nvme-soft,backing=/x,window=8",
    ];
    let limits = prop_oneof![
        Just(""),
        Just("limits = { connections = 3, memory-per-connection = \"64M\" }\n")
    ];
    let parts = (
        select(devices.to_vec()),
        policy(),
        limits,
        vec(tenant(), 1..6),
        vec((any::<bool>(), line()), 0..3),
    );
    parts.prop_map(|(device, policy, limits, tenants, lines)| {
        let at = |is_first| {
            lines.iter().filter(move |(first, _)| *first == is_first).map(|(_, line)| line.as_str())
        };
        let tenants = tenants.iter().enumerate().map(|(at, keys)| {
            let keys = keys
                .split(',')
                .filter_map(|key| key.split_once('='))
                .map(|(key, value)| format!("{key} = \"{value}\"\n"));
            format!("[[tenant]]\nname = \"t{at}\"\n{}", keys.collect::<String>())
        });
        let head = format!("device = \"{device}\"\npolicy = \"{policy}\"\n{limits}");
        at(true)
            .map(str::to_owned)
            .chain([head])
            .chain(tenants)
            .chain(at(false).map(str::to_owned))
            .collect()
    })
}

/// A value of `--policy`: a policy's name, with its own knobs or another policy's.
fn policy() -> impl Strategy<Value = String> {
    let knob = (select(KNOBS.as_slice()), select(VALUES))
        .prop_map(|(key, value)| format!("{key}={}", value.trim_matches('"')));
    (select(POLICIES), vec(knob, 0..3)).prop_map(|(name, knobs)| match knobs.is_empty() {
        true => name.to_owned(),
        false => format!("{name}:{}", knobs.join(",")),
    })
}

/// Serves two flows on two ports until all requests are served. The device completes each request
/// after a fixed time.
struct Serve;

impl WithPolicy for Serve {
    type Output = ();

    fn run<L: Limits>(self, policy: L, mut ports: Vec<L::Port>) {
        let flows = [300, 100].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
        let (mut wake, mut device) = (PortSet::EMPTY, Vec::new());
        for (at, port) in ports.iter_mut().enumerate() {
            for tag in 0..24 {
                let op = [Op::Read, Op::Write, Op::Flush, Op::Discard][(tag as usize / 2) % 4];
                let (flow, offset) = (flows[tag as usize % 2], u64::from(tag) << 16);
                let request = Request::new(Tag(tag), flow, op, offset, 4096);
                if let Submitted::Issue { .. } = port.submit(0, &request, &mut wake).unwrap() {
                    device.push((at, Tag(tag)));
                }
            }
        }
        let (mut now_ns, mut tick_ns, mut served) = (0, Some(0), 0);
        while served < 48 {
            if tick_ns.is_some_and(|tick| tick <= now_ns) {
                tick_ns = policy.tick(now_ns, &mut wake);
            }
            // Each round calls `next` on every port, so that each wake-up is delivered.
            let mut until = tick_ns;
            for (at, port) in ports.iter_mut().enumerate() {
                loop {
                    match port.next(now_ns, &mut wake) {
                        Next::Issue { tag, .. } | Next::Join { tag } => device.push((at, tag)),
                        Next::WaitUntil(time) => {
                            break until = Some(until.map_or(time, |until| until.min(time)));
                        }
                        Next::Blocked | Next::Idle => break,
                    }
                }
            }
            now_ns += 10_000;
            match device.pop() {
                Some((at, tag)) => {
                    ports[at].complete(now_ns, tag, Outcome::Done, &mut wake);
                    served += 1;
                }
                None => {
                    now_ns = now_ns.max(
                        until.expect("requests wait, none is on the device, no wake-up is due"),
                    )
                }
            }
            assert!(now_ns < 3_600_000_000_000, "an hour for 48 requests: {served} served");
        }
    }
}

fn tenant() -> impl Strategy<Value = String> {
    let size = prop_oneof![
        Just(String::new()),
        (1..9_u32, select(&["k", "M", "G"][..])).prop_map(|(n, unit)| format!(",size={n}{unit}"))
    ];
    let offset = prop_oneof![2 => Just(String::new()), 1 => (0..4000_u64).prop_map(|n| format!(",offset={}", n * 4096))];
    (size, offset).prop_map(|(size, offset)| size + &offset)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_configuration_is_taken_or_refused(text in configuration()) {
        let taken = settings::parse(&text, "f.toml").and_then(|settings| settings.plan(&surroundings()).map(|plan| (settings, plan)));
        match taken {
            Err(refusal) => prop_assert!(refusal.to_string().len() > 10, "{refusal}"),
            Ok((settings, plan)) => {
                let dumped = toml::to_string(&settings).unwrap();
                let again: Settings = settings::parse(&dumped, "f.toml").unwrap();
                let mut again = again.plan(&surroundings()).unwrap();
                for (again, before) in again.tenants.iter_mut().zip(&plan.tenants) {
                    again.origin = before.origin.clone();
                }
                prop_assert_eq!(again, plan);
            }
        }
    }

    #[test]
    fn a_policy_that_is_taken_serves(text in policy()) {
        let Ok(tables) = parse_list(&text) else { return Ok(()) };
        for table in tables {
            let Ok(config) = table.complete() else { continue };
            let shape = Shape::new(Topology::flat(2), 2, 32).before(8);
            let _ = with_policy::<Native, _>(&config, shape, Serve);
        }
    }

    #[test]
    fn no_tenant_has_a_byte_of_anothers(texts in vec(tenant(), 1..12), device in 1..64_u64) {
        let device = device << 20;
        let tables = texts.iter().enumerate().map(|(at, text)| format!("t{at}{text}").parse::<TenantTable>().unwrap());
        let tenants = tables
            .map(|table| table.complete("/sys/fs/cgroup".as_ref(), &[], &Directory::default()))
            .collect::<Result<Vec<Tenant>, _>>();
        let Ok(tenants) = tenants else { return Ok(()) };
        let Ok(mut ranges) = layout(&tenants, Some(device), &[]) else { return Ok(()) };
        prop_assert_eq!(ranges.len(), tenants.len());
        for (tenant, range) in tenants.iter().zip(&ranges) {
            prop_assert!(tenant.size.is_none_or(|size| size == range.size), "{tenant:?} {range:?}");
            prop_assert!(tenant.offset.is_none_or(|offset| offset == range.offset), "{tenant:?} \
             {range:?}");
            prop_assert!(range.file == 0 && range.size > 0 && range.offset % SECTOR == 0 && range.size % SECTOR == 0, "{range:?}");
        }
        ranges.sort_by_key(|range| range.offset);
        prop_assert!(ranges.windows(2).all(|pair| pair[0].offset + pair[0].size <= pair[1].offset), "{ranges:?}");
        prop_assert!(ranges.last().is_some_and(|last| last.offset + last.size <= device), "{ranges:?}");
    }

    #[test]
    fn a_size_that_is_shown_is_read_as_it_was(
        bytes in prop_oneof![0..=i64::MAX as u64, (0..63_u32).prop_map(|shift| 1 << shift)],
    ) {
        prop_assert_eq!(exact_size(bytes).parse::<Size>(), Ok(Size(bytes)));
    }

    #[test]
    fn any_word_is_taken_or_refused(text in "[a-z0-9=:,.+%/ \\[\\]\"-]{0,40}|\\PC{0,20}") {
        let _ = (text.parse::<TenantTable>(), text.parse::<PolicyTable>(), text.parse::<Size>());
        let _ = text.parse::<settings::CpuList>();
        let _ = text.parse::<fairq_config::device::DeviceTable>();
        let _ = text.parse::<fairq_config::listen::Listen>();
    }

    #[test]
    fn any_job_file_is_taken_or_refused(
        lines in vec(prop_oneof![
            3 => (select(&["bs", "rw", "iodepth", "numjobs", "runtime", "ramp_time", "rate", "rate_iops", "thinktime", "size", "rwmixread", "ioengine", "name"][..]), select(VALUES))
                .prop_map(|(key, value)| format!("{key}={}", value.trim_matches('"'))),
            1 => select(&["[a]", "[b]", "[global]", "[", "rw=randread", "bs=4k,8k", "bs=4k-8k", "time_based", "; x"][..]).prop_map(str::to_owned),
            1 => "\\PC{0,12}",
        ], 0..12),
    ) {
        if let Err(refusal) = fiojob::parse(&format!("[a]\n{}", lines.join("\n")), "jobs.fio") {
            prop_assert!(refusal.to_string().starts_with("jobs.fio"), "{refusal}");
        }
    }

    #[test]
    fn any_line_of_the_control_socket_has_an_answer(
        line in prop_oneof![
            "\\PC{0,40}",
            "[\\[\\]{}:,\"0-9a-z]{0,40}",
            (select(&["status", "weight", "rpc.discover", "nothing", ""][..]), select(&["1", "\"x\"", "null", "{}", "[]", "1e400"][..]), "\\{?\"?[a-z]{0,3}\"?:?[0-9]?\\}?")
                .prop_map(|(method, id, params)| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)),
        ],
    ) {
        let call = |name: &str, given: serde_json::Value| match name {
            "weight" => rpc::params::<serde_json::Map<String, serde_json::Value>>(given).map(|given| Answer::Ready(given.into())),
            name => Err(rpc::Fault::no_method(name, "there are others")),
        };
        if let Some(answer) = rpc::answer(&line, Vec::new(), call).text.map(Answer::now) {
            prop_assert!(!answer.contains('\n'));
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
            let answers = answer.as_array().cloned().unwrap_or_else(|| vec![answer]);
            prop_assert!(answers.iter().all(|one| one["jsonrpc"] == "2.0" && (one["result"].is_null() != one["error"].is_null())));
        }
    }
}
