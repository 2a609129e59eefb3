//! Shell completions and man pages, made from the command line's own description.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fairq", &mut text);
    std::io::Write::write_all(&mut std::io::stdout(), &text).context("cannot print")
}

/// Writes a page for the program and for each command into a folder.
pub(crate) fn pages(folder: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write man pages to {}", folder.display());
    std::fs::create_dir_all(folder).with_context(cannot)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(cannot)
}
