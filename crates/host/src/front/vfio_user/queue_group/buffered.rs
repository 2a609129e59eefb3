//! Commands of several steps: discards of several ranges, and commands whose data go through the
//! group's buffer.

use std::collections::VecDeque;

use fairq_core::Op;

use super::{Kind, QueueGroup, orders};
use crate::device::nvme::spec::Status;
use crate::front::guest_memory;
use crate::io::memory::{Memory, Region};
use crate::shard::request::{PIECE, Request as Orders};

/// The memory for commands whose data do not go to the guest: 64 KiB of the disk's, and as many of
/// the guest's.
pub(super) struct Buffer {
    region: Region,
    /// The command that uses it, and the ones that wait.
    user: Option<u16>,
    pub(super) waiting: VecDeque<u16>,
}

impl Buffer {
    pub(super) fn half(&self, index: usize) -> Memory {
        let (start, _) = self.region.head(usize::MAX);
        let address = start.wrapping_add(index * PIECE as usize);
        Memory { address, length: PIECE, fixed: None }
    }
}

impl QueueGroup {
    /// Begins the next step of a command whose orders have succeeded. False if there is none.
    pub(super) fn goes_on(&mut self, place: u16) -> bool {
        let command = &mut self.commands[usize::from(place)];
        if let Some((offset, length)) = command.ranges.pop() {
            command.orders = orders(command.op, offset, length, command.fua, false);
            self.queue(place);
            return true;
        }
        if !command.is_buffered() {
            return false;
        }
        let length = (command.length - command.done).min(PIECE.into());
        if command.kind == Kind::Compare
            && let Some(buffer) = &self.buffer
        {
            let [disk, guest] = [0, 1].map(|half| buffer.half(half).address);
            let length = length as usize;
            // SAFETY: both halves are this group's, and no order has them now; the command's memory
            // is mapped until it ends.
            let is_same = unsafe {
                let guest = std::slice::from_raw_parts_mut(guest, length);
                guest_memory::read(&command.data, command.done, guest);
                std::slice::from_raw_parts(disk, length) == guest
            };
            if !is_same {
                command.status = Status::COMPARE_FAILURE;
                return false;
            }
        }
        command.done += length;
        if command.done == command.length {
            return false;
        }
        self.read_piece(place);
        true
    }

    /// Reads the next piece of a command into the buffer.
    fn read_piece(&mut self, place: u16) {
        let command = &mut self.commands[usize::from(place)];
        let length = (command.length - command.done).min(PIECE.into());
        command.orders = Orders::new(Op::Read, command.offset + command.done, length);
        self.queue(place);
    }

    /// Begins a command that needs the buffer, when that is free.
    pub(super) fn begin_buffered(&mut self, place: u16) {
        if self.buffer.is_none() {
            let Ok(region) = Region::map(2 * PIECE as usize) else {
                let command = &mut self.commands[usize::from(place)];
                (command.status, command.kind) = (Status::INTERNAL, Kind::Advice);
                command.orders = Orders::void();
                return self.queue(place);
            };
            self.buffer = Some(Buffer { region, user: None, waiting: VecDeque::new() });
        }
        let Some(buffer) = &mut self.buffer else { return };
        match buffer.user {
            Some(_) => buffer.waiting.push_back(place),
            None => {
                buffer.user = Some(place);
                self.read_piece(place);
            }
        }
    }

    /// The buffer is the next command's.
    pub(super) fn end_buffered(&mut self, place: u16) {
        let Some(buffer) = self.buffer.as_mut().filter(|buffer| buffer.user == Some(place)) else {
            return;
        };
        buffer.user = buffer.waiting.pop_front();
        if let Some(next) = buffer.user {
            self.read_piece(next);
        }
    }
}
