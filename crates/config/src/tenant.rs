//! `--tenant NAME=SIZE,key=value,…` and `[[tenant]]`: the tenants of the device, and their parts of
//! it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fairq_core::Target;
use fairq_host::nbd::session::exports::Identity;
use fairq_host::server::TenantSettings;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::access::{self, Directory, List};
use crate::caps::{self, Burst};
use crate::caps_of;
use crate::device::SECTOR;
use crate::group::{self, Group};
use crate::name::{Origin, check_name};
use crate::pairs::{self, Pair};
use crate::refusal::Refusal;
use crate::units::{Bandwidth, Count, Nanos, Part, Percentile, Size, exact_size};
use crate::weight::WeightSource;
use crate::{keys, latency, listen};

/// Equal parts are multiples of this number of bytes.
const PART: u64 = 1 << 20;
/// The value that takes a key away.
const OFF: &str = "off";

/// A tenant's keys as configured.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs, reason = "fields are keys of files, which docs/REFERENCE.md describes")]
pub struct TenantTable {
    pub name: String,
    pub size: Option<Size>,
    pub offset: Option<Size>,
    pub weight: Option<WeightSource>,
    pub path: Option<PathBuf>,
    pub create: Option<bool>,
    pub store: Option<String>,
    pub keep_data: Option<bool>,
    pub read_only: Option<bool>,
    pub urgent: Option<bool>,
    pub latency: Option<Nanos>,
    pub latency_percentile: Option<Percentile>,
    pub floor: Option<Part>,
    pub max_iops: Option<Count>,
    pub read_max_iops: Option<Count>,
    pub write_max_iops: Option<Count>,
    pub max_bandwidth: Option<Bandwidth>,
    pub read_max_bandwidth: Option<Bandwidth>,
    pub write_max_bandwidth: Option<Bandwidth>,
    pub burst: Option<Burst>,
    pub min_iops: Option<Count>,
    pub min_bandwidth: Option<Bandwidth>,
    pub identity: Option<String>,
    pub uid: Option<List<u32>>,
    pub user: Option<List<String>>,
    pub group: Option<List<String>>,
    pub unix_group: Option<List<String>>,
    pub connections: Option<u32>,
    pub ublk: Option<bool>,
    pub vhost_user: Option<PathBuf>,
    pub vfio_user: Option<PathBuf>,
    pub description: Option<String>,
    #[serde(skip)]
    pub origin: Origin,
}

/// The keys that only a restart changes. A running server applies all others
/// ([`fairq_host::server::Admin::update`]); of the key `group` only the group of tenants.
pub const FIXED: [&str; 16] = [
    "name",
    "size",
    "offset",
    "path",
    "create",
    "store",
    "keep-data",
    "read-only",
    "urgent",
    "identity",
    "uid",
    "user",
    "unix-group",
    "connections",
    "ublk",
    "description",
];

/// A tenant, complete except for its place on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// Name of the tenant and of its export.
    pub name: String,
    /// Its size in bytes; an equal part of the free space if `None`.
    pub size: Option<u64>,
    /// Start of its range, in bytes; any free place if `None`.
    pub offset: Option<u64>,
    /// The path of its own file, if it has one.
    pub path: Option<PathBuf>,
    /// Whether its file is made if it is missing.
    pub create: bool,
    /// The name of the store of its file. `None` is the store of the block device that holds the
    /// file.
    pub store: Option<String>,
    /// Whether its range keeps the data: it is then not zeroed when the tenant is added to a
    /// running server.
    pub keep_data: bool,
    /// The place of its configuration, for messages.
    pub origin: Origin,
    /// Its other settings, with its present weight.
    pub settings: TenantSettings,
}

/// A part of one of the device's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Number of the file on the device.
    pub file: u16,
    /// Start of the range, in bytes.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub size: u64,
}

/// Tables by the tenants' names.
pub fn by_name(tables: &[Spanned<TenantTable>]) -> HashMap<&str, &TenantTable> {
    tables.iter().map(Spanned::get_ref).map(|table| (&*table.name, table)).collect()
}

