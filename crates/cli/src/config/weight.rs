//! A tenant's weight: a number, or what a cgroup has.
//!
//! `weight = "cgroup:/tenants/db"` follows the cgroup's `io.weight`: the server that does a
//! client's input and output gives it what the client's own cgroup would get. The file is read at
//! the start and then once a second, since the kernel does not tell of every change; if it cannot
//! be read any more, the last weight stays.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fairq_core::Weight;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::TextOrNumber;

/// Where the kernel shows cgroups.
const MOUNT: &str = "/sys/fs/cgroup";

/// Where a weight comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WeightSource {
    /// It is said.
    Fixed(Weight),
    /// A cgroup has it: its name, or the path of its directory.
    Cgroup(PathBuf),
}

impl Default for WeightSource {
    fn default() -> WeightSource {
        WeightSource::Fixed(Weight::DEFAULT)
    }
}

impl FromStr for WeightSource {
    type Err = String;

    fn from_str(text: &str) -> Result<WeightSource, String> {
        match text.strip_prefix("cgroup:") {
            Some(path) if path.starts_with('/') => Ok(WeightSource::Cgroup(path.into())),
            Some(path) => {
                Err(format!("`{path}` is not a cgroup: write cgroup:/NAME as in /proc/PID/cgroup"))
            }
            None => parse_weight(text).map(WeightSource::Fixed),
        }
    }
}

impl fmt::Display for WeightSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightSource::Fixed(weight) => write!(f, "{}", weight.get()),
            WeightSource::Cgroup(path) => write!(f, "cgroup:{}", path.display()),
        }
    }
}

impl Serialize for WeightSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            WeightSource::Fixed(weight) => serializer.serialize_u16(weight.get()),
            WeightSource::Cgroup(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for WeightSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightSource, D::Error> {
        let expecting = "a weight from 1 to 10000, or \"cgroup:/NAME\"";
        deserializer.deserialize_any(TextOrNumber { expecting, parse: str::parse })
    }
}

impl WeightSource {
    /// The weight at this moment.
    pub(crate) fn now(&self) -> Result<Weight, String> {
        match self {
            WeightSource::Fixed(weight) => Ok(*weight),
            WeightSource::Cgroup(path) => read(path),
        }
    }
}

fn read(path: &Path) -> Result<Weight, String> {
    let is_directory = path.join("io.weight").exists();
    let folder = if is_directory {
        path.to_owned()
    } else {
        Path::new(MOUNT).join(path.strip_prefix("/").unwrap_or(path))
    };
    let file = folder.join("io.weight");
    let text = std::fs::read_to_string(&file).map_err(|error| {
        format!(
            "weight: {}: {error}: the cgroup must exist and its parent have the io controller \
             (echo +io > cgroup.subtree_control)",
            file.display()
        )
    })?;
    parse_io_weight(&text)
        .ok_or_else(|| format!("weight: {}: no `default` weight from 1 to 10000", file.display()))
}

/// The weight in an `io.weight` file: `default 100`, followed by lines for single devices, which do
/// not concern us.
fn parse_io_weight(text: &str) -> Option<Weight> {
    let line = text.lines().find_map(|line| {
        line.strip_prefix("default ").or(Some(line).filter(|line| !line.contains(' ')))
    });
    line?.trim().parse().ok().and_then(Weight::new)
}

/// A weight, 1 to 10000.
pub(crate) fn weight<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Weight>, D::Error> {
    let text = TextOrNumber { expecting: "a weight from 1 to 10000", parse: parse_weight };
    deserializer.deserialize_any(text).map(Some)
}

/// See [`weight`].
pub(crate) fn parse_weight(text: &str) -> Result<Weight, String> {
    let weight = text.parse().ok().and_then(Weight::new);
    weight.ok_or_else(|| {
        format!("`{text}` is not a weight: write a whole number from 1 to 10000 (100 is the usual)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_a_number_or_a_cgroups() {
        assert_eq!("250".parse(), Ok(WeightSource::Fixed(Weight::new(250).unwrap())));
        assert_eq!("cgroup:/db".parse(), Ok(WeightSource::Cgroup("/db".into())));
        let refused = |text: &str| text.parse::<WeightSource>().unwrap_err();
        assert_eq!(
            refused("0"),
            "`0` is not a weight: write a whole number from 1 to 10000 (100 is the usual)"
        );
        assert_eq!(
            refused("cgroup:db"),
            "`db` is not a cgroup: write cgroup:/NAME as in /proc/PID/cgroup"
        );
    }

    #[test]
    fn a_cgroups_weight_is_read_from_its_folder() {
        let weight = |text| parse_io_weight(text).map(Weight::get);
        assert_eq!(weight("default 300\n8:0 50\n"), Some(300));
        assert_eq!(weight("8:0 50\ndefault 7\n"), Some(7));
        assert_eq!(weight("42\n"), Some(42));
        assert_eq!((weight("default 0\n"), weight("")), (None, None));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("io.weight"), "default 350\n").unwrap();
        let source = WeightSource::Cgroup(folder.path().into());
        assert_eq!(source.now().map(Weight::get), Ok(350));
        let absent = WeightSource::Cgroup("/no such cgroup".into()).now().unwrap_err();
        assert!(
            absent.starts_with("weight: /sys/fs/cgroup/no such cgroup/io.weight: No such file"),
            "{absent}"
        );
    }
}
