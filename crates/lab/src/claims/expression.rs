//! The expressions of the experiments' tables: arithmetic and comparisons of measures.
//!
//! ```text
//! max(BFQ.off) <= @off                      a measure of a run, and a number of the row's rule
//! none.iops > MQFQ.iops > BFQ.iops          runs in a row are compared in order
//! [run('none', 'ssd') for depth in 1..16]   a list, each item with another `depth`
//! ```
//!
//! An expression has no side effects and cannot define functions: `values` has the operators on
//! lists, `functions` the functions, and `measures` the measures.

/// A parsed expression.
#[derive(Clone, Debug)]
pub(super) enum Expr {
    Number(f64),
    Text(String),
    /// A bound variable or a named value.
    Name(String),
    /// `@name`: a number of the row's rule.
    Rule(String),
    List(Vec<Expr>),
    /// `[body for name in over if only]`.
    Each {
        body: Box<Expr>,
        name: String,
        over: Box<Expr>,
        only: Option<Box<Expr>>,
    },
    /// `a..b`: whole numbers, both ends included.
    Range(Box<Expr>, Box<Expr>),
    /// `of.name`.
    Field(Box<Expr>, String),
    /// `of[at]`, or several items: `of[at, at]`.
    Index(Box<Expr>, Vec<Expr>),
    /// `name(arguments, bound = value)`.
    Call(String, Vec<Expr>, Vec<(String, Expr)>),
    /// Operators of one kind, from left to right.
    Chain(Box<Expr>, Vec<(Op, Expr)>),
    /// `a < b <= c`.
    Compare(Box<Expr>, Vec<(Op, Expr)>),
    /// Conditions that all have to hold.
    And(Vec<Expr>),
}

/// An operator of two values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Less,
    AtMost,
    Equal,
    AtLeast,
    Greater,
}

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Number(f64),
    Text(String),
    Word(String),
    Sign(&'static str),
}

/// Longer signs come first, because `<` is the beginning of `<=`.
const SIGNS: [&str; 19] = [
    "..", "<=", ">=", "==", "<", ">", "=", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",", ".",
    "@",
];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = |is: fn(char) -> bool| rest.find(|c| !is(c)).unwrap_or(rest.len());
        let used;
        if first.is_ascii_digit() {
            let whole = length(|c| c.is_ascii_digit());
            let behind = rest[whole..].strip_prefix('.').unwrap_or_default();
            let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
            // A `.` without a digit behind it belongs to a field or a range.
            let ends = if digits > 0 { whole + 1 + digits } else { whole };
            let exponent = rest[ends..].strip_prefix('e').unwrap_or_default();
            let digits = exponent.find(|c: char| !c.is_ascii_digit()).unwrap_or(exponent.len());
            used = if digits > 0 { ends + 1 + digits } else { ends };
            let number = rest[..used].parse().map_err(|_| format!("{text}: no number"))?;
            found.push(Token::Number(number));
        } else if first.is_alphabetic() {
            used = length(|c| c.is_alphanumeric() || c == '_');
            found.push(Token::Word(rest[..used].to_owned()));
        } else if first == '\'' {
            let ends = rest[1..].find('\'').ok_or_else(|| format!("{text}: a text has no end"))?;
            used = ends + 2;
            found.push(Token::Text(rest[1..=ends].to_owned()));
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| format!("{text}: `{first}` is no sign"))?;
            used = sign.len();
            found.push(Token::Sign(sign));
        }
        rest = rest[used..].trim_start();
    }
    Ok(found)
}

