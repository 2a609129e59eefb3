//! What differs between two configurations, key by key.

use std::collections::BTreeMap;

use fairq_config::settings::Settings;
use serde::Serialize;
use serde_json::Value;

/// One key that differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Change {
    /// Where it stands: `policy.threshold`, `tenant.db.weight`, `listen`.
    pub(crate) key: String,
    /// What holds now; nothing if it is not there.
    pub(crate) from: Option<String>,
    /// What is to hold.
    pub(crate) to: Option<String>,
    /// Whether it has been done; if not, it needs a restart, or what the note says.
    pub(crate) done: bool,
    /// What is to be known beside that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// The keys in which `to` differs from `from`, in order; none is done yet.
pub(crate) fn between(from: &Settings, to: &Settings) -> Vec<Change> {
    let (from, to) = (flat(from), flat(to));
    let keys: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let change = |key: &String| {
        let (from, to) = (from.get(key).cloned(), to.get(key).cloned());
        (from != to).then(|| Change { key: key.clone(), from, to, done: false, note: None })
    };
    keys.into_iter().filter_map(change).collect()
}

/// Each key with its value as text. Tenants and groups go by their names.
fn flat(settings: &Settings) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    let value = serde_json::to_value(settings).expect("settings are plain data");
    put("", &value, &mut keys);
    keys
}

fn put(key: &str, value: &Value, keys: &mut BTreeMap<String, String>) {
    let under = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match value {
        // An option that is not written is null here; a change tells it as absent.
        Value::Null => {}
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| put(&under(name), value, keys))
        }
        // By its place in the list each tenant behind a removed one would differ.
        Value::Array(list) if key == "tenant" || key == "group" => {
            for tenant in list {
                let name = tenant["name"].as_str().unwrap_or_default();
                put(&under(name), tenant, keys);
            }
        }
        // An empty list is what a file without the key has: it is no key either.
        Value::Array(list) if list.is_empty() => {}
        Value::Array(list) => {
            keys.insert(key.to_owned(), list.iter().map(text).collect::<Vec<_>>().join(", "));
        }
        value => {
            keys.insert(key.to_owned(), text(value));
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
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
