//! `--group NAME=key=value,…` and `[[group]]`: tenants with a common weight and limits. Also the
//! keys `min-iops` and `min-bandwidth`, which reserve a rate for a tenant or a group.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use fairq_core::{Cap, Caps, Counted, Group as Settings, Reservation, Side, Target, Weight};
use serde::{Deserialize, Serialize};

use crate::access::{Directory, List};
use crate::caps::{self, Burst};
use crate::caps_of;
use crate::name::{Origin, check_name};
use crate::pairs::{self, Pair};
use crate::refusal::Refusal;
use crate::units::{Bandwidth, Count, Nanos, Part, Percentile};
use crate::weight::{Cgroups, WeightSource};
use crate::{keys, latency};

/// Separator between the names of nested groups.
const INSIDE: char = '/';

/// A group's keys as configured.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs, reason = "fields are keys of files, which docs/REFERENCE.md describes")]
pub struct GroupTable {
    pub name: String,
    pub weight: Option<WeightSource>,
    pub cgroup: Option<PathBuf>,
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
    #[serde(skip)]
    pub origin: Origin,
}

/// A complete group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name with the names of its outer groups first: `acme/batch`.
    pub name: String,
    /// Its weight relative to its siblings.
    pub weight: Weight,
    /// The rate that is reserved for its tenants together.
    pub reservation: Reservation,
    /// The upper limits of the rate of its tenants together.
    pub caps: Caps,
    /// The latency target of each tenant in it, unless the tenant or a group nearer to the tenant
    /// has a target.
    pub target: Option<Target>,
    /// Whether this machine has a group of users of this name. False until [`mark_ambiguous`] has
    /// resolved the name.
    pub is_ambiguous: bool,
    /// The reason why its cgroup's `io.max` has no effect although that file limits some disk.
    pub unused: Option<String>,
}

impl Group {
    /// The name of the outer group; `None` at the top.
    pub fn parent(&self) -> Option<&str> {
        self.name.rsplit_once(INSIDE).map(|(parent, _)| parent)
    }
}

impl FromStr for GroupTable {
    type Err = String;

    fn from_str(text: &str) -> Result<GroupTable, String> {
        let items = pairs::items(text);
        let (first, rest) = items.split_first().expect("splitting gives at least one item");
        let (name, after) = match first.find(['=', ':']) {
            Some(at) => (&first[..at], Some(&first[at + 1..])),
            None => (first.as_str(), None),
        };
        let mut list = vec![Pair::new("name", name.trim())];
        list.extend(after.map(|pair| pairs::pairs([&pair.to_owned()])).unwrap_or_default());
        list.extend(pairs::pairs(rest));
        let table: GroupTable = pairs::read(list)?;
        check_path(&table.name)?;
        Ok(table)
    }
}

/// Refuses invalid names. A name consists of one or more names like tenants', the outermost group's
/// first.
fn check_path(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("a group needs a name, as in acme,weight=300".into());
    }
    let depth = name.split(INSIDE).count();
    if depth > Settings::LEVELS {
        return Err(format!(
            "group {name} is {depth} deep, and {} is the most: put its tenants into {}",
            Settings::LEVELS,
            name.split(INSIDE).take(Settings::LEVELS).collect::<Vec<_>>().join("/")
        ));
    }
    match name.split(INSIDE).find(|part| check_name(part).is_err()) {
        None => Ok(()),
        Some(part) => Err(format!(
            "group name `{name}`: `{part}` is no name: up to 64 letters, digits, `.`, `_` and `-` \
             are allowed, and `/` before the name of an inner group"
        )),
    }
}

impl GroupTable {
    /// Overrides keys with those of `flags`.
    pub fn overlaid(self, flags: GroupTable) -> GroupTable {
        GroupTable { origin: self.origin.clone(), ..keys::overlay(&self, &flags) }
    }

    /// The values of its keys for caps.
    pub fn caps(&self) -> caps::Written {
        caps_of!(self)
    }

    /// The values of its keys for reservations.
    pub fn reservation(&self) -> Written {
        Written { iops: self.min_iops, bandwidth: self.min_bandwidth }
    }

    /// Whether it takes its weight or its caps from a cgroup.
    pub fn follows(&self) -> bool {
        self.cgroup.is_some() || matches!(self.weight, Some(WeightSource::Cgroup(_)))
    }

