//! Retired keys, which chose between fairq's form of a policy and the form in its paper. A server
//! always runs fairq's form: it ignores the value for that form, with a warning, and refuses all
//! others. The laboratory compares all values.

use std::sync::LazyLock;

use fairq_core::registry::Knob;

/// A key without effect.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) knob: Knob,
    policy: &'static str,
    /// The value that selects fairq's form of the policy.
    own: u64,
    /// The experiments that compare the other values.
    claims: &'static str,
}

static ALL: LazyLock<[Retired; 5]> = LazyLock::new(|| {
    let words = |key, words| Knob::one_of(key, words, "");
    let poll = Knob::duration("unthrottle", 1, u64::MAX, "").or(&[("wheel", 0), ("poll", 1_000)]);
    let of = |policy, knob, claims| Retired { knob, policy, own: 0, claims };
    [
        of("mqfq", words("virtual-time", &[("mindicator", 0), ("scan", 1)]), "M-9"),
        of("mqfq", words("slot-kind", &[("tree", 0), ("counter", 1), ("bitmap", 2)]), "M-11"),
        of("mqfq", poll.after("poll:"), "M-10"),
        of("d2fq", words("tracker", &[("sloppy", 0), ("scan", 1), ("mindicator", 2)]), "D-17"),
        of("d2fq", Knob::switch("strict-paper", ""), "D-7 D-8"),
    ]
});

/// The retired key of this name.
pub(super) fn find(key: &str) -> Option<&'static Retired> {
    ALL.iter().find(|retired| retired.knob.key == key)
}

impl Retired {
    /// Whether the policy of this name took the key.
    pub(super) fn is_of(&self, policy: &str) -> bool {
        self.policy == policy
    }

    /// A warning if the value is the server's own; else the reason why it is refused.
    pub(super) fn told(&self, value: u64) -> Result<String, String> {
        let Retired { knob, policy, own, claims } = self;
        match value == *own {
            true => Ok(format!("policy {policy} ignores the key {}: remove the key", knob.key)),
            false => Err(format!(
                "policy: a server has no {} {} of {policy}: remove the key; the laboratory \
                 compares this variant: fairq lab run {claims}",
                knob.key,
                super::value::show(knob, value),
            )),
        }
    }
}
