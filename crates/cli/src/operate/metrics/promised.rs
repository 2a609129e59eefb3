//! Metrics of caps, reservations and latency targets, of tenants and groups.

use fairq_config::caps::listed;
use fairq_config::group::KEYS;
use fairq_core::{CapStats, ReservationState, ReservedStats, ShareStats, TargetState, TargetStats};
use fairq_host::server::{GroupStatus, Member, Status, TenantList};

use super::{MOST_TENANTS, Text};

/// A kind of object with caps: the word for it in names and labels, its name in help texts, and the
/// label that its series have in addition.
#[derive(Clone, Copy)]
struct Kind<'a> {
    label: &'static str,
    whose: &'static str,
    device: Option<&'a str>,
}

/// The labels that all series of a tenant have.
fn labels<'a>(member: &'a Member, device: &'a str) -> [(&'static str, &'a str); 2] {
    [("tenant", &member.tenant.name), ("device", device)]
}

/// Caps of the tenants and groups that have some.
pub(super) fn caps(text: &mut Text, now: &Status, tenants: &TenantList, device: &str) {
    let members = tenants.members().take(MOST_TENANTS);
    let tenants: Vec<(&str, &CapStats)> =
        members.filter_map(|member| Some((&*member.tenant.name, now.caps_of(member)?))).collect();
    let kind = Kind { label: "tenant", whose: "the tenant", device: Some(device) };
    caps_of(text, kind, &tenants);
    let groups = now.groups.iter().take(MOST_TENANTS);
    let groups: Vec<(&str, &CapStats)> =
        groups.filter_map(|of| Some((&*of.group.name, of.caps.as_ref()?))).collect();
    caps_of(text, Kind { label: "group", whose: "the group's tenants", device: None }, &groups);
}

fn caps_of(text: &mut Text, kind: Kind<'_>, all: &[(&str, &CapStats)]) {
    type Value = fn(&CapStats) -> f64;
    let Kind { label, whose, device } = kind;
    let device = device.map(|device| ("device", device));
    let families: [(&str, &str, String, Value); 3] = [
        (
            "capped_requests_total",
            "counter",
            format!("Requests of {whose} that waited for a cap of the {label}."),
            |of| of.held as f64,
        ),
        (
            "capped_seconds_total",
            "counter",
            format!("Time that requests waited for caps of the {label}, added up over requests."),
            |of| of.held_ns as f64 * 1e-9,
        ),
        (
            "capped_requests",
            "gauge",
            format!("Requests of {whose} that wait for a cap of the {label} now."),
            |of| of.waiting as f64,
        ),
    ];
    // Without caps the families are left out.
    if all.is_empty() {
        return;
    }
    for (name, kind, help, value) in families {
        let name = format!("fairq_{label}_{name}");
        text.family(&name, kind, &help);
        for (who, stats) in all {
            let labels: Vec<_> = std::iter::once((label, *who)).chain(device).collect();
            text.sample(&name, &labels, value(stats));
        }
    }
    let name = format!("fairq_{label}_cap");
    let help =
        format!("What a cap of the {label} allows in a second: requests or bytes, by its key.");
    text.family(&name, "gauge", &help);
    for (who, stats) in all {
        for (key, cap) in listed(&stats.caps) {
            let labels = std::iter::once((label, *who)).chain(device).chain([("key", key)]);
            text.sample(&name, &labels.collect::<Vec<_>>(), cap.per_second() as f64);
        }
    }
}

