//! The special cases of files: opening, locking, holes, failures, and writers that share a block.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use fairq_core::Op;
use rustix::fs::FlockOperation;

use crate::device::error::DeviceError;
use crate::device::file::{Direct, FileDevice, FileQueue, FileSpec};
use crate::device::harness::{Driver, command};
use crate::device::tests::scratch;
use crate::device::{Command, Device, Extent};

fn spec(path: &Path, create_size: Option<u64>) -> FileSpec {
    FileSpec::new(path, create_size)
}

fn open(path: &Path, size: u64, direct: Direct) -> (FileDevice, Driver<FileQueue>) {
    let device = FileDevice::open(&[spec(path, Some(size))], direct).unwrap();
    let driver = Driver::open(&device);
    (device, driver)
}

/// A killed server leaves writes in the kernel, which keeps the file open until they have ended;
/// the next server must not write before that.
#[test]
fn a_file_stays_locked_as_long_as_the_kernel_has_requests_for_it() {
    let scratch = scratch();
    let path = scratch.path().join("disk");
    let device = FileDevice::open(&[spec(&path, Some(4096))], Direct::Auto).unwrap();
    let as_a_request = device.shared.files.get(0).unwrap().file.try_clone().unwrap();
    drop(device);
    let next = std::fs::File::open(&path).unwrap();
    let lock = || rustix::fs::flock(&next, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(lock(), Err(rustix::io::Errno::WOULDBLOCK));
    drop(as_a_request);
    assert_eq!(lock(), Ok(()));
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
    assert_eq!(
        device.extents(0, 0, 8 << 20, 9).unwrap(),
        [Extent { length: 8 << 20, is_hole: true }]
    );
    let kept = Command { no_hole: true, ..command(Op::WriteZeroes, 0, 1 << 20) };
    assert_eq!(driver.run(kept, &[]).errno, 0);
    assert!(
        std::fs::metadata(&path).unwrap().blocks() >= (1 << 20) / 512,
        "zeroes without a hole are allocated"
    );
}

#[test]
fn what_cannot_be_opened_says_why() {
    let scratch = scratch();
    let path = scratch.path().join("disk");
    let open = |path: &Path, size, direct| {
        FileDevice::open(&[spec(path, size)], direct).map(|_| ()).unwrap_err()
    };
    assert!(matches!(open(&path, None, Direct::Auto), DeviceError::Missing { .. }));
    assert!(matches!(
        open(&path.join("x/y"), Some(4096), Direct::Auto),
        DeviceError::NoDirectory { .. }
    ));
    assert!(matches!(open(scratch.path(), None, Direct::Auto), DeviceError::NotStorage { .. }));
    assert!(matches!(
        open(Path::new("/dev/null"), None, Direct::Auto),
        DeviceError::NotStorage { .. }
    ));
    assert!(matches!(open(&path, Some(0), Direct::Auto), DeviceError::Empty { .. }));
    assert!(matches!(open(&path, Some(1000), Direct::On), DeviceError::NoDirect { .. }));
    assert!(!path.exists(), "what could not be opened is not left behind");
    std::fs::File::create(&path).unwrap();
    assert!(matches!(open(&path, None, Direct::Auto), DeviceError::Empty { .. }));
    let device = FileDevice::open(&[spec(&path, Some(1000))], Direct::Auto).unwrap();
    assert!(!device.is_direct(), "a size that is no multiple of a block wants the page cache");
    assert!(matches!(open(&path, None, Direct::Auto), DeviceError::Locked { .. }));
    assert!(matches!(device.add(&spec(&path, None), |_| Ok(())), Err(DeviceError::Locked { .. })));
    drop(device);
    let error = open(&path, Some(2000), Direct::Auto);
    assert!(matches!(error, DeviceError::OtherSize { actual: 1000, wanted: 2000, .. }));
    assert!(
        error.to_string().contains("disk: has 1000 bytes, not 2000; leave the size out"),
        "{error}"
    );
    assert!(matches!(FileDevice::open(&[], Direct::Auto), Err(DeviceError::FileCount(0))));
}

#[test]
fn commands_out_of_bounds_are_refused_and_end_alone() {
    let scratch = scratch();
    let (_device, mut driver) = open(&scratch.path().join("disk"), 8192, Direct::Auto);
    let other_file = Command { file: 1, ..command(Op::Read, 0, 512) };
    let commands = [command(Op::Write, 8000, 193), command(Op::Read, u64::MAX, 1), other_file];
    for command in commands {
        driver.issue(command, &vec![1; command.length as usize], 0);
    }
    driver.issue(command(Op::Write, 8000, 192), &[1; 192], 0);
    driver.issue(command(Op::Read, 8192, 0), &[], 0);
    let mut ended = driver.finish();
    ended.sort_by_key(|ended| ended.command.tag.0);
    let errnos: Vec<i32> = ended.iter().map(|ended| ended.errno).collect();
    assert_eq!(errnos, [libc::EINVAL, libc::EINVAL, libc::EINVAL, 0, 0]);
    assert_eq!(driver.read(7999, 193)[..2], [0, 1]);
}

#[test]
fn files_of_one_device_are_apart() {
    let scratch = scratch();
    let sizes = [1 << 20, 2 << 20, 4096];
    let path = |index: usize| scratch.path().join(format!("disk{index}"));
    let specs: Vec<FileSpec> = (0..3).map(|index| spec(&path(index), Some(sizes[index]))).collect();
    let device = FileDevice::open(&specs, Direct::Auto).unwrap();
    assert_eq!(device.info().sizes, sizes);
    let mut driver = Driver::open(&device);
    for file in 0..3 {
        let write = Command { file, ..command(Op::Write, 1000, 3000) };
        driver.issue(write, &[file as u8 + 1; 3000], 0);
    }
    assert!(driver.finish().iter().all(|ended| ended.errno == 0));
    for file in 0..3 {
        let bytes = std::fs::read(path(usize::from(file))).unwrap();
        let (before, data, after) = (&bytes[..1000], &bytes[1000..4000], &bytes[4000..]);
        assert!(
            before.iter().chain(after).all(|&byte| byte == 0)
                && data.iter().all(|&byte| byte == file as u8 + 1)
        );
        let flush = Command { file, ..command(Op::Flush, 0, 0) };
        assert_eq!(driver.run(flush, &[]).errno, 0);
    }
}

/// Open descriptors of this process that lead to files under a folder.
fn descriptors(folder: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let target =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    all.filter_map(target).filter(|target| target.starts_with(folder)).count()
}

/// Whether another server could serve a file now.
fn is_free(path: &Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Closes a file, and waits until a thread of its store has done so.
fn close(device: &FileDevice, file: u16) {
    let since = std::time::Instant::now();
    while !device.close(file) {
        assert!(since.elapsed().as_secs() < 20, "file {file} is never closed");
        std::thread::yield_now();
    }
}

#[test]
fn a_file_that_is_retired_is_closed_when_every_queue_has_let_it_go() {
    let scratch = scratch();
    let path = |name: &str| scratch.path().join(name);
    let (device, mut one) = open(&path("first"), 1 << 20, Direct::Auto);
    let mut two = Driver::open(&device);
    let add = |name: &str| {
        device.add(&spec(&path(name), Some(64 << 10)), |_| Ok(())).map(|(number, _)| number)
    };
    let at = |file: u16, op: Op| Command { file, ..command(op, 0, 4096) };

    let (a, b) = (add("a").unwrap(), add("b").unwrap());
    assert_eq!((a, b), (1, 2));
    for driver in [&mut one, &mut two] {
        assert_eq!(driver.run(at(a, Op::Write), &[b'a'; 4096]).errno, 0);
        assert_eq!(driver.run(at(b, Op::Write), &[b'b'; 4096]).errno, 0);
    }
    // A file that is added again before it was closed keeps its number.
    device.keep_open(a);
    assert_eq!(add("a").unwrap(), a);
    assert!(device.retire(a).is_none(), "somebody wants it");

    device.keep_open(a);
    let unsettled = device.retire(a).unwrap();
    one.turn();
    assert!(!device.close(a), "one queue has it, and its data are not settled");
    two.turn();
    assert!(!device.close(a), "its data are not settled");
    assert!(!is_free(&path("a")));
    unsettled.settle();
    close(&device, a);
    assert!(device.close(a));
    assert!(is_free(&path("a")));
    assert_eq!(descriptors(scratch.path()), 2, "first and b");
    assert_eq!(one.run(at(a, Op::Read), &[]).errno, libc::EINVAL);

    // The number now belongs to another file, for queues that have noticed the change and for
    // queues that have not.
    assert_eq!(add("c").unwrap(), a);
    for driver in [&mut one, &mut two] {
        assert_eq!(driver.run(at(a, Op::Read), &[]).data, [0; 4096]);
        assert_eq!(driver.run(at(b, Op::Read), &[]).data, [b'b'; 4096]);
    }
    assert_eq!(std::fs::read(path("a")).unwrap()[..4096], [b'a'; 4096]);
    // The path now names another file, which is opened; the old one is not reused.
    device.keep_open(a);
    std::fs::remove_file(path("c")).unwrap();
    assert_eq!(add("c").unwrap(), 3);
    drop((one, two));
    assert!(device.retire(a).is_some());
    close(&device, a);
    assert_eq!(descriptors(scratch.path()), 3, "first, b and the second c");
}

/// The caller must ensure that no command uses a retired file. A queue that nevertheless has an
/// operation on one keeps it open.
#[test]
fn a_file_stays_as_long_as_an_operation_names_it() {
    let scratch = scratch();
    let path = |name: &str| scratch.path().join(name);
    let (device, mut driver) = open(&path("first"), 1 << 20, Direct::Off);
    let (file, _) = device.add(&spec(&path("later"), Some(1 << 20)), |_| Ok(())).unwrap();
    driver.issue(Command { file, ..command(Op::Write, 7, 100) }, &[7; 100], 0);
    device.keep_open(file);
    device.retire(file).unwrap().settle();
    driver.queue.follow(&mut driver.ring);
    assert!(!device.close(file));
    let ended = driver.finish();
    assert_eq!((ended.len(), ended[0].errno), (1, 0));
    driver.turn();
    close(&device, file);
    assert_eq!(std::fs::read(path("later")).unwrap()[7..107], [7; 100]);
}

/// A file that was cut off has lost data, which must not be replaced by zeroes: a command that
/// reaches beyond the end fails, whether a read or a check of the file has detected the loss, and
/// even if the file grows again.
#[test]
fn what_a_file_has_lost_is_an_error() {
    for direct in [Direct::Auto, Direct::Off] {
        for (keep, is_inspected) in
            [(0, false), (512, true), (4096, false), (5000, true), (65_536, false)]
        {
            let scratch = scratch();
            let path = scratch.path().join("disk");
            let (device, mut driver) = open(&path, 1 << 20, direct);
            driver.write(0, &vec![7; 1 << 20]);
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(keep).unwrap();
            if is_inspected {
                device.inspect();
            }
            for (offset, length) in [(0, 1 << 20), (4096, 8192), (4999, 100), (100, 300_000)] {
                let ended = driver.run(command(Op::Read, offset, length), &[]);
                let is_there = offset + u64::from(length) <= keep;
                assert_eq!(ended.errno, if is_there { 0 } else { libc::EIO }, "{offset} {keep}");
                assert!(!is_there || ended.data.iter().all(|&byte| byte == 7));
            }
            let told = device.cut_off();
            assert_eq!((told.len(), told[0].size, told[0].intact), (1, 1 << 20, keep));
            assert_eq!(told[0].path, path);
            file.set_len(1 << 20).unwrap();
            device.inspect();
            for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard] {
                let ended = driver.run(command(op, 100_001, 5), b"again");
                assert_eq!(ended.errno, libc::EIO, "{op:?}: what was there is lost");
            }
            assert_eq!(driver.run(command(Op::Flush, 0, 0), &[]).errno, 0);
            assert_eq!(device.cut_off()[0].intact, keep);
            assert_eq!(driver.run(command(Op::Read, 1 << 20, 1), &[]).errno, libc::EINVAL);
        }
    }
}

/// Two threads, which have a queue each, write different bytes of the same blocks, and whole blocks
/// next to them.
#[test]
fn writers_of_one_block_do_not_undo_each_other() {
    const ROUNDS: u32 = 150;
    const BLOCKS: u64 = 6;
    let scratch = scratch();
    let device =
        FileDevice::open(&[spec(&scratch.path().join("disk"), Some(1 << 21))], Direct::Auto)
            .unwrap();
    let block = u64::from(device.info().block_size.max(512));
    let base = (1 << 20) - 2 * block;
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let device = &device;
            scope.spawn(move || {
                let mut driver = Driver::open(device);
                // Every third block is written as a whole by one of the threads, in turns.
                let is_whole = |index: u64| index % 3 == 2;
                let range = |index: u64| match is_whole(index) {
                    true => (base + index * block, block as u32),
                    false => (base + index * block + 10 + thread * 250, 240),
                };
                for round in 0..ROUNDS {
                    let mine = |index: &u64| !is_whole(*index) || index / 3 % 2 == thread;
                    let byte = (round % 250) as u8 + 1;
                    for (offset, length) in (0..BLOCKS).filter(mine).map(range) {
                        driver.issue(
                            command(Op::Write, offset, length),
                            &vec![byte; length as usize],
                            0,
                        );
                    }
                    assert!(driver.finish().iter().all(|ended| ended.errno == 0));
                    for (offset, length) in (0..BLOCKS).filter(mine).map(range) {
                        let data = driver.read(offset, length);
                        assert!(
                            data.iter().all(|&found| found == byte),
                            "round {round}, {offset}: {data:?}"
                        );
                    }
                }
            });
        }
    });
}

