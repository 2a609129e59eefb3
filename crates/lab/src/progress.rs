//! Progress of a long run, and its interruption.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// A flag that the first Ctrl-C sets. Running experiments finish; a second Ctrl-C ends the program.
pub(crate) fn stops_on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let stops = Arc::new(AtomicBool::new(false));
    let flag = stops.clone();
    let pressed = move || {
        if flag.swap(true, Ordering::Relaxed) {
            // The shell's exit status of a program that SIGINT ended: 128 plus the signal's number.
            std::process::exit(130);
        }
        eprintln!("\nending after the running experiments; press Ctrl-C again to end at once");
    };
    ctrlc::set_handler(pressed).context("cannot handle Ctrl-C")?;
    Ok(stops)
}

/// A progress bar on standard error, if that is a terminal.
pub(crate) fn progress_bar() -> ProgressBar {
    // Before the first experiment has finished, the speed is unknown, and so is the remaining time.
    let left = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        if state.pos() > 0 {
            out.write_fmt(format_args!(", about {:#} left", HumanDuration(state.eta())))
                .expect("it is text");
        }
    };
    let style =
        ProgressStyle::with_template("{bar:30} {msg}{left}").expect("the template is well formed");
    let style = style.with_key("left", left);
    let bar = ProgressBar::new(1).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
