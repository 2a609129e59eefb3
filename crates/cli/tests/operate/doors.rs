//! Tests of access control, and of the effects that clients without access have on others, through
//! real sockets.

use super::*;

/// A port of this machine that was free a moment ago.
fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// An answer over HTTP: its status line, and its body.
fn answer(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn a_cgroups_weight_is_no_way_to_other_files() {
    let root = tempfile::tempdir().unwrap();
    let (cgroup, fifo) = (root.path().join("web"), root.path().join("fifo"));
    std::fs::create_dir(&cgroup).unwrap();
    std::fs::create_dir(&fifo).unwrap();
    std::fs::write(cgroup.join("io.weight"), "default 250\n").unwrap();
    let made = Command::new("mkfifo").arg(fifo.join("io.weight")).status().unwrap();
    assert!(made.success());
    let token = root.path().join("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let address = free_address();
    let config = format!(
        "cgroup-root = {:?}\nweb-token = {token:?}\nmetrics = [\"tcp:{address}\"]\n{CONFIG}",
        root.path()
    );
    let server = Server::start(&config, &[]);
    let post = |weight: &str| {
        let body = format!(r#"{{"tenant":"web","weight":{weight}}}"#);
        let length = body.len();
        answer(
            TcpStream::connect(&address).unwrap(),
            &format!(
                "POST /weight HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
                 Authorization: Bearer 0123456789abcdef\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            ),
        )
    };
    assert!(post("200").0.contains("200 OK") && post("\"150\"").0.contains("200 OK"));
    for name in ["cgroup:/web", "cgroup:/fifo", "cgroup:/dev"] {
        let (status, body) = post(&format!("\"{name}\""));
        assert!(status.contains("400") && body.contains("is not a weight"), "{status} {body}");
    }
    assert_eq!(server.weight("web"), 150);
    // The operator may name cgroups, but no other files: no name makes the server wait.
    assert_eq!(server.said(&["weight", "web", "cgroup:/web"]), "web: weight 150 -> 250\n");
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("io.weight"), "default 300\n").unwrap();
    for name in [
        format!("cgroup:/..{}", outside.path().display()),
        format!("cgroup:{}", outside.path().display()),
        "cgroup:/fifo".into(),
    ] {
        let (code, text) = server.refused(&["weight", "web", &name]);
        assert!(code != 0 && text.contains("weight: "), "{name}: {text}");
    }
    assert_eq!(server.weight("web"), 250);
}

#[test]
fn pages_of_other_names_see_nothing() {
    let address = free_address();
    let flags = ["--metrics", &format!("tcp:{address}"), "--metrics-host", "fairq.example.org"];
    let _server = Server::start(CONFIG, &flags);
    let ask = |target: &str, host: &str| {
        let request = format!("GET {target} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        answer(TcpStream::connect(&address).unwrap(), &request)
    };
    let port = address.rsplit(':').next().unwrap();
    for path in ["/", "/look.json", "/metrics"] {
        for name in [&address, "localhost", "fairq.example.org:80", &format!("localhost:{port}")] {
            let (status, _) = ask(path, &format!("Host: {name}\r\n"));
            assert!(status.contains("200 OK"), "{path} {name}: {status}");
        }
        for host in ["Host: evil.example\r\n", "Host: 127.0.0.1.evil.example:9809\r\n", ""] {
            let (status, body) = ask(path, host);
            assert!(status.contains("421"), "{path} {host}: {status}");
            assert!(body.contains("--metrics-host") && !body.contains("fairq_"), "{body}");
        }
    }
    let (status, _) = ask("http://evil.example/look.json", &format!("Host: {address}\r\n"));
    assert!(status.contains("421"), "the whole URI counts: {status}");
    let (status, _) = ask("/weight", "Host: evil.example\r\n");
    assert!(status.contains("421"), "{status}");
}

/// An NBD client with one request at a time.
pub(super) struct Nbd(pub(super) UnixStream);

const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const GO: u32 = 7;
const ACK: u32 = 1;

impl Nbd {
    /// Connects, but sends nothing.
    fn silent(path: &Path) -> UnixStream {
        UnixStream::connect(path).unwrap()
    }

    /// Connects and reads the greeting within a time limit.
    pub(super) fn greet(path: &Path, limit: Duration) -> std::io::Result<Nbd> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(limit))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        stream.write_all(&3_u32.to_be_bytes())?;
        Ok(Nbd(stream))
    }

    pub(super) fn ask(&mut self, option: u32, data: &[u8]) -> std::io::Result<()> {
        let length = data.len() as u32;
        let head = [&OPTION.to_be_bytes()[..], &option.to_be_bytes(), &length.to_be_bytes()];
        self.0.write_all(&[&head.concat(), data].concat())
    }

    /// The replies to an option up to the last one: their kinds and data.
    pub(super) fn replies(&mut self) -> std::io::Result<Vec<(u32, Vec<u8>)>> {
        let mut replies = Vec::new();
        loop {
            let mut head = [0; 20];
            self.0.read_exact(&mut head)?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let (kind, length) = (word(12), word(16));
            let mut data = vec![0; length as usize];
            self.0.read_exact(&mut data)?;
            replies.push((kind, data));
            if kind == ACK || kind >= 1 << 31 {
                return Ok(replies);
            }
        }
    }

    /// Opens an export; returns the kind and the text of the last reply.
    pub(super) fn go(&mut self, export: &str) -> std::io::Result<(u32, String)> {
        let length = (export.len() as u32).to_be_bytes();
        self.ask(GO, &[&length, export.as_bytes(), &[0, 0]].concat())?;
        let (kind, text) = self.replies()?.pop().unwrap();
        Ok((kind, String::from_utf8(text).unwrap()))
    }
}

/// Raises this process's limit of open files.
fn many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    assert!(maximum.is_none_or(|most| most > 8192), "ulimit -Hn is too low for this test");
}

