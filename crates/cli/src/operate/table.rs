//! The methods of the control socket: each is defined here, once.
//!
//! An entry of [`METHODS`] has a method's name, its parameters and its function. Everything else
//! follows from it: the refusal of wrong calls, `rpc.discover`, the log, and the choice of answers
//! that other threads make. A command line of `fairq ctl` is a variant of
//! [`CtlCommand`](crate::args::CtlCommand) whose fields are the parameters; a test compares each
//! with this table.

use fairq_config::pairs::explain;
use fairq_host::server::{Admin, Answer};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::Console;
use super::overview::{Snapshot, json_of};
use super::reload::ReloadOptions;
use super::rpc::Fault;
use super::storage::clear_error;

/// One method.
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) effect: Effect,
    pub(crate) summary: &'static str,
    pub(crate) params: &'static [Param],
    /// The fields of the method's answer, in words.
    pub(crate) result: &'static str,
    run: Run,
}

/// A function that formats the answer of a method, for another thread.
type Rest = Box<dyn FnOnce() -> Value + Send>;

/// The function of a method, by the thread that runs it.
enum Run {
    /// The control thread runs all of it.
    Does(fn(&mut Console, &mut dyn Admin, Given) -> Result<Value, Fault>),
    /// The control thread carries the call out, and another thread formats the answer.
    Begins(fn(&mut Console, &mut dyn Admin, Given) -> Result<Rest, Fault>),
    /// Another thread formats the answer from a copy of the server's state.
    Shows(fn(&Snapshot) -> Value),
    /// Another thread formats the answer once a second, for all callers.
    Looks,
}

/// The effect of a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// The method changes nothing.
    Reads,
    /// The method changes the server; its call is logged.
    Changes,
    /// The method changes the server if a parameter is given; otherwise it only reads.
    ChangesIfGiven,
    /// The method changes the server, and logs each change itself.
    Reloads,
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

/// The parameters of a call: only those that the method defines, and all that it requires.
pub(crate) struct Given(Map<String, Value>);

impl Given {
    /// A parameter, read as a `T`; an optional one is read as an `Option`.
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Fault> {
        serde_json::from_value(self.0.remove(name).unwrap_or_default()).map_err(|error| {
            let text = explain(&error.to_string());
            // Errors of keys and units name the key; errors of JSON types do not.
            let is_bare = text.starts_with("invalid type") || text.starts_with("invalid value");
            Fault::params(if is_bare { format!("`{name}`: {text}") } else { text })
        })
    }

    fn text(&mut self, name: &str) -> Result<String, Fault> {
        self.take(name)
    }
}

impl Method {
    /// The method of this name.
    pub(crate) fn named(name: &str) -> Result<&'static Method, Fault> {
        METHODS.iter().find(|method| method.name == name).ok_or_else(|| {
            let likeness = |method: &Method| strsim::jaro_winkler(method.name, name);
            let near = METHODS.iter().map(|method| (likeness(method), method.name));
            let near = near.max_by(|a, b| a.0.total_cmp(&b.0));
            match near.filter(|(likeness, _)| *likeness > 0.8) {
                Some((_, near)) => Fault::no_method(name, &format!("did you mean {near}?")),
                None => Fault::no_method(name, "rpc.discover lists them"),
            }
        })
    }

    /// Refuses parameters that the method does not define, and calls without a required one.
    pub(crate) fn given(&self, params: Value) -> Result<Given, Fault> {
        let params = match params {
            Value::Null => Map::new(),
            Value::Object(params) => params,
            _ => return Err(Fault::params("parameters have names: send an object")),
        };
        let names = || self.params.iter().map(|param| param.name);
        if let Some(unknown) = params.keys().find(|key| names().all(|name| name != *key)) {
            let all: Vec<String> = names().map(|name| format!("`{name}`")).collect();
            let text = match all.is_empty() {
                true => format!("unknown key `{unknown}`: {} takes no parameters", self.name),
                false => {
                    explain(&format!("unknown field `{unknown}`, expected {}", all.join(", ")))
                }
            };
            return Err(Fault::params(text));
        }
        let missing = |param: &&Param| param.is_required && !params.contains_key(param.name);
        match self.params.iter().find(missing) {
            Some(param) => Err(Fault::params(format!("`{}` is missing", param.name))),
            None => Ok(Given(params)),
        }
    }
}

