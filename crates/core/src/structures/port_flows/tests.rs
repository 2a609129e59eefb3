use super::*;
use crate::Native;
use crate::contract::flow::FlowError;
use proptest::prelude::*;
use std::vec::Vec;

/// The weight with which a flow's request is admitted, if it is. No request is outside here, so the
/// account does not use the tag.
fn admit(port: &mut PortFlows, table: &FlowTable<Native>, flow: FlowId) -> Option<Weight> {
    port.admit(table, flow, Tag(0), |_, _| ()).ok().map(|(weight, _)| weight)
}

fn table() -> (FlowTable<Native>, PortFlows, PortFlows) {
    let table = FlowTable::new(2, 2);
    let ports = [0, 1].map(|port| PortFlows::new(PortId(port), &table, 8));
    let [a, b] = ports;
    (table, a, b)
}

#[test]
fn a_slot_is_free_again_only_when_every_port_has_let_go() {
    let (table, mut a, mut b) = table();
    let flow = table.add(None, Weight::DEFAULT, |_| ()).unwrap();
    let other = table.add(None, Weight::MAX, |_| ()).unwrap();
    assert_eq!(table.add(None, Weight::MIN, |_| ()), Err(FlowError::Full));
    assert_eq!(admit(&mut a, &table, flow), Some(Weight::DEFAULT));
    assert_eq!(table.close(flow), Ok(PortSet::first(2)));
    assert_eq!(admit(&mut a, &table, flow), None);
    a.poll(&table, &mut PortSet::default());
    b.poll(&table, &mut PortSet::default());
    assert_eq!(
        table.add(None, Weight::MIN, |_| ()),
        Err(FlowError::Full),
        "port 0 still holds a request"
    );
    a.finish(&table, flow.slot());
    let new = table.add(None, Weight::MIN, |_| ()).unwrap();
    assert_eq!(new.slot(), flow.slot());
    assert_ne!(new, flow);
    assert_eq!(table.weight(flow), None);
    assert_eq!(table.set_weight(flow, Weight::MAX), Err(FlowError::NoSuchFlow));
    assert_eq!(table.close(flow), Err(FlowError::NoSuchFlow));
    assert_eq!(table.weight(new), Some(Weight::MIN));
    assert_eq!(table.weight(other), Some(Weight::MAX));
}

#[test]
fn a_known_flow_keeps_its_name_and_old_ones_stay_unknown() {
    let (old, mut a, mut b) = table();
    let first = old.add(None, Weight::DEFAULT, |_| ()).unwrap();
    let gone = old.add(None, Weight::DEFAULT, |_| ()).unwrap();
    old.close(gone).unwrap();
    a.poll(&old, &mut PortSet::default());
    b.poll(&old, &mut PortSet::default());
    let second = old.add(None, Weight::MAX, |_| ()).unwrap();
    assert_eq!(second.slot(), gone.slot());

    let (new, mut port, _) = table();
    assert_eq!(
        new.add(Some(second), Weight::MIN, |slot| assert_eq!(slot, second.slot())),
        Ok(second)
    );
    assert_eq!(new.add(Some(second), Weight::MIN, |_| ()), Err(FlowError::Taken));
    assert_eq!(admit(&mut port, &new, gone), None);
    assert_eq!(admit(&mut port, &new, second), Some(Weight::MIN));
    assert_eq!(new.add(Some(first), Weight::DEFAULT, |_| ()), Ok(first));
    assert_eq!(new.add(None, Weight::DEFAULT, |_| ()), Err(FlowError::Full));
    let small = FlowTable::<Native>::new(1, 1);
    assert_eq!(
        small.add(Some(second), Weight::DEFAULT, |_| ()),
        Err(FlowError::Taken),
        "beyond the bound"
    );
}

#[test]
fn weights_change_at_once_and_only_between_1_and_10000() {
    let (table, mut a, _) = table();
    let flow = table.add(None, Weight::new(300).unwrap(), |_| ()).unwrap();
    table.set_weight(flow, Weight::new(7).unwrap()).unwrap();
    assert_eq!(admit(&mut a, &table, flow), Weight::new(7));
    assert_eq!(Weight::new(0), None);
    assert_eq!(Weight::new(10_001), None);
}