/// A time that is longer than an answer takes on a busy machine. In tests that must not depend on
/// the server's time limits, those limits are still longer.
const SOON: Duration = Duration::from_secs(60);
/// Time limits that no client reaches.
const UNHURRIED: &str = "[timeouts]\nhandshake = \"1h\"\nhttp = \"1h\"\n";

#[test]
fn a_crowd_of_silent_clients_keeps_nobody_waiting() {
    many_files();
    let server = Server::start(&format!("{CONFIG}{UNHURRIED}"), &[]);
    let path = server.path("sock");
    let crowd: Vec<UnixStream> = (0..3000).map(|_| Nbd::silent(&path)).collect();
    // No client of the crowd disconnects by itself.
    let mut honest = Nbd::greet(&path, SOON).unwrap();
    assert_eq!(honest.go("db").unwrap().0, ACK);
    assert_eq!(server.connections(), 1);
    // The number of handshakes under way is bounded, and with it the crowd's descriptors.
    let files = || std::fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap().count();
    until("those that were silent for longest have gone", || (files() < 1200).then_some(()));
    drop(crowd);
    until("the crowd has gone", || (files() < 100).then_some(()));
    // A client that connects after the crowd has left has the whole time limit for its handshake.
    let mut slow = Nbd::greet(&path, SOON).unwrap();
    slow.0.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let waited = slow.0.read(&mut [0; 1]);
    let kind = waited.expect_err("a slow client is cut off although nobody waits").kind();
    assert_eq!(kind, std::io::ErrorKind::WouldBlock);
    slow.0.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(slow.go("db").unwrap().0, ACK);
}

#[test]
fn slow_clients_over_http_delay_no_scrape() {
    let address = free_address();
    let config = format!("{CONFIG}{UNHURRIED}");
    let _server = Server::start(&config, &["--metrics", &format!("tcp:{address}")]);
    let slow = |_| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: loc").unwrap();
        stream
    };
    let crowd: Vec<TcpStream> = (0..300).map(slow).collect();
    // No client of the crowd disconnects by itself.
    let (_, metrics) = get(&address, "/metrics");
    assert!(metrics.contains("fairq_tenants 2"), "{metrics}");
    drop(crowd);
}

