//! `--policy NAME[:key=value,…]` and `[policy]`: how the device is shared.

use std::str::FromStr;

use fairq_core::CostModel;
use serde::{Deserialize, Deserializer, Serialize};

use super::serial::SerialKnobs;
use super::values::{Hl, Merge, SlotKind, Tracker, Unthrottle, VirtualTime};
use crate::pairs::{self, Pair};
use crate::refusal::Refusal;
use crate::units::{Factor, Nanos, Size, TextOrNumber};

/// The schedulers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PolicyName {
    /// First come, first served.
    None,
    /// SFQ(D).
    Sfqd,
    /// MQFQ.
    Mqfq,
    /// MQFQ behind one lock.
    MqfqSerial,
    /// D2FQ.
    D2fq,
    /// CFQ: slices of time.
    Cfq,
    /// CFQ without anticipation.
    CfqNa,
    /// BFQ: budgets of bytes.
    Bfq,
    /// BFQ without anticipation.
    BfqNa,
    /// FlashFQ.
    #[serde(rename = "flashfq")]
    FlashFq,
    /// FIOPS.
    Fiops,
    /// NASS around CFQ.
    #[serde(rename = "nass+cfq")]
    NassCfq,
    /// NASS around BFQ.
    #[serde(rename = "nass+bfq")]
    NassBfq,
    /// NASS around FlashFQ.
    #[serde(rename = "nass+flashfq")]
    NassFlashFq,
    /// NASS around FIOPS.
    #[serde(rename = "nass+fiops")]
    NassFiops,
    /// NASS around MQFQ on one queue.
    #[serde(rename = "nass+mqfq")]
    NassMqfq,
    /// Kyber.
    Kyber,
    /// Kyber-fairness.
    KyberFair,
}

impl PolicyName {
    /// The name as it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PolicyName::None => "none",
            PolicyName::Sfqd => "sfqd",
            PolicyName::Mqfq => "mqfq",
            PolicyName::MqfqSerial => "mqfq-serial",
            PolicyName::D2fq => "d2fq",
            PolicyName::Cfq => "cfq",
            PolicyName::CfqNa => "cfq-na",
            PolicyName::Bfq => "bfq",
            PolicyName::BfqNa => "bfq-na",
            PolicyName::FlashFq => "flashfq",
            PolicyName::Fiops => "fiops",
            PolicyName::NassCfq => "nass+cfq",
            PolicyName::NassBfq => "nass+bfq",
            PolicyName::NassFlashFq => "nass+flashfq",
            PolicyName::NassFiops => "nass+fiops",
            PolicyName::NassMqfq => "nass+mqfq",
            PolicyName::Kyber => "kyber",
            PolicyName::KyberFair => "kyber-fair",
        }
    }

    /// Whether NASS is around it.
    pub(crate) fn is_limited(self) -> bool {
        matches!(
            self,
            PolicyName::NassCfq
                | PolicyName::NassBfq
                | PolicyName::NassFlashFq
                | PolicyName::NassFiops
                | PolicyName::NassMqfq
        )
    }

    /// The keys that can be changed without another policy in its place.
    pub(crate) fn live_keys(self) -> &'static [&'static str] {
        match self {
            PolicyName::Mqfq | PolicyName::MqfqSerial => &["slots", "threshold"],
            PolicyName::None | PolicyName::D2fq | PolicyName::Kyber | PolicyName::KyberFair => &[],
            _ => &["slots"],
        }
    }

    /// Whether its T is not mqfq's.
    pub(crate) fn is_flashfq(self) -> bool {
        matches!(self, PolicyName::FlashFq | PolicyName::NassFlashFq)
    }

    /// The keys that mean something for it.
    pub(crate) fn keys(self) -> Vec<&'static str> {
        let limits: &[&str] = if self.is_limited() { NASS_KEYS } else { &[] };
        [self.own_keys(), limits].concat()
    }

    fn own_keys(self) -> &'static [&'static str] {
        match self {
            PolicyName::None => &[],
            PolicyName::Sfqd => &["slots", "merge", "read-cost", "write-cost"],
            PolicyName::MqfqSerial => &["slots", "threshold", "read-cost", "write-cost"],
            PolicyName::Cfq | PolicyName::NassCfq => &["slots", "merge", "slice", "target", "quantum", "idle"],
            PolicyName::CfqNa => &["slots", "merge", "slice", "target", "quantum"],
            PolicyName::Bfq | PolicyName::NassBfq => {
                &["slots", "merge", "budget", "timeout", "idle", "read-cost", "write-cost"]
            }
            PolicyName::BfqNa => &["slots", "merge", "budget", "timeout", "read-cost", "write-cost"],
            PolicyName::FlashFq | PolicyName::NassFlashFq => {
                &["slots", "merge", "threshold", "idle", "request-cost", "read-cost", "write-cost"]
            }
            PolicyName::Fiops | PolicyName::NassFiops | PolicyName::NassMqfq => {
                &["slots", "merge", "read-cost", "write-cost"]
            }
            PolicyName::Mqfq => {
                &["slots", "threshold", "virtual-time", "slot-kind", "unthrottle", "read-cost", "write-cost"]
            }
            PolicyName::D2fq => &[
                "tau-l",
                "tau-m",
                "tau-w",
                "grace",
                "period",
                "hl",
                "initial",
                "tracker",
                "strict-paper",
                "urgent",
                "read-cost",
                "write-cost",
            ],
            PolicyName::Kyber => &["merge", "read-target", "write-target", "read-depth", "write-depth"],
            PolicyName::KyberFair => &["merge", "period", "busy", "tokens", "read-cost", "write-cost"],
        }
    }
}

