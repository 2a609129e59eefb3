//! The users of this machine who may open a tenant's export: its keys `uid`, `user` and
//! `unix-group`.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
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
            // An empty text parses as a String: `a+` would name an empty user.
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

/// The machine's users and groups of users by name; each name is resolved once.
///
/// A lookup may wait for a directory service for seconds, so the control thread must not use a
/// directory. A directory is used for one reading of a configuration: the next reading finds a user
/// that was added meanwhile.
#[derive(Default)]
pub struct Directory {
    uids: Resolved,
    gids: Resolved,
}

/// The result of a lookup: a number, no such name, or the reason of a failure.
type Found = Result<Option<u32>, String>;
type Find = fn(&str) -> io::Result<Option<u32>>;

/// The most concurrent lookups.
const THREADS: usize = 16;

#[derive(Default)]
struct Resolved(RefCell<HashMap<String, Found>>);

impl Resolved {
    fn up(&self, name: &str, find: Find) -> Found {
        let mut known = self.0.borrow_mut();
        known.entry(name.to_owned()).or_insert_with(|| found(find, name)).clone()
    }

    fn learn<'a>(&self, names: impl Iterator<Item = &'a str>, find: Find) {
        let names: BTreeSet<&str> = names.collect();
        let names: Vec<&str> = names.into_iter().collect();
        let part = names.len().div_ceil(THREADS).max(1);
        let resolve = |part: &[&str]| -> Vec<(String, Found)> {
            part.iter().map(|name| ((*name).to_owned(), found(find, name))).collect()
        };
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> =
                names.chunks(part).map(|part| scope.spawn(move || resolve(part))).collect();
            // A thread that panicked has no results: its names are resolved one by one later.
            let found = threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default());
            found.collect::<Vec<_>>()
        });
        self.0.borrow_mut().extend(all);
    }
}

fn found(find: Find, name: &str) -> Found {
    find(name).map_err(|error| error.to_string())
}

impl Directory {
    fn uid(&self, name: &str) -> Found {
        self.uids.up(name, uid_of)
    }

    fn gid(&self, name: &str) -> Found {
        self.gids.up(name, gid_of)
    }

    /// Resolves the names of these users and groups in several threads at once, so that the waits
    /// for a slow directory service overlap.
    pub fn learn<'a>(
        &self,
        users: impl Iterator<Item = &'a str>,
        groups: impl Iterator<Item = &'a str>,
    ) {
        self.uids.learn(users, uid_of);
        // The key `unix-group` takes names and numbers.
        self.gids.learn(groups.filter(|name| name.parse::<u32>().is_err()), gid_of);
    }

    /// Whether the machine has a group of users of this name. A failed lookup counts as none.
    pub fn has_group(&self, name: &str) -> bool {
        matches!(self.gid(name), Ok(Some(_)))
    }
}

/// The users that a tenant's keys name, by number.
pub fn users(
    uids: Option<&List<u32>>,
    users: Option<&List<String>>,
    groups: Option<&List<String>>,
    directory: &Directory,
) -> Result<Users, String> {
    let number = |kind: &str, name: &String, found: Found| match found {
        Ok(Some(number)) => Ok(number),
        Ok(None) => {
            let or = if kind == "group" { "; a group of tenants needs a [[group]]" } else { "" };
            Err(format!(
                "{kind}: there is no {kind} `{name}` on this machine: `getent {kind}` lists \
                 them{or}"
            ))
        }
        Err(error) => Err(format!("{kind}: cannot look `{name}` up: {error}")),
    };
    let uid = |name: &String| number("user", name, directory.uid(name));
    // The key `unix-group` takes names and numbers.
    let gid = |name: &String| match name.parse::<u32>() {
        Ok(gid) => Ok(gid),
        Err(_) => number("group", name, directory.gid(name)),
    };
    let mut all = uids.map_or_else(Vec::new, |List(uids)| uids.clone());
    for name in users.iter().flat_map(|List(names)| names) {
        all.push(uid(name)?);
    }
    let gids = groups.iter().flat_map(|List(names)| names).map(gid).collect::<Result<_, _>>()?;
    let found = Users { uids: all, gids };
    let any_key = uids.is_some() || users.is_some() || groups.is_some();
    if any_key && found.is_empty() {
        // Without any number the export would be open to all users.
        return Err("uid, user and unix-group name nobody: name one, or leave the key out".into());
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
        let directory = Directory::default();
        users(row.uid.as_ref(), row.user.as_ref(), row.group.as_ref(), &directory)
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