impl FromStr for TenantTable {
    type Err = String;

    fn from_str(text: &str) -> Result<TenantTable, String> {
        let items = pairs::items(text);
        let (first, rest) = items.split_first().expect("splitting gives at least one item");
        let (name, after) = match first.find(['=', ':']) {
            Some(at) => (&first[..at], Some(&first[at + 1..])),
            None => (first.as_str(), None),
        };
        let mut list = vec![Pair::new("name", name.trim())];
        match after {
            // `db=weight=300` leaves out the size, like `db,weight=300`.
            Some(pair) if pair.contains(['=', ':']) => {
                list.extend(pairs::pairs([&pair.to_owned()]))
            }
            Some(size) => list.push(Pair::new("size", size)),
            None => {}
        }
        list.extend(pairs::pairs(rest));
        let table: TenantTable = pairs::read(list)?;
        check_name(&table.name)?;
        Ok(table)
    }
}

impl TenantTable {
    /// Overrides keys with those of `flags`.
    pub fn overlaid(self, flags: TenantTable) -> TenantTable {
        TenantTable { origin: self.origin.clone(), ..keys::overlay(&self, &flags) }
    }

    /// Whether all keys are the same; the places of the two tables may differ.
    pub fn says_the_same_as(&self, other: &TenantTable) -> bool {
        self == other || TenantTable { origin: other.origin.clone(), ..self.clone() } == *other
    }

    /// The values of its keys for caps.
    pub fn caps(&self) -> caps::Written {
        caps_of!(self)
    }

    /// Replaces its keys for caps.
    pub fn set_caps(&mut self, said: &caps::Written) {
        [self.max_iops, self.read_max_iops, self.write_max_iops] = said.iops;
        [self.max_bandwidth, self.read_max_bandwidth, self.write_max_bandwidth] = said.bandwidth;
        self.burst = said.burst;
    }

    /// The values of its keys for reservations.
    pub fn reservation(&self) -> group::Written {
        group::Written { iops: self.min_iops, bandwidth: self.min_bandwidth }
    }

    /// The group of tenants among the names of its key `group`; `groups` are all groups.
    pub fn group_of(&self, groups: &[Group]) -> Result<Option<String>, String> {
        group::split(self.group.as_ref(), groups).map(|(group, _)| group)
    }

    /// Moves it to a group of tenants; `groups` are all groups.
    pub fn set_group(&mut self, group: Option<&str>, groups: &[Group]) {
        let users = group::split(self.group.as_ref(), groups).map(|(_, users)| users);
        // The key `group` also names groups of users, which stay.
        let mut all = users.ok().flatten().map_or_else(Vec::new, |List(users)| users);
        all.extend(group.map(str::to_owned));
        self.group = (!all.is_empty()).then_some(List(all));
    }

    /// This table with the keys of `new` that a running server can change. `groups` are the groups
    /// before and after.
    pub fn updated(&self, new: &TenantTable, (old, groups): (&[Group], &[Group])) -> TenantTable {
        let mut table =
            TenantTable { origin: self.origin.clone(), ..keys::keep(self, new, &FIXED) };
        // The key `group` also names groups of users, which stay.
        table.group.clone_from(&self.group);
        table.set_group(new.group_of(groups).ok().flatten().as_deref(), old);
        table
    }

