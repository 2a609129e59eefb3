//! What is special about files: opening, locking, holes, trouble, and writers that share a block.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fairq_core::Op;

use crate::device::file::{Direct, FileDevice, FileQueue, FileSpec};
use crate::device::harness::{Driver, command};
use crate::device::tests::scratch;
use crate::device::{Command, Device, Extent};

fn spec(path: &Path, create_size: Option<u64>) -> FileSpec {
    FileSpec { path: path.into(), create_size }
}

fn open(path: &Path, size: u64, direct: Direct) -> (FileDevice, Driver<FileQueue>) {
    let device = FileDevice::open(&[spec(path, Some(size))], direct).unwrap();
    let driver = Driver::open(&device);
    (device, driver)
}

#[test]
fn a_created_file_is_sparse_private_and_what_is_written_is_in_it() {
    let scratch = scratch();
    let path = scratch.path().join("disk");
    let (device, mut driver) = open(&path, 8 << 20, Direct::Auto);
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.blocks(), metadata.mode() & 0o777), (8 << 20, 0, 0o600));
    assert_eq!(device.info().sizes, [8 << 20]);
    driver.write((1 << 20) + 4096, b"hello");
    let mut bytes = Vec::new();
    std::fs::File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(&bytes[(1 << 20) + 4096..][..6], b"hello\0");
    let extents = device.extents(0, 0, 8 << 20, 9).unwrap();
    let [first, second, third] = extents[..] else { panic!("hole, data, hole: {extents:?}") };
    assert!(first.is_hole && !second.is_hole && third.is_hole);
    assert_eq!(first, Extent { length: (1 << 20) + 4096, is_hole: true });
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), 8 << 20);
    assert_eq!(driver.run(command(Op::Discard, 1 << 20, 1 << 20), &[]).errno, 0);
    assert_eq!(device.extents(0, 0, 8 << 20, 9).unwrap(), [Extent { length: 8 << 20, is_hole: true }]);
    let kept = Command { no_hole: true, ..command(Op::WriteZeroes, 0, 1 << 20) };
    assert_eq!(driver.run(kept, &[]).errno, 0);
    assert!(std::fs::metadata(&path).unwrap().blocks() >= (1 << 20) / 512, "zeroes without a hole are allocated");
}
