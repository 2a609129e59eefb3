//! Parts of a server from its configuration: policies, tenants, keys for TLS. They are built when
//! the server starts, and again when its operator changes them.

use fairq_config::engine::{Shape, WithPolicy, with_policy};
use fairq_config::group::Group;
use fairq_config::policy::PolicyConfig;
use fairq_config::refusal::Refusal;
use fairq_config::settings::{DefaultTenant, Tls};
use fairq_config::tenant::{Range, Tenant};
use fairq_core::{Limits, Native};
use fairq_host::nbd::session::tls;
use fairq_host::server::{self, BuiltPolicy};

/// Builds the policy of the first store, for the server's shards. There are at most `stores`
/// stores; further stores get policies of the same configuration.
pub(crate) fn build_policy(
    config: &PolicyConfig,
    shape: &Shape,
    stores: usize,
) -> Result<BuiltPolicy, Refusal> {
    struct Build;

    impl WithPolicy for Build {
        type Output = BuiltPolicy;

        fn run<L: Limits>(self, policy: L, ports: Vec<L::Port>) -> BuiltPolicy
        where
            L::Port: 'static,
        {
            BuiltPolicy::new(policy, ports)
        }
    }

    let (config, shape) = (config.clone(), shape.clone());
    let build = move || with_policy::<Native, _>(&config, shape.clone(), Build);
    let first = build()?;
    Ok(first.for_stores(stores, move || build().map_err(|refusal| refusal.to_string())))
}

/// A tenant in the server's form.
pub(crate) fn server_tenant(tenant: &Tenant, range: &Range) -> server::Tenant {
    server::Tenant {
        name: tenant.name.clone(),
        file: range.file,
        base: range.offset,
        size: range.size,
        settings: tenant.settings.clone(),
    }
}

/// The default tenant, for clients that name no export, in the server's form.
pub(crate) fn default_tenant(tenant: DefaultTenant) -> server::DefaultTenant {
    let DefaultTenant { name, is_named } = tenant;
    server::DefaultTenant { name, is_named }
}

/// A group in the server's form.
pub(crate) fn server_group(group: &Group) -> server::Group {
    let Group { name, weight, reservation, caps, .. } = group.clone();
    server::Group { name, weight, reservation, caps }
}

/// TLS with the present contents of its files.
pub(crate) fn tls_mode(config: Option<&Tls>) -> Result<tls::TlsMode, Refusal> {
    let Some(config) = config else { return Ok(tls::TlsMode::Off) };
    let (ca, crl) = (config.client_ca.as_deref(), config.client_crl.as_deref());
    let keys = tls::Tls::load(&config.cert, &config.key, ca, crl)
        .map_err(|error| Refusal::new(format!("tls: {error}")))?;
    Ok(if config.is_required { tls::TlsMode::Required(keys) } else { tls::TlsMode::Optional(keys) })
}