    /// Sets a key that a running server can change, or takes it away if the value is `off`.
    /// `groups` are all groups.
    pub fn set(&mut self, key: &str, value: &str, groups: &[Group]) -> Result<(), String> {
        let key = &*key.replace('_', "-");
        if key == "group" {
            let group = (value != OFF).then_some(value);
            if group.is_some_and(|name| groups.iter().all(|group| group.name != name)) {
                return Err(format!(
                    "there is no group {value}: add it with `group {value} weight=100`, say"
                ));
            }
            self.set_group(group, groups);
            return Ok(());
        }
        // A comma separates keys unless it is doubled.
        let value = value.replace(',', ",,");
        let one = if value == OFF { String::new() } else { format!(",{key}={value}") };
        let said: TenantTable = format!("{}{one}", self.name).parse()?;
        if FIXED.contains(&key) {
            return Err(format!("{key} can be changed only by a restart"));
        }
        let rest = keys::without(self, key)?;
        *self = TenantTable { origin: self.origin.clone(), ..keys::overlay(&rest, &said) };
        Ok(())
    }

    /// The settings that a running server takes from this table. The users in it are not resolved,
    /// so the settings that depend on users are missing. `cgroups` is the root of cgroups.
    pub fn settings(&self, cgroups: &Path, groups: &[Group]) -> Result<TenantSettings, Refusal> {
        let mut table = TenantTable { uid: None, user: None, unix_group: None, ..self.clone() };
        let group = self.group_of(groups).map_err(Refusal::new)?;
        table.group = group.map(|group| List(vec![group]));
        Ok(table.complete(cgroups, groups, &Directory::default())?.settings)
    }

    /// Its own latency target, or that of the nearest of its groups that has one.
    pub fn target(&self, groups: &[Group]) -> Result<Option<Target>, String> {
        let own = latency::target(self.latency, self.latency_percentile, self.floor)?;
        // `complete` refuses an unknown group; here such a group only has no target.
        let of_group = || group::target(self.group_of(groups).ok().flatten().as_deref(), groups);
        Ok(own.or_else(of_group))
    }

    /// Whether it names users or groups, which have to be resolved on this machine.
    pub fn names_users(&self) -> bool {
        self.user.is_some() || self.group.is_some() || self.unix_group.is_some()
    }

    /// The groups of users that its keys name: the names in `unix-group`, and the names in `group`
    /// that are groups of users, which this release still accepts.
    fn unix_groups(&self, groups: &[Group]) -> Result<Option<List<String>>, String> {
        let (_, old) = group::split(self.group.as_ref(), groups)?;
        let lists = [self.unix_group.as_ref(), old.as_ref()].into_iter().flatten();
        let all: Vec<String> = lists.flat_map(|List(names)| names).cloned().collect();
        Ok((self.unix_group.is_some() || !all.is_empty()).then_some(List(all)))
    }

    /// A warning about groups of users under the key `group`.
    pub fn warning(&self, groups: &[Group]) -> Option<String> {
        let List(names) = group::split(self.group.as_ref(), groups).ok()?.1?;
        let names = names.join("+");
        Some(format!(
            "tenant {}: group: {names} names users of this machine: write unix-group = \"{names}\", \
             because the next release takes only a group of tenants here",
            self.name
        ))
    }

