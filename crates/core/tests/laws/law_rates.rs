//! **Law: shares at any rate.** Weights hold on slow devices and on fast ones: flows of 4:2:1, all
//! backlogged, on a device that serves 500 to 20,000 requests a second, each get their share within
//! 3 %.

use crate::canary::{self, Fault, caught};
use crate::clocked::{Host, SECOND, Tenant};
use crate::world::Subject;

const WEIGHTS: [u16; 3] = [400, 200, 100];

/// At one rate, with `depth` requests of each tenant live on each port.
fn check(subject: &dyn Subject, ports: usize, depth: usize, rate: u64) -> Result<(), String> {
    let of = |weight| Tenant { weight, depth, ports: (0..ports).collect() };
    let mut host = Host::new(subject, ports, 32, 0, SECOND / rate, &WEIGHTS.map(of));
    (0..WEIGHTS.len()).try_for_each(|tenant| host.start(tenant))?;
    // Long enough for the device to serve the requests that it was given before the policy knew its
    // rate.
    let queued = (WEIGHTS.len() * ports * depth) as u64 * SECOND / rate;
    host.run(2 * SECOND + 8 * queued)?;
    let before = host.served.clone();
    host.run(2 * SECOND + 8000 * SECOND / rate)?;
    let served: Vec<u64> = host.served.iter().zip(before).map(|(now, then)| now - then).collect();
    let total = served.iter().sum::<u64>() as f64;
    for (tenant, &weight) in WEIGHTS.iter().enumerate() {
        let due = f64::from(weight) / 700.0;
        let share = served[tenant] as f64 / total;
        if (share / due - 1.0).abs() > 0.03 {
            return Err(format!(
                "{rate} a second, {depth} live on each of {ports} ports: {share:.3} instead of \
                 {due:.3} for weight {weight}; served {served:?}"
            ));
        }
    }
    host.stop()
}

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for rate in [500, 1000, 2000, 20_000] {
        for (ports, depth) in [(1, 64), (1, 256), (3, 32)] {
            check(subject, ports, depth, rate)?;
        }
    }
    Ok(())
}

#[test]
fn catches_weights_that_stop_counting() {
    caught(holds(&canary::Serial(Fault::WeightsUpTo100)), "for weight");
    holds(&canary::Serial(Fault::None)).unwrap();
}
