//! A harness for tests: drives one queue as a shard would, with its own clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fairq_core::{Class, Op, PortId, PortSet, Tag};

use crate::device::{Command, Completion, Device, Place, Queue};
use crate::io::memory::{Buffer, Memory, Region};
use crate::io::ring::{Event, Ring};
use crate::io::wakers::Wakers;

/// The longest time of a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// Replaces an event by another one.
pub(crate) type Tamper = Box<dyn FnMut(Event) -> Event>;

/// A command without data or flags.
pub(crate) fn command(op: Op, offset: u64, length: u32) -> Command {
    let (tag, class, memory) = (Tag(0), Class::Medium, Memory::NONE);
    let (file, span, fua, no_hole, fast_only) = (0, 0, false, false, false);
    Command { tag, op, class, file, offset, length, span, fua, no_hole, fast_only, memory }
}

/// Shard `port` of a run with `ports`.
pub(crate) fn place(port: u8, ports: usize) -> Place {
    Place { port: PortId(port), ports, wakers: Arc::new(Wakers::new(ports).unwrap()) }
}

/// Buffers, each with the offset of its data.
type Stretches = Vec<(Buffer, usize)>;

/// A queue, its ring, and memory for its commands.
pub(crate) struct Driver<Q> {
    pub(crate) queue: Q,
    pub(crate) ring: Ring,
    pub(crate) now_ns: u64,
    region: Region,
    /// The commands in flight, by tag, each with its memory.
    buffers: Vec<Option<(Command, Stretches)>>,
    /// The test's modification of the kernel's results before the queue receives them.
    pub(crate) tamper: Tamper,
}

/// A command that has ended, with its errno and the data in its memory.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) command: Command,
    pub(crate) errno: i32,
    pub(crate) data: Vec<u8>,
}

impl<Q: Queue> Driver<Q> {
    /// The only queue of a run.
    pub(crate) fn open<D: Device<Queue = Q>>(device: &D) -> Driver<Q> {
        Driver::open_at(device, &place(0, 1))
    }

    /// The queue of one shard.
    pub(crate) fn open_at<D: Device<Queue = Q>>(device: &D, place: &Place) -> Driver<Q> {
        let mut ring = Ring::new(1).unwrap();
        let queue = device.open_queue(place, &mut ring).unwrap();
        let mut region = Region::map(32 << 20).unwrap();
        let (address, length) = region.head(1 << 20);
        // SAFETY: the region is dropped with the driver, after the ring's last use.
        if unsafe { ring.register_buffer(0, address, length) } {
            region.set_fixed(0, length);
        }
        Driver {
            queue,
            ring,
            now_ns: 0,
            region,
            buffers: Vec::new(),
            tamper: Box::new(|event| event),
        }
    }

    /// Issues a command. A write uses `data`; the memory begins `shift` bytes after a page
    /// boundary.
    pub(crate) fn issue(&mut self, command: Command, data: &[u8], shift: usize) {
        self.issue_scattered(command, data, &[(command.length, shift)]);
    }

    /// Issues a command whose data are in several stretches. `stretches` has the length of each and
    /// its distance from a page boundary, in bytes; it is repeated until the stretches hold all
    /// data.
    pub(crate) fn issue_scattered(
        &mut self,
        command: Command,
        data: &[u8],
        stretches: &[(u32, usize)],
    ) {
        let (mut buffers, mut memories, mut at) = (Vec::new(), Vec::new(), 0);
        let has_data = matches!(command.op, Op::Read | Op::Write);
        for &(length, shift) in stretches.iter().cycle().take_while(|_| has_data) {
            let length = length.min(command.length - at);
            let mut buffer = self.region.allocate(length + shift as u32).unwrap();
            let bytes = &mut buffer.bytes_mut()[shift..];
            match command.op {
                Op::Write => bytes.copy_from_slice(&data[at as usize..][..length as usize]),
                _ => bytes.fill(0xee),
            }
            let (whole, address) = (buffer.memory(), buffer.memory().address.wrapping_add(shift));
            memories.push(Memory { address, length, fixed: whole.fixed });
            buffers.push((buffer, shift));
            at += length;
            if at == command.length {
                break;
            }
        }
        let tag = Tag(self.buffers.len() as u32);
        let memory = memories.first().copied().unwrap_or(Memory::NONE);
        let command = Command { tag, memory, ..command };
        self.buffers.push(Some((command, buffers)));
        let rest = memories.get(1..).unwrap_or_default();
        // SAFETY: the buffers are kept until the completion has been reaped.
        unsafe { self.queue.issue(self.now_ns, &mut self.ring, &command, rest) };
    }

    /// One turn of a shard's loop; returns the commands that have ended.
    pub(crate) fn turn(&mut self) -> Vec<Ended> {
        // Every queue runs turns until it is done, so none sleeps and has to be woken.
        let mut wake = PortSet::EMPTY;
        self.queue.ring(self.now_ns, &mut self.ring, &mut wake);
        self.ring.enter(0, None);
        let mut was_idle = true;
        while let Some(event) = self.ring.event() {
            self.queue.event(self.now_ns, &mut self.ring, (self.tamper)(event));
            was_idle = false;
        }
        let mut done: Vec<Completion> = Vec::new();
        self.queue.reap(self.now_ns, &mut self.ring, &mut done, &mut wake);
        if was_idle && done.is_empty() {
            match self.queue.deadline_ns() {
                // A queue with a deadline only waits for time, so the clock is advanced.
                Some(deadline) => self.now_ns = deadline.max(self.now_ns + 1000),
                None if self.is_busy() || !self.queue.is_idle() => {
                    self.ring.enter(1, Some(1_000_000))
                }
                None => {}
            }
        }
        done.into_iter().map(|completion| self.end(completion)).collect()
    }

    /// Takes the command of a completion, with its data.
    fn end(&mut self, completion: Completion) -> Ended {
        let (command, buffers) =
            self.buffers[completion.tag.0 as usize].take().expect("completed once");
        let mut data = Vec::new();
        for (mut buffer, shift) in buffers {
            data.extend_from_slice(&buffer.bytes_mut()[shift..]);
            self.region.free(buffer);
        }
        Ended { command, errno: completion.errno, data }
    }

    /// Whether a command that was issued has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.buffers.iter().any(Option::is_some)
    }

    /// Runs turns until all issued commands have ended.
    pub(crate) fn finish(&mut self) -> Vec<Ended> {
        let start = Instant::now();
        let mut ended = Vec::new();
        while self.is_busy() {
            ended.extend(self.turn());
            assert!(start.elapsed() < PATIENCE, "commands that never end");
        }
        self.buffers.clear();
        ended
    }

    /// Issues one command, and waits until it has ended.
    pub(crate) fn run(&mut self, command: Command, data: &[u8]) -> Ended {
        self.issue(command, data, 0);
        self.finish().pop().expect("one command, one end")
    }

    /// Reads, which must succeed.
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let ended = self.run(command(Op::Read, offset, length), &[]);
        assert_eq!(ended.errno, 0);
        ended.data
    }

    /// Writes, which must succeed.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.run(command(Op::Write, offset, data.len() as u32), data).errno, 0);
    }
}