    /// Refuses keys that are invalid by themselves or with these groups; `cgroups` is the root of
    /// cgroups.
    pub fn complete(
        self,
        cgroups: &Path,
        groups: &[Group],
        directory: &Directory,
    ) -> Result<Tenant, Refusal> {
        let refuse = |text: String| {
            Err(Refusal::new(format!("{}: tenant {}: {text}", self.origin, self.name)))
        };
        if let Err(text) = check_name(&self.name) {
            return Err(Refusal::new(format!("{}: {text}", self.origin)));
        }
        for (key, value) in [("size", self.size), ("offset", self.offset)] {
            let Some(Size(bytes)) = value else { continue };
            if bytes % SECTOR != 0 || (key == "size" && bytes == 0) {
                // For a size of 0 the next multiple has to be above 0. Sizes are below 2^63, so
                // none overflows.
                let up = exact_size(bytes.max(1).next_multiple_of(SECTOR));
                let above = if key == "size" { " above 0" } else { "" };
                let given = exact_size(bytes);
                return refuse(format!(
                    "{key} {given} is not a multiple of {SECTOR}{above}: round it up to {up}"
                ));
            }
        }
        let create = self.create.unwrap_or(false);
        match (&self.path, self.offset, self.size) {
            (Some(_), Some(_), _) => {
                return refuse("a file of its own is used whole: leave out offset".into());
            }
            (Some(path), None, None) if create => {
                return refuse(format!(
                    "create needs to know how large {} is to be: add size=10G, say",
                    path.display()
                ));
            }
            (None, _, _) if create => {
                return refuse("create is for a file of its own: add path=FILE".into());
            }
            (None, Some(_), None) => {
                return refuse("an offset needs a size: add size=10G, say".into());
            }
            _ => {}
        }
        if self.store.is_some() && self.path.is_none() {
            return refuse("store is for a file of its own: add path=FILE".into());
        }
        if self.store.as_ref().is_some_and(String::is_empty) {
            return refuse("store needs a name: store=fast, say".into());
        }
        if let Some(0) = self.connections {
            return refuse("connections: 0 would let no client connect: write 1 or more".into());
        }
        for (key, path) in [("vhost-user", &self.vhost_user), ("vfio-user", &self.vfio_user)] {
            if let Some(Err(text)) = path.as_deref().map(listen::check_path) {
                return refuse(format!("{key}: {text}"));
            }
        }
        let named = self.group_of(groups).and_then(|group| Ok((group, self.unix_groups(groups)?)));
        let (group, user_groups) = match named {
            Ok(both) => both,
            Err(text) => return refuse(text),
        };
        let users = (self.uid.as_ref(), self.user.as_ref(), user_groups.as_ref());
        let users = match access::users(users.0, users.1, users.2, directory) {
            Ok(users) => users,
            Err(text) => return refuse(text),
        };
        let target = match self.target(groups) {
            Ok(target) => target,
            Err(text) => return refuse(text),
        };
        let caps = match self.caps().caps() {
            Ok(caps) => caps,
            Err(text) => return refuse(text),
        };
        let reservation = match self.reservation().reservation(&caps) {
            Ok(reservation) => reservation,
            Err(text) => return refuse(text),
        };
        let weight = match self.weight.clone().unwrap_or_default().now(cgroups) {
            Ok(weight) => weight,
            Err(text) => return refuse(text),
        };
        Ok(Tenant {
            name: self.name,
            size: self.size.map(|Size(bytes)| bytes),
            offset: self.offset.map(|Size(bytes)| bytes),
            path: self.path,
            create,
            store: self.store,
            keep_data: self.keep_data.unwrap_or(false),
            origin: self.origin,
            settings: TenantSettings {
                description: self.description.unwrap_or_default(),
                weight,
                read_only: self.read_only.unwrap_or(false),
                urgent: self.urgent.unwrap_or(false),
                target,
                caps,
                group,
                reservation,
                identity: self.identity.as_deref().map(Identity::from),
                users,
                connections: self.connections,
                ublk: self.ublk.unwrap_or(false),
                vhost_user: self.vhost_user,
                vfio_user: self.vfio_user,
            },
        })
    }
}

