//! The registers and doorbells of a controller, and its life: enabled, disabled, shut down, failed.
//!
//! A controller is ready as soon as it is enabled, and disabled as soon as the device has returned
//! all of the guest's memory: the write that disables it waits for that. It fails
//! (`CSTS.CFS`) if its configuration makes no sense or if its guest breaks a rule of its queues,
//! until it is disabled.

use crate::device::nvme::spec::{
    CAP_WRR, CC_ENABLE, CSTS_FATAL, CSTS_READY, CSTS_SHUTDOWN_COMPLETE, PAGE, register,
};
use crate::front::vfio_user::bridge::QUEUES;
use crate::front::vfio_user::controller_state::{AdminQueue, ENTRIES, Registers, Session, VERSION};
use crate::front::vfio_user::pci_config::MSIX_TABLE;
use crate::front::vfio_user::queue_group::{Fault, GuestRing, Which};
use crate::front::vfio_user::queue_groups::Message;
use crate::observe::log_limit::STRANGERS;

/// CC.SHN: a shutdown begins.
const CC_SHUTDOWN: u32 = 3 << 14;
/// Bytes of the registers before the doorbells.
const REGISTERS: usize = 0x38;
const DOORBELLS: usize = register::DOORBELLS as usize;
const TABLE: usize = MSIX_TABLE as usize;

impl Session {
    fn has_wrr(&self) -> bool {
        self.whole.is_none_or(|whole| whole.has_wrr)
    }

    /// CAP: queues in one piece, weighted round robin, 10 s for changes of CC.EN, the NVM command
    /// set.
    fn capabilities(&self) -> u64 {
        let (contiguous, ten_seconds, nvm_command_set) = (1 << 16, 20 << 24, 1 << 37);
        let wrr = if self.has_wrr() { CAP_WRR } else { 0 };
        u64::from(ENTRIES - 1) | contiguous | wrr | ten_seconds | nvm_command_set
    }

    /// Reads bytes of BAR 0.
    pub(super) fn read_bar(&self, at: usize, bytes: &mut [u8]) {
        let registers = &self.registers;
        let mut image = [0; REGISTERS];
        let mut set = |at: u32, field: &[u8]| {
            image[at as usize..][..field.len()].copy_from_slice(field);
        };
        set(register::CAP, &self.capabilities().to_le_bytes());
        set(register::VS, &VERSION.to_le_bytes());
        set(register::INTMS, &registers.interrupt_mask.to_le_bytes());
        set(register::INTMC, &registers.interrupt_mask.to_le_bytes());
        set(register::CC, &registers.cc.to_le_bytes());
        set(register::CSTS, &self.status().to_le_bytes());
        set(register::AQA, &registers.aqa.to_le_bytes());
        set(register::ASQ, &registers.asq.to_le_bytes());
        set(register::ACQ, &registers.acq.to_le_bytes());
        for (at, byte) in (at..).zip(bytes) {
            let place = at.checked_sub(TABLE).and_then(|place| self.table.get(place));
            *byte = image.get(at).or(place).copied().unwrap_or(0);
        }
    }

    fn status(&self) -> u32 {
        let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        bit(self.admin.is_some(), CSTS_READY)
            | bit(self.bridge.has_failed(), CSTS_FATAL)
            | bit(self.registers.cc & CC_SHUTDOWN != 0, CSTS_SHUTDOWN_COMPLETE)
    }

    /// Writes bytes of BAR 0: words of four bytes, of registers that can be written.
    pub(super) fn write_bar(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = at.checked_sub(TABLE) {
            let end = place.saturating_add(bytes.len());
            if let Some(entries) = self.table.get_mut(place..end) {
                entries.copy_from_slice(bytes);
            }
            return;
        }
        if !at.is_multiple_of(4) || !bytes.len().is_multiple_of(4) {
            return;
        }
        for (place, word) in bytes.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            match at + 4 * place {
                at if at >= DOORBELLS => self.ring((at - DOORBELLS) / 4, value),
                at => self.write_register(at as u32, value),
            }
        }
    }

    fn write_register(&mut self, at: u32, value: u32) {
        let registers = &mut self.registers;
        let low = |word: &mut u64| *word = *word >> 32 << 32 | u64::from(value);
        let high = |word: &mut u64| *word = u64::from(value) << 32 | *word & 0xffff_ffff;
        match at {
            register::INTMS => registers.interrupt_mask |= value,
            register::INTMC => registers.interrupt_mask &= !value,
            register::CC => self.configure(value),
            register::AQA => registers.aqa = value,
            register::ASQ => low(&mut registers.asq),
            0x2c => high(&mut registers.asq),
            register::ACQ => low(&mut registers.acq),
            0x34 => high(&mut registers.acq),
            _ => {}
        }
    }

    fn configure(&mut self, cc: u32) {
        let before = std::mem::replace(&mut self.registers.cc, cc);
        match (before & CC_ENABLE != 0, cc & CC_ENABLE != 0) {
            (false, true) => self.enable(),
            (true, false) => self.disable(),
            _ => {}
        }
    }

    fn enable(&mut self) {
        let Registers { cc, aqa, asq, acq, .. } = self.registers;
        self.bridge.reset();
        let is_weighted = match cc >> 11 & 7 {
            0 => Some(false),
            1 if self.has_wrr() => Some(true),
            _ => None,
        };
        let is_supported = cc >> 4 & 7 == 0 && cc >> 7 & 0xf == 0;
        let [sq, cq] = [(asq, aqa), (acq, aqa >> 16)]
            .map(|(address, size)| GuestRing { address, size: (size & 0xfff) as u16 + 1 });
        let are_queues =
            [sq, cq].iter().all(|ring| ring.size >= 2 && ring.address.is_multiple_of(PAGE));
        match is_weighted {
            Some(is_weighted) if is_supported && are_queues => {
                let most = self.whole.map_or(QUEUES as u16, |whole| whole.queues);
                self.admin = Some(AdminQueue::new(sq, cq, is_weighted, most));
            }
            _ => self.bridge.fail(),
        }
    }

    /// Ends all queues, and waits until the device has returned the guest's memory.
    pub(super) fn disable(&mut self) {
        self.close(false);
        self.admin = None;
        self.bridge.reset();
    }

    /// A doorbell is rung, by its place from the admin queue's tail on. One of a queue that is not
    /// there has no effect.
    fn ring(&mut self, place: usize, value: u32) {
        let (id, is_head) = (place / 2, !place.is_multiple_of(2));
        let Some(admin) = &self.admin else { return };
        if id == 0 {
            self.bridge.ring(place, value);
            self.administer();
            return;
        }
        let Some((shard, size)) = admin.place_of(id, is_head) else { return };
        if value >= size.into() {
            let which = if is_head { Which::Completion } else { Which::Submission };
            return self.fail(&Fault::Doorbell(which(id as u16), value));
        }
        self.bridge.ring(place, value);
        if self.bridge.wants_kick(shard, is_head) {
            (self.send)(shard, Message::Kick { session: self.number });
        }
    }

    /// The controller fails, until its guest resets it.
    pub(super) fn fail(&self, fault: &Fault) {
        if STRANGERS.allows() {
            tracing::warn!(
                disk = self.bridge.name(), %fault,
                "a guest breaks the rules of NVMe: its controller has failed until it is reset"
            );
        }
        self.bridge.fail();
    }
}
