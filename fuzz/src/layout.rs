//! The layout record: a disk may have any bytes in its place.

use fairq_config::layout::record::{COPY, Copied, decode, encode, newest, seal};

/// A copy of a record; if the first byte is odd, the rest is the body of one whose checksum is
/// right. It is refused, or it is a sound record: each byte of the pool is one name's or free, and
/// what is written of it reads as the same.
pub fn record(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let copy = if first & 1 == 0 { bytes.to_vec() } else { seal(bytes, first.into()) };
    let Copied::Whole(record, sequence) = decode(&copy) else { return };
    if copy.len() > COPY {
        return;
    }
    let again = encode(&record, sequence).expect("it takes no more room than it took");
    assert_eq!(decode(&again), Copied::Whole(record.clone(), sequence));
    assert_eq!(newest([Copied::Nothing, decode(&copy)]), decode(&copy));
    let held = record.ranges().iter().map(|held| (held.offset, held.size));
    let mut all: Vec<(u64, u64)> = held.chain(record.gaps()).collect();
    all.sort_unstable();
    let end = all.into_iter().fold(0, |end, (offset, size)| {
        assert_eq!(offset, end, "a byte of two, or of nobody");
        end + size
    });
    assert_eq!(end, record.size);
    for held in record.ranges() {
        assert!(record.most(&held.name).expect("it is there") >= held.size);
        let mut changed = (*record).clone();
        // A name that is taken is refused.
        let _ = changed.rename(&held.name, "another");
        changed.confirm("another");
        changed.free(&record.ranges()[0].name).ok();
        assert!(encode(&changed, sequence).is_ok() || copy.len() + 1000 > COPY);
    }
}
