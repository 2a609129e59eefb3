//! Quantities of a profile. Each checks its own range when it is read, so that an error points at
//! its line.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time, written in microseconds, up to 10 s; kept in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Micros {
    ns: u64,
}

impl Micros {
    /// The time in nanoseconds.
    pub const fn ns(self) -> u64 {
        self.ns
    }

    /// A time from nanoseconds; a value beyond the range becomes the end of the range.
    pub fn from_ns(ns: u64) -> Micros {
        Micros { ns: ns.min(10_000_000_000) }
    }
}

impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let us = f64::deserialize(deserializer)?;
        // Negated, so that NaN is refused too: it is in no range.
        if !(0.0..=1e7).contains(&us) {
            return Err(D::Error::invalid_value(
                Unexpected::Float(us),
                &"microseconds, 0 to 10000000",
            ));
        }
        Ok(Micros { ns: (us * 1e3).round() as u64 })
    }
}

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.ns as f64 / 1e3)
    }
}

/// A bandwidth, written in MB/s (10^6 bytes a second), 1 to 1000000.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct MbPerS(f64);

impl MbPerS {
    /// A bandwidth from 10^6 bytes a second; a value beyond the range becomes the end of the range.
    pub fn new(mb_per_s: f64) -> MbPerS {
        // NaN becomes the least value too.
        MbPerS(if mb_per_s >= 1.0 { mb_per_s.min(1e6) } else { 1.0 })
    }

    /// 10^6 bytes a second.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// The time that a MiB takes, in nanoseconds.
    pub fn ns_per_mib(self) -> u64 {
        (1_048_576_000.0 / self.0).round().max(1.0) as u64
    }
}

impl<'de> Deserialize<'de> for MbPerS {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mb_per_s = f64::deserialize(deserializer)?;
        if !(1.0..=1e6).contains(&mb_per_s) {
            return Err(D::Error::invalid_value(
                Unexpected::Float(mb_per_s),
                &"MB/s, 1 to 1000000",
            ));
        }
        Ok(MbPerS(mb_per_s))
    }
}

impl Serialize for MbPerS {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(transparent)]
pub struct Count<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Count<MIN, MAX> {
    /// A value beyond the range becomes the end of the range.
    pub fn new(count: u32) -> Self {
        Count(count.clamp(MIN, MAX))
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Count<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = u64::deserialize(deserializer)?;
        if !(u64::from(MIN)..=u64::from(MAX)).contains(&count) {
            let expected = format!("a whole number, {MIN} to {MAX}");
            return Err(D::Error::invalid_value(Unexpected::Unsigned(count), &expected.as_str()));
        }
        Ok(Count(count as u32))
    }
}

/// Spare space as a fraction of the host's capacity, 0.02 to 10.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Serialize)]
#[serde(transparent)]
pub struct Spare(f64);

impl Spare {
    /// A value beyond the range becomes the end of the range.
    pub fn new(spare: f64) -> Spare {
        Spare(if spare >= 0.02 { spare.min(10.0) } else { 0.02 })
    }

    /// The fraction.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Spare {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spare = f64::deserialize(deserializer)?;
        if !(0.02..=10.0).contains(&spare) {
            return Err(D::Error::invalid_value(
                Unexpected::Float(spare),
                &"a fraction, 0.02 to 10",
            ));
        }
        Ok(Spare(spare))
    }
}
