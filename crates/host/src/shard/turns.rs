//! Turns: if a shard has fewer free tags than its clients have orders ready, it takes orders from
//! tenants in proportion to their weights.
//!
//! **Problem.** A policy that dispatches each request at once leaves the sharing to the device. If
//! the device is fast, the shard's CPU is the limit. If connections simply took turns, each would
//! have an equal share of the CPU, and a tenant with 64 connections would have 64 times the share
//! of a tenant with one.
//!
//! **Model.** Deficit round robin (Shreedhar and Varghese, 1995) over tenants, and plain round
//! robin over a tenant's connections. In each round a tenant with ready orders gets credit in
//! proportion to its weight (the heaviest tenant gets credit for `QUANTUM` orders), and spends it
//! before the next tenant's turn. A tenant without ready orders loses its credit. If only one
//! tenant is ready, its credit is renewed at once, and its connections take plain turns.
//!
//! **Example.** a has weight 300 and one connection; b has weight 100 and 64 connections. a submits
//! 16 orders, then b submits 5 of its first connection, then a submits 16, then b submits 5 or 6 of
//! its second connection.
//!
//! **Bounds.** Each round takes at least `QUANTUM` orders, or all ready orders of some tenant, and
//! visits each tenant once or twice. The queues allocate only when a tenant has more ready
//! connections than ever before.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use fairq_core::Weight;

/// The largest number of orders that the heaviest tenant submits in a round.
const QUANTUM: u64 = 16;
/// The largest number of orders that a connection submits before the tenant's next connection.
const VISIT: u64 = 8;
/// The cost of an order, in units of credit.
const ORDER: u64 = 1 << 16;

/// The weights of tenants, by number. For a tenant in a group, this is its effective weight among
/// all tenants.
pub struct Weights(Box<[AtomicU32]>);

impl Weights {
    /// The default weight for each of `tenants` tenants.
    pub fn new(tenants: usize) -> Weights {
        let weight = |_| AtomicU32::new(Weight::DEFAULT.in_256ths());
        Weights((0..tenants).map(weight).collect())
    }

    /// Sets a tenant's weight.
    pub fn set(&self, tenant: u16, weight: Weight) {
        if let Some(place) = self.0.get(usize::from(tenant)) {
            place.store(weight.in_256ths(), Ordering::Relaxed);
        }
    }

    /// A tenant's weight, in 256ths.
    pub(crate) fn get(&self, tenant: u16) -> u64 {
        self.0.get(usize::from(tenant)).map_or(1, |place| place.load(Ordering::Relaxed).into())
    }
}

/// Chooses the connection that submits orders next.
#[derive(Default)]
pub struct Turns {
    /// The tenants, by number.
    tenants: Vec<Tenant>,
    /// The tenants that have orders ready; the first has its turn.
    ready: VecDeque<u16>,
    /// Whether the first tenant has received its credit of this round.
    is_credited: bool,
    /// The number of tenants at the front of `ready` that have not had their turn in this round,
    /// and the largest weight of all ready tenants.
    left: usize,
    heaviest: u64,
}

#[derive(Default)]
struct Tenant {
    /// Its connections that have orders ready; the first one is next.
    ready: VecDeque<u32>,
    credit: u64,
}

/// A connection's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The connection.
    pub connection: u32,
    /// The most orders that it may submit.
    pub orders: u32,
}

