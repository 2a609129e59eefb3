//! `fairq top --kernel`: the cgroups in the whole terminal, once a second.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use fairq_config::refusal::Refusal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::widgets::Paragraph;

use super::shares::Shares;
use super::sysfs::Machine;
use super::{PERIOD, print, shares, width};

/// Shows these drives until the user quits, or once.
pub(crate) fn run(devices: &[String], once: bool, json: bool) -> anyhow::Result<()> {
    let machine = Machine::found()?;
    machine.has_module()?;
    if once || json {
        let shares = shares::two_looks(&machine, devices, PERIOD)?;
        return if json {
            print(&format!("{:#}", shares.json()))
        } else {
            print(&shares.text(width()))
        };
    }
    if !std::io::stdout().is_terminal() {
        return Err(Refusal::new("standard output is no terminal: add --once or --json").into());
    }
    // An unknown drive is reported before the program takes the terminal.
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
    let mut shares = None;
    let mut above = 0;
    loop {
        terminal.draw(|frame| {
            let area = frame.area();
            let text = shares.as_ref().map_or("one second …".to_owned(), |shares: &Shares| {
                shares.text(Some(usize::from(area.width)))
            });
            frame.render_widget(Paragraph::new(screen(&text, &mut above, area.height)), area);
        })?;
        match step_within(PERIOD.saturating_sub(looked.elapsed()))? {
            None => return Ok(()),
            Some(lines) => above = above.saturating_add_signed(lines),
        }
        if looked.elapsed() >= PERIOD {
            let (now, drives) = (machine.cgroups(), machine.chosen(devices)?);
            let seconds = looked.elapsed().as_secs_f64();
            shares = Some(shares::between(&last, &now, drives, seconds));
            (last, looked) = (now, Instant::now());
        }
    }
}

/// The lines of the text after the first `above`, as many as fit, and a last line with the keys.
fn screen(text: &str, above: &mut usize, height: u16) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let room = usize::from(height.saturating_sub(1));
    // The text may have fewer lines than at the last draw, so the position is limited to its last
    // line.
    *above = (*above).min(lines.len().saturating_sub(room));
    let shown = lines.iter().skip(*above).take(room);
    let mut screen: String = shown.flat_map(|line| [line, "\n"]).collect();
    screen.push_str("q ends");
    let below = lines.len().saturating_sub(*above + room);
    if *above + below > 0 {
        screen += &format!(" · ↑↓ scrolls: {above} lines above, {below} below");
    }
    screen
}

/// The number of lines by which a key pressed in this time scrolls; `None` for a key that ends the
/// program. Other events only end the wait.
fn step_within(time: Duration) -> anyhow::Result<Option<isize>> {
    if !event::poll(time)? {
        return Ok(Some(0));
    }
    let Event::Key(key) = event::read()? else { return Ok(Some(0)) };
    if key.kind != KeyEventKind::Press {
        return Ok(Some(0));
    }
    Ok(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => None,
        KeyCode::Char('q') | KeyCode::Esc => None,
        KeyCode::Down | KeyCode::Char('j') => Some(1),
        KeyCode::Up | KeyCode::Char('k') => Some(-1),
        KeyCode::PageDown => Some(10),
        KeyCode::PageUp => Some(-10),
        _ => Some(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_scrolled_to() {
        let text = "one\ntwo\nthree\nfour\n";
        let mut above = 0;
        assert_eq!(screen(text, &mut above, 5), "one\ntwo\nthree\nfour\nq ends");
        let said = screen(text, &mut above, 3);
        assert_eq!(said, "one\ntwo\nq ends · ↑↓ scrolls: 0 lines above, 2 below");
        above = 9;
        let said = screen(text, &mut above, 3);
        assert_eq!(said, "three\nfour\nq ends · ↑↓ scrolls: 2 lines above, 0 below");
        assert_eq!(above, 2, "it does not go further than the end");
    }
}