/// What NASS takes beside the keys of the scheduler inside.
const NASS_KEYS: &[&str] = &[
    "channels",
    "sub-request",
    "history",
    "decay",
    "reserve",
    "queue-length",
    "aggressiveness",
    "sequentiality",
    "idleness",
];

/// What only D2FQ takes; what is not said is left to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct D2fqKeys {
    /// From here on the low class, in bytes.
    pub(crate) tau_l: Option<u64>,
    /// From here on the medium class, in bytes.
    pub(crate) tau_m: Option<u64>,
    /// From here on unfair, in bytes.
    pub(crate) tau_w: Option<u64>,
    /// How long a flow may pause before it is idle.
    pub(crate) grace_ns: Option<u64>,
    /// Of the adjustment.
    pub(crate) period_ns: Option<u64>,
    /// The ratio.
    pub(crate) hl: Hl,
    /// The ratio before the first adjustment.
    pub(crate) initial: Option<u16>,
    /// How global virtual time is found.
    pub(crate) tracker: Tracker,
    /// Exactly what the paper says.
    pub(crate) strict_paper: bool,
    /// How much may be urgent, in percent.
    pub(crate) urgent_percent: u8,
}

/// The policy as it is written.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct PolicyTable {
    pub(crate) name: Option<PolicyName>,
    #[serde(alias = "D")]
    pub(crate) slots: Option<u32>,
    pub(crate) merge: Option<Merge>,
    #[serde(alias = "T")]
    pub(crate) threshold: Option<Size>,
    pub(crate) virtual_time: Option<VirtualTime>,
    pub(crate) slot_kind: Option<SlotKind>,
    pub(crate) unthrottle: Option<Unthrottle>,
    pub(crate) tau_l: Option<Size>,
    pub(crate) tau_m: Option<Size>,
    pub(crate) tau_w: Option<Size>,
    pub(crate) grace: Option<Nanos>,
    pub(crate) period: Option<Nanos>,
    pub(crate) hl: Option<Hl>,
    pub(crate) initial: Option<u16>,
    pub(crate) tracker: Option<Tracker>,
    pub(crate) strict_paper: Option<bool>,
    pub(crate) urgent: Option<Factor>,
    pub(crate) read_cost: Option<Factor>,
    pub(crate) write_cost: Option<Factor>,
    pub(crate) slice: Option<Nanos>,
    pub(crate) target: Option<Nanos>,
    pub(crate) quantum: Option<u32>,
    pub(crate) idle: Option<Nanos>,
    pub(crate) budget: Option<Size>,
    pub(crate) timeout: Option<Nanos>,
    pub(crate) request_cost: Option<Size>,
    pub(crate) channels: Option<u32>,
    pub(crate) sub_request: Option<Size>,
    pub(crate) history: Option<u32>,
    pub(crate) decay: Option<u32>,
    pub(crate) reserve: Option<u32>,
    pub(crate) queue_length: Option<u32>,
    pub(crate) aggressiveness: Option<bool>,
    pub(crate) sequentiality: Option<bool>,
    pub(crate) idleness: Option<bool>,
    pub(crate) read_target: Option<Nanos>,
    pub(crate) write_target: Option<Nanos>,
    pub(crate) read_depth: Option<u32>,
    pub(crate) write_depth: Option<u32>,
    pub(crate) busy: Option<u32>,
    pub(crate) tokens: Option<Size>,
}

