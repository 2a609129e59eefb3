//! The bounds on the number of connections, in total and for each tenant.
//!
//! Problem: one tenant's clients must not use all connections and exclude others. Model: a tenant
//! has at most its own bound, which is half of all connections by default. One place is reserved
//! for each tenant without a connection, so that its first client is always admitted. At most half
//! of all places are reserved in this way.
//!
//! A place includes its part of the [`Budget`] of memory. When the budget is used up no place is
//! free, because existing connections need the memory for their requests.
//!
//! A client without a place receives the protocol's error in the handshake.

use std::sync::atomic::Ordering;

use crate::io::budget::Budget;
use crate::nbd::session::place::Place;
use crate::server::{Member, Server};

/// The reason why a tenant with `own` of `all` connections gets no further one; `None` if it gets
/// one. `most` is its bound, and `without` is the number of other tenants that have no connection.
fn refusal(
    own: usize,
    most: usize,
    all: usize,
    places: usize,
    without: usize,
) -> Option<&'static str> {
    // A tenant's first connection uses a reserved place, so reserved places do not count against
    // it.
    let kept = if own == 0 { 0 } else { without.min(places / 2) };
    if own >= most {
        Some("this tenant has as many connections as it may: close one, or try again later")
    } else if all + kept >= places {
        Some("too many connections: try again later")
    } else {
        None
    }
}

impl Server {
    /// Reserves a place for one more connection of a tenant, and chooses the shard that will serve
    /// it.
    pub(super) fn place(&self, member: &Member) -> Result<(usize, Place), &'static str> {
        let load = |shard: usize| self.counts[shard].load(Ordering::Relaxed);
        let places = self.config.connections * self.counts.len();
        let tenants = self.tenants();
        let of = Member::all_connections;
        let others = tenants.members().filter(|other| other.flow != member.flow);
        let without = others.filter(|other| of(other) == 0).count();
        let usual = if tenants.members().len() > 1 { places.div_ceil(2) } else { places };
        let most = member.tenant.settings.connections.map_or(usual, |most| most as usize);
        let all = (0..self.counts.len()).map(load).sum();
        if let Some(reason) = refusal(of(member), most, all, places, without) {
            return Err(reason);
        }
        let number = member.number();
        if !self.budget.take(number, Budget::CONNECTION) {
            return Err("no memory is left for another connection: try again later");
        }
        // The shard with the fewest connections of the tenant is chosen, so that a tenant with many
        // connections does not concentrate on a few shards. Some shard has a free connection, since
        // not all places are used.
        let crowd = |shard: &usize| (member.connections.count_on(*shard), load(*shard));
        let with_room = |shard: &usize| load(*shard) < self.config.connections;
        let shard = (0..self.counts.len()).filter(with_room).min_by_key(crowd).unwrap_or(0);
        // Shards decrement the count; only this thread increments it.
        self.counts[shard].fetch_add(1, Ordering::Relaxed);
        let counted = self.counts[shard].clone();
        let (tenant, budget) = (member.connections.clone(), self.budget.clone());
        Ok((shard, Place::new(tenant, shard, budget, number, counted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_a_bound_and_a_first_connection() {
        let may = |own, most, all, without| refusal(own, most, all, 8, without).is_none();
        assert!(may(3, 4, 3, 0) && !may(4, 4, 4, 0), "its bound");
        assert!(may(7, 8, 7, 0) && !may(7, 8, 8, 0), "all places");
        assert!(may(5, 8, 5, 2) && !may(6, 8, 6, 2), "two are kept for two that have none");
        assert!(may(0, 4, 7, 1), "and each of the two gets one");
        assert!(may(1, 4, 3, 100) && !may(1, 4, 4, 100) && may(0, 4, 4, 100), "half are kept");
    }
}