#[derive(Debug, Clone)]
enum Step {
    Add,
    Remove(usize),
    /// The port, the flow, and whether the tag was held.
    Submit(usize, usize, bool),
    Hold(usize, usize),
    /// A request of the policy, or a held one, goes before all others.
    Expedite(usize, usize),
    /// A request is finished, cancelled or completed, as its place ([`At`]) demands.
    End(usize, usize),
    Poll(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of = || (0usize..2, 0usize..40);
    let live = || (0usize..2, 0usize..4);
    let step = prop_oneof![
        3 => Just(Step::Add),
        1 => (0usize..40).prop_map(Step::Remove),
        5 => (of(), any::<bool>()).prop_map(|((port, flow), held)| Step::Submit(port, flow, held)),
        2 => of().prop_map(|(port, flow)| Step::Hold(port, flow)),
        2 => live().prop_map(|(port, nth)| Step::Expedite(port, nth)),
        5 => live().prop_map(|(port, nth)| Step::End(port, nth)),
        2 => (0usize..2).prop_map(Step::Poll),
    ];
    prop::collection::vec(step, 1..400)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Policy,
    Held,
    Ahead,
}

/// A live request: its tag, its flow, and where it is.
type Live = (u32, FlowId, At);

const TAGS: usize = 4;
type Port = PortFlows<Option<FlowId>>;

/// Ends the request that is taken out of `live`.
fn end(port: &mut Port, table: &FlowTable<Native>, (tag, flow, at): Live) {
    match at {
        At::Policy => port.finish(table, port.seat(flow).unwrap()),
        At::Held => {
            assert!(!port.complete_ahead(table, Tag(tag)) && port.cancel_held(table, Tag(tag)))
        }
        At::Ahead => {
            assert!(!port.cancel_held(table, Tag(tag)) && port.complete_ahead(table, Tag(tag)))
        }
    }
}

proptest! {
    /// Up to 20 flows come and go on two ports with four tags, and so four seats, each: a request
    /// finds the state of its own flow, or none, never another flow's, and the state of a flow that
    /// leaves its seat is handed over; a port's requests are counted, in the policy and outside; a
    /// slot is never free while any port has a request of its flow, and all slots are free in the
    /// end.
    #[test]
    fn a_seat_is_its_flows_alone(steps in steps()) {
        let table = FlowTable::<Native>::new(20, 2);
        let mut ports = [0, 1].map(|port| Port::new(PortId(port), &table, TAGS));
        let mut live: [Vec<Live>; 2] = [Vec::new(), Vec::new()];
        let mut open: Vec<FlowId> = Vec::new();
        for step in steps {
            match step {
                Step::Add => {
                    let added = table.add(None, Weight::DEFAULT, |_| ());
                    let slot = added.map(FlowId::slot);
                    prop_assert!(!live.iter().flatten().any(|(_, flow, _)| slot == Ok(flow.slot())));
                    open.extend(added);
                }
                Step::Remove(at) if at < open.len() => {
                    table.close(open.swap_remove(at)).unwrap();
                }
                Step::Submit(at, flow, held) if flow < open.len() => {
                    let (port, live) = (&mut ports[at], &mut live[at]);
                    let is_held = |live: &Live| live.1 == open[flow] && live.2 == At::Held;
                    let waits = live.iter().position(is_held);
                    let tag = match waits.filter(|_| held) {
                        Some(waits) => Some(live.swap_remove(waits).0),
                        None => (0..TAGS as u32).find(|tag| live.iter().all(|held| held.0 != *tag)),
                    };
                    let Some(tag) = tag else { continue };
                    let flow = open[flow];
                    let left = |old, kept: &Option<FlowId>| assert!(kept.is_none_or(|kept| kept == old));
                    let (_, seat) = port.admit(&table, flow, Tag(tag), left).unwrap();
                    let kept = port.kept_mut(seat).unwrap();
                    prop_assert!(kept.is_none_or(|kept| kept == flow));
                    *kept = Some(flow);
                    live.push((tag, flow, At::Policy));
                }
                Step::Hold(at, flow) if flow < open.len() => {
                    let (port, live) = (&mut ports[at], &mut live[at]);
                    let free = (0..TAGS as u32).find(|tag| !live.iter().any(|held| held.0 == *tag));
                    let Some(tag) = free else { continue };
                    port.hold(&table, open[flow], Tag(tag), |_, _| ()).unwrap();
                    let again = port.hold(&table, open[flow], Tag(tag), |_, _| ());
                    prop_assert_eq!(again, Err(SubmitError::BadTag));
                    live.push((tag, open[flow], At::Held));
                }
                Step::Expedite(at, nth) if nth < live[at].len() => {
                    let (tag, flow, was) = live[at][nth];
                    match was {
                        At::Policy => ports[at].goes_ahead(Tag(tag), ports[at].seat(flow).unwrap()),
                        _ => prop_assert_eq!(ports[at].expedite_held(Tag(tag)), was == At::Held),
                    }
                    live[at][nth].2 = At::Ahead;
                }
                Step::End(at, nth) if nth < live[at].len() => {
                    let request = live[at].swap_remove(nth);
                    end(&mut ports[at], &table, request);
                }
                Step::Poll(at) => _ = ports[at].poll(&table, &mut PortSet::default()),
                _ => {}
            }
            for (port, live) in ports.iter_mut().zip(&live) {
                for &(tag, flow, at) in live {
                    let seat = port.seat(flow).unwrap();
                    let of_flow = || live.iter().filter(|held| held.1 == flow);
                    prop_assert_eq!(port.all(seat) as usize, of_flow().count());
                    let policys = of_flow().filter(|held| held.2 == At::Policy).count();
                    prop_assert_eq!(port.live(seat) as usize, policys);
                    prop_assert_eq!(port.is_ahead(Tag(tag)), at == At::Ahead);
                    if at == At::Ahead {
                        let again = port.admit(&table, flow, Tag(tag), |_, _| ());
                        prop_assert!(again.is_err(), "its tag is in use");
                    }
                }
            }
        }
        open.drain(..).for_each(|flow| _ = table.close(flow).unwrap());
        ports.iter_mut().for_each(|port| _ = port.poll(&table, &mut PortSet::default()));
        for (port, live) in ports.iter_mut().zip(&live) {
            live.iter().for_each(|&request| end(port, &table, request));
        }
        let again = core::iter::from_fn(|| table.add(None, Weight::DEFAULT, |_| ()).ok());
        prop_assert_eq!(again.count(), 20, "every slot is free again");
    }
}

/// A port with more removals than one verb acts on wakes itself.
#[test]
fn a_port_that_is_not_done_wakes_itself() {
    let flows = 3 * CLOSINGS_AT_ONCE as usize;
    let table = FlowTable::<Native>::new(flows, 1);
    let mut port = PortFlows::<()>::new(PortId(0), &table, 8);
    for _ in 0..flows {
        let flow = table.add(None, Weight::DEFAULT, |_| ()).unwrap();
        table.close(flow).unwrap();
    }
    let asks = |port: &mut PortFlows| {
        let mut wake = PortSet::EMPTY;
        port.poll(&table, &mut wake);
        wake == PortSet::only(PortId(0)) && port.has_closings(&table)
    };
    assert_eq!([(); 3].map(|()| asks(&mut port)), [true, true, false]);
    let added = (0..=flows).take_while(|_| table.add(None, Weight::DEFAULT, |_| ()).is_ok());
    assert_eq!(added.count(), flows);
}

#[test]
fn no_flow_may_take_all_tags_of_a_port() {
    let table = FlowTable::<Native>::new(8, 1);
    let mut port = PortFlows::<()>::new(PortId(0), &table, 12);
    let [a, b, c] = [(); 3].map(|()| table.add(None, Weight::DEFAULT, |_| ()).unwrap());
    let fill = |port: &mut PortFlows, flow| {
        let mut count = 0;
        while port.has_room(&table, flow).is_ok() {
            port.admit(&table, flow, Tag(0), |_, _| ()).unwrap();
            count += 1;
        }
        assert_eq!(port.has_room(&table, flow), Err(SubmitError::Full));
        count
    };
    assert_eq!([a, b, c].map(|flow| fill(&mut port, flow)), [6, 4, 3], "12/2, 12/3, 12/4");
    table.close(c).unwrap();
    assert_eq!(port.has_room(&table, c), Err(SubmitError::NoSuchFlow));
}

/// A port for 10,000 flows has a word for each flow, and a record for each tag.
#[test]
fn a_port_keeps_a_word_for_each_flow() {
    let table = FlowTable::<Native>::new(10_000, 1);
    let port = PortFlows::<[u64; 8]>::new(PortId(0), &table, 512);
    let bytes =
        port.seats.len() * size_of::<u32>() + port.records.len() * size_of::<Record<[u64; 8]>>();
    assert!(bytes < 100_000, "{bytes}");
}
