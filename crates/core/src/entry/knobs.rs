//! Knobs: the parameters of policies, each defined once.
//!
//! A configuration names its knobs in [`Configure::knobs`], each with the field that holds it. The
//! caller passes the action: listing them, setting one, checking all. So a key, its unit, range,
//! words and help are written in one place, and its default is the field's.
//!
//! A value is a number in its unit (bytes, nanoseconds, hundredths), in whatever form operators
//! write it. A word stands for a number, such as `off` for 0; the word of an enumeration's variant
//! stands for the number of the variant.

use alloc::vec::Vec;

use crate::contract::bounds::{ConfigError, MAX_SLOTS};
use crate::contract::port::Tuning;

/// The unit of a knob's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Things that have no unit.
    Number,
    /// Requests.
    Requests,
    /// Bytes.
    Bytes,
    /// Bytes at weight 100.
    BytesAt100,
    /// Nanoseconds.
    Nanoseconds,
    /// A factor in hundredths.
    Hundredths,
    /// No (0) or yes (1).
    Switch,
    /// No number: the knob accepts words only.
    Words,
}

/// The definition of a knob.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Knob {
    /// Its name.
    pub key: &'static str,
    /// Its short name in the literature, such as D or T.
    pub alias: Option<&'static str>,
    /// The unit of the number.
    pub unit: Unit,
    /// The least number.
    pub least: u64,
    /// The greatest number.
    pub most: u64,
    /// Words, and the numbers that they stand for. If several words stand for one number, it is
    /// written as the first of them.
    pub words: &'static [(&'static str, u64)],
    /// The text before a number, as in `static-3`; mostly empty.
    pub prefix: &'static str,
    /// Its help text.
    pub help: &'static str,
    /// Its name in a policy's short description, if it is part of that.
    pub brief: Option<&'static str>,
    /// The tuning that changes the knob while the policy runs, if that is possible; with the value
    /// `None` the policy finds the value by itself.
    pub tuning: Option<fn(Option<u64>) -> Tuning>,
}

impl Knob {
    const fn new(key: &'static str, unit: Unit, least: u64, most: u64, help: &'static str) -> Self {
        Knob {
            key,
            alias: None,
            unit,
            least,
            most,
            words: &[],
            prefix: "",
            help,
            brief: None,
            tuning: None,
        }
    }

    /// A number of things, from `least` to `most`.
    pub const fn number(key: &'static str, least: u64, most: u64, help: &'static str) -> Self {
        Knob::new(key, Unit::Number, least, most, help)
    }

    /// A number of requests, from 1 to `most`.
    pub const fn requests(key: &'static str, most: u32, help: &'static str) -> Self {
        Knob::new(key, Unit::Requests, 1, most as u64, help)
    }

    /// A number of bytes, from `least` to `most`.
    pub const fn bytes(key: &'static str, least: u64, most: u64, help: &'static str) -> Self {
        Knob::new(key, Unit::Bytes, least, most, help)
    }

    /// A number of bytes at weight 100, from `least` to `most`.
    pub const fn at_100(key: &'static str, least: u64, most: u64, help: &'static str) -> Self {
        Knob::new(key, Unit::BytesAt100, least, most, help)
    }

    /// A duration, from `least` to `most` nanoseconds.
    pub const fn duration(key: &'static str, least: u64, most: u64, help: &'static str) -> Self {
        Knob::new(key, Unit::Nanoseconds, least, most, help)
    }

    /// A factor, from `least` to `most` hundredths.
    pub const fn factor(key: &'static str, least: u64, most: u64, help: &'static str) -> Self {
        Knob::new(key, Unit::Hundredths, least, most, help)
    }

    /// No or yes.
    pub const fn switch(key: &'static str, help: &'static str) -> Self {
        Knob::new(key, Unit::Switch, 0, 1, help)
    }

    /// One of these words.
    pub const fn one_of(
        key: &'static str,
        words: &'static [(&'static str, u64)],
        help: &'static str,
    ) -> Self {
        Knob { words, ..Knob::new(key, Unit::Words, 1, 0, help) }
    }

    /// The knob that takes these words as well.
    #[must_use]
    pub const fn or(self, words: &'static [(&'static str, u64)]) -> Self {
        Knob { words, ..self }
    }

    /// The knob whose numbers are written after this prefix.
    #[must_use]
    pub const fn after(self, prefix: &'static str) -> Self {
        Knob { prefix, ..self }
    }

    /// The knob with a short name from the literature, which descriptions use, too.
    #[must_use]
    pub const fn alias(self, alias: &'static str) -> Self {
        Knob { alias: Some(alias), brief: Some(alias), ..self }
    }

    /// The knob that is part of descriptions, under this name.
    #[must_use]
    pub const fn brief(self, brief: &'static str) -> Self {
        Knob { brief: Some(brief), ..self }
    }

    /// The knob that can be changed while the policy runs.
    #[must_use]
    pub const fn live(self, tuning: fn(Option<u64>) -> Tuning) -> Self {
        Knob { tuning: Some(tuning), ..self }
    }

    /// The number that a word stands for.
    pub fn word(&self, word: &str) -> Option<u64> {
        self.words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
    }

    /// The word for a number, if it has one.
    pub fn word_of(&self, value: u64) -> Option<&'static str> {
        self.words.iter().find(|(_, number)| *number == value).map(|(word, _)| *word)
    }

    /// Refuses a number that is out of range and that no word stands for.
    pub fn check(&self, value: u64) -> Result<(), ConfigError> {
        let &Knob { key: knob, least, most, .. } = self;
        match (least..=most).contains(&value) || self.word_of(value).is_some() {
            true => Ok(()),
            false => Err(ConfigError::Knob { knob, value, least, most }),
        }
    }
}