/// The policy, complete but for what depends on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PolicyConfig {
    /// Which.
    pub(crate) name: PolicyName,
    /// D: the most requests outstanding on the device; if not said, the device's own parallelism decides.
    pub(crate) slots: Option<u32>,
    /// For those that stage, but mqfq: the most bytes that are merged to one command.
    pub(crate) merge_bytes: u32,
    /// T: how far a flow may run ahead of virtual time, in bytes.
    pub(crate) threshold: Option<u64>,
    /// For mqfq.
    pub(crate) virtual_time: VirtualTime,
    /// For mqfq.
    pub(crate) slot_kind: SlotKind,
    /// For mqfq.
    pub(crate) unthrottle: Unthrottle,
    /// For d2fq.
    pub(crate) d2fq: D2fqKeys,
    /// What a request costs.
    pub(crate) cost: CostModel,
    /// For the schedulers behind one lock.
    pub(crate) serial: SerialKnobs,
    /// For kyber: the latencies that reads and writes should have, in nanoseconds.
    pub(crate) targets: [Option<u64>; 2],
    /// For kyber: the most reads and writes on the device.
    pub(crate) depths: [Option<u32>; 2],
    /// For kyber-fair: the longest period, in nanoseconds.
    pub(crate) period_ns: Option<u64>,
    /// For kyber-fair: the fewest requests outstanding that keep the device busy; if not said, half of what it takes.
    pub(crate) busy: Option<u32>,
    /// For kyber-fair: how many tokens a period has, in bytes; if not said, they follow the rate of service.
    pub(crate) tokens: Option<u64>,
    /// For kyber-fair: whether writes cost what is measured, since nobody says what they cost.
    pub(crate) measured_writes: bool,
}

impl PolicyConfig {
    /// How long a flow's next request is waited for.
    pub(crate) fn idle_ns(&self) -> u64 {
        let SerialKnobs { cfq, bfq, flashfq, .. } = &self.serial;
        match self.name {
            PolicyName::Cfq | PolicyName::NassCfq => cfq.idle_ns,
            PolicyName::Bfq | PolicyName::NassBfq => bfq.idle_ns,
            _ => flashfq.idle_ns,
        }
    }
}

impl FromStr for PolicyTable {
    type Err = String;

    fn from_str(text: &str) -> Result<PolicyTable, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut list = vec![Pair::new("name", name.trim())];
        list.extend(pairs::pairs(&pairs::items(rest)));
        pairs::read(list)
    }
}

/// Every policy, with the knobs that it has by default.
pub(crate) const ALL: &str = "none,sfqd,mqfq,mqfq-serial,d2fq,cfq,cfq-na,bfq,bfq-na,flashfq,fiops,nass+cfq,nass+bfq,\
                              nass+flashfq,nass+fiops,nass+mqfq,kyber,kyber-fair";

