//! The sockets at which guests attach their disks.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;

use super::*;

/// A directory for sockets, and the flag for it.
struct Directory(tempfile::TempDir, String);

impl Directory {
    fn new() -> Directory {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("vhost-user:{}", folder.path().display());
        Directory(folder, address)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The names of the sockets in the directory.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }
}

/// Requests the features of the disk at a socket; `None` if the server closes the connection.
fn features(stream: &mut UnixStream) -> Option<u64> {
    const GET_FEATURES: u32 = 1;
    const VERSION: u32 = 1;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = [GET_FEATURES, VERSION, 0].map(u32::to_le_bytes).concat();
    stream.write_all(&request).ok()?;
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).ok()?;
    Some(u64::from_le_bytes(reply[12..].try_into().unwrap()))
}

fn attach(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    assert!(features(&mut stream).unwrap() & 1 << 32 != 0, "a modern virtio device");
    stream
}

impl Server {
    /// The sockets of a tenant: path, and whether a guest is attached.
    fn attachments(&self, name: &str) -> Vec<(PathBuf, bool)> {
        let list: Value = serde_json::from_str(&self.said(&["tenants", "--json"])).unwrap();
        let mut tenants = list.as_array().unwrap().iter();
        let tenant = tenants.find(|tenant| tenant["name"] == json!(name)).unwrap();
        let one = |socket: &Value| {
            assert_eq!((&socket["kind"], &socket["queues"]), (&json!("vhost-user"), &json!(0)));
            (socket["path"].as_str().unwrap().into(), socket["connected"].as_bool().unwrap())
        };
        tenant["attachments"].as_array().unwrap().iter().map(one).collect()
    }
}

#[test]
fn a_tenants_sockets_come_and_go_with_it() {
    let directory = Directory::new();
    let server = Server::start(CONFIG, &["--listen", &directory.1]);
    assert_eq!(directory.names(), ["db.sock", "web.sock"]);
    assert!(server.said(&["status"]).contains(&directory.1));
    let db = directory.path("db.sock");
    assert_eq!(server.attachments("db"), [(db.clone(), false)]);
    let guest = attach(&db);
    assert_eq!(server.attachments("db"), [(db.clone(), true)]);
    assert!(server.said(&["tenants"]).contains("db.sock: a guest with 0 queues\n"));
    // The guest stays through another policy and another name.
    server.said(&["policy", "none"]);
    server.said(&["rename", "db", "orders"]);
    assert_eq!(directory.names(), ["orders.sock", "web.sock"]);
    assert_eq!(server.attachments("orders"), [(directory.path("orders.sock"), true)]);
    // The next guest waits until the attached one has disconnected.
    let mut next = UnixStream::connect(directory.path("orders.sock")).unwrap();
    drop(guest);
    assert!(features(&mut next).is_some());
    server.said(&["remove", "orders"]);
    assert_eq!(directory.names(), ["web.sock"]);
    assert_eq!(next.read(&mut [0]).unwrap(), 0, "its tenant is gone");
    // Another tenant, with a socket of its own, too.
    let own = server.path("own.sock");
    server.said(&["add", &format!("new=1M,vhost-user={}", own.display())]);
    assert_eq!(server.attachments("new").len(), 2);
    until("the range is zeroed", || features(&mut UnixStream::connect(&own).unwrap()));
    // Without the directory the others have none.
    server.said(&["unlisten", &directory.1]);
    assert_eq!(directory.names(), [""; 0]);
    assert_eq!(server.attachments("new").len(), 1);
    server.said(&["listen", &directory.1]);
    assert_eq!(directory.names(), ["new.sock", "web.sock"]);
    server.said(&["remove", "new"]);
    assert!(!own.exists());
}

