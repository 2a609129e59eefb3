//! The evaluation of an experiment's expressions.
//!
//! A name is a variable that a list (`for`) or a call has bound, or a value of the experiment. A
//! value is itself an expression, and may use the variables that are bound at the place of its use.
//! A result is cached in the outermost scope that binds all variables that it used, so that it is
//! computed once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use toml::{Table, Value as Toml};

use super::expression::{Expr, parse};
use super::functions::{call, filled};
use super::measures::{measure, ratios_between};
use super::planned::Planned;
use super::rules::{percents_said, row, rule};
use super::values::{Format, List, Value, Valued, lifted, operate};
use super::{LAW, Row, Setting};

/// The policies, scenarios and values of an experiment by name.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) policy: Table,
    pub(super) scenario: Table,
    pub(super) value: Table,
}

/// The scope of an expression: the tables of an experiment, its setting, and the bound variables.
pub(super) struct Scope<'a> {
    tables: &'a Tables,
    setting: Setting<'a>,
    row: Option<&'a Row>,
    /// The variable of this scope; `None` outside.
    bound: Option<(&'a str, Value)>,
    outer: Option<&'a Scope<'a>>,
    depth: usize,
    /// Cached values, each with the depths of the variables that it used.
    known: RefCell<BTreeMap<String, (Value, u64)>>,
    /// A bit for the depth of each variable that the evaluation has used.
    used: Cell<u64>,
}

