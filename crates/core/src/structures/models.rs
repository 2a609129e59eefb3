//! The flow table under the model checker.
//! `RUSTFLAGS="--cfg loom" cargo test --profile loom --lib structures::models`

use std::sync::Arc;

use loom::thread;

use super::broken::{Unordered, check};
use super::flow_table::FlowTable;
use super::flow_table::FreeSlots;
use super::port_flows::PortFlows;
use crate::contract::flow::{FlowId, Weight};
use crate::contract::platform::{AtomicWord, Loom, Ordering, Platform};
use crate::contract::port::Tag;
use crate::contract::port_set::{PortId, PortSet};

/// A table of one slot for `ports` ports, and the flow in it.
fn table<P: Platform>(ports: usize) -> (Arc<FlowTable<P>>, FlowId) {
    let table = Arc::new(FlowTable::<P>::new(1, ports));
    let flow = table.add(None, Weight::DEFAULT, |_| ()).unwrap();
    (table, flow)
}

fn port<P: Platform>(table: &FlowTable<P>, port: u8) -> PortFlows {
    PortFlows::new(PortId(port), table, 2)
}

/// A port has a request of a flow, and writes its policy's state of the slot, while the flow is
/// removed. The slot's next flow begins after that write, and it can begin once the port has seen
/// the removal; the latter is checked only if `hears`.
fn a_slot_begins_anew_after_all_is_done<P: Platform>(hears: bool) {
    check(4, move || {
        let (table, flow) = table::<P>(1);
        let kept = Arc::new(P::U64::new(0));
        let mut port = port(&table, 0);
        port.admit(&table, flow, Tag(0), |_, _| ()).unwrap();
        let (table_of_port, kept_of_port) = (table.clone(), kept.clone());
        let other = thread::spawn(move || {
            kept_of_port.store(1, Ordering::Relaxed);
            port.poll(&table_of_port, &mut PortSet::default());
            port.finish(&table_of_port, 0);
            port.poll(&table_of_port, &mut PortSet::default());
            port
        });
        table.close(flow).unwrap();
        let begin = |_| assert_eq!(kept.load(Ordering::Relaxed), 1, "the old flow goes on");
        let added = table.add(None, Weight::DEFAULT, begin).is_ok();
        let mut port = other.join().unwrap();
        port.poll(&table, &mut PortSet::default());
        let is_free = table.add(None, Weight::DEFAULT, |_| ()).is_ok();
        assert!(!hears || is_free != added, "a slot is lost");
    });
}

#[test]
fn a_slot_is_free_after_its_last_request() {
    a_slot_begins_anew_after_all_is_done::<Loom>(true);
}

#[test]
#[should_panic(expected = "the old flow goes on")]
fn without_any_order_a_slot_is_free_too_early() {
    a_slot_begins_anew_after_all_is_done::<Unordered>(false);
}

#[test]
#[should_panic(expected = "a slot is lost")]
fn without_any_order_a_removal_is_not_heard_of() {
    a_slot_begins_anew_after_all_is_done::<Unordered>(true);
}

/// A port that has seen the removal takes no request of the flow, so it has none that it did not
/// count when it released the flow.
fn who_heard_of_a_removal_refuses<P: Platform>() {
    check(4, || {
        let (table, flow) = table::<P>(1);
        let mut port = port(&table, 0);
        let table_of_port = table.clone();
        let other = thread::spawn(move || {
            let heard = port.poll(&table_of_port, &mut PortSet::default());
            let takes = port.admit(&table_of_port, flow, Tag(0), |_, _| ()).is_ok();
            assert!(!heard || !takes, "a request of a flow that the port has released");
        });
        table.close(flow).unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_removed_flow_is_refused() {
    who_heard_of_a_removal_refuses::<Loom>();
}

#[test]
#[should_panic(expected = "a request of a flow that the port has released")]
fn without_any_order_a_removed_flow_is_taken() {
    who_heard_of_a_removal_refuses::<Unordered>();
}

/// Two ports release a flow at the same time, one of which has a request of it: the slot is free
/// when both have released it, and not before.
#[test]
fn two_ports_let_go() {
    check(4, || {
        let (table, flow) = table::<Loom>(2);
        let [mut a, mut b] = [0, 1].map(|number| port(&table, number));
        a.admit(&table, flow, Tag(0), |_, _| ()).unwrap();
        table.close(flow).unwrap();
        let table_of_port = table.clone();
        let other = thread::spawn(move || {
            a.poll(&table_of_port, &mut PortSet::default());
            a
        });
        b.poll(&table, &mut PortSet::default());
        assert!(table.add(None, Weight::DEFAULT, |_| ()).is_err(), "a has a request");
        let mut a = other.join().unwrap();
        a.finish(&table, 0);
        assert!(table.add(None, Weight::DEFAULT, |_| ()).is_ok(), "a slot is lost");
    });
}

/// A slot is added while another thread takes free slots: in the end each slot was taken once. The
/// set has two levels of words.
fn no_free_slot_is_lost(clear: fn(&FreeSlots<Loom>, usize, usize)) {
    check(3, move || {
        let free = Arc::new(FreeSlots::<Loom>::all(65));
        (0..65).for_each(|number| free.remove(number));
        free.insert(0);
        let adding = free.clone();
        let other = thread::spawn(move || adding.insert(1));
        let first = free.take_by(clear);
        let second = free.take_by(clear);
        other.join().unwrap();
        let mut all: std::vec::Vec<_> =
            [first, second, free.take(), free.take()].into_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1], "a slot is lost");
    });
}

#[test]
fn free_slots_are_not_lost() {
    no_free_slot_is_lost(FreeSlots::clear);
}

#[test]
#[should_panic(expected = "a slot is lost")]
fn without_a_second_read_free_slots_are_lost() {
    no_free_slot_is_lost(FreeSlots::clear_without_second_read);
}

/// Two ports whose bits are in two words release a slot at the same time: it is free then.
#[test]
fn two_ports_of_two_words_let_go() {
    check(3, || {
        let (table, flow) = table::<Loom>(65);
        let mut all: std::vec::Vec<_> = (0..65).map(|number| port(&table, number)).collect();
        table.close(flow).unwrap();
        let mut last = all.pop().unwrap();
        let mut first = all.swap_remove(0);
        all.iter_mut().for_each(|port| _ = port.poll(&table, &mut PortSet::default()));
        let table_of_port = table.clone();
        let other = thread::spawn(move || _ = last.poll(&table_of_port, &mut PortSet::default()));
        first.poll(&table, &mut PortSet::default());
        other.join().unwrap();
        assert!(table.add(None, Weight::DEFAULT, |_| ()).is_ok(), "a slot is lost");
    });
}
