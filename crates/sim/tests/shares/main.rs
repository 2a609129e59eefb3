//! Tenants' shares of a device in the laboratory: by weight, in groups, with a latency target, and
//! by the costs of requests.

mod cost;
mod depth;
mod groups;
mod latency;
mod unseen;

use fairq_device::profile::Profile;

/// A profile with some of its lines changed.
fn changed(name: &str, lines: &[(&str, &str)]) -> Profile {
    let (_, text) =
        fairq_device::profile::BUILT_IN.into_iter().find(|(known, _)| *known == name).unwrap();
    let mut text = text[..text.find("[[point]]").unwrap()].to_owned();
    for (from, to) in lines {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    Profile::parse(&text).unwrap()
}
