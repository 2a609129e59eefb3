//! Values of expressions, and how they are printed.
//!
//! Operators and functions act on each item of a list, and on the items of two lists in pairs:
//! `[1, 2] * [3, 4]` is `[3, 8]`. A list whose items have names, such as runs under several
//! policies, keeps them. A function such as `max` reduces the innermost lists.

use std::rc::Rc;

use super::expression::Op;
use super::planned::Planned;

/// A value.
#[derive(Clone)]
pub(super) enum Value {
    Number(f64),
    Text(Rc<str>),
    Truth(bool),
    List(Rc<List>),
    /// A run, which is executed when a measure of it is needed.
    Run(Rc<Planned>),
}

/// Several values, each of which may have a name.
#[derive(Default)]
pub(super) struct List {
    /// Names of the items; empty if they have none.
    pub(super) names: Vec<Rc<str>>,
    pub(super) items: Vec<Value>,
}

pub(super) type Valued = Result<Value, String>;

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Number(number)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Value {
        Value::Truth(truth)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Value {
        let items = items.into_iter().map(Into::into).collect();
        Value::List(Rc::new(List { names: Vec::new(), items }))
    }
}

impl Value {
    pub(super) fn number(&self) -> Result<f64, String> {
        match self {
            Value::Number(number) => Ok(*number),
            Value::Truth(truth) => Ok(f64::from(u8::from(*truth))),
            Value::Text(text) => Err(format!("`{text}` is no number")),
            Value::List(_) => Err("a list is no number".into()),
            Value::Run(_) => Err("a run is no number: name a measure".into()),
        }
    }

    pub(super) fn text(&self) -> Result<&str, String> {
        match self {
            Value::Text(text) => Ok(text),
            other => Err(format!("{} is no text", other.shown(&Format::default()))),
        }
    }

    /// The items of a list; any other value is the only item.
    pub(super) fn items(&self) -> &[Value] {
        match self {
            Value::List(list) => &list.items,
            other => std::slice::from_ref(other),
        }
    }

    /// The numbers of a list, or the only number.
    pub(super) fn numbers(&self) -> Result<Vec<f64>, String> {
        self.items().iter().map(Value::number).collect()
    }

    pub(super) fn names(&self) -> &[Rc<str>] {
        match self {
            Value::List(list) => &list.names,
            _ => &[],
        }
    }

    fn is_list(&self) -> bool {
        matches!(self, Value::List(_))
    }

    /// Whether a condition holds; a list of conditions holds if all do.
    pub(super) fn truth(&self) -> Result<bool, String> {
        match self {
            Value::Truth(truth) => Ok(*truth),
            Value::List(list) => {
                list.items.iter().try_fold(true, |all, item| Ok(item.truth()? && all))
            }
            other => Err(format!("{} is no condition", other.shown(&Format::default()))),
        }
    }

    /// The item with this number or name; for a list of numbers or names, the list of these items.
    pub(super) fn item(&self, at: &Value) -> Valued {
        let Value::List(list) = self else { return Err("only a list has items".into()) };
        let index = match at {
            Value::List(all) => {
                let items: Vec<Value> =
                    all.items.iter().map(|at| self.item(at)).collect::<Result<_, _>>()?;
                let names = all.items.iter().filter_map(|at| at.text().ok().map(Rc::from));
                return Ok(Value::List(Rc::new(List { names: names.collect(), items })));
            }
            Value::Text(name) => list.names.iter().position(|known| known == name),
            at => Some(at.number()? as usize),
        };
        let missing = || format!("there is no item {}", at.shown(&Format::default()));
        index.and_then(|index| list.items.get(index)).cloned().ok_or_else(missing)
    }

    /// The item with this number of each innermost list.
    pub(super) fn inner(&self, at: usize) -> Valued {
        reduced(self, &|items| {
            items.get(at).cloned().ok_or_else(|| format!("a list has no item {at}"))
        })
    }
}

/// Applies a function to values; if some are lists, to each of their items.
pub(super) fn lifted(arguments: &[Value], on: &dyn Fn(&[Value]) -> Valued) -> Valued {
    let lists = || arguments.iter().filter(|value| value.is_list());
    let Some(first) = lists().next() else { return on(arguments) };
    let length = first.items().len();
    if let Some(other) = lists().find(|list| list.items().len() != length) {
        return Err(format!("lists of {length} and of {} items", other.items().len()));
    }
    let at = |index: usize| {
        let one = |value: &Value| {
            if value.is_list() { value.items()[index].clone() } else { value.clone() }
        };
        lifted(&arguments.iter().map(one).collect::<Vec<_>>(), on)
    };
    let items = (0..length).map(at).collect::<Result<_, _>>()?;
    let names = lists().map(Value::names).find(|names| !names.is_empty()).unwrap_or_default();
    Ok(Value::List(Rc::new(List { names: names.to_vec(), items })))
}

/// Applies a function to each innermost list; a value that is not a list counts as a list of one
/// item.
pub(super) fn reduced(value: &Value, on: &dyn Fn(&[Value]) -> Valued) -> Valued {
    match value {
        Value::List(list) if list.items.iter().any(Value::is_list) => {
            let items =
                list.items.iter().map(|item| reduced(item, on)).collect::<Result<_, _>>()?;
            Ok(Value::List(Rc::new(List { names: list.names.clone(), items })))
        }
        other => on(other.items()),
    }
}

