//! Entitled shares, and the distance of an outcome from them.

/// A tenant's weight and demand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// The weight.
    pub(crate) weight: f64,
    /// The most that the tenant submits, in the unit of the total.
    pub(crate) most: f64,
}

/// The fraction of `total` to which each tenant is entitled: in proportion to the weights, except
/// that a tenant that submits less gets its demand and the others share the rest (weighted max-min
/// fairness).
pub(crate) fn entitled(demands: &[Demand], total: f64) -> Vec<f64> {
    let mut due = vec![None; demands.len()];
    let (mut left, mut weights): (f64, f64) =
        (total, demands.iter().map(|demand| demand.weight).sum());
    // Each round decides one tenant.
    while let Some(index) = (0..demands.len()).find(|&index| {
        due[index].is_none() && demands[index].most < left * demands[index].weight / weights
    }) {
        due[index] = Some(demands[index].most);
        left -= demands[index].most;
        weights -= demands[index].weight;
    }
    // A run without a byte has nothing to divide: shares are then by weight.
    let due: Vec<f64> = due
        .iter()
        .zip(demands)
        .map(|(due, demand)| {
            due.unwrap_or_else(|| match demand.weight {
                // A tenant of weight 0 gets nothing: if all other demands are met, no weight is
                // left to divide by.
                0.0 => 0.0,
                weight if total > 0.0 => left * weight / weights,
                weight => weight,
            })
        })
        .collect();
    // The sum is below `total` if, by noise, more was measured than all demands.
    let sum: f64 = due.iter().sum();
    due.iter().map(|due| due / sum).collect()
}

/// Jain's index: the square of the sum over n times the sum of the squares. 1 when all values are
/// equal, 1/n when one value has the whole sum.
pub(crate) fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        count += 1.0;
        sum += value;
        squares += value * value;
    }
    if squares == 0.0 { 0.0 } else { sum * sum / (count * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_there_is_entitled_to_nothing() {
        let there = Demand { weight: 100.0, most: 10.0 };
        let gone = Demand { weight: 0.0, most: 0.0 };
        assert_eq!(entitled(&[there, gone], 100.0), [1.0, 0.0]);
        assert_eq!(entitled(&[there, there, gone], 20.0), [0.5, 0.5, 0.0]);
    }

    #[test]
    fn who_asks_for_less_is_entitled_to_less() {
        // 25 a second for 10 s of 1000: c is entitled to 333 by weight but submits 250, so a and b
        // share 750.
        let demand = |weight, most| Demand { weight, most };
        let due = entitled(
            &[demand(1.0, f64::INFINITY), demand(1.0, f64::INFINITY), demand(1.0, 250.0)],
            1000.0,
        );
        assert_eq!(due, [0.375, 0.375, 0.25]);
        let two =
            entitled(&[demand(1.0, 100.0), demand(2.0, 600.0), demand(1.0, f64::INFINITY)], 1000.0);
        assert_eq!(two, [0.1, 0.6, 0.3]);
        // More was measured than the demands: noise, to which no tenant is entitled.
        assert_eq!(entitled(&[demand(1.0, 100.0), demand(1.0, 300.0)], 410.0), [0.25, 0.75]);
        assert_eq!(entitled(&[demand(1.0, 1.0), demand(3.0, 1.0)], 0.0), [0.25, 0.75]);
    }
}
