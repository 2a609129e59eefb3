//! A tenant's weight: a number, or the weight of a cgroup; and a group's, with its caps.
//!
//! `weight = "cgroup:/tenants/db"` follows the cgroup's `io.weight`: so a server that performs a
//! client's I/O can serve the tenant with the weight of the client's own cgroup. The file is read
//! at the start and then once a second, because the kernel does not notify of every change; if it
//! cannot be read, the last weight stays. A group's key `cgroup` follows both `io.weight` and
//! `io.max`.
//!
//! The control thread reads the file, and a name may come from the control socket, so a name must
//! not make that thread read any other file: the kernel resolves it below the root of the cgroups,
//! on that file system, without symbolic links ([`ResolveFlags`]). The result has to be a regular
//! file, is opened without waiting (a FIFO would wait for a writer), and is read up to
//! `IO_WEIGHT_MAX` bytes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fairq_core::{Cap, Caps, Weight};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::caps::Written;
use crate::disks::Disks;
use crate::units::{Bandwidth, Count, TextOrNumber};

/// Mount points of cgroups of version 2: alone, or beside those of version 1.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// The most bytes that are read of an `io.weight`. Its first line is the default weight; lines for
/// single devices follow.
const IO_WEIGHT_MAX: u64 = 512;
/// The most bytes that are read of an `io.max`: a line for each disk with limits.
const IO_MAX_MAX: u64 = 64 << 10;
/// The type that `statfs` reports for the file system of cgroups of version 2.
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// The source of a weight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WeightSource {
    /// A configured weight.
    Fixed(Weight),
    /// The weight of a cgroup, by its name as in `/proc/PID/cgroup`, or by the path of its
    /// directory.
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
    /// The present weight; `root` is the root of cgroups.
    pub fn now(&self, root: &Path) -> Result<Weight, String> {
        match self {
            WeightSource::Fixed(weight) => Ok(*weight),
            WeightSource::Cgroup(path) => read(root, path),
        }
    }
}

/// The mount point of cgroups that have an `io.weight`.
pub fn cgroup_root() -> PathBuf {
    let is_cgroup2 =
        |root: &&&str| rustix::fs::statfs(**root).is_ok_and(|of| of.f_type == CGROUP2_MAGIC);
    // Without cgroups the usual root is named, so that a refusal names the expected place.
    ROOTS.iter().find(is_cgroup2).unwrap_or(&ROOTS[0]).into()
}

/// The root of cgroups, and the disks whose limits apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cgroups {
    /// Root of the cgroups.
    pub root: PathBuf,
    /// The server's disks by their numbers in `io.max`; `None` if the server has no device of its
    /// own.
    pub disks: Option<Disks>,
}

/// The limits in a cgroup's `io.max`.
#[derive(Debug, Default)]
pub(crate) struct IoMax {
    /// The limits for the server's disks; of several lines the least of each value.
    pub(crate) caps: Caps,
    /// The reason for which none of its lines applies, if it has lines.
    pub(crate) unused: Option<String>,
}

impl Cgroups {
    /// Cgroups below this root, for a server of this device: a disk, a partition, or a file.
    pub fn new(root: PathBuf, device: Option<&Path>) -> Cgroups {
        Cgroups { root, disks: device.map(Disks::of) }
    }

    /// A cgroup's weight. If the kernel has caps but no weights, all cgroups have the default
    /// weight.
    pub(crate) fn weight(&self, path: &Path) -> Result<Weight, String> {
        match read(&self.root, path) {
            Err(_) if lacks_weights(&self.root, path) => Ok(Weight::DEFAULT),
            weight => weight,
        }
    }

    /// A cgroup's caps from `io.max`, for the server's disks. A cgroup without that file, such as
    /// the root, has none.
    pub(crate) fn io_max(&self, path: &Path) -> Result<IoMax, String> {
        let Some(disks) = &self.disks else { return Ok(IoMax::default()) };
        let name = below(&self.root, path).join("io.max");
        let place = self.root.join(&name);
        let refuse = |error: io::Error| format!("cgroup: {}: {error}", place.display());
        // The root has no `io.max`, and neither has a cgroup whose parent does not enable the io
        // controller for it. They have no caps.
        let text = match open_below(&self.root, &name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(IoMax::default()),
            file => file.and_then(|file| read_at_most(file, IO_MAX_MAX)).map_err(refuse)?,
        };
        let (mut least, mut others) = (None::<Written>, Vec::new());
        for line in text.lines() {
            let Some((number, limits)) = line.split_once(' ') else { continue };
            let is_own = |(major, minor): &(u32, u32)| number == format!("{major}:{minor}");
            if !disks.numbers().iter().any(is_own) {
                others.push(number);
                continue;
            }
            let said = parse_io_max(limits).ok_or_else(|| {
                refuse(io::Error::other(format!("`{line}` is not rbps=, wbps=, riops=, wiops=")))
            })?;
            least = Some(least.map_or(said, |least| tighter(least, said)));
        }
        let unused = (least.is_none() && !others.is_empty())
            .then(|| format!("{} limits {}, and {disks}", place.display(), others.join(", ")));
        let caps = least.unwrap_or_default().caps().map_err(|text| format!("cgroup: {text}"))?;
        Ok(IoMax { caps, unused })
    }
}

