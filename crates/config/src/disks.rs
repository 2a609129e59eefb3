//! The disks below a file or a block device, by their numbers in `io.max`.
//!
//! **Problem.** A line of `io.max` is about one disk. The device of a server may be a partition, a
//! volume of LVM, or a file of a file system that has several disks or no device number of its own.
//! **Model.** `stat` gives the first number. `/sys/dev/block` leads from a partition to its disk,
//! and from a volume to the devices below it (`slaves`), whose numbers count as well. A number
//! without a device (major 0) belongs to a mount: the devices of a btrfs are in `/sys/fs/btrfs`,
//! and an overlayfs writes to its upper layer.
//! **Example.** `/srv/pool` is on the volume 253:3, which LVM has made of partitions of 8:0 and
//! 8:16: the numbers are 253:3, 8:0 and 8:16.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

/// Major and minor number.
type Number = (u32, u32);

/// The most layers of overlayfs that are followed: the kernel stacks at most two.
const LAYERS: u32 = 4;

/// The disks below the server's device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disks {
    device: PathBuf,
    numbers: Vec<Number>,
}

/// The files in which the kernel shows devices and mounts.
struct System<'a> {
    sys: &'a Path,
    mountinfo: &'a Path,
}

impl Disks {
    /// The disks below `device`, which is a disk, a partition or a file.
    pub(crate) fn of(device: &Path) -> Disks {
        let (sys, mountinfo) = (Path::new("/sys"), Path::new("/proc/self/mountinfo"));
        Disks::by(&System { sys, mountinfo }, device)
    }

    fn by(system: &System<'_>, device: &Path) -> Disks {
        let mut numbers = Vec::new();
        // A file that does not exist yet will be on the file system of its folder.
        let place = if device.exists() { Some(device) } else { device.parent() };
        if let Some(place) = place {
            system.below_path(place, LAYERS, &mut numbers);
        }
        Disks { device: device.into(), numbers }
    }

    /// The numbers of the disks.
    pub(crate) fn numbers(&self) -> &[Number] {
        &self.numbers
    }
}

impl fmt::Display for Disks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> =
            self.numbers.iter().map(|(major, minor)| format!("{major}:{minor}")).collect();
        let device = self.device.display();
        match &numbers[..] {
            [] => write!(f, "{device} is on no disk that /sys names"),
            _ => write!(f, "{device} is on {}", numbers.join(", ")),
        }
    }
}

impl System<'_> {
    fn below_path(&self, path: &Path, layers: u32, found: &mut Vec<Number>) {
        let Ok(stat) = rustix::fs::stat(path) else { return };
        let is_disk = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let number = if is_disk { stat.st_rdev } else { stat.st_dev };
        match (rustix::fs::major(number), rustix::fs::minor(number)) {
            (0, _) if layers > 0 => self.below_mount(path, layers - 1, found),
            (0, _) => {}
            number => self.below_device(number, found),
        }
    }

    fn below_device(&self, number: Number, found: &mut Vec<Number>) {
        let known = self.sys.join(format!("dev/block/{}:{}", number.0, number.1));
        // The limits of a disk include its partitions.
        if known.join("partition").exists() {
            let disk = known.canonicalize().ok().and_then(|known| number_in(known.parent()?));
            return disk.into_iter().for_each(|disk| self.below_device(disk, found));
        }
        if found.contains(&number) {
            return;
        }
        found.push(number);
        for below in numbers_in(&known.join("slaves")) {
            self.below_device(below, found);
        }
    }

    /// Adds the disks of a file system without a device number of its own.
    fn below_mount(&self, path: &Path, layers: u32, found: &mut Vec<Number>) {
        let (Ok(path), Ok(mounts)) = (path.canonicalize(), std::fs::read(self.mountinfo)) else {
            return;
        };
        let mounts = String::from_utf8_lossy(&mounts);
        let here = mounts.lines().filter_map(Mount::parse).filter(|at| path.starts_with(&at.point));
        // Of several mounts at one place the last is on top.
        let Some(mount) = here.max_by_key(|mount| mount.point.components().count()) else { return };
        match mount.kind {
            "btrfs" => {
                let name = mount.source.canonicalize().unwrap_or(mount.source);
                let Some(name) = name.file_name() else { return };
                let Ok(all) = std::fs::read_dir(self.sys.join("fs/btrfs")) else { return };
                let devices = all.flatten().map(|of| of.path().join("devices"));
                let own = devices.filter(|devices| devices.join(name).exists());
                for number in own.flat_map(|devices| numbers_in(&devices)) {
                    self.below_device(number, found);
                }
            }
            "overlay" => {
                let upper = mount.options.split(',').find_map(|one| one.strip_prefix("upperdir="));
                if let Some(upper) = upper {
                    self.below_path(&plain(upper), layers, found);
                }
            }
            _ => {}
        }
    }
}

/// A line of `mountinfo`.
struct Mount<'a> {
    point: PathBuf,
    kind: &'a str,
    source: PathBuf,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (mount, of) = line.split_once(" - ")?;
        let point = plain(mount.split(' ').nth(4)?);
        let mut of = of.split(' ');
        let (kind, source) = (of.next()?, plain(of.next()?));
        Some(Mount { point, kind, source, options: of.next().unwrap_or_default() })
    }
}