    /// Unsets a key. Unsetting `latency` also unsets the percentile and the floor, which have no
    /// meaning without it.
    pub fn clear(&mut self, key: &str) -> Result<(), String> {
        let with_latency = ["latency", "latency-percentile", "floor"];
        let all = if key == "latency" { &with_latency[..] } else { &[key][..] };
        if key == "name" {
            return Err("a group needs its name: remove the group instead".into());
        }
        for key in all {
            let table = keys::without(self, key)?;
            *self = GroupTable { origin: self.origin.clone(), ..table };
        }
        Ok(())
    }

    /// Refuses invalid keys. Without `cgroups` a cgroup's values are left out.
    pub fn complete(&self, cgroups: Option<&Cgroups>) -> Result<Group, Refusal> {
        let refuse = |text: String| Refusal::new(format!("{}: {text}", self.place()));
        check_path(&self.name).map_err(refuse)?;
        self.settings(cgroups).map_err(|text| refuse(format!("group {}: {text}", self.name)))
    }

    fn settings(&self, cgroups: Option<&Cgroups>) -> Result<Group, String> {
        if self.cgroup.is_some() && self.weight.is_some() {
            return Err("the cgroup sets the weight: leave out weight, or cgroup".into());
        }
        let said = self.caps();
        if self.cgroup.is_some() && said != caps::Written::default() {
            return Err("the cgroup's io.max sets the caps: leave them out, or cgroup".into());
        }
        let mut caps = said.caps()?;
        let (mut weight, mut unused) = (Weight::DEFAULT, None);
        match (&self.cgroup, &self.weight, cgroups) {
            (Some(path), _, Some(cgroups)) => {
                let said = cgroups.io_max(path)?;
                (weight, caps, unused) = (cgroups.weight(path)?, said.caps, said.unused);
            }
            (_, Some(source @ WeightSource::Cgroup(_)), Some(cgroups)) => {
                weight = source.now(&cgroups.root)?;
            }
            (_, Some(WeightSource::Fixed(fixed)), _) => weight = *fixed,
            // No weight is configured, or its cgroup is not to be read: `known_groups` needs no
            // weights.
            _ => {}
        }
        // A cgroup's limit may fall below the reservation at any time, so it is not compared.
        let own = if self.cgroup.is_some() { Caps::default() } else { caps };
        let reservation = self.reservation().reservation(&own)?;
        let target = latency::target(self.latency, self.latency_percentile, self.floor)?;
        let (name, is_ambiguous) = (self.name.clone(), false);
        Ok(Group { name, weight, reservation, caps, target, is_ambiguous, unused })
    }

    fn place(&self) -> String {
        match &self.origin {
            Origin::Flag => "--group".into(),
            origin => origin.to_string(),
        }
    }
}

/// Completes all groups, outer ones first.
pub fn complete<'a>(
    tables: impl IntoIterator<Item = &'a GroupTable>,
    cgroups: Option<&Cgroups>,
) -> Result<Vec<Group>, Refusal> {
    let mut tables: Vec<&GroupTable> = tables.into_iter().collect();
    // All names are collected before a group is completed, because the file may have a group above
    // its outer group.
    let mut known: HashMap<&str, &GroupTable> = HashMap::new();
    for table in &tables {
        if let Some(earlier) = known.insert(&table.name, table) {
            return Err(Refusal::new(format!(
                "{}: group {} is already there ({}): leave one out",
                table.place(),
                table.name,
                earlier.place()
            )));
        }
    }
    if tables.len() > Settings::MOST {
        return Err(Refusal::new(format!(
            "{} groups are too many: at most {}",
            tables.len(),
            Settings::MOST
        )));
    }
    // The sort is stable: siblings stay in the order of the file.
    tables.sort_by_key(|table| table.name.matches(INSIDE).count());
    let group = |table: &&GroupTable| {
        let group = table.complete(cgroups)?;
        match group.parent().filter(|parent| !known.contains_key(parent)) {
            None => Ok(group),
            Some(parent) => Err(Refusal::new(format!(
                "{}: group {} is in {parent}, and there is no such group: add [[group]] name = \
                 \"{parent}\" (or --group {parent})",
                table.place(),
                table.name
            ))),
        }
    };
    tables.iter().map(group).collect()
}

/// Notes which of these groups have the name of a group of users.
pub fn mark_ambiguous(groups: &mut [Group], directory: &Directory) {
    for group in groups {
        group.is_ambiguous = directory.has_group(&group.name);
    }
}

/// The latency target of this group, or of the nearest outer group that has one.
pub fn target<'a>(mut name: Option<&'a str>, groups: &'a [Group]) -> Option<Target> {
    while let Some(group) = groups.iter().find(|group| Some(&*group.name) == name) {
        if group.target.is_some() {
            return group.target;
        }
        name = group.parent();
    }
    None
}

