//! The range of a tenant as front ends see it, and the orders that stay inside it.
//!
//! A front end has a [`Volume`] for each of its clients. It describes a request as a [`Piece`],
//! whose offset is relative to the volume's start, and [`Volume::order`] converts it to an
//! [`Order`] for [`DataPath::submit`](crate::shard::path::DataPath::submit). An order has no other
//! constructor, so if a front end forgets to check a request, it gets an error here and never
//! another tenant's bytes.

use fairq_core::{Class, FlowId, Op, Tag};
use thiserror::Error;

use crate::device::Command;
use crate::io::memory::Memory;

/// A tenant's range of a file, and the permissions of one client in it.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The tenant's index in statistics.
    pub tenant: u16,
    /// The flow that is charged.
    pub flow: FlowId,
    /// The number of the device's file.
    pub file: u16,
    /// The first byte of the range in the file.
    pub base: u64,
    /// The length of the range in bytes.
    pub size: u64,
    /// Whether writes, discards and zeroing are refused.
    pub read_only: bool,
    /// The unit of offsets and lengths of requests, in bytes; a power of two.
    pub block: u32,
}

/// One request to a volume, or a part of one.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The operation.
    pub op: Op,
    /// Start of the piece, in bytes from the volume's start; ignored for a flush.
    pub offset: u64,
    /// The length in bytes; ignored for a flush.
    pub length: u32,
    /// See [`Command::fua`].
    pub fua: bool,
    /// See [`Command::no_hole`].
    pub no_hole: bool,
    /// See [`Command::fast_only`].
    pub fast_only: bool,
    /// Whether it is the first piece of the client's request; the request is counted when this
    /// piece ends.
    pub begins: bool,
    /// The data.
    pub memory: Memory,
    /// The front end's identifier of the piece.
    pub cookie: u64,
}

impl Piece {
    /// A piece without flags, which is a whole request.
    pub fn new(op: Op, offset: u64, length: u32, memory: Memory, cookie: u64) -> Piece {
        let (fua, no_hole, fast_only, begins) = (false, false, false, true);
        Piece { op, offset, length, fua, no_hole, fast_only, begins, memory, cookie }
    }
}

/// The reason why a volume refuses a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PieceError {
    /// The piece reaches beyond the volume's end.
    #[error("the request reaches beyond the end of the volume")]
    Outside,
    /// Its offset or length is not a multiple of the volume's block.
    #[error("the request is not aligned to the volume's block")]
    Unaligned,
    /// The piece would change a read-only volume.
    #[error("the volume is read-only")]
    ReadOnly,
}

impl PieceError {
    /// The errno for the front end's answer.
    pub fn errno(self) -> i32 {
        match self {
            PieceError::Outside => libc::ENOSPC,
            PieceError::Unaligned => libc::EINVAL,
            PieceError::ReadOnly => libc::EPERM,
        }
    }
}

impl Volume {
    /// The order for a piece, if the piece lies in the volume and is allowed.
    #[inline]
    pub fn order(&self, piece: &Piece) -> Result<Order, PieceError> {
        let &Piece { op, offset, length, fua, no_hole, fast_only, begins, memory, cookie } = piece;
        let (offset, length, span) =
            if op == Op::Flush { (0, 0, self.size) } else { (offset, length, 0) };
        if offset.checked_add(u64::from(length)).is_none_or(|end| end > self.size) {
            return Err(PieceError::Outside);
        }
        if (offset | u64::from(length)) & u64::from(self.block.max(1) - 1) != 0 {
            return Err(PieceError::Unaligned);
        }
        if self.read_only && !matches!(op, Op::Read | Op::Flush) {
            return Err(PieceError::ReadOnly);
        }
        let (file, offset) = (self.file, self.base + offset);
        let command = Command {
            tag: Tag(0),
            op,
            class: Class::Medium,
            file,
            offset,
            length,
            span,
            fua,
            no_hole,
            fast_only,
            memory,
        };
        let (tenant, flow) = (self.tenant, self.flow);
        Ok(Order { tenant, flow, command, cookie, is_void: false, begins })
    }

    /// An order without work: the device gets no command, and the tenant is charged as for a flush
    /// that takes no time. It is used for requests that the server answers alone, such as a refused
    /// one.
    #[inline]
    pub fn void(&self, cookie: u64) -> Order {
        let nothing = Piece::new(Op::Flush, 0, 0, Memory::NONE, cookie);
        match self.order(&nothing) {
            Ok(order) => Order { is_void: true, ..order },
            Err(_) => unreachable!("a flush lies in every volume"),
        }
    }
}

