//! The caps of a tenant: `max-iops`, `max-bandwidth`, their variants for reads and for writes, and
//! `burst`. A tenant gets no more than its caps, even if the device is idle.

use std::fmt;
use std::str::FromStr;

use fairq_core::{Cap, Caps, Counted, Side};
use serde::de::{Deserialize, Deserializer};
use serde::{Serialize, Serializer};

use crate::units::{Bandwidth, Count, Nanos, TextOrNumber, exact_duration};

/// The default burst, in nanoseconds: a tenant that was below its cap may use a tenth of a second's
/// worth of the cap at once.
const BURST_NS: u64 = 100_000_000;
/// The longest burst, in nanoseconds: a minute's worth.
const BURST_MOST_NS: u64 = 60_000_000_000;

/// The amount above a cap that a tenant may use at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Burst {
    /// The amount that each cap allows in this time, in nanoseconds.
    Time(u64),
    /// This number of requests, for each cap on requests.
    Requests(u64),
}

fn parse_burst(text: &str) -> Result<Burst, String> {
    let time = text.parse().map(|Nanos(ns)| Burst::Time(ns));
    match text.parse() {
        Ok(Count(requests)) => Ok(Burst::Requests(requests)),
        Err(_) => time.map_err(|_| {
            format!(
                "`{text}` is not a burst: write for how long a cap may be exceeded, as in 100ms, or \
                 by how many requests, as in 100"
            )
        }),
    }
}

impl FromStr for Burst {
    type Err = String;
    fn from_str(text: &str) -> Result<Burst, String> {
        parse_burst(text.trim())
    }
}

/// Writes a burst as its parser reads it.
impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Burst::Time(ns) => f.write_str(&exact_duration(*ns)),
            Burst::Requests(requests) => write!(f, "{requests}"),
        }
    }
}

impl Serialize for Burst {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Burst {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a burst such as \"100ms\" or 100";
        deserializer.deserialize_any(TextOrNumber { expecting, parse: parse_burst })
    }
}

/// The values of the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Requests a second: of reads and writes together, of reads, and of writes.
    pub iops: [Option<Count>; 3],
    /// Bytes a second: of reads and writes together, of reads, and of writes.
    pub bandwidth: [Option<Bandwidth>; 3],
    /// The burst of all caps.
    pub burst: Option<Burst>,
}

/// Collects the keys of caps of a table into a `caps::Written`.
#[macro_export]
macro_rules! caps_of {
    ($table:expr) => {
        $crate::caps::Written {
            iops: [$table.max_iops, $table.read_max_iops, $table.write_max_iops],
            bandwidth: [
                $table.max_bandwidth,
                $table.read_max_bandwidth,
                $table.write_max_bandwidth,
            ],
            burst: $table.burst,
        }
    };
}

/// The keys of caps, in the order of [`Written`].
pub const KEYS: [&str; 7] = [
    "max-iops",
    "read-max-iops",
    "write-max-iops",
    "max-bandwidth",
    "read-max-bandwidth",
    "write-max-bandwidth",
    "burst",
];

const SIDES: [Side; 3] = [Side::Both, Side::Reads, Side::Writes];

impl Written {
    /// The caps of these values.
    pub fn caps(&self) -> Result<Caps, String> {
        let (iops, bandwidth) = (self.iops.iter().flatten(), self.bandwidth.iter().flatten());
        match self.burst {
            Some(burst) if iops.clone().count() + bandwidth.count() == 0 => {
                return Err(format!(
                    "burst {burst} has no effect without a cap: add max-iops=1000, say, or leave \
                     out burst"
                ));
            }
            // A burst in requests has no effect on caps on bytes.
            Some(Burst::Requests(requests)) if iops.count() == 0 => {
                return Err(format!(
                    "burst {requests} counts requests, and no cap does: write it as a time, as in \
                     100ms"
                ));
            }
            Some(Burst::Time(ns)) if ns > BURST_MOST_NS => {
                return Err(format!(
                    "burst {} is longer than a minute: write at most 60s, or raise or remove the \
                     cap",
                    exact_duration(ns)
                ));
            }
            _ => {}
        }
        let requests = self.iops.map(|said| said.map(|Count(iops)| iops));
        let bytes = self.bandwidth.map(|said| said.map(|Bandwidth(bytes)| bytes));
        let mut caps = Caps::default();
        for (counted, said, keys) in
            [(Counted::Requests, requests, &KEYS[..3]), (Counted::Bytes, bytes, &KEYS[3..6])]
        {
            for ((side, per_second), key) in SIDES.into_iter().zip(said).zip(keys) {
                let Some(per_second) = per_second else { continue };
                caps = caps.with(side, counted, Some(self.cap(key, counted, per_second)?));
            }
        }
        Ok(caps)
    }

