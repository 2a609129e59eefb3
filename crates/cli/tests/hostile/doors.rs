//! Random input over HTTP and on the control socket: the server refuses it and continues to serve.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::server::{Neighbour, PATIENCE, Server, seconds};

const TOKEN: &str = "0123456789abcdef";

/// A server with a web token, reached over HTTP at the address.
fn start() -> (Server, String) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let keys = tempfile::tempdir().unwrap();
    let token = keys.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = format!(
        "device = \"ram,size=16M\"\nshards = 2\nmetrics = [\"tcp:{free}\"]\n\
         web-token = {token:?}\n\
         [[tenant]]\nname = \"rw\"\nsize = \"1M\"\n\
         [[tenant]]\nname = \"beside\"\nsize = \"1M\"\n"
    );
    (Server::start(&config, &[]), free.to_string())
}

/// Runs cases of a strategy against one server until the time is over.
fn go_on<S: Strategy>(strategy: S, usual: u64, play: impl Fn(&S::Value) -> Result<(), String>) {
    let deadline = Instant::now() + seconds(usual);
    let mut count = 0;
    while count == 0 || Instant::now() < deadline {
        let config = Config { cases: 16, failure_persistence: None, ..Config::default() };
        let outcome = TestRunner::new(config)
            .run(&strategy, |value| play(&value).map_err(TestCaseError::fail));
        if let Err(error) = outcome {
            panic!("{error}");
        }
        count += 16;
    }
    println!("{count} cases");
}

/// JSON values, among them some that have a meaning here.
fn json_value() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "rw",
        "beside",
        "x=1M",
        "x=99999999999999999999G",
        "x=1M,offset=18446744073709551615",
        "x=1M,weight=cgroup:/..,keep-data",
        "=",
        ",,,",
        "",
        "cgroup:/../../etc",
        "10001",
        "mqfq",
        "sfqd:slots=0",
        "bfq:budget=18446744073709551615",
        "kyber-fair:period=1ns",
        "none",
        "D=0",
        "T=99999999G",
        "unix:",
        "tcp:",
        "tcp:256.0.0.1:99999",
        "\0\u{7f}\u{202e}\u{1f4a9}",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0..5_u64).prop_map(Value::from),
        prop::sample::select(vec![1e300, -1e300, -0.0, 0.1, 1e19, 1e-300]).prop_map(Value::from),
        words.prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A line of the control socket, without the line feed.
#[derive(Clone, Debug)]
enum Line {
    /// A well-formed request with any contents.
    Call {
        method: String,
        params: Value,
        id: Value,
    },
    /// JSON that is not a request.
    Json(Value),
    Bytes(Vec<u8>),
    /// This number of brackets.
    Deep(u32),
    /// A line beyond the limit of length.
    Endless,
}

/// The methods of the server, each with the names of its parameters, without `drain`, which ends
/// the server.
fn methods(server: &Server) -> Vec<(String, Vec<String>)> {
    let text = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let document = server.call("rpc.discover", json!({}));
    let method = |of: &Value| (text(of), list(&of["params"]).iter().map(text).collect());
    let all = list(&document["methods"]);
    all.iter().map(method).filter(|(name, _): &(String, _)| name != "drain").collect()
}

fn call(methods: Vec<(String, Vec<String>)>) -> impl Strategy<Value = Line> {
    let id = prop_oneof![
        4 => any::<u32>().prop_map(Value::from),
        1 => any::<String>().prop_map(Value::from),
        1 => json_value(),
    ];
    let method = prop::sample::select(methods);
    let most_keys = 4;
    let named = (method.clone(), prop::collection::vec(json_value(), most_keys), any::<bool>())
        .prop_map(|((method, keys), values, is_whole)| {
            let most = if is_whole { keys.len() } else { keys.len().min(1) };
            let params = keys.into_iter().take(most).zip(values).collect();
            (method, Value::Object(params))
        });
    let any_params = (method, json_value()).prop_map(|((method, _), params)| (method, params));
    let other = prop::sample::select(vec![
        ("drain", json!({ "now": "perhaps" })),
        ("drain", json!([true])),
        ("shutdown", Value::Null),
        ("", Value::Null),
        ("status\0", json!({})),
    ]);
    let other = other.prop_map(|(method, params)| (method.to_owned(), params));
    (prop_oneof![6 => named, 2 => any_params, 1 => other], id)
        .prop_map(|((method, params), id)| Line::Call { method, params, id })
}

