//! Tests of the placement of threads.

use fairq_device::Profile;

use crate::policies::AnySubject;
use crate::scenario::{Job, MS, Scenario, Tenant};

/// A device without weights serves its queues in turn, so a tenant with a queue of its own gets
/// twice the service of each of two tenants that share a queue.
#[test]
fn threads_that_move_get_on_average_what_cores_give() {
    let profile = Profile::named("z-ssd").expect("it is built in");
    let tenant = |core| Tenant::new("one thread", 100, vec![core], Job::random_read(4096, 64));
    let mut scenario = Scenario::new(profile, 2, vec![tenant(0), tenant(1), tenant(1)], 400 * MS);
    let shares =
        |scenario: &Scenario| AnySubject::None.run(scenario).expect("it is legal").shares();
    let stay = shares(&scenario);
    assert!((0.48..0.52).contains(&stay[0]), "{stay:?}");
    scenario.moves_ns = Some(MS);
    let moved = shares(&scenario);
    assert!(moved.iter().all(|share| (0.30..0.37).contains(share)), "{moved:?}");
}
