//! `fairq top`: a server's tenants in the whole terminal, once a second.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use fairq_config::refusal::Refusal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::json;

use crate::args::TopArgs;
use crate::connection::{Connection, socket};
use crate::view::Look;

mod order;
mod screen;

use order::Order;
use screen::Screen;

/// Time between two views.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows a server until the user ends it, or once.
pub(crate) fn run(args: TopArgs) -> anyhow::Result<()> {
    let mut server = Connection::open(&socket(args.control))?;
    let mut look = Look::at(&mut server)?;
    if args.json {
        return print(&serde_json::to_string_pretty(&look)?);
    }
    if args.once {
        look.sort(Order::default());
        let columns =
            rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col);
        // A pipe has no width, and below 80 columns the table loses its right side.
        let width = if columns >= 80 { columns } else { 120 };
        let screen = Screen::default();
        let text = screen::text(&look, &screen, width, screen::height(&look, &screen, width));
        // The last line is for keys, which are not available here.
        return print(text.rsplit_once('\n').map_or("", |(above, _)| above));
    }
    if !std::io::stdout().is_terminal() {
        return Err(Refusal::new("standard output is no terminal: add --once or --json").into());
    }
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = show(&mut terminal, &mut server, look);
    // The terminal is restored before an error is printed on it.
    ratatui::restore();
    result
}

fn print(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("cannot print")
}

/// Fetches views, draws them and handles keys until `q`.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    server: &mut Connection,
    mut look: Look,
) -> anyhow::Result<()> {
    let mut screen = Screen::default();
    let mut next = Instant::now() + PERIOD;
    loop {
        look.sort(screen.order);
        screen.follow(&look);
        terminal.draw(|frame| screen::draw(&look, &screen, frame.area(), frame.buffer_mut()))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && !press(key, &mut screen, server)?
            {
                return Ok(());
            }
            // The effect of a key is drawn at once, without a call to the server; the next call
            // comes at its usual time.
            continue;
        }
        next = Instant::now() + PERIOD;
        if !screen.is_paused {
            look = Look::at(server)?;
        }
    }
}

/// Handles a key; false to end.
fn press(key: KeyEvent, screen: &mut Screen, server: &mut Connection) -> anyhow::Result<bool> {
    screen.complaint = None;
    let ends = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    // Ctrl-C ends the program while a weight is typed, too.
    if let Some((_, typed)) = screen.typed.as_mut().filter(|_| !ends) {
        match key.code {
            // 10000, the largest weight, has five digits.
            KeyCode::Char(digit) if digit.is_ascii_digit() && typed.len() < 5 => typed.push(digit),
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Esc => screen.typed = None,
            KeyCode::Enter => {
                if let Some((tenant, weight)) =
                    screen.typed.take().filter(|(_, weight)| !weight.is_empty())
                {
                    let set = server.call("weight", json!({ "tenant": tenant, "weight": weight }));
                    screen.complaint = set.err().map(|error| error.to_string());
                }
            }
            _ => {}
        }
        return Ok(true);
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Ok(false),
        KeyCode::Char('c') if ends => return Ok(false),
        KeyCode::Char('s') => screen.order = screen.order.next(),
        KeyCode::Char(' ' | 'p') => screen.is_paused = !screen.is_paused,
        KeyCode::Char('w') => {
            screen.typed = screen.chosen.clone().map(|tenant| (tenant, String::new()))
        }
        KeyCode::Down | KeyCode::Char('j') => screen.step(1),
        KeyCode::Up | KeyCode::Char('k') => screen.step(-1),
        _ => {}
    }
    Ok(true)
}
