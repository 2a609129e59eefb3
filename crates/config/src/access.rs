//! The users of this machine who may open a tenant's export: its keys `uid`, `user` and `group`.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use fairq_host::nbd::session::users::{Users, gid_of, uid_of};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// One or several: `1000`, `"1000+1001"` (as on the command line, where a comma ends a value) or
/// `[1000, 1001]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct List<T>(pub Vec<T>);

impl<T: FromStr> FromStr for List<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<List<T>, String> {
        let item = |item: &str| {
            let item = item.trim();
            // A String parses from nothing: `a+` would name an empty user.
            let parsed = item.parse().ok().filter(|_| !item.is_empty());
            parsed.ok_or_else(|| format!("`{item}` cannot be used here"))
        };
        text.split('+').map(item).collect::<Result<_, _>>().map(List)
    }
}

impl<'de, T: FromStr> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        struct OneOrMore<T>(PhantomData<T>);

        impl<'de, T: FromStr> Visitor<'de> for OneOrMore<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one, or several as in \"a+b\" or [\"a\", \"b\"]")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<List<T>, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<List<T>, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<List<T>, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(List(items)) = list.next_element::<List<T>>()? {
                    all.extend(items);
                }
                Ok(List(all))
            }
        }

        deserializer.deserialize_any(OneOrMore(PhantomData))
    }
}

/// The users that a tenant names, by number.
pub fn users(
    uids: Option<&List<u32>>,
    users: Option<&List<String>>,
    groups: Option<&List<String>>,
) -> Result<Users, String> {
    let named = |kind: &str, names: Option<&List<String>>, find: fn(&str) -> _| {
        let number = |name: &String| match (name.parse::<u32>(), find(name)) {
            // A group has no key of its own for numbers.
            (Ok(number), _) if kind == "group" => Ok(number),
            (_, std::io::Result::Ok(Some(number))) => Ok(number),
            (_, Ok(None)) => {
                let or =
                    if kind == "group" { "; a group of tenants needs a [[group]]" } else { "" };
                Err(format!(
                    "{kind}: there is no {kind} `{name}` on this machine: `getent {kind}` lists \
                     them{or}"
                ))
            }
            (_, Err(error)) => Err(format!("{kind}: cannot look `{name}` up: {error}")),
        };
        names.map_or(Ok(Vec::new()), |List(names)| names.iter().map(number).collect())
    };
    let mut all = uids.map_or_else(Vec::new, |List(uids)| uids.clone());
    let by_name: Vec<u32> = named("user", users, uid_of)?;
    all.extend(by_name);
    let found = Users { uids: all, gids: named("group", groups, gid_of)? };
    let any_key = uids.is_some() || users.is_some() || groups.is_some();
    if any_key && found.is_empty() {
        // Without any number the export would be open to all.
        return Err("uid, user and group name nobody: name one, or leave the key out".into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Row {
        uid: Option<List<u32>>,
        user: Option<List<String>>,
        group: Option<List<String>>,
    }

    fn read(text: &str) -> Result<Users, String> {
        let row: Row = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        users(row.uid.as_ref(), row.user.as_ref(), row.group.as_ref())
    }

    #[test]
    fn users_are_named_one_or_several() {
        let all = |uids: &[u32], gids: &[u32]| Ok(Users { uids: uids.into(), gids: gids.into() });
        assert_eq!(read("uid = 7"), all(&[7], &[]));
        assert_eq!(read("uid = \"7+8\"\nuser = \"root\""), all(&[7, 8, 0], &[]));
        assert_eq!(read("uid = [7, 8]\ngroup = [\"root\", \"12\"]"), all(&[7, 8], &[0, 12]));
        assert_eq!(read(""), all(&[], &[]));
        assert!(read("uid = []").unwrap_err().contains("name nobody"));
        assert!(read("uid = \"root\"").unwrap_err().contains("`root` cannot be used here"));
        assert!(read("user = \"\"").unwrap_err().contains("cannot be used here"));
        assert!(read("user = \"no such\"").unwrap_err().contains("there is no user `no such`"));
    }
}