/// Gives every tenant its place. `shared` is the size of the device that tenants without a file of
/// their own share (it is file 0 then); `own` has the size of each file of a tenant, in the
/// tenants' order; all in bytes.
///
/// Tenants with an offset are placed first; then tenants with a size, each in the first gap that it
/// fits into. Tenants with neither share the largest remaining gap in equal parts, and the last of
/// them also gets the rest of the division, because a disk's image may use its last bytes, for the
/// copy of the partition table. Ranges are whole sectors, which most clients' kernels can address.
pub fn layout(tenants: &[Tenant], shared: Option<u64>, own: &[u64]) -> Result<Vec<Range>, Refusal> {
    let mut places: Vec<Option<Range>> = vec![None; tenants.len()];
    // The shared file is number 0: the tenants' own files follow it.
    let mut files = (u16::from(shared.is_some())..).zip(own);
    for (tenant, place) in
        tenants.iter().zip(&mut places).filter(|(tenant, _)| tenant.path.is_some())
    {
        let (file, &size) = files.next().expect("one size for each file");
        *place = Some(Range { file, offset: 0, size: tenant.size.unwrap_or(size) });
        if tenant.size.is_some_and(|wanted| wanted > size) {
            return Err(does_not_fit(tenant, "its file", size));
        }
    }
    let device = shared.unwrap_or(0);
    // The ranges in the order of their first bytes, so that only neighbours can overlap.
    let mut taken: BTreeMap<u64, (u64, &str)> = BTreeMap::new();
    for (tenant, place) in tenants.iter().zip(&mut places) {
        let (Some(offset), Some(size)) = (tenant.offset, tenant.size) else { continue };
        let end = offset.saturating_add(size);
        if end > device {
            return Err(does_not_fit(tenant, "the device", device));
        }
        let before = taken.range(..end).next_back();
        if let Some((from, (to, other))) = before.filter(|(_, (to, _))| offset < *to) {
            return Err(Refusal::new(format!(
                "{}: tenants {other} ({}..{}) and {} ({}..{}) overlap: move one, or leave out both \
                 offsets",
                tenant.origin,
                exact_size(*from),
                exact_size(*to),
                tenant.name,
                exact_size(offset),
                exact_size(end),
            )));
        }
        taken.insert(offset, (end, &tenant.name));
        *place = Some(Range { file: 0, offset, size });
    }
    let mut gaps = gaps(&taken, device);
    for (tenant, place) in tenants.iter().zip(&mut places).filter(|(_, place)| place.is_none()) {
        let Some(size) = tenant.size else { continue };
        let Some(at) = gaps.iter().position(|(_, length)| *length >= size) else {
            return Err(no_room(tenant, size, device, &gaps));
        };
        let (offset, length) = gaps[at];
        *place = Some(Range { file: 0, offset, size });
        if length == size {
            gaps.remove(at);
        } else {
            gaps[at] = (offset + size, length - size);
        }
    }
    share_the_rest(tenants, &mut places, &gaps, device)?;
    Ok(places.into_iter().flatten().collect())
}

fn share_the_rest(
    tenants: &[Tenant],
    places: &mut [Option<Range>],
    gaps: &[(u64, u64)],
    device: u64,
) -> Result<(), Refusal> {
    let count = places.iter().filter(|place| place.is_none()).count() as u64;
    if count == 0 {
        return Ok(());
    }
    let (mut offset, length) = gaps.iter().copied().max_by_key(|gap| gap.1).unwrap_or((0, 0));
    // On a small device parts of whole MiB would be much smaller for some tenants, or empty.
    let unit = if length / count >= PART { PART } else { SECTOR };
    let size = length / count / unit * unit;
    // A file may end in the middle of a sector, which clients cannot address.
    let end = (offset + length) / SECTOR * SECTOR;
    let open = tenants.iter().zip(places).filter(|(_, place)| place.is_none());
    for (nth, (tenant, place)) in (1..).zip(open) {
        if size == 0 {
            return Err(Refusal::new(format!(
                "{}: tenant {}: nothing is left of the device's {}: make it larger, or others \
                 smaller",
                tenant.origin,
                tenant.name,
                exact_size(device)
            )));
        }
        let size = if nth == count { end - offset } else { size };
        *place = Some(Range { file: 0, offset, size });
        offset += size;
    }
    Ok(())
}

/// The free ranges as offset and length, in order, in bytes.
fn gaps(taken: &BTreeMap<u64, (u64, &str)>, device: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut end = 0;
    let ranges = taken.iter().map(|(from, (to, _))| (*from, *to));
    for (from, to) in ranges.chain([(device, device)]) {
        if from > end {
            gaps.push((end, from - end));
        }
        end = end.max(to);
    }
    gaps
}

