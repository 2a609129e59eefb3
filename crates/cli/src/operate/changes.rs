//! The differences between two configurations, key by key.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use fairq_config::settings::Settings;
use fairq_config::tenant::by_name;
use serde::Serialize;
use toml::{Spanned, Value};

/// One key that differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Change {
    /// The key's path: `policy.threshold`, `tenant.db.weight`, `listen`.
    pub(crate) key: String,
    /// The value in force; `None` if the key is absent.
    pub(crate) from: Option<String>,
    /// The new value.
    pub(crate) to: Option<String>,
    /// Whether the change is in force; if not, it needs a restart, or the step in the note.
    pub(crate) done: bool,
    /// A note for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// The keys in which `to` differs from `from`, in order; none is in force yet.
pub(crate) fn between(from: &Settings, to: &Settings) -> Vec<Change> {
    // Of thousands of tenants most are equal in both configurations. Only the others are converted
    // to text, because that is slow.
    let old = by_name(&from.tenant);
    let tables = to.tenant.iter().map(Spanned::get_ref);
    let same: HashSet<&str> = tables
        .filter(|table| old.get(&*table.name).is_some_and(|old| old.says_the_same_as(table)))
        .map(|table| &*table.name)
        .collect();
    let written = |settings: &Settings| {
        let rest = settings.of_tenants(|name| !same.contains(name));
        Value::try_from(rest).expect("settings are texts, switches, numbers and lists of these")
    };
    let mut changes = Vec::new();
    compare("", Some(&written(from)), Some(&written(to)), &mut changes);
    // The comparison visits tables in the order of their names, which differs from the order of the
    // keys if a name has a dot.
    changes.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    changes
}

/// Adds the differences of the values under a key.
fn compare(key: &str, from: Option<&Value>, to: Option<&Value>, changes: &mut Vec<Change>) {
    if from == to {
        return;
    }
    let (old, new) = (fields(key, from), fields(key, to));
    let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    for name in names {
        let under = if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        compare(&under, old.get(name).copied(), new.get(name).copied(), changes);
    }
    let (from, to) = (text(key, from), text(key, to));
    if from != to {
        changes.push(Change { key: key.to_owned(), from, to, done: false, note: None });
    }
}

/// The tables whose entries are compared by name. Compared by their positions, all tenants after a
/// removed one would differ.
fn is_named(key: &str) -> bool {
    matches!(key, "tenant" | "group")
}

/// The entries of a table, by name.
fn fields<'a>(key: &str, value: Option<&'a Value>) -> BTreeMap<&'a str, &'a Value> {
    match value {
        Some(Value::Table(table)) => table.iter().map(|(name, value)| (&**name, value)).collect(),
        Some(Value::Array(list)) if is_named(key) => {
            let name = |table: &'a Value| table.get("name").and_then(Value::as_str);
            list.iter().map(|table| (name(table).unwrap_or_default(), table)).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// A value that is not a table, as text. An empty list equals a missing key.
fn text(key: &str, value: Option<&Value>) -> Option<String> {
    let one = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value? {
        Value::Table(_) => None,
        Value::Array(list) if is_named(key) || list.is_empty() => None,
        Value::Array(list) => Some(list.iter().map(one).collect::<Vec<_>>().join(", ")),
        value => Some(one(value)),
    }
}

/// The tenant's name and the rest of a key. Names may have dots; the rest has none.
pub(super) fn tenant_of(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix("tenant.")?.rsplit_once('.')
}

/// Combines the differences of each of these tenants into one, with this note.
pub(super) fn note_whole(differ: &mut Vec<Change>, notes: &HashMap<&str, String>) {
    if notes.is_empty() {
        return;
    }
    differ.retain_mut(|change| {
        let Some((name, key)) = tenant_of(&change.key) else { return true };
        let Some(note) = notes.get(name) else { return true };
        change.note = Some(note.clone());
        key == "name"
    });
}

/// Notes the command that changes a tenant's size, because a reload does not.
pub(super) fn note_sizes(differ: &mut [Change]) {
    for change in differ {
        if let (Some((name, "size")), Some(to), Some(_)) =
            (tenant_of(&change.key), &change.to, &change.from)
        {
            change.note = Some(format!("run fairq ctl resize {name} {to}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairq_config::settings;

    #[test]
    fn only_what_differs_is_named() {
        let parse = |text: &str| settings::parse(text, "fairq.toml").unwrap();
        let old = parse(
            "listen=[\"unix:/a\"]\npolicy=\"mqfq:T=64k\"\n[[tenant]]\nname=\"db\"\nweight=300\n",
        );
        let new = parse(
            "listen=[\"unix:/a\"]\npolicy=\"mqfq:T=128k,D=8\"\n[[tenant]]\nname=\"web\"\n[[tenant]]\nname=\"db\"\nweight=100\n",
        );
        let changes: Vec<String> = between(&old, &new)
            .into_iter()
            .map(|Change { key, from, to, .. }| {
                format!("{key}: {} -> {}", from.unwrap_or("-".into()), to.unwrap_or("-".into()))
            })
            .collect();
        let expected = [
            "policy.slots: - -> 8",
            "policy.threshold: 64k -> 128k",
            "tenant.db.weight: 300 -> 100",
            "tenant.web.name: - -> web",
        ];
        assert_eq!(changes, expected);
        assert_eq!(between(&old, &old), []);
    }
}
