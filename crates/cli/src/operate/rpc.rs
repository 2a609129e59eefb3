//! JSON-RPC 2.0 on lines: one request or batch a line, one answer a line.
//!
//! What a method takes is an object with named parameters, or nothing. The list of methods is data
//! ([`METHODS`]), from which `rpc.discover` answers with an OpenRPC document.

use fairq_config::refusal::Refusal;
use fairq_host::server::Reply;
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

/// One method, for those who look it up.
pub(crate) struct Method {
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) summary: &'static str,
    pub(crate) params: &'static [Param],
    /// What it gives.
    pub(crate) result: &'static str,
}

/// A named parameter.
pub(crate) struct Param {
    pub(crate) name: &'static str,
    /// Its JSON type.
    pub(crate) kind: &'static str,
    pub(crate) is_required: bool,
    pub(crate) summary: &'static str,
}

const fn required(name: &'static str, kind: &'static str, summary: &'static str) -> Param {
    Param { name, kind, is_required: true, summary }
}

const fn optional(name: &'static str, kind: &'static str, summary: &'static str) -> Param {
    Param { name, kind, is_required: false, summary }
}

/// Every method there is.
pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "rpc.discover",
        summary: "This list, as an OpenRPC document",
        params: &[],
        result: "the document",
    },
    Method {
        name: "status",
        summary: "What the server is, and what it does now",
        params: &[],
        result: "version, uptime, device, policy and its state, shards, connections, addresses",
    },
    Method {
        name: "tenants",
        summary: "The tenants: weights, ranges, what each got since the start and in the last \
         second",
        params: &[],
        result: "a list of tenants",
    },
    Method {
        name: "look",
        summary: "What `fairq top` and the web page show, as it was at the last full second",
        params: &[],
        result: "parts of status and tenants",
    },
    Method {
        name: "add",
        summary: "Adds a tenant, in a part of the device that nobody has now, or with a file of \
         its own; a part is zeroed first, and the \
                  tenant can be opened when preparing of tenants is null; requests of removed \
                  tenants that had the part or the file are waited for (waits_for in it), for 30 s \
                  at most: then the tenant is removed again",
        params: &[required(
            "tenant",
            "string",
            "as --tenant of serve has it: NAME[=SIZE][,KEY=VALUE…]; keep-data leaves what is there",
        )],
        result: "the tenant's name, size and offset",
    },
    Method {
        name: "remove",
        summary: "Removes a tenant: its connections end when what they have in flight is answered; \
         its data stay until \
                  another tenant is placed there",
        params: &[required("tenant", "string", "its name")],
        result: "the tenant's name",
    },
    Method {
        name: "weight",
        summary: "Changes a tenant's weight, for requests that come from now on",
        params: &[
            required("tenant", "string", "its name"),
            required(
                "weight",
                "string",
                "1 to 10000, or cgroup:/NAME to follow a cgroup's io.weight",
            ),
        ],
        result: "the tenant's name, and its weight before and now",
    },
    Method {
        name: "latency",
        summary: "Gives a tenant a latency target, or takes it away if none is said, from now on",
        params: &[
            required("tenant", "string", "its name"),
            optional(
                "latency",
                "string",
                "how long its requests may take from arrival to completion, as in 200us",
            ),
            optional("percentile", "number", "of which percentile, 50 to 99.9999; default 99"),
            optional(
                "floor",
                "string",
                "what all others together keep of what weights give them, 0% to 99%; default 50%",
            ),
        ],
        result: "the tenant's name, and its target before and now",
    },
    Method {
        name: "caps",
        summary: "Gives a tenant these caps instead of those it has, from now on",
        params: &[
            required("tenant", "string", "its name"),
            required(
                "caps",
                "object",
                "max-iops, read-max-iops, write-max-iops, max-bandwidth, read-max-bandwidth, \
                 write-max-bandwidth, burst: as they are written of a tenant; empty for none",
            ),
        ],
        result: "the tenant's name, and its caps before and now",
    },
    Method {
        name: "groups",
        summary: "The groups of tenants: their weights, reservations and members",
        params: &[],
        result: "a list of name, weight, effective_weight (beside all that are in no group), \
                 min_iops, min_bandwidth (0: none), members, active (how many of them are), tenants, \
                 caps (as of tenants, with what waits for them; null for none), latency",
    },
    Method {
        name: "group",
        summary: "Adds a group of tenants, or changes the keys that are named, from now on",
        params: &[
            required("group", "string", "its name, after those of the groups that it is in"),
            required(
                "keys",
                "object",
                "weight, cgroup, min-iops, min-bandwidth, caps (max-iops, ...), latency: as they \
                 are written of a group; off takes one away",
            ),
        ],
        result: "the group's name, and what it has before and now",
    },
    Method {
        name: "group.remove",
        summary: "Takes away a group that no tenant or group is in",
        params: &[required("group", "string", "its name")],
        result: "the group's name",
    },
    Method {
        name: "share",
        summary: "Changes a tenant's group or reservation, from now on",
        params: &[
            required("tenant", "string", "its name"),
            required(
                "keys",
                "object",
                "group, min-iops, min-bandwidth: as they are written of a tenant; off takes one \
                 away",
            ),
        ],
        result: "the tenant's name, and its group and reservation before and now",
    },
    Method {
        name: "clear_error",
        summary: "A tenant's flushes and FUA writes have failed since data that it wrote could not \
                  be put on stable storage (write_back_errno of tenants): they say again what the \
                  storage says",
        params: &[required("tenant", "string", "its name")],
        result: "the tenant's name, and the error that is cleared; null if there was none",
    },
    Method {
        name: "policy",
        summary: "How the device is shared: the policy, what is said of it, its state",
        params: &[],
        result: "name, description, params, state; changing_s in it as long as requests wait for \
         the policy before",
    },
    Method {
        name: "policy.set",
        summary: "Shares the device by another policy: the one in force finishes its requests, \
         those that come wait; no \
                  connection is dropped",
        params: &[required("policy", "string", "as --policy of serve has it: NAME[:KEY=VALUE,…]")],
        result: "the policy before and now, and what is written differently; it holds when \
         changing_s of policy is null",
    },
    Method {
        name: "params",
        summary: "Changes parameters of the policy, all or none; without any, lists them",
        params: &[optional("params", "string", "as behind --policy NAME: KEY=VALUE,…")],
        result: "what changed, from what, to what; or each parameter with its value and what it \
         takes",
    },
    Method {
        name: "listen",
        summary: "Listens somewhere else too",
        params: &[required("address", "string", "unix:PATH or tcp:ADDRESS:PORT")],
        result: "the address, with the port that was chosen",
    },
    Method {
        name: "unlisten",
        summary: "Listens there no more; connections made there go on",
        params: &[required("address", "string", "as it stands in status")],
        result: "the address",
    },
    Method {
        name: "interference",
        summary: "Who hurts whom: the part of each tenant's delay during which each other was \
         served, over ten seconds",
        params: &[],
        result: "for each tenant that waited, the others' parts of its delay",
    },
    Method {
        name: "config.dump",
        summary: "The configuration as it is in force: file, flags, and what was changed since",
        params: &[],
        result: "the TOML text",
    },
    Method {
        name: "config.reload",
        summary: "Reads the configuration file again and makes the server so; a bad file changes \
         nothing",
        params: &[],
        result: "what differs, from what, to what, and whether it holds now or needs a restart",
    },
    Method {
        name: "trace.start",
        summary: "Records the scheduler's decisions, the last of each shard, until trace.stop",
        params: &[
            required(
                "seconds",
                "number",
                "how long it will be, at most; a recording that is not stopped is dropped",
            ),
            optional("events", "number", "decisions that each shard keeps, up to 1048576"),
        ],
        result: "how many each shard keeps",
    },
    Method {
        name: "trace.stop",
        summary: "Ends the recording",
        params: &[],
        result: "of each shard, how much there is and how much found no room; the tenants' numbers \
         and names",
    },
    Method {
        name: "trace.read",
        summary: "What was recorded, piece by piece; after the last shard's last it is gone",
        params: &[
            required("shard", "number", "of which shard"),
            required("from", "number", "from which decision on, from 0"),
        ],
        result: "rows: time in ns, event, tenant, tag, operation, offset, bytes, class, free \
         slots, virtual time, start tag, why",
    },
    Method {
        name: "drain",
        summary: "Takes no more connections and ends when the last client has gone",
        params: &[optional(
            "now",
            "boolean",
            "end as at SIGTERM: finish what is in flight and disconnect the clients that are left",
        )],
        result: "the number of connections that are waited for",
    },
];

