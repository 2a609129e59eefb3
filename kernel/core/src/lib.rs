//! fairq's schedulers as C functions, for the Linux module `fairq.ko`.
//!
//! `module/core.h` declares these functions; the two are changed together.
//!
//! **Duties of C.** Each port has a lock that C holds with interrupts off around every function
//! that takes a port. The schedulers' own locks are spin locks of the kernel, and switch interrupts
//! off themselves. `fairq_core_new` may sleep.
//!
//! **Guarantees.** Outside of `table`, no function but `fairq_core_new` allocates or can panic. All
//! memory is lent by C (`fairq_core_lend`). The memory in which an engine was built belongs to the
//! engine: C frees it when nothing uses the engine, and no other cleanup is needed.
#![no_std]

extern crate alloc;

mod engine;
mod linux;
mod table;

use alloc::boxed::Box;

use engine::{Engine, Handle, Refused, with};
use fairq_core::{
    Class, ClassWeights, DepthState, FlowId, Growth, Held, Next, Op, Outcome, Policy, Port,
    PortSet, Request, SubmitError, Submitted, Tag, Weight,
};
use table::{Change, Key};

/// Words of 64 bits in a set of ports.
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

/// A request, or the growth of one.
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

/// The next step of a port.
#[repr(C)]
struct Chosen {
    /// 0: nothing until a wake-up; 1: issue the request `tag`; 2: call again at `until_ns`.
    what: u32,
    tag: u32,
    until_ns: u64,
}

/// Statistics of a scheduler.
#[repr(C)]
struct Told {
    slots: u64,
    free_slots: u64,
    throttles: u64,
    blocks: u64,
    wakes: u64,
    periods: u64,
    /// State of the search for D. 0: the operator sets D; 1: searching; 2: found; 3: D covers the
    /// whole demand; 4: a single flow is active.
    search: u32,
}

/// Statistics of a flow on a port.
#[repr(C)]
struct FlowTold {
    staged: u32,
    in_flight: u32,
    lag: u64,
    has_lag: bool,
}

/// The numbers behind a decision; `u64::MAX` and `u32::MAX` stand for values that the policy does
/// not have.
#[repr(C)]
struct Why {
    virtual_time: u64,
    start_tag: u64,
    free_slots: u32,
    /// 0: not held; 1: ahead of virtual time; 2: no slot is free; 3: held by a cap.
    held: u32,
}

/// Parameters of an engine.
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

/// Builds a scheduler. Returns 0: built; 1: no scheduler has this number, or it refuses the shape
/// and keys; 2: not enough memory.
///
/// # Safety
/// `wanted.keys` points to `wanted.key_count` keys.
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

/// Whether a scheduler needs a device with queue classes.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_needs_classes(scheduler: u32) -> bool {
    engine::ALL.get(scheduler as usize).is_some_and(|scheduler| scheduler.needs_classes)
}

/// Commands of each class in a round of the device.
#[repr(C)]
struct Weights {
    high: u16,
    medium: u16,
    low: u16,
}

/// The weights of the classes; `false` for a scheduler without classes.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_class_weights(engine: &Engine, weights: &mut Weights) -> bool {
    let wanted = with!(engine, made => made.policy.class_weights());
    let wanted = wanted.map(|ClassWeights { high, medium, low }| Weights { high, medium, low });
    wanted.map(|wanted| *weights = wanted).is_some()
}

/// The answer to a submission: 0: staged; otherwise the number of the class, in the order of NVMe's
/// queue priorities, plus 1.
fn issued(said: Submitted) -> i32 {
    match said {
        Submitted::Staged => 0,
        Submitted::Issue { class: Class::Urgent } => 1,
        Submitted::Issue { class: Class::High } => 2,
        Submitted::Issue { class: Class::Medium } => 3,
        Submitted::Issue { class: Class::Low } => 4,
    }
}

/// Submits a request. Returns 0: staged; positive: to be issued at once ([`issued`]); negative:
/// refused.
///
/// # Safety
/// The caller follows the rules in the module header.
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
        // The request's cgroup has been removed, as in a late writeback, so root is charged.
        if said == Err(SubmitError::NoSuchFlow) {
            said = port.submit(now_ns, &request(made.root), &mut woken);
        }
        wake.add(woken);
        said.map_or(-1, issued)
    })
}

/// Returns the next step of a port.
///
/// # Safety
/// The caller follows the rules in the module header.
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

/// Completes an issued request.
///
/// # Safety
/// The caller follows the rules in the module header.
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

/// Requeues an issued request that the device has not begun. Returns 0: staged again; positive: to
/// be issued at once ([`issued`]); negative: it was not issued.
///
/// # Safety
/// The caller follows the rules in the module header.
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
        said.map_or(-1, issued)
    })
}

