//! The verdict and the figures over several seeds.
//!
//! The rule of a row decides it on each seed, and [`verdict`] then decides over all seeds (decision
//! 0043). A measurement is a text with figures in it. [`told`] combines the texts of all seeds: if
//! they differ only in figures, each figure becomes its median with the least and the greatest
//! value in brackets, with the same number of digits. For N seeds these two values enclose the
//! median over all possible seeds with a probability of `1 - 2^(1 - N)`, for any distribution:
//! 99.8 % for ten.
//!
//! Example: `0.56 (sum 3)`, `0.58 (sum 3)`, `0.61 (sum 3)` become `0.58 [0.56 to 0.61] (sum 3)`.

use serde::{Deserialize, Serialize};

/// The part of the seeds on which a row has to hold.
const NINE_TENTHS: (usize, usize) = (9, 10);

/// A figure over seeds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Interval {
    /// The median of all seeds.
    pub(crate) median: f64,
    /// The least of all seeds.
    pub(crate) least: f64,
    /// The greatest of all seeds.
    pub(crate) greatest: f64,
}

/// Consecutive seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seeds {
    /// The first seed.
    pub(crate) first: u64,
    /// Number of seeds.
    pub(crate) count: usize,
}

impl Seeds {
    /// One seed.
    #[cfg(test)]
    pub(crate) const fn one(seed: u64) -> Seeds {
        Seeds { first: seed, count: 1 }
    }

    /// Each seed in turn.
    pub(crate) fn all(self) -> impl Iterator<Item = u64> {
        (0..self.count as u64).map(move |number| self.first.wrapping_add(number))
    }
}

/// The verdict of a row over its seeds: it holds if it holds on nine tenths of them; it cannot be
/// decided if on nine tenths it holds or cannot be decided; otherwise it does not hold.
pub(crate) fn verdict(each: &[Option<bool>]) -> Option<bool> {
    let enough = (each.len() * NINE_TENTHS.0).div_ceil(NINE_TENTHS.1);
    let hold = each.iter().filter(|one| **one == Some(true)).count();
    let open = each.iter().filter(|one| one.is_none()).count();
    match hold {
        _ if each.is_empty() => None,
        _ if hold >= enough => Some(true),
        _ if hold + open >= enough => None,
        _ => Some(false),
    }
}

/// The measurements of all seeds as one text, and the figures in it in their order. There are no
/// figures for one seed, and none if the texts differ in more than figures; then the result lists
/// each kind of text with its number of seeds, the most frequent first.
pub(crate) fn told(texts: &[&str]) -> (String, Vec<Interval>) {
    let mut kinds: Vec<(Vec<Part>, Vec<Vec<&str>>)> = Vec::new();
    for text in texts {
        let parts = parts(text);
        let figures = parts.iter().filter_map(Part::figure).collect();
        match kinds.iter_mut().find(|(known, _)| is_alike(known, &parts)) {
            Some((_, all)) => all.push(figures),
            None => kinds.push((parts, vec![figures])),
        }
    }
    // The sort is stable, so of equally frequent kinds the earliest comes first.
    kinds.sort_by_key(|(_, all)| std::cmp::Reverse(all.len()));
    let mut said = kinds.iter().map(|(parts, all)| together(parts, all));
    match (texts.len(), kinds.len()) {
        (0 | 1, _) => (texts.concat(), Vec::new()),
        (_, 1) => said.next().unwrap_or_default(),
        _ => {
            let counted = said.zip(&kinds).map(|((text, _), (_, all))| match all.len() {
                1 => format!("{text} (on 1 seed)"),
                count => format!("{text} (on {count} seeds)"),
            });
            (counted.collect::<Vec<_>>().join("; "), Vec::new())
        }
    }
}

/// A piece of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part<'a> {
    Words(&'a str),
    /// A number, with its sign if it has one.
    Figure(&'a str),
}

impl<'a> Part<'a> {
    fn figure(&self) -> Option<&'a str> {
        match self {
            Part::Figure(text) => Some(text),
            Part::Words(_) => None,
        }
    }
}

/// Whether two texts differ only in figures.
fn is_alike(a: &[Part], b: &[Part]) -> bool {
    let same = |(a, b): (&Part, &Part)| a == b || (a.figure().is_some() && b.figure().is_some());
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// Cuts a text at its figures. Digits after a letter are a name, as in `H0`.
fn parts(text: &str) -> Vec<Part<'_>> {
    let mut found = Vec::new();
    let (mut words, mut at) = (0, 0);
    while let Some(begins) = text[at..].find(|c: char| c.is_ascii_digit()).map(|found| at + found) {
        let whole = |from: usize| {
            let rest = &text[from..];
            from + rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())
        };
        let mut ends = whole(begins);
        // A point without a digit behind it ends a sentence.
        if text[ends..].starts_with('.') && whole(ends + 1) > ends + 1 {
            ends = whole(ends + 1);
        }
        at = ends;
        let before = text[..begins].chars().next_back();
        if before.is_some_and(char::is_alphabetic) {
            continue;
        }
        // A sign after a letter or digit is a hyphen, or marks a range, as in `static-3`.
        let signed = before.is_some_and(|c| c == '+' || c == '-')
            && !text[..begins - 1].chars().next_back().is_some_and(|c| c.is_alphanumeric());
        let begins = begins - usize::from(signed);
        if words < begins {
            found.push(Part::Words(&text[words..begins]));
        }
        found.push(Part::Figure(&text[begins..ends]));
        words = ends;
    }
    if words < text.len() {
        found.push(Part::Words(&text[words..]));
    }
    found
}

