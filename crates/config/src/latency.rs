//! `latency`, `latency-percentile` and `floor`: the latency target of a tenant's requests.

use fairq_core::{Target, TargetState, TargetStats};

use crate::units::{Nanos, Part, Percentile, exact_duration, show_percentile};

/// The target of the three keys; `None` if there is none.
pub fn target(
    latency: Option<Nanos>,
    percentile: Option<Percentile>,
    floor: Option<Part>,
) -> Result<Option<Target>, String> {
    let Some(Nanos(latency_ns)) = latency else {
        let alone = [("latency-percentile", percentile.is_some()), ("floor", floor.is_some())];
        // A key without effect is probably a mistake, so it is refused.
        return match alone.iter().find(|(_, is_said)| *is_said) {
            Some((key, _)) => Err(format!(
                "{key} has no effect without a latency target: add latency=200us, say, or \
                 leave out {key}"
            )),
            None => Ok(None),
        };
    };
    if latency_ns == 0 || latency_ns > Target::LONGEST_NS {
        return Err(format!(
            "latency {} is not from 1ns to 1h: write the time that a request may take, as in \
             200us, or leave it out",
            exact_duration(latency_ns)
        ));
    }
    let floor = floor.map_or(Target::FLOOR_PERCENT, |Part(percent)| percent);
    if floor > 99 {
        return Err(
            "with a floor of 100% the other tenants keep all of their shares, so the target would \
             have no effect: write 0% to 99%, or leave out latency"
                .into(),
        );
    }
    let late_ppm =
        percentile.map_or(Target::LATE_PPM, |Percentile(millionths)| 1_000_000 - millionths);
    Ok(Target::new(latency_ns, late_ppm, floor))
}

/// A target in words: `99 % within 200us`.
pub fn describe(target: Target) -> String {
    let percentile = show_percentile(1_000_000 - target.late_ppm());
    format!("{percentile} % within {}", exact_duration(target.latency_ns()))
}

/// The state of a target in a word.
pub fn state(state: TargetState) -> &'static str {
    match state {
        TargetState::Idle => "idle",
        TargetState::Met => "met",
        TargetState::Missed => "missed",
        TargetState::Device => "unreachable-device",
        TargetState::Floor => "unreachable-floor",
        TargetState::Spent => "unreachable-spent",
    }
}

/// The reason for which a target cannot be met, and the remedy; `None` if it can be met, or the
/// reason is unknown.
pub fn cause(stats: &TargetStats) -> Option<String> {
    match stats.state {
        TargetState::Idle | TargetState::Met | TargetState::Missed => None,
        TargetState::Device => Some(
            "its requests take longer than the target even when few are on the device: the device \
             or this host is too slow. The other tenants are not throttled for this target, and \
             the server tries again every 10 s. Raise latency, or give the server more CPU time"
                .into(),
        ),
        TargetState::Floor => Some(format!(
            "the other tenants would have less than {}% of their shares by weight: raise latency, \
             lower floor, or give this tenant more weight",
            stats.target.floor_percent()
        )),
        TargetState::Spent => Some(
            "throttling the other tenants more does not make this tenant's requests faster: give \
             it more weight, raise latency, or let its clients keep fewer requests in flight"
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(latency: &str, percentile: &str, floor: &str) -> Result<Option<Target>, String> {
        fn said<T: std::str::FromStr<Err = String>>(text: &str) -> Result<Option<T>, String> {
            if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
        }
        target(said(latency)?, said(percentile)?, said(floor)?)
    }

    #[test]
    fn a_target_is_of_the_99th_percentile_and_leaves_others_a_half_unless_it_is_said() {
        assert_eq!(read("", "", ""), Ok(None));
        assert_eq!(read("200us", "", ""), Ok(Target::new(200_000, 10_000, 50)));
        assert_eq!(read("1.5ms", "99.9", "0"), Ok(Target::new(1_500_000, 1_000, 0)));
        assert_eq!(read("1s", "50%", "0.25"), Ok(Target::new(1_000_000_000, 500_000, 25)));
        let target = read("1.5ms", "99.9", "20%").unwrap().unwrap();
        assert_eq!(describe(target), "99.9 % within 1500us");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_cure() {
        let refusal = |latency, percentile, floor| read(latency, percentile, floor).unwrap_err();
        assert_eq!(
            refusal("0", "", ""),
            "latency 0ns is not from 1ns to 1h: write the time that a request may take, as in \
             200us, or leave it out"
        );
        assert!(refusal("2h", "", "").starts_with("latency 7200s is not from 1ns to 1h"));
        assert!(refusal("200", "", "").starts_with("`200` is not a duration"));
        assert!(refusal("1ms", "100", "").starts_with("`100` is not a percentile from 50"));
        assert!(refusal("1ms", "49.9", "").starts_with("`49.9` is not a percentile"));
        assert!(refusal("1ms", "", "100%").starts_with("with a floor of 100% the other"));
        assert!(refusal("1ms", "", "101%").starts_with("`101%` is not a part"));
        assert!(refusal("", "99.9", "").contains("add latency=200us, say, or leave out latency-p"));
        assert!(refusal("", "", "10%").contains("leave out floor"));
    }
}