/// The storage of a knob's value.
pub trait Field {
    /// The value; `None` where the policy finds it by itself.
    fn get(&self) -> Option<u64>;
    /// Takes a value in the knob's range.
    fn set(&mut self, value: u64);
}

macro_rules! narrower {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn get(&self) -> Option<u64> {
                Some(u64::from(*self))
            }
            fn set(&mut self, value: u64) {
                *self = <$type>::try_from(value).unwrap_or(<$type>::MAX);
            }
        }
    )*};
}

narrower!(u8, u16, u32, u64);

impl Field for bool {
    fn get(&self) -> Option<u64> {
        Some(u64::from(*self))
    }
    fn set(&mut self, value: u64) {
        *self = value != 0;
    }
}

impl Field for Option<u64> {
    fn get(&self) -> Option<u64> {
        *self
    }
    fn set(&mut self, value: u64) {
        *self = Some(value);
    }
}

/// A value that is part of a field, or of several fields.
struct By<S> {
    value: Option<u64>,
    set: S,
}

impl<S: FnMut(u64)> Field for By<S> {
    fn get(&self) -> Option<u64> {
        self.value
    }
    fn set(&mut self, value: u64) {
        (self.set)(value);
    }
}

/// Makes an enumeration a [`Field`] of the words that its variants are written as.
macro_rules! words {
    ($type:ty: $($word:literal => $variant:path),* $(,)?) => {
        impl $type {
            /// The word of each variant.
            pub const WORDS: &'static [(&'static str, u64)] =
                &[$(($word, $variant as u64)),*];
        }

        impl $crate::entry::knobs::Field for $type {
            fn get(&self) -> Option<u64> {
                Some(*self as u64)
            }
            fn set(&mut self, value: u64) {
                $(if value == $variant as u64 { *self = $variant; })*
            }
        }
    };
}

pub(crate) use words;

/// The visitor of a configuration's knobs.
pub struct Knobs<'a> {
    visit: &'a mut dyn FnMut(&Knob, &mut dyn Field),
}

impl Knobs<'_> {
    /// Visits a knob whose value is in this field.
    pub fn is(&mut self, knob: Knob, field: &mut dyn Field) {
        (self.visit)(&knob, field);
    }

    /// Visits a knob that has this value (`None`: the policy finds it by itself) and is changed by
    /// `set`.
    pub fn by(&mut self, knob: Knob, value: Option<u64>, set: impl FnMut(u64)) {
        self.is(knob, &mut By { value, set });
    }
}

/// Knobs and their values; `None` where the policy finds a value by itself.
pub type Values = Vec<(Knob, Option<u64>)>;

/// A configuration that has knobs.
pub trait Configure {
    /// Visits the knobs, always in the same order.
    fn knobs(&mut self, knobs: &mut Knobs<'_>);
}

/// Calls `visit` for each knob.
pub fn each<C: Configure>(config: &mut C, mut visit: impl FnMut(&Knob, &mut dyn Field)) {
    config.knobs(&mut Knobs { visit: &mut visit });
}

/// The knobs and their values.
pub fn list<C: Configure>(config: &mut C) -> Values {
    let mut list = Vec::new();
    each(config, |knob, field| list.push((*knob, field.get())));
    list
}

/// Refuses a configuration in which a knob is out of its range.
pub fn check<C: Configure>(config: &mut C) -> Result<(), ConfigError> {
    let mut result = Ok(());
    each(config, |knob, field| {
        if let (Ok(()), Some(value)) = (result, field.get()) {
            result = knob.check(value);
        }
    });
    result
}

/// The longest request, in bytes: the bound of the least cost, and of the length of merged
/// requests.
const MAX_REQUEST: u64 = 32 << 20;
/// The greatest factor of a cost, in hundredths.
const MAX_FACTOR: u64 = 100_000;

/// The cost of reads.
pub const READ_COST: Knob =
    Knob::factor("read-cost", 1, MAX_FACTOR, "the cost of each byte that is read");

/// The cost of writes.
pub const WRITE_COST: Knob =
    Knob::factor("write-cost", 1, MAX_FACTOR, "the cost of each byte that is written");

/// The least cost of any request.
pub const LEAST_COST: Knob = Knob::bytes(
    "least-cost",
    1,
    MAX_REQUEST,
    "the least cost of any request, also of one that the server refuses; 4k on a device that is \
     limited by the number of requests",
);

/// The longest command that adjacent requests are merged to.
pub const MERGE: Knob = Knob::bytes(
    "merge",
    0,
    MAX_REQUEST,
    "the longest command that adjacent waiting requests are merged to",
)
.or(&[("on", 256 << 10), ("off", 0)])
.brief("merge");

/// The value of D that requests a search for D ([`crate::depth`]).
pub const AUTO: u32 = u32::MAX;

/// D.
pub const SLOTS: Knob = Knob::requests(
    "slots",
    MAX_SLOTS,
    "D: the most requests outstanding on the device; auto finds the least that fills it",
)
.or(&[("auto", AUTO as u64)])
.alias("D")
.live(slots);

/// The change of D while requests run.
pub fn slots(slots: Option<u64>) -> Tuning {
    match slots {
        Some(slots) if slots != u64::from(AUTO) => Tuning::Slots(slots as u32),
        _ => Tuning::AutoSlots,
    }
}
