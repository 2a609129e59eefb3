//! Numbers with units, as input and output.
//!
//! | quantity | written | meaning |
//! |---|---|---|
//! | size | `4096`, `4k`, `64KiB`, `1.5T` | bytes; units are **binary** (1k = 1kB = 1KiB = 1024) |
//! | bandwidth | `1G/s`, `500M` | bytes a second, binary as sizes are |
//! | count | `100k`, `1.2M` | things, or things a second; k, M, G are **decimal** (1k = 1000) |
//! | duration | `500ns`, `80us`, `1.5ms`, `10s` | the unit is never guessed |
//! | factor | `1`, `2.5`, `250%` | kept in hundredths |
//!
//! Values never go through floating point; a fraction of a unit is rounded down. Each type parses a
//! flag's text, a TOML string or a TOML number, so a value has the same form everywhere.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// Defines a number with its text form, and the text of refusals.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty), $parse:path, $expecting:literal, $exact:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub struct $name(pub $inner);

        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                $parse(text.trim()).map($name)
            }
        }

        /// Writes the value as its parser reads it.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&$exact(self.0))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(TextOrNumber { expecting: $expecting, parse: $parse }).map($name)
            }
        }
    };
}

quantity!(
    /// Bytes.
    Size(u64), parse_size, "a size such as 4096, \"64k\" or \"10G\"", exact_size
);
quantity!(
    /// Bytes a second.
    Bandwidth(u64), parse_bandwidth, "a bandwidth such as \"1G/s\" or \
     \"500M/s\"", |bytes| format!("{}/s", exact_size(bytes))
);
quantity!(
    /// A number of things, or of things a second.
    Count(u64), parse_count, "a number such as 5000 or \"100k\"", |count: u64| count.to_string()
);
quantity!(
    /// Nanoseconds.
    Nanos(u64), parse_duration, "a duration such as \"80us\", \"1ms\" or \"10s\"", exact_duration
);
quantity!(
    /// Hundredths.
    Factor(u32), parse_factor, "a factor such as 1, 2.5 or \
     \"250%\"", |hundredths: u32| format!("{hundredths}%")
);

quantity!(
    /// A percentile, in millionths: the part of requests that take no longer.
    Percentile(u32), parse_percentile, "a percentile such as 99 or \
     99.9", |millionths: u32| show_percentile(millionths)
);
quantity!(
    /// A part of something, in percent.
    Part(u8), parse_part, "a part such as \"50%\" or 0.5", |percent: u8| format!("{percent}%")
);

/// Deserializes text, or a number as its text.
pub struct TextOrNumber<F> {
    /// The expected form, for refusals.
    pub expecting: &'static str,
    /// Reads the text.
    pub parse: F,
}

impl<T, F: FnOnce(&str) -> Result<T, String>> Visitor<'_> for TextOrNumber<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text.trim()).map_err(E::custom)
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

/// Splits `10.5GiB` into its number and its suffix; the number is not empty.
fn split(text: &str) -> Option<(&str, &str)> {
    let end =
        text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    number.starts_with(|c: char| c.is_ascii_digit()).then_some((number, suffix.trim()))
}