/// Decodes a path whose blanks and backslashes are escaped like `\040`.
fn plain(escaped: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), escaped.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(|_| byte == b'\\') {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// The numbers of all devices in a folder.
fn numbers_in(folder: &Path) -> Vec<Number> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<Number> = entries.filter_map(|entry| number_in(&entry.path())).collect();
    numbers.sort_unstable();
    numbers
}

/// The number of a device, from its folder in sysfs.
fn number_in(device: &Path) -> Option<Number> {
    let text = std::fs::read_to_string(device.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A `/sys` and a `mountinfo` for tests.
    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new() -> Fake {
            let fake = Fake(tempfile::tempdir().unwrap());
            fs::create_dir_all(fake.path("dev/block")).unwrap();
            fs::write(fake.path("mountinfo"), "").unwrap();
            fake
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Adds a device with a folder, and the devices below it.
        fn device(&self, folder: &str, number: &str, slaves: &[&str]) {
            let path = self.path(folder);
            fs::create_dir_all(path.join("slaves")).unwrap();
            fs::write(path.join("dev"), format!("{number}\n")).unwrap();
            symlink(&path, self.path("dev/block").join(number)).unwrap();
            for slave in slaves {
                let target = self.path(slave);
                symlink(&target, path.join("slaves").join(target.file_name().unwrap())).unwrap();
            }
        }

        fn partition(&self, folder: &str, number: &str) {
            self.device(folder, number, &[]);
            fs::write(self.path(folder).join("partition"), "1\n").unwrap();
        }

        fn mount(&self, point: &Path, rest: &str) {
            let mut mounts = fs::read_to_string(self.path("mountinfo")).unwrap();
            let point = point.canonicalize().unwrap().display().to_string().replace(' ', "\\040");
            mounts += &format!("36 35 0:99 / {point} rw shared:1 - {rest}\n");
            fs::write(self.path("mountinfo"), mounts).unwrap();
        }

        fn below(&self, number: Number) -> Vec<Number> {
            let mut found = Vec::new();
            let mountinfo = self.path("mountinfo");
            System { sys: self.0.path(), mountinfo: &mountinfo }.below_device(number, &mut found);
            found
        }

        fn mounted(&self, path: &Path) -> Vec<Number> {
            let mut found = Vec::new();
            let mountinfo = self.path("mountinfo");
            System { sys: self.0.path(), mountinfo: &mountinfo }.below_mount(path, 1, &mut found);
            found
        }
    }

    #[test]
    fn a_volume_is_on_the_disks_below_it() {
        let fake = Fake::new();
        fake.device("devices/sda", "8:0", &[]);
        fake.partition("devices/sda/sda2", "8:2");
        fake.device("devices/sdb", "8:16", &[]);
        fake.device("devices/dm-0", "253:0", &["devices/sda/sda2", "devices/sdb"]);
        fake.device("devices/dm-3", "253:3", &["devices/dm-0"]);
        assert_eq!(fake.below((8, 16)), [(8, 16)]);
        assert_eq!(fake.below((8, 2)), [(8, 0)], "a partition");
        assert_eq!(fake.below((253, 3)), [(253, 3), (253, 0), (8, 0), (8, 16)]);
        assert_eq!(fake.below((7, 1)), [(7, 1)], "one that /sys does not know");
    }

    #[test]
    fn a_file_system_without_a_number_is_on_its_own_disks() {
        let fake = Fake::new();
        fake.device("devices/sda", "8:0", &[]);
        fake.device("devices/sdb", "8:16", &[]);
        fake.device("devices/sdc", "8:32", &[]);
        for (uuid, disks) in [("one", &["sda", "sdb"][..]), ("other", &["sdc"])] {
            let devices = fake.path("fs/btrfs").join(uuid).join("devices");
            fs::create_dir_all(&devices).unwrap();
            for disk in disks {
                symlink(fake.path("devices").join(disk), devices.join(disk)).unwrap();
            }
        }
        let point = fake.path("a pool");
        fs::create_dir_all(point.join("inner")).unwrap();
        fake.mount(&point, "btrfs /dev/sdb rw,subvol=/");
        assert_eq!(fake.mounted(&point.join("inner")), [(8, 0), (8, 16)]);
        fake.mount(&point.join("inner"), "tmpfs none rw");
        assert_eq!(fake.mounted(&point.join("inner")), [], "what is mounted there has no disk");
        // The upper layer is a real folder on a real disk.
        let (upper, merged) = (fake.path("upper"), fake.path("merged"));
        fs::create_dir(&upper).unwrap();
        fs::create_dir(&merged).unwrap();
        fake.mount(&merged, &format!("overlay none rw,lowerdir=/,upperdir={}", upper.display()));
        let number = rustix::fs::stat(&upper).unwrap().st_dev;
        let number = (rustix::fs::major(number), rustix::fs::minor(number));
        assert_eq!(fake.mounted(&merged), if number.0 == 0 { vec![] } else { vec![number] });
    }

    #[test]
    fn what_was_found_is_named() {
        let disks = |numbers| Disks { device: "/srv/pool".into(), numbers }.to_string();
        assert_eq!(disks(vec![(253, 3), (8, 0)]), "/srv/pool is on 253:3, 8:0");
        assert_eq!(disks(vec![]), "/srv/pool is on no disk that /sys names");
        assert_eq!(plain("/a\\040b\\134\\0"), Path::new("/a b\\\\0"));
    }
}
