//! The schedulers and their knobs for C: names, values as text, and the effect of each knob.
//!
//! `module/core.h` declares these functions. All of them may sleep, because they allocate lists of
//! knobs.

use core::fmt::Write;

use alloc::vec::Vec;
use fairq_core::Tuning;
use fairq_core::registry::{Knob, Shape, Unit};

use crate::engine::{self, Scheduler};

/// A buffer of C's, written from the front. Text beyond its size is left out.
struct Text<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        let length = text.len().min(room.len());
        room[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}

impl Text<'_> {
    /// # Safety
    /// `bytes` has this size, and nothing else uses it.
    unsafe fn at<'a>(bytes: *mut u8, size: usize) -> Text<'a> {
        // SAFETY: the caller's promise.
        Text { bytes: unsafe { core::slice::from_raw_parts_mut(bytes, size) }, length: 0 }
    }
}

/// A knob's number and its new value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Key {
    knob: u32,
    value: u64,
}

/// A change of a running scheduler.
#[repr(C)]
pub(crate) struct Change {
    /// 0: no change is possible, the scheduler is rebuilt; 1: D; 2: automatic D; 3: T.
    what: u32,
    value: u64,
}

impl Change {
    pub(crate) fn tuning(&self) -> Option<Tuning> {
        match self.what {
            1 => u32::try_from(self.value).ok().map(Tuning::Slots),
            2 => Some(Tuning::AutoSlots),
            3 => Some(Tuning::Threshold(self.value)),
            _ => None,
        }
    }

    fn by(tuning: Option<Tuning>) -> Change {
        let (what, value) = match tuning {
            Some(Tuning::Slots(slots)) => (1, slots.into()),
            Some(Tuning::AutoSlots) => (2, 0),
            Some(Tuning::Threshold(bytes)) => (3, bytes),
            // An automatic T needs memory, which a call with interrupts off cannot allocate.
            Some(Tuning::FollowingThreshold(_)) | None => (0, 0),
        };
        Change { what, value }
    }
}

fn scheduler(number: u32) -> Option<&'static Scheduler> {
    engine::ALL.get(number as usize)
}

fn usual() -> Shape {
    engine::shape(1, 1, 1, 1)
}

fn knob(scheduler: &Scheduler, number: u32) -> Option<Knob> {
    scheduler.knobs(&[], &usual()).get(number as usize).map(|(knob, _)| *knob)
}

/// Returns C's keys with the knobs' names in place of their numbers. The function is not inlined,
/// because its caller then builds a scheduler on the rest of the stack.
///
/// # Safety
/// `keys` points to `count` keys.
#[inline(never)]
pub(crate) unsafe fn keys(
    scheduler: &Scheduler,
    keys: *const Key,
    count: u32,
) -> Vec<(&'static str, u64)> {
    let mut named = Vec::new();
    if count > 0 {
        let knobs = scheduler.knobs(&[], &usual());
        // SAFETY: the caller's promise.
        for key in unsafe { core::slice::from_raw_parts(keys, count as usize) } {
            named.extend(knobs.get(key.knob as usize).map(|(knob, _)| (knob.key, key.value)));
        }
    }
    named
}

/// Writes the name of a scheduler, without a terminating zero. Returns its length; 0: there is no
/// such scheduler.
///
/// # Safety
/// `text` has room for `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_name(number: u32, text: *mut u8, size: usize) -> usize {
    // SAFETY: the caller's promise.
    let mut text = unsafe { Text::at(text, size) };
    let _ = scheduler(number).map(|scheduler| text.write_str(scheduler.name));
    text.length
}

/// Writes the name of a scheduler's knob, in the same way.
///
/// # Safety
/// `text` has room for `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_knob(number: u32, of: u32, text: *mut u8, size: usize) -> usize {
    // SAFETY: the caller's promise.
    let mut text = unsafe { Text::at(text, size) };
    let _ = scheduler(number)
        .and_then(|scheduler| knob(scheduler, of))
        .map(|knob| text.write_str(knob.key));
    text.length
}