/// Several policies in one list, `none,mqfq:slots=64,threshold=64k,sfqd`: what has no name before it belongs
/// to the policy before it.
pub(crate) fn parse_list(text: &str) -> Result<Vec<PolicyTable>, String> {
    let mut policies: Vec<String> = Vec::new();
    for item in pairs::items(text).into_iter().filter(|item| !item.trim().is_empty()) {
        let is_key = item.find('=').is_some_and(|equals| !item[..equals].contains(':'));
        match policies.last_mut() {
            Some(policy) if is_key => {
                policy.push(if policy.contains(':') { ',' } else { ':' });
                policy.push_str(&item);
            }
            _ => policies.push(item),
        }
    }
    policies.iter().map(|policy| policy.parse()).collect()
}

impl PolicyTable {
    /// What `flags` says wins. Another name is another policy: then nothing of this one remains.
    pub(crate) fn overlaid(self, flags: PolicyTable) -> PolicyTable {
        if flags.name.is_some() && flags.name != self.name {
            return flags;
        }
        PolicyTable {
            name: self.name,
            slots: flags.slots.or(self.slots),
            merge: flags.merge.or(self.merge),
            threshold: flags.threshold.or(self.threshold),
            virtual_time: flags.virtual_time.or(self.virtual_time),
            slot_kind: flags.slot_kind.or(self.slot_kind),
            unthrottle: flags.unthrottle.or(self.unthrottle),
            tau_l: flags.tau_l.or(self.tau_l),
            tau_m: flags.tau_m.or(self.tau_m),
            tau_w: flags.tau_w.or(self.tau_w),
            grace: flags.grace.or(self.grace),
            period: flags.period.or(self.period),
            hl: flags.hl.or(self.hl),
            initial: flags.initial.or(self.initial),
            tracker: flags.tracker.or(self.tracker),
            strict_paper: flags.strict_paper.or(self.strict_paper),
            urgent: flags.urgent.or(self.urgent),
            read_cost: flags.read_cost.or(self.read_cost),
            write_cost: flags.write_cost.or(self.write_cost),
            slice: flags.slice.or(self.slice),
            target: flags.target.or(self.target),
            quantum: flags.quantum.or(self.quantum),
            idle: flags.idle.or(self.idle),
            budget: flags.budget.or(self.budget),
            timeout: flags.timeout.or(self.timeout),
            request_cost: flags.request_cost.or(self.request_cost),
            channels: flags.channels.or(self.channels),
            sub_request: flags.sub_request.or(self.sub_request),
            history: flags.history.or(self.history),
            decay: flags.decay.or(self.decay),
            reserve: flags.reserve.or(self.reserve),
            queue_length: flags.queue_length.or(self.queue_length),
            aggressiveness: flags.aggressiveness.or(self.aggressiveness),
            sequentiality: flags.sequentiality.or(self.sequentiality),
            idleness: flags.idleness.or(self.idleness),
            read_target: flags.read_target.or(self.read_target),
            write_target: flags.write_target.or(self.write_target),
            read_depth: flags.read_depth.or(self.read_depth),
            write_depth: flags.write_depth.or(self.write_depth),
            busy: flags.busy.or(self.busy),
            tokens: flags.tokens.or(self.tokens),
        }
    }

