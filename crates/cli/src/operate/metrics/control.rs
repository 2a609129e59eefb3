//! The metrics of the control thread.

use fairq_host::server::{Status, TURN_BOUNDS_NS};

use super::Text;

/// The CPU time of the control thread for one event at a time.
pub(super) fn control(text: &mut Text, now: &Status) {
    let name = "fairq_control_turn_cpu_seconds";
    text.family(
        name,
        "histogram",
        "CPU time of the control thread's turns: in a turn it handles one event (a call, a scrape, \
         a reload, a tick), and handshakes wait.",
    );
    let (bucket, mut below) = (format!("{name}_bucket"), 0);
    for (bound, count) in TURN_BOUNDS_NS.iter().zip(now.control.classes) {
        below += count;
        let bound = (*bound as f64 * 1e-9).to_string();
        text.sample(&bucket, &[("le", &bound)], below as f64);
    }
    let count = now.control.count_all() as f64;
    text.sample(&bucket, &[("le", "+Inf")], count);
    text.sample(&format!("{name}_sum"), &[], now.control.cpu_ns as f64 * 1e-9);
    text.sample(&format!("{name}_count"), &[], count);
}
