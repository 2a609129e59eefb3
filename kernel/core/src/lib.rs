//! fairq's schedulers as C functions, for the Linux module `fairq.ko`.
//!
//! `module/core.h` declares what is here; the two are changed together.
//!
//! **What C owes.** Each port has a lock that C holds with interrupts off around every function
//! that takes a port. The locks inside are the kernel's and switch interrupts off themselves.
//! `fairq_core_new` may sleep.
//!
//! **What is given.** Outside of `table`, no function but `fairq_core_new` allocates or can panic.
//! Memory is what C has lent (`fairq_core_lend`). That which an engine was built in is the
//! engine's: C frees it when nothing uses the engine any longer, and there is nothing else to do.
#![no_std]

extern crate alloc;

mod engine;
mod linux;
mod table;

use alloc::boxed::Box;

use engine::{Engine, Handle, Refused, with};
use fairq_core::{
    DepthState, FlowId, Growth, Held, Next, Op, Outcome, Policy, Port, PortSet, Request,
    SubmitError, Submitted, Tag, Weight,
};
use table::{Change, Key};

/// The most ports of an engine, in words of 64.
const WORDS: usize = PortSet::MAX_PORTS / 64;

/// A set of ports, a bit for each.
#[repr(C)]
struct Wake([u64; WORDS]);

impl Wake {
    fn add(&mut self, ports: PortSet) {
        for port in ports {
            let port = usize::from(port.0);
            if let Some(word) = self.0.get_mut(port / 64) {
                *word |= 1 << (port % 64);
            }
        }
    }
}

/// A request, or what one has grown by.
#[repr(C)]
struct Order {
    flow: Handle,
    offset: u64,
    length: u32,
    tag: u32,
    op: u32,
}

fn op(number: u32) -> Op {
    match number {
        0 => Op::Read,
        1 => Op::Write,
        2 => Op::Discard,
        _ => Op::WriteZeroes,
    }
}

/// What a port may do next.
#[repr(C)]
struct Chosen {
    /// 0: nothing until it is woken; 1: send the request `tag`; 2: ask again at `until_ns`.
    what: u32,
    tag: u32,
    until_ns: u64,
}

/// What a scheduler tells of itself.
#[repr(C)]
struct Told {
    slots: u64,
    free_slots: u64,
    throttles: u64,
    blocks: u64,
    wakes: u64,
    periods: u64,
    /// How D is found. 0: it is the operator's; 1: searched for; 2: found; 3: all that is asked
    /// for; 4: one flow is alone.
    search: u32,
}

/// What a port knows of a flow.
#[repr(C)]
struct FlowTold {
    staged: u32,
    in_flight: u32,
    lag: u64,
    has_lag: bool,
}

/// The numbers behind a decision; `u64::MAX` and `u32::MAX` are what the policy does not have.
#[repr(C)]
struct Why {
    virtual_time: u64,
    start_tag: u64,
    free_slots: u32,
    /// 0: it is not held; 1: it is ahead of virtual time; 2: no slot is free; 3: a cap.
    held: u32,
}

/// What an engine is built for.
#[repr(C)]
struct Wanted {
    scheduler: u32,
    ports: u32,
    flows: u32,
    tags: u32,
    slots: u32,
    keys: *const Key,
    key_count: u32,
}

/// Builds a scheduler. 0: it is there; 1: there is none of this number, shape and keys; 2: there is
/// not enough memory.
///
/// # Safety
/// There are as many keys as it says.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_new(wanted: &Wanted, engine: &mut *mut Engine) -> i32 {
    let Some(scheduler) = engine::ALL.get(wanted.scheduler as usize) else { return 1 };
    // SAFETY: the caller's promise.
    let keys = unsafe { table::keys(scheduler, wanted.keys, wanted.key_count) };
    let shape = engine::shape(wanted.ports, wanted.flows, wanted.tags, wanted.slots);
    match scheduler.build(&keys, &shape) {
        Ok(built) => {
            *engine = Box::into_raw(Box::new(built));
            0
        }
        Err(Refused::Keys) => 1,
        Err(Refused::Memory) => 2,
    }
}