/// Grows a staged request by the order's range.
///
/// # Safety
/// The caller follows the rules in the module header.
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

/// Cancels a staged request that has become part of another one. Returns whether it was staged.
///
/// # Safety
/// The caller follows the rules in the module header.
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

/// Whether `fairq_core_next` may return a request or a time until which to wait.
///
/// # Safety
/// The caller follows the rules in the module header.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_has_work(engine: &Engine, port: u32) -> bool {
    // SAFETY: C holds the port's lock.
    with!(engine, made => unsafe { made.port(port) }.is_some_and(|port| port.has_work()))
}

/// Whether a flow may have another request on this port; the limit leaves tags for other flows.
///
/// # Safety
/// The caller follows the rules in the module header.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_admits(engine: &Engine, port: u32, flow: Handle) -> bool {
    with!(engine, made => {
        // SAFETY: C holds the port's lock.
        let port = unsafe { made.port(port) };
        port.is_none_or(|port| port.admit(flow.flow()) != Err(SubmitError::Full))
    })
}

/// The flow of requests without a flow of their own.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_root(engine: &Engine) -> Handle {
    with!(engine, made => Handle::of(made.root))
}

/// The weight of a flow of which C knows the part of the whole: all of it is the largest weight.
/// The thresholds of D2FQ are bytes at weight 100, which a flow with two thirds of the drive has
/// there.
fn weight(engine: &Engine, of_256ths: u32) -> Weight {
    let of_256ths = if matches!(engine, Engine::D2fq(_)) { of_256ths / 64 } else { of_256ths };
    let most = Weight::MAX.in_256ths();
    Weight::of_256ths(of_256ths.clamp(Weight::LEAST_256THS, most)).unwrap_or(Weight::DEFAULT)
}

/// Adds a flow of this weight, in 256ths; `false` if there are already as many flows as possible.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_add_flow(engine: &Engine, of_256ths: u32, flow: &mut Handle) -> bool {
    let added = with!(engine, made => made.policy.add_flow(weight(engine, of_256ths)));
    added.map(|added| *flow = Handle::of(added)).is_ok()
}

/// A flow and its new weight, in 256ths.
#[repr(C)]
struct Weighed {
    flow: Handle,
    of_256ths: u32,
}

/// The most weights in one call; `FAIRQ_WEIGHTS` in `module/core.h`.
const WEIGHTS: usize = 8;

/// Changes the weights of at most [`WEIGHTS`] flows.
///
/// # Safety
/// `weighed` points to `count` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_set_weights(engine: &Engine, weighed: *const Weighed, count: u32) {
    // SAFETY: the caller's promise.
    let weighed = unsafe { core::slice::from_raw_parts(weighed, count as usize) };
    let mut weights = [(Handle::NONE.flow(), Weight::DEFAULT); WEIGHTS];
    for (to, from) in weights.iter_mut().zip(weighed) {
        *to = (from.flow.flow(), weight(engine, from.of_256ths));
    }
    let weights = &weights[..weighed.len().min(WEIGHTS)];
    // The weights are computed from those of cgroups and change often, so measurements continue.
    with!(engine, made => made.policy.set_weights(weights));
}

/// Removes a flow. Its staged requests are still served.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_remove_flow(engine: &Engine, flow: Handle, wake: &mut Wake) {
    if let Ok(woken) = with!(engine, made => made.policy.remove_flow(flow.flow())) {
        wake.add(woken);
    }
}

/// Does periodic work; returns the time of the next call in ns, 0 for none.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_tick(engine: &Engine, now_ns: u64, wake: &mut Wake) -> u64 {
    let mut woken = PortSet::EMPTY;
    let next = with!(engine, made => made.policy.tick(now_ns, &mut woken));
    wake.add(woken);
    next.unwrap_or(0)
}

/// Changes a parameter. Returns whether the scheduler could.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_tune(engine: &Engine, change: &Change, wake: &mut Wake) -> bool {
    let Some(tuning) = change.tuning() else { return false };
    let mut woken = PortSet::EMPTY;
    let done = with!(engine, made => made.policy.tune(tuning, &mut woken)).is_ok();
    wake.add(woken);
    done
}

/// Statistics of the scheduler; 0 for values that it does not have.
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

/// Statistics of a flow on a port.
///
/// # Safety
/// The caller follows the rules in the module header.
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

/// The numbers behind the port's last decision about this request or, for `u32::MAX`, behind its
/// decision to issue none.
///
/// # Safety
/// The caller follows the rules in the module header.
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
            // The module sets neither latency targets nor reservations.
            Some(Held::NoSlot | Held::Target | Held::Reserved) => 2,
            Some(Held::Cap | Held::GroupCap) => 3,
        },
    };
}
