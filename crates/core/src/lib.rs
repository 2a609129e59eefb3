//! The schedulers of fairq.
//!
//! A [`Policy`] shares one device between [flows](FlowId) in proportion to their [`Weight`]s. Each
//! shard (thread, core, hardware queue) drives its own [`Port`] with three verbs, `submit`, `next`
//! and `complete`, and others that are called seldom; the [`port`] module is the contract. The
//! policies:
//!
//! | policy | what | source |
//! |---|---|---|
//! | [`none::NonePolicy`] | first come, first served: the device decides | the baseline of all papers |
//! | [`mqfq::Mqfq`] | fair shares over any number of queues, without a lock | Hedayati et al., USENIX ATC 2019 |
//! | [`d2fq::D2fq`] | fair shares by the device's own queue classes: submit is dispatch | Woo et al., USENIX FAST 2021 |
//! | [`kyber_fair::KyberFair`] | shares by tokens handed out once a period | Son, Oh and Ahn, JSTS 2020 |
//! | [`sfqd::Sfqd`] | start-time fair queueing, D at a time, one lock | Goyal 1996, Jin 2004 |
//!
//! The classic disk schedulers and NASS are in `fairq-classic`, which uses modules of this crate
//! that are hidden from its documentation; the hidden modules are no part of the interface.
//!
//! The crate is `no_std` (with `alloc`), has no clock, no I/O, no `unsafe` and no floating point,
//! and allocates only while a policy is being built: the same objects run in production, in
//! simulation and under the model checker. Atomics and locks come through [`Platform`].
//!
//! # In a storage server of one's own
//! One port, a device that serves two requests at once, and two tenants that always have another
//! request:
//!
//! ```
//! use std::collections::VecDeque;
//!
//! use fairq_core::mqfq::{Mqfq, MqfqConfig};
//! use fairq_core::{
//!     Native, Next, Op, Outcome, Policy, Port, PortSet, Request, Tag, Topology, Weight,
//! };
//!
//! // At most 16 flows, 64 live requests a port, two outstanding on the device.
//! let config = MqfqConfig::new(Topology::flat(1), 16, 64).with(|config| config.slots = 2);
//! let (policy, mut ports) = Mqfq::<Native>::new(config)?;
//! let port = &mut ports[0];
//! let [gold, silver] = [300, 100].map(|weight| Weight::new(weight).unwrap());
//! let flows = [policy.add_flow(gold)?, policy.add_flow(silver)?];
//!
//! // The tags 0 to 7 are the first tenant's, 8 to 15 the second's.
//! let ask = |tag: Tag| {
//!     let flow = flows[tag.0 as usize / 8];
//!     Request::new(tag, flow, Op::Read, 0, 4096)
//! };
//! let (mut device, mut wake, mut served) = (VecDeque::new(), PortSet::EMPTY, [0; 2]);
//! for tag in (0..16).map(Tag) {
//!     port.submit(0, &ask(tag), &mut wake)?;
//! }
//! for now_ns in 0..4000 {
//!     while let Next::Issue { tag, .. } = port.next(now_ns, &mut wake) {
//!         device.push_back(tag);
//!     }
//!     let tag: Tag = device.pop_front().unwrap();
//!     port.complete(now_ns, tag, Outcome::Done, &mut wake);
//!     served[tag.0 as usize / 8] += 1;
//!     port.submit(now_ns, &ask(tag), &mut wake)?;
//! }
//! assert!((2990..=3010).contains(&served[0]), "{served:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With several threads, each has a port, and the caller wakes the threads of the ports that the
//! verbs add to `wake`. The example `embed` (`cargo run --release -p fairq-core --example embed`)
//! does that in front of a file.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

#[doc(hidden)]
pub mod contract;
pub mod cost;
#[doc(hidden)]
pub mod entry;
mod policy;
pub mod registry;
#[doc(hidden)]
pub mod structures;
pub mod wake;

pub use contract::bounds::{self, ConfigError};
pub use contract::cost::CostModel;
pub use contract::flow::{self, FlowError, FlowId, Weight};
pub use contract::platform::{self, Native, Platform};
pub use contract::port::{
    self, Class, ClassWeights, Cost, CostStats, DepthState, DepthStats, FlowStats, Growth, Held,
    Next, Op, Outcome, Policy, Port, Reason, Request, ReservedStats, Stats, SubmitError, Submitted,
    Tag, TokenStats, TuneError, Tuning,
};
pub use contract::port_set::{PortBits, PortId, PortSet, SharedPorts};
pub use contract::share::{
    self, Cap, CapStats, Caps, CapsOf, Counted, Group, GroupId, GroupStats, Limits, Reservation,
    ReservationState, Share, ShareStats, Side, Taken, Target, TargetState, TargetStats,
};
pub use contract::vtime::{self, ReferenceWeight};
pub use policy::serial::sfqd;
pub use policy::{d2fq, depth, kyber_fair, limits, managed, mqfq, none, serial};
pub use registry::{AnyPolicy, AnyPort};
pub use structures::queues;
pub use structures::topology::Topology;