/// Takes a request. 0: it is staged; 1: it goes at once; less: it is refused.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_submit(
    engine: &Engine,
    port: u32,
    now_ns: u64,
    order: &Order,
    wake: &mut Wake,
) -> i32 {
    with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let Some(port) = (unsafe { made.port(port) }) else { return -1 };
        let request = |flow: FlowId| {
            Request::new(Tag(order.tag), flow, op(order.op), order.offset, order.length)
        };
        let mut woken = PortSet::EMPTY;
        let mut said = port.submit(now_ns, &request(order.flow.flow()), &mut woken);
        // A cgroup that is gone has written something that is only sent now.
        if said == Err(SubmitError::NoSuchFlow) {
            said = port.submit(now_ns, &request(made.root), &mut woken);
        }
        wake.add(woken);
        match said {
            Ok(Submitted::Staged) => 0,
            Ok(Submitted::Issue { .. }) => 1,
            Err(_) => -1,
        }
    })
}

/// Says what a port may do next.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_next(
    engine: &Engine,
    port: u32,
    now_ns: u64,
    chosen: &mut Chosen,
    wake: &mut Wake,
) {
    (chosen.what, chosen.tag, chosen.until_ns) = (0, 0, 0);
    with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let Some(port) = (unsafe { made.port(port) }) else { return };
        let mut woken = PortSet::EMPTY;
        match port.next(now_ns, &mut woken) {
            Next::Issue { tag, .. } | Next::Join { tag } => (chosen.what, chosen.tag) = (1, tag.0),
            Next::WaitUntil(until_ns) => (chosen.what, chosen.until_ns) = (2, until_ns),
            Next::Blocked | Next::Idle => {}
        }
        wake.add(woken);
    });
}

/// Takes an issued request off its port.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_complete(
    engine: &Engine,
    port: u32,
    now_ns: u64,
    tag: u32,
    wake: &mut Wake,
) {
    with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let Some(port) = (unsafe { made.port(port) }) else { return };
        let mut woken = PortSet::EMPTY;
        port.complete(now_ns, Tag(tag), Outcome::Done, &mut woken);
        wake.add(woken);
    });
}

/// Takes back an issued request that the device has not begun. 0: it is staged again; 1: it goes at
/// once; less: it was not issued.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_requeue(
    engine: &Engine,
    port: u32,
    now_ns: u64,
    tag: u32,
    wake: &mut Wake,
) -> i32 {
    with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let Some(port) = (unsafe { made.port(port) }) else { return -1 };
        let mut woken = PortSet::EMPTY;
        let said = port.requeue(now_ns, Tag(tag), &mut woken);
        wake.add(woken);
        match said {
            Some(Submitted::Staged) => 0,
            Some(Submitted::Issue { .. }) => 1,
            None => -1,
        }
    })
}

/// A staged request has grown by what the order says.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_grow(
    engine: &Engine,
    port: u32,
    now_ns: u64,
    order: &Order,
    wake: &mut Wake,
) -> bool {
    with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let Some(port) = (unsafe { made.port(port) }) else { return false };
        let growth = Growth {
            op: op(order.op),
            offset: order.offset,
            length: order.length,
            cost: 0,
        };
        let mut woken = PortSet::EMPTY;
        let has_grown = port.grow(now_ns, Tag(order.tag), &growth, &mut woken);
        wake.add(woken);
        has_grown
    })
}

/// Takes a staged request back, which is part of another one now. Whether it was staged.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_cancel(
    engine: &Engine,
    port: u32,
    now_ns: u64,
    tag: u32,
    wake: &mut Wake,
) -> bool {
    with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let Some(port) = (unsafe { made.port(port) }) else { return false };
        let mut woken = PortSet::EMPTY;
        let is_gone = port.cancel(now_ns, Tag(tag), &mut woken);
        wake.add(woken);
        is_gone
    })
}

/// Whether `fairq_core_next` may have something to give.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_has_work(engine: &Engine, port: u32) -> bool {
    // SAFETY: C holds the port's lock.
    with!(engine, made => unsafe { made.port(port) }.is_some_and(|port| port.has_work()))
}

/// Whether a flow may have another request on this port, so that it leaves tags to others.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_admits(engine: &Engine, port: u32, flow: Handle) -> bool {
    with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let port = unsafe { made.port(port) };
        port.is_none_or(|port| port.admit(flow.flow()) != Err(SubmitError::Full))
    })
}

/// The flow of requests that belong to no other.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_root(engine: &Engine) -> Handle {
    with!(engine, made => Handle::of(made.root))
}

fn weight(of_256ths: u32) -> Weight {
    let most = Weight::MAX.in_256ths();
    Weight::of_256ths(of_256ths.clamp(Weight::LEAST_256THS, most)).unwrap_or(Weight::DEFAULT)
}

