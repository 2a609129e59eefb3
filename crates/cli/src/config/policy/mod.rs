//! `--policy NAME[:key=value,…]` and `[policy]`: how the device is shared.

use fairq_core::CostModel;

use super::keys;
use crate::refusal::Refusal;
use crate::units::{Factor, Nanos, Size};

pub(crate) mod name;
pub(crate) mod serial;
pub(crate) mod table;
pub(crate) mod values;

use name::PolicyName;
use serial::SerialKnobs;
use table::PolicyTable;
use values::{Hl, Merge, SlotKind, Tracker, Unthrottle, VirtualTime};

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

/// The policy, complete but for what depends on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PolicyConfig {
    /// Which.
    pub(crate) name: PolicyName,
    /// D: the most requests outstanding on the device; if not said, the device's own parallelism
    /// decides.
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
    /// For kyber: the latencies that reads, writes and discards should have, in nanoseconds.
    pub(crate) targets: [Option<u64>; 3],
    /// For kyber: the most reads, writes, discards and others on the device.
    pub(crate) depths: [Option<u32>; 4],
    /// For kyber-fair: the longest period, in nanoseconds.
    pub(crate) period_ns: Option<u64>,
    /// For kyber-fair: the fewest requests outstanding that keep the device busy; if not said, half
    /// of what it takes.
    pub(crate) busy: Option<u32>,
    /// For kyber-fair: that the device has less is borne for one part in so many of a period; 0:
    /// not at all. If not said, its own default.
    pub(crate) patience: Option<u32>,
    /// For kyber-fair: how many tokens a period has, in bytes; if not said, they follow the rate of
    /// service.
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

/// The highest least cost, in bytes: the longest request.
const MOST_OF_LEAST_COST: u64 = 32 << 20;

impl PolicyTable {
    /// Fills in what is not said and refuses what makes no sense.
    pub(crate) fn complete(self) -> Result<PolicyConfig, Refusal> {
        let name = self.name.unwrap_or(PolicyName::Mqfq);
        self.refuse_foreign_keys(name)?;
        if let Some(slots) = self.slots
            && !(1..=65_536).contains(&slots)
        {
            return Err(Refusal::new(format!(
                "policy: slots {slots} is not in 1..65536: it is how many requests the device may \
                 hold at once; \
                 `fairq calibrate` finds it"
            )));
        }
        if let Some(busy) = self.busy
            && !(1..=65_536).contains(&busy)
        {
            return Err(Refusal::new(format!(
                "policy: busy {busy} is not in 1..65536: it is how many requests the device must \
                 hold at least before \
                 anybody is throttled"
            )));
        }
        if let Some(Size(least)) = self.least_cost
            && !(1..=MOST_OF_LEAST_COST).contains(&least)
        {
            return Err(Refusal::new(format!(
                "policy: least-cost {least} is not in 1..32M: it is what any request costs at \
                 least, in bytes; where requests are what the device is short of, 4k"
            )));
        }
        let percent = |factor: Option<Factor>, default: u32| {
            factor.map_or(default, |Factor(hundredths)| hundredths)
        };
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
                min_bytes: self.least_cost.map_or(cost.min_bytes, |Size(bytes)| bytes as u32),
                ..cost
            },
            targets: [self.read_target, self.write_target, self.discard_target]
                .map(|target| target.map(|Nanos(ns)| ns)),
            depths: [self.read_depth, self.write_depth, self.discard_depth, self.other_depth],
            period_ns: self.period.map(|Nanos(ns)| ns),
            busy: self.busy,
            patience: self.patience,
            tokens: self.tokens.map(|Size(bytes)| bytes),
            measured_writes: self.write_cost.is_none(),
        })
    }

    fn d2fq_keys(&self) -> Result<D2fqKeys, Refusal> {
        let hl = self.hl.unwrap_or_default();
        if let (Hl::Static(ratio), Some(initial)) = (hl, self.initial) {
            return Err(Refusal::new(format!(
                "policy: initial {initial} is where a dynamic ratio begins, but hl is \
                 static-{ratio}: leave one out"
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
            urgent_percent: self
                .urgent
                .map_or(0, |Factor(percent)| u8::try_from(percent).unwrap_or(u8::MAX)),
        })
    }

    fn refuse_foreign_keys(&self, name: PolicyName) -> Result<(), Refusal> {
        let keys = name.keys();
        let Some(key) = keys::foreign(self, "name", &keys) else { return Ok(()) };
        let takes = if keys.is_empty() { "no keys at all".into() } else { keys.join(", ") };
        let others: Vec<_> = PolicyName::ALL
            .into_iter()
            .filter(|other| other.keys().contains(&key.as_str()))
            .collect();
        Err(Refusal::new(format!(
            "policy: {} takes no `{key}` (it takes: {takes}): leave it out; it is for {}",
            name.name(),
            others.iter().map(|other| other.name()).collect::<Vec<_>>().join(", "),
        )))
    }
}

#[cfg(test)]
mod tests;