impl<'a> Scope<'a> {
    pub(super) fn new(tables: &'a Tables, setting: Setting<'a>) -> Scope<'a> {
        let (known, used) = (RefCell::default(), Cell::new(0));
        Scope { tables, setting, row: None, bound: None, outer: None, depth: 0, known, used }
    }

    /// The scope of a row's own expressions, in which `@name` is a number of its rule.
    pub(super) fn of_row(&'a self, row: &'a Row) -> Scope<'a> {
        Scope { row: Some(row), outer: Some(self), ..Scope::new(self.tables, self.setting) }
    }

    fn binding(&'a self, name: &'a str, value: Value) -> Result<Scope<'a>, String> {
        if self.tables.value.contains_key(name) {
            return Err(format!("{name} is the name of a value"));
        }
        let (row, depth) = (self.row, self.depth + 1);
        let bound = Some((name, value));
        let scope = Scope::new(self.tables, self.setting);
        Ok(Scope { row, depth, bound, outer: Some(self), ..scope })
    }

    /// This scope and those around it.
    fn chain(&self) -> impl Iterator<Item = &Scope<'a>> {
        std::iter::successors(Some(self), |scope| scope.outer)
    }

    /// Records that the variables at these depths were used, except those deeper than this scope.
    fn uses(&self, depths: u64) {
        self.used.set(self.used.get() | (depths & ((2 << self.depth) - 1)));
    }

    /// Whether a scope between this one and the outer scope `keeper` binds one of the used
    /// variables again, so that the value cached in `keeper` does not apply here.
    fn rebinds(&self, keeper: &Scope<'a>, used: u64) -> bool {
        let variable = |scope: &Scope<'a>| scope.bound.as_ref().map(|(name, _)| *name);
        let inner = self.chain().take_while(|scope| scope.depth > keeper.depth);
        inner.filter_map(variable).any(|name| {
            keeper.chain().any(|of| used >> of.depth & 1 == 1 && variable(of) == Some(name))
        })
    }

    fn named(&self, name: &str) -> Valued {
        for scope in self.chain() {
            if let Some((_, value)) = scope.bound.as_ref().filter(|(bound, _)| *bound == name) {
                self.uses(1 << scope.depth);
                return Ok(value.clone());
            }
            if let Some((value, used)) = scope.known.borrow().get(name)
                && !self.rebinds(scope, *used)
            {
                self.uses(*used);
                return Ok(value.clone());
            }
        }
        let before = self.used.replace(1);
        let value = match self.tables.value.get(name) {
            Some(Toml::String(text)) => self.evaluate(text)?,
            Some(other) => self.constant(other)?,
            None => return Err(format!("nothing is called `{name}`")),
        };
        let used = self.used.get();
        let depth = used.ilog2() as usize;
        // The scope of a row has the same depth as that of the experiment, which is the outermost.
        let keeper = self.chain().filter(|scope| scope.depth == depth).last().unwrap_or(self);
        keeper.known.borrow_mut().insert(name.to_owned(), (value.clone(), used));
        self.used.set(before | used);
        Ok(value)
    }

    /// Evaluates the text of an expression.
    pub(super) fn evaluate(&self, text: &str) -> Valued {
        self.value(&parse(text)?).map_err(|what| match what.starts_with(LAW) {
            true => what,
            false => format!("{what}, in `{text}`"),
        })
    }

    /// A value of a table: a text that begins with `=` is evaluated as an expression, and any other
    /// value is used as it is.
    fn constant(&self, value: &Toml) -> Valued {
        Ok(match value {
            Toml::String(text) => text.as_str().into(),
            Toml::Integer(number) => (*number as f64).into(),
            Toml::Float(number) => (*number).into(),
            Toml::Boolean(truth) => (*truth).into(),
            Toml::Array(items) => {
                let items: Result<Vec<Value>, _> =
                    items.iter().map(|item| self.constant(item)).collect();
                items?.into_iter().collect()
            }
            Toml::Table(table) => {
                let names = table.keys().map(|name| name.as_str().into()).collect();
                let items = table.values().map(|item| self.constant(item));
                let items = items.collect::<Result<_, _>>()?;
                Value::List(Rc::new(List { names, items }))
            }
            other => return Err(format!("{other} is no value")),
        })
    }

    /// A sentence with values in place of its `{…}`.
    pub(super) fn sentence(&self, text: &str) -> Result<String, String> {
        filled(text, |inner| {
            let (expression, format) = inner.rsplit_once(':').unwrap_or((inner, ""));
            Ok(self.evaluate(expression)?.shown(&Format::parse(format)))
        })
    }

    fn value(&self, expr: &Expr) -> Valued {
        match expr {
            Expr::Number(number) => Ok((*number).into()),
            Expr::Text(text) => Ok(text.as_str().into()),
            Expr::Name(name) => self.named(name),
            Expr::Rule(name) => {
                let row = self.row.ok_or_else(|| format!("@{name} is outside of a row"))?;
                Ok(rule(&row.id, name).into())
            }
            Expr::List(items) => {
                let items: Result<Vec<Value>, _> =
                    items.iter().map(|item| self.value(item)).collect();
                Ok(items?.into_iter().collect())
            }
            Expr::Each { body, name, over, only } => self.each(body, name, over, only.as_deref()),
            Expr::Range(from, to) => {
                let (from, to) = (self.value(from)?.number()?, self.value(to)?.number()?);
                Ok((from as i64..=to as i64).map(|number| number as f64).collect())
            }
            Expr::Field(of, name) => self.field(&self.value(of)?, name),
            Expr::Index(of, at) => {
                let of = self.value(of)?;
                match &at[..] {
                    [at] => of.item(&self.value(at)?),
                    several => {
                        let several: Result<Vec<Value>, _> =
                            several.iter().map(|at| self.value(at)).collect();
                        of.item(&several?.into_iter().collect())
                    }
                }
            }
            Expr::Call(name, arguments, bound) => self.call(name, arguments, bound),
            Expr::Chain(first, others) => {
                others.iter().try_fold(self.value(first)?, |left, (op, right)| {
                    operate(*op, &left, &self.value(right)?)
                })
            }
            Expr::Compare(first, others) => {
                let (mut left, mut all) = (self.value(first)?, None);
                for (op, right) in others {
                    let right = self.value(right)?;
                    let holds = operate(*op, &left, &right)?;
                    all = Some(match all {
                        None => holds,
                        Some(all) => (Value::truth(&all)? && holds.truth()?).into(),
                    });
                    left = right;
                }
                all.ok_or_else(|| "nothing is compared".into())
            }
            // Evaluated from left to right, because the right side may be an error unless the left
            // side holds.
            Expr::And(all) => {
                let holds = all.iter().try_fold(true, |holds, one| {
                    Ok::<_, String>(holds && self.value(one)?.truth()?)
                });
                Ok(holds?.into())
            }
        }
    }

    /// The results of the body for each item, with the items as names if these are texts or have
    /// names.
    fn each(&self, body: &Expr, name: &str, over: &Expr, only: Option<&Expr>) -> Valued {
        let over = self.value(over)?;
        let (mut names, mut items) = (Vec::new(), Vec::new());
        for (number, item) in over.items().iter().enumerate() {
            let scope = self.binding(name, item.clone())?;
            let is_in = only.map_or(Ok(true), |only| scope.value(only)?.truth())?;
            if is_in {
                items.push(scope.value(body)?);
                let named = over.names().get(number).cloned();
                names.extend(named.or_else(|| item.text().ok().map(Rc::from)));
            }
            self.uses(scope.used.get());
        }
        Ok(Value::List(Rc::new(List { names, items })))
    }

    fn field(&self, of: &Value, name: &str) -> Valued {
        if let Ok(at) = name.parse() {
            return of.inner(at);
        }
        if of.names().iter().any(|known| &**known == name) {
            return of.item(&name.into());
        }
        // Records in a list.
        let has_fields = |item: &Value| !item.names().is_empty() || has_lists(item);
        if let Value::List(list) = of
            && list.items.iter().any(has_fields)
        {
            let items = list.items.iter().map(|item| self.field(item, name));
            let (names, items) = (list.names.clone(), items.collect::<Result<_, _>>()?);
            return Ok(Value::List(Rc::new(List { names, items })));
        }
        self.of_runs(std::slice::from_ref(of), &|planned, _| {
            measure(name, planned.run(self.setting)?, &planned.scenario)
        })
    }

    /// A measure of each run.
    fn of_runs(&self, arguments: &[Value], on: &dyn Fn(&Planned, &[Value]) -> Valued) -> Valued {
        lifted(arguments, &|values| match values {
            [Value::Run(planned), others @ ..] => on(planned, others),
            _ => Err("only a run has measures".into()),
        })
    }

    fn call(&self, name: &str, arguments: &[Expr], bound: &[(String, Expr)]) -> Valued {
        if let Some(((variable, value), others)) = bound.split_first() {
            let scope = self.binding(variable, self.value(value)?)?;
            let value = scope.call(name, arguments, others);
            self.uses(scope.used.get());
            return value;
        }
        let arguments: Vec<Value> =
            arguments.iter().map(|argument| self.value(argument)).collect::<Result<_, _>>()?;
        match (name, &arguments[..]) {
            ("let", [value]) => Ok(value.clone()),
            ("run", [policy, scenario]) => self.planned(policy, scenario, None),
            // One tenant alone, on its own cores or on no more than it needs.
            ("alone", [policy, scenario, tenant]) => {
                self.planned(policy, scenario, Some((tenant, false)))
            }
            ("packed", [policy, scenario, tenant]) => {
                self.planned(policy, scenario, Some((tenant, true)))
            }
            ("ratios_between", [_, from, until]) => {
                let (from, until) = (from.number()?, until.number()?);
                self.of_runs(&arguments[..1], &|planned, _| {
                    Ok(ratios_between(planned.run(self.setting)?, from, until))
                })
            }
            ("asks", [what]) => Ok(self.setting.asks_for(what.text()?).into()),
            ("number", [id, name]) => Ok(rule(id.text()?, name.text()?).into()),
            ("percents", [id]) => Ok(percents_said(id.text()?).into_iter().collect()),
            ("races", [id]) => Ok(row(id.text()?)?.races.into()),
            _ => call(name, &arguments),
        }
    }

    fn planned(&self, policy: &Value, scenario: &Value, alone: Option<(&Value, bool)>) -> Valued {
        let table = |tables: &Table, name: &Value| {
            let name = name.text()?;
            let table = tables.get(name).ok_or_else(|| format!("there is no {name}"))?;
            match self.filled(table)? {
                Toml::Table(table) => Ok::<_, String>(table),
                _ => Err(format!("{name} is no table")),
            }
        };
        let policy = table(&self.tables.policy, policy)?;
        let scenario = table(&self.tables.scenario, scenario)?;
        let planned = Planned::new(policy, scenario, self.setting)?;
        let planned = match alone {
            None => planned,
            Some((tenant, is_packed)) => planned.alone(tenant.number()? as usize, is_packed)?,
        };
        Ok(Value::Run(Rc::new(planned)))
    }

    /// A table with the values of its expressions.
    fn filled(&self, value: &Toml) -> Result<Toml, String> {
        Ok(match value {
            Toml::String(text) => match text.strip_prefix('=') {
                None => value.clone(),
                Some(expression) => as_toml(&self.evaluate(expression)?)?,
            },
            Toml::Table(table) => {
                let filled =
                    |(key, value): (&String, &Toml)| Ok((key.clone(), self.filled(value)?));
                Toml::Table(table.iter().map(filled).collect::<Result<_, String>>()?)
            }
            Toml::Array(items) => {
                let mut all = Vec::new();
                for item in items {
                    match item.get("count") {
                        None => all.push(self.filled(item)?),
                        Some(count) => self.several(item, count, &mut all)?,
                    }
                }
                Toml::Array(all)
            }
            other => other.clone(),
        })
    }

    /// Adds the tenants that a tenant with `count` stands for.
    fn several(&self, tenant: &Toml, count: &Toml, all: &mut Vec<Toml>) -> Result<(), String> {
        let count = self.filled(count)?.as_integer().ok_or("count is no number")?;
        for number in 0..count {
            let scope = self.binding("number", (number as f64).into())?;
            let mut filled = scope.filled(tenant)?;
            self.uses(scope.used.get());
            if let Toml::Table(table) = &mut filled {
                table.remove("count");
                if let Some(Toml::String(name)) = table.get_mut("name") {
                    *name += &format!(" {number}");
                }
            }
            all.push(filled);
        }
        Ok(())
    }
}

