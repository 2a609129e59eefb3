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

struct Bed {
    folder: tempfile::TempDir,
}

impl Bed {
    /// A pool of this number of MiB.
    fn new(mib: u64) -> Bed {
        let bed = Bed { folder: tempfile::tempdir().unwrap() };
        File::create(bed.pool()).unwrap().set_len(mib * MIB).unwrap();
        bed
    }

    fn pool(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    fn record(&self) -> PathBuf {
        self.folder.path().join("pool.layout")
    }

    fn start(&self, specs: &[&str]) -> Result<Start, String> {
        let started =
            Media::open(&self.pool()).and_then(|media| media.start(false, &tenants(specs), &[]));
        started.map_err(|refusal| refusal.to_string())
    }

    fn write(&self, at: u64, byte: u8) {
        let file = File::options().write(true).open(self.pool()).unwrap();
        file.write_all_at(&[byte; 4096], at).unwrap();
    }

    /// Whether the file system of this machine's temporary files has extended attributes.
    fn has_marks(&self) -> bool {
        Media::open(&self.pool()).unwrap().mark().is_some()
    }
}

fn offsets(start: &Start) -> Vec<u64> {
    start.placed.ranges.iter().map(|range| range.offset / MIB).collect()
}

#[test]
fn the_record_is_found_again_and_decides() {
    let bed = Bed::new(48);
    let first = bed.start(&["a=16M", "b=16M"]).unwrap();
    assert_eq!((offsets(&first), first.adopted), (vec![0, 16], false));
    let again = bed.start(&["c=16M", "b", "a=16M"]).unwrap();
    assert_eq!(offsets(&again), [32, 16, 0]);
    // A renamed file needs its record renamed as well.
    std::fs::rename(bed.pool(), bed.folder.path().join("other")).unwrap();
    std::fs::rename(bed.record(), bed.folder.path().join("other.layout")).unwrap();
    let media = Media::open(&bed.folder.path().join("other")).unwrap();
    assert_eq!(offsets(&media.start(false, &tenants(&["b"]), &[]).unwrap()), [16]);
}

#[test]
fn a_pool_with_data_and_no_record_is_adopted_as_it_was_laid_out() {
    let bed = Bed::new(48);
    bed.write(20 * MIB, 7);
    let start = bed.start(&["a=16M", "b=16M"]).unwrap();
    assert!(start.adopted);
    let record = start.pool.record().clone();
    assert!(record.ranges().iter().all(|held| held.zeroed), "they keep what is there");
    assert_eq!(record.fresh, 48 * MIB, "what the rest has held is not known");
    let next = bed.start(&["a=16M", "b=16M", "c=16M"]).unwrap();
    assert!(!next.placed.record.find("c").unwrap().zeroed && !next.adopted);
}

#[test]
fn half_a_pool_is_refused_and_the_message_says_what_adopting_would_do() {
    let bed = Bed::new(48);
    bed.start(&["a=16M", "b=16M"]).unwrap();
    if !bed.has_marks() {
        return;
    }
    let saved = std::fs::read(bed.record()).unwrap();
    std::fs::remove_file(bed.record()).unwrap();
    let said = bed.start(&["b=16M", "a=16M"]).err().unwrap();
    for part in ["is lost", "fairq layout adopt", "b (16M at 0)", "a (16M at 16M)", "zero nothing"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!bed.record().exists(), "a refused start changes nothing");
    let mut damaged = saved.clone();
    for copy in [0, COPY] {
        damaged[copy + 100] ^= 1;
    }
    std::fs::write(bed.record(), &damaged).unwrap();
    assert!(bed.start(&["a=16M"]).err().unwrap().contains("is damaged: its checksum is wrong"));
    damaged[100] ^= 1;
    std::fs::write(bed.record(), &damaged).unwrap();
    assert_eq!(offsets(&bed.start(&["b"]).unwrap()), [16], "one whole copy is enough");
    // A new file of the same name has no mark, or the mark of another record.
    std::fs::remove_file(bed.pool()).unwrap();
    File::create(bed.pool()).unwrap().set_len(48 * MIB).unwrap();
    let said = bed.start(&["a=16M"]).err().unwrap();
    assert!(
        said.contains("this file has none") && said.contains("would keep that record"),
        "{said}"
    );
    let media = Media::open(&bed.pool()).unwrap();
    let Found::Trouble(_, Some(pool)) = media.find().unwrap() else { panic!("not refused") };
    media.bind(*pool).unwrap();
    assert_eq!(offsets(&bed.start(&["b"]).unwrap()), [16]);
}

#[test]
fn a_pool_that_has_grown_has_more_room_and_one_that_was_cut_is_refused() {
    let bed = Bed::new(32);
    bed.start(&["a", "b"]).unwrap();
    let grow = |mib: u64| File::options().write(true).open(bed.pool()).unwrap().set_len(mib * MIB);
    grow(64).unwrap();
    let start = bed.start(&["a", "b", "c"]).unwrap();
    assert_eq!(offsets(&start), [0, 16, 32]);
    grow(16).unwrap();
    let said = bed.start(&["a", "b"]).err().unwrap();
    assert!(said.contains("the pool ends at 16M") && said.contains("its data are lost"), "{said}");
}

/// A file stands for a block device here.
#[test]
fn the_record_at_the_end_moves_with_the_end() {
    let bed = Bed::new(64);
    let file = File::options().read(true).write(true).open(bed.pool()).unwrap();
    let mut record = Record::new("id".into(), 63 * MIB, 63 * MIB);
    record.claim("a", 0, 16 * MIB, true).unwrap();
    let at = Media::tail(64 * MIB);
    let (path, is_block_device) = (bed.pool(), true);
    let mut pool = Pool { path, file, at, is_block_device, known: None, record, sequence: 3 };
    pool.save_own().unwrap();
    assert!(!pool.fit(64 * MIB).unwrap());
    pool.file.set_len(80 * MIB).unwrap();
    // A server finds it both before and after the move.
    let media = Media::open(&bed.pool()).unwrap();
    let Some((found, Copied::Whole(_, 4))) = media.search().unwrap() else { panic!("lost") };
    assert_eq!(found, at);
    assert!(pool.fit(80 * MIB).unwrap());
    let Copied::Whole(moved, 5) = read(&pool.file, 79 * MIB).unwrap() else { panic!("not moved") };
    assert_eq!((moved.size, moved.fresh), (79 * MIB, 79 * MIB));
    assert_eq!(read(&pool.file, at).unwrap(), Copied::Nothing, "the old one is gone");
}

#[test]
fn a_pool_is_not_overwritten_by_accident() {
    let bed = Bed::new(8);
    assert!(refuse_pool(&bed.pool(), false).is_ok(), "it has no record");
    bed.start(&["a"]).unwrap();
    let said = refuse_pool(&bed.pool(), false).unwrap_err().to_string();
    assert!(said.contains("--overwrite"), "{said}");
    assert!(refuse_pool(&bed.pool(), true).is_ok());
    assert!(refuse_pool(&bed.folder.path().join("new"), false).is_ok());
}

#[test]
fn a_pool_in_use_is_not_changed_from_outside() {
    let bed = Bed::new(8);
    let first = Media::open_alone(&bed.pool()).unwrap();
    let said = Media::open_alone(&bed.pool()).err().unwrap().to_string();
    assert!(said.contains("is in use: stop the server"), "{said}");
    drop(first);
    assert!(Media::open_alone(&bed.pool()).is_ok());
}