impl Turns {
    /// Queues a connection that has ready orders for its turn. The connection must not already be
    /// queued.
    pub fn push(&mut self, tenant: u16, connection: u32) {
        let index = usize::from(tenant);
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, Tenant::default);
        }
        let of = &mut self.tenants[index].ready;
        if of.is_empty() {
            self.ready.push_back(tenant);
        }
        of.push_back(connection);
    }

    /// Returns the next turn; the caller must then call [`Self::end`].
    pub fn next(&mut self, weights: &Weights) -> Option<Turn> {
        loop {
            let number = *self.ready.front()?;
            if self.left == 0 {
                self.left = self.ready.len();
                self.heaviest = self.ready.iter().map(|&of| weights.get(of)).max()?.max(1);
            }
            let tenant = self.tenants.get_mut(usize::from(number))?;
            if !std::mem::replace(&mut self.is_credited, true) {
                // The credit is bounded, in case the tenant's weight was raised in this round; it
                // gets more in the next round.
                let weight = weights.get(number).min(self.heaviest);
                tenant.credit += QUANTUM * ORDER * weight / self.heaviest;
            }
            if tenant.credit >= ORDER {
                let orders = (tenant.credit / ORDER).min(VISIT) as u32;
                return Some(Turn { connection: *tenant.ready.front()?, orders });
            }
            self.pass();
        }
    }

    /// Ends the turn, in which the connection submitted `orders`; `has_more` if it has more ready.
    pub fn end(&mut self, orders: u32, has_more: bool) {
        let Some(&number) = self.ready.front() else { return };
        let Some(tenant) = self.tenants.get_mut(usize::from(number)) else { return };
        tenant.credit = tenant.credit.saturating_sub(u64::from(orders) * ORDER);
        if let Some(connection) = tenant.ready.pop_front()
            && has_more
        {
            tenant.ready.push_back(connection);
        }
        if tenant.ready.is_empty() {
            tenant.credit = 0;
            self.ready.pop_front();
            self.leave();
        } else if tenant.credit < ORDER {
            self.pass();
        }
    }

    /// Passes the turn to the next tenant.
    fn pass(&mut self) {
        self.ready.rotate_left(1);
        self.leave();
    }

    fn leave(&mut self) {
        self.is_credited = false;
        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The number of `orders` that each tenant and each connection submits. The tenants have these
    /// weights and numbers of connections, which all have endless orders.
    fn share(tenants: &[(u16, u32)], orders: u64) -> (Vec<u64>, Vec<u64>) {
        let weights = Weights::new(tenants.len());
        let (mut turns, mut of) = (Turns::default(), Vec::new());
        for (number, &(weight, connections)) in (0..).zip(tenants) {
            weights.set(number, Weight::new(weight).unwrap());
            for _ in 0..connections {
                turns.push(number, of.len() as u32);
                of.push(usize::from(number));
            }
        }
        let (mut by_tenant, mut by_connection) = (vec![0; tenants.len()], vec![0; of.len()]);
        let mut given = 0;
        while given < orders {
            let turn = turns.next(&weights).unwrap();
            assert!(turn.orders > 0);
            turns.end(turn.orders, true);
            given += u64::from(turn.orders);
            by_tenant[of[turn.connection as usize]] += u64::from(turn.orders);
            by_connection[turn.connection as usize] += u64::from(turn.orders);
        }
        (by_tenant, by_connection)
    }

    #[test]
    fn one_connection_has_as_much_as_64_of_another_tenant() {
        let (by_tenant, by_connection) = share(&[(100, 1), (100, 64)], 64 * 16 * 8);
        assert_eq!(by_tenant, [64 * 64, 64 * 64]);
        assert!(by_connection[1..].iter().all(|given| *given == 64), "{by_connection:?}");
    }

    #[test]
    fn a_tenant_that_has_nothing_ready_saves_nothing() {
        let weights = Weights::new(2);
        let mut turns = Turns::default();
        turns.push(0, 0);
        for _ in 0..1000 {
            let turn = turns.next(&weights).unwrap();
            turns.end(turn.orders, true);
        }
        turns.push(1, 1);
        turns.end(0, false);
        let mut given = [0, 0];
        turns.push(0, 0);
        for _ in 0..100 {
            let Turn { connection, orders } = turns.next(&weights).unwrap();
            given[connection as usize] += orders;
            turns.end(orders, true);
        }
        assert!(given[0].abs_diff(given[1]) <= 2 * QUANTUM as u32, "{given:?}");
        turns.end(0, false);
        turns.end(0, false);
        assert_eq!(turns.next(&weights), None);
    }

    proptest! {
        /// Each tenant has its share, up to the orders of two rounds.
        #[test]
        fn orders_go_by_weight(
            tenants in prop::collection::vec((1..1000_u16, 1..9_u32), 1..12),
        ) {
            let sum: u64 = tenants.iter().map(|tenant| u64::from(tenant.0)).sum();
            let heaviest = tenants.iter().map(|tenant| u64::from(tenant.0)).max().unwrap();
            let round = QUANTUM * sum / heaviest + tenants.len() as u64;
            let orders = 40 * round;
            let (by_tenant, _) = share(&tenants, orders);
            for (&(weight, _), given) in tenants.iter().zip(by_tenant) {
                let due = orders * u64::from(weight) / sum;
                prop_assert!(given.abs_diff(due) <= 2 * QUANTUM + due / 10, "{given} of {due}");
            }
        }
    }
}