/// Reads a knob's value. Returns 0: read; 1: the knob returns to its default (`default`, and `auto`
/// if that is not a word of the knob); negative: not a value.
///
/// # Safety
/// `text` has `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_parse(
    number: u32,
    of: u32,
    text: *const u8,
    size: usize,
    value: &mut u64,
) -> i32 {
    // SAFETY: the caller's promise.
    let text = unsafe { core::slice::from_raw_parts(text, size) };
    let knob = scheduler(number).and_then(|scheduler| knob(scheduler, of));
    let (Some(knob), Ok(text)) = (knob, core::str::from_utf8(text)) else { return -1 };
    match (parse(&knob, text.trim_ascii()), text.trim_ascii()) {
        (Some(parsed), _) => {
            *value = parsed;
            0
        }
        (None, "default" | "auto") => 1,
        _ => -1,
    }
}

/// Parses a value: a word, or a number followed by the unit's letters.
fn parse(knob: &Knob, text: &str) -> Option<u64> {
    if let Some(value) = knob.word(text) {
        return Some(value);
    }
    // A number alone, too: `hl` shows the ratio that is in force.
    let text = text.strip_prefix(knob.prefix).unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match (knob.unit, unit) {
        (Unit::Switch, _) if ["false", "no"].contains(&text) => return Some(0),
        (Unit::Switch, _) if ["true", "yes"].contains(&text) => return Some(1),
        (Unit::Words, _) => return None,
        (_, "") => 1,
        (Unit::Bytes | Unit::BytesAt100, "k" | "K") => 1 << 10,
        (Unit::Bytes | Unit::BytesAt100, "m" | "M") => 1 << 20,
        (Unit::Bytes | Unit::BytesAt100, "g" | "G") => 1 << 30,
        (Unit::Nanoseconds, "ns") | (Unit::Hundredths, "%") => 1,
        (Unit::Nanoseconds, "us") => 1_000,
        (Unit::Nanoseconds, "ms") => 1_000_000,
        (Unit::Nanoseconds, "s") => 1_000_000_000,
        _ => return None,
    };
    let value = number.parse::<u64>().ok()?.checked_mul(factor)?;
    knob.check(value).is_ok().then_some(value)
}

/// Writes a knob's value in a form that [`parse`] reads.
fn show(knob: &Knob, value: Option<u64>, text: &mut Text<'_>) -> core::fmt::Result {
    let Some(value) = value else { return text.write_str("auto") };
    let is_word = value == 0 || value > knob.most || knob.unit == Unit::Words;
    if let Some(word) = knob.word_of(value).filter(|_| is_word) {
        return text.write_str(word);
    }
    write!(text, "{}{value}", knob.prefix)?;
    text.write_str(match knob.unit {
        Unit::Nanoseconds => "ns",
        Unit::Hundredths => "%",
        _ => "",
    })
}

/// Writes a knob's value under these keys, for this shape. Returns the length of the text.
///
/// # Safety
/// `text` has room for `size` bytes, and there are `count` keys.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_value(
    number: u32,
    of: u32,
    slots: u32,
    given: *const Key,
    count: u32,
    text: *mut u8,
    size: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let mut text = unsafe { Text::at(text, size) };
    if let Some(scheduler) = scheduler(number) {
        // SAFETY: the caller's promise.
        let keys = unsafe { keys(scheduler, given, count) };
        let values = scheduler.knobs(&keys, &engine::shape(1, 1, 1, slots));
        let _ = values.get(of as usize).map(|(knob, value)| show(knob, *value, &mut text));
    }
    text.length
}

/// The change that setting a knob makes to a running scheduler. With `is_given` the knob is set to
/// this value, otherwise to its default.
#[unsafe(no_mangle)]
extern "C" fn fairq_core_change(
    number: u32,
    of: u32,
    slots: u32,
    is_given: bool,
    value: u64,
    change: &mut Change,
) {
    *change = Change::by(scheduler(number).and_then(|scheduler| {
        let values = scheduler.knobs(&[], &engine::shape(1, 1, 1, slots));
        let (knob, usual) = values.get(of as usize)?;
        let value = if is_given { Some(value) } else { *usual };
        knob.tuning.map(|tuning| tuning(value))
    }));
}
