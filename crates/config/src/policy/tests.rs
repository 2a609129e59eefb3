//! Policies: reading, completing, showing and refusing.

use super::*;

fn complete(text: &str) -> Result<PolicyConfig, String> {
    text.parse::<PolicyTable>()?.complete().map_err(|refusal| refusal.to_string())
}

/// The shown value of a key for a device that takes 64 requests.
fn told(text: &str, key: &str) -> String {
    let knobs = complete(text).unwrap().knobs(64);
    let (knob, value) = knobs.iter().find(|(knob, _)| knob.key == key).unwrap();
    value::show_or_auto(knob, *value)
}

#[test]
fn every_key_is_read() {
    for text in [
        "mqfq:slots=64,threshold=256k,read-cost=150%,write-cost=300%,least-cost=4k,cost=requests",
        "mqfq-serial:slots=3,threshold=0",
        "d2fq:tau-l=1M,tau-m=512k,tau-w=4M,grace=2ms,period=200ms,hl=dynamic,initial=3,\
         urgent=10%,read-cost=150%",
        "d2fq:hl=static-3,urgent=none",
        "kyber:read-target=500us,write-target=5ms,discard-target=1s,read-depth=9,write-depth=8,\
         discard-depth=7,other-depth=6,merge=64k",
        "kyber-fair:period=20ms,busy=8,patience=0,tokens=1M,write-cost=200%,merge=off",
        "cfq:slice=20ms,target=60ms,quantum=4,idle=1ms",
        "bfq:budget=1M,timeout=10ms,idle=2ms,wait-for-equals=true,sync-writes=false",
        "flashfq:threshold=64k,idle=1ms,request-cost=8k",
        "nass+bfq:channels=8,sub-request=4k,history=64,decay=3,reserve=6,queue-length=64,\
         aggressiveness=false,sequentiality=true,idleness=false,idle=3ms",
    ] {
        let (_, keys) = text.split_once(':').unwrap();
        let keys: Vec<(&str, &str)> =
            keys.split(',').map(|pair| pair.split_once('=').unwrap()).collect();
        for (key, value) in keys {
            // The initial ratio is not shown, because the ratio moves away from it.
            if key != "initial" {
                assert_eq!(told(text, key), value, "{text}: {key}");
            }
        }
    }
    assert_eq!(told("mqfq:D=64,T=4k", "threshold"), "4k");
    assert_eq!(told("bfq:merge=on", "merge"), "256k");
    assert_eq!(told("bfq:sync-writes", "sync-writes"), "true");
    assert_eq!(told("nass+bfq:idleness=off", "idleness"), "false");
    assert_eq!(told("kyber-fair", "write-cost"), "auto");
    assert_eq!(PolicyTable::default().complete().unwrap().name(), "mqfq");
}

#[test]
fn every_parameter_is_told_as_it_can_be_given() {
    for policy in registry::ALL {
        let config = complete(policy.name).unwrap();
        for (knob, value) in config.knobs(64) {
            let Some(value) = value else { continue };
            let (key, text) = (knob.key, value::show(&knob, value));
            assert!(!value::takes(&knob).is_empty());
            assert_eq!(told(&format!("{}:{key}={text}", policy.name), key), text);
        }
    }
}

#[test]
fn what_a_key_takes_is_its_unit_and_range() {
    let takes = |policy: &str, key: &str| {
        let knobs = complete(policy).unwrap().knobs(64);
        value::takes(&knobs.iter().find(|(knob, _)| knob.key == key).unwrap().0)
    };
    assert_eq!(takes("mqfq", "slots"), "auto or requests, 1 to 65536");
    assert_eq!(takes("mqfq", "threshold"), "bytes, 0 to 1T");
    assert_eq!(takes("d2fq", "hl"), "dynamic or static-1 to static-256");
    assert_eq!(takes("d2fq", "tau-l"), "bytes at weight 100, 64k to 1T");
    assert_eq!(takes("bfq", "sync-writes"), "true or false");
    assert_eq!(takes("mqfq", "cost"), "bytes, requests or device");
    assert_eq!(takes("bfq", "merge"), "on, off or bytes, 0 to 32M");
    assert_eq!(takes("cfq", "quantum"), "requests, 1 or more");
    assert_eq!(takes("cfq", "slice"), "a duration, 1ns to 60s");
}

