//! A controller that has the whole device, and the tenants and the policy that are implied.

use crate::listen::Listen;
use crate::policy::PolicyTable;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::tenant::TenantTable;

/// The tenant behind a controller that has the whole device.
const WHOLE_TENANT: &str = "device";
/// The default tenants, with their weights.
const DEMO_TENANTS: [&str; 2] = ["gold,weight=300", "silver,weight=100"];

impl Settings {
    /// The tenants if none is named: one behind a controller of the whole device, or those of the
    /// demo. The demo's tenants write, so a device that is a file or disk has no implied tenants.
    pub(super) fn implied_tenants(&self) -> Vec<TenantTable> {
        let names: &[&str] = match self.has_whole_device() {
            true => &[WHOLE_TENANT],
            false if self.is_of_a_file() => &[],
            false => &DEMO_TENANTS,
        };
        let parse = |text: &&str| text.parse().expect("the implied tenants are well formed");
        names.iter().map(parse).collect()
    }

    /// Whether one controller has the whole device.
    pub fn has_whole_device(&self) -> bool {
        self.listen.iter().any(Listen::is_whole_device)
    }

    /// The policy as configured. A controller of the whole device has its own arbitration.
    pub(super) fn policy_table(&self) -> PolicyTable {
        let implied = if self.has_whole_device() {
            PolicyTable::of("none", &[])
        } else {
            PolicyTable::default()
        };
        self.policy.clone().unwrap_or(implied)
    }

    /// Refuses what would share the device with a controller that has the whole of it, or order its
    /// commands a second time.
    pub(super) fn check_whole_device(&self, tenants: usize) -> Result<(), Refusal> {
        let Some(at) = self.listen.iter().find(|at| at.is_whole_device()) else { return Ok(()) };
        let why = if self.listen.len() > 1 {
            "so there is no other address: leave the others out"
        } else if tenants > 1 {
            "so there is one tenant: leave the others out"
        } else if self.policy_table().complete()?.name() != "none" {
            "and arbitrates among its queues itself: leave the policy out, or write none"
        } else {
            return Ok(());
        };
        Err(Refusal::new(format!("listen {at}: the controller has the whole device, {why}")))
    }
}
