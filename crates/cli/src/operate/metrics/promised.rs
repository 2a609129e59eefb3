//! Metrics of caps, reservations and latency targets, of tenants and groups.

use fairq_config::group::KEYS;
use fairq_core::{ReservationState, TargetState};

use super::super::groups::word;
use super::{Family, Labels, MOST_TENANTS, Subject, Text};
use crate::view::{Capped, Group, LatencyTarget, Place, Reserved};

/// Returns `part` of each tenant that has it, with the tenant's labels.
fn parts<'a, T>(
    tenants: &'a [(Labels<'a>, &'a Subject<'a>)],
    part: fn(&'a Subject<'a>) -> Option<&'a T>,
) -> Vec<(Labels<'a>, &'a T)> {
    tenants.iter().filter_map(|(labels, of)| Some((labels.clone(), part(of)?))).collect()
}

/// Caps, reservations and latency targets of the tenants that have some.
pub(super) fn tenants<'a>(text: &mut Text, tenants: &'a [(Labels<'a>, &'a Subject<'a>)]) {
    targets(text, &parts(tenants, |of| of.tenant.row.latency_target.as_ref()));
    let capped = parts(tenants, |of| of.tenant.capped.as_ref());
    let families: [Family<Capped>; 3] = [
        (
            "fairq_tenant_capped_requests_total",
            "Operations of the tenant that waited for a cap of the tenant.",
            |of| Some(of.held as f64),
        ),
        (
            "fairq_tenant_capped_seconds_total",
            "Sum of the times that operations waited for caps of the tenant.",
            |of| Some(of.held_ns as f64 * 1e-9),
        ),
        (
            "fairq_tenant_capped_requests",
            "Operations of the tenant that wait for a cap of the tenant now.",
            |of| Some(of.waiting as f64),
        ),
    ];
    let help = "The amount that a cap of the tenant allows in a second, by the cap's key: \
                operations or bytes.";
    caps(text, &families, ("fairq_tenant_cap", help), &capped);
    reservations(text, &parts(tenants, |of| of.tenant.place.as_ref()));
}

/// Groups of tenants, and their caps.
pub(super) fn groups(text: &mut Text, groups: &[Group]) {
    let labelled: Vec<(Labels<'_>, &Group)> = groups
        .iter()
        .take(MOST_TENANTS)
        .map(|group| (vec![("group", &*group.name)], group))
        .collect();
    let families: [Family<Group>; 2] = [
        (
            "fairq_group_weight",
            "The weight of the group relative to the tenants and groups that are in no group.",
            |of| Some(of.effective_weight),
        ),
        (
            "fairq_group_active_members",
            "Tenants and groups in the group that have had requests lately.",
            |of| Some(of.active.into()),
        ),
    ];
    text.some_families(&families, &labelled);
    let capped: Vec<(Labels<'_>, &Capped)> = labelled
        .iter()
        .filter_map(|(labels, of)| Some((labels.clone(), of.caps.as_ref()?)))
        .collect();
    let families: [Family<Capped>; 3] = [
        (
            "fairq_group_capped_requests_total",
            "Operations of the group's tenants that waited for a cap of the group.",
            |of| Some(of.held as f64),
        ),
        (
            "fairq_group_capped_seconds_total",
            "Sum of the times that operations waited for caps of the group.",
            |of| Some(of.held_ns as f64 * 1e-9),
        ),
        (
            "fairq_group_capped_requests",
            "Operations of the group's tenants that wait for a cap of the group now.",
            |of| Some(of.waiting as f64),
        ),
    ];
    let help = "The amount that a cap of the group allows in a second, by the cap's key: \
                operations or bytes.";
    caps(text, &families, ("fairq_group_cap", help), &capped);
}

fn caps(
    text: &mut Text,
    families: &[Family<Capped>],
    (name, help): (&str, &str),
    all: &[(Labels<'_>, &Capped)],
) {
    // Without caps the families are left out.
    text.some_families(families, all);
    if !all.is_empty() {
        text.family(name, "gauge", help);
    }
    for (labels, capped) in all {
        for (key, cap) in &capped.caps {
            text.sample(name, &[&labels[..], &[("key", key)]].concat(), cap.per_s as f64);
        }
    }
}

/// The reservations of tenants.
fn reservations(text: &mut Text, places: &[(Labels<'_>, &Place)]) {
    let granted = |of: &Place| [of.granted_iops, of.granted_bandwidth];
    let reserved: Vec<(Labels<'_>, &Place)> =
        places.iter().filter(|(_, of)| granted(of) != [0; 2]).cloned().collect();
    if reserved.is_empty() {
        return;
    }
    let name = "fairq_tenant_reserved";
    let help = "The reserved rate that the tenant is granted, by its key: operations or bytes a \
                second. It is less than the configured one while all reservations together exceed \
                the device's rate.";
    text.family(name, "gauge", help);
    for (labels, place) in &reserved {
        for (key, rate) in KEYS.iter().zip(granted(place)).filter(|(_, rate)| *rate > 0) {
            text.sample(name, &[&labels[..], &[("key", key)]].concat(), rate as f64);
        }
    }
    let families: [Family<Place>; 2] = [
        (
            "fairq_tenant_reservation_met",
            "1 if the tenant had its reservation in the last second, or sent fewer requests.",
            |of| Some(f64::from(u8::from(of.reservation != word(ReservationState::Missed)))),
        ),
        (
            "fairq_tenant_ahead_requests_total",
            "Operations of the tenant that were issued before those of all other tenants, because \
             it had less than its reservation.",
            |of| Some(of.ahead as f64),
        ),
    ];
    text.families(&families, &reserved);
}

/// The reservations of each store's tenants as a part of its device's rate.
pub(super) fn stores(text: &mut Text, stores: &[Reserved]) {
    let families: [Family<Reserved>; 2] = [
        (
            "fairq_reserved_ratio",
            "The reservations of active tenants, as a part of the rate of the store's device.",
            |of| Some(of.asked),
        ),
        (
            "fairq_reserved_granted_ratio",
            "The part of each reservation that is granted: below 1 if all together exceed the \
             device's rate.",
            |of| Some(of.granted),
        ),
    ];
    let labelled: Vec<_> = stores.iter().map(|of| (vec![("store", &*of.store)], of)).collect();
    text.families(&families, &labelled);
}

/// Latency targets of the tenants that have one.
fn targets(text: &mut Text, targets: &[(Labels<'_>, &LatencyTarget)]) {
    let families: [Family<LatencyTarget>; 5] = [
        (
            "fairq_tenant_latency_target_seconds",
            "The tenant's latency target: the longest time that an operation should take.",
            |of| Some(of.target_ns as f64 * 1e-9),
        ),
        (
            "fairq_tenant_latency_target_late_ratio",
            "The part of operations that took longer in the last second.",
            |of| Some(of.late as f64 / of.completed.max(1) as f64),
        ),
        (
            "fairq_tenant_latency_target_late_limit_ratio",
            "The part of operations that may take longer: 0.01 for the 99th percentile.",
            // Percentiles have four digits after the point.
            |of| Some(((100.0 - of.percentile) * 10_000.0).round() * 1e-6),
        ),
        (
            "fairq_tenant_latency_target_unreachable",
            "1 if the target was missed in the last second and the policy cannot meet it; fairq \
             ctl status shows the reason.",
            |of| {
                let unreachable = [TargetState::Device, TargetState::Floor, TargetState::Spent];
                let states = unreachable.map(fairq_config::latency::state);
                Some(f64::from(u8::from(states.contains(&&*of.state))))
            },
        ),
        (
            "fairq_tenant_latency_target_weight",
            "The weight with which the tenant is served: its configured weight, or a larger one \
             while it misses its target.",
            |of| Some(of.weight.into()),
        ),
    ];
    text.some_families(&families, targets);
}
