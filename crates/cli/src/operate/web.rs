//! The HTTP pages: `/metrics` for Prometheus, and the web page for operators.
//!
//! **The page** is one document with its style and script in it, so that a saved one is complete.
//! Its policy ([`policy`]) allows only scripts and styles with this answer's random number, no
//! other files, and connections to this server only. Once a second the page requests `/look.json`,
//! which has the output of `fairq top --json`.
//!
//! **Names.** A page from another server may let its own name resolve to this server's address, and
//! would then have the same origin (DNS rebinding): it could read everything here. But it cannot
//! change the name in the browser's request. So over TCP every request has to name the server as
//! its clients do: by the address of the connection, as `localhost`, or by a name of
//! `metrics-host`. The port does not matter, because a forwarded port is another one. A Unix socket
//! needs no check: no browser reaches it, and only its user can.
//!
//! **Writing.** The page only reads, unless the configuration names a file with a token. Then a
//! request with that token may set a weight (`POST /weight`) and change nothing else. A browser
//! sends the token only for this page: it is in a header that no form and no link can set, no
//! answer allows it to other origins, and a request that another origin caused is refused before
//! the token is compared. The comparison takes constant time.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fairq_config::refusal::Refusal;
use fairq_config::weight::{self, WeightSource};
use fairq_core::Weight;
use fairq_host::server::{Admin, Answer, Bytes, Door, HttpRequest, HttpResponse};
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName,
    HeaderValue, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Response, StatusCode};
use rand::rngs::OsRng;
use rand::{Rng, TryRngCore};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use super::{Console, rpc};

/// Header with which the server states whether the page can change weights: `token` or `off`.
const WRITE: HeaderName = HeaderName::from_static("fairq-write");
/// Header with which a browser states the kind of site that caused a request.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The shortest token, in bytes.
const TOKEN_MIN: usize = 16;

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The clients that may change weights.
pub(super) struct Writers {
    /// The token that these clients send; if there is no token, no client may change weights.
    token: Option<String>,
    /// Wrong tokens after the last line in the log, which has at most one such line a second.
    refused: u64,
}

impl Writers {
    /// The clients that send the token in this file.
    pub(super) fn new(file: Option<&Path>) -> Result<Writers, Refusal> {
        Ok(Writers { token: file.map(read_token).transpose()?, refused: 0 })
    }

    fn know(&mut self, given: Option<&HeaderValue>) -> bool {
        let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let knows = match (&self.token, given) {
            (Some(token), Some(given)) => token.as_bytes().ct_eq(given).into(),
            _ => false,
        };
        self.refused += u64::from(!knows);
        knows
    }

    /// Logs the number of requests with a wrong token or none after the last call.
    pub(super) fn log_refused(&mut self) {
        let count = std::mem::take(&mut self.refused);
        if count > 0 {
            tracing::warn!(count, "refused to change weights over HTTP: no token, or a wrong one");
        }
    }
}

fn read_token(path: &Path) -> Result<String, Refusal> {
    let refuse = |text: String| Refusal::new(format!("web-token: {}: {text}", path.display()));
    let mode =
        std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?.permissions().mode();
    // The token is a password: a user who can read it can change weights.
    if mode & 0o077 != 0 {
        return Err(refuse(format!(
            "other users may read it (mode {:o}): chmod 600 it",
            mode & 0o777
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let token = text.trim();
    if token.len() < TOKEN_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(refuse(format!(
            "a token has at least {TOKEN_MIN} characters, none of them blank: make one with head \
             -c 18 /dev/urandom | base64"
        )));
    }
    Ok(token.to_owned())
}

/// Returns a refusal if the request does not name this server; see the module's text.
fn refuse_host(request: &HttpRequest, names: &[String]) -> Option<HttpResponse> {
    // Only TCP connections have a door; no browser reaches a Unix socket.
    let Door(at) = request.extensions().get()?;
    let header = request.headers().get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
    // In a request with a whole URI, the URI's host counts.
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.host().to_owned()),
        None => header.map(|header| host_of(&header).to_owned()),
    };
    if host.as_ref().is_some_and(|host| is_known(host, at.ip(), names)) {
        return None;
    }
    let given = match &host {
        // The name is untrusted text: only a bounded part of it is in the answer.
        Some(host) => {
            format!("does not have the name `{}`", host.chars().take(64).collect::<String>())
        }
        None => "did not get a host name in the request".into(),
    };
    let address = SocketAddr::new(at.ip().to_canonical(), at.port());
    Some(refuse(
        StatusCode::MISDIRECTED_REQUEST,
        &format!(
            "this server {given}: request http://{address}/ or http://localhost:{}/, or add the name \
             to metrics-host in its configuration (--metrics-host NAME)",
            at.port()
        ),
    ))
}

/// The host in `HOST:PORT`.
fn host_of(header: &str) -> &str {
    match header.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => header,
    }
}

