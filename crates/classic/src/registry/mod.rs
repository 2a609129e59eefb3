//! The registry of all policies: those of `fairq-core` and the classic ones, one line each. See
//! [`fairq_core::registry`] for the ways in which a policy is built.

use fairq_core::contract::layer::names::*;
use fairq_core::registry::{Layered, d2fq, kyber_fair, mqfq, none};
use fairq_core::serial::entry::Alone;
use fairq_core::sfqd::SfqdScheduler;
use fairq_core::{Native, to_the_policy, to_the_port};

use crate::nass::Limited;
use crate::{bfq, cfq, fiops, flashfq, kyber};

pub use fairq_core::registry::{
    Built, Configure, Entry, Error, Keys, Knob, Knobs, Promises, Registered, Shape, Unit, Values,
    WithPolicy, bare, build,
};

fairq_core::policies! { $
    None: none::Entry,
    Sfqd: Alone<SfqdScheduler>,
    Mqfq: mqfq::Entry,
    MqfqSerial: mqfq::Entry<true>,
    D2fq: d2fq::Entry,
    Cfq: Alone<cfq::CfqScheduler>,
    CfqNa: Alone<cfq::CfqNa>,
    Bfq: Alone<bfq::BfqScheduler>,
    BfqNa: Alone<bfq::BfqNa>,
    FlashFq: Alone<flashfq::FlashFqScheduler>,
    Fiops: Alone<fiops::FiopsScheduler>,
    NassCfq: Limited<cfq::CfqScheduler>,
    NassBfq: Limited<bfq::BfqScheduler>,
    NassFlashFq: Limited<flashfq::FlashFqScheduler>,
    NassFiops: Limited<fiops::FiopsScheduler>,
    NassMqfq: Limited<SfqdScheduler>,
    Kyber: kyber::Entry,
    KyberFair: kyber_fair::Entry,
    #[cfg(feature = "toy")]
    Toy: Alone<crate::toy::Toy>,
}

#[cfg(all(test, not(loom)))]
mod cost_tests;
#[cfg(all(test, not(loom)))]
mod tests;
