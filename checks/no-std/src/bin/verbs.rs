//! The verbs of every policy and nothing else, in a program whose panic handler and allocator call
//! functions that do not exist: it links only if no panic and no allocation can be reached from a
//! verb. It is never run.
#![no_std]
#![no_main]

extern crate alloc;

#[path = "../freestanding.rs"]
mod freestanding;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

use fairq_classic::bfq::{BfqPort, BfqScheduler};
use fairq_classic::cfq::{CfqPort, CfqScheduler};
use fairq_classic::AnyPort;
use fairq_core::d2fq::D2fqPort;
use fairq_classic::fiops::{FiopsPort, FiopsScheduler};
use fairq_classic::flashfq::{FlashFqPort, FlashFqScheduler};
use fairq_classic::kyber::KyberPort;
use fairq_core::kyber_fair::KyberFairPort;
use fairq_core::mqfq::MqfqPort;
use fairq_classic::nass::NassPort;
use fairq_core::none::NonePort;
use fairq_core::sfqd::SfqdPort;
use fairq_core::{
    FlowStats, Growth, Native, Next, Outcome, Port, PortSet, Reason, Request, SubmitError,
    Submitted, Tag,
};

unsafe extern "C" {
    fn a_panic_can_be_reached() -> !;
    fn an_allocation_can_be_reached(size: usize) -> *mut u8;
}

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    // SAFETY: not callable: there is no such function, and the program does not link if this is
    // reached.
    unsafe { a_panic_can_be_reached() }
}

struct Nothing;

// SAFETY: as above, there is nothing behind it.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { an_allocation_can_be_reached(layout.size()) }
    }
    unsafe fn dealloc(&self, _: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { an_allocation_can_be_reached(layout.size()) };
    }
}

#[global_allocator]
static MEMORY: Nothing = Nothing;

macro_rules! verbs {
    ($($port:ty: $submit:ident $next:ident $complete:ident $others:ident),* $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $submit(
                port: &mut $port,
                now_ns: u64,
                request: &Request,
                wake: &mut PortSet,
                result: &mut Result<Submitted, SubmitError>,
            ) {
                *result = port.submit(now_ns, request, wake);
            }
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $next(
                port: &mut $port,
                now_ns: u64,
                wake: &mut PortSet,
                result: &mut Next,
            ) {
                *result = port.next(now_ns, wake);
            }
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $complete(
                port: &mut $port,
                now_ns: u64,
                tag: u32,
                done: bool,
                wake: &mut PortSet,
            ) {
                let outcome = if done { Outcome::Done } else { Outcome::Failed };
                port.complete(now_ns, Tag(tag), outcome, wake);
            }
            /// The verbs that are called seldom.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $others(
                port: &mut $port,
                now_ns: u64,
                request: &Request,
                growth: &Growth,
                wake: &mut PortSet,
                result: &mut Others,
            ) {
                result.has_room = port.admit(request.flow).is_ok();
                result.has_grown = port.grow(now_ns, request.tag, growth, wake);
                result.is_requeued = port.requeue(now_ns, request.tag, wake).is_some();
                result.is_held = port.hold(request.tag, request.flow).is_ok();
                result.is_ahead = port.expedite(now_ns, request.tag, wake);
                result.is_cancelled = port.cancel(now_ns, request.tag, wake);
                result.reason = port.reason(Some(request.tag));
                result.has_work = port.has_work();
                result.staged = port.staged(request.flow);
                result.stats = port.flow_stats(request.flow);
                port.barrier(request.flow);
            }
        )*

        /// Taking the verbs' addresses keeps them in the program, and from being specialised to a
        /// caller.
        fn address(which: usize) -> usize {
            let verbs = [$(
                $submit as *const () as usize,
                $next as *const () as usize,
                $complete as *const () as usize,
                $others as *const () as usize,
            )*];
            verbs.into_iter().nth(which).unwrap_or(0)
        }
    };
}

/// The answers of the verbs that are called seldom.
pub struct Others {
    has_room: bool,
    has_grown: bool,
    is_requeued: bool,
    is_held: bool,
    is_ahead: bool,
    is_cancelled: bool,
    reason: Reason,
    has_work: bool,
    staged: Option<Tag>,
    stats: FlowStats,
}

verbs!(
    NonePort<Native>: none_submit none_next none_complete none_others,
    SfqdPort<Native>: sfqd_submit sfqd_next sfqd_complete sfqd_others,
    CfqPort<Native>: cfq_submit cfq_next cfq_complete cfq_others,
    BfqPort<Native>: bfq_submit bfq_next bfq_complete bfq_others,
    FlashFqPort<Native>: flashfq_submit flashfq_next flashfq_complete flashfq_others,
    FiopsPort<Native>: fiops_submit fiops_next fiops_complete fiops_others,
    NassPort<CfqScheduler, Native>: nass_cfq_submit nass_cfq_next nass_cfq_complete nass_cfq_others,
    NassPort<BfqScheduler, Native>: nass_bfq_submit nass_bfq_next nass_bfq_complete nass_bfq_others,
    NassPort<FlashFqScheduler, Native>: nass_flashfq_submit nass_flashfq_next nass_flashfq_complete nass_flashfq_others,
    NassPort<FiopsScheduler, Native>: nass_fiops_submit nass_fiops_next nass_fiops_complete nass_fiops_others,
    MqfqPort<Native>: mqfq_submit mqfq_next mqfq_complete mqfq_others,
    D2fqPort<Native>: d2fq_submit d2fq_next d2fq_complete d2fq_others,
    KyberPort<Native>: kyber_submit kyber_next kyber_complete kyber_others,
    KyberFairPort<Native>: kyber_fair_submit kyber_fair_next kyber_fair_complete kyber_fair_others,
    AnyPort<Native>: any_submit any_next any_complete any_others,
);

/// A violation that `run` must find.
#[allow(unused_mut, unused_variables)]
fn canary(given: usize) -> usize {
    let mut result = given;
    #[cfg(feature = "canary-panic")]
    {
        result += [3, 1, 4][given];
    }
    #[cfg(feature = "canary-allocate")]
    {
        result += core::hint::black_box(alloc::boxed::Box::new(given)).leading_zeros() as usize;
    }
    #[cfg(feature = "canary-division")]
    {
        result += (core::hint::black_box(u128::MAX) / (given as u128 | 1)) as usize;
    }
    #[cfg(feature = "canary-float")]
    {
        result += (core::hint::black_box(given) as f64 * 0.7) as usize;
    }
    result
}

extern "C" fn main() -> ! {
    let given = core::hint::black_box(1);
    freestanding::exit(core::hint::black_box(address(given) + canary(given)) as i32)
}
