//! Values of knobs as text.

use fairq_core::registry::{Knob, Unit};
use serde::Serialize;
use serde::de::{Deserialize, DeserializeSeed, Deserializer};

use crate::units::{Factor, Nanos, Size, TextOrNumber, exact_size};

/// Parses a value. Its range is not checked here, because ranges differ by policy; only a number
/// behind a prefix must be in range, because another number could be the value of a word.
fn parse(knob: &Knob, text: &str) -> Result<u64, String> {
    if let Some(value) = knob.word(text) {
        return Ok(value);
    }
    let refuse = || format!("`{text}` is not {}", takes(knob));
    let number = text.strip_prefix(knob.prefix).ok_or_else(refuse)?;
    let number = match knob.unit {
        Unit::Number | Unit::Requests => {
            number.parse().map_err(|_| format!("`{number}` is not a whole number"))
        }
        Unit::Bytes | Unit::BytesAt100 => number.parse().map(|Size(bytes)| bytes),
        Unit::Nanoseconds => number.parse().map(|Nanos(ns)| ns),
        Unit::Hundredths => number.parse().map(|Factor(hundredths)| hundredths.into()),
        Unit::Switch | Unit::Words => {
            let words: Vec<_> = knob.words.iter().map(|(word, _)| format!("`{word}`")).collect();
            let words = words.join(", ");
            return Err(format!("unknown variant `{text}`, expected one of {words}"));
        }
    };
    // If words are allowed as well, the refusal must not mention numbers only.
    if knob.words.is_empty() {
        return number;
    }
    let number = number.map_err(|_| refuse())?;
    match knob.prefix.is_empty() || (knob.least..=knob.most).contains(&number) {
        true => Ok(number),
        false => Err(refuse()),
    }
}

/// A value in the form in which it is read.
pub fn show(knob: &Knob, value: u64) -> String {
    // A number in the knob's range is shown as a number, even if a word has the same value. Only 0
    // is shown as its word.
    let is_word = value == 0 || value > knob.most || knob.unit == Unit::Words;
    if let Some(word) = knob.word_of(value).filter(|_| is_word) {
        return word.to_owned();
    }
    let number = match knob.unit {
        Unit::Number | Unit::Requests | Unit::Words => value.to_string(),
        Unit::Bytes | Unit::BytesAt100 => exact_size(value),
        Unit::Nanoseconds => Nanos(value).to_string(),
        Unit::Hundredths => format!("{value}%"),
        Unit::Switch => (value != 0).to_string(),
    };
    format!("{}{number}", knob.prefix)
}

/// Like [`show`]; `auto` if the policy finds the value itself.
pub fn show_or_auto(knob: &Knob, value: Option<u64>) -> String {
    value.map_or("auto".into(), |value| show(knob, value))
}

/// The unit, range and words of a knob.
pub fn takes(knob: &Knob) -> String {
    let unit = match knob.unit {
        Unit::Number if knob.prefix.is_empty() => "a number, ",
        Unit::Number => "",
        Unit::Requests => "requests, ",
        Unit::Bytes => "bytes, ",
        Unit::BytesAt100 => "bytes at weight 100, ",
        Unit::Nanoseconds if knob.prefix.is_empty() => "a duration, ",
        Unit::Nanoseconds => "",
        Unit::Hundredths => "a part, ",
        Unit::Switch | Unit::Words => "",
    };
    let end = |value| match value {
        0 => "0".to_owned(),
        value => show(knob, value),
    };
    let range = match (knob.unit, knob.most) {
        (Unit::Switch, _) => "true or false".into(),
        (Unit::Words, _) => String::new(),
        // The maximum of the type is not an intended bound.
        (_, most) if most >= u32::MAX.into() && most.count_ones() >= 32 => {
            format!("{unit}{} or more", end(knob.least))
        }
        (_, most) => format!("{unit}{} to {}", end(knob.least), end(most)),
    };
    let words = knob.words.iter().map(|(word, _)| *word);
    let all: Vec<&str> = words.chain(Some(&*range).filter(|range| !range.is_empty())).collect();
    match &all[..] {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        all => all.concat(),
    }
}

/// A value in the form of a configuration file.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Written {
    /// A switch.
    Switch(bool),
    /// A number.
    Number(u64),
    /// Anything else.
    Text(String),
}

impl Written {
    /// A knob's value in this form.
    pub fn of(knob: &Knob, value: u64) -> Written {
        match knob.unit {
            Unit::Switch => Written::Switch(value != 0),
            Unit::Number | Unit::Requests if knob.words.is_empty() => Written::Number(value),
            _ => Written::Text(show(knob, value)),
        }
    }
}

/// Deserializes a value of this knob.
pub struct Of<'a>(pub &'a Knob);

impl<'de> DeserializeSeed<'de> for Of<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        let Of(knob) = self;
        if knob.unit == Unit::Switch {
            return bool::deserialize(deserializer).map(u64::from);
        }
        let parse = |text: &str| parse(knob, text);
        deserializer.deserialize_any(TextOrNumber { expecting: "a value of this key", parse })
    }
}
