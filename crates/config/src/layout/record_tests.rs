use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn three() -> Record {
    let mut record = Record::new("id-1".into(), 64 * MIB, 0);
    for (name, at) in [("a", 0), ("b", 16), ("c", 32)] {
        record.claim(name, at * MIB, 16 * MIB, false).unwrap();
    }
    record
}

#[test]
fn a_range_that_was_held_is_zeroed_for_the_next_and_one_that_never_was_is_not() {
    let mut record = three();
    assert!(record.ranges().iter().all(|held| held.zeroed), "none was ever held");
    record.free("b").unwrap();
    record.claim("new", 16 * MIB, 8 * MIB, false).unwrap();
    assert!(!record.find("new").unwrap().zeroed);
    record.set_zeroed("new").unwrap();
    record.claim("kept", 24 * MIB, 8 * MIB, true).unwrap();
    assert!(record.find("kept").unwrap().zeroed, "its data are its own");
    record.claim("last", 48 * MIB, 16 * MIB, false).unwrap();
    assert!(record.find("last").unwrap().zeroed);
    record.free("last").unwrap();
    record.claim("later", 48 * MIB, 16 * MIB, false).unwrap();
    assert!(!record.find("later").unwrap().zeroed);
}

#[test]
fn what_is_held_is_not_given_away() {
    let mut record = three();
    let before = record.clone();
    let overlap = record.claim("d", 40 * MIB, 16 * MIB, false).unwrap_err();
    assert_eq!(overlap.to_string(), "d (16M at 40M) overlaps c (16M at 32M)");
    assert_eq!(record.claim("a", 48 * MIB, MIB, false), Err(LayoutError::Exists("a".into())));
    assert!(record.claim("d", 60 * MIB, 16 * MIB, false).is_err(), "behind the end");
    assert!(record.claim("d", u64::MAX - 511, 512, false).is_err());
    assert_eq!(record.rename("a", "b"), Err(LayoutError::Exists("b".into())));
    assert_eq!(record.rename("x", "y"), Err(LayoutError::Unknown("x".into())));
    assert_eq!(record, before, "a refused change changes nothing");
}

#[test]
fn a_range_grows_into_the_free_space_behind_it() {
    let mut record = three();
    let refused = record.resize("a", 17 * MIB).unwrap_err().to_string();
    assert_eq!(refused, "a can have at most 16M: b (16M at 16M) is behind it");
    record.resize("c", 32 * MIB).unwrap();
    let refused = record.resize("c", 33 * MIB).unwrap_err().to_string();
    assert_eq!(refused, "c can have at most 32M: the pool has 64M");
    record.resize("b", 8 * MIB).unwrap();
    assert_eq!(record.gaps(), [(24 * MIB, 8 * MIB)]);
    assert_eq!(record.most("b"), Ok(16 * MIB));
}

#[test]
fn a_pool_that_grows_moves_nothing_and_one_that_is_too_short_is_refused() {
    let mut record = three();
    let ranges = record.ranges().to_vec();
    record.set_size(128 * MIB, true).unwrap();
    assert_eq!((record.ranges(), record.fresh), (&ranges[..], 48 * MIB));
    record.set_size(256 * MIB, false).unwrap();
    assert_eq!(record.fresh, 256 * MIB, "unknown bytes have come");
    record.set_size(64 * MIB, true).unwrap();
    let lost = record.set_size(32 * MIB, true).unwrap_err().to_string();
    assert!(lost.starts_with("the pool ends at 32M, and c (16M at 32M) needs more"), "{lost}");
}

#[test]
fn what_cannot_be_a_record_is_refused() {
    let whole = encode(&three(), 7).unwrap();
    assert_eq!(decode(&whole), Copied::Whole(Box::new(three()), 7));
    assert_eq!(decode(&[]), Copied::Nothing);
    assert_eq!(decode(&[0; COPY]), Copied::Nothing);
    for length in MAGIC.len()..whole.len() {
        assert!(matches!(decode(&whole[..length]), Copied::Damaged(_)), "{length} bytes");
    }
    for at in MAGIC.len()..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        // The reserved bytes have no meaning.
        let is_reserved = (CHECKSUM.end..HEADER).contains(&at);
        assert_eq!(decode(&bytes) == Copied::Whole(Box::new(three()), 7), is_reserved, "byte {at}");
    }
    let mut newer = whole.clone();
    newer[8] = 2;
    let said = format!("{:?}", decode(&newer));
    assert!(said.contains("it has version 2, and this program knows 1"), "{said}");
    let mut overlapping = three();
    overlapping.ranges[1].size += 512;
    assert!(encode(&overlapping, 1).is_err(), "a wrong record is not written either");
}