#[test]
fn a_list_gives_each_key_to_the_policy_before_it() {
    let list =
        parse_list("none,mqfq:slots=64,threshold=64k,unthrottle=poll:1us,sfqd,mqfq-serial:slots=8")
            .unwrap();
    let names: Vec<_> = list.iter().map(|policy| policy.name.unwrap().name).collect();
    assert_eq!(names, ["none", "mqfq", "sfqd", "mqfq-serial"]);
    let mut mqfq = PolicyTable::of("mqfq", &[("slots", 64), ("threshold", 64 << 10)]);
    mqfq.retired.insert("unthrottle", 1_000);
    assert_eq!(list[1], mqfq);
    assert_eq!(list[3], PolicyTable::of("mqfq-serial", &[("slots", 8)]));
    assert_eq!(parse_list("sfqd,slots=4").unwrap(), ["sfqd:slots=4".parse().unwrap()]);
}

#[test]
fn all_are_all() {
    let refusal = complete("mqf").unwrap_err();
    let allowed = refusal.split("allowed: ").nth(1).unwrap().trim_end_matches(')');
    assert_eq!(allowed.split(", ").collect::<Vec<_>>(), *NAMES);
    let few = ["none", "mqfq", "d2fq", "cfq-na", "nass+flashfq", "kyber-fair"];
    assert!(few.iter().all(|name| NAMES.contains(name)) && NAMES.len() >= 18, "{NAMES:?}");
}

#[test]
fn refusals_name_the_key_and_the_cure() {
    let refusal = |text: &str| complete(text).unwrap_err();
    let start = "name: unknown value `mqf`; did you mean `mqfq`? (allowed: none, sfqd, mqfq, \
                 mqfq-serial, d2fq, ";
    assert!(refusal("mqf").starts_with(start), "{}", refusal("mqf"));
    let start = "policy: none takes no `slots` (it takes: no keys at all): leave it out; it is \
                 for sfqd, mqfq, mqfq-serial, cfq, cfq-na, ";
    assert!(refusal("none:slots=4").starts_with(start), "{}", refusal("none:slots=4"));
    assert_eq!(
        refusal("sfqd:T=4k"),
        "policy: sfqd takes no `threshold` (it takes: slots, merge, read-cost, write-cost, \
         least-cost, cost): leave it out; it is for mqfq, mqfq-serial, flashfq, nass+flashfq"
    );
    assert!(refusal("fiops:idle=1ms").contains("fiops takes no `idle` (it takes: slots, merge,"));
    assert!(refusal("mqfq:merge=on").contains("mqfq takes no `merge`"));
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
        "hl: `static-300` is not dynamic or static-1 to static-256"
    );
    assert_eq!(
        refusal("d2fq:hl=static-3,initial=4"),
        "policy: initial 4 is where a dynamic ratio begins, but hl is static-3: leave one out"
    );
    assert_eq!(
        refusal("mqfq:slots=0"),
        "policy: slots 0 is not in 1..65536: it is D: the most requests outstanding on the \
         device; auto finds the least that fills it"
    );
    assert_eq!(
        refusal("mqfq:least-cost=33M"),
        "policy: least-cost 33M is not in 1..32M: it is the least cost of any request, also of \
         one that the server refuses; 4k on a device that is limited by the number of requests"
    );
    assert_eq!(
        refusal("kyber-fair:busy=0"),
        "policy: busy 0 is not in 1..65536: it is the fewest requests on the device with which \
         tenants may be throttled; auto finds the least that fills it"
    );
    let merge = "policy: merge 33M is not in off..32M: ";
    assert!(refusal("cfq:merge=33M").starts_with(merge), "{}", refusal("cfq:merge=33M"));
    assert_eq!(refusal("cfq:merge=some"), "merge: `some` is not on, off or bytes, 0 to 32M");
    for unthrottle in ["never", "poll:0ns"] {
        assert_eq!(
            refusal(&format!("mqfq:unthrottle={unthrottle}")),
            format!("unthrottle: `{unthrottle}` is not wheel, poll or poll:1ns or more")
        );
    }
    assert_eq!(
        refusal("mqfq:slot-kind=tre"),
        "slot-kind: unknown value `tre`; did you mean `tree`? (allowed: tree, counter, bitmap)"
    );
    assert_eq!(refusal("mqfq:slots=many"), "slots: `many` is not auto or requests, 1 to 65536");
    assert_eq!(refusal("mqfq:D=4,slots=4"), "duplicate field `slots`");
    let start = "unknown key `threshhold`; did you mean `threshold`? (allowed: name, D, slots, \
                 merge, read-cost, write-cost, least-cost, cost, T, threshold, ";
    let typo = refusal("mqfq:threshhold=4k");
    assert!(typo.starts_with(start), "{typo}");
}