/// tmpfs cannot zero a range and keep it allocated.
#[test]
fn zeroing_that_is_not_supported_is_writing_unless_it_must_be_fast() {
    let Ok(scratch) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    let path = scratch.path().join("disk");
    let (device, mut driver) = open(&path, 1 << 20, Direct::Auto);
    driver.write(0, &vec![7; 1 << 20]);
    let zero = Command { no_hole: true, fua: true, ..command(Op::WriteZeroes, 1001, 300_000) };
    let known = || [false, true].map(|no_hole| device.zeroes_by_map(0, no_hole));
    assert_eq!(known(), [false, false], "not before it has been seen");
    let fast = Command { fast_only: true, ..zero };
    assert_eq!(driver.run(fast, &[]).errno, libc::EOPNOTSUPP);
    // Once the lack of support is known, the command is refused before any byte is written.
    driver.write(0, &[7; 8192]);
    assert_eq!(driver.run(fast, &[]).errno, libc::EOPNOTSUPP);
    assert_eq!(driver.read(0, 8192), [7; 8192]);
    assert_eq!(driver.run(zero, &[]).errno, 0);
    assert_eq!(known(), [false, false]);
    assert_eq!(driver.run(command(Op::Discard, 1 << 19, 1 << 19), &[]).errno, 0);
    assert_eq!(known(), [true, false], "a hole is made without writing");
    assert_eq!(driver.read(200_000, 200_000), [vec![0; 101_001], vec![7; 98_999]].concat());
    assert_eq!(driver.read(1000, 2), [7, 0]);
    assert!(device.extents(0, 0, 1 << 19, 9).unwrap().iter().all(|extent| !extent.is_hole));
}

