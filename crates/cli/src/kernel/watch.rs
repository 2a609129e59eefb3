//! `fairq top --kernel`: the cgroups on the whole terminal, once a second.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use fairq_config::refusal::Refusal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::widgets::Paragraph;

use super::sysfs::Machine;
use super::{PERIOD, print, shares};

/// Shows these drives until told to end, or once.
pub(crate) fn run(devices: &[String], once: bool, json: bool) -> anyhow::Result<()> {
    let machine = Machine::found()?;
    machine.has_module()?;
    if once || json {
        let shares = shares::two_looks(&machine, devices, PERIOD)?;
        return if json { print(&format!("{:#}", shares.json())) } else { print(&shares.text()) };
    }
    if !std::io::stdout().is_terminal() {
        return Err(Refusal::new("standard output is no terminal: say --once or --json").into());
    }
    // A drive that is not there is told before the terminal is taken.
    machine.chosen(devices)?;
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = show(&mut terminal, &machine, devices);
    ratatui::restore();
    result
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    machine: &Machine,
    devices: &[String],
) -> anyhow::Result<()> {
    let (mut last, mut looked) = (machine.cgroups(), Instant::now());
    let mut text = "one second …".to_owned();
    loop {
        terminal.draw(|frame| {
            frame.render_widget(Paragraph::new(format!("{text}\nq ends")), frame.area());
        })?;
        if ends_within(PERIOD.saturating_sub(looked.elapsed()))? {
            return Ok(());
        }
        if looked.elapsed() >= PERIOD {
            let (now, drives) = (machine.cgroups(), machine.chosen(devices)?);
            text = shares::between(&last, &now, drives, looked.elapsed().as_secs_f64()).text();
            (last, looked) = (now, Instant::now());
        }
    }
}

/// Whether a key that ends it is pressed in this time. Another event only ends the wait.
fn ends_within(time: Duration) -> anyhow::Result<bool> {
    if !event::poll(time)? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else { return Ok(false) };
    let interrupts =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    let quits = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    Ok(key.kind == KeyEventKind::Press && (interrupts || quits))
}