fn line(methods: Vec<(String, Vec<String>)>) -> impl Strategy<Value = Line> {
    let byte = any::<u8>().prop_filter("a line is one line", |byte| *byte != b'\n');
    prop_oneof![
        20 => call(methods),
        3 => json_value().prop_map(Line::Json),
        3 => prop::collection::vec(byte, 1..400).prop_map(Line::Bytes),
        1 => (1..400_000_u32).prop_map(Line::Deep),
        1 => Just(Line::Endless),
    ]
}

/// Whether a call would remove or cut a tenant that the neighbour and other tests need.
fn takes_away(line: &Line) -> bool {
    matches!(line, Line::Call { method, params, .. }
        if ["remove", "rename", "resize"].contains(&method.as_str())
            && ["rw", "beside"].iter().any(|name| params["tenant"] == *name))
}

/// A connection of the control socket, with the number of the last mark.
struct Control {
    stream: BufReader<UnixStream>,
    marks: u64,
}

impl Control {
    fn open(server: &Server) -> Control {
        Control { stream: BufReader::new(server.control()), marks: 0 }
    }

    /// Sends a line followed by a mark; returns the answers before the mark's, or `None` if the
    /// connection was closed.
    fn say(&mut self, line: &[u8]) -> Result<Option<Vec<Value>>, String> {
        self.marks += 1;
        let name = format!("mark-{}", self.marks);
        let mark = json!({ "jsonrpc": "2.0", "id": name, "method": "policy" });
        let stream = self.stream.get_mut();
        let sent = stream.write_all(line);
        if sent.and_then(|()| stream.write_all(format!("\n{mark}\n").as_bytes())).is_err() {
            return Ok(None);
        }
        let mut answers = Vec::new();
        loop {
            let mut text = String::new();
            match self.stream.read_line(&mut text) {
                Ok(count) if count > 0 => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Err("the control socket does not answer".into());
                }
                _ => return Ok(None),
            }
            let answer: Value =
                serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
            if answer["id"] == name {
                return Ok(Some(answers));
            }
            answers.push(answer);
        }
    }
}

/// Checks that an answer is a result or an error of the protocol, for the request that was sent.
fn is_answer(answer: &Value, id: Option<&Value>) -> Result<(), String> {
    let wrong = Err(format!("no answer by the rules to {id:?}: {answer}"));
    let Some(object) = answer.as_object() else { return wrong };
    let of_request = id.is_none_or(|id| answer["id"] == *id || answer["id"].is_null());
    if answer["jsonrpc"] != "2.0" || !object.contains_key("id") || !of_request {
        return wrong;
    }
    let is_right = match answer.get("error") {
        Some(error) => {
            let code = error["code"].as_i64();
            let known = [-32700, -32600, -32601, -32602, 1];
            !object.contains_key("result")
                && code.is_some_and(|code| known.contains(&code))
                && error["message"].as_str().is_some_and(|text| !text.is_empty())
        }
        None => object.contains_key("result"),
    };
    if is_right { Ok(()) } else { wrong }
}