fn has_lists(value: &Value) -> bool {
    value.items().iter().any(|item| matches!(item, Value::List(_)))
}

fn as_toml(value: &Value) -> Result<Toml, String> {
    Ok(match value {
        Value::Number(number) if number.fract() == 0.0 => Toml::Integer(*number as i64),
        Value::Number(number) => Toml::Float(*number),
        Value::Text(text) => Toml::String(text.to_string()),
        Value::Truth(truth) => Toml::Boolean(*truth),
        Value::List(list) => Toml::Array(list.items.iter().map(as_toml).collect::<Result<_, _>>()?),
        Value::Run(_) => return Err("a run is no value of a table".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::setting::{Used, Varied};

    /// The sentence with the values of these expressions.
    fn said(values: &str, text: &str) -> Result<String, String> {
        let tables = Tables { value: values.parse().unwrap(), ..Tables::default() };
        let used = Used::default();
        let setting = Setting { seed: 1, varied: Varied::Nothing, used: &used, usual: None };
        Scope::new(&tables, setting).sentence(text)
    }

    #[test]
    fn a_value_is_computed_with_the_variables_of_its_place() {
        let values = "twice = \"2 * x\"\nall = \"[twice for x in [1, 5]]\"\nmost = \"max(all)\"";
        assert_eq!(
            said(values, "{all} and {most}, {[twice + y for y in [1, 2] if y > 1].0}")
                .err()
                .unwrap(),
            "nothing is called `x`, in `2 * x`, in `[twice + y for y in [1, 2] if y > 1].0`"
        );
        assert_eq!(said(values, "{all} and {most}"), Ok("2 10 and 10".into()));
        assert_eq!(
            said(values, "{[[twice + y for y in [1, 2]] for x in [3, 4]]}"),
            Ok("7 8, 9 10".into())
        );
        assert!(said(values, "{[all for most in [1]]}").unwrap_err().contains("name of a value"));
        // An inner variable hides an outer one of the same name, also for a cached value.
        assert_eq!(
            said(values, "{[[twice, [twice for x in [4]]] for x in [3]]}"),
            Ok("6, 8".into())
        );
    }

    #[test]
    fn the_right_side_of_a_condition_may_need_the_left() {
        assert_eq!(said("none = []", "{count(none) == 1 and none[0] == 2}"), Ok("false".into()));
        assert_eq!(said("few = [1, 2]", "{0 < few <= 2} {few[1..1]}"), Ok("true 2".into()));
        assert_eq!(said("rows = [{ a = 1 }, { a = 2 }]", "{rows.a}"), Ok("1 2".into()));
    }

    #[test]
    fn functions_reduce_the_innermost_lists() {
        let rows = "rows = [[1, 2, 3], [3, 1, 2]]";
        assert_eq!(
            said(rows, "{max(rows)}; {rises(rows)}; {rows.1}; {flat(rows)}"),
            Ok("3 3; true false; 2 1; 1 2 3 3 1 2".into())
        );
        assert_eq!(
            said(rows, "{first([5, 6, 7], rows > 1)}; {least(rows)}; {sums(flat(rows), 4)}"),
            Ok("6 5; 0 1; 9".into())
        );
    }
}