#[test]
fn the_control_socket_answers_when_no_descriptor_is_left() {
    use rustix::process::{Resource, Rlimit, prlimit};
    let server = Server::start(CONFIG, &["--connections", "1000"]);
    let limit = Rlimit { current: Some(64), maximum: Some(64) };
    let pid = Pid::from_raw(server.process.id() as i32);
    prlimit(pid, Resource::Nofile, limit).unwrap();
    let path = server.path("sock");
    let mut connected = Vec::new();
    while let Ok(mut client) = Nbd::greet(&path, Duration::from_millis(500)) {
        if client.go("db").is_err() {
            break;
        }
        connected.push(client);
        assert!(connected.len() < 64, "the limit does not hold");
    }
    // The calls come one after the other, because each connection returns its descriptor to the
    // reserve when it ends.
    for _ in 0..6 {
        let status: Value = serde_json::from_str(&server.said(&["status", "--json"])).unwrap();
        assert_eq!(status["connections"], json!(connected.len()));
    }
    let control = |_| UnixStream::connect(server.path("ctl")).unwrap();
    let several: Vec<UnixStream> = (0..3).map(control).collect();
    assert!(server.said(&["tenants"]).contains("db"));
    drop(several);
}

#[test]
fn the_server_opens_as_many_files_as_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let program = fairq(&[]).get_program().to_owned();
    let child = Command::new("sh")
        .args(["-c", "ulimit -S -n 200; exec \"$0\" \"$@\""])
        .arg(program)
        .args(["serve", "--device", "ram,size=64M", "--tenant", "db", "--control", &path("ctl")])
        .args(["--listen", &format!("unix:{}", path("sock"))])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let server = Server { process: child, folder };
    until("it listens", || UnixStream::connect(server.path("ctl")).ok());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.process.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = files.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{files}");
}

#[test]
fn strangers_do_not_fill_the_log() {
    let address = free_address();
    let mut server = Server::start(CONFIG, &["--metrics", &format!("tcp:{address}")]);
    let log = server.process.stderr.take().unwrap();
    let log = std::thread::spawn(move || BufReader::new(log).lines().map(Result::unwrap).collect());
    let path = server.path("sock");
    let began = std::time::Instant::now();
    let mut client = Nbd::greet(&path, SOON).unwrap();
    for _ in 0..3000 {
        assert!(client.go("nothing").unwrap().0 > ACK);
    }
    for _ in 0..300 {
        until("a place is free", || {
            (Nbd::greet(&path, SOON).unwrap().go("db").unwrap().0 == ACK).then_some(())
        });
    }
    let seconds = began.elapsed().as_secs() + 1;
    let suppressed = until("the count is reported", || {
        sample(&get(&address, "/metrics").1, "fairq_log_lines_suppressed_total")
            .filter(|count| *count > 2000.0)
    });
    server.signal(Signal::TERM);
    assert_eq!(server.end(), 0);
    let log: Vec<String> = log.join().unwrap();
    let told: u64 = log
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["message"].as_str().unwrap().contains("were suppressed"))
        .map(|line| line["count"].as_u64().unwrap())
        .sum();
    assert_eq!(told as f64, suppressed, "the lines say how many were left out");
    let most = 256 + 12 * (seconds as usize + 2);
    assert!(log.len() < most, "{} lines in {seconds} s", log.len());
    assert!(log.len() + told as usize >= 3300, "{} lines and {told}", log.len());
}

/// Error codes of the protocol: forbidden by policy, and unknown.
const ERR_POLICY: u32 = (1 << 31) + 2;
const ERR_UNKNOWN: u32 = (1 << 31) + 6;