/// An operator on two values, item by item.
pub(super) fn operate(op: Op, left: &Value, right: &Value) -> Valued {
    let one = |both: &[Value]| {
        if let (Op::Equal, Value::Text(left), Value::Text(right)) = (op, &both[0], &both[1]) {
            return Ok(Value::Truth(left == right));
        }
        let (left, right) = (both[0].number()?, both[1].number()?);
        Ok(match op {
            Op::Add => (left + right).into(),
            Op::Subtract => (left - right).into(),
            Op::Multiply => (left * right).into(),
            Op::Divide => (left / right).into(),
            Op::Remainder => (left % right).into(),
            Op::Less => (left < right).into(),
            Op::AtMost => (left <= right).into(),
            Op::Equal => (left == right).into(),
            Op::AtLeast => (left >= right).into(),
            Op::Greater => (left > right).into(),
        })
    };
    lifted(&[left.clone(), right.clone()], &one)
}

/// The format of a value in a sentence. For example, `+1%/` gives a percentage with a sign and one
/// digit, and puts `/` between the items of a list; `|; ` at the end puts `; ` between the items of
/// the outer list.
#[derive(Clone, Copy, Default)]
pub(super) struct Format<'a> {
    digits: Option<usize>,
    is_signed: bool,
    is_percentage: bool,
    between: &'a str,
    outer: &'a str,
}

impl<'a> Format<'a> {
    pub(super) fn parse(text: &'a str) -> Format<'a> {
        let (text, outer) = text.split_once('|').unwrap_or((text, ""));
        let (is_signed, text) = text.strip_prefix('+').map_or((false, text), |rest| (true, rest));
        let ends = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, text) = text.split_at(ends);
        let (is_percentage, between) =
            text.strip_prefix('%').map_or((false, text), |rest| (true, rest));
        Format { digits: digits.parse().ok(), is_signed, is_percentage, between, outer }
    }
}

impl Value {
    /// The value in words.
    pub(super) fn shown(&self, format: &Format<'_>) -> String {
        let or = |given: &str, usual: &str| if given.is_empty() { usual } else { given }.to_owned();
        match self {
            Value::Number(number) if number.is_infinite() => "never".into(),
            Value::Number(number) => {
                let (number, unit) =
                    if format.is_percentage { (100.0 * number, " %") } else { (*number, "") };
                match (format.digits, format.is_signed) {
                    (None, _) => format!("{number}{unit}"),
                    (Some(digits), false) => format!("{number:.digits$}{unit}"),
                    (Some(digits), true) => format!("{number:+.digits$}{unit}"),
                }
            }
            Value::Text(text) => text.to_string(),
            Value::Truth(truth) => truth.to_string(),
            Value::Run(_) => "a run".into(),
            Value::List(list) if !list.names.is_empty() => {
                let named = list.names.iter().zip(&list.items);
                let said = named.map(|(name, item)| format!("{name} {}", item.shown(format)));
                said.collect::<Vec<_>>().join(&or(format.outer, ", "))
            }
            Value::List(list) => {
                let between = match list.items.iter().any(Value::is_list) {
                    true => or(format.outer, ", "),
                    false => or(format.between, " "),
                };
                let said = list.items.iter().map(|item| item.shown(format));
                said.collect::<Vec<_>>().join(&between)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(of: &[f64]) -> Value {
        of.iter().copied().collect()
    }

    #[test]
    fn lists_are_joined_item_by_item_and_keep_their_names() {
        let named =
            List { names: vec!["a".into(), "b".into()], items: vec![2.0.into(), 3.0.into()] };
        let named = Value::List(Rc::new(named));
        let product = operate(Op::Multiply, &named, &numbers(&[5.0, 7.0])).unwrap();
        assert_eq!(product.shown(&Format::parse("0")), "a 10, b 21");
        assert_eq!(operate(Op::Less, &named, &2.5.into()).unwrap().truth(), Ok(false));
        let error = operate(Op::Add, &named, &numbers(&[1.0])).err().unwrap();
        assert_eq!(error, "lists of 2 and of 1 items");
        assert_eq!(named.item(&"b".into()).unwrap().number(), Ok(3.0));
        assert!(named.item(&"c".into()).is_err() && named.item(&2.0.into()).is_err());
    }

    #[test]
    fn a_value_is_shown_as_its_format_says() {
        let rows: Value = [numbers(&[0.5, 0.25]), numbers(&[1.0, 2.0])].into_iter().collect();
        let shown = |value: &Value, format| value.shown(&Format::parse(format));
        assert_eq!(shown(&rows, "2/"), "0.50/0.25, 1.00/2.00");
        assert_eq!(shown(&rows, "1|; "), "0.5 0.2; 1.0 2.0");
        assert_eq!(shown(&0.125.into(), "1%"), "12.5 %");
        assert_eq!(shown(&4.0.into(), "+0"), "+4");
        assert_eq!(shown(&f64::INFINITY.into(), "0"), "never");
    }
}