/// Writes of one turn are one system call as long as each begins where the previous one ends.
#[test]
fn writes_that_follow_each_other_are_gathered() {
    let scratch = scratch();
    let path = |name: &str| scratch.path().join(name);
    let specs = [spec(&path("one"), Some(1 << 20)), spec(&path("two"), Some(1 << 20))];
    let device = FileDevice::open(&specs, Direct::Off).unwrap();
    let mut driver = Driver::open(&device);
    // The file, the first page and the number of pages of each write.
    let writes =
        [(0, 10, 1), (0, 11, 2), (0, 13, 1), (1, 14, 1), (1, 16, 1), (1, 15, 1), (1, 16, 1)];
    for (index, (file, page, pages)) in writes.into_iter().enumerate() {
        let write = Command { file, ..command(Op::Write, page * 4096, pages * 4096) };
        driver.issue(write, &vec![index as u8 + 1; write.length as usize], 0);
    }
    let slots = driver.queue.writes.clone();
    let (mut rest, mut runs) = (&slots[..], Vec::new());
    while !rest.is_empty() {
        let (file, offset, count) = driver.queue.gather(rest);
        runs.push((
            file,
            offset / 4096,
            count,
            driver.queue.pieces.iter().map(|piece| piece.iov_len / 4096).sum(),
        ));
        rest = &rest[count..];
    }
    assert_eq!(runs, [(0, 10, 3, 4), (1, 14, 1, 1), (1, 16, 1, 1), (1, 15, 2, 2)]);
    assert!(driver.finish().iter().all(|ended| ended.errno == 0));
    let pages = |name: &str, first: usize, last: usize| {
        let bytes = std::fs::read(path(name)).unwrap();
        (first..last)
            .map(|page| bytes[page * 4096..][..4096].to_vec())
            .map(|page| {
                assert!(page.iter().all(|&byte| byte == page[0]), "a page of one write");
                page[0]
            })
            .collect::<Vec<u8>>()
    };
    assert_eq!(pages("one", 9, 15), [0, 1, 2, 2, 3, 0]);
    assert_eq!(pages("two", 13, 18), [0, 4, 6, 7, 0]);
}

