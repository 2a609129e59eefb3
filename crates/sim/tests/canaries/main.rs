//! Policies that are broken on purpose: each check must detect the policy that breaks its law, and
//! accept sound policies.

mod shim;
mod unfair;

use fairq_classic::nass::NassConfig;
use fairq_core::serial::{Serial, SerialPolicy, SerialPort};
use fairq_core::{ConfigError, Native};
use fairq_device::Profile;
use fairq_sim::policies::{MqfqSubject, NoneSubject, Scheduler, SerialSubject, SfqdSubject};
use fairq_sim::scenario::MS;
use fairq_sim::subject::Built;
use fairq_sim::{Job, Promise, Run, Scenario, Subject, Tenant, check, run};

use shim::{Fault, Shim};
use unfair::{ByWeight, FirstIn};

/// Three tenants on three ports: sizes, depths and weights all differ, and each submits more than
/// its share.
fn scenario() -> Scenario {
    let profile = Profile::named("z-ssd").expect("it is built in");
    let tenants = vec![
        Tenant::new("a", 100, vec![0, 1], Job::random_read(4096, 64)),
        Tenant::new("b", 300, vec![1], Job::random_read(8192, 64)),
        Tenant::new("c", 200, vec![2], Job::random_read(4096, 128)),
    ];
    Scenario::new(profile, 3, tenants, 20 * MS)
}

fn checked<S: Subject>(subject: &S) -> Run {
    let scenario = scenario();
    run(&scenario, subject, check::all(&scenario, &subject.promise()))
        .expect("the scenario is legal")
}

#[track_caller]
fn caught<S: Subject>(subject: &S, by: &str) {
    match checked(subject).violation {
        Some(violation) => assert_eq!(violation.check, by, "{violation}"),
        None => panic!("a broken policy passed"),
    }
}

/// NASS to the letter of its paper, with this β.
fn letters_of_nass(reserve: u32) -> SerialSubject {
    let nass = NassConfig::default().with(|config| config.reserve = reserve);
    SerialSubject::new(Scheduler::Fiops, 64).limited_strictly(nass)
}

const PAPER: MqfqSubject = MqfqSubject { slots: 64, threshold: 45 << 10 };

/// A policy with a promise that it does not keep.
struct Promising<S>(S, Promise);

impl<S: Subject> Subject for Promising<S> {
    type Policy = S::Policy;

    fn build(&self, scenario: &Scenario) -> Result<Built<S::Policy>, ConfigError> {
        self.0.build(scenario)
    }

    fn promise(&self) -> Promise {
        self.1
    }
}

/// A policy behind one lock that is not fair.
struct Unfair<S>(fn() -> S);

impl<S: SerialPolicy> Subject for Unfair<S> {
    type Policy = Serial<S>;

    fn build(&self, scenario: &Scenario) -> Result<(Serial<S>, Vec<SerialPort<S>>), ConfigError> {
        let (ports, flows, tags) = (scenario.ports, scenario.flows(), scenario.tags());
        let config = fairq_core::serial::SerialConfig::new(ports, flows, tags)
            .with(|config| config.slots = 16);
        Serial::with_policy((self.0)(), &config)
    }

    fn promise(&self) -> Promise {
        Promise { steady_time: false, ..Subject::<Native>::promise(&SfqdSubject { slots: 16 }) }
    }
}

#[test]
fn the_ones_that_are_not_broken_pass() {
    let sound = [
        checked(&NoneSubject),
        checked(&SfqdSubject { slots: 64 }),
        checked(&PAPER),
        checked(&Shim(PAPER, Fault::Nothing)),
        checked(&SerialSubject::new(Scheduler::Fiops, 64).limited(NassConfig::default())),
        checked(&letters_of_nass(8)),
    ];
    for run in sound {
        assert_eq!(run.violation, None);
        assert!(run.requests > 5000, "{} requests", run.requests);
    }
}

#[test]
fn conservation_catches_a_lost_request() {
    caught(&Shim(SfqdSubject { slots: 64 }, Fault::LosesRequests), "conservation");
}

#[test]
fn conservation_catches_a_port_that_denies_what_it_has() {
    caught(&Shim(PAPER, Fault::SaysIdle), "conservation");
}

/// With a β of 0, lines 16 to 22 of Algorithm 1 let no request be dispatched.
#[test]
fn conservation_catches_a_total_limit_of_none() {
    caught(&letters_of_nass(0), "conservation");
}

#[test]
fn the_contract_catches_what_is_issued_twice() {
    caught(&Shim(PAPER, Fault::IssuesTwice), "contract");
}

#[test]
fn work_conservation_catches_lost_wake_ups() {
    caught(&Shim(SfqdSubject { slots: 64 }, Fault::LosesWakeUps), "work conservation");
}

#[test]
fn work_conservation_catches_a_slot_too_few() {
    caught(
        &Promising(MqfqSubject { slots: 63, ..PAPER }, Subject::<Native>::promise(&PAPER)),
        "work conservation",
    );
}

#[test]
fn slots_catches_a_slot_too_many() {
    caught(
        &Promising(MqfqSubject { slots: 65, ..PAPER }, Subject::<Native>::promise(&PAPER)),
        "slots",
    );
}

#[test]
fn slots_catches_nass_with_more_than_the_queue_takes() {
    // Without halving and without a reserve each of the three tenants has 11 requests on the drive.
    let nass = NassConfig::default().with(|config| {
        config.queue_length = 33;
        (config.aggressiveness, config.idleness) = (false, false);
    });
    let of_33 = SerialSubject::new(Scheduler::Fiops, 64).limited_strictly(nass);
    caught(&Promising(of_33, Subject::<Native>::promise(&letters_of_nass(8))), "slots");
}

#[test]
fn virtual_time_catches_time_that_goes_back() {
    caught(&Shim(PAPER, Fault::TimeGoesBack), "virtual time");
}

#[test]
fn bounds_catches_a_threshold_that_is_not_kept() {
    let strict = MqfqSubject { threshold: 4096, ..PAPER };
    caught(
        &Promising(
            MqfqSubject { threshold: 1 << 20, ..PAPER },
            Subject::<Native>::promise(&strict),
        ),
        "bounds",
    );
}

#[test]
fn share_catches_first_come_first_served() {
    caught(&Unfair(FirstIn::default), "share");
}

#[test]
fn starvation_catches_strict_priority() {
    // The promise omits `shares`, because that check would report this policy first.
    let promise = Promise { shares: false, ..Unfair(ByWeight::default).promise() };
    caught(&Promising(Unfair(ByWeight::default), promise), "starvation");
}
