//! Section II-B: whether a disk has the SSD's unfairness.

use fairq_device::DiskProfile;
use fairq_sim::policies::{AnySubject, Scheduler, SerialSubject};
use fairq_sim::proxy::Proxy;
use fairq_sim::scenario::SECOND;

use super::{NCQ, pair, profile, scenario, six};
use crate::claims::{Answer, Outcome, Setting, go, jain, rule};

/// Section II-B: a shallow reader beside a deep one on a disk, with the disk's queue and without
/// it.
pub(super) fn on_a_disk(setting: Setting<'_>) -> Result<Outcome, String> {
    let disk = DiskProfile::deskstar();
    let profile = profile()?;
    let fairness = |lock: SerialSubject| {
        let on_disk = |loads: &[Proxy]| {
            let mut scenario = scenario(&profile, loads);
            scenario.disk = Some(disk.clone());
            // Long times: a disk does a hundred requests a second.
            (scenario.warmup_ns, scenario.duration_ns) = (10 * SECOND, 130 * SECOND);
            scenario
        };
        let [shallow, deep] = pair(7, setting)?;
        let alone = |load: Proxy| {
            Ok::<_, String>(
                go(AnySubject::Serial(lock), &on_disk(&[load]), setting)?.tenants[0].clone(),
            )
        };
        let (one, other) = (alone(shallow.clone())?, alone(deep.clone())?);
        let both = go(AnySubject::Serial(lock), &on_disk(&[shallow, deep]), setting)?;
        let shared =
            both.tenants.iter().zip([one, other]).map(|(got, alone)| match lock.scheduler {
                Scheduler::Cfq | Scheduler::LinuxCfq | Scheduler::FlashFq => {
                    got.bytes as f64 / alone.bytes as f64
                }
                Scheduler::Bfq | Scheduler::LinuxBfq(_) | Scheduler::Fiops => got.bytes as f64,
            });
        Ok::<_, String>(jain(shared))
    };
    let (mut said, mut none) = (Vec::new(), true);
    for name in ["BFQ-NA", "CFQ-NA", "FIOPS"] {
        let at = |slots| {
            let variant = six(slots).into_iter().find(|variant| variant.name == name);
            fairness(variant.ok_or("it is one of the six")?.lock)
        };
        let (single, queued) = (at(1)?, at(NCQ)?);
        none &= queued >= single - rule("N-hdd", "below");
        said.push(format!("{name} {single:.2} and {queued:.2}"));
    }
    Ok(vec![Answer {
        id: "N-hdd",
        measured: format!("FV at 1 and 32: {}", said.join(", ")),
        holds: Some(none),
        note: "T7 on a disk of 7200 turns a minute that takes the nearest of its queue first. The \
         paper says that a scheduler has \
               time to send a disk but a few requests in a share. But none of the three stops at a \
               few while the queue has room, and to send is as \
               quick to a disk as to an SSD"
            .into(),
    }]
    .into())
}
