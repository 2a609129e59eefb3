//! The placement of tenants: by the record, and by the configuration.
//!
//! A name in the record keeps its range, at any position in the configuration. A new name gets a
//! free range, by the same rules as in a pool without tenants. A name that only the record has
//! keeps its range. A configuration that contradicts the record is refused, with lines that would
//! be accepted.
//!
//! **Example.** The record has a (16M at 0), b (16M at 16M) and c (16M at 32M), and the pool has
//! 64M. The configuration names `new` (16M), c and a: `new` gets the 16M at 48M, c and a stay, and
//! b is reserved.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::record::{Held, LayoutError, Record};
use crate::refusal::Refusal;
use crate::tenant::{Range, Tenant, layout};
use crate::units::exact_size;

/// The ranges that a configuration gives its tenants on a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Each tenant's range, in the configuration's order.
    pub ranges: Vec<Range>,
    /// The record with the new names.
    pub record: Record,
    /// The new names.
    pub added: Vec<String>,
    /// The ranges whose names the configuration does not have.
    pub reserved: Vec<Held>,
}

/// Like [`place`] for a server that starts. It refuses a configuration by which a tenant would lose
/// its data because its range has another name.
pub fn start(
    path: &str,
    tenants: &[Tenant],
    record: &Record,
    own: &[u64],
) -> Result<Placed, Refusal> {
    let shared: Vec<&Tenant> = tenants.iter().filter(|tenant| tenant.path.is_none()).collect();
    for tenant in &shared {
        let Some(held) = record.formerly(&tenant.name) else { continue };
        if shared.iter().any(|other| other.name == held.name) {
            continue;
        }
        let (origin, old, new) = (&tenant.origin, &tenant.name, &held.name);
        return Err(Refusal::new(format!(
            "{origin}: tenant {old}: its range in {path} was renamed to {new}, so a tenant of the \
             name {old} would start with an empty range: write{}\n\
             or rename the range back: fairq layout rename {path} {new} {old}\n\
             (if {old} is a new, empty tenant, start the server once with both tenants, or run: \
             fairq layout forget {path} {new})",
            written(held)
        )));
    }
    let mut placed = place(path, tenants, record, own, &[])?;
    shared.iter().for_each(|tenant| placed.record.confirm(&tenant.name));
    Ok(placed)
}

/// Gives each tenant its range. `path` is the pool's, for messages; `own` are the sizes of tenants'
/// own files in bytes. `served` are the names of the server's present tenants in the record: a
/// refusal does not list their ranges as reserved.
pub fn place(
    path: &str,
    tenants: &[Tenant],
    record: &Record,
    own: &[u64],
    served: &[&str],
) -> Result<Placed, Refusal> {
    let known: HashMap<&str, &Held> =
        record.ranges().iter().map(|held| (&*held.name, held)).collect();
    contradictions(path, tenants, &known)?;
    let shares = |tenant: &&Tenant| tenant.path.is_none();
    let named: HashSet<&str> = tenants.iter().filter(shares).map(|one| &*one.name).collect();
    let is_reserved = |held: &&Held| !named.contains(&*held.name);
    let reserved: Vec<Held> = record.ranges().iter().filter(is_reserved).cloned().collect();
    let pinned = |tenant: &Tenant| match known.get(&*tenant.name) {
        Some(held) if tenant.path.is_none() => {
            Tenant { size: Some(held.size), offset: Some(held.offset), ..tenant.clone() }
        }
        _ => tenant.clone(),
    };
    let mut all: Vec<Tenant> = tenants.iter().map(pinned).collect();
    if let Some(any) = tenants.first() {
        all.extend(reserved.iter().map(|held| Tenant {
            name: held.name.clone(),
            size: Some(held.size),
            offset: Some(held.offset),
            path: None,
            ..any.clone()
        }));
    }
    let mut ranges = layout(&all, Some(record.size), own)
        .map_err(|refusal| Refusal::new(format!("{refusal}{}", hint(path, &reserved, served))))?;
    ranges.truncate(tenants.len());
    let shared = tenants.iter().zip(&ranges).filter(|(tenant, _)| shares(tenant));
    let new: Vec<Held> = shared
        .filter(|(tenant, _)| !known.contains_key(&*tenant.name))
        .map(|(tenant, range)| Held {
            name: tenant.name.clone(),
            offset: range.offset,
            size: range.size,
            zeroed: tenant.keep_data,
        })
        .collect();
    let added = new.iter().map(|held| held.name.clone()).collect();
    let mut record = record.clone();
    record.claim_all(new).map_err(|error| refused(path, &error))?;
    Ok(Placed { ranges, record, added, reserved })
}

fn refused(path: &str, error: &LayoutError) -> Refusal {
    Refusal::new(format!("{path}: the layout: {error}"))
}

/// Refuses sizes and offsets that differ from the record.
fn contradictions(
    path: &str,
    tenants: &[Tenant],
    known: &HashMap<&str, &Held>,
) -> Result<(), Refusal> {
    let (mut said, mut lines, mut cures) = (String::new(), String::new(), String::new());
    for tenant in tenants.iter().filter(|tenant| tenant.path.is_none()) {
        let Some(held) = known.get(&*tenant.name) else { continue };
        let size = tenant.size.filter(|size| *size != held.size);
        let offset = tenant.offset.filter(|offset| *offset != held.offset);
        let name = &tenant.name;
        let mut key = |what: &str, written: u64, is: u64| {
            let (written, is) = (exact_size(written), exact_size(is));
            let _ = write!(
                said,
                "\n  {}: tenant {name}: {what} {written}, but it has {is}",
                tenant.origin
            );
        };
        if let Some(size) = size {
            key("size", size, held.size);
            let size = exact_size(size);
            let discard = if tenant.size < Some(held.size) { " --discard" } else { "" };
            let _ = write!(cures, "\n  fairq ctl resize {name} {size}{discard}");
        }
        if let Some(offset) = offset {
            key("offset", offset, held.offset);
        }
        if size.is_some() || offset.is_some() {
            lines += &written(held);
        }
    }
    if said.is_empty() {
        return Ok(());
    }
    let cures = if cures.is_empty() {
        format!("no range is moved: copy the data to a new tenant (fairq layout show {path})")
    } else {
        format!("and to change a size, start with these lines, then run:{cures}")
    };
    Err(Refusal::new(format!(
        "the layout record of {path} says otherwise:{said}\nwrite{lines}\n{cures}"
    )))
}