fn does_not_fit(tenant: &Tenant, what: &str, size: u64) -> Refusal {
    let end = tenant.offset.unwrap_or(0).saturating_add(tenant.size.unwrap_or(0));
    Refusal::new(format!(
        "{}: tenant {} ends at {}, {what} at {}: make the tenant smaller or {what} larger",
        tenant.origin,
        tenant.name,
        exact_size(end),
        exact_size(size)
    ))
}

fn no_room(tenant: &Tenant, size: u64, device: u64, gaps: &[(u64, u64)]) -> Refusal {
    let free: u64 = gaps.iter().map(|gap| gap.1).sum();
    let largest = gaps.iter().map(|gap| gap.1).max().unwrap_or(0);
    let left = match free {
        0 => format!("nothing is left of the device's {}", exact_size(device)),
        _ if free == device => format!("the device has {}", exact_size(device)),
        _ if largest == free => {
            format!("{} are left of the device's {}", exact_size(free), exact_size(device))
        }
        _ => format!(
            "of the {} that are left only {} are in one piece",
            exact_size(free),
            exact_size(largest)
        ),
    };
    Refusal::new(format!(
        "{}: tenant {} wants {}, but {left}: make the device larger, or tenants smaller",
        tenant.origin,
        tenant.name,
        exact_size(size),
    ))
}

#[cfg(test)]
mod tests {
    use fairq_core::{Cap, Caps, Counted, Reservation, Side, Weight};
    use fairq_host::nbd::session::users::Users;

    use super::*;

    fn tenants(specs: &[&str]) -> Result<Vec<Tenant>, String> {
        specs
            .iter()
            .map(|spec| {
                let table = spec.parse::<TenantTable>()?;
                table
                    .complete("/sys/fs/cgroup".as_ref(), &[], &Directory::default())
                    .map_err(|refusal| refusal.to_string())
            })
            .collect()
    }

    /// Offsets and sizes in MiB.
    fn place(specs: &[&str], device_mib: u64) -> Result<Vec<(u64, u64)>, String> {
        let ranges = layout(&tenants(specs)?, Some(device_mib << 20), &[])
            .map_err(|refusal| refusal.to_string())?;
        Ok(ranges.iter().map(|range| (range.offset >> 20, range.size >> 20)).collect())
    }

    #[test]
    fn every_key_is_read() {
        let tenant = &tenants(&[
            "db=10G,weight=300,offset=1G,read_only=true,urgent=true,latency=200us,latency-percentile=99.9,floor=25%,max-iops=1k,write-max-bandwidth=10M/s,burst=1s,min-iops=500,min-bandwidth=1M/s,identity=db.example.org,uid=7,user=root,connections=9,ublk,description=orders,, and more",
        ])
        .unwrap()[0];
        let expected = Tenant {
            name: "db".into(),
            size: Some(10 << 30),
            offset: Some(1 << 30),
            path: None,
            create: false,
            store: None,
            keep_data: false,
            origin: Origin::Flag,
            settings: TenantSettings {
                description: "orders, and more".into(),
                weight: Weight::new(300).unwrap(),
                read_only: true,
                urgent: true,
                target: Target::new(200_000, 1_000, 25),
                caps: Caps::default()
                    .with(Side::Both, Counted::Requests, Cap::new(1000, 1000))
                    .with(Side::Writes, Counted::Bytes, Cap::new(10 << 20, 10 << 20)),
                group: None,
                reservation: Reservation::new(500, 1 << 20).unwrap(),
                identity: Some("db.example.org".into()),
                users: Users { uids: vec![7, 0], gids: Vec::new() },
                connections: Some(9),
                ublk: true,
                vhost_user: None,
                vfio_user: None,
            },
        };
        assert_eq!(*tenant, expected);
        assert_eq!(tenants(&["db,weight=7"]), tenants(&["db=weight=7"]));
        assert_eq!(tenants(&["db"]).unwrap()[0].settings.weight, Weight::DEFAULT);
        let own = &tenants(&["db=1G,path=/srv/db.img,create,store=fast"]).unwrap()[0];
        assert_eq!(own.store.as_deref(), Some("fast"));
        let shared = tenants(&["db=1G,store=fast"]).unwrap_err().to_string();
        assert!(shared.contains("add path=FILE"), "{shared}");
        assert_eq!((own.path.as_deref(), own.create), (Some("/srv/db.img".as_ref()), true));
    }