    fn cap(&self, key: &str, counted: Counted, per_second: u64) -> Result<Cap, String> {
        if per_second == 0 {
            return Err(format!(
                "{key} 0 would let nothing through: write 1 or more, or leave the cap out"
            ));
        }
        let worth = |ns: u64| {
            // The rate was not compared with `Cap::MOST` yet: the product may need 100 bits.
            let amount = u128::from(per_second) * u128::from(ns) / 1_000_000_000;
            u64::try_from(amount).unwrap_or(u64::MAX)
        };
        let burst = match self.burst {
            Some(Burst::Requests(requests)) if counted == Counted::Requests => requests,
            Some(Burst::Time(ns)) => worth(ns),
            // A burst in requests does not apply to bytes: caps on bytes have the default burst.
            _ => worth(BURST_NS),
        };
        Cap::new(per_second, burst).ok_or_else(|| {
            format!(
                "{key} {per_second} with a burst of {burst}: neither may be above {}; leave the \
                 cap out",
                Cap::MOST
            )
        })
    }
}

/// Each cap with its key.
pub fn listed(caps: &Caps) -> impl Iterator<Item = (&'static str, Cap)> + '_ {
    let counted = [Counted::Requests, Counted::Bytes].into_iter();
    let all = counted.flat_map(|counted| SIDES.into_iter().map(move |side| (side, counted)));
    KEYS.into_iter()
        .zip(all)
        .filter_map(|(key, (side, counted))| caps.get(side, counted).map(|cap| (key, cap)))
}

/// The caps in the form of the keys: `max-iops=1000, read-max-bandwidth=100M/s`.
pub fn describe(caps: &Caps) -> String {
    let text = |(key, cap): (&str, Cap)| match key.ends_with("iops") {
        true => format!("{key}={}", Count(cap.per_second())),
        false => format!("{key}={}", Bandwidth(cap.per_second())),
    };
    let all: Vec<String> = listed(caps).map(text).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

/// The most requests under way on a connection of Linux's `nbd` driver.
const BACKLOG: u64 = 128;
/// Bytes of these requests when Linux reads ahead, 128 KiB for each.
const BACKLOG_BYTES: u64 = BACKLOG * (128 << 10);
/// The time in seconds after which Linux reports a request as stuck, or fails it by a usual
/// `-timeout`.
const CLIENT_TIMEOUT_S: u64 = 30;

/// A warning if a Linux client's backlog waits for these caps longer than its timeout of 30 s.
pub fn warning(caps: &Caps) -> Option<String> {
    let wait_s = |(key, cap): (&'static str, Cap)| {
        let backlog = if key.ends_with("iops") { BACKLOG } else { BACKLOG_BYTES };
        let after_burst = backlog.saturating_sub(cap.burst());
        (key, backlog, after_burst / cap.per_second().max(1))
    };
    let (key, backlog, wait_s) = listed(caps).map(wait_s).max_by_key(|of| of.2)?;
    if wait_s < CLIENT_TIMEOUT_S {
        return None;
    }
    let enough = backlog.div_ceil(CLIENT_TIMEOUT_S);
    let enough = match key.ends_with("iops") {
        true => Count(enough).to_string(),
        false => Bandwidth(enough.next_multiple_of(1 << 10)).to_string(),
    };
    Some(format!(
        "{key} is so low that the last of {BACKLOG} requests, as many as a Linux client has under \
         way, waits {wait_s} s: a client with a shorter timeout (nbd-client -timeout) then fails \
         its disk; raise the cap to {enough}, or give the clients a timeout above {wait_s} s"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_that_outlasts_a_clients_timeout_is_warned_of() {
        let warned = |said: Written| warning(&said.caps().unwrap());
        let iops = |rate| Written { iops: [None, Some(Count(rate)), None], ..Written::default() };
        let text = warned(iops(2)).unwrap();
        assert!(text.starts_with("read-max-iops is so low"), "{text}");
        assert!(text.contains("waits 64 s") && text.contains("raise the cap to 5,"), "{text}");
        assert_eq!((warned(iops(5)), warned(Written::default())), (None, None));
        let slow = Some(Bandwidth(256 << 10));
        let text = warned(Written { bandwidth: [slow, None, None], ..iops(1000) }).unwrap();
        assert!(text.starts_with("max-bandwidth is so low"), "{text}");
        let burst = Written { burst: Some(Burst::Requests(100)), ..iops(2) };
        assert_eq!(warned(burst), None, "a burst lets most of them through");
    }

    fn written(iops: [&str; 3], bandwidth: [&str; 3], burst: &str) -> Result<Caps, String> {
        fn said<T: FromStr<Err = String>>(text: &str) -> Option<T> {
            (!text.is_empty()).then(|| text.parse().unwrap())
        }
        let (iops, bandwidth) = (iops.map(said), bandwidth.map(said));
        Written { iops, bandwidth, burst: said(burst) }.caps()
    }

    #[test]
    fn a_burst_is_a_tenth_of_a_second_a_time_or_a_number_of_requests() {
        let cap = |caps: &Caps, side, counted| {
            caps.get(side, counted).map(|cap: Cap| (cap.per_second(), cap.burst()))
        };
        let caps = written(["1k", "", ""], ["", "10M/s", ""], "").unwrap();
        assert_eq!(cap(&caps, Side::Both, Counted::Requests), Some((1000, 100)));
        assert_eq!(cap(&caps, Side::Reads, Counted::Bytes), Some((10 << 20, 1 << 20)));
        assert_eq!(cap(&caps, Side::Writes, Counted::Bytes), None);
        assert_eq!(describe(&caps), "max-iops=1000, read-max-bandwidth=10M/s");
        let caps = written(["", "", "500"], ["1M", "", ""], "1s").unwrap();
        assert_eq!(cap(&caps, Side::Writes, Counted::Requests), Some((500, 500)));
        assert_eq!(cap(&caps, Side::Both, Counted::Bytes), Some((1 << 20, 1 << 20)));
        let caps = written(["100", "", ""], ["1M", "", ""], "7").unwrap();
        assert_eq!(cap(&caps, Side::Both, Counted::Requests), Some((100, 7)));
        assert_eq!(cap(&caps, Side::Both, Counted::Bytes), Some((1 << 20, 104_857)));
        assert_eq!(written([""; 3], [""; 3], ""), Ok(Caps::default()));
        assert_eq!(describe(&Caps::default()), "none");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_cure() {
        let refusal = |iops, bandwidth, burst| {
            written([iops, "", ""], ["", bandwidth, ""], burst).unwrap_err()
        };
        assert_eq!(
            refusal("0", "", ""),
            "max-iops 0 would let nothing through: write 1 or more, or leave the cap out"
        );
        assert!(refusal("", "0", "").starts_with("read-max-bandwidth 0 would let nothing"));
        assert!(refusal("", "", "1s").contains("add max-iops=1000, say, or leave out burst"));
        assert!(refusal("", "1M", "100").contains("no cap does: write it as a time"));
        assert!(refusal("100", "", "61s").contains("longer than a minute"));
        assert!(refusal("", "2T", "").contains("leave the cap out"));
        assert!("fast".parse::<Burst>().unwrap_err().contains("`fast` is not a burst"));
    }
}