#[test]
fn ten_thousand_tenants_have_room() {
    let mut record = Record::new("0123456789abcdef0123456789abcdef".into(), 10_000 << 30, 0);
    record.ranges = (0..10_000)
        .map(|index: u64| Held {
            name: format!("tenant-{index}"),
            offset: index << 30,
            size: 1 << 30,
            zeroed: true,
        })
        .collect();
    record.fresh = record.size;
    assert!(encode(&record, u64::MAX).is_ok());
    record.ranges.iter_mut().for_each(|held| held.name = format!("{:a>64}", held.name));
    assert!(encode(&record, 1).unwrap_err().to_string().contains("use fewer tenants"));
}

/// A write of a record, torn after any number of sectors, leaves the old record or the new one.
#[test]
fn a_torn_write_loses_nothing() {
    let (old, mut new) = (three(), three());
    for index in 0..40 {
        new.claim(&format!("a-longer-name-{index}"), 48 * MIB + index * 512, 512, false).unwrap();
    }
    let (old_bytes, new_bytes) = (encode(&old, 4).unwrap(), encode(&new, 5).unwrap());
    let torn = |sectors: usize| {
        let mut bytes = new_bytes[..new_bytes.len().min(sectors * 512)].to_vec();
        bytes.extend_from_slice(old_bytes.get(bytes.len()..).unwrap_or_default());
        bytes
    };
    let sectors = new_bytes.len().div_ceil(512);
    for count in 0..=sectors {
        for copies in [[torn(count), old_bytes.clone()], [new_bytes.clone(), torn(count)]]
            .map(|two| two.map(|bytes| decode(&bytes)))
        {
            let Copied::Whole(record, _) = newest(copies.clone()) else { panic!("{copies:?}") };
            let is_done = copies[0] == Copied::Whole(Box::new(new.clone()), 5);
            assert_eq!(*record, if is_done { new.clone() } else { old.clone() }, "{count} sectors");
        }
    }
}

#[test]
fn a_former_name_is_kept_until_the_new_one_is_confirmed() {
    let formerly = |record: &Record, name| record.formerly(name).map(|held| held.name.clone());
    let mut record = three();
    record.rename("a", "d").unwrap();
    record.rename("d", "e").unwrap();
    assert_eq!(formerly(&record, "a").as_deref(), Some("e"), "the name that configurations have");
    assert_eq!(formerly(&record, "d"), None);
    let Copied::Whole(read, _) = decode(&encode(&record, 1).unwrap()) else {
        panic!("it is whole")
    };
    assert_eq!(*read, record);
    record.rename("e", "a").unwrap();
    assert_eq!(record, three(), "it has its name again");
    record.rename("a", "e").unwrap();
    record.confirm("e");
    assert_eq!(formerly(&record, "a"), None);
    record.rename("b", "x").unwrap();
    record.claim("b", 48 * MIB, MIB, false).unwrap();
    assert_eq!(formerly(&record, "b"), None, "another range has that name");
    record.rename("c", "y").unwrap();
    record.rename("b", "c").unwrap();
    assert_eq!(formerly(&record, "c"), None);
    record.free("c").unwrap();
    assert_eq!(formerly(&record, "b"), None);
    record.former.insert("x".into(), "y".into());
    assert!(encode(&record, 1).is_err(), "y is a name of today");
}

#[path = "../../../../fuzz/src/layout.rs"]
#[allow(unreachable_pub, reason = "the fuzz target has another crate")]
mod driver;