/// The number of dirty pages in a range of a file, or `None` if this kernel does not count them.
fn dirty(file: &std::fs::File, offset: u64, length: u64) -> Option<u64> {
    use std::os::fd::AsRawFd;
    const CACHESTAT: i64 = 451;
    let (range, mut counts) = ([offset, length], [0_u64; 5]);
    let (from, to) = (range.as_ptr(), counts.as_mut_ptr());
    // SAFETY: the kernel reads two words and writes five.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), from, to, 0) };
    (result == 0).then_some(counts[1])
}

#[test]
fn a_flush_of_a_range_writes_that_range_alone() {
    let scratch = scratch();
    let path = scratch.path().join("disk");
    let (device, mut driver) = open(&path, 1 << 20, Direct::Off);
    let file = std::fs::File::open(&path).unwrap();
    if device.shared.files.get(0).unwrap().is_in_memory || dirty(&file, 0, 1).is_none() {
        return eprintln!("skipped: this kernel does not say here what is dirty");
    }
    let flush = Command { span: 300_000, ..command(Op::Flush, 500_123, 0) };
    let since = std::time::Instant::now();
    // The kernel may write everything back at any time, but it does not do so every time.
    loop {
        driver.write(0, &[7; 65_536]);
        driver.write(500_123, &[8; 65_536]);
        assert_eq!(driver.run(flush, &[]).errno, 0);
        assert_eq!(dirty(&file, 500_123, 300_000), Some(0), "its own range");
        if dirty(&file, 0, 65_536) > Some(0) {
            break;
        }
        assert!(since.elapsed().as_secs() < 60, "the other range was written as well");
    }
    assert_eq!(driver.run(command(Op::Flush, 0, 0), &[]).errno, 0);
    assert_eq!(dirty(&file, 0, 1 << 20), Some(0), "without a length it is about all of the file");
}