/// Whether `host` names a server that was reached at `at`.
fn is_known(host: &str, at: IpAddr, names: &[String]) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // An address in `Host` cannot be rebound, so any loopback address is accepted.
        Ok(ip) if ip == at.to_canonical() || ip.is_loopback() => return true,
        _ => {}
    }
    // `localhost.` is the same name in its full form.
    let name = bare.strip_suffix('.').unwrap_or(bare);
    name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|known| known.eq_ignore_ascii_case(name) || known == bare)
}

/// Answers any request.
pub(super) fn answer(
    console: &mut Console,
    admin: &mut dyn Admin,
    request: &HttpRequest,
) -> HttpResponse {
    let nonce = format!("{:032x}", OsRng.unwrap_err().random::<u128>());
    let mut response = refuse_host(request, &console.plan.metrics_host)
        .unwrap_or_else(|| route(console, admin, request, &nonce));
    let headers = response.headers_mut();
    let write = if console.writers.token.is_some() { "token" } else { "off" };
    headers.insert(WRITE, HeaderValue::from_static(write));
    headers.insert(CONTENT_SECURITY_POLICY, policy(&nonce));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Answers a request that is for this server.
fn route(
    console: &mut Console,
    admin: &mut dyn Admin,
    request: &HttpRequest,
    nonce: &str,
) -> HttpResponse {
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    let writes = request.method() == Method::POST;
    match request.uri().path() {
        "/" if reads => made(HTML, Answer::Ready(page(nonce).into())),
        "/look.json" if reads => {
            let shared = console.viewed(admin);
            made(JSON, Answer::Later(Box::new(move || shared.look_text())))
        }
        "/metrics" if reads => {
            let shared = console.scraped(admin);
            made(METRICS, Answer::Later(Box::new(move || shared.metrics())))
        }
        "/weight" if writes => set_weight(console, admin, request),
        "/" | "/look.json" | "/metrics" | "/weight" => refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET of the pages and POST of /weight are allowed",
        ),
        _ => refuse(StatusCode::NOT_FOUND, "the pages are /, /look.json and /metrics"),
    }
}

/// The content security policy: scripts and styles need the nonce, connections go to this server
/// only, and images are in the page itself.
fn policy(nonce: &str) -> HeaderValue {
    let text = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src \
         'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(text).expect("it is ASCII")
}

/// The complete page.
fn page(nonce: &str) -> String {
    let page = include_str!("web/page.html").replace("@nonce@", nonce);
    page.replace("@style@", include_str!("web/page.css"))
        .replace("@script@", include_str!("web/page.js"))
}

fn made(kind: &'static str, body: Answer<Bytes>) -> HttpResponse {
    with(StatusCode::OK, kind, body)
}

fn refuse(status: StatusCode, text: &str) -> HttpResponse {
    with(status, JSON, Answer::Ready(json!({ "error": text }).to_string().into()))
}

fn with(status: StatusCode, kind: &'static str, body: Answer<Bytes>) -> HttpResponse {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The parameters of [`set_weight`]: like the control socket's, but the weight is a number. A name
/// would make the server read a file, which only its operator may request.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainWeight {
    tenant: String,
    #[serde(deserialize_with = "weight::plain")]
    weight: Weight,
}

/// `POST /weight`.
fn set_weight(console: &mut Console, admin: &mut dyn Admin, request: &HttpRequest) -> HttpResponse {
    if console.writers.token.is_none() {
        return refuse(
            StatusCode::FORBIDDEN,
            "this server allows no changes over HTTP: set web-token in its configuration",
        );
    }
    if is_cross_site(request) {
        return refuse(StatusCode::FORBIDDEN, "only this server's own page may change weights");
    }
    // No form can send this type, and a script of another origin needs permission first (CORS).
    if request.headers().get(CONTENT_TYPE).is_none_or(|kind| kind != JSON) {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send application/json");
    }
    if !console.writers.know(request.headers().get(AUTHORIZATION)) {
        return refuse(
            StatusCode::UNAUTHORIZED,
            "the token is wrong: it is in the file that web-token names",
        );
    }
    let Ok(given) = serde_json::from_slice::<Value>(request.body()) else {
        return refuse(StatusCode::BAD_REQUEST, "send {\"tenant\": \"db\", \"weight\": \"300\"}");
    };
    let result = rpc::params(given).and_then(|PlainWeight { tenant, weight }| {
        console.drop_snapshots();
        console.weight(admin, &tenant, WeightSource::Fixed(weight))
    });
    match result {
        Ok(result) => {
            tracing::info!(%result, "a weight was changed over HTTP");
            made(JSON, Answer::Ready(result.to_string().into()))
        }
        Err(fault) if fault.is_params() => refuse(StatusCode::BAD_REQUEST, fault.message()),
        Err(fault) => refuse(StatusCode::CONFLICT, fault.message()),
    }
}