#[test]
fn seeds_of_records() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/layout_record");
    let seeds = std::fs::read_dir(folder).unwrap();
    let seeds = seeds.map(|entry| driver::record(&std::fs::read(entry.unwrap().path()).unwrap()));
    assert!(seeds.count() > 0);
}

proptest! {
    /// A valid body with some bytes changed, added and removed.
    #[test]
    fn any_bytes_as_a_record(
        first in any::<u8>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 0..6),
    ) {
        let mut bytes = serde_json::to_vec(&three()).unwrap();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, b"0123456789,[]\"a"[usize::from(byte) % 15]),
                _ => drop(bytes.remove(at)),
            }
        }
        driver::record(&[&[first][..], &bytes].concat());
    }
}

/// A change, with small numbers so that changes interfere.
#[derive(Clone, Debug)]
enum Change {
    Claim(u8, u64, u64, bool),
    Free(u8),
    Rename(u8, u8),
    Resize(u8, u64),
    Zeroed(u8),
    Size(u64, bool),
}

fn changes() -> impl Strategy<Value = Change> {
    let (name, at) = (|| 0..6_u8, || 0..40_u64);
    prop_oneof![
        (name(), at(), 0..12_u64, any::<bool>()).prop_map(|(n, a, s, k)| Change::Claim(n, a, s, k)),
        name().prop_map(Change::Free),
        (name(), name()).prop_map(|(a, b)| Change::Rename(a, b)),
        (name(), 0..12_u64).prop_map(|(n, s)| Change::Resize(n, s)),
        name().prop_map(Change::Zeroed),
        (20..48_u64, any::<bool>()).prop_map(|(s, z)| Change::Size(s, z)),
    ]
}

proptest! {
    /// Sector by sector: no change gives one tenant's bytes to another, a sector that ever had an
    /// owner is not fresh, and each state can be written and read again.
    #[test]
    fn no_sector_has_two_owners(list in prop::collection::vec(changes(), 1..40)) {
        let name = |of: u8| format!("t{of}");
        let mut record = Record::new("id".into(), 32 * SECTOR, 0);
        let mut ever_held = [false; 64];
        for change in list {
            let before = record.clone();
            let result = match change.clone() {
                Change::Claim(of, at, size, keep) => {
                    record.claim(&name(of), at * SECTOR, size * SECTOR, keep)
                }
                Change::Free(of) => record.free(&name(of)).map(drop),
                Change::Rename(old, new) => record.rename(&name(old), &name(new)),
                Change::Resize(of, size) => record.resize(&name(of), size * SECTOR),
                Change::Zeroed(of) => record.set_zeroed(&name(of)),
                Change::Size(size, is_zero) => record.set_size(size * SECTOR, is_zero),
            };
            if result.is_err() {
                prop_assert_eq!(&record, &before, "{:?}", change);
            }
            // Bytes that are cut off are lost: if they are added again, they are zero, or are not
            // recorded as fresh.
            ever_held[(record.size / SECTOR) as usize..].fill(false);
            for held in record.ranges() {
                let is_new = before.find(&held.name).is_none()
                    && !matches!(change, Change::Rename(..));
                for sector in held.offset / SECTOR..held.end() / SECTOR {
                    if is_new && ever_held[sector as usize] {
                        let keeps = matches!(change, Change::Claim(_, _, _, true));
                        prop_assert!(!held.zeroed || keeps, "{:?} in {:?}", held, before);
                    }
                    ever_held[sector as usize] = true;
                }
            }
            let bytes = encode(&record, 1).unwrap();
            prop_assert_eq!(decode(&bytes), Copied::Whole(Box::new(record.clone()), 1));
        }
    }

    /// Any bytes are read without a panic, and an accepted record is valid.
    #[test]
    fn any_bytes_can_be_read(
        head in prop::collection::vec(any::<u8>(), 0..64),
        body in "[\\[\\]{}\",:0-9a-z]{0,80}",
        is_marked in any::<bool>(),
    ) {
        let mut bytes = if is_marked { MAGIC.to_vec() } else { Vec::new() };
        bytes.extend(head);
        bytes.extend(body.into_bytes());
        if let Copied::Whole(record, _) = decode(&bytes) {
            prop_assert!(record.check().is_ok());
        }
    }
}