/// Groups, and the reservations of tenants.
pub(super) fn groups(text: &mut Text, now: &Status, tenants: &TenantList, device: &str) {
    type Value = fn(&GroupStatus) -> f64;
    let families: [(&str, &str, Value); 2] = [
        (
            "fairq_group_weight",
            "The weight of the group of tenants beside all tenants and groups that are in none.",
            |of| f64::from(of.weight.in_256ths()) / 256.0,
        ),
        (
            "fairq_group_active_members",
            "Tenants and groups in the group that have asked for something lately.",
            |of| f64::from(of.active),
        ),
    ];
    for (name, help, value) in families.iter().filter(|_| !now.groups.is_empty()) {
        text.family(name, "gauge", help);
        for of in now.groups.iter().take(MOST_TENANTS) {
            text.sample(name, &[("group", &of.group.name)], value(of));
        }
    }
    let of = |member| {
        let stats: &ShareStats = now.share_of(member).filter(|of| !of.granted.is_none())?;
        Some((member, stats))
    };
    let members: Vec<(&Member, &ShareStats)> =
        tenants.members().take(MOST_TENANTS).filter_map(of).collect();
    if members.is_empty() {
        return;
    }
    let help = "What is kept for the tenant in a second: requests or bytes, as its key says; less \
                than it has reserved while all reservations are more than the device does.";
    text.family("fairq_tenant_reserved", "gauge", help);
    for (member, stats) in &members {
        let kept = [stats.granted.iops(), stats.granted.bytes()];
        for (key, rate) in KEYS.iter().zip(kept).filter(|(_, rate)| *rate > 0) {
            let [tenant, device] = labels(member, device);
            text.sample("fairq_tenant_reserved", &[tenant, device, ("key", key)], rate as f64);
        }
    }
    let help = "1 if the tenant had what is kept for it in the last second, or asked for less.";
    text.family("fairq_tenant_reservation_met", "gauge", help);
    for (member, stats) in &members {
        let is_met = stats.state != ReservationState::Missed;
        let labels = labels(member, device);
        text.sample("fairq_tenant_reservation_met", &labels, f64::from(u8::from(is_met)));
    }
    let help = "Requests of the tenant that went to the device before all others, since it had \
                less than is kept for it.";
    text.family("fairq_tenant_ahead_requests_total", "counter", help);
    for (member, stats) in &members {
        let labels = labels(member, device);
        text.sample("fairq_tenant_ahead_requests_total", &labels, stats.ahead as f64);
    }
    type Part = fn(&ReservedStats) -> u64;
    let families: [(&str, &str, Part); 2] = [
        (
            "fairq_reserved_ratio",
            "What tenants that are active have reserved, as a part of what the store's device does.",
            |of| of.asked_ppm,
        ),
        (
            "fairq_reserved_granted_ratio",
            "The part of each reservation that is kept: below 1 if all are more than the device does.",
            |of| of.granted_ppm,
        ),
    ];
    for (name, help, value) in families {
        text.family(name, "gauge", help);
        for store in &now.stores {
            let Some(reserved) = &store.policy.reserved else { continue };
            text.sample(name, &[("store", &store.name)], value(reserved) as f64 / 1e6);
        }
    }
}

/// Latency targets of the tenants that have one.
pub(super) fn targets(text: &mut Text, now: &Status, tenants: &TenantList, device: &str) {
    type Value = fn(&TargetStats) -> f64;
    let families: [(&str, &str, Value); 5] = [
        (
            "fairq_tenant_latency_target_seconds",
            "The tenant's latency target: the longest that its requests are to take.",
            |of| of.target.latency_ns() as f64 * 1e-9,
        ),
        (
            "fairq_tenant_latency_target_late_ratio",
            "The part of requests that took longer in the last second.",
            |of| of.late as f64 / of.completed.max(1) as f64,
        ),
        (
            "fairq_tenant_latency_target_late_limit_ratio",
            "The part of requests that may take longer: 0.01 for the 99th percentile.",
            |of| f64::from(of.target.late_ppm()) * 1e-6,
        ),
        (
            "fairq_tenant_latency_target_unreachable",
            "1 if the target was missed in the last second and nothing more can be done for it; \
             fairq ctl status says why.",
            |of| f64::from(u8::from(is_unreachable(of.state))),
        ),
        (
            "fairq_tenant_latency_target_weight",
            "The weight that the tenant is served with: its own, or more while it misses its \
             target.",
            |of| of.weight.get().into(),
        ),
    ];
    let of = |member| Some((member, now.target_of(member)?));
    let members: Vec<(&Member, &TargetStats)> =
        tenants.members().take(MOST_TENANTS).filter_map(of).collect();
    for (name, help, value) in families.iter().filter(|_| !members.is_empty()) {
        text.family(name, "gauge", help);
        for (member, stats) in &members {
            text.sample(name, &labels(member, device), value(stats));
        }
    }
}

fn is_unreachable(state: TargetState) -> bool {
    matches!(state, TargetState::Device | TargetState::Floor | TargetState::Spent)
}