/// Why a call was refused.
#[derive(Debug)]
pub(crate) struct Fault {
    code: i32,
    message: String,
    is_unfinished: bool,
}

impl Fault {
    /// The server could not do it; the text says why and what to do.
    pub(crate) fn refused(text: impl ToString) -> Fault {
        Fault { code: 1, message: text.to_string(), is_unfinished: false }
    }

    /// The server has begun what was asked, and the same call gives what has come of it; the text
    /// counts if it is not made again.
    pub(crate) fn unfinished(text: impl ToString) -> Fault {
        Fault { is_unfinished: true, ..Fault::refused(text) }
    }

    /// The parameters make no sense.
    pub(crate) fn params(text: impl ToString) -> Fault {
        Fault { code: -32602, ..Fault::refused(text) }
    }

    /// There is no such method.
    pub(crate) fn no_method(name: &str) -> Fault {
        let near =
            METHODS.iter().map(|method| (strsim::jaro_winkler(method.name, name), method.name));
        let near = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.8);
        let hint = near.map_or("rpc.discover lists them".to_owned(), |(_, name)| {
            format!("did you mean {name}?")
        });
        Fault { code: -32601, ..Fault::refused(format!("there is no method {name}: {hint}")) }
    }

    /// Whether it is what was asked that is wrong, not the server that could not do it.
    pub(crate) fn is_params(&self) -> bool {
        self.code == -32602
    }

    /// What is wrong.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    fn value(&self) -> Value {
        json!({ "code": self.code, "message": self.message })
    }
}

