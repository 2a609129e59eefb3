//! The functions of expressions.

use fairq_core::{Class, ClassWeights};
use fairq_device::{Arbiter, Arbitration, Burst, Mechanism, QueueIndex};

use super::values::{Format, List, Value, Valued, lifted, reduced};
use super::{jain, near};
use std::rc::Rc;

/// Calls a function that needs neither runs nor rules.
pub(super) fn call(name: &str, arguments: &[Value]) -> Valued {
    let over = |on: fn(&[f64]) -> f64| {
        let on = |items: &[Value]| {
            let numbers: Vec<f64> = items.iter().map(Value::number).collect::<Result<_, _>>()?;
            Ok(on(&numbers).into())
        };
        reduced(&arguments[0], &on)
    };
    let pairs = |holds: fn(f64, f64, f64) -> bool| {
        let noise = arguments.get(1).map_or(Ok(0.0), Value::number)?;
        let on = |items: &[Value]| {
            let numbers: Vec<f64> = items.iter().map(Value::number).collect::<Result<_, _>>()?;
            Ok(numbers.windows(2).all(|pair| holds(pair[0], pair[1], noise)).into())
        };
        reduced(&arguments[0], &on)
    };
    let each = |on: fn(&[f64]) -> Value| {
        let on = |items: &[Value]| {
            Ok(on(&items.iter().map(Value::number).collect::<Result<Vec<_>, _>>()?))
        };
        lifted(arguments, &on)
    };
    match (name, arguments.len()) {
        // These functions are applied to each item of lists.
        ("near", 3) => each(|of| near(of[0], of[1], of[2]).into()),
        ("within", 3) => each(|of| ((of[0] - of[1]).abs() <= of[2]).into()),
        ("abs", 1) => each(|of| of[0].abs().into()),
        ("round", 1) => each(|of| (of[0].round() + 0.0).into()),
        ("max", 2) => each(|of| of[0].max(of[1]).into()),
        ("min", 2) => each(|of| of[0].min(of[1]).into()),
        ("all", 1) => Ok(arguments[0].truth()?.into()),
        ("if", 3) => Ok(arguments[if arguments[0].truth()? { 1 } else { 2 }].clone()),
        // The item of the second list where the condition holds, and otherwise that of the third.
        ("where", 3) => {
            let on = |of: &[Value]| Ok(of[if of[0].truth()? { 1 } else { 2 }].clone());
            lifted(arguments, &on)
        }
        ("say", 2..) => {
            let on = |of: &[Value]| Ok(said(of[0].text()?, &of[1..])?.as_str().into());
            lifted(arguments, &on)
        }
        // These functions reduce each innermost list to one value.
        ("max", 1) => over(|of| of.iter().copied().reduce(f64::max).unwrap_or(0.0)),
        ("min", 1) => over(|of| of.iter().copied().reduce(f64::min).unwrap_or(0.0)),
        ("sum", 1) => over(|of| of.iter().sum()),
        ("mean", 1) => over(|of| of.iter().sum::<f64>() / of.len() as f64),
        ("count", 1) => over(|of| of.len() as f64),
        ("jain", 1) => over(|of| jain(of.iter().copied())),
        // The coefficient of variation.
        ("variation", 1) => over(|of| {
            let mean = of.iter().sum::<f64>() / of.len() as f64;
            let squares = of.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
            (squares / of.len() as f64).sqrt() / mean
        }),
        ("least", 1) => over(|of| place(of, |a, b| a < b)),
        ("greatest", 1) => over(|of| place(of, |a, b| a > b)),
        ("rises", 1 | 2) => pairs(|a, b, noise| b >= (1.0 - noise) * a),
        ("climbs", 1) => pairs(|a, b, _| a < b),
        ("falls", 1) => pairs(|a, b, _| a > b),
        // The first item for which a condition holds, or infinity if there is none.
        ("first", 2) => {
            let on = |holds: &[Value]| {
                for (item, holds) in arguments[0].items().iter().zip(holds) {
                    if holds.truth()? {
                        return Ok(item.clone());
                    }
                }
                Ok(f64::INFINITY.into())
            };
            reduced(&arguments[1], &on)
        }
        // All items of all lists in one list.
        ("flat", 1) => {
            fn flat(value: &Value, into: &mut Vec<Value>) {
                match value {
                    Value::List(list) => list.items.iter().for_each(|item| flat(item, into)),
                    other => into.push(other.clone()),
                }
            }
            let mut items = Vec::new();
            arguments.iter().for_each(|value| flat(value, &mut items));
            Ok(items.into_iter().collect())
        }
        // The items of the lists of a list.
        ("joined", 1) => {
            let lists = arguments[0].items().iter();
            Ok(lists.flat_map(|list| list.items().to_vec()).collect())
        }
        ("named", 2) => {
            let names = arguments[0].items().iter().map(|name| Ok(Rc::from(name.text()?)));
            let names = names.collect::<Result<_, String>>()?;
            Ok(Value::List(Rc::new(List { names, items: arguments[1].items().to_vec() })))
        }
        ("unnamed", 1) => Ok(arguments[0].items().iter().cloned().collect()),
        // The sums of each `n` consecutive numbers; a shorter rest is left out.
        ("sums", 2) => {
            let together = arguments[1].number()? as usize;
            let numbers = arguments[0].numbers()?;
            Ok(numbers.chunks_exact(together).map(|chunk| chunk.iter().sum::<f64>()).collect())
        }
        ("arbitration", 0) => Ok(arbitration().into_iter().collect()),
        _ => Err(format!("no function is called `{name}` with {} values", arguments.len())),
    }
}

/// The index of the first number that `beats` all others.
fn place(of: &[f64], beats: fn(f64, f64) -> bool) -> f64 {
    let better = |best: usize, at: usize| if beats(of[at], of[best]) { at } else { best };
    (0..of.len()).reduce(better).unwrap_or(0) as f64
}

/// A text with values in place of its `{}`, in their order.
fn said(text: &str, values: &[Value]) -> Result<String, String> {
    let mut values = values.iter();
    filled(text, |inner| {
        let value = values.next().ok_or("a value is missing")?;
        Ok(value.shown(&Format::parse(inner.strip_prefix(':').unwrap_or(inner))))
    })
}

/// Replaces each `{…}` of a text.
pub(super) fn filled(
    text: &str,
    mut with: impl FnMut(&str) -> Result<String, String>,
) -> Result<String, String> {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inner, after) = part.split_once('}').ok_or_else(|| format!("`{text}` has no }}"))?;
        filled += &with(inner)?;
        filled += after;
    }
    Ok(filled)
}

/// The queues from which the arbiter takes twelve commands: two queues of each class with many
/// commands each, weights 3, 2 and 1.
fn arbitration() -> Vec<&'static str> {
    const NAMES: [&str; 6] = ["H0", "H1", "M0", "M1", "L0", "L1"];
    let weights = ClassWeights { high: 3, medium: 2, low: 1 };
    let mut arbiter =
        Arbiter::new(Mechanism::Weighted, 6, Arbitration { burst: Burst::ONE, weights });
    for queue in 0..6u16 {
        let class = [Class::High, Class::Medium, Class::Low][usize::from(queue) / 2];
        arbiter.add(QueueIndex(queue), class);
        arbiter.post(QueueIndex(queue), 100);
    }
    let fetched = std::iter::from_fn(|| arbiter.next()).take(12);
    fetched.map(|queue| NAMES[usize::from(queue.0)]).collect()
}