/// A tenant's table with its place, as text.
pub fn written(held: &Held) -> String {
    let Held { name, offset, size, .. } = held;
    format!(
        "\n  [[tenant]]\n  name = \"{name}\"\n  size = \"{}\"\n  offset = \"{}\"",
        exact_size(*size),
        exact_size(*offset)
    )
}

/// A hint about reserved ranges for a tenant without free space.
fn hint(path: &str, reserved: &[Held], served: &[&str]) -> String {
    let reserved = || reserved.iter().filter(|held| !served.contains(&&*held.name));
    let Some(first) = reserved().next() else { return String::new() };
    let list: Vec<String> = reserved().map(ToString::to_string).collect();
    format!(
        "; the ranges of tenants that the configuration does not name are reserved: {}: if one \
         has another name now, run fairq layout rename {path} {} NEW; if its data are not wanted, \
         run fairq layout forget {path} {}",
        list.join(", "),
        first.name,
        first.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Directory;
    use crate::tenant::TenantTable;

    const MIB: u64 = 1 << 20;

    fn tenants(specs: &[&str]) -> Vec<Tenant> {
        let complete = |spec: &&str| {
            let table = spec.parse::<TenantTable>().unwrap();
            table.complete("/sys/fs/cgroup".as_ref(), &[], &Directory::default()).unwrap()
        };
        specs.iter().map(complete).collect()
    }

    fn on(specs: &[&str], record: &Record) -> Result<Placed, String> {
        place("/pool", &tenants(specs), record, &[], &[]).map_err(|refusal| refusal.to_string())
    }

    /// Offsets in MiB.
    fn offsets(specs: &[&str], record: &Record) -> Result<Vec<u64>, String> {
        let placed = on(specs, record)?;
        Ok(placed.ranges.iter().map(|range| range.offset / MIB).collect())
    }

    fn three(size: u64) -> Record {
        let empty = Record::new("id".into(), size * MIB, 0);
        on(&["a=16M", "b=16M", "c=16M"], &empty).unwrap().record
    }

    #[test]
    fn the_order_of_the_configuration_moves_nobody() {
        let record = three(48);
        assert_eq!(offsets(&["c=16M", "a=16M", "b=16M"], &record), Ok(vec![32, 0, 16]));
        assert_eq!(offsets(&["c", "a"], &record), Ok(vec![32, 0]));
        let record = three(64);
        assert_eq!(
            offsets(&["a=16M", "new=16M", "b=16M", "c=16M"], &record),
            Ok(vec![0, 48, 16, 32])
        );
        let placed = on(&["c=16M", "new=16M"], &record).unwrap();
        let names: Vec<&str> = placed.reserved.iter().map(|held| &*held.name).collect();
        assert_eq!((names, &*placed.added[0]), (vec!["a", "b"], "new"));
    }

    #[test]
    fn a_tenant_without_a_size_keeps_the_one_that_it_has() {
        let empty = Record::new("id".into(), 32 * MIB, 0);
        let mut record = on(&["a", "b"], &empty).unwrap().record;
        record.set_size(64 * MIB, true).unwrap();
        let placed = on(&["a", "b"], &record).unwrap();
        assert_eq!(placed.record, record);
        let placed = on(&["a", "b", "c"], &record).unwrap();
        assert_eq!((placed.ranges[2].offset, placed.ranges[2].size), (32 * MIB, 32 * MIB));
        assert!(placed.record.find("c").unwrap().zeroed, "the space has just come");
    }

    #[test]
    fn a_configuration_that_says_otherwise_is_told_what_to_write() {
        let said = on(&["a=32M", "b=8M,offset=1M", "c=16M"], &three(64)).unwrap_err();
        for part in [
            "the layout record of /pool says otherwise",
            "--tenant: tenant a: size 32M, but it has 16M",
            "tenant b: offset 1M, but it has 16M",
            "[[tenant]]\n  name = \"b\"\n  size = \"16M\"\n  offset = \"16M\"",
            "fairq ctl resize a 32M\n",
            "fairq ctl resize b 8M --discard",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn a_new_name_never_gets_what_is_reserved() {
        let said = on(&["a=16M", "c=16M", "mail=16M"], &three(48)).unwrap_err();
        assert!(said.contains("tenant mail wants 16M, but nothing is left"), "{said}");
        assert!(said.contains("reserved: b (16M at 16M)"), "{said}");
        assert!(said.contains("fairq layout rename /pool b NEW"), "{said}");
        let said = on(&["a=16M", "mail=16M,offset=16M"], &three(64)).unwrap_err();
        assert!(said.contains("overlap"), "{said}");
        let mut record = three(64);
        record.free("b").unwrap();
        let placed = on(&["a", "mail=16M", "kept=16M,keep-data"], &record).unwrap();
        assert!(!placed.record.find("mail").unwrap().zeroed, "b's data are in it");
        assert!(placed.record.find("kept").unwrap().zeroed);
    }
}
