//! JSON-RPC 2.0 on lines: one request or batch a line, one answer a line.
//!
//! A method takes an object with named parameters, or nothing.

use std::time::{Duration, Instant};

use fairq_config::refusal::Refusal;
use fairq_host::server::{Answer, Made, Reply};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        match refusal.is_temporary() {
            true => Fault::unfinished(refusal),
            false => Fault::refused(refusal),
        }
    }
}

/// The error of a refused call.
#[derive(Debug)]
pub(crate) struct Fault {
    code: i32,
    message: String,
    is_unfinished: bool,
}

impl Fault {
    /// The server could not carry the call out; the text has the reason and the remedy.
    pub(crate) fn refused(text: impl ToString) -> Fault {
        Fault { code: 1, message: text.to_string(), is_unfinished: false }
    }

    /// The server has begun the work, and a repeated call returns its result; clients see the text
    /// only if the call is not repeated.
    pub(crate) fn unfinished(text: impl ToString) -> Fault {
        Fault { is_unfinished: true, ..Fault::refused(text) }
    }

    /// The parameters are invalid.
    pub(crate) fn params(text: impl ToString) -> Fault {
        Fault { code: -32602, ..Fault::refused(text) }
    }

    /// There is no such method; `hint` names existing methods.
    pub(crate) fn no_method(name: &str, hint: &str) -> Fault {
        Fault { code: -32601, ..Fault::refused(format!("there is no method {name}: {hint}")) }
    }

    /// Whether the call itself is wrong; otherwise the server could not carry it out.
    pub(crate) fn is_params(&self) -> bool {
        self.code == -32602
    }

    /// Whether a repeated call returns the result later.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// The reason.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    fn value(&self) -> Value {
        json!({ "code": self.code, "message": self.message })
    }
}

/// Reads a method's parameters.
pub(crate) fn params<T: DeserializeOwned>(given: Value) -> Result<T, Fault> {
    // Parameters may be left out: then the method reads an empty object.
    let given = if given.is_null() { Value::Object(Map::new()) } else { given };
    if !given.is_object() {
        return Err(Fault::params("parameters have names: send an object"));
    }
    serde_json::from_value(given)
        .map_err(|error| Fault::params(fairq_config::pairs::explain(&error.to_string())))
}

/// The time after which the control thread interrupts a batch and serves other clients.
const TURN: Duration = Duration::from_millis(10);

/// Answers a line. A batch may be answered in several steps, so `made` has the answers of the calls
/// that are finished: a step continues after them, so that no finished call is made twice, and
/// stops at an unfinished call or after [`TURN`].
pub(crate) fn answer(
    line: &str,
    made: Made,
    mut call: impl FnMut(&str, Value) -> Result<Answer<Value>, Fault>,
) -> Reply {
    let over = |answer: Value| Reply {
        text: Some(Answer::Ready(answer.to_string())),
        is_unfinished: false,
        made: Made::new(),
    };
    let parsed: Value = match serde_json::from_str(line) {
        Ok(parsed) => parsed,
        Err(error) => {
            let text = format!("not JSON: {error}: send one request a line");
            let fault = Fault { code: -32700, ..Fault::refused(text) };
            return over(failed(Value::Null, &fault));
        }
    };
    match parsed {
        // JSON-RPC 2.0, section 6: an empty batch is answered by one error, not by a list.
        Value::Array(batch) if batch.is_empty() => {
            over(failed(Value::Null, &invalid("an empty batch")))
        }
        Value::Array(batch) => answer_batch(batch, made, call),
        request => {
            let mut is_unfinished = false;
            let answer = one(request, &mut |method, params| {
                call(method, params)
                    .inspect_err(|fault: &Fault| is_unfinished = fault.is_unfinished)
            });
            let text = answer.map(|answer| then(answer, |it| it.to_string()));
            Reply { text, is_unfinished, made }
        }
    }
}

fn answer_batch(
    batch: Vec<Value>,
    mut made: Made,
    mut call: impl FnMut(&str, Value) -> Result<Answer<Value>, Fault>,
) -> Reply {
    let began = Instant::now();
    let (before, mut over) = (made.len(), made.len());
    let mut is_unfinished = false;
    for request in batch.into_iter().skip(before) {
        let answer = one(request, &mut |method, params| {
            // A turn makes at least one call.
            is_unfinished |= over > before && began.elapsed() > TURN;
            if is_unfinished {
                let text = "not made: an earlier call of the batch is not finished";
                return Err(Fault::refused(text));
            }
            call(method, params).inspect_err(|fault| is_unfinished = fault.is_unfinished)
        });
        made.push(answer.map(|answer| answer.now().to_string()));
        over += usize::from(!is_unfinished);
    }
    // A batch of notifications is not answered at all, not even by an empty list.
    let answers: Vec<&str> = made.iter().flatten().map(String::as_str).collect();
    let text = (!answers.is_empty()).then(|| Answer::Ready(format!("[{}]", answers.join(","))));
    made.truncate(over);
    Reply { text, is_unfinished, made }
}

/// Converts an answer by `make`, in the thread that formats the answer.
fn then<T, U>(answer: Answer<T>, make: impl FnOnce(T) -> U + Send + 'static) -> Answer<U>
where
    T: 'static,
    U: 'static,
{
    match answer {
        Answer::Ready(answer) => Answer::Ready(make(answer)),
        Answer::Later(first) => Answer::Later(Box::new(move || make(first()))),
    }
}

fn invalid(text: &str) -> Fault {
    let text = format!(
        "{text} is not a request: send {{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \
         \"status\"}}, for example"
    );
    Fault { code: -32600, ..Fault::refused(text) }
}

fn failed(id: Value, fault: &Fault) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": fault.value() })
}

