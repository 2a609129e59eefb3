//! A scheduler and its ports as C holds them, and the table of those that there are.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use fairq_core::bfq::BfqScheduler;
use fairq_core::cfq::CfqScheduler;
use fairq_core::fiops::FiopsScheduler;
use fairq_core::flashfq::FlashFqScheduler;
use fairq_core::mqfq::Anticipating;
use fairq_core::registry::{self, Entry, Error, Keys, Shape};
use fairq_core::serial::entry::{Alone, Limited};
use fairq_core::sfqd::SfqdScheduler;
use fairq_core::{ConfigError, FlowId, Policy, Topology, Weight, kyber_fair, mqfq};

use crate::linux::Linux;

/// A scheduler of one type, with its ports.
pub(crate) struct Made<L: Policy> {
    pub(crate) policy: L,
    ports: Box<[UnsafeCell<L::Port>]>,
    /// The flow of all requests that belong to no other.
    pub(crate) root: FlowId,
}

impl<L: Policy> Made<L> {
    /// A port; `None` beyond the last.
    ///
    /// # Safety
    /// The caller holds the port's lock as long as it uses the reference.
    #[expect(clippy::mut_from_ref, reason = "a port is reached under its lock, which is C's")]
    pub(crate) unsafe fn port(&self, port: u32) -> Option<&mut L::Port> {
        // SAFETY: the caller's promise: nothing else has a reference to this port.
        self.ports.get(port as usize).map(|port| unsafe { &mut *port.get() })
    }
}

/// Why there is no engine.
pub(crate) enum Refused {
    /// The keys make no sense together, or for this shape.
    Keys,
    /// There is not enough memory.
    Memory,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        match error {
            Error::Config(ConfigError::Memory) => Refused::Memory,
            _ => Refused::Keys,
        }
    }
}

/// Builds a scheduler without the core's layers for groups and caps, which cgroups do not need.
/// Not part of its caller, which has one for each entry: the stack is the kernel's, 16 KiB for all
/// that is called.
#[inline(never)]
fn made<E: Entry>(keys: Keys<'_>, shape: &Shape) -> Result<Box<Made<E::Policy<Linux>>>, Refused> {
    let (policy, ports) = registry::bare::<E, Linux>(keys, shape)?;
    let root = policy.add_flow(Weight::DEFAULT).map_err(|_| Refused::Keys)?;
    let ports = ports.into_iter().map(UnsafeCell::new).collect();
    Ok(Box::new(Made { policy, ports, root }))
}

/// What policies are of one type, so that their verbs are compiled once.
type Serial = <Alone<SfqdScheduler> as Entry>::Policy<Linux>;

/// A scheduler that is chosen while the module runs.
pub(crate) enum Engine {
    Mqfq(Box<Made<<mqfq::Entry<Anticipating> as Entry>::Policy<Linux>>>),
    KyberFair(Box<Made<<kyber_fair::Entry as Entry>::Policy<Linux>>>),
    Serial(Box<Made<Serial>>),
}

/// Does the same with whatever is in there.
macro_rules! with {
    ($engine:expr, $made:ident => $call:expr) => {
        match $engine {
            Engine::Mqfq($made) => $call,
            Engine::KyberFair($made) => $call,
            Engine::Serial($made) => $call,
        }
    };
}

pub(crate) use with;

/// A scheduler as Linux has it.
pub(crate) struct Scheduler {
    /// How it is selected: as the core calls it, but where Linux has one of that name.
    pub(crate) name: &'static str,
    policy: &'static str,
    /// The knob that has the device's depth for a default.
    depth: &'static str,
    build: fn(Keys<'_>, &Shape) -> Result<Engine, Refused>,
}

macro_rules! schedulers {
    ($($name:literal: $variant:ident, $entry:ty, $depth:literal;)*) => {
        /// All of them.
        pub(crate) static ALL: &[Scheduler] = &[$(
            Scheduler {
                name: $name,
                policy: <$entry as Entry>::NAME,
                depth: $depth,
                build: |keys, shape| made::<$entry>(keys, shape).map(Engine::$variant),
            },
        )*];
    };
}

// A line more is a scheduler more; the module's aliases are in ../module/main.c.
schedulers! {
    "mqfq": Mqfq, mqfq::Entry<Anticipating>, "slots";
    "mqfq-serial": Mqfq, mqfq::SerialEntry<Anticipating>, "slots";
    "sfqd": Serial, Alone<SfqdScheduler>, "slots";
    "kyber-fair": KyberFair, kyber_fair::Entry, "busy";
    "fairq-cfq": Serial, Alone<CfqScheduler>, "slots";
    "fairq-bfq": Serial, Alone<BfqScheduler>, "slots";
    "flashfq": Serial, Alone<FlashFqScheduler>, "slots";
    "fiops": Serial, Alone<FiopsScheduler>, "slots";
    "nass-cfq": Serial, Limited<CfqScheduler>, "slots";
    "nass-bfq": Serial, Limited<BfqScheduler>, "slots";
    "nass-flashfq": Serial, Limited<FlashFqScheduler>, "slots";
    "nass-fiops": Serial, Limited<FiopsScheduler>, "slots";
}

impl Scheduler {
    /// D is what the driver takes unless a key says otherwise; `kyber-fair` is busy with half of
    /// that.
    fn usual(&self, shape: &Shape) -> (&'static str, u64) {
        let slots = u64::from(shape.slots);
        (self.depth, if self.depth == "busy" { (slots / 2).max(1) } else { slots })
    }

    /// The knobs with the values that these keys give them, in an order that is always the same.
    /// Left out is what the block layer does itself (merging), and what only experiments want.
    #[inline(never)]
    pub(crate) fn knobs(&self, keys: Keys<'_>, shape: &Shape) -> registry::Values {
        let Some(policy) = registry::find(self.policy) else { return Vec::new() };
        let keys = self.with_usual(keys, shape);
        let mut knobs = policy.configured(&keys, shape).unwrap_or_default();
        knobs.retain(|(knob, _)| !["merge", "unthrottle"].contains(&knob.key));
        knobs
    }

    fn with_usual<'a>(&self, keys: Keys<'a>, shape: &Shape) -> Vec<(&'a str, u64)> {
        [self.usual(shape)].into_iter().chain(keys.iter().copied()).collect()
    }

    /// Builds it.
    pub(crate) fn build(&self, keys: Keys<'_>, shape: &Shape) -> Result<Engine, Refused> {
        (self.build)(&self.with_usual(keys, shape), shape)
    }
}

/// So many ports on one socket, flows, tags of each port, before a device of so many places.
pub(crate) fn shape(ports: u32, flows: u32, tags: u32, slots: u32) -> Shape {
    Shape::new(Topology::flat(ports as usize), flows as usize, tags as usize).before(slots)
}

/// The name of a flow as C keeps it: 64 bits that mean nothing to it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Handle(u64);

const _: () = assert!(size_of::<FlowId>() == size_of::<u64>());

impl Handle {
    /// No flow's.
    pub(crate) const NONE: Handle = Handle(u64::MAX);

    pub(crate) fn of(flow: FlowId) -> Handle {
        // SAFETY: a flow's name is two numbers of 32 bits without anything between or behind them.
        Handle(unsafe { core::mem::transmute::<FlowId, u64>(flow) })
    }

    pub(crate) fn flow(self) -> FlowId {
        // SAFETY: as above; any two numbers are a flow's name, if not one that there is, and a
        // scheduler refuses those.
        unsafe { core::mem::transmute::<u64, FlowId>(self.0) }
    }
}