/// A request that a data path may carry out. Only [`Volume`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    tenant: u16,
    flow: FlowId,
    /// The command, without its tag and class.
    command: Command,
    cookie: u64,
    is_void: bool,
    begins: bool,
}

impl Order {
    /// The tenant's index in statistics.
    #[inline]
    pub fn tenant(&self) -> u16 {
        self.tenant
    }

    /// The flow that is charged.
    #[inline]
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// The front end's identifier of the piece.
    #[inline]
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// See [`Volume::void`].
    #[inline]
    pub fn is_void(&self) -> bool {
        self.is_void
    }

    /// See [`Piece::begins`].
    #[inline]
    pub fn begins(&self) -> bool {
        self.begins
    }

    /// The operation.
    #[inline]
    pub fn op(&self) -> Op {
        self.command.op
    }

    /// The number of the device's file.
    #[inline]
    pub fn file(&self) -> u16 {
        self.command.file
    }

    /// Start of the range in the file, in bytes.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.command.offset
    }

    /// The length in bytes.
    #[inline]
    pub fn length(&self) -> u32 {
        self.command.length
    }

    /// See [`Command::span`].
    #[inline]
    pub fn span(&self) -> u64 {
        self.command.span
    }

    /// See [`Command::fua`].
    #[inline]
    pub fn fua(&self) -> bool {
        self.command.fua
    }

    /// See [`Command::no_hole`].
    #[inline]
    pub fn no_hole(&self) -> bool {
        self.command.no_hole
    }

    /// Whether the total length of its memory and these stretches is the length of its data.
    pub(crate) fn fits(&self, rest: &[Memory]) -> bool {
        self.command.fits(rest)
    }

    /// The command for the device, with its tag and class.
    #[inline]
    pub fn command(&self, tag: Tag, class: Class) -> Command {
        Command { tag, class, ..self.command }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use fairq_core::none::NonePolicy;
    use fairq_core::{Native, Policy, Weight};
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn volume(base: u64, size: u64, read_only: bool, block: u32) -> Volume {
        let (policy, _ports) = NonePolicy::<Native>::new(1, 1, 1).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        Volume { tenant: 3, flow, file: 7, base, size, read_only, block }
    }

    fn asked(op: Op, offset: u64, length: u32) -> Piece {
        Piece::new(op, offset, length, Memory::NONE, 9)
    }

    #[test]
    fn a_piece_becomes_an_order_at_its_place_in_the_file() {
        let order = volume(1 << 20, 8192, false, 512).order(&asked(Op::Write, 4096, 4096)).unwrap();
        assert_eq!((order.offset(), order.length(), order.file()), ((1 << 20) + 4096, 4096, 7));
        assert_eq!((order.tenant(), order.cookie(), order.is_void()), (3, 9, false));
        assert!(volume(0, 0, true, 512).void(9).is_void());
    }

    #[test]
    fn a_piece_that_is_not_allowed_says_why() {
        let volume = volume(1 << 20, 8192, true, 512);
        let refused = |op, offset, length| volume.order(&asked(op, offset, length)).unwrap_err();
        assert_eq!(refused(Op::Read, 8192, 512), PieceError::Outside);
        assert_eq!(refused(Op::Read, u64::MAX, 2), PieceError::Outside);
        assert_eq!(refused(Op::Read, 1, 512), PieceError::Unaligned);
        for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
            assert_eq!(refused(op, 0, 512), PieceError::ReadOnly);
        }
        assert!(volume.order(&asked(Op::Flush, u64::MAX, 3)).is_ok(), "a flush has no range");
    }

    proptest! {
        #[test]
        fn an_order_never_leaves_its_volume(
            base in 0..1_u64 << 50, size in 0..1_u64 << 40, shift in 0..13_u32,
            offset in any::<u64>(), near in any::<bool>(), length in any::<u32>(), bits in 0..8_u8,
        ) {
            let op = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes][usize::from(bits & 3)];
            let volume = volume(base, size, bits & 4 != 0, 1 << shift);
            let offset = if near { offset % (size + 1) } else { offset };
            if let Ok(order) = volume.order(&asked(op, offset, length)) {
                prop_assert!(order.offset() >= base);
                prop_assert!(order.offset() + u64::from(order.length()) <= base + size);
                prop_assert!(!volume.read_only || op == Op::Read);
            }
        }
    }
}
