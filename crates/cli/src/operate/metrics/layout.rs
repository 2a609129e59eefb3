//! The metrics of the layout record, and of clients that have not seen a tenant's new size.

use fairq_host::server::TenantList;

use super::super::keeper::Shown;
use super::{MOST_TENANTS, Text};

/// The ranges of the record whose names are not served.
pub(super) fn reserved(text: &mut Text, layout: Option<&Shown>, tenants: &TenantList) {
    let ranges = layout.map(|layout| layout.reserved(|name| tenants.find(name).is_some()));
    let ranges = ranges.into_iter().flatten();
    let (count, bytes) = ranges.fold((0, 0), |(count, bytes), held| (count + 1, bytes + held.size));
    let families = [
        (
            "fairq_layout_reserved_ranges",
            "Ranges that the file's layout record keeps for names that no tenant has.",
            count,
        ),
        ("fairq_layout_reserved_bytes", "Their bytes, which no tenant can use.", bytes),
    ];
    for (name, help, value) in families {
        text.family(name, "gauge", help);
        if let Some(layout) = layout {
            text.sample(name, &[("file", layout.path())], value as f64);
        }
    }
}

/// Connections with a size from before a resize.
pub(super) fn outdated(text: &mut Text, tenants: &TenantList, device: &str) {
    let name = "fairq_tenant_outdated_connections";
    let help = "Connections that have an earlier size of the tenant, until they connect again. \
                Tenants without any have no sample.";
    text.family(name, "gauge", help);
    for member in tenants.members().take(MOST_TENANTS) {
        let count: usize = member.outdated_connections().iter().map(|(_, count)| count).sum();
        if count > 0 {
            let labels = [("tenant", member.tenant.name.as_str()), ("device", device)];
            text.sample(name, &labels, count as f64);
        }
    }
}