/// The list of methods as an OpenRPC document.
fn discover() -> Value {
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

impl Console {
    /// Carries out a call of the control socket. A change is logged.
    pub(super) fn call_method(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        params: Value,
    ) -> Result<Answer<Value>, Fault> {
        let method = Method::named(name)?;
        let text = params.to_string();
        let given = method.given(params)?;
        let is_logged = match method.effect {
            Effect::Reads | Effect::Reloads => false,
            Effect::Changes => true,
            Effect::ChangesIfGiven => !given.0.is_empty(),
        };
        let result = match method.run {
            Run::Does(run) => run(self, admin, given).map(Answer::Ready),
            Run::Begins(run) => run(self, admin, given).map(Answer::Later),
            Run::Shows(show) => {
                let snapshot = self.snapshot(admin);
                return Ok(Answer::Later(Box::new(move || show(&snapshot))));
            }
            Run::Looks => {
                let shared = self.viewed(admin);
                return Ok(Answer::Later(Box::new(move || shared.look().clone())));
            }
        };
        // An unfinished call has changed nothing yet.
        if method.effect != Effect::Reads && !result.as_ref().is_err_and(Fault::is_unfinished) {
            self.drop_snapshots();
        }
        if let (true, Ok(Answer::Ready(result))) = (is_logged, &result) {
            tracing::info!(method = name, params = text, %result, "changed by the control socket");
        }
        result
    }
}

/// All methods.
pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "rpc.discover",
        effect: Effect::Reads,
        summary: "This list, as an OpenRPC document",
        params: &[],
        result: "the document",
        run: Run::Does(|_, _, _| Ok(discover())),
    },
    Method {
        name: "status",
        effect: Effect::Reads,
        summary: "The server's configuration and its present state",
        params: &[],
        result: "version, uptime, device, policy and its state, shards, connections, addresses",
        run: Run::Shows(|snapshot| json_of(&snapshot.status())),
    },
    Method {
        name: "tenants",
        effect: Effect::Reads,
        summary: "The tenants: weights, ranges, and the service of each since the start and in the \
                  last second",
        params: &[],
        result: "a list of tenants",
        run: Run::Shows(|snapshot| json_of(&snapshot.tenants(usize::MAX))),
    },
    Method {
        name: "look",
        effect: Effect::Reads,
        summary: "The view of `fairq top` and the web page, as it was at the last full second",
        params: &[],
        result: "parts of status and tenants",
        run: Run::Looks,
    },
    Method {
        name: "add",
        effect: Effect::Changes,
        summary: "Adds a tenant, in a free part of the device or with a file of its own. A part of \
                  the device is zeroed first; the tenant can be opened when its field preparing \
                  (see tenants) is null. The server first waits for requests of removed tenants \
                  that had the part or the file (waits_for in preparing), for at most 30 s; then \
                  it removes the tenant again",
        params: &[required(
            "tenant",
            "string",
            "NAME[=SIZE][,KEY=VALUE…], as for serve --tenant; keep-data: no zeroing",
        )],
        result: "the tenant's name, size and offset; its table for the configuration file, and \
                 that file's path",
        run: Run::Does(|console, admin, mut given| console.add(admin, &given.text("tenant")?)),
    },
    Method {
        name: "remove",
        effect: Effect::Changes,
        summary: "Removes a tenant: its connections end when their requests in flight are \
                  answered; its data stay until another tenant gets the range",
        params: &[
            required("tenant", "string", "its name"),
            optional(
                "keep",
                "boolean",
                "its range and data stay reserved for a tenant of this name that is added later",
            ),
        ],
        result: "the tenant's name, and whether its data are kept",
        run: Run::Does(|console, admin, mut given| {
            let keep = given.take::<Option<bool>>("keep")? == Some(true);
            console.remove(admin, &given.text("tenant")?, keep)
        }),
    },
    Method {
        name: "rename",
        effect: Effect::Changes,
        summary: "Gives a tenant another name; its clients and its data stay",
        params: &[
            required("tenant", "string", "its name"),
            required("name", "string", "the new name"),
        ],
        result: "the name before and now",
        run: Run::Does(|console, admin, mut given| {
            console.rename(admin, &given.text("tenant")?, &given.text("name")?)
        }),
    },
    Method {
        name: "resize",
        effect: Effect::Changes,
        summary: "Changes a tenant's size: its range grows into the free space behind it, which is \
                  zeroed first. The tenant's field resizing (see tenants) is null when this is \
                  done. Clients see the new size when they connect again; the field outdated \
                  counts the connections that have not",
        params: &[
            required("tenant", "string", "its name"),
            required("size", "string", "the new size"),
            optional("discard", "boolean", "allow a smaller size: data behind it are lost"),
        ],
        result: "the tenant's name, and its size before and now",
        run: Run::Does(|console, admin, mut given| {
            let discard = given.take::<Option<bool>>("discard")? == Some(true);
            console.resize(admin, &given.text("tenant")?, given.take("size")?, discard)
        }),
    },
    Method {
        name: "weight",
        effect: Effect::Changes,
        summary: "Changes a tenant's weight, for all requests that arrive later",
        params: &[
            required("tenant", "string", "its name"),
            required(
                "weight",
                "string",
                "1 to 10000, or cgroup:/NAME to follow a cgroup's io.weight",
            ),
        ],
        result: "the tenant's name, and its weight before and now",
        run: Run::Does(|console, admin, mut given| {
            console.weight(admin, &given.text("tenant")?, given.take("weight")?)
        }),
    },
    Method {
        name: "latency",
        effect: Effect::Changes,
        summary: "Sets a tenant's latency target, or removes it if none is given",
        params: &[
            required("tenant", "string", "its name"),
            optional(
                "latency",
                "string",
                "the longest time from a request's arrival to its completion, as in 200us",
            ),
            optional(
                "percentile",
                "number",
                "the percentile of requests that must meet the target, 50 to 99.9999; default 99",
            ),
            optional(
                "floor",
                "string",
                "the part of their shares that all others together keep, 0% to 99%; default 50%",
            ),
        ],
        result: "the tenant's name, and its target before and now",
        run: Run::Does(|console, admin, mut given| {
            let target = (given.take("latency")?, given.take("percentile")?, given.take("floor")?);
            console.set_latency(admin, &given.text("tenant")?, target)
        }),
    },
    Method {
        name: "caps",
        effect: Effect::Changes,
        summary: "Replaces a tenant's caps",
        params: &[
            required("tenant", "string", "its name"),
            required(
                "caps",
                "object",
                "max-iops, read-max-iops, write-max-iops, max-bandwidth, read-max-bandwidth, \
                 write-max-bandwidth, burst: as in a tenant's table; empty for none",
            ),
        ],
        result: "the tenant's name, its caps before and now, and a warning if requests may wait \
                 for the caps longer than the clients' timeouts",
        run: Run::Does(|console, admin, mut given| {
            console.caps(admin, &given.text("tenant")?, given.take("caps")?)
        }),
    },
    Method {
        name: "groups",
        effect: Effect::Reads,
        summary: "The groups of tenants: their weights, reservations and members",
        params: &[],
        result: "a list of name, weight, effective_weight (relative to the tenants and groups in \
                 no group), min_iops, min_bandwidth (0: none), members, active (the number of \
                 active members), tenants, caps (as in tenants, with the number of waiting \
                 requests; null for none), latency",
        run: Run::Shows(|snapshot| json_of(&snapshot.groups())),
    },
    Method {
        name: "group",
        effect: Effect::Changes,
        summary: "Adds a group of tenants, or changes the given keys of an existing one",
        params: &[
            required("group", "string", "its name, with the names of its outer groups before it"),
            required(
                "keys",
                "object",
                "weight, cgroup, min-iops, min-bandwidth, caps (max-iops, ...), latency: as in a \
                 group's table; off removes a key",
            ),
        ],
        result: "the group's name, and its settings before and now",
        run: Run::Does(|console, admin, mut given| {
            console.group(admin, &given.text("group")?, &given.take("keys")?)
        }),
    },
    Method {
        name: "group.remove",
        effect: Effect::Changes,
        summary: "Removes a group without members",
        params: &[required("group", "string", "its name")],
        result: "the group's name",
        run: Run::Does(|console, admin, mut given| {
            console.remove_group(admin, &given.text("group")?)
        }),
    },
    Method {
        name: "share",
        effect: Effect::Changes,
        summary: "Changes a tenant's group or reservation",
        params: &[
            required("tenant", "string", "its name"),
            required(
                "keys",
                "object",
                "group, min-iops, min-bandwidth: as in a tenant's table; off removes a key",
            ),
        ],
        result: "the tenant's name, and its group and reservation before and now",
        run: Run::Does(|console, admin, mut given| {
            console.share(admin, &given.text("tenant")?, &given.take("keys")?)
        }),
    },
    Method {
        name: "update",
        effect: Effect::Changes,
        summary: "Changes keys of a tenant",
        params: &[
            required("tenant", "string", "its name"),
            required(
                "keys",
                "object",
                "keys of a tenant and their values, as in its table; off removes a key. Keys that \
                 clients read when they connect need a restart",
            ),
        ],
        result: "the tenant's name, the keys that differ with the old and the new value, and a warning \
                 if clients may wait longer than their timeouts for a cap",
        run: Run::Does(|console, admin, mut given| {
            console.set(admin, &given.text("tenant")?, &given.take("keys")?)
        }),
    },
    Method {
        name: "clear_error",
        effect: Effect::Changes,
        summary: "Lets a tenant's flushes and FUA writes succeed again after data that it wrote \
                  could not be put on stable storage (write_back_errno of tenants)",
        params: &[required("tenant", "string", "its name")],
        result: "the tenant's name, and the error that is cleared; null if there was none",
        run: Run::Does(|_, admin, mut given| clear_error(admin, &given.text("tenant")?)),
    },
    Method {
        name: "policy",
        effect: Effect::Reads,
        summary: "The policy by which the device is shared, its parameters and its state",
        params: &[],
        result: "name, description, params, state; changing_s is not null while requests wait for \
                 the previous policy to finish",
        run: Run::Does(|console, admin, _| Ok(console.policy(admin))),
    },
    Method {
        name: "policy.set",
        effect: Effect::Changes,
        summary: "Replaces the policy: the present policy finishes its requests, and new requests \
                  wait until then; no connection is dropped",
        params: &[required("policy", "string", "as for serve --policy: NAME[:KEY=VALUE,…]")],
        result: "the policy before and now, and the keys that differ; the new policy is in force \
                 when changing_s (see policy) is null",
        run: Run::Does(|console, admin, mut given| {
            console.set_policy(admin, &given.text("policy")?)
        }),
    },
    Method {
        name: "params",
        effect: Effect::ChangesIfGiven,
        summary: "Changes parameters of the policy, all or none; without any, lists them",
        params: &[optional("params", "string", "KEY=VALUE,…, as for serve --policy")],
        result: "the changed parameters with the old and the new value; or each parameter with its \
                 value and range",
        run: Run::Does(|console, admin, mut given| {
            match given.take::<Option<String>>("params")? {
                Some(text) if !text.is_empty() => console.params(admin, &text),
                _ => Ok(json!({ "params": console.parameters() })),
            }
        }),
    },
    Method {
        name: "listen",
        effect: Effect::Changes,
        summary: "Also listens at another address",
        params: &[required("address", "string", "unix:PATH or tcp:ADDRESS:PORT")],
        result: "the address, with the port that the kernel chose for port 0",
        run: Run::Does(|console, admin, mut given| console.listen(admin, &given.text("address")?)),
    },
    Method {
        name: "unlisten",
        effect: Effect::Changes,
        summary: "Stops listening at an address; connections made there go on",
        params: &[required("address", "string", "as in status")],
        result: "the address",
        run: Run::Does(|console, admin, mut given| {
            console.unlisten(admin, &given.text("address")?)
        }),
    },
    Method {
        name: "interference",
        effect: Effect::Reads,
        summary: "For each tenant, the part of its delay during which each other tenant was \
                  served, over the last ten seconds",
        params: &[],
        result: "for each tenant that waited, the others' parts of its delay",
        run: Run::Shows(|snapshot| json_of(&snapshot.interference())),
    },
    Method {
        name: "config.dump",
        effect: Effect::Reads,
        summary: "The configuration in force: the file, the flags, and later changes",
        params: &[],
        result: "the TOML text",
        run: Run::Does(|console, admin, _| {
            toml::to_string(&console.in_force(admin)).map(Value::from).map_err(Fault::refused)
        }),
    },
    Method {
        name: "config.reload",
        effect: Effect::Reloads,
        summary: "Reads the configuration file again and changes the server accordingly; an \
                  invalid file changes nothing; a tenant that the file does not name stays",
        params: &[
            optional("remove", "array", "tenants to remove, which the file does not name"),
            optional("dry_run", "boolean", "change nothing, only return the changes"),
        ],
        result: "the keys that differ, with the old and the new value, and whether each is in \
                 force now, needs a restart, or needs the step in its note",
        run: Run::Begins(|console, admin, mut given| {
            let remove = given.take::<Option<_>>("remove")?.unwrap_or_default();
            let dry_run = given.take::<Option<bool>>("dry_run")? == Some(true);
            let outcome = console.reload_file(admin, &ReloadOptions { remove, dry_run })?;
            Ok(Box::new(move || json!({ "changes": outcome.changes() })))
        }),
    },
    Method {
        name: "trace.start",
        effect: Effect::Reads,
        summary: "Records the scheduler's decisions, the last of each shard, until trace.stop",
        params: &[
            required(
                "seconds",
                "number",
                "the maximum length of the recording in seconds; a recording that is not stopped \
                 by then is dropped",
            ),
            optional("events", "number", "decisions that each shard keeps, up to 1048576"),
        ],
        result: "the number of decisions that each shard keeps",
        run: Run::Does(|console, admin, mut given| {
            console.trace_start(admin, given.take("seconds")?, given.take("events")?)
        }),
    },
    Method {
        name: "trace.stop",
        effect: Effect::Reads,
        summary: "Ends the recording",
        params: &[],
        result: "for each shard, the numbers of recorded and of lost decisions; the tenants' \
                 numbers and names",
        run: Run::Does(|console, admin, _| console.trace_stop(admin)),
    },
    Method {
        name: "trace.read",
        effect: Effect::Reads,
        summary: "The recorded decisions, piece by piece; after the last row of the last shard the \
                  recording is dropped",
        params: &[
            required("shard", "number", "the shard"),
            required("from", "number", "the first decision, counted from 0"),
        ],
        result: "rows: time in ns, event, tenant, tag, operation, offset, bytes, class, free \
                 slots, virtual time, start tag, reason",
        run: Run::Does(|console, _, mut given| {
            console.trace_read(given.take("shard")?, given.take("from")?)
        }),
    },
    Method {
        name: "upgrade",
        effect: Effect::Reloads,
        summary: "Executes another program in the server's process, which continues with all \
                  connections, data and settings; clients wait for less than a second. This method \
                  is not available over HTTP. The new program sends the answer",
        params: &[optional(
            "program",
            "string",
            "its absolute path; by default the path from which the server was started",
        )],
        result: "the versions before (from) and now (to), and the program's path",
        run: Run::Does(|console, admin, mut given| console.upgrade(admin, given.take("program")?)),
    },
    Method {
        name: "drain",
        effect: Effect::Changes,
        summary: "Accepts no more connections, and ends when the last client has disconnected",
        params: &[optional(
            "now",
            "boolean",
            "end as at SIGTERM: finish the requests in flight and disconnect the remaining clients",
        )],
        result: "the number of open connections",
        run: Run::Does(|console, admin, mut given| {
            Ok(console.drain(admin, given.take::<Option<bool>>("now")? == Some(true)))
        }),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_has_one_name_and_each_of_its_parameters_too() {
        let is_first =
            |names: &[&str]| (1..names.len()).all(|index| !names[..index].contains(&names[index]));
        let names: Vec<_> = METHODS.iter().map(|method| method.name).collect();
        assert!(is_first(&names), "{names:?}");
        for method in METHODS {
            let names: Vec<_> = method.params.iter().map(|param| param.name).collect();
            assert!(is_first(&names), "{}: {names:?}", method.name);
        }
    }

    #[test]
    fn a_method_that_is_not_there_has_a_hint() {
        let refused = |name| Method::named(name).err().unwrap().message().to_owned();
        assert_eq!(refused("tenant"), "there is no method tenant: did you mean tenants?");
        assert_eq!(refused("xyz"), "there is no method xyz: rpc.discover lists them");
    }

    #[test]
    fn parameters_are_named_known_and_all_there() {
        let given = |method: &str, params: Value| {
            Method::named(method).unwrap().given(params).map(|given| given.0.len())
        };
        let refused =
            |method: &str, params: Value| given(method, params).unwrap_err().message().to_owned();
        assert_eq!(given("drain", Value::Null).unwrap(), 0);
        assert_eq!(given("drain", json!({ "now": true })).unwrap(), 1);
        assert!(given("drain", json!([true])).unwrap_err().is_params());
        let typo = refused("drain", json!({ "nwo": true }));
        assert!(typo.contains("unknown key `nwo`; did you mean `now`?"), "{typo}");
        assert!(refused("status", json!({ "now": 1 })).contains("status takes no parameters"));
        assert_eq!(refused("weight", json!({ "tenant": "db" })), "`weight` is missing");
        let mut wrong = Method::named("drain").unwrap().given(json!({ "now": "yes" })).unwrap();
        let text = wrong.take::<Option<bool>>("now").unwrap_err().message().to_owned();
        assert!(text.starts_with("`now`: invalid type: string \"yes\""), "{text}");
    }
}
