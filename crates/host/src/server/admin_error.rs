//! The reasons why a running server refuses a change.

use std::path::PathBuf;
use std::time::Duration;

use fairq_core::{FlowError, TuneError};

use crate::device::control::ControlError;
use crate::device::error::DeviceError;
use crate::nbd::session::exports::ExportsError;
use crate::server::Listen;

/// The reason why a policy refuses a tenant, and what to do.
fn in_words(error: &FlowError) -> String {
    match error {
        FlowError::Full => "all places for tenants are taken: remove a tenant, or run fairq ctl \
                            upgrade, which makes room for 64 more; if the log names another \
                            reason, remove that cause"
            .into(),
        error => error.to_string(),
    }
}

/// The reason why a change was not made. A failed change has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// There is no tenant of that name.
    #[error("there is no tenant {0}")]
    NoSuchTenant(String),
    /// A tenant of that name exists.
    #[error("there is a tenant {0} already: remove it first or choose another name")]
    TenantExists(String),
    /// The tenant's range has to be prepared, or is being resized.
    #[error("tenant {0} is being prepared or resized: wait until that is over, and try again")]
    Busy(String),
    /// The policy refuses.
    #[error("tenant {name}: {}", in_words(error))]
    Flow {
        /// The tenant.
        name: String,
        /// The reason.
        error: FlowError,
    },
    /// The policy refuses a group.
    #[error("group {name}: {error}")]
    Group {
        /// The group.
        name: String,
        /// The reason.
        error: FlowError,
    },
    /// The protocol cannot describe the export.
    #[error(transparent)]
    Exports(#[from] ExportsError),
    /// The policy refuses a parameter.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// A file cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A file's file system does not answer.
    #[error(
        "{} has been opening for {} s: its file system does not answer; check it and its \
         device, then try again", path.display(), waited.as_secs()
    )]
    Opening {
        /// The file.
        path: PathBuf,
        /// The time for which the opening has been in progress.
        waited: Duration,
    },
    /// The policy cannot run on the device.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The previous change of the policy is still in progress.
    #[error(
        "the previous policy has not finished its requests yet: wait until `status` no longer \
         shows the change, and try again"
    )]
    Changing,
    /// The server cannot listen.
    #[error("cannot listen on {at}: {cause}")]
    Listen {
        /// The address.
        at: Listen,
        /// The reason, and what to do.
        cause: String,
    },
    /// The service manager owns the socket.
    #[error(
        "{0} is a socket of the service manager's: stop it there (systemctl stop fairq.socket), or \
         clients would wait for ever"
    )]
    Inherited(Listen),
    /// The next program cannot take over the server.
    #[error("not upgraded, and nothing has changed: {0}")]
    Upgrade(String),
    /// The server does not listen at this address.
    #[error("does not listen on {0}")]
    NotListening(Listen),
}
