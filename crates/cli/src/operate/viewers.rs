//! Answers that many callers share: the view of the last second, and the metrics.

use std::sync::{Arc, OnceLock};

use fairq_host::server::{Admin, Bytes};
use serde_json::Value;

use super::overview::{Snapshot, json_of};
use super::{Console, metrics};

/// A snapshot for many callers. The first caller makes the answer, and all others get the same one.
pub(super) struct Shared {
    snapshot: Snapshot,
    look: OnceLock<Value>,
    text: OnceLock<Bytes>,
}

impl Shared {
    /// The answer to `look`.
    pub(super) fn look(&self) -> &Value {
        self.look.get_or_init(|| json_of(&self.snapshot.look()))
    }

    /// The answer to `look` as the web page's text.
    pub(super) fn look_text(&self) -> Bytes {
        self.text.get_or_init(|| self.look().to_string().into()).clone()
    }

    /// The metrics.
    pub(super) fn metrics(&self) -> Bytes {
        self.text.get_or_init(|| metrics::text(&self.snapshot).into()).clone()
    }
}

impl From<Snapshot> for Arc<Shared> {
    fn from(snapshot: Snapshot) -> Arc<Shared> {
        Arc::new(Shared { snapshot, look: OnceLock::new(), text: OnceLock::new() })
    }
}

impl Console {
    /// Drops the snapshots after a change, so that the next viewer gets a new one.
    pub(super) fn drop_snapshots(&mut self) {
        (self.viewed, self.scraped, self.latest) = (None, None, None);
    }

    /// The snapshot for terminals and the web page: the state at the last full second, so that
    /// additional viewers cause no work for the shards and the control thread.
    pub(super) fn viewed(&mut self, admin: &dyn Admin) -> Arc<Shared> {
        let look = self.viewed.take().unwrap_or_else(|| {
            let now = self.latest.clone().unwrap_or_else(|| admin.status().into());
            self.snapshot_of(admin, now).into()
        });
        self.viewed.insert(look).clone()
    }

    /// The snapshot for scrapers: the state at the first scrape of this second.
    pub(super) fn scraped(&mut self, admin: &dyn Admin) -> Arc<Shared> {
        let scraped = self.scraped.take().unwrap_or_else(|| self.snapshot(admin).into());
        self.scraped.insert(scraped).clone()
    }
}