/// `number` (digits, optionally with a point) times `unit`, rounded down.
fn scale(number: &str, unit: u64) -> Option<u64> {
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    // 15 digits times the largest unit (2^50) stay within 128 bits.
    if fraction.len() > 15 || fraction.contains('.') {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let part = part * u128::from(unit) / 10u128.pow(fraction.len() as u32);
    u64::try_from(whole.checked_mul(u128::from(unit))?.checked_add(part)?).ok()
}

fn parse_size(text: &str) -> Result<u64, String> {
    let refuse = || {
        format!(
            "`{text}` is not a size: write bytes, or binary units as in 4k, 64KiB, 1.5G, 2T (1k = \
             1024)"
        )
    };
    let (number, suffix) = split(text).ok_or_else(refuse)?;
    let suffix = suffix.to_ascii_lowercase();
    let letter = suffix.strip_suffix("ib").or(suffix.strip_suffix('b')).unwrap_or(&suffix);
    let shift = match letter {
        // `4ib` leaves no letter, and is not a unit.
        "" if !suffix.starts_with('i') => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(refuse()),
    };
    // Offsets in files are signed (off_t), so no file is larger.
    scale(number, 1 << shift).filter(|&bytes| bytes <= i64::MAX as u64).ok_or_else(refuse)
}

fn parse_bandwidth(text: &str) -> Result<u64, String> {
    let size = text.strip_suffix("/s").unwrap_or(text);
    match parse_size(size) {
        Err(_) => Err(format!(
            "`{text}` is not a bandwidth: write bytes a second, as in 1G/s, 500MiB/s, 100M (1k = \
             1024)"
        )),
        bandwidth => bandwidth,
    }
}

fn parse_count(text: &str) -> Result<u64, String> {
    let refuse = || {
        format!(
            "`{text}` is not a number: write it plainly or with decimal units, as in 5000, 100k, \
             1.2M"
        )
    };
    let (number, suffix) = split(text).ok_or_else(refuse)?;
    let unit = match suffix {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(refuse()),
    };
    scale(number, unit).ok_or_else(refuse)
}

fn parse_duration(text: &str) -> Result<u64, String> {
    let refuse = || {
        format!(
            "`{text}` is not a duration: write a number and its unit, as in 500ns, 80us, 1ms, 10s, \
             5m"
        )
    };
    let (number, suffix) = split(text).ok_or_else(refuse)?;
    let unit = match suffix {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        // A zero needs no unit.
        "" if scale(number, 1) == Some(0) => 1,
        _ => return Err(refuse()),
    };
    scale(number, unit).ok_or_else(refuse)
}

fn parse_factor(text: &str) -> Result<u32, String> {
    let refuse =
        || format!("`{text}` is not a factor from 0.01 to 1000: write it as in 1, 2.5 or 250%");
    let (number, suffix) = split(text).ok_or_else(refuse)?;
    let hundredths = match suffix {
        "" | "x" => scale(number, 100),
        "%" => scale(number, 1),
        _ => None,
    };
    hundredths
        .filter(|hundredths| (1..=100_000).contains(hundredths))
        .map(|h| h as u32)
        .ok_or_else(refuse)
}

fn parse_percentile(text: &str) -> Result<u32, String> {
    let refuse = || format!("`{text}` is not a percentile from 50 to 99.9999: write 99 or 99.9");
    let (number, suffix) = split(text).ok_or_else(refuse)?;
    let millionths = if matches!(suffix, "" | "%") { scale(number, 10_000) } else { None };
    let millionths = millionths.filter(|part| (500_000..1_000_000).contains(part));
    millionths.map(|part| part as u32).ok_or_else(refuse)
}

/// A percentile in the form in which it is read: `99`, `99.9`.
pub fn show_percentile(millionths: u32) -> String {
    let text = format!("{}.{:04}", millionths / 10_000, millionths % 10_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn parse_part(text: &str) -> Result<u8, String> {
    let refuse = || format!("`{text}` is not a part of 0% to 100%: write it as in 50% or 0.5");
    let (number, suffix) = split(text).ok_or_else(refuse)?;
    let percent = match suffix {
        "" => scale(number, 100),
        "%" => scale(number, 1),
        _ => None,
    };
    percent.filter(|&percent| percent <= 100).map(|percent| percent as u8).ok_or_else(refuse)
}

/// An exact size in the form in which it is read: `10G`, `1536M`, `4096`.
pub fn exact_size(bytes: u64) -> String {
    let (shift, letter) = match bytes {
        // 0 has 64 trailing zeros and would be `0T`.
        0 => (0, ""),
        _ => match bytes.trailing_zeros() {
            0..10 => (0, ""),
            10..20 => (10, "k"),
            20..30 => (20, "M"),
            30..40 => (30, "G"),
            _ => (40, "T"),
        },
    };
    format!("{}{letter}", bytes >> shift)
}

/// An exact duration in the form in which it is read: `80us`, `1500ns`.
pub fn exact_duration(ns: u64) -> String {
    let unit = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match unit.into_iter().find(|(length, _)| ns > 0 && ns.is_multiple_of(*length)) {
        Some((length, unit)) => format!("{}{unit}", ns / length),
        None => format!("{ns}ns"),
    }
}

/// A size for people, three figures: `3.73 GiB`.
pub fn show_size(bytes: u64) -> String {
    show(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// A count for people, three figures: `99.8 k`.
pub fn show_count(count: f64) -> String {
    show(count, 1000.0, &["", "k", "M", "G"])
}

/// Bytes a second for people, three figures, with the decimal units of drives: `1.23 GB/s`.
pub fn show_bandwidth(bytes_per_s: f64) -> String {
    show(bytes_per_s, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// A duration for people, three figures: `80.0 µs`.
pub fn show_duration(ns: f64) -> String {
    show(ns, 1000.0, &["ns", "µs", "ms", "s"])
}

fn show(value: f64, step: f64, units: &[&str]) -> String {
    // An empty sum is -0, and would be shown with a sign.
    let mut value = value + 0.0;
    let mut index = 0;
    // 999.5 would be shown as 1000.
    while value >= step.min(999.5) && index + 1 < units.len() {
        value /= step;
        index += 1;
    }
    // From 9.995 and 99.95 on rounding gives one more figure before the point.
    let digits = match value {
        _ if index == 0 && value.fract() == 0.0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[index]).trim_end().to_owned()
}

/// `75.0 %`.
pub fn show_percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> Result<u64, String> {
        text.parse().map(|Size(bytes)| bytes)
    }

    #[test]
    fn sizes_are_binary_whatever_their_suffix_looks_like() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("64KiB", 65_536),
            ("64kb", 65_536),
            ("1.5G", 1_610_612_736),
            ("10 GiB", 10 << 30),
            ("2T", 2 << 40),
            ("1_000", 1000),
            ("0.3k", 307),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_says_what_is() {
        for text in ["", "k", "4x", "-4k", "4k4", "1.2.3k", "99999999P", "4ib", ".5k", "1e9"] {
            assert_eq!(
                size(text).unwrap_err(),
                format!(
                    "`{text}` is not a size: write bytes, or binary units as in 4k, 64KiB, 1.5G, \
                     2T (1k = 1024)"
                )
            );
        }
    }

    #[test]
    fn counts_are_decimal_and_bandwidths_binary() {
        assert_eq!("100k".parse(), Ok(Count(100_000)));
        assert_eq!("1.25M".parse(), Ok(Count(1_250_000)));
        assert_eq!("7".parse(), Ok(Count(7)));
        assert_eq!("1G/s".parse(), Ok(Bandwidth(1 << 30)));
        assert_eq!("500MiB/s".parse(), Ok(Bandwidth(500 << 20)));
        assert_eq!("1k".parse(), Ok(Bandwidth(1024)));
        assert_eq!(
            "fast".parse::<Bandwidth>().unwrap_err(),
            "`fast` is not a bandwidth: write bytes a second, as in 1G/s, 500MiB/s, 100M (1k = \
             1024)"
        );
        assert_eq!(
            "100kiops".parse::<Count>().unwrap_err(),
            "`100kiops` is not a number: write it plainly or with decimal units, as in 5000, 100k, \
             1.2M"
        );
    }

    #[test]
    fn a_duration_needs_its_unit() {
        assert_eq!("80us".parse(), Ok(Nanos(80_000)));
        assert_eq!("80 µs".parse(), Ok(Nanos(80_000)));
        assert_eq!("1.5ms".parse(), Ok(Nanos(1_500_000)));
        assert_eq!("10s".parse(), Ok(Nanos(10_000_000_000)));
        assert_eq!("0".parse(), Ok(Nanos(0)));
        assert_eq!(
            "80".parse::<Nanos>().unwrap_err(),
            "`80` is not a duration: write a number and its unit, as in 500ns, 80us, 1ms, 10s, 5m"
        );
    }

    #[test]
    fn factors_are_kept_in_hundredths() {
        assert_eq!("1".parse(), Ok(Factor(100)));
        assert_eq!("2.5".parse(), Ok(Factor(250)));
        assert_eq!("250%".parse(), Ok(Factor(250)));
        for text in ["0", "0.001", "1001", "two"] {
            assert_eq!(
                text.parse::<Factor>().unwrap_err(),
                format!(
                    "`{text}` is not a factor from 0.01 to 1000: write it as in 1, 2.5 or 250%"
                )
            );
        }
    }

    #[test]
    fn exact_sizes_can_be_read_back() {
        for bytes in
            [0, 1, 512, 4096, 10 << 30, (1 << 30) + 512, 1536 << 20, 3 << 40, i64::MAX as u64]
        {
            assert_eq!(size(&exact_size(bytes)), Ok(bytes));
        }
        assert_eq!(exact_size(1536 << 20), "1536M");
    }

    #[test]
    fn shown_numbers_have_three_figures_and_never_four_before_the_point() {
        assert_eq!(show_count(0.0), "0");
        assert_eq!(show_count([0.0_f64; 0].iter().sum()), "0");
        assert_eq!(show_count(17.0), "17");
        assert_eq!(show_count(17.26), "17.3");
        assert_eq!(show_count(999.4), "999");
        assert_eq!(show_count(999.7), "1.00 k");
        assert_eq!(show_count(99_812.0), "99.8 k");
        assert_eq!(show_count(1_234_567.0), "1.23 M");
        assert_eq!(show_size(4096), "4.00 KiB");
        assert_eq!(show_size(1023), "1.00 KiB");
        assert_eq!(show_bandwidth(408_832_001.0), "409 MB/s");
        assert_eq!(show_duration(80_000.0), "80.0 µs");
        assert_eq!(show_duration(1_234_567_890.0), "1.23 s");
    }
}