/// Combines texts that differ only in figures.
fn together(parts: &[Part], all: &[Vec<&str>]) -> (String, Vec<Interval>) {
    let (mut text, mut intervals) = (String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Words(words) => text.push_str(words),
            Part::Figure(_) => {
                let column: Vec<&str> = all.iter().map(|row| row[intervals.len()]).collect();
                let interval = interval(&column);
                text.push_str(&shown(&column, interval));
                intervals.push(interval);
            }
        }
    }
    (text, intervals)
}

fn interval(column: &[&str]) -> Interval {
    let mut values: Vec<f64> = column.iter().filter_map(|text| text.parse().ok()).collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let middle = values.len() / 2;
    let median = match values.len() % 2 {
        0 => (at(middle.wrapping_sub(1)) + at(middle)) / 2.0,
        _ => at(middle),
    };
    Interval { median, least: at(0), greatest: at(values.len().wrapping_sub(1)) }
}

/// An interval as text, with the digits of its column.
fn shown(column: &[&str], Interval { median, least, greatest }: Interval) -> String {
    let digits = |text: &&str| text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let digits = column.iter().map(digits).max().unwrap_or(0);
    let is_signed = column.iter().any(|text| text.starts_with(['+', '-']));
    let number = |value: f64| match is_signed {
        true => format!("{value:+.digits$}"),
        false => format!("{value:.digits$}"),
    };
    if least == greatest {
        return column.first().map_or_else(String::new, |&text| text.to_owned());
    }
    format!("{} [{} to {}]", number(median), number(least), number(greatest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_decide_and_of_fewer_all() {
        let of = |hold: usize, fail: usize, open: usize| {
            let each = [vec![Some(true); hold], vec![Some(false); fail], vec![None; open]].concat();
            verdict(&each)
        };
        assert_eq!([of(1, 0, 0), of(0, 1, 0), of(0, 0, 1)], [Some(true), Some(false), None]);
        assert_eq!(of(0, 0, 0), None);
        assert_eq!([of(10, 0, 0), of(9, 1, 0), of(9, 0, 1)], [Some(true); 3]);
        assert_eq!([of(8, 2, 0), of(0, 10, 0), of(8, 0, 2)], [Some(false), Some(false), None]);
        assert_eq!([of(8, 1, 1), of(7, 2, 1), of(0, 1, 9)], [None, Some(false), None]);
        assert_eq!([of(8, 1, 0), of(9, 0, 0), of(2, 1, 0)], [Some(false), Some(true), Some(false)]);
        assert_eq!([of(18, 2, 0), of(17, 3, 0)], [Some(true), Some(false)]);
    }

    #[test]
    fn figures_become_medians_with_their_range() {
        let texts = ["0.56 (sum 3), H0", "0.61 (sum 3), H0", "0.58 (sum 3), H0"];
        let (text, intervals) = told(&texts);
        assert_eq!(text, "0.58 [0.56 to 0.61] (sum 3), H0");
        let three = Interval { median: 3.0, least: 3.0, greatest: 3.0 };
        assert_eq!(intervals, [Interval { median: 0.58, least: 0.56, greatest: 0.61 }, three]);
        let (text, _) = told(&["+4 %, 1-2", "-3 %, 1-2", "+10 %, 1-2", "+5 %, 1-2"]);
        assert_eq!(text, "+4 [-3 to +10] %, 1-2", "a median of 4.5 at no digits, to even");
        assert_eq!(told(&["9", "10"]).0, "10 [9 to 10]", "9.5, to even");
        assert_eq!(told(&["3.5 us."]), ("3.5 us.".to_owned(), Vec::new()));
        assert_eq!(told(&[]), (String::new(), Vec::new()));
    }

    #[test]
    fn seeds_that_say_something_else_are_told_apart() {
        let texts = ["never", "depth 5", "depth 7", "M 1", "depth 7"];
        let said = "depth 7 [5 to 7] (on 3 seeds); never (on 1 seed); M 1 (on 1 seed)";
        assert_eq!(told(&texts), (said.to_owned(), Vec::new()));
        assert_eq!(told(&["H0 M1", "H1 M0"]).0, "H0 M1 (on 1 seed); H1 M0 (on 1 seed)");
    }

    #[test]
    fn the_order_of_seeds_does_not_matter_for_what_is_told_of_figures() {
        let texts = ["1.25 and 7", "0.9 and 7", "2.00 and 8"];
        let turned: Vec<&str> = texts.iter().rev().copied().collect();
        assert_eq!(told(&texts), told(&turned));
        assert_eq!(told(&texts).0, "1.25 [0.90 to 2.00] and 7 [7 to 8]");
    }

    #[test]
    fn seeds_follow_each_other() {
        let all: Vec<u64> = Seeds { first: 7, count: 3 }.all().collect();
        assert_eq!(all, [7, 8, 9]);
        assert_eq!(Seeds::one(u64::MAX).all().collect::<Vec<_>>(), [u64::MAX]);
    }
}
