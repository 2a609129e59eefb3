//! `fairq layout`.
// Doc comments here are help texts, in which [brackets] mean optional.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `fairq layout`.
#[derive(Debug, Args)]
#[command(subcommand_required = true)]
pub(crate) struct LayoutArgs {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: LayoutCommand,
}

/// An action on the layout record of a file or block device.
#[derive(Debug, Subcommand)]
pub(crate) enum LayoutCommand {
    /// Show the tenant of each range
    Show {
        /// The file or block device that tenants share
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Check whether a server would start, and print the ranges of its tenants; nothing is changed
    Check {
        /// The file or block device that tenants share
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
        /// The configuration of the server
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Make a record for a pool whose record is missing or does not fit; no data are changed
    ///
    /// With --config the tenants are placed by the configuration, as version 0.1.0 did. This is
    /// correct only with the configuration with which their data were written. Without --config,
    /// the existing record is kept and assigned to this pool, which may be a copied or restored
    /// file.
    Adopt {
        /// The file or block device that tenants share
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
        /// The configuration by which the tenants are placed
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Replace even a record that fits
        #[arg(long, requires = "config")]
        replace: bool,
    },
    /// Free a tenant's range; it is zeroed before it is given to another tenant
    Forget {
        /// The file or block device that tenants share
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
        /// The tenant
        #[arg(value_name = "NAME")]
        tenant: String,
    },
    /// Give a tenant's range another name
    Rename {
        /// The file or block device that tenants share
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
        /// The tenant
        #[arg(value_name = "OLD")]
        old: String,
        /// Its new name
        #[arg(value_name = "NEW")]
        new: String,
    },
}
