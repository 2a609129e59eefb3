//! How policies are read, completed and refused.

use super::table::parse_list;
use super::values::MERGE_BYTES;
use super::*;
use fairq_core::bfq::BfqConfig;
use fairq_core::cfq::CfqConfig;
use fairq_core::flashfq::FlashFqConfig;
use fairq_core::nass::NassConfig;

fn complete(text: &str) -> Result<PolicyConfig, String> {
    text.parse::<PolicyTable>()?.complete().map_err(|refusal| refusal.to_string())
}

#[test]
fn every_key_is_read() {
    let policy = complete(
        "mqfq:D=64,T=256k,virtual-time=scan,slot-kind=bitmap,unthrottle=poll:2us,read-cost=1.5,write-cost=300%,least-cost=4k",
    )
    .unwrap();
    let expected = PolicyConfig {
        name: PolicyName::Mqfq,
        slots: Some(64),
        merge_bytes: 0,
        threshold: Some(256 << 10),
        virtual_time: VirtualTime::Scan,
        slot_kind: SlotKind::Bitmap,
        unthrottle: Unthrottle::Poll(2_000),
        d2fq: D2fqKeys::default(),
        cost: CostModel {
            read_percent: 150,
            write_percent: 300,
            min_bytes: 4096,
            ..CostModel::default()
        },
        serial: complete("mqfq:T=256k").unwrap().serial,
        targets: [None; 3],
        depths: [None; 4],
        period_ns: None,
        busy: None,
        patience: None,
        tokens: None,
        measured_writes: false,
    };
    assert_eq!(policy, expected);
    let d2fq = complete(
        "d2fq:tau-l=1M,tau-m=512k,tau-w=4M,grace=2ms,period=200ms,hl=dynamic,initial=3,tracker=mindicator,\
         strict-paper=true,urgent=10%,read-cost=1.5",
    )
    .unwrap();
    let expected = D2fqKeys {
        tau_l: Some(1 << 20),
        tau_m: Some(512 << 10),
        tau_w: Some(4 << 20),
        grace_ns: Some(2_000_000),
        period_ns: Some(200_000_000),
        hl: Hl::Dynamic,
        initial: Some(3),
        tracker: Tracker::Mindicator,
        strict_paper: true,
        urgent_percent: 10,
    };
    assert_eq!((d2fq.d2fq, d2fq.cost.read_percent), (expected, 150));
    assert_eq!(complete("d2fq:hl=static-3").unwrap().d2fq.hl, Hl::Static(3));
    assert_eq!(complete("mqfq-serial:slots=3,threshold=0").unwrap().threshold, Some(0));
    assert_eq!(complete("none").unwrap().cost, CostModel::default());
    assert_eq!(PolicyTable::default().complete().unwrap().name, PolicyName::Mqfq);
    let kyber =
        complete("kyber:read-target=500us,write-target=5ms,read-depth=9,write-depth=8").unwrap();
    assert_eq!(
        (kyber.targets, kyber.depths),
        ([Some(500_000), Some(5_000_000), None], [Some(9), Some(8), None, None])
    );
    let others = complete("kyber:discard-target=1s,discard-depth=7,other-depth=6").unwrap();
    assert_eq!(
        (others.targets, others.depths),
        ([None, None, Some(1_000_000_000)], [None, None, Some(7), Some(6)])
    );
    let fair = complete("kyber-fair:period=20ms,busy=8,patience=0,tokens=1M").unwrap();
    assert_eq!(
        (fair.period_ns, fair.busy, fair.patience, fair.measured_writes),
        (Some(20_000_000), Some(8), Some(0), true)
    );
    assert_eq!(fair.tokens, Some(1 << 20));
    assert!(!complete("kyber-fair:write-cost=2").unwrap().measured_writes);
}

