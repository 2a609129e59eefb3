//! Which policies there are, and which keys mean something for each.

use serde::{Deserialize, Serialize};

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
    /// All of them.
    pub(crate) const ALL: [PolicyName; 18] = [
        PolicyName::None,
        PolicyName::Sfqd,
        PolicyName::Mqfq,
        PolicyName::MqfqSerial,
        PolicyName::D2fq,
        PolicyName::Cfq,
        PolicyName::CfqNa,
        PolicyName::Bfq,
        PolicyName::BfqNa,
        PolicyName::FlashFq,
        PolicyName::Fiops,
        PolicyName::NassCfq,
        PolicyName::NassBfq,
        PolicyName::NassFlashFq,
        PolicyName::NassFiops,
        PolicyName::NassMqfq,
        PolicyName::Kyber,
        PolicyName::KyberFair,
    ];

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
            PolicyName::Sfqd => &["slots", "merge", "read-cost", "write-cost", "least-cost"],
            PolicyName::MqfqSerial => {
                &["slots", "threshold", "read-cost", "write-cost", "least-cost"]
            }
            PolicyName::Cfq | PolicyName::NassCfq => {
                &["slots", "merge", "slice", "target", "quantum", "idle"]
            }
            PolicyName::CfqNa => &["slots", "merge", "slice", "target", "quantum"],
            PolicyName::Bfq | PolicyName::NassBfq => &[
                "slots",
                "merge",
                "budget",
                "timeout",
                "idle",
                "wait-for-equals",
                "sync-writes",
                "read-cost",
                "write-cost",
                "least-cost",
            ],
            PolicyName::BfqNa => {
                &["slots", "merge", "budget", "timeout", "read-cost", "write-cost", "least-cost"]
            }
            PolicyName::FlashFq | PolicyName::NassFlashFq => &[
                "slots",
                "merge",
                "threshold",
                "idle",
                "request-cost",
                "read-cost",
                "write-cost",
                "least-cost",
            ],
            PolicyName::Fiops | PolicyName::NassFiops | PolicyName::NassMqfq => {
                &["slots", "merge", "read-cost", "write-cost", "least-cost"]
            }
            PolicyName::Mqfq => &[
                "slots",
                "threshold",
                "virtual-time",
                "slot-kind",
                "unthrottle",
                "read-cost",
                "write-cost",
                "least-cost",
            ],
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
                "least-cost",
            ],
            PolicyName::Kyber => &[
                "merge",
                "read-target",
                "write-target",
                "discard-target",
                "read-depth",
                "write-depth",
                "discard-depth",
                "other-depth",
            ],
            PolicyName::KyberFair => &[
                "merge",
                "period",
                "busy",
                "patience",
                "tokens",
                "read-cost",
                "write-cost",
                "least-cost",
            ],
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