/// Reads a method's parameters.
pub(crate) fn params<T: DeserializeOwned>(given: Value) -> Result<T, Fault> {
    // Parameters may be left out, and what takes none reads an empty object.
    let given = if given.is_null() { Value::Object(Map::new()) } else { given };
    if !given.is_object() {
        return Err(Fault::params("parameters have names: send an object"));
    }
    serde_json::from_value(given)
        .map_err(|error| Fault::params(fairq_config::pairs::explain(&error.to_string())))
}

/// Answers a line. A batch is never unfinished: its other calls must not be made twice.
pub(crate) fn answer(
    line: &str,
    mut call: impl FnMut(&str, Value) -> Result<Value, Fault>,
) -> Reply {
    let over = |answer: Value| Reply { text: Some(answer.to_string()), is_unfinished: false };
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
        Value::Array(batch) => {
            let answers: Vec<Value> =
                batch.into_iter().filter_map(|request| one(request, &mut call)).collect();
            // A batch of notifications is not answered at all, not even by an empty list.
            let text = (!answers.is_empty()).then(|| Value::Array(answers).to_string());
            Reply { text, is_unfinished: false }
        }
        request => {
            let mut is_unfinished = false;
            let answer = one(request, &mut |method, params| {
                call(method, params)
                    .inspect_err(|fault: &Fault| is_unfinished = fault.is_unfinished)
            });
            Reply { text: answer.map(|answer| answer.to_string()), is_unfinished }
        }
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

/// Carries out one request; one without an id is not answered.
fn one(
    request: Value,
    call: &mut impl FnMut(&str, Value) -> Result<Value, Fault>,
) -> Option<Value> {
    let Value::Object(mut request) = request else {
        return Some(failed(Value::Null, &invalid("this")));
    };
    let id = request.remove("id");
    let valid_id = id.as_ref().is_none_or(|id| id.is_string() || id.is_number() || id.is_null());
    let version = request.get("jsonrpc").and_then(Value::as_str) == Some("2.0");
    let (Some(Value::String(method)), true, true) = (request.get("method"), version, valid_id)
    else {
        // Section 5: an id that cannot be told is null in the answer.
        return Some(failed(id.filter(|_| valid_id).unwrap_or(Value::Null), &invalid("this")));
    };
    let result = call(&method.clone(), request.remove("params").unwrap_or(Value::Null));
    // A notification is carried out like any other call, and its error is lost.
    let id = id?;
    Some(match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(fault) => failed(id, &fault),
    })
}

