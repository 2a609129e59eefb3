//! Values of a policy's keys that are not plain numbers, as they are written.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::{Nanos, Size, TextOrNumber};

/// How MQFQ finds its virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum VirtualTime {
    /// The tree of minima.
    #[default]
    Mindicator,
    /// A scan of one array.
    Scan,
}

/// How MQFQ hands out dispatch slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SlotKind {
    /// The token tree.
    #[default]
    Tree,
    /// One counter.
    Counter,
    /// A scalable bitmap.
    Bitmap,
}

/// How MQFQ wakes throttled ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Unthrottle {
    /// The timer wheel.
    #[default]
    Wheel,
    /// Looking again after so many nanoseconds.
    Poll(u64),
}

impl FromStr for Unthrottle {
    type Err = String;

    fn from_str(text: &str) -> Result<Unthrottle, String> {
        match text.split_once(':') {
            None if text == "wheel" => Ok(Unthrottle::Wheel),
            None if text == "poll" => Ok(Unthrottle::Poll(1_000)),
            Some(("poll", period)) => match period.parse()? {
                Nanos(0) => Err("a poll every 0 ns would never end: write poll:1us, say".into()),
                Nanos(ns) => Ok(Unthrottle::Poll(ns)),
            },
            _ => Err(format!("`{text}` is neither wheel nor poll:DURATION, as in poll:1us")),
        }
    }
}

impl Serialize for Unthrottle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Unthrottle::Wheel => serializer.serialize_str("wheel"),
            Unthrottle::Poll(ns) => serializer.collect_str(&format_args!("poll:{}", Nanos(*ns))),
        }
    }
}

impl<'de> Deserialize<'de> for Unthrottle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unthrottle, D::Error> {
        let text = TextOrNumber { expecting: "\"wheel\" or \"poll:1us\"", parse: str::parse };
        deserializer.deserialize_str(text)
    }
}

/// The most bytes of requests that are merged to one command; 0 merges none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Merge(pub(crate) u32);

/// What `merge=on` means: as much as the server gives the scheduler in one piece.
pub(crate) const MERGE_BYTES: u32 = 256 << 10;

impl FromStr for Merge {
    type Err = String;

    fn from_str(text: &str) -> Result<Merge, String> {
        let size = |text: &str| {
            text.parse().ok().map(|Size(bytes)| bytes).filter(|&bytes| bytes <= 32 << 20)
        };
        match text {
            "on" => Ok(Merge(MERGE_BYTES)),
            "off" => Ok(Merge(0)),
            _ => size(text).map(|bytes| Merge(bytes as u32)).ok_or_else(|| {
                format!("`{text}` is neither on nor off nor a size of at most 32M, as in 256k")
            }),
        }
    }
}

impl Serialize for Merge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => serializer.serialize_str("off"),
            bytes => Size(bytes.into()).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merge, D::Error> {
        let text = TextOrNumber {
            expecting: "\"on\", \"off\" or a size such as \"256k\"",
            parse: str::parse,
        };
        deserializer.deserialize_any(text)
    }
}

/// The ratio of D2FQ's high class to its low one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Hl {
    /// Adjusted once a period.
    #[default]
    Dynamic,
    /// Always this.
    Static(u16),
}

impl FromStr for Hl {
    type Err = String;

    fn from_str(text: &str) -> Result<Hl, String> {
        let ratio = text.strip_prefix("static-").and_then(|ratio| ratio.parse().ok());
        match ratio.filter(|ratio| (1..=256).contains(ratio)) {
            Some(ratio) => Ok(Hl::Static(ratio)),
            None if text == "dynamic" => Ok(Hl::Dynamic),
            None => Err(format!(
                "`{text}` is neither dynamic nor static-N with N from 1 to 256, as in static-3"
            )),
        }
    }
}

impl Serialize for Hl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Hl::Dynamic => serializer.serialize_str("dynamic"),
            Hl::Static(ratio) => serializer.collect_str(&format_args!("static-{ratio}")),
        }
    }
}

impl<'de> Deserialize<'de> for Hl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hl, D::Error> {
        deserializer.deserialize_str(TextOrNumber {
            expecting: "\"dynamic\" or \"static-3\"",
            parse: str::parse,
        })
    }
}

/// How D2FQ finds its global virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tracker {
    /// One word with a holder.
    #[default]
    Sloppy,
    /// A look at every flow.
    Scan,
    /// The tree of minima.
    Mindicator,
}