#[test]
fn the_keys_of_the_serial_schedulers_are_read() {
    let knobs = |text: &str| complete(text).unwrap().serial;
    assert_eq!(knobs("cfq"), SerialKnobs::default());
    let cfq = knobs("cfq:slice=20ms,target=60ms,quantum=4,idle=1ms").cfq;
    let expected =
        CfqConfig { slice_ns: 20_000_000, target_ns: 60_000_000, quantum: 4, idle_ns: 1_000_000 };
    assert_eq!((cfq, knobs("cfq-na").cfq.idle_ns), (expected, 0));
    let bfq = knobs("bfq:budget=1M,timeout=10ms,idle=2ms").bfq;
    let usual = BfqConfig::default();
    let expected =
        BfqConfig { budget_bytes: 1 << 20, timeout_ns: 10_000_000, idle_ns: 2_000_000, ..usual };
    assert_eq!((bfq, knobs("bfq-na").bfq.idle_ns), (expected, 0));
    assert_eq!(knobs("bfq:wait-for-equals").bfq, BfqConfig { waits_for_equals: true, ..usual });
    assert_eq!(knobs("bfq:sync-writes").bfq, BfqConfig { sync_writes: true, ..usual });
    let flashfq = knobs("flashfq:T=64k,idle=1ms,request-cost=8k").flashfq;
    let expected =
        FlashFqConfig { threshold_bytes: 65_536, idle_ns: 1_000_000, request_bytes: 8192 };
    assert_eq!(flashfq, expected);
    let limited = knobs(
        "nass+bfq:channels=8,sub-request=4k,history=64,decay=3,reserve=6,queue-length=64,aggressiveness=off,\
         sequentiality,idleness=off,idle=3ms",
    );
    let expected = NassConfig {
        channels: 8,
        sub_request_bytes: 4096,
        history: 64,
        decay: 3,
        reserve: 6,
        queue_length: 64,
        aggressiveness: false,
        sequentiality: true,
        idleness: false,
    };
    assert_eq!((limited.nass.of_window(32), limited.bfq.idle_ns), (expected, 3_000_000));
    for name in ["nass+cfq", "nass+bfq", "nass+flashfq", "nass+fiops", "nass+mqfq"] {
        let SerialKnobs { cfq, bfq, flashfq, .. } = knobs(name);
        assert_eq!(
            [cfq.idle_ns, bfq.idle_ns, flashfq.idle_ns],
            [0; 3],
            "NASS keeps room instead of waiting"
        );
    }
    assert_eq!(knobs("nass+bfq:idle=3ms").bfq.idle_ns, 3_000_000, "unless it is told to");
    assert_eq!(knobs("nass+bfq:idleness=off").bfq.idle_ns, usual.idle_ns, "it keeps no room");
    for name in ["nass+cfq", "nass+bfq", "nass+flashfq", "nass+fiops", "nass+mqfq"] {
        assert_eq!(complete(name).unwrap().name.name(), name);
    }
    assert_eq!(
        ["cfq", "nass+cfq", "nass+cfq:queue-length=64", "nass+cfq:quantum=4"].map(|text| knobs(
            text
        )
        .cfq
        .quantum),
        [8, 65_536, 65_536, 4]
    );
    let of_128 = knobs("nass+mqfq:reserve=3").nass.of_window(128);
    assert_eq!(of_128, NassConfig { reserve: 3, ..NassConfig::of_window(128) });
    assert_eq!(knobs("nass+bfq").nass.of_window(4), NassConfig::default());
    assert_eq!(knobs("nass+bfq:queue-length=4").nass.of_window(128), NassConfig::of_window(4));
    let refused = complete("fiops:idle=1ms").unwrap_err();
    assert!(
        refused.contains(
            "fiops takes no `idle` (it takes: slots, merge, read-cost, write-cost, least-cost)"
        ),
        "{refused}"
    );
    let merged = |text: &str| complete(text).map(|policy| policy.merge_bytes);
    assert_eq!(merged("bfq"), Ok(0));
    assert_eq!(merged("bfq:merge=on"), Ok(MERGE_BYTES));
    assert_eq!(merged("nass+fiops:merge=64k"), Ok(65_536));
    assert_eq!(merged("sfqd:merge=off"), Ok(0));
    assert_eq!(merged("kyber:merge=on"), Ok(MERGE_BYTES));
    assert_eq!(merged("kyber-fair:merge=64k"), Ok(65_536));
    assert_eq!(
        merged("cfq:merge=33M").unwrap_err(),
        "merge: `33M` is neither on nor off nor a size of at most 32M, as in 256k"
    );
    assert!(merged("mqfq:merge=on").unwrap_err().contains("mqfq takes no `merge`"));
}

#[test]
fn a_list_gives_each_key_to_the_policy_before_it() {
    let list =
        parse_list("none,mqfq:slots=64,threshold=64k,unthrottle=poll:1us,sfqd,mqfq-serial:slots=8")
            .unwrap();
    let names: Vec<_> = list.iter().map(|policy| policy.name.unwrap().name()).collect();
    assert_eq!(names, ["none", "mqfq", "sfqd", "mqfq-serial"]);
    assert_eq!(list[1].threshold, Some(Size(64 << 10)));
    assert_eq!(list[1].unthrottle, Some(Unthrottle::Poll(1_000)));
    assert_eq!(list[3].slots, Some(8));
    assert_eq!(parse_list("sfqd,slots=4").unwrap(), ["sfqd:slots=4".parse().unwrap()]);
}

