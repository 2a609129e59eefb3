//! Logs that the device fails a tenant's requests.
//!
//! **Problem.** A full file system fails every write, thousands of times a second. A line for each
//! failure makes the log unreadable, and writing it is a load; without a line only the clients see
//! the error, and not its cause. **Model.** Failures come in *spells*: a spell begins with a
//! failure, and ends when none has come for [`QUIET`]. Its beginning is logged with the last error,
//! and its end with the number of failures.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use fairq_host::observe::stats::TenantStats;
use rustix::io::Errno;

/// Time without failures after which a spell is over.
const QUIET: Duration = Duration::from_secs(60);

/// The tenants whose requests fail.
#[derive(Default)]
pub(super) struct Failures {
    /// Spells by the tenant's name.
    spells: HashMap<String, Spell>,
}

struct Spell {
    failed: u64,
    last: Duration,
}

impl Failures {
    /// Counts a tenant's failures in the second that ends now. True if a spell begins.
    fn count(&mut self, now: Duration, tenant: &str, failed: u64) -> bool {
        // Within a spell failures are only counted: their lines would be thousands.
        if let Some(spell) = self.spells.get_mut(tenant) {
            spell.failed += failed;
            spell.last = now;
            return false;
        }
        self.spells.insert(tenant.to_owned(), Spell { failed, last: now });
        true
    }

    /// Removes the spells that are over; returns the tenants and their numbers of failures.
    fn take_over(&mut self, now: Duration) -> Vec<(String, u64)> {
        let over = self.spells.extract_if(|_, spell| now.saturating_sub(spell.last) >= QUIET);
        over.map(|(tenant, spell)| (tenant, spell.failed)).collect()
    }

    /// Counts tenants' failures in the second that ends now, and logs beginnings and ends.
    pub(super) fn log<'a>(
        &mut self,
        now: Duration,
        tenants: impl Iterator<Item = (&'a str, &'a TenantStats)>,
    ) {
        for (tenant, stats) in tenants.filter(|(_, stats)| stats.errors > 0) {
            if self.count(now, tenant, stats.errors) {
                let (failed, error) =
                    (stats.errors, io::Error::from_raw_os_error(stats.last_errno));
                tracing::warn!(tenant, failed, %error, "the device fails requests: \
                 {}", cure(stats.last_errno));
            }
        }
        for (tenant, failed) in self.take_over(now) {
            tracing::info!(tenant, failed, "the device no longer fails requests");
        }
    }
}

/// The remedy for an error.
fn cure(errno: i32) -> &'static str {
    match Errno::from_raw_os_error(errno) {
        Errno::NOSPC | Errno::DQUOT => {
            "free space on its file system (a sparse file takes space for all that is written to \
             it); the other tenants are not affected"
        }
        Errno::FBIG => {
            "raise the limit on file sizes (ulimit -f) or use a file system that allows larger \
             files"
        }
        _ => {
            "the kernel's log may have the reason; each client gets the errors of its own requests"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_and_end_of_failures_are_told_and_nothing_between() {
        let (mut failures, second) = (Failures::default(), Duration::from_secs);
        assert!(failures.count(second(1), "a", 5));
        assert!(!failures.count(second(2), "a", 7));
        assert!(failures.count(second(30), "b", 1), "each tenant's own");
        assert!(failures.take_over(second(61)).is_empty());
        assert_eq!(failures.take_over(second(62)), [("a".to_owned(), 12)]);
        assert!(failures.count(second(63), "a", 1), "a new one");
        assert_eq!(failures.take_over(second(90)), [("b".to_owned(), 1)]);
    }
}