#[test]
fn any_line_on_the_control_socket_is_answered_by_the_rules() {
    let (server, _) = start();
    let neighbour = Neighbour::start(&server, "beside");
    let control = Mutex::new(Control::open(&server));
    server.call("status", json!({}));
    let before = server.rest(1);
    go_on(prop::collection::vec(line(methods(&server)), 1..8), 5, |lines| {
        let mut control = control.lock().unwrap();
        for line in lines.iter().filter(|line| !takes_away(line)) {
            let (bytes, id) = match line {
                Line::Call { method, params, id } => {
                    let call =
                        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
                    (call.to_string().into_bytes(), Some(id))
                }
                Line::Json(value) => (value.to_string().into_bytes(), None),
                Line::Bytes(bytes) => (bytes.clone(), None),
                Line::Deep(depth) => (vec![b'['; *depth as usize], None),
                Line::Endless => (vec![b' '; (1 << 20) + 1], None),
            };
            let is_endless = matches!(line, Line::Endless);
            match control.say(&bytes)? {
                Some(answers) => {
                    // Blank lines have no answer.
                    let due = usize::from(!String::from_utf8_lossy(&bytes).trim().is_empty());
                    if answers.len() != due || is_endless {
                        return Err(format!("{} answers to {line:?}", answers.len()));
                    }
                    for answer in answers.iter().flat_map(|answer| match answer {
                        Value::Array(batch) => &batch[..],
                        one => std::slice::from_ref(one),
                    }) {
                        is_answer(answer, id).map_err(|error| format!("{error}: {line:?}"))?;
                    }
                }
                None if is_endless => *control = Control::open(&server),
                None => return Err(format!("the connection ended at {line:?}")),
            }
        }
        // The server still works, and answers others.
        server.call("status", json!({}));
        for tenant in server.call("tenants", json!({})).as_array().expect("a list") {
            let weight = tenant["weight"].as_u64().expect("a number");
            if !(1..=10_000).contains(&weight) {
                return Err(format!("a weight of {weight}"));
            }
        }
        neighbour.is_served();
        Ok(())
    });
    drop(control);
    let added = server.call("tenants", json!({}));
    for tenant in added.as_array().expect("a list") {
        if !["rw", "beside"].iter().any(|name| tenant["name"] == *name) {
            server.call("remove", json!({ "tenant": tenant["name"] }));
        }
    }
    // A recording keeps its memory until it is over; a removed tenant has allocated memory of the
    // device.
    server.call("trace.start", json!({ "seconds": 1, "events": 1 }));
    server.call("trace.stop", json!({}));
    server.rests_as(&before, 1);
    neighbour.stop();
    server.ends_well();
}

/// A request over HTTP, and the sizes and faults with which it is sent.
#[derive(Clone, Debug)]
struct Http {
    method: String,
    target: String,
    version: &'static str,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// A false length for its header.
    length: Option<u64>,
    is_authorised: bool,
    /// The place and the value of a changed byte.
    damage: Option<(u16, u8)>,
    /// Bytes of each write of the first 2000; the rest is sent at once.
    step: usize,
}

