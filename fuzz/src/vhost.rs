//! Drivers for guests of the vhost-user front end: arbitrary virtqueues, and arbitrary messages.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use fairq_core::none::NonePolicy;
use fairq_core::{Native, Policy, Weight};
use fairq_host::front::attach::{Attachment, Disk, Places};
use fairq_host::front::guest_memory::{Guest, Plan};
use fairq_host::front::vhost::inflight::{self, Area};
use fairq_host::front::vhost::queue::{Addresses, Chain, Layout, Queue};
use fairq_host::front::vhost::sessions::Sessions;
use fairq_host::front::vhost::vrings::Message;
use fairq_host::front::vhost::{blk, message};
use fairq_host::shard::volume::Volume;

const BYTES: u64 = 1 << 20;
const GUEST: u64 = 1 << 32;
const USER: u64 = 1 << 40;
/// The distance of the areas for descriptors, available ring, used ring, and tables.
const AREA: u64 = 0x1000;

/// The first byte has the format (bit 0), the suppression by index (1) and the size (2 to 4).
/// Records of 18 bytes follow: what, where, and 16 bytes.
///
/// ```text
///   0  the bytes go to memory: 16 times `where` in the area that bits 2 to 4 of `what` name
///   1  the first byte is the number of an available chain
///   2  the device takes a chain
///   3  the device uses the chains that it has
/// ```
///
/// Every chain lies in the guest's memory, and what the area for requests under way says of them
/// leads to no other place.
pub fn queue(data: &[u8]) {
    let Some((&bits, records)) = data.split_first() else { return };
    let is_packed = bits & 1 != 0;
    let size = 1u16 << (bits >> 2 & 7);
    let addresses = Addresses { descriptors: USER, driver: USER + AREA, device: USER + 2 * AREA };
    let layout = Layout { size, is_packed, has_event_index: bits & 2 != 0, addresses };
    let file = inflight::create(BYTES).expect("there is memory");
    let plan = Plan { guest: GUEST, size: BYTES, user: USER, offset: 0 };
    let ours = file.try_clone().expect("there are files");
    let guest = Arc::new(Guest::map([(plan, ours)]).expect("it is a file in memory"));
    let base = if is_packed { 0x8000_8000 } else { 0 };
    let mut queue = Queue::new(&guest, &layout, base).expect("the rings are in its memory");
    let length = inflight::bytes(1, size, is_packed);
    let recorded = inflight::create(length).expect("there is memory");
    let area = Area::map(&recorded, 0, 1, size, is_packed).expect("it has its size");
    let mut region = Arc::new(area).region(0, size, is_packed).expect("it has a queue");
    assert!(region.recover(&mut queue).is_empty());

    let start = guest.user(USER, BYTES).expect("it is one region") as usize;
    let (mut chain, mut held, mut index) = (Chain::default(), Vec::new(), 0u16);
    for record in records.chunks_exact(18) {
        let (what, place, bytes) = (record[0], u64::from(record[1]), &record[2..]);
        match what & 3 {
            0 => {
                let at = u64::from(what >> 2 & 7) * AREA + place * 16;
                file.write_all_at(bytes, at).expect("it is in the file");
            }
            1 => {
                let at = AREA + 4 + 2 * u64::from(index % size);
                file.write_all_at(&bytes[..2], at).expect("it is in the file");
                index = index.wrapping_add(1);
                file.write_all_at(&index.to_le_bytes(), AREA + 2).expect("it is in the file");
            }
            2 => match queue.pop(&guest, &mut chain) {
                Err(_) => break,
                Ok(None) => {}
                Ok(Some(buffer)) => {
                    assert!(buffer.id < size && buffer.places <= size);
                    let parsed = blk::parse(&mut chain);
                    for part in chain.readable.iter().chain(&chain.writable) {
                        let at = part.address as usize;
                        assert!(at >= start && at + part.length as usize <= start + BYTES as usize);
                    }
                    if parsed.is_err() || held.iter().any(|&(_, held)| held == buffer) {
                        break;
                    }
                    held.push((region.begin(buffer, &chain), buffer));
                }
            },
            _ => {
                for (entry, buffer) in held.drain(..) {
                    queue.push(buffer, 1);
                    region.used(entry);
                }
                region.publishing(&queue);
                queue.publish();
                region.published(&queue);
                queue.wants_call();
                queue.enable_kicks();
            }
        }
    }
    for chain in region.recover(&mut queue) {
        assert!(chain.buffer.id < size && chain.buffer.places <= size);
    }
}

/// Messages: request, bits, length of the body, body. Bit 0 wants an answer, bits 1 to 3 are the
/// number of files, and bits 4 and 5 their kind: memory, an eventfd, or another file.
///
/// The session ends when its stream does.
pub fn messages(data: &[u8]) {
    let (policy, _ports) = NonePolicy::<Native>::new(1, 1, 1).expect("the bounds are right");
    let flow = policy.add_flow(Weight::DEFAULT).expect("there is room");
    let (ours, theirs) = UnixStream::pair().expect("there are files");
    let (tenant, file, base, size) = (0, 0, 0, 1 << 20);
    let volume = Volume { tenant, flow, file, base, size, read_only: false, block: 512 };
    let disk = Disk { name: "db".into(), volume, block: 4096, preferred: 4096, whole: None };
    // A shard that has nothing to do.
    let send = |_shard, message| match message {
        Message::Stop { reply, .. } => drop(reply.send(7)),
        Message::Memory { reply, .. } => drop(reply.send(())),
        _ => {}
    };
    let attachment = Attachment::new(Arc::new(Places::new(1, 3)));
    let sessions = Sessions::default();
    let session = sessions.spawn(theirs, disk, 1, Arc::new(send), attachment);
    let session = session.expect("there are threads");
    let reader = ours.try_clone().expect("there are files");
    let reader = std::thread::spawn(move || std::io::copy(&mut &reader, &mut std::io::sink()));
    let mut rest = data;
    while let [request, bits, length, after @ ..] = rest {
        let length = usize::from(*length).min(after.len());
        let (body, after) = after.split_at(length);
        rest = after;
        let files: Vec<OwnedFd> = (0..bits >> 1 & 7).map(|_| opened(bits >> 4 & 3)).collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let flags = 1 | u32::from(bits & 1) << 3;
        if message::send(&ours, u32::from(*request), flags, body, &files).is_err() {
            break;
        }
    }
    let _ = ours.shutdown(std::net::Shutdown::Write);
    session.join().expect("a session does not panic");
    drop(ours);
    let _ = reader.join();
}

fn opened(kind: u8) -> OwnedFd {
    match kind {
        0 => inflight::create(1 << 16).expect("there is memory").into(),
        1 => {
            let flags = rustix::event::EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).expect("there are files")
        }
        _ => File::open("/dev/zero").expect("it is there").into(),
    }
}