/// Carries out one request; a request without an id has no answer.
fn one(
    request: Value,
    call: &mut impl FnMut(&str, Value) -> Result<Answer<Value>, Fault>,
) -> Option<Answer<Value>> {
    let Value::Object(mut request) = request else {
        return Some(Answer::Ready(failed(Value::Null, &invalid("this"))));
    };
    let id = request.remove("id");
    let valid_id = id.as_ref().is_none_or(|id| id.is_string() || id.is_number() || id.is_null());
    let version = request.get("jsonrpc").and_then(Value::as_str) == Some("2.0");
    let (Some(Value::String(method)), true, true) = (request.get("method"), version, valid_id)
    else {
        // Section 5: an id that cannot be read is null in the answer.
        let id = id.filter(|_| valid_id).unwrap_or(Value::Null);
        return Some(Answer::Ready(failed(id, &invalid("this"))));
    };
    let result = call(&method.clone(), request.remove("params").unwrap_or(Value::Null));
    // A notification is carried out like any other call, but its error is dropped.
    let id = id?;
    Some(match result {
        Ok(result) => {
            then(result, move |result| json!({ "jsonrpc": "2.0", "id": id, "result": result }))
        }
        Err(fault) => Answer::Ready(failed(id, &fault)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, params: Value) -> Result<Answer<Value>, Fault> {
        match method {
            "echo" => Ok(Answer::Later(Box::new(|| params))),
            name => Err(Fault::no_method(name, "there is echo")),
        }
    }

    fn ask(line: &str) -> Option<Value> {
        answer(line, Made::new(), call)
            .text
            .map(|answer| serde_json::from_str(&answer.now()).unwrap())
    }

    fn code(line: &str) -> i64 {
        ask(line).unwrap()["error"]["code"].as_i64().unwrap()
    }

    #[test]
    fn requests_are_answered_by_the_rules() {
        let echo = ask(r#"{"jsonrpc":"2.0","id":"x","method":"echo","params":{"a":1}}"#).unwrap();
        assert_eq!(echo, json!({ "jsonrpc": "2.0", "id": "x", "result": { "a": 1 } }));
        assert_eq!(ask(r#"{"jsonrpc":"2.0","method":"echo"}"#), None, "a notification");
        assert_eq!(ask(r#"[{"jsonrpc":"2.0","method":"echo"}]"#), None);
        let batch =
            r#"[{"jsonrpc":"2.0","id":1,"method":"echo"},{"jsonrpc":"2.0","method":"echo"},1]"#;
        let batch = ask(batch).unwrap();
        assert_eq!(
            (batch.as_array().unwrap().len(), &batch[0]["id"], &batch[1]["id"]),
            (2, &json!(1), &Value::Null)
        );
        assert_eq!(code("{"), -32700);
        assert_eq!(code("[]"), -32600);
        assert_eq!(code(r#"{"id":1,"method":"echo"}"#), -32600, "no version");
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":{},"method":"echo"}"#), -32600);
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":"tenant"}"#), -32601);
    }

    #[test]
    fn an_unfinished_call_is_made_again_and_none_that_is_over() {
        let begin = |_: &str, _| Err(Fault::unfinished("a file system does not answer"));
        let single = r#"{"jsonrpc":"2.0","id":1,"method":"add"}"#;
        let said = answer(single, Made::new(), begin);
        assert!(said.is_unfinished);
        let text: Value = serde_json::from_str(&said.text.unwrap().now()).unwrap();
        assert_eq!(text["error"]["code"], 1, "as any call that is refused");
        let notification = r#"{"jsonrpc":"2.0","method":"add"}"#;
        assert!(answer(notification, Made::new(), begin).is_unfinished);
        assert!(!answer(single, Made::new(), call).is_unfinished);
        // The first and the third call of a batch finish at once, the second in the third round.
        let (mut calls, mut rounds) = (Vec::new(), 0);
        let request = |id: u32| json!({ "jsonrpc": "2.0", "id": id, "method": format!("m{id}") });
        let batch = json!([request(1), request(2), request(3)]).to_string();
        let mut made = Made::new();
        let text = loop {
            rounds += 1;
            let said = answer(&batch, made, |method, _| {
                calls.push(method.to_owned());
                match method {
                    "m2" if rounds < 3 => Err(Fault::unfinished("not yet")),
                    _ => Ok(Answer::Ready(json!(rounds))),
                }
            });
            made = said.made;
            let text: Value = serde_json::from_str(&said.text.unwrap().now()).unwrap();
            if !said.is_unfinished {
                break text;
            }
            assert_eq!((&text[0]["result"], &text[1]["error"]["code"]), (&json!(1), &json!(1)));
            assert!(text[2]["error"]["message"].as_str().unwrap().starts_with("not made"));
        };
        assert_eq!(calls, ["m1", "m2", "m2", "m2", "m3"]);
        let results = text.as_array().unwrap().iter().map(|one| one["result"].clone());
        assert_eq!(results.collect::<Vec<_>>(), [json!(1), json!(3), json!(3)]);
    }
}
