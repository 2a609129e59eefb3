//! Shell completions and man pages, made from the command line's own description.

use std::io;
use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::args::Cli;

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fairq", &mut text);
    io::Write::write_all(&mut io::stdout(), &text).context("cannot print")
}

/// Writes a page for the program and for each command into a folder.
pub(crate) fn pages(folder: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write man pages to {}", folder.display());
    std::fs::create_dir_all(folder).with_context(cannot)?;
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    write_pages(&program, folder).with_context(cannot)
}

fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    let page = Man::new(command.clone())
        .source(concat!("fairq ", env!("CARGO_PKG_VERSION")))
        .manual("fairq");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let closing = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    sections(&closing).to_writer(&mut text)?;
    std::fs::write(folder.join(page.get_filename()), text)?;
    command.get_subcommands().try_for_each(|command| write_pages(command, folder))
}

/// The end of a help text, paragraph by paragraph; indented paragraphs stay as they are.
fn sections(closing: &str) -> Roff {
    let mut roff = Roff::new();
    for paragraph in closing.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        let (heading, text) = match paragraph.split_once(": ") {
            Some(("Exit status", text)) => ("EXIT STATUS", text),
            _ if paragraph.starts_with("Sizes") => ("UNITS", paragraph),
            _ => paragraph
                .strip_prefix("Examples:\n")
                .map_or(("NOTES", paragraph), |text| ("EXAMPLES", text)),
        };
        roff.control("SH", [heading]);
        let mut is_filled = true;
        for line in text.lines() {
            if is_filled == line.starts_with(' ') {
                is_filled = !is_filled;
                roff.control(if is_filled { "fi" } else { "nf" }, []);
            }
            roff.text([roman(line)]);
        }
        if !is_filled {
            roff.control("fi", []);
        }
    }
    roff
}
