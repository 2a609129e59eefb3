//! A load on a vhost-user-blk socket, by libblkio's driver: `vhost-user-load SOCKET OP DEPTH QUEUES
//! SECONDS [poll]`, where OP is read, write or verify. Prints the requests a second, and the CPU
//! time that this program took for each, in nanoseconds. With `poll` it polls for completions;
//! otherwise it sleeps until it is called.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};

const BLOCK: usize = 4096;

struct Load {
    op: String,
    depth: usize,
    blocks: u64,
    until: Duration,
    polls: bool,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, op, depth, queues, seconds, rest @ ..] = &args[..] else {
        panic!("vhost-user-load SOCKET read|write|verify DEPTH QUEUES SECONDS [poll]");
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let (depth, queues) = (number(depth), number(queues));
    let mut disk = Blkio::new("virtio-blk-vhost-user").expect("the driver");
    disk.set_str("path", socket).expect("a path");
    disk.connect().expect("a server");
    disk.set_i32("num-queues", queues as i32).expect("queues");
    disk.set_i32("queue-size", 256).expect("their size");
    let capacity = disk.get_u64("capacity").expect("a size");
    let outcome = disk.start().expect("a start");
    let region = disk.alloc_mem_region(depth * queues * 2 * BLOCK).expect("memory");
    disk.map_mem_region(&region).expect("memory");
    let until = Duration::from_secs_f64(seconds.parse().expect("seconds"));
    let (blocks, polls) = (capacity / BLOCK as u64, !rest.is_empty());
    let load = Load { op: op.clone(), depth, blocks, until, polls };
    let start = Instant::now();
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = outcome
            .queues
            .into_iter()
            .enumerate()
            .map(|(index, queue)| {
                let (load, region) = (&load, &region);
                scope.spawn(move || match load.op.as_str() {
                    "verify" => verify(queue, load, region, index),
                    _ => run(queue, load, region, index),
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no error")).collect()
    });
    let count: u64 = counts.iter().sum();
    let elapsed = start.elapsed().as_secs_f64();
    println!("{:.0} {:.0}", count as f64 / elapsed, cpu_ns() as f64 / count.max(1) as f64);
}

/// The CPU time of this process, in nanoseconds.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
    let ticks: u64 = fields[12].parse::<u64>().unwrap_or(0) + fields[13].parse::<u64>().unwrap_or(0);
    ticks * 10_000_000
}

fn address(region: &MemoryRegion, load: &Load, queue: usize, slot: usize) -> *mut u8 {
    (region.addr + (queue * load.depth * 2 + slot) * BLOCK) as *mut u8
}

fn reap(queue: &mut Blkioq, load: &Load, done: &mut [MaybeUninit<Completion>]) -> usize {
    let least = if load.polls { 0 } else { 1 };
    queue.do_io(done, least, None, None).expect("completions")
}

/// Keeps `depth` random requests in flight; returns the number of completed ones.
fn run(mut queue: Blkioq, load: &Load, region: &MemoryRegion, index: usize) -> u64 {
    let mut random = 0x9e37_79b9_7f4a_7c15u64 ^ index as u64;
    let mut next = move |blocks: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % blocks * BLOCK as u64
    };
    let (is_read, none) = (load.op == "read", ReqFlags::empty());
    let mut submit = |queue: &mut Blkioq, slot: usize| {
        let (at, memory) = (next(load.blocks), address(region, load, index, slot));
        match is_read {
            true => queue.read(at, memory, BLOCK, slot, none),
            false => queue.write(at, memory, BLOCK, slot, none),
        }
    };
    (0..load.depth).for_each(|slot| submit(&mut queue, slot));
    let mut done: Vec<MaybeUninit<Completion>> = (0..load.depth).map(|_| MaybeUninit::uninit()).collect();
    let (start, mut count, mut turns) = (Instant::now(), 0u64, 0u64);
    loop {
        let completed = reap(&mut queue, load, &mut done);
        for completion in &done[..completed] {
            // SAFETY: `do_io` has filled in as many completions as it returned.
            let completion = unsafe { completion.assume_init_ref() };
            assert_eq!(completion.ret, 0, "a request has failed");
            submit(&mut queue, completion.user_data);
        }
        count += completed as u64;
        turns += 1;
        if turns % 64 == 0 && start.elapsed() > load.until {
            return count;
        }
    }
}

/// Writes blocks, reads them back into other memory, and compares; each queue has blocks of its own.
fn verify(mut queue: Blkioq, load: &Load, region: &MemoryRegion, index: usize) -> u64 {
    let (start, mut count, none) = (Instant::now(), 0u64, ReqFlags::empty());
    let mut done: Vec<MaybeUninit<Completion>> = (0..load.depth).map(|_| MaybeUninit::uninit()).collect();
    let wait = |queue: &mut Blkioq, done: &mut Vec<MaybeUninit<Completion>>| {
        let mut left = load.depth;
        while left > 0 {
            let completed = reap(queue, load, done);
            for completion in &done[..completed] {
                // SAFETY: `do_io` has filled in as many completions as it returned.
                assert_eq!(unsafe { completion.assume_init_ref() }.ret, 0, "a request has failed");
            }
            left -= completed;
        }
    };
    while start.elapsed() < load.until {
        for slot in 0..load.depth {
            let memory = address(region, load, index, slot);
            // SAFETY: the region has a block for each slot, and no request names it.
            unsafe { memory.write_bytes((count as usize + slot) as u8, BLOCK) };
            let at = (index * load.depth + slot) as u64 % load.blocks * BLOCK as u64;
            queue.write(at, memory, BLOCK, slot, none);
        }
        wait(&mut queue, &mut done);
        for slot in 0..load.depth {
            let at = (index * load.depth + slot) as u64 % load.blocks * BLOCK as u64;
            queue.read(at, address(region, load, index, load.depth + slot), BLOCK, slot, none);
        }
        wait(&mut queue, &mut done);
        for slot in 0..load.depth {
            let [one, other] = [slot, load.depth + slot].map(|slot| address(region, load, index, slot));
            // SAFETY: as above.
            let equal = unsafe { std::slice::from_raw_parts(one, BLOCK) == std::slice::from_raw_parts(other, BLOCK) };
            assert!(equal, "block {slot} has other bytes");
        }
        count += 2 * load.depth as u64;
    }
    count
}