fn http() -> impl Strategy<Value = Http> {
    let method = prop_oneof![
        8 => Just("GET".to_owned()),
        4 => Just("POST".to_owned()),
        1 => prop::sample::select(vec!["HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "PRI", "get"])
            .prop_map(str::to_owned),
        1 => "[A-Z!~ ]{0,20}",
    ];
    let target = prop_oneof![
        6 => prop::sample::select(vec!["/", "/look.json", "/metrics", "/weight"])
            .prop_map(str::to_owned),
        1 => prop::sample::select(vec![
            "*",
            "//",
            "/../../etc/passwd",
            "/%00",
            "/metrics?x=%",
            "http://[::1",
            "http://evil.example/metrics",
        ])
        .prop_map(str::to_owned),
        1 => ".{0,80}",
        1 => (1..200_000_usize).prop_map(|length| "/".repeat(length)),
    ];
    let version = prop_oneof![
        9 => Just("HTTP/1.1"),
        1 => prop::sample::select(vec!["HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "", "HTCPCP/1.0"]),
    ];
    let name = prop_oneof![
        4 => prop::sample::select(vec![
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "Connection",
            "Expect",
            "Origin",
            "Sec-Fetch-Site",
            "Authorization",
            "Upgrade",
        ])
        .prop_map(str::to_owned),
        1 => "[ -~]{0,30}",
    ];
    let value = prop_oneof![
        4 => prop::sample::select(vec![
            "chunked",
            "0",
            "18446744073709551616",
            "-1",
            "close",
            "100-continue",
            "h2c",
            "Bearer ",
            "null",
            "cross-site",
            "a, b, chunked",
        ])
        .prop_map(str::to_owned),
        1 => ".{0,60}",
        1 => (1..60_000_usize).prop_map(|length| "x".repeat(length)),
    ];
    let few = prop::collection::vec((name, value), 0..5);
    let many = (1..300_usize).prop_map(|count| vec![("X".to_owned(), "y".to_owned()); count]);
    let headers = prop_oneof![6 => few, 1 => many];
    let weight = (json_value(), json_value())
        .prop_map(|(tenant, weight)| json!({ "tenant": tenant, "weight": weight }).to_string());
    let body = prop_oneof![
        4 => Just(Vec::new()),
        3 => weight.prop_map(String::into_bytes),
        1 => json_value().prop_map(|value| value.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
        1 => (1..100_000_usize).prop_map(|depth| vec![b'['; depth]),
    ];
    let length = prop::option::weighted(0.1, any::<u64>());
    let damage = prop::option::weighted(0.1, (any::<u16>(), any::<u8>()));
    let step = prop_oneof![4 => Just(usize::MAX), 1 => 1..50_usize];
    let how = (prop::bool::weighted(0.8), damage, step);
    (method, target, version, headers, body, length, how).prop_map(
        |(method, target, version, headers, body, length, (is_authorised, damage, step))| Http {
            method,
            target,
            version,
            headers,
            body,
            length,
            is_authorised,
            damage,
            step,
        },
    )
}

impl Http {
    fn bytes(&self, address: &str) -> Vec<u8> {
        use std::fmt::Write;
        let mut text = format!("{} {} {}\r\n", self.method, self.target, self.version);
        let length = self.length.unwrap_or(self.body.len() as u64);
        let _ =
            write!(text, "Host: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n");
        if self.is_authorised {
            let _ = write!(text, "Authorization: Bearer {TOKEN}\r\n");
            text += "Content-Type: application/json\r\n";
        }
        for (name, value) in &self.headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        let mut bytes = [text.as_bytes(), b"\r\n", &self.body].concat();
        if let Some((at, byte)) = self.damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        bytes
    }

    /// Sends the request; returns the answer.
    fn play(&self, address: &str) -> Result<Vec<u8>, String> {
        let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        let bytes = self.bytes(address);
        let (first, rest) = bytes.split_at(bytes.len().min(2000));
        for piece in first.chunks(self.step.min(first.len())).chain([rest]) {
            // The server may have refused the request already.
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        if !self.is_whole() {
            // A server may wait for the rest of the request. This server takes the end of the sent
            // bytes for the end of the connection.
            let limit = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&limit));
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                Err("it is never answered".into())
            }
            _ if self.is_whole() && answer.is_empty() => Err("it has no answer".into()),
            _ => Ok(answer),
        }
    }

    /// Whether the request is valid, so that the server has to answer it.
    fn is_whole(&self) -> bool {
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        self.damage.is_none()
            && self.length.is_none()
            && self.headers.is_empty()
            && self.body.len() < 1 << 16
            && self.version == "HTTP/1.1"
            && ["GET", "POST", "HEAD", "PUT"].contains(&self.method.as_str())
            && is_plain(&self.target)
    }
}

#[test]
fn any_http_request_is_refused_or_answered() {
    let (server, address) = start();
    let neighbour = Neighbour::start(&server, "beside");
    server.call("status", json!({}));
    let before = server.rest(1);
    go_on(http(), 4, |request| {
        let answer = request.play(&address)?;
        // A request that is cut off, or whose connection ended before it was read, may have no
        // answer.
        if !answer.is_empty() {
            let text = String::from_utf8_lossy(&answer);
            let line = text.lines().next().unwrap_or_default();
            let code: Option<u16> =
                line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
            if !code.is_some_and(|code| [100, 200].contains(&code) || (400..500).contains(&code)) {
                return Err(format!("answered with {line:?}"));
            }
        }
        for tenant in server.call("tenants", json!({})).as_array().expect("a list") {
            let weight = tenant["weight"].as_u64().expect("a number");
            if !(1..=10_000).contains(&weight) {
                return Err(format!("a weight of {weight}"));
            }
        }
        Ok(())
    });
    let ask = Http {
        method: "GET".into(),
        target: "/metrics".into(),
        version: "HTTP/1.1",
        headers: Vec::new(),
        body: Vec::new(),
        length: None,
        is_authorised: false,
        damage: None,
        step: usize::MAX,
    };
    let answer = ask.play(&address).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));
    neighbour.is_served();
    server.rests_as(&before, 1);
    neighbour.stop();
    server.ends_well();
}
