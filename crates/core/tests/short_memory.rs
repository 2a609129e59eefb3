//! A policy for which there is no memory is refused, and the process continues: in a kernel, or in
//! a process that also does other work, nothing else is acceptable.
//!
//! The test runs itself once more with a small address space, so that allocations fail.
#![cfg(target_os = "linux")]

use std::process::Command;

use fairq_classic::bfq::{self, BfqConfig, BfqScheduler};
use fairq_classic::cfq::{self, CfqConfig};
use fairq_classic::fiops::{self, FiopsConfig};
use fairq_classic::flashfq::{self, FlashFqConfig};
use fairq_classic::kyber::{Kyber, KyberConfig};
use fairq_classic::nass::{self, NassConfig};
use fairq_classic::registry::{self, Shape};
use fairq_core::d2fq::{D2fq, D2fqConfig};
use fairq_core::kyber_fair::{KyberFair, KyberFairConfig};
use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::none::NonePolicy;
use fairq_core::serial::SerialConfig;
use fairq_core::sfqd::Sfqd;
use fairq_core::{AnyPolicy, ConfigError, Native, Topology};

const WITHIN: &str = "FAIRQ_TEST_WITHIN_LITTLE_MEMORY";

const PORTS: usize = 64;

/// Builds policies of growing size until one is refused; a small one must still fit then.
fn until_refused<P>(name: &str, build: impl Fn(usize, usize) -> Result<P, ConfigError>) {
    let refused = (10..=22).step_by(2).find_map(|bits| build(1 << 10, 1 << bits).err());
    assert_eq!(refused, Some(ConfigError::Memory), "{name}");
    assert!(build(16, 64).is_ok(), "{name}");
}

fn each_policy_until_refused() {
    let topology = || Topology::flat(PORTS);
    let serial = |flows, tags| SerialConfig::new(PORTS, flows, tags);
    until_refused("none", |flows, tags| <NonePolicy>::new(PORTS, flows, tags));
    until_refused("mqfq", |flows, tags| <Mqfq>::new(MqfqConfig::new(topology(), flows, tags)));
    until_refused("d2fq", |flows, tags| <D2fq>::new(D2fqConfig::new(topology(), flows, tags)));
    until_refused("kyber", |flows, tags| <Kyber>::new(&KyberConfig::new(PORTS, flows, tags)));
    until_refused("kyber-fair", |flows, tags| {
        <KyberFair>::new(&KyberFairConfig::new(PORTS, flows, tags))
    });
    until_refused("sfqd", |flows, tags| <Sfqd>::new(&serial(flows, tags)));
    until_refused("fiops", |flows, tags| {
        fiops::new::<Native>(&serial(flows, tags), &FiopsConfig::default())
    });
    until_refused("cfq", |flows, tags| {
        cfq::new::<Native>(&serial(flows, tags), &CfqConfig::default())
    });
    until_refused("flashfq", |flows, tags| {
        flashfq::new::<Native>(&serial(flows, tags), &FlashFqConfig::default())
    });
    until_refused("bfq that merges", |flows, tags| {
        let bounds = serial(flows, tags).with(|config| config.merge_bytes = 1 << 18);
        bfq::new::<Native>(&bounds, &BfqConfig::default())
    });
    let layers = |name| {
        until_refused(name, |flows, tags| {
            let shape = Shape::new(topology(), flows, tags);
            AnyPolicy::<Native>::new(name, &[], &shape).map_err(|error| match error {
                registry::Error::Config(error) => error,
                error => panic!("{name}: {error}"),
            })
        });
    };
    // `none` takes little by itself: its layers are refused.
    ["mqfq", "none", "kyber-fair"].into_iter().for_each(layers);
    until_refused("nass+bfq", |flows, tags| {
        let bounds = serial(flows, tags);
        let inside = BfqScheduler::new(&bounds, &BfqConfig::default())?;
        nass::new::<_, Native>(inside, &bounds, &NassConfig::default())
    });
}

#[test]
fn a_policy_without_memory_is_refused() {
    if std::env::var_os(WITHIN).is_some() {
        return each_policy_until_refused();
    }
    let this = std::env::current_exe().unwrap();
    let ran = Command::new("sh")
        .args(["-c", "ulimit -v 250000 && exec \"$0\" --exact a_policy_without_memory_is_refused"])
        .arg(this)
        .env(WITHIN, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{:?}: {said}", ran.status);
}