/// A setup that a test has made as root, and that is undone at the end.
struct Undo(Vec<&'static str>, PathBuf);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = Process::new(self.0[0]).args(&self.0[1..]).arg(&self.1).output();
    }
}

/// The standard output of a program that only root can run, or `None`.
fn as_root(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Process::new(program).args(arguments).output().ok();
    let output = output.filter(|output| output.status.success());
    if output.is_none() {
        eprintln!("skipped: {program} {arguments:?} is not possible here");
    }
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().into())
}

#[test]
fn a_full_file_system_fails_the_write_that_does_not_fit() {
    let scratch = scratch();
    let mount = scratch.path().to_str().unwrap();
    if as_root("mount", &["-t", "tmpfs", "-o", "size=256k", "none", mount]).is_none() {
        return;
    }
    let _unmount = Undo(vec!["umount", "-l"], scratch.path().into());
    let (_device, mut driver) = open(&scratch.path().join("disk"), 1 << 20, Direct::Auto);
    driver.write(0, &[7; 4096]);
    driver.issue(command(Op::Write, 8192, 600_000), &vec![8; 600_000], 0);
    driver.issue(command(Op::Read, 0, 4096), &[], 0);
    let mut ended = driver.finish();
    ended.sort_by_key(|ended| ended.command.tag.0);
    assert_eq!((ended[0].errno, ended[1].errno), (libc::ENOSPC, 0));
    assert_eq!(ended[1].data, [7; 4096]);
    assert_eq!(driver.run(command(Op::Discard, 8192, 600_000), &[]).errno, 0);
    driver.write(8192, &[9; 100_000]);
}

/// The bytes that one system call has written for several writes are attributed to them in order,
/// and the remaining writes fail with the error that stopped the call.
#[test]
fn of_writes_that_are_gathered_those_that_do_not_fit_fail() {
    let scratch = scratch();
    let mount = scratch.path().to_str().unwrap();
    if as_root("mount", &["-t", "tmpfs", "-o", "size=272k", "none", mount]).is_none() {
        return;
    }
    let _unmount = Undo(vec!["umount", "-l"], scratch.path().into());
    let path = scratch.path().join("disk");
    let (_device, mut driver) = open(&path, 1 << 20, Direct::Off);
    for index in 0..8 {
        driver.issue(command(Op::Write, index * 65_536, 65_536), &[index as u8 + 1; 65_536], 0);
    }
    let mut ended = driver.finish();
    ended.sort_by_key(|ended| ended.command.tag.0);
    let errnos: Vec<i32> = ended.iter().map(|ended| ended.errno).collect();
    assert_eq!(errnos, [0, 0, 0, 0, libc::ENOSPC, libc::ENOSPC, libc::ENOSPC, libc::ENOSPC]);
    let bytes = std::fs::read(path).unwrap();
    assert!((0..4).all(|index| {
        bytes[index * 65_536..][..65_536].iter().all(|&byte| byte == index as u8 + 1)
    }));
}