/// Whether a page of another origin caused the request. Browsers state this; other programs do not,
/// and need the token.
fn is_cross_site(request: &HttpRequest) -> bool {
    let header = |name: &HeaderName| request.headers().get(name).map(HeaderValue::as_bytes);
    // The browser's header comes first: a proxy may have changed Host, which then differs from
    // Origin.
    if let Some(site) = header(&SITE) {
        return site != b"same-origin";
    }
    let Some(origin) = header(&ORIGIN) else { return false };
    let authority = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    authority.is_none() || authority != header(&HOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caused_by(headers: &[(&str, &str)]) -> bool {
        let request =
            headers.iter().fold(http::Request::post("/weight"), |request, (name, value)| {
                request.header(*name, *value)
            });
        is_cross_site(&request.body(Vec::new()).unwrap())
    }

    #[test]
    fn another_origin_is_told_from_the_page_and_from_programs() {
        assert!(!caused_by(&[]) && !caused_by(&[("sec-fetch-site", "same-origin")]));
        assert!(!caused_by(&[("host", "h:1"), ("origin", "http://h:1")]));
        assert!(!caused_by(&[
            ("host", "h:1"),
            ("origin", "http://proxy"),
            ("sec-fetch-site", "same-origin")
        ]));
        for headers in [
            &[("sec-fetch-site", "cross-site"), ("host", "h:1"), ("origin", "http://h:1")][..],
            &[("sec-fetch-site", "same-site")],
            &[("host", "h:1"), ("origin", "http://h:2")],
            &[("host", "h:1"), ("origin", "null")],
            &[("origin", "http://h:1")],
        ] {
            assert!(caused_by(headers), "{headers:?}");
        }
    }

    #[test]
    fn a_server_goes_by_its_address_localhost_and_the_names_it_is_given() {
        let names = ["fairq.example.org".to_owned(), "192.0.2.7".to_owned()];
        let asked = |host: &str| {
            let known = |at: &str| is_known(host_of(host), at.parse().unwrap(), &names);
            (known("10.0.0.1"), known("2001:db8::1"))
        };
        for host in [
            "localhost",
            "LOCALHOST:9809",
            "localhost.",
            "127.0.0.1:1",
            "[::1]:9809",
            "fairq.example.org:80",
            "FAIRQ.example.org.",
            "192.0.2.7",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(asked(host), (true, true), "{host}");
        }
        assert_eq!(asked("10.0.0.1:9809"), (true, false));
        assert_eq!(asked("[2001:db8::1]:9809"), (false, true));
        for host in [
            "",
            ":9809",
            "evil.example",
            "localhost.evil.example",
            "fairq.example.org.evil.example",
            "10.0.0.2",
            "10.0.0.1.evil.example",
            "127.0.0.1.evil.example:9809",
            "[::2]",
        ] {
            assert_eq!(asked(host), (false, false), "{host}");
        }
    }

    #[test]
    fn the_page_is_one_document() {
        let page = page("n0");
        for (tag, end) in
            [("<style nonce=\"n0\">", "</style>"), ("<script nonce=\"n0\">", "</script>")]
        {
            assert_eq!((page.matches(tag).count(), page.matches(end).count()), (1, 1), "{tag}");
        }
        assert!(
            !page.contains('@') || page.matches('@').count() == page.matches("@media").count(),
            "nothing is left to fill in"
        );
        assert!(
            !page.contains(" src=")
                && page.matches("href=").count()
                    == page.matches("href=\"data:").count() + page.matches("href=\"#").count()
        );
        assert!(
            policy("n0").to_str().unwrap().contains("script-src 'nonce-n0'; style-src 'nonce-n0'")
        );
    }

    #[test]
    fn a_token_is_a_file_that_nobody_else_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let mode =
            |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let refusal = || Writers::new(Some(&path)).map(|_| ()).unwrap_err().to_string();
        assert!(refusal().contains("No such file"));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        mode(0o640);
        assert!(refusal().contains("other users may read it (mode 640): chmod 600 it"));
        mode(0o600);
        let mut writers = Writers::new(Some(&path)).unwrap();
        let mut knows = |text: &'static str| writers.know(Some(&HeaderValue::from_static(text)));
        assert!(knows("Bearer 0123456789abcdef"));
        for wrong in
            ["Bearer 0123456789abcdeg", "Bearer 0123456789abcde", "0123456789abcdef", "Bearer ", ""]
        {
            assert!(!knows(wrong), "{wrong}");
        }
        assert!(!writers.know(None) && writers.refused == 6);
        std::fs::write(&path, "short").unwrap();
        assert!(refusal().contains("at least 16 characters"));
        assert!(
            !Writers::new(None).unwrap().know(Some(&HeaderValue::from_static("Bearer "))),
            "nobody may"
        );
    }
}
