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
    /// Show whose each range is
    Show {
        /// The file or block device that tenants share
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Say whether a server would start, and where its tenants would be; nothing is changed
    Check {
        /// The file or block device that tenants share
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
        /// The configuration that the server is to have
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Make a record for a pool whose record is missing or does not fit; no data are changed
    ///
    /// With --config the tenants are placed by the configuration, as version 0.1.0 did: that is
    /// right if it is the configuration with which their data were written. Without it, the record
    /// that is there, of a file that was copied or restored, is kept for this one.
    Adopt {
        /// The file or block device that tenants share
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
        /// The configuration by which the tenants are placed
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Also in place of a record that fits
        #[arg(long, requires = "config")]
        replace: bool,
    },
    /// Free a tenant's range: whoever gets it finds it zeroed
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
