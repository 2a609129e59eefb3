//! **Law: virtual time never goes back**, in its order, which wraps around; and the wrap changes
//! nothing.

use fairq_core::vtime::VTime;
use fairq_core::{Cost, CostModel, Op};

use crate::canary::{self, Fault, Misbehave, caught};
use crate::closed::{Loop, Plan, dispatches};
use crate::law_fairness;
use crate::script::{ANYTHING, for_all};
use crate::world::{Event, Subject, Trace};

pub(crate) fn check(trace: &Trace) -> Result<(), String> {
    let mut last = VTime::ZERO;
    for (at, event) in trace.events.iter().enumerate() {
        if let Event::VirtualTime(units) = *event {
            let now = VTime::from_units(units);
            if now.is_before(last) {
                return Err(format!(
                    "event {at}: virtual time went from {} back to {units}",
                    last.units()
                ));
            }
            last = now;
        }
    }
    Ok(())
}

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, ANYTHING, 150, check)
}

/// Requests are so expensive that virtual time wraps around several times (each costs 2^42 bytes,
/// 2^48.6 units at weight 1, of a range of 2^56). They are shared as fairly as ordinary ones, and
/// on one port in the same order.
pub(crate) fn survives_the_wrap(subject: &dyn Subject) -> Result<(), String> {
    let run = |ports: usize, length: u32, cost: CostModel| -> Result<Vec<usize>, String> {
        let last = ports - 1;
        let loops = vec![
            Loop::new(1, 0, 6, length),
            Loop::new(2, last, 6, length),
            Loop::new(2, 0, 1, length),
        ];
        let mut plan = Plan::new(subject, ports, 3, 0, cost, &loops);
        plan.run(4000);
        let trace = plan.finish();
        check(&trace)?;
        law_fairness::check(&trace, !subject.assigns_to_ports())?;
        Ok(dispatches(&trace, 0, trace.events.len()).map(|(flow, _)| flow).collect())
    };
    // Both costs are whole units at both weights.
    let huge = CostModel::default().with(|cost| cost.read_percent = u32::MAX);
    assert_eq!(huge.cost(Op::Read, 1 << 30), Cost::MAX);
    run(2, 1 << 30, huge)?;
    if run(1, 4096, CostModel::default())? == run(1, 1 << 30, huge)? {
        Ok(())
    } else {
        Err("the wrap of virtual time changes the order of dispatch".into())
    }
}

#[test]
fn catches_time_that_goes_back() {
    caught(holds(&canary::Wrapped(Misbehave::VirtualTimeJitters)), "back to");
}

#[test]
fn catches_what_forgets_the_wrap() {
    caught(survives_the_wrap(&canary::Serial(Fault::ForgetsTheWrap)), "counted at");
    survives_the_wrap(&canary::Serial(Fault::None)).unwrap();
}