    #[test]
    fn groups_of_users_have_a_key_of_their_own() {
        let gids = |spec: &str| tenants(&[spec]).unwrap().remove(0).settings.users.gids;
        assert_eq!(gids("db,unix-group=root+4711"), [0, 4711]);
        assert_eq!(gids("db,unix-group=4711,group=root"), [4711, 0]);
        let warning = |spec: &str| spec.parse::<TenantTable>().unwrap().warning(&[]);
        assert_eq!(warning("db,unix-group=root"), None);
        let text = warning("db,group=root+backup").unwrap();
        assert!(text.contains("write unix-group = \"root+backup\""), "{text}");
        let nobody = TenantTable { unix_group: Some(List(Vec::new())), ..TenantTable::default() };
        let nobody = TenantTable { name: "db".into(), ..nobody };
        let refused = nobody.complete(Path::new("/"), &[], &Directory::default()).unwrap_err();
        assert!(refused.to_string().contains("unix-group name nobody"), "{refused}");
    }

    #[test]
    fn names_are_utf_8_that_can_be_seen() {
        for name in ["db", "a.b_c-9", "größe", "базa", "データ", "हिन्दी", "🗄", &"ä".repeat(64)]
        {
            assert_eq!(check_name(name), Ok(()), "{name}");
            assert_eq!(tenants(&[&format!("{name}=1G")]).unwrap()[0].name, name);
        }
        let long = "ä".repeat(65);
        for name in [
            "",
            "a b",
            "a/b",
            "a=b",
            "a\nb",
            "a\u{7f}",
            "a\u{85}b",
            "a\u{a0}b",
            "a\u{202e}b",
            "\u{200b}",
            "\u{feff}a",
            "\u{e000}",
            &long,
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn refusals_name_the_tenant_and_the_cure() {
        let refusal = |spec: &str| tenants(&[spec]).unwrap_err();
        assert_eq!(
            refusal("db=10G,weight=0"),
            "weight: `0` is not a weight: write a whole number from 1 to 10000 (100 is the usual)"
        );
        assert_eq!(refusal("=10G"), "a tenant needs a name, as in db=10G,weight=300");
        assert_eq!(
            refusal("a/b=10G"),
            "tenant name `a/b`: up to 64 letters, digits, `.`, `_` and `-` are allowed"
        );
        let typo = refusal("db=10G,wieght=3");
        let start = "unknown key `wieght`; did you mean `weight`? (allowed: name, size, offset, \
         weight, path, create, ";
        assert!(typo.starts_with(start), "{typo}");
        assert_eq!(
            refusal("db=1000"),
            "--tenant: tenant db: size 1000 is not a multiple of 512 above 0: round it up to 1k"
        );
        assert_eq!(
            refusal("db=1k,offset=3"),
            "--tenant: tenant db: offset 3 is not a multiple of 512: round it up to 512"
        );
        assert_eq!(
            refusal("db,offset=1G"),
            "--tenant: tenant db: an offset needs a size: add size=10G, say"
        );
        assert_eq!(
            refusal("db,offset=1G,path=/a"),
            "--tenant: tenant db: a file of its own is used whole: leave out offset"
        );
        assert_eq!(
            refusal("db,create,path=/a"),
            "--tenant: tenant db: create needs to know how large /a is to be: add size=10G, say"
        );
        assert_eq!(
            refusal("db=1G,create"),
            "--tenant: tenant db: create is for a file of its own: add path=FILE"
        );
    }

    #[test]
    fn who_says_nothing_gets_an_equal_part_of_the_rest() {
        assert_eq!(place(&["a", "b"], 100), Ok(vec![(0, 50), (50, 50)]));
        assert_eq!(place(&["a", "b=10M", "c"], 100), Ok(vec![(10, 45), (0, 10), (55, 45)]));
        assert_eq!(
            place(&["a=10M,offset=20M", "b=30M", "c=20M"], 100),
            Ok(vec![(20, 10), (30, 30), (0, 20)])
        );
        assert_eq!(place(&["a", "b", "c"], 100), Ok(vec![(0, 33), (33, 33), (66, 34)]));
    }

    /// The end of a disk's image may have the copy of the partition table, and its size may be a
    /// multiple of a sector only.
    #[test]
    fn the_last_of_those_gets_the_end_of_the_device() {
        let sizes = |specs: &[&str], device| {
            let ranges = layout(&tenants(specs).unwrap(), Some(device), &[]).unwrap();
            let left = device - ranges.iter().map(|range| range.size).sum::<u64>();
            (ranges.iter().map(|range| range.size).collect::<Vec<_>>(), left)
        };
        assert_eq!(sizes(&["a"], 1_574_400), (vec![1_574_400], 0));
        assert_eq!(sizes(&["a"], 1_574_401), (vec![1_574_400], 1), "less than a sector");
        assert_eq!(sizes(&["a", "b"], 3_148_800), (vec![1 << 20, 3_148_800 - (1 << 20)], 0));
        assert_eq!(sizes(&["a=512", "b"], 1_574_400), (vec![512, 1_574_400 - 512], 0));
        assert_eq!(sizes(&["a=512,offset=1k", "b"], 4096), (vec![512, 2560], 1024), "two gaps");
    }

    #[test]
    fn ranges_never_overlap_and_always_fit() {
        assert_eq!(
            place(&["a=50M,offset=0", "b=50M,offset=40M"], 100).unwrap_err(),
            "--tenant: tenants a (0..50M) and b (40M..90M) overlap: move one, or leave out both \
             offsets"
        );
        assert_eq!(
            place(&["a=60M", "b=60M"], 100).unwrap_err(),
            "--tenant: tenant b wants 60M, but 40M are left of the device's 100M: make the device \
             larger, or tenants smaller"
        );
        assert_eq!(
            place(&["a=10M,offset=45M", "b=50M"], 100).unwrap_err(),
            "--tenant: tenant b wants 50M, but of the 90M that are left only 45M are in one piece: \
             make the device larger, \
             or tenants smaller"
        );
        assert_eq!(
            place(&["a=1G"], 100).unwrap_err(),
            "--tenant: tenant a wants 1G, but the device has 100M: make the device larger, or \
             tenants smaller"
        );
        assert_eq!(
            place(&["a=10M,offset=95M"], 100).unwrap_err(),
            "--tenant: tenant a ends at 105M, the device at 100M: make the tenant smaller or the \
             device larger"
        );
        assert_eq!(
            place(&["a=100M", "b"], 100).unwrap_err(),
            "--tenant: tenant b: nothing is left of the device's 100M: make it larger, or others \
             smaller"
        );
    }

    #[test]
    fn files_of_their_own_follow_the_shared_one() {
        let list = tenants(&["a,path=/a", "b", "c=1M,path=/c"]).unwrap();
        let ranges = layout(&list, Some(8 << 20), &[4 << 20, 2 << 20]).unwrap();
        let range = |file, offset, mib: u64| Range { file, offset, size: mib << 20 };
        assert_eq!(ranges, [range(1, 0, 4), range(0, 0, 8), range(2, 0, 1)]);
        let list = tenants(&["a,path=/a"]).unwrap();
        assert_eq!(layout(&list, None, &[4 << 20]).unwrap(), [range(0, 0, 4)]);
        let list = tenants(&["a=8M,path=/a"]).unwrap();
        assert_eq!(
            layout(&list, None, &[4 << 20]).unwrap_err().to_string(),
            "--tenant: tenant a ends at 8M, its file at 4M: make the tenant smaller or its file \
             larger"
        );
    }
}