#[test]
fn all_are_all() {
    let refusal = complete("mqf").unwrap_err();
    let allowed = refusal.split("allowed: ").nth(1).unwrap().trim_end_matches(')');
    assert_eq!(allowed.split(", ").collect::<Vec<_>>(), PolicyName::ALL.map(PolicyName::name));
}

#[test]
fn refusals_name_the_key_and_the_cure() {
    let refusal = |text: &str| complete(text).unwrap_err();
    assert_eq!(
        refusal("mqf"),
        "name: unknown value `mqf`; did you mean `mqfq`? (allowed: none, sfqd, mqfq, mqfq-serial, \
         d2fq, cfq, cfq-na, bfq, \
         bfq-na, flashfq, fiops, nass+cfq, nass+bfq, nass+flashfq, nass+fiops, nass+mqfq, kyber, \
         kyber-fair)"
    );
    assert_eq!(
        refusal("none:slots=4"),
        "policy: none takes no `slots` (it takes: no keys at all): leave it out; it is for sfqd, \
         mqfq, mqfq-serial, cfq, \
         cfq-na, bfq, bfq-na, flashfq, fiops, nass+cfq, nass+bfq, nass+flashfq, nass+fiops, \
         nass+mqfq"
    );
    assert_eq!(
        refusal("sfqd:T=4k"),
        "policy: sfqd takes no `threshold` (it takes: slots, merge, read-cost, write-cost, least-cost): leave \
         it out; it is for mqfq, \
         mqfq-serial, flashfq, nass+flashfq"
    );
    assert!(
        refusal("d2fq:slots=4")
            .starts_with("policy: d2fq takes no `slots` (it takes: tau-l, tau-m,")
    );
    assert_eq!(
        refusal("none:hl=static-3"),
        "policy: none takes no `hl` (it takes: no keys at all): leave it out; it is for d2fq"
    );
    assert_eq!(
        refusal("d2fq:hl=static-300"),
        "hl: `static-300` is neither dynamic nor static-N with N from 1 to 256, as in static-3"
    );
    assert_eq!(
        refusal("d2fq:hl=static-3,initial=4"),
        "policy: initial 4 is where a dynamic ratio begins, but hl is static-3: leave one out"
    );
    assert_eq!(
        refusal("mqfq:slots=0"),
        "policy: slots 0 is not in 1..65536: it is how many requests the device may hold at once; \
         `fairq calibrate` finds it"
    );
    assert_eq!(
        refusal("mqfq:least-cost=33M"),
        "policy: least-cost 34603008 is not in 1..32M: it is what any request costs at least, in \
         bytes; where requests are what the device is short of, 4k"
    );
    assert_eq!(
        refusal("kyber-fair:busy=0"),
        "policy: busy 0 is not in 1..65536: it is how many requests the device must hold at least \
         before anybody is \
         throttled"
    );
    assert_eq!(
        refusal("mqfq:unthrottle=never"),
        "unthrottle: `never` is neither wheel nor poll:DURATION, as in poll:1us"
    );
    assert_eq!(
        refusal("mqfq:threshhold=4k"),
        "unknown key `threshhold`; did you mean `threshold`? (allowed: name, D, slots, merge, T, \
         threshold, virtual-time, \
         slot-kind, unthrottle, tau-l, tau-m, tau-w, grace, period, hl, initial, tracker, \
         strict-paper, urgent, \
         read-cost, write-cost, least-cost, slice, target, quantum, idle, budget, timeout, wait-for-equals, \
         sync-writes, request-cost, channels, sub-request, \
         history, decay, reserve, queue-length, aggressiveness, sequentiality, idleness, \
         read-target, \
         write-target, discard-target, read-depth, write-depth, discard-depth, other-depth, busy, \
         patience, tokens)"
    );
}

#[test]
fn flags_win_key_by_key_unless_the_policy_is_another() {
    let file: PolicyTable = "mqfq:slots=64,threshold=64k".parse().unwrap();
    assert_eq!(
        file.clone().overlaid("mqfq:slots=32".parse().unwrap()),
        "mqfq:slots=32,threshold=64k".parse().unwrap()
    );
    assert_eq!(file.overlaid("sfqd".parse().unwrap()), "sfqd".parse().unwrap());
}