/// Splits the names of a tenant's key `group` into the group of tenants, and groups of users.
///
/// A name of both a group of tenants and a group of users is refused, because adding a group of
/// tenants later must not open an export that is restricted to a group of users.
pub fn split(
    said: Option<&List<String>>,
    groups: &[Group],
) -> Result<(Option<String>, Option<List<String>>), String> {
    let Some(List(names)) = said else { return Ok((None, None)) };
    let find = |name: &String| groups.iter().find(|group| group.name == *name);
    let (own, users): (Vec<&String>, Vec<&String>) =
        names.iter().partition(|name| find(name).is_some());
    if let [first, second, ..] = own[..] {
        return Err(format!(
            "group: {first} and {second} are both groups of tenants, and a tenant is in one: leave \
             one out"
        ));
    }
    // A name with `/` can only be a group of tenants.
    if let Some(unknown) = users.iter().find(|name| name.contains(INSIDE)) {
        return Err(format!(
            "group: there is no group {unknown}: add [[group]] name = \"{unknown}\" (or --group \
             {unknown}), or name another"
        ));
    }
    if let [name] = own[..]
        && find(name).is_some_and(|group| group.is_ambiguous)
    {
        return Err(format!(
            "group: {name} is a group of tenants and a group of this machine's users: give the \
             group of tenants another name"
        ));
    }
    let users = (!users.is_empty()).then(|| List(users.into_iter().cloned().collect()));
    Ok((own.first().map(|name| (*name).clone()), users))
}

/// The values of the keys `min-iops` and `min-bandwidth`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Requests a second.
    pub iops: Option<Count>,
    /// Bytes a second.
    pub bandwidth: Option<Bandwidth>,
}

/// The keys of reservations.
pub const KEYS: [&str; 2] = ["min-iops", "min-bandwidth"];

impl Written {
    /// The reservation of a tenant or group with these caps.
    pub fn reservation(&self, caps: &Caps) -> Result<Reservation, String> {
        let iops = self.iops.map(|Count(iops)| iops);
        let bytes = self.bandwidth.map(|Bandwidth(bytes)| bytes);
        for ((key, said), counted) in
            KEYS.iter().zip([iops, bytes]).zip([Counted::Requests, Counted::Bytes])
        {
            let Some(rate) = said else { continue };
            if rate == 0 {
                return Err(format!("{key} 0 reserves nothing: write 1 or more, or leave it out"));
            }
            let most = most(caps, counted);
            // A cap always applies, so a reservation above it could not be met.
            if most.is_some_and(|most| most < rate) {
                let cap = key.replace("min", "max");
                return Err(format!(
                    "{key} {rate} is above what {cap} allows, {}: lower it, or raise the cap",
                    most.unwrap_or_default()
                ));
            }
        }
        Reservation::new(iops.unwrap_or(0), bytes.unwrap_or(0)).ok_or_else(|| {
            format!("min-iops and min-bandwidth are at most {}: write less", Cap::MOST)
        })
    }
}

/// The highest rate that these caps allow, a second.
fn most(caps: &Caps, counted: Counted) -> Option<u64> {
    let cap = |side| caps.get(side, counted).map(Cap::per_second);
    // Caps on reads and on writes together are a bound, too. Each is at most 2^40, so the sum fits.
    let apart = cap(Side::Reads).zip(cap(Side::Writes)).map(|(reads, writes)| reads + writes);
    [cap(Side::Both), apart].into_iter().flatten().min()
}

