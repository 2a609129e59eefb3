//! Algorithm 1's worked examples.

use fairq_classic::nass::NassConfig;
use fairq_device::profile::Count;
use fairq_sim::policies::{AnySubject, Scheduler, SerialSubject};
use fairq_sim::scenario::{Access, MS};

use super::{NCQ, job, profile, scenario};
use crate::claims::{Answer, Outcome, Setting, go};

/// Requests that flows have outstanding on a stalled device with the initial limits. Flows submit
/// in turn, so each flow is known before another one has reached its limit.
pub(super) fn worked_examples(setting: Setting<'_>) -> Result<Outcome, String> {
    const BYTES: u64 = 4096;
    // The example's queue holds 32.
    let mut profile = profile()?;
    profile.host.window = Count::new(NCQ);
    let limits = NassConfig::default().with(|config| {
        config.aggressiveness = false;
        config.sequentiality = false;
        config.idleness = false;
    });
    let most = |tenants: usize| {
        let loads = vec![(1, job(Access::Random, 100)); tenants];
        let mut scenario = scenario(&profile, &loads);
        (scenario.duration_ns, scenario.warmup_ns) = (20 * MS, 0);
        // The device stalls beyond the end of the run, so the issued requests are all that the
        // limits allow.
        scenario.faults.stalls = vec![(0, 21 * MS)];
        let lock = SerialSubject::new(Scheduler::Fiops, NCQ).limited(limits);
        let run = go(AnySubject::Serial(lock), &scenario, setting)?;
        let issued = |got: &fairq_sim::Got| got.classes.iter().sum::<u64>() / BYTES;
        Ok::<Vec<u64>, String>(run.tenants.iter().map(issued).collect())
    };
    let (one, two, four) = (most(1)?, most(2)?, most(4)?);
    Ok(vec![Answer {
        id: "N-U1",
        measured: format!("on a device that stands still: {one:?}, {two:?}, {four:?}"),
        holds: Some(one == [32] && two == [16; 2] && four == [8; 4]),
        note:
            "one, two and four flows, MDN = 32 / n; Cn, Aggre, halving and the direction of SBDA \
         are fairq-core's own tests"
                .into(),
    }]
    .into())
}
