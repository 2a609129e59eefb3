//! `key=value,key=value`: the list after a name in `--device`, `--tenant` and `--policy`.
//!
//! Lists are read into the same structures as TOML tables, so a key has one meaning, one spelling
//! and one set of error messages. A key ends at the first `=` or `:`; a key alone means `true`; a
//! comma in a value is doubled.

use std::collections::VecDeque;
use std::fmt;

use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor,
};

/// One `key=value`; a key alone has no value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The text before the `=`.
    pub key: String,
    /// The text behind the `=`.
    pub value: Option<String>,
}

impl Pair {
    /// A key with its value.
    pub fn new(key: &str, value: &str) -> Pair {
        Pair { key: key.to_owned(), value: Some(value.to_owned()) }
    }

    fn parse(item: &str) -> Pair {
        match item.find(['=', ':']) {
            Some(at) => Pair::new(&key(&item[..at]), &item[at + 1..]),
            None => Pair { key: key(item), value: None },
        }
    }
}

/// The key as it is spelled in tables: `read_only` means `read-only`. A text with a `/` is a path.
fn key(text: &str) -> String {
    if text.contains('/') { text.trim().to_owned() } else { text.trim().replace('_', "-") }
}

/// Splits at single commas; a double comma is a comma in the item.
pub fn items(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c != ',' {
            items.last_mut().expect("never empty").push(c);
        } else if rest.next_if_eq(&',').is_some() {
            items.last_mut().expect("never empty").push(',');
        } else {
            items.push(String::new());
        }
    }
    items
}

/// The pairs of a list; empty items (a comma at the end) are dropped.
pub fn pairs<'a>(items: impl IntoIterator<Item = &'a String>) -> Vec<Pair> {
    items.into_iter().filter(|item| !item.trim().is_empty()).map(|item| Pair::parse(item)).collect()
}

/// Reads a structure from pairs, as serde reads it from a table.
pub fn read<T: DeserializeOwned>(pairs: Vec<Pair>) -> Result<T, String> {
    for (index, pair) in pairs.iter().enumerate() {
        if pairs[..index].iter().any(|earlier| earlier.key == pair.key) {
            return Err(format!("`{}` is given twice", pair.key));
        }
    }
    let pairs = Pairs { left: pairs.into(), current: None };
    T::deserialize(pairs).map_err(|error| explain(&error.to_string()))
}

/// Rewrites serde's errors for operators, with a guess at the intended name.
pub fn explain(message: &str) -> String {
    // serde reports only text: names are between backticks, the given one first, then the allowed
    // ones.
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let Some((given, allowed)) = quoted.split_first() else { return message.to_owned() };
    let what = match message {
        _ if message.starts_with("unknown field") => "key",
        _ if message.starts_with("unknown variant") => "value",
        _ if message.starts_with("missing field") => return format!("`{given}` is missing"),
        _ => return message.to_owned(),
    };
    let close =
        |candidate: &&&str| strsim::damerau_levenshtein(given, candidate) <= 1 + given.len() / 4;
    let nearest =
        allowed.iter().filter(close).min_by_key(|word| strsim::damerau_levenshtein(given, word));
    let guess = nearest.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default();
    format!("unknown {what} `{given}`{guess} (allowed: {})", allowed.join(", "))
}

struct Pairs {
    left: VecDeque<Pair>,
    current: Option<Pair>,
}

impl<'de> Deserializer<'de> for Pairs {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_map(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Pairs {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ValueError> {
        self.current = self.left.pop_front();
        let Some(pair) = &self.current else { return Ok(None) };
        let key: StrDeserializer<'_, ValueError> = pair.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ValueError> {
        let pair = self.current.take().expect("serde reads a value after its key");
        let value = Value(pair.value.as_deref());
        seed.deserialize(value).map_err(|error| {
            de::Error::custom(format_args!("{}: {}", pair.key, explain(&error.to_string())))
        })
    }
}

/// The text after the `=`.
struct Value<'a>(Option<&'a str>);

impl Value<'_> {
    fn text(&self) -> Result<&str, ValueError> {
        self.0.ok_or_else(|| de::Error::custom("a value must follow, after `=`"))
    }

    fn number<T: std::str::FromStr>(&self, what: impl fmt::Display) -> Result<T, ValueError> {
        let text = self.text()?;
        text.trim().parse().map_err(|_| de::Error::custom(format_args!("`{text}` is not {what}")))
    }
}

impl<'de> Deserializer<'de> for Value<'_> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.0.map(str::trim) {
            None | Some("true" | "yes" | "on" | "1") => visitor.visit_bool(true),
            Some("false" | "no" | "off" | "0") => visitor.visit_bool(false),
            Some(text) => {
                Err(de::Error::custom(format_args!("`{text}` is neither true nor false")))
            }
        }
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_u16(self.number(format_args!("a whole number up to {}", u16::MAX))?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_u32(self.number("a whole number")?)
    }

    // serde sets the field of an absent key to `None` without a call here.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_enum(IntoDeserializer::<ValueError>::into_deserializer(self.text()?))
    }

    // Wider numbers are quantities: their types parse the text with its unit.
    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Size;
    use serde::Deserialize;

    #[derive(Deserialize, PartialEq, Debug)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Paced,
        File,
    }

    #[derive(Deserialize, PartialEq, Debug)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Spec {
        kind: Option<Kind>,
        size: Option<Size>,
        parallelism: Option<u32>,
        #[serde(default)]
        read_only: bool,
        path: Option<String>,
    }

    fn parse(text: &str) -> Result<Spec, String> {
        read(pairs(&items(text)))
    }

    #[test]
    fn a_list_is_read_like_a_table() {
        let spec = parse("kind=paced,size:4k,parallelism=32,read-only,path=/a=b,,c,").unwrap();
        let expected = Spec {
            kind: Some(Kind::Paced),
            size: Some(Size(4096)),
            parallelism: Some(32),
            read_only: true,
            path: Some("/a=b,c".into()),
        };
        assert_eq!(spec, expected);
        assert!(!parse("read-only=no").unwrap().read_only);
    }

    #[test]
    fn refusals_name_the_key_and_the_cure() {
        let refusal = |text: &str| parse(text).unwrap_err();
        assert_eq!(
            refusal("sise=4k"),
            "unknown key `sise`; did you mean `size`? (allowed: kind, size, parallelism, \
             read-only, path)"
        );
        assert_eq!(
            refusal("colour=4k"),
            "unknown key `colour` (allowed: kind, size, parallelism, read-only, path)"
        );
        assert_eq!(
            refusal("kind=pacd"),
            "kind: unknown value `pacd`; did you mean `paced`? (allowed: paced, file)"
        );
        assert_eq!(refusal("size=4k,size=8k"), "`size` is given twice");
        assert_eq!(
            refusal("size=big"),
            "size: `big` is not a size: write bytes, or binary units as in 4k, 64KiB, 1.5G, 2T (1k \
             = 1024)"
        );
        assert_eq!(refusal("size"), "size: a value must follow, after `=`");
        assert_eq!(refusal("parallelism=-1"), "parallelism: `-1` is not a whole number");
        assert_eq!(refusal("read-only=maybe"), "read-only: `maybe` is neither true nor false");
    }
}
