//! A policy as it is written, in a table or as `NAME:key=value,…`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::name::PolicyName;
use super::values::{Hl, Merge, SlotKind, Tracker, Unthrottle, VirtualTime};
use crate::config::keys;
use crate::pairs::{self, Pair};
use crate::units::{Factor, Nanos, Size};

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
    pub(crate) least_cost: Option<Size>,
    pub(crate) slice: Option<Nanos>,
    pub(crate) target: Option<Nanos>,
    pub(crate) quantum: Option<u32>,
    pub(crate) idle: Option<Nanos>,
    pub(crate) budget: Option<Size>,
    pub(crate) timeout: Option<Nanos>,
    pub(crate) wait_for_equals: Option<bool>,
    pub(crate) sync_writes: Option<bool>,
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
    pub(crate) discard_target: Option<Nanos>,
    pub(crate) read_depth: Option<u32>,
    pub(crate) write_depth: Option<u32>,
    pub(crate) discard_depth: Option<u32>,
    pub(crate) other_depth: Option<u32>,
    pub(crate) busy: Option<u32>,
    pub(crate) patience: Option<u32>,
    pub(crate) tokens: Option<Size>,
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

/// Several policies in one list, `none,mqfq:slots=64,threshold=64k,sfqd`: what has no name before
/// it belongs to the policy before it.
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
        keys::overlay(&self, &flags)
    }
}
