//! A scheduler and its ports as C holds them.

use alloc::boxed::Box;
use core::cell::UnsafeCell;

use fairq_core::registry::{self, Shape};
use fairq_core::sfqd::SfqdScheduler;
use fairq_core::{FlowId, Native, Policy, Topology, Weight, kyber_fair, mqfq, serial};

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

/// Builds a scheduler. Not part of its caller, which has one for each type: the stack is the
/// kernel's, 16 KiB for all that is called.
#[inline(never)]
fn made<E: registry::Entry>(shape: &Shape) -> Option<Box<Made<registry::CappedOf<E, Native>>>> {
    // D is what the driver takes, not searched for: `kyber-fair` is busy with half of that.
    let slots = u64::from(shape.slots);
    let keys = match E::NAME {
        "kyber-fair" => [("busy", (slots / 2).max(1))],
        _ => [("slots", slots)],
    };
    let (policy, ports) = registry::build::<E, Native>(&keys, shape).ok()?;
    let root = policy.add_flow(Weight::DEFAULT).ok()?;
    let ports = ports.into_iter().map(UnsafeCell::new).collect();
    Some(Box::new(Made { policy, ports, root }))
}

macro_rules! engines {
    ($d:tt $($variant:ident: $entry:ty,)*) => {
        /// A scheduler that is chosen while the module runs.
        pub(crate) enum Engine {
            $($variant(Box<Made<registry::CappedOf<$entry, Native>>>),)*
        }

        impl Engine {
            /// Builds the scheduler of this name; `None` if there is none, or not of this shape.
            pub(crate) fn new(name: &str, shape: &Shape) -> Option<Engine> {
                $(
                    if name == <$entry as registry::Entry>::NAME {
                        return made::<$entry>(shape).map(Engine::$variant);
                    }
                )*
                None
            }
        }

        /// Does the same with whatever is in there.
        macro_rules! with {
            ($d engine:expr, $d made:ident => $d call:expr) => {
                match $d engine {
                    $(Engine::$variant($d made) => $d call,)*
                }
            };
        }

        pub(crate) use with;
    };
}

engines! { $
    Mqfq: mqfq::Entry,
    Sfqd: serial::entry::Alone<SfqdScheduler>,
    KyberFair: kyber_fair::Entry,
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