/// Adds a flow of this weight, in 256ths; `false` if there are as many as there can be.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_add_flow(engine: &Engine, of_256ths: u32, flow: &mut Handle) -> bool {
    let added = with!(engine, made => made.policy.add_flow(weight(of_256ths)));
    added.map(|added| *flow = Handle::of(added)).is_ok()
}

/// A flow, and what its weight is to be, in 256ths.
#[repr(C)]
struct Weighed {
    flow: Handle,
    of_256ths: u32,
}

/// The most weights that are changed at once; `FAIRQ_WEIGHTS` in `module/core.h`.
const WEIGHTS: usize = 8;

/// Changes the weights of flows, of at most [`WEIGHTS`].
///
/// # Safety
/// There are as many as it says.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_set_weights(engine: &Engine, weighed: *const Weighed, count: u32) {
    // SAFETY: the caller's promise.
    let weighed = unsafe { core::slice::from_raw_parts(weighed, count as usize) };
    let mut weights = [(Handle::NONE.flow(), Weight::DEFAULT); WEIGHTS];
    for (to, from) in weights.iter_mut().zip(weighed) {
        *to = (from.flow.flow(), weight(from.of_256ths));
    }
    let weights = &weights[..weighed.len().min(WEIGHTS)];
    // As a layer that computes weights: what is measured of the flows goes on.
    with!(engine, made => made.policy.set_weights(weights));
}

/// Removes a flow. What it has staged is still served.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_remove_flow(engine: &Engine, flow: Handle, wake: &mut Wake) {
    if let Ok(woken) = with!(engine, made => made.policy.remove_flow(flow.flow())) {
        wake.add(woken);
    }
}

/// Does periodic work; gives the time of the next, 0 for none.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_tick(engine: &Engine, now_ns: u64, wake: &mut Wake) -> u64 {
    let mut woken = PortSet::EMPTY;
    let next = with!(engine, made => made.policy.tick(now_ns, &mut woken));
    wake.add(woken);
    next.unwrap_or(0)
}

/// Makes a change. Whether it could.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_tune(engine: &Engine, change: &Change, wake: &mut Wake) -> bool {
    let Some(tuning) = change.tuning() else { return false };
    let mut woken = PortSet::EMPTY;
    let done = with!(engine, made => made.policy.tune(tuning, &mut woken)).is_ok();
    wake.add(woken);
    done
}

/// What the scheduler tells of itself; what it has not is 0.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_tell(engine: &Engine, told: &mut Told) {
    let stats = with!(engine, made => made.policy.stats());
    let depth = stats.depth;
    *told = Told {
        slots: stats.slots.or(depth.map(|depth| depth.slots.into())).unwrap_or(0),
        free_slots: stats.free_slots.unwrap_or(0),
        throttles: stats.throttles,
        blocks: stats.blocks,
        wakes: stats.wakes,
        periods: stats.tokens.map_or(0, |tokens| tokens.periods),
        search: depth.map_or(0, |depth| match depth.state {
            DepthState::Searching => 1,
            DepthState::Found => 2,
            DepthState::AllDemand => 3,
            DepthState::Alone => 4,
        }),
    };
}

/// What a port knows of a flow.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_tell_flow(
    engine: &Engine,
    port: u32,
    flow: Handle,
    told: &mut FlowTold,
) {
    let stats = with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let port = unsafe { made.port(port) };
        port.map(|port| port.flow_stats(flow.flow())).unwrap_or_default()
    });
    *told = FlowTold {
        staged: stats.staged,
        in_flight: stats.in_flight,
        lag: stats.lag.unwrap_or(0),
        has_lag: stats.lag.is_some(),
    };
}

/// The numbers behind the port's last answer: about this request, or (`u32::MAX`) about why none
/// may go.
///
/// # Safety
/// The module's text.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_why(engine: &Engine, port: u32, tag: u32, why: &mut Why) {
    let tag = (tag != u32::MAX).then_some(Tag(tag));
    let reason = with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let port = unsafe { made.port(port) };
        port.map(|port| port.reason(tag)).unwrap_or_default()
    });
    *why = Why {
        virtual_time: reason.virtual_time.unwrap_or(u64::MAX),
        start_tag: reason.start_tag.unwrap_or(u64::MAX),
        free_slots: reason.free_slots.unwrap_or(u32::MAX),
        held: match reason.held {
            None => 0,
            Some(Held::Ahead) => 1,
            // There are neither latency targets nor caps here.
            Some(Held::NoSlot | Held::Target | Held::Reserved) => 2,
            Some(Held::Cap | Held::GroupCap) => 3,
        },
    };
}