#[test]
fn a_policy_is_described_by_what_matters_most() {
    let describe = |text: &str| complete(text).unwrap().describe(64);
    assert_eq!(describe("none"), "none");
    assert_eq!(describe("mqfq"), "mqfq D=auto T=auto");
    assert_eq!(describe("mqfq:slots=64"), "mqfq D=64 T=auto");
    assert_eq!(describe("sfqd:D=8,merge=on"), "sfqd D=8 merge=256k");
    assert_eq!(describe("nass+flashfq"), "nass+flashfq D=64 T=1M");
    assert_eq!(describe("d2fq:strict-paper=false"), "d2fq tau-l=auto hl=dynamic");
    assert_eq!(describe("d2fq:tau-l=1M,hl=static-3"), "d2fq tau-l=1M hl=static-3");
    assert_eq!(describe("kyber"), "kyber read=2.00 ms write=10.0 ms");
    assert_eq!(describe("kyber-fair:busy=3"), "kyber-fair period=100 ms busy=3");
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

/// Retired keys: the value of the variant that a server runs is accepted with a warning. Any other
/// value is refused with a hint to the laboratory, which has the other variants.
#[test]
fn retired_keys_are_accepted_as_they_are_served() {
    let said = "mqfq:virtual-time=mindicator,slot-kind=tree,unthrottle=wheel";
    let table: PolicyTable = said.parse().unwrap();
    let warning = |key, policy| format!("policy {policy} ignores the key {key}: remove the key");
    let keys = ["slot-kind", "unthrottle", "virtual-time"];
    assert_eq!(table.warnings(), keys.map(|key| warning(key, "mqfq")));
    assert_eq!(complete(said), complete("mqfq"));
    let table: PolicyTable = "d2fq:tracker=sloppy,strict-paper=off".parse().unwrap();
    let keys = ["strict-paper", "tracker"];
    assert_eq!(table.warnings(), keys.map(|key| warning(key, "d2fq")));
    for (text, said, claims) in [
        ("mqfq:virtual-time=scan", "virtual-time scan of mqfq", "M-9"),
        ("mqfq:slot-kind=counter", "slot-kind counter of mqfq", "M-11"),
        ("mqfq:slot-kind=bitmap", "slot-kind bitmap of mqfq", "M-11"),
        ("mqfq:unthrottle=poll", "unthrottle poll:1us of mqfq", "M-10"),
        ("d2fq:tracker=scan", "tracker scan of d2fq", "D-17"),
        ("d2fq:strict-paper", "strict-paper true of d2fq", "D-7 D-8"),
    ] {
        let refusal = format!(
            "policy: a server has no {said}: remove the key; the laboratory compares this variant: \
             fairq lab run {claims}"
        );
        assert_eq!(complete(text), Err(refusal));
        let table: PolicyTable = text.parse().unwrap();
        assert!(table.warnings().is_empty());
        assert_eq!(table.complete_for_lab().unwrap().of_paper.len(), 1);
    }
    let refusal = complete("mqfq-serial:slot-kind=tree").unwrap_err();
    assert!(refusal.contains("mqfq-serial takes no `slot-kind`"), "{refusal}");
    assert!(refusal.ends_with("leave it out; it is for mqfq"), "{refusal}");
}