    /// Fills in what is not said and refuses what makes no sense.
    pub(crate) fn complete(self) -> Result<PolicyConfig, Refusal> {
        let name = self.name.unwrap_or(PolicyName::Mqfq);
        self.refuse_foreign_keys(name)?;
        if let Some(slots) = self.slots
            && !(1..=65_536).contains(&slots)
        {
            return Err(Refusal::new(format!(
                "policy: slots {slots} is not in 1..65536: it is how many requests the device may hold at once; \
                 `fairq calibrate` finds it"
            )));
        }
        if let Some(busy) = self.busy
            && !(1..=65_536).contains(&busy)
        {
            return Err(Refusal::new(format!(
                "policy: busy {busy} is not in 1..65536: it is how many requests the device must hold at least before \
                 anybody is throttled"
            )));
        }
        let percent = |factor: Option<Factor>, default: u32| factor.map_or(default, |Factor(hundredths)| hundredths);
        let cost = CostModel::default();
        Ok(PolicyConfig {
            serial: SerialKnobs::new(name, &self),
            name,
            slots: self.slots,
            merge_bytes: self.merge.map_or(0, |Merge(bytes)| bytes),
            threshold: self.threshold.map(|Size(bytes)| bytes),
            virtual_time: self.virtual_time.unwrap_or_default(),
            slot_kind: self.slot_kind.unwrap_or_default(),
            unthrottle: self.unthrottle.unwrap_or_default(),
            d2fq: self.d2fq_keys()?,
            cost: CostModel {
                read_percent: percent(self.read_cost, cost.read_percent),
                write_percent: percent(self.write_cost, cost.write_percent),
                ..cost
            },
            targets: [self.read_target, self.write_target].map(|target| target.map(|Nanos(ns)| ns)),
            depths: [self.read_depth, self.write_depth],
            period_ns: self.period.map(|Nanos(ns)| ns),
            busy: self.busy,
            tokens: self.tokens.map(|Size(bytes)| bytes),
            measured_writes: self.write_cost.is_none(),
        })
    }

    fn d2fq_keys(&self) -> Result<D2fqKeys, Refusal> {
        let hl = self.hl.unwrap_or_default();
        if let (Hl::Static(ratio), Some(initial)) = (hl, self.initial) {
            return Err(Refusal::new(format!(
                "policy: initial {initial} is where a dynamic ratio begins, but hl is static-{ratio}: leave one out"
            )));
        }
        let bytes = |size: Option<Size>| size.map(|Size(bytes)| bytes);
        let ns = |duration: Option<Nanos>| duration.map(|Nanos(ns)| ns);
        Ok(D2fqKeys {
            tau_l: bytes(self.tau_l),
            tau_m: bytes(self.tau_m),
            tau_w: bytes(self.tau_w),
            grace_ns: ns(self.grace),
            period_ns: ns(self.period),
            hl,
            initial: self.initial,
            tracker: self.tracker.unwrap_or_default(),
            strict_paper: self.strict_paper.unwrap_or(false),
            urgent_percent: self.urgent.map_or(0, |Factor(percent)| u8::try_from(percent).unwrap_or(u8::MAX)),
        })
    }

    fn refuse_foreign_keys(&self, name: PolicyName) -> Result<(), Refusal> {
        let given = [
            ("slots", self.slots.is_some()),
            ("merge", self.merge.is_some()),
            ("threshold", self.threshold.is_some()),
            ("virtual-time", self.virtual_time.is_some()),
            ("slot-kind", self.slot_kind.is_some()),
            ("unthrottle", self.unthrottle.is_some()),
            ("tau-l", self.tau_l.is_some()),
            ("tau-m", self.tau_m.is_some()),
            ("tau-w", self.tau_w.is_some()),
            ("grace", self.grace.is_some()),
            ("period", self.period.is_some()),
            ("hl", self.hl.is_some()),
            ("initial", self.initial.is_some()),
            ("tracker", self.tracker.is_some()),
            ("strict-paper", self.strict_paper.is_some()),
            ("urgent", self.urgent.is_some()),
            ("read-cost", self.read_cost.is_some()),
            ("write-cost", self.write_cost.is_some()),
            ("slice", self.slice.is_some()),
            ("target", self.target.is_some()),
            ("quantum", self.quantum.is_some()),
            ("idle", self.idle.is_some()),
            ("budget", self.budget.is_some()),
            ("timeout", self.timeout.is_some()),
            ("request-cost", self.request_cost.is_some()),
            ("channels", self.channels.is_some()),
            ("sub-request", self.sub_request.is_some()),
            ("history", self.history.is_some()),
            ("decay", self.decay.is_some()),
            ("reserve", self.reserve.is_some()),
            ("queue-length", self.queue_length.is_some()),
            ("aggressiveness", self.aggressiveness.is_some()),
            ("sequentiality", self.sequentiality.is_some()),
            ("idleness", self.idleness.is_some()),
            ("read-target", self.read_target.is_some()),
            ("write-target", self.write_target.is_some()),
            ("read-depth", self.read_depth.is_some()),
            ("write-depth", self.write_depth.is_some()),
            ("busy", self.busy.is_some()),
            ("tokens", self.tokens.is_some()),
        ];
        let foreign = |&&(key, is_given): &&(&str, bool)| is_given && !name.keys().contains(&key);
        let Some((key, _)) = given.iter().find(foreign) else { return Ok(()) };
        let takes = if name.keys().is_empty() { "no keys at all".into() } else { name.keys().join(", ") };
        Err(Refusal::new(format!(
            "policy: {} takes no `{key}` (it takes: {takes}): leave it out, or use {}",
            name.name(),
            if PolicyName::Mqfq.keys().contains(key) { "mqfq" } else { "d2fq" },
        )))
    }
}