/// The least of each limit.
fn tighter(one: Written, other: Written) -> Written {
    let mut least = one;
    for side in 0..least.iops.len() {
        let (iops, bandwidth) = (other.iops[side], other.bandwidth[side]);
        least.iops[side] = [one.iops[side], iops].into_iter().flatten().min();
        least.bandwidth[side] = [one.bandwidth[side], bandwidth].into_iter().flatten().min();
    }
    least
}

/// Whether a cgroup exists whose kernel has `io.max` but no `io.weight`.
fn lacks_weights(root: &Path, path: &Path) -> bool {
    let has = |name| open_below(root, &below(root, path).join(name)).is_ok();
    has("io.max") && !has("io.weight")
}

/// The caps of a line of `io.max`, behind the disk's number, with the default burst.
fn parse_io_max(limits: &str) -> Option<Written> {
    let mut said = Written::default();
    for pair in limits.split_whitespace() {
        let (key, value) = pair.split_once('=')?;
        let value: Option<u64> = if value == "max" { None } else { Some(value.parse().ok()?) };
        // A limit above half of the largest cap counts as no limit, and a limit of 0 as 1.
        let value = value.filter(|value| *value <= Cap::MOST / 2).map(|value| value.max(1));
        match key {
            "rbps" => said.bandwidth[1] = value.map(Bandwidth),
            "wbps" => said.bandwidth[2] = value.map(Bandwidth),
            "riops" => said.iops[1] = value.map(Count),
            "wiops" => said.iops[2] = value.map(Count),
            _ => return None,
        }
    }
    Some(said)
}

/// The name of a cgroup below the root, from its name or the path of its directory.
fn below<'a>(root: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(root).or_else(|_| path.strip_prefix("/")).unwrap_or(path)
}

fn read_at_most(file: File, most: u64) -> io::Result<String> {
    let mut text = Vec::new();
    file.take(most).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn read(root: &Path, path: &Path) -> Result<Weight, String> {
    let file = below(root, path).join("io.weight");
    let refuse = |text: &str| format!("weight: {}: {text}", root.join(&file).display());
    let text = open_below(root, &file).and_then(|file| read_at_most(file, IO_WEIGHT_MAX));
    let text = text.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOENT) if lacks_weights(root, path) => refuse(
            "this kernel has no io.weight, only io.max (CONFIG_BLK_CGROUP_IOCOST is off, and BFQ \
             has io.bfq.weight): write a number",
        ),
        Some(Errno::XDEV) => refuse("it is not below the root of the cgroups, or not a cgroup's"),
        Some(Errno::LOOP) => refuse("a symbolic link is on the way: write the cgroup's own name"),
        _ => refuse(&format!(
            "{error}: the cgroup must exist and its parent have the io controller (echo +io > \
             cgroup.subtree_control)"
        )),
    })?;
    parse_io_weight(&text).ok_or_else(|| refuse("no `default` weight from 1 to 10000"))
}

/// Opens a regular file below `root`; a name cannot lead out of it.
fn open_below(root: &Path, file: &Path) -> io::Result<File> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, directory, Mode::empty())?;
    // NONBLOCK: opening a FIFO would wait for a writer. NOCTTY: a terminal must not become the
    // server's.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let below = ResolveFlags::BENEATH
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_XDEV;
    let file = rustix::fs::openat2(root, file, flags, Mode::empty(), below)?;
    // The check is of the open file, not of its name: another file could take the name in between.
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file.into())
}

/// The weight in an `io.weight` file: `default 100`, followed by lines for single devices, which
/// are ignored.
fn parse_io_weight(text: &str) -> Option<Weight> {
    let line = text.lines().find_map(|line| {
        line.strip_prefix("default ").or(Some(line).filter(|line| !line.contains(' ')))
    });
    line?.trim().parse().ok().and_then(Weight::new)
}

/// Deserializes a weight from 1 to 10000.
pub fn plain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Weight, D::Error> {
    let text = TextOrNumber { expecting: "a weight from 1 to 10000", parse: parse_weight };
    deserializer.deserialize_any(text)
}