#[test]
fn with_an_authority_each_tenant_says_whose_it_is() {
    let serve = |tenants: &[&str]| {
        let tls = ["--tls-cert", "/absent", "--tls-key", "/absent", "--tls-client-ca", "/absent"];
        let tenants: Vec<&str> = tenants.iter().flat_map(|tenant| ["--tenant", tenant]).collect();
        let listen = ["--listen", "unix:/absent/s", "--device", "ram,size=64M"];
        let output = fairq(&[&["serve"], &tls[..], &listen, &tenants].concat()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = serve(&["db,identity=db.example.org", "web", "logs", "mine,uid=0"]);
    assert!(code == 2 && text.contains("would open web, logs: "), "{text}");
    assert!(text.contains("identity = \\\"any\\\"") && !text.contains("mine"), "{text}");
    // With identities the start continues until it finds that the files are missing.
    let (_, text) = serve(&["db,identity=db.example.org", "web,identity=any"]);
    assert!(text.contains("cannot read the certificate /absent"), "{text}");
}

#[test]
fn an_export_opens_to_the_users_it_names() {
    let ours = rustix::process::geteuid().as_raw();
    let tenant = |name: &str, keys: &str| format!("[[tenant]]\nname = {name:?}\n{keys}\n");
    let config = [
        "device = \"ram,size=64M\"\n".to_owned(),
        tenant("mine", &format!("uid = [{ours}, 4711]")),
        tenant("theirs", "uid = 65534"),
        tenant("roots", "user = \"root\""),
        tenant("group", &format!("unix-group = \"{}\"", rustix::process::getegid().as_raw())),
        tenant("common", ""),
    ];
    let server = Server::start(&config.concat(), &[]);
    let path = server.path("sock");
    let opened = |export: &str| Nbd::greet(&path, SOON).unwrap().go(export).unwrap().0;
    for export in ["mine", "group", "common"] {
        assert_eq!(opened(export), ACK, "{export}");
    }
    assert_eq!(opened("theirs"), ERR_UNKNOWN);
    assert_eq!(opened("roots") == ACK, ours == 0);
    assert!(
        server.refused(&["add", "other=1M,user=nosuchuser"]).1.contains("no user `nosuchuser`")
    );
    if ours != 0 {
        return eprintln!("not root: no other user was tried");
    }
    // The socket's mode lets another user connect.
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(server.folder.path(), 0o755);
    open(&path, 0o666);
    let as_nobody = |export: &str| {
        use std::os::unix::process::CommandExt;
        let uri = format!("nbd+unix:///{export}?socket={}", path.display());
        let program = server.path("fairq");
        let args = ["bench", "--connect", &uri, "--tenant", "t=depth:1", "--seconds", "100ms"];
        let mut command = Command::new(program);
        command.args(args).args(["--warmup", "0s"]).uid(65534).gid(65534).output().unwrap()
    };
    std::fs::copy(fairq(&[]).get_program(), server.path("fairq")).unwrap();
    for (export, may) in [("theirs", true), ("common", true), ("mine", false), ("group", false)] {
        let output = as_nobody(export);
        assert_eq!(output.status.success(), may, "{export}: {output:?}");
    }
}

#[test]
fn no_tenant_takes_all_connections() {
    let config = CONFIG.replace("weight = 300", "weight = 300\nconnections = 7");
    let server = Server::start(&config, &["--connections", "8"]);
    let path = server.path("sock");
    let opened = |export: &str| {
        let mut client = Nbd::greet(&path, SOON).unwrap();
        let (kind, text) = client.go(export).unwrap();
        (kind == ACK).then_some(client).ok_or((kind, text))
    };
    // One connection is reserved for each of the two tenants.
    let mut of_db: Vec<Nbd> = (0..7).map(|_| opened("db").unwrap()).collect();
    let (kind, text) = opened("db").err().unwrap();
    assert!(kind == ERR_POLICY && text.contains("as many connections as it may"), "{kind} {text}");
    let of_web = opened("web").unwrap();
    let (kind, text) = opened("web").err().unwrap();
    assert!(kind == ERR_POLICY && text.contains("too many connections"), "{kind} {text}");
    // A refused client may request another export on the same connection.
    let mut client = Nbd::greet(&path, SOON).unwrap();
    assert_eq!(client.go("db").unwrap().0, ERR_POLICY);
    assert_eq!(client.go("nothing").unwrap().0, ERR_UNKNOWN);
    // Closed connections make room; the default bound is half of all.
    of_db.drain(..3);
    let mut of_web: Vec<Nbd> = vec![of_web];
    for _ in 0..3 {
        of_web.push(until("there is room", || opened("web").ok()));
    }
    drop(of_db);
    server.until_connections(4);
    let (_, text) = opened("web").err().unwrap();
    assert!(text.contains("as many connections as it may"), "{text}");
    drop(of_web);
    server.until_connections(0);
}

/// A certificate authority in a folder, its certificates, and a server that requires them.
struct Authority {
    folder: tempfile::TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let folder = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        std::fs::write(folder.path().join("ca-cert.pem"), pem).unwrap();
        Authority { folder, issuer: rcgen::Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Issues a certificate with this lifetime, and its key.
    fn issue(&self, name: &str, serial: u64, seconds: u64) {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = (std::time::SystemTime::now() + Duration::from_secs(seconds)).into();
        params.serial_number = Some(serial.into());
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }

    /// Writes the list of revoked certificates.
    fn revoke(&self, serials: &[u64]) {
        let revoked = |serial: &u64| rcgen::RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: rcgen::date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(2090, 1, 1),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap().pem().unwrap();
        std::fs::write(self.path("revoked.crl"), list).unwrap();
    }

    /// Starts a server over TLS; also returns the URI of its one tenant.
    fn serve(&self, identity: &str) -> (Server, String) {
        let address = free_address();
        let config = format!(
            "device = \"ram,size=64M\"\n[tls]\ncert = {:?}\nkey = {:?}\nclient-ca = {:?}\n\
             client-crl = {:?}\n[[tenant]]\nname = \"db\"\nidentity = {identity:?}\n",
            self.path("server-cert.pem"),
            self.path("server-key.pem"),
            self.path("ca-cert.pem"),
            self.path("revoked.crl"),
        );
        let server = Server::start(&config, &["--listen", &format!("tcp:{address}")]);
        let port = address.rsplit(':').next().unwrap();
        let folder = self.folder.path().display();
        (server, format!("nbds://localhost:{port}/db?tls-certificates={folder}"))
    }
}

/// Starts a load on an export.
fn begin_load(uri: &str, seconds: &str) -> Child {
    let args = ["bench", "--connect", uri, "--tenant", "t=depth:1", "--seconds", seconds];
    let mut command = fairq(&args);
    command.args(["--warmup", "0s"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The result of a load on an export.
fn load(uri: &str, seconds: &str) -> Output {
    begin_load(uri, seconds).wait_with_output().unwrap()
}

#[test]
fn a_session_ends_with_its_clients_certificate() {
    let authority = Authority::new();
    authority.issue("server", 1, 3600);
    authority.revoke(&[]);
    // On a busy machine a certificate of seconds may expire before its client connects.
    let ended = [2, 4, 16, 60].into_iter().any(|seconds| {
        let (mut server, uri) = authority.serve("localhost");
        authority.issue("client", 2, seconds);
        let ended = load(&uri, "600s");
        assert!(!ended.status.success(), "it ran on: {}", String::from_utf8_lossy(&ended.stderr));
        server.signal(Signal::TERM);
        assert_eq!(server.end(), 0);
        let mut log = String::new();
        server.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(log.contains("certificate has expired"), "{log}");
        log.contains("\"connected\"")
    });
    assert!(ended, "no session began");
}

#[test]
fn a_revoked_certificate_is_refused_from_the_next_reload_on() {
    let authority = Authority::new();
    authority.issue("server", 1, 3600);
    authority.issue("client", 2, 3600);
    authority.revoke(&[3]);
    let (server, uri) = authority.serve("any");
    assert!(load(&uri, "100ms").status.success());
    std::fs::write(authority.path("revoked.crl"), "damaged").unwrap();
    let (_, text) = server.refused(&["config", "reload"]);
    assert!(text.contains("revoked.crl has no list of revoked certificates"), "{text}");
    assert!(load(&uri, "100ms").status.success(), "a bad file changes nothing");
    // The reload ends an open session; a session with another certificate continues.
    authority.issue("client", 4, 3600);
    let mut other = begin_load(&uri, "300s");
    until("it is served", || (server.connections() >= 1).then_some(()));
    authority.issue("client", 5, 3600);
    let mut revoked = begin_load(&uri, "300s");
    until("both are served", || (server.connections() >= 2).then_some(()));
    authority.revoke(&[3, 5]);
    server.said(&["config", "reload"]);
    let status = until("the session ends", || revoked.try_wait().unwrap());
    assert!(!status.success());
    assert!(!load(&uri, "100ms").status.success(), "nor does it come again");
    assert!(other.try_wait().unwrap().is_none(), "the other one ended too");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn thousands_of_tenants_are_served_and_listed() {
    use std::fmt::Write;
    const TENANTS: usize = 10_000;
    let mut config = "device = \"ram,size=10G\"\nshards = 2\n".to_owned();
    for number in 0..TENANTS {
        write!(config, "[[tenant]]\nname = \"tenant-{number}\"\n").unwrap();
    }
    config += "[[tenant]]\nname = \"größe\"\n";
    let refused = tempfile::tempdir().unwrap();
    let file = refused.path().join("fairq.toml");
    std::fs::write(&file, &config).unwrap();
    let output = fairq(&["serve", "--config", file.to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("10001 tenants are too many: at most 10000"), "{text}");

    let config = config.replace("[[tenant]]\nname = \"tenant-17\"\n", "");
    let began = std::time::Instant::now();
    let server = Server::start(&config, &[]);
    eprintln!("{TENANTS} tenants: ready after {:?}", began.elapsed());
    let mut client = Nbd::greet(&server.path("sock"), SOON).unwrap();
    client.ask(3, &[]).unwrap();
    assert_eq!(client.replies().unwrap().len(), TENANTS + 1);
    // Two options for each export on one connection, like programs that list exports.
    for _ in 0..2 {
        for number in (0..TENANTS).filter(|number| *number != 17) {
            let name = format!("tenant-{number}");
            let length = (name.len() as u32).to_be_bytes();
            client.ask(6, &[&length, name.as_bytes(), &[0, 0]].concat()).unwrap();
            assert_eq!(client.replies().unwrap().pop().unwrap().0, ACK, "{name}");
        }
    }
    assert_eq!(client.go("größe").unwrap().0, ACK);
}

/// Regression: when 200 clients connected at the same time, the 129th one waited for a second. A
/// stopped server accepts nothing, so new connections are in the kernel's queue.
#[test]
fn as_many_clients_connect_at_once_as_there_are_handshakes() {
    const HANDSHAKES: usize = 1024;
    let limit = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let room = HANDSHAKES.min(limit.trim().parse().unwrap());
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();
    let server = Server::start(CONFIG, &[]);
    let address = server.said(&["listen", "tcp:127.0.0.1:0"]);
    let port = address.trim().rsplit(':').next().unwrap().parse().unwrap();
    server.signal(Signal::STOP);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(500));
    let clients: Result<Vec<_>, _> = (0..room).map(connect).collect();
    server.signal(Signal::CONT);
    assert_eq!(clients.expect("each client connects").len(), room);
    let mut client = TcpStream::connect(address).unwrap();
    let mut greeting = [0; 8];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
}
