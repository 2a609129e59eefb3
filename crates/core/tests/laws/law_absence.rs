//! **Law: absence.** However long a flow has been idle, its requests are served when it returns,
//! nothing is lost, and backlogged flows share by weight from then on.
//!
//! Defects of numbers with few bits, of ages that are read as signed, and of retries without
//! progress appear after one absence and not after another. So each policy goes through absences of
//! every magnitude from a microsecond to 73 years: of one flow while the other sends, and of both;
//! with a tick at each deadline, as on a server, and without any, as when the machine is suspended.
//! The first 5,625 ticks are made, and at one magnitude (at seven in `tests/long`) the first
//! 180,000 (five hours at ten a second: nearly three rounds of a 16-bit number).

use crate::canary::{self, Fault, Misbehave, caught};
use crate::clocked::{Host, MS, SECOND, Tenant};
use crate::world::Subject;

/// Time that the device takes for one request.
const SERVICE_NS: u64 = 100_000;
const MOST_TICKS: u32 = 180_000;
/// The tenant that returns, and the one that may send all the time.
const ABSENT: usize = 0;
const PRESENT: usize = 1;

#[derive(Clone, Copy, Debug)]
struct Absence {
    ns: u64,
    /// The most ticks in that time.
    ticks: u32,
    /// Whether the other flow sends meanwhile.
    beside: bool,
}

/// Both flows are idle for the time, or one is and the other sends a request now and then.
fn pass(host: &mut Host, absence: Absence) -> Result<(), String> {
    let Absence { ns, ticks, beside } = absence;
    let until_ns = host.now_ns + ns;
    for _ in 0..ticks.max(16) {
        if host.now_ns >= until_ns {
            break;
        }
        if beside {
            host.send_one(PRESENT, 10 * SECOND)?;
        }
        if ticks > 0 {
            host.run_to_tick(until_ns)?;
        } else {
            host.sleep(until_ns.min(host.now_ns + ns / 16));
        }
    }
    host.sleep(until_ns);
    Ok(())
}

/// The absent flow returns, for one request, and, after the other has been backlogged alone, for
/// more; after `settled_ns`, if given, both must have their shares.
fn come_back(host: &mut Host, settled_ns: Option<u64>) -> Result<(), String> {
    host.send_one(ABSENT, SECOND)?;
    host.start(PRESENT)?;
    host.run(60 * MS)?;
    let (before, until_ns) = (host.served[ABSENT], host.now_ns + SECOND);
    host.start(ABSENT)?;
    host.await_one(ABSENT, before, until_ns)?;
    if let Some(settled_ns) = settled_ns {
        host.run(settled_ns)?;
        let before = host.served.clone();
        host.run(20 * MS + 2 * settled_ns)?;
        let [absent, present] = [ABSENT, PRESENT].map(|of| (host.served[of] - before[of]) as f64);
        let share = absent / (absent + present);
        if (share / 0.75 - 1.0).abs() > 0.1 {
            return Err(format!("back, it has a share of {share:.3}, and .750 is due"));
        }
    }
    host.stop()
}

/// Checks the law; shares are checked `settled_ns` after the return, for policies that promise
/// them.
pub(crate) fn holds(
    subject: &dyn Subject,
    threshold: u64,
    settled_ns: Option<u64>,
) -> Result<(), String> {
    let tenants = [
        Tenant { weight: 300, depth: 24, ports: vec![0] },
        Tenant { weight: 100, depth: 24, ports: vec![0, 1] },
    ];
    for (ticks, beside) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut host = Host::new(subject, 2, 8, threshold, SERVICE_NS, &tenants);
        // A policy that adapts to the device has time to do so.
        [PRESENT, ABSENT].into_iter().try_for_each(|tenant| host.start(tenant))?;
        host.run(2 * SECOND).and_then(|()| host.stop())?;
        for magnitude in 10..=61 {
            let is_long = magnitude % 8 == 5 && (magnitude == 61 || cfg!(feature = "long"));
            let ticks = match (ticks, is_long) {
                (false, _) => 0,
                (true, true) => MOST_TICKS,
                (true, false) => MOST_TICKS / 32,
            };
            let absence = Absence { ns: 1 << magnitude, ticks, beside };
            pass(&mut host, absence)
                .and_then(|()| come_back(&mut host, settled_ns))
                .map_err(|why| format!("2^{magnitude} ns, {absence:?}: {why}"))?;
        }
    }
    Ok(())
}

#[test]
fn catches_an_age_of_sixteen_bits() {
    caught(holds(&canary::Wrapped(Misbehave::AgeInSixteenBits), 0, None), "is not served");
}

#[test]
fn catches_saved_up_credit() {
    caught(holds(&canary::Serial(Fault::IdleCredit), 0, Some(40 * MS)), "is due");
    holds(&canary::Serial(Fault::None), 0, Some(40 * MS)).unwrap();
}

#[test]
fn catches_lost_requests() {
    caught(holds(&canary::Wrapped(Misbehave::LoseRequests), 0, None), "says idle");
}