/// Deserializes an optional weight from 1 to 10000.
pub fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Weight>, D::Error> {
    plain(deserializer).map(Some)
}

/// Parses a weight from 1 to 10000.
pub fn parse_weight(text: &str) -> Result<Weight, String> {
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
        let root = tempfile::tempdir().unwrap();
        let db = root.path().join("tenants/db");
        std::fs::create_dir_all(&db).unwrap();
        let lines = "8:0 50\n".repeat(100);
        std::fs::write(db.join("io.weight"), format!("default 350\n{lines}")).unwrap();
        let now = |name: &Path| WeightSource::Cgroup(name.into()).now(root.path());
        assert_eq!(now("/tenants/db".as_ref()).map(Weight::get), Ok(350));
        assert_eq!(now(&db).map(Weight::get), Ok(350), "its directory");
        let absent = now("/no such cgroup".as_ref()).unwrap_err();
        let place = root.path().join("no such cgroup/io.weight");
        assert!(
            absent.starts_with(&format!("weight: {}: No such file", place.display())),
            "{absent}"
        );
    }

    #[test]
    fn a_cgroups_caps_are_those_of_the_servers_disk() {
        let root = tempfile::tempdir().unwrap();
        let acme = root.path().join("acme");
        std::fs::create_dir(&acme).unwrap();
        let cgroups = Cgroups::new(root.path().into(), Some(root.path()));
        let disks = cgroups.disks.clone().unwrap();
        let Some(&(major, minor)) = disks.numbers().first() else {
            return eprintln!("skipped: {disks}");
        };
        let own = format!("{major}:{minor}");
        let said = || cgroups.io_max("/acme".as_ref());
        let caps = || said().map(|said| crate::caps::describe(&said.caps));
        assert_eq!(caps(), Ok("none".into()), "without the file");
        assert_eq!(cgroups.weight("/acme".as_ref()).map_err(|_| ()), Err(()), "nor the weight");
        let lines = format!(
            "4095:7 rbps=1 wbps=max riops=max wiops=max\n\
             {own} rbps=2097152 wbps=max riops=max wiops=120\n"
        );
        std::fs::write(acme.join("io.max"), lines).unwrap();
        assert_eq!(caps(), Ok("write-max-iops=120, read-max-bandwidth=2M/s".into()));
        assert_eq!(cgroups.weight("/acme".as_ref()), Ok(Weight::DEFAULT), "this kernel has none");
        let refused = WeightSource::Cgroup("/acme".into()).now(root.path()).unwrap_err();
        assert!(refused.contains("this kernel has no io.weight, only io.max"), "{refused}");
        std::fs::write(acme.join("io.max"), format!("{own} riops=many\n")).unwrap();
        assert!(
            said().unwrap_err().contains("riops=many` is not rbps="),
            "{said:?}",
            said = said()
        );
        std::fs::write(acme.join("io.max"), "4095:7 riops=5\n4095:8 riops=6\n").unwrap();
        assert_eq!(caps(), Ok("none".into()), "other disks'");
        let unused = said().unwrap().unused.unwrap();
        let place = acme.join("io.max");
        assert_eq!(unused, format!("{} limits 4095:7, 4095:8, and {disks}", place.display()));
    }

    #[test]
    fn of_several_disks_the_tightest_limit_counts() {
        let said = |text| parse_io_max(text).unwrap();
        let both = tighter(said("rbps=5000 wiops=max"), said("rbps=max riops=70 wiops=9"));
        assert_eq!(
            crate::caps::describe(&both.caps().unwrap()),
            "read-max-iops=70, write-max-iops=9, read-max-bandwidth=5000/s"
        );
    }

    #[test]
    fn nothing_but_a_cgroups_own_file_is_read() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let inside = |name: &str| {
            std::fs::create_dir(root.path().join(name)).unwrap();
            root.path().join(name).join("io.weight")
        };
        std::fs::write(outside.path().join("io.weight"), "default 300\n").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", inside("endless")).unwrap();
        std::fs::create_dir(inside("folder")).unwrap();
        let fifo = inside("fifo");
        let fifo = rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        );
        fifo.unwrap();
        let refused = |name: &str| WeightSource::Cgroup(name.into()).now(root.path()).unwrap_err();
        let up = format!("/..{}", outside.path().display());
        for (name, why) in [
            (&*up, "not below the root of the cgroups"),
            ("/link", "a symbolic link is on the way"),
            ("/endless", "a symbolic link is on the way"),
            ("/fifo", "it is not a regular file"),
            ("/folder", "it is not a regular file"),
            (outside.path().to_str().unwrap(), "No such file"),
        ] {
            assert!(refused(name).contains(why), "{name}: {}", refused(name));
        }
    }
}
