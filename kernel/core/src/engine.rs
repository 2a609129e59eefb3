//! The engine behind C's pointer, which is a scheduler with its ports, and the table of schedulers.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use fairq_classic::bfq::BfqScheduler;
use fairq_classic::cfq::CfqScheduler;
use fairq_classic::fiops::FiopsScheduler;
use fairq_classic::flashfq::FlashFqScheduler;
use fairq_classic::nass::Limited;
use fairq_classic::registry::{self, Entry, Error, Keys, Shape};
use fairq_core::registry::{d2fq, kyber_fair, mqfq};
use fairq_core::serial::entry::Alone;
use fairq_core::sfqd::SfqdScheduler;
use fairq_core::{ConfigError, FlowId, Policy, Topology, Weight};

use crate::linux::Linux;

/// A scheduler of one type, with its ports.
pub(crate) struct Made<L: Policy> {
    pub(crate) policy: L,
    ports: Box<[UnsafeCell<L::Port>]>,
    /// The flow of requests without a flow of their own.
    pub(crate) root: FlowId,
}

impl<L: Policy> Made<L> {
    /// The port of this number; `None` beyond the last.
    ///
    /// # Safety
    /// The caller holds the port's lock as long as it uses the reference.
    #[expect(clippy::mut_from_ref, reason = "a port is reached under its lock, which is C's")]
    pub(crate) unsafe fn port(&self, port: u32) -> Option<&mut L::Port> {
        // SAFETY: the caller's promise: nothing else has a reference to this port.
        self.ports.get(port as usize).map(|port| unsafe { &mut *port.get() })
    }
}

/// The reason for which no engine was built.
pub(crate) enum Refused {
    /// The keys contradict each other or the shape.
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

/// Builds a scheduler without the core's layer for groups and caps, which cgroups do not need. It
/// is not inlined, because its caller has one instance for each entry, and the kernel's stack has
/// 16 KiB for all calls.
#[inline(never)]
fn made<E: Entry>(keys: Keys<'_>, shape: &Shape) -> Result<Box<Made<E::Policy<Linux>>>, Refused> {
    let (policy, ports) = registry::bare::<E, Linux>(keys, shape)?;
    let root = policy.add_flow(Weight::DEFAULT).map_err(|_| Refused::Keys)?;
    let ports = ports.into_iter().map(UnsafeCell::new).collect();
    Ok(Box::new(Made { policy, ports, root }))
}

/// MQFQ that keeps slots free for flows that are about to send again.
type Mqfq = mqfq::Entry<false, true>;

/// The type that all policies behind a lock share, so that their verbs are compiled once.
type Serial = <Alone<SfqdScheduler> as Entry>::Policy<Linux>;

/// A scheduler of any type; the operator selects it while the module runs.
pub(crate) enum Engine {
    Mqfq(Box<Made<<Mqfq as Entry>::Policy<Linux>>>),
    KyberFair(Box<Made<<kyber_fair::Entry as Entry>::Policy<Linux>>>),
    D2fq(Box<Made<<d2fq::Entry as Entry>::Policy<Linux>>>),
    Serial(Box<Made<Serial>>),
}

/// Evaluates the same expression for any variant.
macro_rules! with {
    ($engine:expr, $made:ident => $call:expr) => {
        match $engine {
            Engine::Mqfq($made) => $call,
            Engine::KyberFair($made) => $call,
            Engine::D2fq($made) => $call,
            Engine::Serial($made) => $call,
        }
    };
}

pub(crate) use with;

/// A scheduler of the module.
pub(crate) struct Scheduler {
    /// Its name in Linux: the core's, unless Linux has a scheduler of that name.
    pub(crate) name: &'static str,
    policy: &'static str,
    /// The knob whose default comes from the device's depth; empty: there is none.
    depth: &'static str,
    /// Whether it needs a device with queue classes.
    pub(crate) needs_classes: bool,
    build: fn(Keys<'_>, &Shape) -> Result<Engine, Refused>,
}

macro_rules! schedulers {
    ($($name:literal: $variant:ident, $entry:ty, $depth:literal;)*) => {
        /// All schedulers; C refers to them by their index.
        pub(crate) static ALL: &[Scheduler] = &[$(
            Scheduler {
                name: $name,
                policy: <$entry as Entry>::NAME,
                depth: $depth,
                needs_classes: <$entry as Entry>::PROMISES.needs_classes,
                build: |keys, shape| made::<$entry>(keys, shape).map(Engine::$variant),
            },
        )*];
    };
}

// To add a scheduler, add a line here, and an alias in ../module/main.c.
schedulers! {
    "mqfq": Mqfq, Mqfq, "slots";
    "mqfq-serial": Mqfq, mqfq::Entry<true, true>, "slots";
    "sfqd": Serial, Alone<SfqdScheduler>, "slots";
    "kyber-fair": KyberFair, kyber_fair::Entry, "busy";
    "d2fq": D2fq, d2fq::Entry, "";
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
    /// The default of the depth knob: the driver's depth, or half of it for `kyber-fair`'s `busy`.
    fn usual(&self, shape: &Shape) -> (&'static str, u64) {
        let slots = u64::from(shape.slots);
        (self.depth, if self.depth == "busy" { (slots / 2).max(1) } else { slots })
    }

    /// The knobs with their values under these keys, always in the same order, without that for
    /// merging, which the block layer does itself.
    #[inline(never)]
    pub(crate) fn knobs(&self, keys: Keys<'_>, shape: &Shape) -> registry::Values {
        let Some(policy) = registry::find(self.policy) else { return Vec::new() };
        let keys = self.with_usual(keys, shape);
        let mut knobs = policy.configured(&keys, shape).unwrap_or_default();
        knobs.retain(|(knob, _)| knob.key != "merge");
        knobs
    }

    fn with_usual<'a>(&self, keys: Keys<'a>, shape: &Shape) -> Vec<(&'a str, u64)> {
        let usual = Some(self.usual(shape)).filter(|(knob, _)| !knob.is_empty());
        usual.into_iter().chain(keys.iter().copied()).collect()
    }

    /// Builds the scheduler for a shape.
    pub(crate) fn build(&self, keys: Keys<'_>, shape: &Shape) -> Result<Engine, Refused> {
        (self.build)(&self.with_usual(keys, shape), shape)
    }
}

/// A shape with `ports` ports on one socket, flows, tags of each port, and a device of `slots`
/// requests.
pub(crate) fn shape(ports: u32, flows: u32, tags: u32, slots: u32) -> Shape {
    Shape::new(Topology::flat(ports as usize), flows as usize, tags as usize).before(slots)
}

/// A flow's name in C: 64 bits that C does not interpret.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Handle(u64);

const _: () = assert!(size_of::<FlowId>() == size_of::<u64>());

impl Handle {
    /// The handle of no flow.
    pub(crate) const NONE: Handle = Handle(u64::MAX);

    pub(crate) fn of(flow: FlowId) -> Handle {
        // SAFETY: a flow's name is two numbers of 32 bits without padding.
        Handle(unsafe { core::mem::transmute::<FlowId, u64>(flow) })
    }

    pub(crate) fn flow(self) -> FlowId {
        // SAFETY: as above; any two numbers are a valid name, and a scheduler refuses a name
        // without a flow.
        unsafe { core::mem::transmute::<u64, FlowId>(self.0) }
    }
}