/// A reservation in the form of the keys: `min-iops=2000, min-bandwidth=100M/s`.
pub struct Described(pub Reservation);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (iops, bytes) = (self.0.iops(), self.0.bytes());
        match (iops, bytes) {
            (0, 0) => f.write_str("none"),
            (iops, 0) => write!(f, "min-iops={}", Count(iops)),
            (0, bytes) => write!(f, "min-bandwidth={}", Bandwidth(bytes)),
            (iops, bytes) => {
                write!(f, "min-iops={}, min-bandwidth={}", Count(iops), Bandwidth(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(texts: &[&str]) -> Result<Vec<Group>, String> {
        let tables: Vec<GroupTable> =
            texts.iter().map(|text| text.parse()).collect::<Result<_, String>>()?;
        let mut groups = complete(&tables, None).map_err(|refusal| refusal.to_string())?;
        mark_ambiguous(&mut groups, &Directory::default());
        Ok(groups)
    }

    #[test]
    fn a_group_is_written_in_a_line() {
        let all = groups(&["acme/batch=weight=50,min-iops=2k", "acme=weight:300", "solo"]).unwrap();
        let named: Vec<(&str, u16, u64)> = all
            .iter()
            .map(|group| (&*group.name, group.weight.get(), group.reservation.iops()))
            .collect();
        assert_eq!(named, [("acme", 300, 0), ("solo", 100, 0), ("acme/batch", 50, 2000)]);
        assert_eq!(all[2].parent(), Some("acme"));
        let described = Described(Reservation::new(2000, 10 << 20).unwrap()).to_string();
        assert_eq!(described, "min-iops=2000, min-bandwidth=10M/s");
    }

    #[test]
    fn a_group_has_caps_and_the_nearest_target_wins() {
        let specs = ["a=max-iops=5k,latency=2ms", "a/b=latency=1ms,floor=10%", "a/c", "d"];
        let all = groups(&specs).unwrap();
        let cap = all[0].caps.get(Side::Both, Counted::Requests);
        assert_eq!(cap, Cap::new(5000, 500));
        let target = |name| target(Some(name), &all).map(Target::latency_ns);
        let targets = ["a", "a/b", "a/c", "d", "e"].map(target);
        assert_eq!(targets, [Some(2_000_000), Some(1_000_000), Some(2_000_000), None, None]);
        let tenant = |spec: &str| spec.parse::<crate::tenant::TenantTable>().unwrap();
        let of = |spec| tenant(spec).target(&all).unwrap().map(Target::latency_ns);
        assert_eq!(of("x=1G,group=a/c"), Some(2_000_000));
        assert_eq!(of("x=1G,group=a/c,latency=7ms"), Some(7_000_000), "its own");
        let mut table: GroupTable = "a=max-iops=1,burst=5,latency=1ms,floor=3%".parse().unwrap();
        ["max-iops", "burst", "latency"].iter().for_each(|key| table.clear(key).unwrap());
        assert_eq!(table, "a".parse().unwrap());
        assert!(table.clear("size").unwrap_err().contains("unknown key `size`"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_cure() {
        let refusal = |texts: &[&str]| groups(texts).unwrap_err();
        assert_eq!(
            refusal(&["acme/batch"]),
            "--group: group acme/batch is in acme, and there is no such group: add [[group]] name \
             = \"acme\" (or --group acme)"
        );
        assert!(refusal(&["a", "a"]).contains("group a is already there (--group): leave one out"));
        assert!(refusal(&["a/b/c/d/e"]).contains("5 deep, and 4 is the most: put its tenants"));
        assert!(refusal(&["a//b"]).contains("`` is no name"));
        assert!(refusal(&["a=wieght=3"]).contains("did you mean `weight`?"));
        assert!(refusal(&["a=min-iops=0"]).contains("min-iops 0 reserves nothing"));
        assert!(refusal(&["a=max-iops=0"]).contains("--group: group a: max-iops 0 would let"));
        assert!(refusal(&["a=min-iops=9,max-iops=8"]).contains("is above what max-iops allows"));
        assert!(refusal(&["a=cgroup=/a,weight=3"]).contains("leave out weight, or cgroup"));
        assert!(refusal(&["a=cgroup=/a,max-iops=3"]).contains("leave them out, or cgroup"));
        assert!(refusal(&["a=burst=1s"]).contains("add max-iops=1000, say"));
        assert!(refusal(&["a=latency=0"]).contains("latency 0ns is not from"));
        let capped = Caps::default().with(Side::Both, Counted::Requests, Cap::new(1000, 100));
        let said = Written { iops: Some(Count(2000)), bandwidth: None };
        assert_eq!(
            said.reservation(&capped).unwrap_err(),
            "min-iops 2000 is above what max-iops allows, 1000: lower it, or raise the cap"
        );
        assert!(said.reservation(&Caps::default()).is_ok());
    }

    #[test]
    fn a_tenants_key_names_groups_of_tenants_and_of_users() {
        let list = |names: &[&str]| List(names.iter().map(|&name| name.to_owned()).collect());
        let all = groups(&["acme", "acme/batch", "root"]).unwrap();
        let split = |names: &[&str]| split(Some(&list(names)), &all);
        assert_eq!(split(&["acme/batch"]), Ok((Some("acme/batch".into()), None)));
        assert_eq!(split(&["dba", "acme"]), Ok((Some("acme".into()), Some(list(&["dba"])))));
        assert_eq!(split(&["dba"]), Ok((None, Some(list(&["dba"])))));
        assert!(split(&["acme", "acme/batch"]).unwrap_err().contains("a tenant is in one"));
        assert!(split(&["acme/web"]).unwrap_err().contains("there is no group acme/web: add"));
        assert!(split(&["root"]).unwrap_err().contains("and a group of this machine's users"));
    }
}