#[test]
fn a_socket_that_is_in_use_is_refused_and_a_stale_one_replaced() {
    let directory = Directory::new();
    drop(UnixListener::bind(directory.path("db.sock")).unwrap());
    let server = Server::start(CONFIG, &["--listen", &directory.1]);
    attach(&directory.path("db.sock"));
    // A socket of another server is not replaced, and the tenant is not added.
    let other = UnixListener::bind(directory.path("new.sock")).unwrap();
    let refused = server.refused(&["add", "new=1M"]).1;
    assert!(refused.contains("new.sock: another server listens there"), "{refused}");
    assert!(server.refused(&["rename", "web", "new"]).1.contains("another server listens there"));
    drop(other);
    server.said(&["add", "new=1M"]);
    let path = directory.path("web.sock").display().to_string();
    let refused = server.refused(&["add", &format!("more=1M,vhost-user={path}")]).1;
    assert!(refused.contains("it is the socket of another tenant"), "{refused}");
    assert_eq!(server.tenants().len(), 3);
    let nowhere = format!("vhost-user:{}", directory.path("nowhere").display());
    let refused = server.refused(&["listen", &nowhere]).1;
    assert!(refused.contains("there is no such directory"), "{refused}");
}

/// The owner and the mode of the socket admit the tenant's users. If they cannot express the list
/// of users, the server checks the user of the peer.
#[test]
fn a_socket_is_its_tenants_users() {
    let directory = Directory::new();
    let uid = rustix::process::getuid().as_raw();
    let config = format!(
        "device = \"ram,size=64M\"\n[[tenant]]\nname = \"own\"\nsize = \"1M\"\nuid = {uid}\n\
         [[tenant]]\nname = \"others\"\nsize = \"1M\"\nuid = [{}, {}]\n",
        uid + 1,
        uid + 2
    );
    let server = Server::start(&config, &["--listen", &directory.1]);
    let of = |name: &str| {
        let metadata = std::fs::metadata(directory.path(name)).unwrap();
        (metadata.uid(), metadata.mode() & 0o777)
    };
    assert_eq!(of("own.sock"), (uid, 0o600));
    assert_eq!(of("others.sock"), (uid, 0o666));
    attach(&directory.path("own.sock"));
    let mut refused = UnixStream::connect(directory.path("others.sock")).unwrap();
    assert_eq!(features(&mut refused), None, "the peer is not among its users");
    assert!(!server.attachments("others")[0].1);
}

#[test]
fn a_reload_moves_a_tenants_own_socket() {
    let server = Server::start(CONFIG, &[]);
    let write = |line: &str| {
        let text = CONFIG.replace("weight = 300", &format!("weight = 300\n{line}"));
        std::fs::write(server.path("fairq.toml"), text).unwrap();
        server.said(&["config", "reload"])
    };
    let (one, two) = (server.path("one.sock"), server.path("two.sock"));
    let said = write(&format!("vhost-user = \"{}\"", one.display()));
    assert!(said.contains("tenant.db.vhost-user"), "{said}");
    let mut guest = attach(&one);
    write(&format!("vhost-user = \"{}\"", two.display()));
    assert!(!one.exists());
    attach(&two);
    assert!(features(&mut guest).is_some(), "a guest that is attached stays");
    assert!(server.said(&["config", "dump"]).contains("two.sock"));
    write("");
    assert!(!two.exists());
    assert_eq!(server.attachments("db"), []);
}

/// After an upgrade the new program continues with the sockets and with the attached guests.
#[test]
fn an_upgrade_keeps_the_sockets() {
    let directory = Directory::new();
    let server = Server::start(CONFIG, &["--listen", &directory.1]);
    let mut guest = attach(&directory.path("db.sock"));
    server.said(&["upgrade"]);
    assert!(features(&mut guest).is_some());
    assert_eq!(server.attachments("db"), [(directory.path("db.sock"), true)]);
    drop(guest);
    attach(&directory.path("db.sock"));
    server.said(&["add", "new=1M"]);
    assert_eq!(directory.names(), ["db.sock", "new.sock", "web.sock"]);
    server.said(&["unlisten", &directory.1]);
    assert_eq!(directory.names(), [""; 0]);
}