/// The limit on file sizes applies to the whole process, so this test runs in a process of its own.
#[test]
fn a_file_size_limit_fails_the_write_beyond_it() {
    const CHILD: &str = "FAIRQ_TEST_LIMITED_FILE";
    if let Some(path) = std::env::var_os(CHILD) {
        let device = FileDevice::open(&[spec(Path::new(&path), None)], Direct::Auto).unwrap();
        let mut driver = Driver::open(&device);
        assert_eq!(driver.run(command(Op::Write, 4 << 20, 4096), &[7; 4096]).errno, libc::EFBIG);
        assert_eq!(driver.run(command(Op::Write, (4 << 20) + 1, 10), &[7; 10]).errno, libc::EFBIG);
        driver.write(0, &[7; 4096]);
        assert_eq!(driver.read(4 << 20, 4096), [0; 4096]);
        return;
    }
    let scratch = scratch();
    let path = scratch.path().join("disk");
    drop(open(&path, 8 << 20, Direct::Auto));
    let name = "device::file::tests::a_file_size_limit_fails_the_write_beyond_it";
    let script = format!("trap '' XFSZ; ulimit -f 2048; exec \"$0\" --exact {name}");
    let mut child = Process::new("sh");
    child.arg("-c").arg(script).arg(std::env::current_exe().unwrap()).env(CHILD, &path);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_block_device_works_is_exclusive_and_passes_errors_on() {
    let scratch = scratch();
    let image = scratch.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let Some(name) = as_root("losetup", &["-f", "--show", image.to_str().unwrap()]) else { return };
    let path = PathBuf::from(name);
    let _detach = Undo(vec!["losetup", "-d"], path.clone());
    for direct in [Direct::On, Direct::Off] {
        let device = FileDevice::open(&[spec(&path, None)], direct).unwrap();
        assert_eq!(
            (device.info().sizes.as_slice(), device.is_direct()),
            (&[4 << 20][..], direct == Direct::On)
        );
        assert!(matches!(
            FileDevice::open(&[spec(&path, None)], direct),
            Err(DeviceError::Busy { .. })
        ));
        let mut driver = Driver::open(&device);
        driver.write(4000, &[7; 100_000]);
        for no_hole in [false, true] {
            let zero = Command { no_hole, fua: true, ..command(Op::WriteZeroes, 5001, 50_000) };
            assert_eq!(driver.run(zero, &[]).errno, 0);
            assert_eq!(driver.read(5000, 50_002), [vec![7], vec![0; 50_000], vec![7]].concat());
            driver.write(5001, &[7; 50_000]);
        }
        let careful =
            Command { no_hole: true, fast_only: true, ..command(Op::WriteZeroes, 0, 4096) };
        assert_eq!(driver.run(careful, &[]).errno, libc::EOPNOTSUPP);
        assert!(
            device.zeroes_by_map(0, false) && device.zeroes_by_map(0, true),
            "it has a command for both"
        );
        assert_eq!(driver.run(command(Op::Discard, 1 << 20, 1 << 20), &[]).errno, 0);
        assert_eq!(driver.run(command(Op::Flush, 0, 0), &[]).errno, 0);
        assert_eq!(
            device.extents(0, 0, 4 << 20, 9).unwrap(),
            [Extent { length: 4 << 20, is_hole: false }]
        );
    }
    let device = FileDevice::open(&[spec(&path, None)], Direct::On).unwrap();
    let mut driver = Driver::open(&device);
    std::fs::File::options().write(true).open(&image).unwrap().set_len(1 << 20).unwrap();
    driver.issue(command(Op::Read, 2 << 20, 4096), &[], 0);
    driver.issue(command(Op::Read, 0, 4096), &[], 0);
    let mut ended = driver.finish();
    ended.sort_by_key(|ended| ended.command.tag.0);
    assert_eq!((ended[0].errno, ended[1].errno), (libc::EIO, 0), "a disk whose end is gone");
    assert_eq!(
        driver.run(command(Op::Write, (2 << 20) + 5, 5), &[7; 5]).errno,
        libc::EIO,
        "cannot read the block"
    );
}
