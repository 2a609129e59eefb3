//! Lists of CPUs.

use std::str::FromStr;

use serde::de::{Deserialize, Deserializer};

/// A list of CPUs: `0-3,6`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuList, String> {
        let refuse = || format!("`{text}` is not a list of CPUs: write 0, 0-3 or 0-3,6");
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                // The bound protects memory from a mistake such as 0-99999999999.
                text.trim().parse::<usize>().ok().filter(|&cpu| cpu < 4096).ok_or_else(refuse)
            };
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(refuse());
            }
            cpus.extend(first..=last);
        }
        Ok(CpuList(cpus))
    }
}

impl serde::Serialize for CpuList {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CpuList, D::Error> {
        let text = crate::units::TextOrNumber {
            expecting: "a list of CPUs such as \"0-3,6\"",
            parse: str::parse,
        };
        deserializer.deserialize_any(text)
    }
}