/// The list of methods as an OpenRPC document.
pub(crate) fn discover() -> Value {
    let param = |param: &Param| {
        json!({
            "name": param.name,
            "summary": param.summary,
            "required": param.is_required,
            "schema": { "type": param.kind },
        })
    };
    let method = |method: &Method| {
        json!({
            "name": method.name,
            "summary": method.summary,
            "paramStructure": "by-name",
            "params": method.params.iter().map(param).collect::<Vec<_>>(),
            "result": { "name": "result", "summary": method.result, "schema": {} },
        })
    };
    json!({
        "openrpc": "1.3.2",
        "info": { "title": "fairq", "version": env!("CARGO_PKG_VERSION") },
        "methods": METHODS.iter().map(method).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, params: Value) -> Result<Value, Fault> {
        match method {
            "echo" => Ok(params),
            "discover" => Ok(discover()),
            name => Err(Fault::no_method(name)),
        }
    }

    fn ask(line: &str) -> Option<Value> {
        answer(line, call).text.map(|answer| serde_json::from_str(&answer).unwrap())
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
        assert_eq!(
            Fault::no_method("tenant").message,
            "there is no method tenant: did you mean tenants?"
        );
        assert_eq!(
            Fault::no_method("xyz").message,
            "there is no method xyz: rpc.discover lists them"
        );
    }

    #[test]
    fn a_single_call_may_be_unfinished_and_a_batch_is_not() {
        let begin = |_: &str, _| Err(Fault::unfinished("a file system does not answer"));
        let single = r#"{"jsonrpc":"2.0","id":1,"method":"add"}"#;
        let said = answer(single, begin);
        assert!(said.is_unfinished);
        let text: Value = serde_json::from_str(&said.text.unwrap()).unwrap();
        assert_eq!(text["error"]["code"], 1, "as any call that is refused");
        assert!(answer(r#"{"jsonrpc":"2.0","method":"add"}"#, begin).is_unfinished);
        assert!(!answer(&format!("[{single}]"), begin).is_unfinished);
        assert!(!answer(single, call).is_unfinished);
    }

    #[test]
    fn parameters_are_named_and_known() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct One {
            #[allow(dead_code)]
            now: Option<bool>,
        }
        let refused = |given: Value| params::<One>(given).unwrap_err();
        assert!(params::<One>(Value::Null).is_ok());
        assert_eq!(refused(json!([true])).code, -32602);
        let typo = refused(json!({ "nwo": true })).message;
        assert!(typo.contains("unknown key `nwo`; did you mean `now`?"), "{typo}");
    }

    #[test]
    fn the_list_names_each_method_once() {
        let document = discover();
        let names: Vec<_> =
            document["methods"].as_array().unwrap().iter().map(|method| &method["name"]).collect();
        assert_eq!(names.len(), METHODS.len());
        assert!((1..names.len()).all(|index| !names[..index].contains(&names[index])));
    }
}