/// A weight, 1 to 10000.
pub(crate) fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<fairq_core::Weight>, D::Error> {
    let text = TextOrNumber { expecting: "a weight from 1 to 10000", parse: parse_weight };
    deserializer.deserialize_any(text).map(Some)
}

/// See [`weight`].
pub(crate) fn parse_weight(text: &str) -> Result<fairq_core::Weight, String> {
    let weight = text.parse().ok().and_then(fairq_core::Weight::new);
    weight.ok_or_else(|| format!("`{text}` is not a weight: write a whole number from 1 to 10000 (100 is the usual)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::values::MERGE_BYTES;
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
            "mqfq:D=64,T=256k,virtual-time=scan,slot-kind=bitmap,unthrottle=poll:2us,read-cost=1.5,write-cost=300%",
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
            cost: CostModel { read_percent: 150, write_percent: 300, ..CostModel::default() },
            serial: complete("mqfq:T=256k").unwrap().serial,
            targets: [None; 2],
            depths: [None; 2],
            period_ns: None,
            busy: None,
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
        let kyber = complete("kyber:read-target=500us,write-target=5ms,read-depth=9,write-depth=8").unwrap();
        assert_eq!((kyber.targets, kyber.depths), ([Some(500_000), Some(5_000_000)], [Some(9), Some(8)]));
        let fair = complete("kyber-fair:period=20ms,busy=8,tokens=1M").unwrap();
        assert_eq!((fair.period_ns, fair.busy, fair.measured_writes), (Some(20_000_000), Some(8), true));
        assert_eq!(fair.tokens, Some(1 << 20));
        assert!(!complete("kyber-fair:write-cost=2").unwrap().measured_writes);
    }

    #[test]
    fn the_keys_of_the_serial_schedulers_are_read() {
        let knobs = |text: &str| complete(text).unwrap().serial;
        assert_eq!(knobs("cfq"), SerialKnobs::default());
        let cfq = knobs("cfq:slice=20ms,target=60ms,quantum=4,idle=1ms").cfq;
        let expected = CfqConfig { slice_ns: 20_000_000, target_ns: 60_000_000, quantum: 4, idle_ns: 1_000_000 };
        assert_eq!((cfq, knobs("cfq-na").cfq.idle_ns), (expected, 0));
        let bfq = knobs("bfq:budget=1M,timeout=10ms,idle=2ms").bfq;
        let usual = BfqConfig::default();
        let expected = BfqConfig { budget_bytes: 1 << 20, timeout_ns: 10_000_000, idle_ns: 2_000_000, ..usual };
        assert_eq!((bfq, knobs("bfq-na").bfq.idle_ns), (expected, 0));
        let flashfq = knobs("flashfq:T=64k,idle=1ms,request-cost=8k").flashfq;
        let expected = FlashFqConfig { threshold_bytes: 65_536, idle_ns: 1_000_000, request_bytes: 8192 };
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
        assert_eq!((limited.nass, limited.bfq.idle_ns), (expected, 3_000_000));
        for name in ["nass+cfq", "nass+bfq", "nass+flashfq", "nass+fiops", "nass+mqfq"] {
            let SerialKnobs { cfq, bfq, flashfq, .. } = knobs(name);
            assert_eq!([cfq.idle_ns, bfq.idle_ns, flashfq.idle_ns], [0; 3], "NASS keeps room instead of waiting");
            assert_eq!(complete(name).unwrap().name.name(), name);
        }
        assert_eq!(knobs("nass+mqfq:reserve=3").nass, NassConfig { reserve: 3, ..NassConfig::nvme() });
        let refused = complete("fiops:idle=1ms").unwrap_err();
        assert!(refused.contains("fiops takes no `idle` (it takes: slots, merge, read-cost, write-cost)"), "{refused}");
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
        let list = parse_list("none,mqfq:slots=64,threshold=64k,unthrottle=poll:1us,sfqd,mqfq-serial:slots=8").unwrap();
        let names: Vec<_> = list.iter().map(|policy| policy.name.unwrap().name()).collect();
        assert_eq!(names, ["none", "mqfq", "sfqd", "mqfq-serial"]);
        assert_eq!(list[1].threshold, Some(Size(64 << 10)));
        assert_eq!(list[1].unthrottle, Some(Unthrottle::Poll(1_000)));
        assert_eq!(list[3].slots, Some(8));
        assert_eq!(parse_list("sfqd,slots=4").unwrap(), ["sfqd:slots=4".parse().unwrap()]);
    }

    #[test]
    fn all_are_all() {
        let names: Vec<_> = parse_list(ALL).unwrap().iter().map(|policy| policy.name.unwrap().name()).collect();
        let refusal = complete("mqf").unwrap_err();
        let allowed = refusal.split("allowed: ").nth(1).unwrap().trim_end_matches(')');
        let mut allowed: Vec<_> = allowed.split(", ").collect();
        let mut names = names;
        allowed.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, allowed);
    }

    #[test]
    fn refusals_name_the_key_and_the_cure() {
        let refusal = |text: &str| complete(text).unwrap_err();
        assert_eq!(
            refusal("mqf"),
            "name: unknown value `mqf`; did you mean `mqfq`? (allowed: none, sfqd, mqfq, mqfq-serial, d2fq, cfq, cfq-na, bfq, \
             bfq-na, flashfq, fiops, nass+cfq, nass+bfq, nass+flashfq, nass+fiops, nass+mqfq, kyber, kyber-fair)"
        );
        assert_eq!(
            refusal("none:slots=4"),
            "policy: none takes no `slots` (it takes: no keys at all): leave it out, or use mqfq"
        );
        assert_eq!(
            refusal("sfqd:T=4k"),
            "policy: sfqd takes no `threshold` (it takes: slots, merge, read-cost, write-cost): leave it out, or use mqfq"
        );
        assert!(refusal("d2fq:slots=4").starts_with("policy: d2fq takes no `slots` (it takes: tau-l, tau-m,"));
        assert_eq!(
            refusal("none:hl=static-3"),
            "policy: none takes no `hl` (it takes: no keys at all): leave it out, or use d2fq"
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
            refusal("kyber-fair:busy=0"),
            "policy: busy 0 is not in 1..65536: it is how many requests the device must hold at least before anybody is \
             throttled"
        );
        assert_eq!(
            refusal("mqfq:unthrottle=never"),
            "unthrottle: `never` is neither wheel nor poll:DURATION, as in poll:1us"
        );
        assert_eq!(
            refusal("mqfq:threshhold=4k"),
            "unknown key `threshhold`; did you mean `threshold`? (allowed: name, D, slots, merge, T, threshold, virtual-time, \
             slot-kind, unthrottle, tau-l, tau-m, tau-w, grace, period, hl, initial, tracker, strict-paper, urgent, \
             read-cost, write-cost, slice, target, quantum, idle, budget, timeout, request-cost, channels, sub-request, \
             history, decay, reserve, queue-length, aggressiveness, sequentiality, idleness, read-target, \
             write-target, read-depth, write-depth, busy, tokens)"
        );
        assert_eq!(
            parse_weight("0").unwrap_err(),
            "`0` is not a weight: write a whole number from 1 to 10000 (100 is the usual)"
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
}