/// Parses an expression.
pub(super) fn parse(text: &str) -> Result<Expr, String> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let parsed = parser.whole().map_err(|what| format!("`{text}`: {what}"))?;
    match parser.tokens.get(parser.at) {
        None => Ok(parsed),
        Some(token) => Err(format!("`{text}`: {token:?} is too much")),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

type Parsed = Result<Expr, String>;

impl Parser {
    fn take(&mut self, wanted: &Token) -> bool {
        let is_there = self.tokens.get(self.at) == Some(wanted);
        self.at += usize::from(is_there);
        is_there
    }

    fn sign(&mut self, sign: &'static str) -> bool {
        self.take(&Token::Sign(sign))
    }

    fn word(&mut self, word: &str) -> bool {
        self.take(&Token::Word(word.to_owned()))
    }

    fn demand(&mut self, sign: &'static str) -> Result<(), String> {
        if self.sign(sign) { Ok(()) } else { Err(format!("`{sign}` is missing")) }
    }

    fn name(&mut self) -> Result<String, String> {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word.clone())
            }
            other => Err(format!("a name is missing before {other:?}")),
        }
    }

    /// Consumes the next operator, if it is one of these.
    fn operator(&mut self, of: &[(&'static str, Op)]) -> Option<Op> {
        of.iter().find(|(sign, _)| self.sign(sign)).map(|(_, op)| *op)
    }

    fn whole(&mut self) -> Parsed {
        let mut all = vec![self.compared()?];
        while self.word("and") {
            all.push(self.compared()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::And(all) })
    }

    fn compared(&mut self) -> Parsed {
        const OPS: [(&str, Op); 5] = [
            ("<=", Op::AtMost),
            (">=", Op::AtLeast),
            ("==", Op::Equal),
            ("<", Op::Less),
            (">", Op::Greater),
        ];
        let first = self.range()?;
        let mut others = Vec::new();
        while let Some(op) = self.operator(&OPS) {
            others.push((op, self.range()?));
        }
        Ok(if others.is_empty() { first } else { Expr::Compare(Box::new(first), others) })
    }

    fn range(&mut self) -> Parsed {
        let from = self.sum()?;
        if !self.sign("..") {
            return Ok(from);
        }
        Ok(Expr::Range(Box::new(from), Box::new(self.sum()?)))
    }

    fn sum(&mut self) -> Parsed {
        self.chain(&[("+", Op::Add), ("-", Op::Subtract)], Parser::product)
    }

    fn product(&mut self) -> Parsed {
        let of = [("*", Op::Multiply), ("/", Op::Divide), ("%", Op::Remainder)];
        self.chain(&of, Parser::signed)
    }

    fn chain(&mut self, of: &[(&'static str, Op)], next: fn(&mut Parser) -> Parsed) -> Parsed {
        let first = next(self)?;
        let mut others = Vec::new();
        while let Some(op) = self.operator(of) {
            others.push((op, next(self)?));
        }
        Ok(if others.is_empty() { first } else { Expr::Chain(Box::new(first), others) })
    }

    fn signed(&mut self) -> Parsed {
        if self.sign("-") {
            let zero = Box::new(Expr::Number(0.0));
            return Ok(Expr::Chain(zero, vec![(Op::Subtract, self.signed()?)]));
        }
        let mut of = self.primary()?;
        loop {
            if self.sign(".") {
                let name = match self.tokens.get(self.at) {
                    Some(Token::Number(at)) => at.to_string(),
                    Some(Token::Word(word)) => word.clone(),
                    other => return Err(format!("a field is missing before {other:?}")),
                };
                self.at += 1;
                of = Expr::Field(Box::new(of), name);
            } else if self.sign("[") {
                of = Expr::Index(Box::new(of), self.items("]")?);
            } else {
                return Ok(of);
            }
        }
    }

    fn items(&mut self, end: &'static str) -> Result<Vec<Expr>, String> {
        let mut items = Vec::new();
        while !self.sign(end) {
            items.push(self.whole()?);
            if !self.sign(",") {
                self.demand(end)?;
                break;
            }
        }
        Ok(items)
    }

    fn primary(&mut self) -> Parsed {
        let token = self.tokens.get(self.at).cloned().ok_or("it ends too early")?;
        self.at += 1;
        match token {
            Token::Number(number) => Ok(Expr::Number(number)),
            Token::Text(text) => Ok(Expr::Text(text)),
            Token::Word(name) if self.sign("(") => self.call(name),
            Token::Word(name) => Ok(Expr::Name(name)),
            Token::Sign("@") => Ok(Expr::Rule(self.name()?)),
            Token::Sign("(") => {
                let inner = self.whole()?;
                self.demand(")")?;
                Ok(inner)
            }
            Token::Sign("[") => self.list(),
            Token::Sign(sign) => Err(format!("`{sign}` begins no value")),
        }
    }

    fn call(&mut self, name: String) -> Parsed {
        let (mut arguments, mut bound) = (Vec::new(), Vec::new());
        while !self.sign(")") {
            match (self.tokens.get(self.at), self.tokens.get(self.at + 1)) {
                (Some(Token::Word(name)), Some(Token::Sign("="))) => {
                    let name = name.clone();
                    self.at += 2;
                    bound.push((name, self.whole()?));
                }
                _ => arguments.push(self.whole()?),
            }
            if !self.sign(",") {
                self.demand(")")?;
                break;
            }
        }
        Ok(Expr::Call(name, arguments, bound))
    }

    fn list(&mut self) -> Parsed {
        if self.sign("]") {
            return Ok(Expr::List(Vec::new()));
        }
        let first = self.whole()?;
        if self.word("for") {
            let name = self.name()?;
            if !self.word("in") {
                return Err("`in` is missing".into());
            }
            let over = Box::new(self.whole()?);
            let only = if self.word("if") { Some(Box::new(self.whole()?)) } else { None };
            self.demand("]")?;
            return Ok(Expr::Each { body: Box::new(first), name, over, only });
        }
        let mut items = vec![first];
        if self.sign(",") {
            items.extend(self.items("]")?);
        } else {
            self.demand("]")?;
        }
        Ok(Expr::List(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_expression_is_refused_with_its_text() {
        for (text, why) in [
            ("1 +", "ends too early"),
            ("(1", "`)` is missing"),
            ("[x for x of y]", "`in` is missing"),
            ("a b", "is too much"),
            ("'a", "a text has no end"),
            ("a ? b", "`?` is no sign"),
            ("x.*", "a field is missing"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_point_is_of_a_number_a_field_or_a_range() {
        assert!(matches!(parse("1.5"), Ok(Expr::Number(1.5))));
        assert!(matches!(parse("2e3"), Ok(Expr::Number(2000.0))));
        assert!(matches!(parse("x.0"), Ok(Expr::Field(_, name)) if name == "0"));
        assert!(matches!(parse("0..3"), Ok(Expr::Range(..))));
        assert!(matches!(parse("a.b < c <= d"), Ok(Expr::Compare(_, others)) if others.len() == 2));
    }
}
