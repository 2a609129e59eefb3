//! Tenants keep their own data when the configuration, the pool or the list of tenants changes.

use super::storage::{Client, open};
use super::*;

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

/// A folder with a pool.
struct Pool(tempfile::TempDir);

impl Pool {
    fn new() -> Pool {
        Pool(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> String {
        self.0.path().join("pool").display().to_string()
    }

    fn record(&self) -> PathBuf {
        self.0.path().join("pool.layout")
    }

    fn set_size(&self, mib: u64) {
        let mut options = std::fs::File::options();
        let file = options.create(true).truncate(false).write(true).open(self.path()).unwrap();
        file.set_len(mib * MIB).unwrap();
    }

    /// A configuration with these tenants: a name, or a name and a size in MiB.
    fn config(&self, tenants: &[&str]) -> String {
        let table = |tenant: &&str| match tenant.split_once('=') {
            None => format!("[[tenant]]\nname = \"{tenant}\"\n"),
            Some((name, size)) => {
                format!("[[tenant]]\nname = \"{name}\"\nsize = \"{size}M\"\n")
            }
        };
        let tenants: String = tenants.iter().map(table).collect();
        format!("shards = 1\ndevice = \"file,path={}\"\n{tenants}", self.path())
    }

    fn serve(&self, tenants: &[&str]) -> Server {
        Server::start(&self.config(tenants), &[])
    }

    /// Starts a server with metrics; also returns their address.
    fn watch(&self, tenants: &[&str]) -> (Server, String) {
        let address = http::free_address();
        let flags = ["--metrics", &format!("tcp:{address}")];
        (Server::start(&self.config(tenants), &flags), address)
    }

    /// The error of a server that does not start with this configuration.
    fn refused(&self, tenants: &[&str]) -> String {
        let config = self.0.path().join("refused.toml");
        std::fs::write(&config, self.config(tenants)).unwrap();
        let (config, listen) =
            (config.display().to_string(), format!("unix:{}", self.0.path().join("s").display()));
        let args = ["serve", "--config", &config, "--listen", &listen];
        let output = fairq(&args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        said
    }

    /// Runs `fairq layout WORDS`: whether it succeeds, and its output.
    fn layout(&self, words: &[&str]) -> (bool, String) {
        let path = self.path();
        let words: Vec<&str> =
            words.iter().map(|word| if *word == "POOL" { &*path } else { word }).collect();
        let output = fairq(&[&["layout"], &*words].concat()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }
}

fn end(mut server: Server) {
    server.signal(Signal::TERM);
    assert_eq!(server.end(), 0);
}

/// Writes a page of a letter at the start of each tenant's range.
fn fill(server: &Server, tenants: &[(&str, u8)]) {
    for (name, byte) in tenants {
        assert_eq!(Client::of(server, name).write(0, &[*byte; PAGE]), 0);
    }
}

/// The byte of a page at this offset of a tenant's range.
fn byte(server: &Server, name: &str, at: u64) -> u8 {
    let page = Client::of(server, name).read(at, PAGE).unwrap();
    assert!(page.iter().all(|byte| *byte == page[0]), "{name} at {at}");
    page[0]
}

fn bytes(server: &Server, names: &[&str]) -> Vec<u8> {
    names.iter().map(|name| byte(server, name, 0)).collect()
}

fn write_config(server: &Server, config: &str) {
    std::fs::write(server.path("fairq.toml"), config).unwrap();
}

#[test]
fn an_edit_of_the_file_moves_nobody() {
    let pool = Pool::new();
    pool.set_size(64);
    let server = pool.serve(&["a=16", "b=8", "c=16"]);
    fill(&server, &[("a", b'A'), ("b", b'B'), ("c", b'C')]);
    end(server);
    // The new file lacks one tenant, has a new tenant before the others, and has the others in
    // another order.
    let (server, address) = pool.watch(&["new=16", "c=16", "a"]);
    assert_eq!(bytes(&server, &["a", "c", "new"]), [b'A', b'C', 0]);
    let status: Value = serde_json::from_str(&server.said(&["status", "--json"])).unwrap();
    let reserved = &status["layout"]["reserved"];
    assert_eq!(reserved[0]["name"], "b", "{reserved}");
    let (_, metrics) = get(&address, "/metrics");
    for (name, value) in [("ranges", 1), ("bytes", 8 * MIB)] {
        let line = format!("fairq_layout_reserved_{name}{{file=\"{}\"}} {value}\n", pool.path());
        assert!(metrics.contains(&line), "{metrics}");
    }
    fill(&server, &[("new", b'N')]);
    // A reserved range is not given to a new tenant, but to its owner.
    let (_, said) = server.refused(&["add", "d=16M"]);
    assert!(said.contains("reserved: b (8M at 16M)"), "{said}");
    server.said(&["add", "b=8M"]);
    assert_eq!(byte(&server, "b", 0), b'B');
    end(server);
    let server = pool.serve(&["a=16", "b=8", "c=16", "new=16"]);
    assert_eq!(bytes(&server, &["a", "b", "c", "new"]), *b"ABCN");
}

#[test]
fn a_range_that_was_anothers_is_zeroed_before_it_is_opened() {
    let pool = Pool::new();
    pool.set_size(32);
    let server = pool.serve(&["a=16", "b=16"]);
    fill(&server, &[("a", b'A'), ("b", b'B')]);
    server.said(&["remove", "--keep", "a"]);
    server.said(&["remove", "b"]);
    end(server);
    // The same holds at the start; a range that was kept still belongs to its tenant.
    let server = pool.serve(&["c=16", "a=16"]);
    assert_eq!(bytes(&server, &["a", "c"]), [b'A', 0]);
    fill(&server, &[("c", b'C')]);
    end(server);
    assert_eq!(byte(&pool.serve(&["c"]), "c", 0), b'C', "once");
}

#[test]
fn a_start_that_contradicts_the_record_is_refused() {
    let pool = Pool::new();
    pool.set_size(48);
    let server = pool.serve(&["a=16", "b=16"]);
    fill(&server, &[("a", b'A'), ("b", b'B')]);
    end(server);
    let said = pool.refused(&["a=32", "b=16"]);
    for part in ["tenant a: size 32M, but it has 16M", "size = \\\"16M", "fairq ctl resize a 32M"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (good, said) = pool.layout(&["check", "POOL"]);
    assert!(good, "{said}");
    // A rename without a server.
    assert!(pool.layout(&["rename", "POOL", "b", "mail"]).0);
    let (_, shown) = pool.layout(&["show", "POOL"]);
    assert!(shown.contains("mail") && shown.contains("(free)"), "{shown}");
    assert_eq!(bytes(&pool.serve(&["mail=16", "a"]), &["mail", "a"]), *b"BA");
    // The record is lost: the server does not guess, and the operator has to adopt the pool.
    let saved = std::fs::read(pool.record()).unwrap();
    std::fs::remove_file(pool.record()).unwrap();
    let said = pool.refused(&["mail=16", "a=16"]);
    assert!(said.contains("is lost") && said.contains("mail (16M at 0)"), "{said}");
    std::fs::write(pool.record(), &saved[..200]).unwrap();
    let said = pool.refused(&["mail=16", "a=16"]);
    assert!(said.contains("is damaged") && said.contains("fairq layout adopt"), "{said}");
    let config = pool.0.path().join("old.toml");
    std::fs::write(&config, pool.config(&["a=16", "mail=16"])).unwrap();
    let (good, said) = pool.layout(&["adopt", "POOL", "--config", config.to_str().unwrap()]);
    assert!(good && said.contains("mail (16M at 16M)"), "{said}");
    let server = pool.serve(&["mail", "a"]);
    assert_eq!(bytes(&server, &["mail", "a"]), *b"BA");
    // A server has its pool exclusively, and `bench` does not overwrite one.
    let (good, said) = pool.layout(&["forget", "POOL", "a"]);
    assert!(!good && said.contains("is in use"), "{said}");
    end(server);
    let device = format!("file,path={}", pool.path());
    let bench = fairq(&["bench", "--device", &device, "--tenant", "a"]).output().unwrap();
    let said = String::from_utf8(bench.stderr).unwrap();
    assert!(bench.status.code() == Some(2) && said.contains("--overwrite"), "{said}");
    assert!(pool.layout(&["forget", "POOL", "a"]).0);
    let server = pool.serve(&["mail", "next=16"]);
    assert_eq!(bytes(&server, &["mail", "next"]), [b'B', 0]);
}

/// `touch` or a full disk leaves an empty record.
#[test]
fn an_empty_record_counts_only_beside_a_pool_without_data() {
    let pool = Pool::new();
    pool.set_size(48);
    std::fs::write(pool.record(), "").unwrap();
    let server = pool.serve(&["a=16", "b=16"]);
    fill(&server, &[("a", b'A'), ("b", b'B')]);
    end(server);
    assert_eq!(bytes(&pool.serve(&["b=16", "a=16"]), &["a", "b"]), *b"AB");
    std::fs::write(pool.record(), "").unwrap();
    let said = pool.refused(&["b=16", "a=16"]);
    assert!(said.contains("fairq layout adopt"), "{said}");
}

/// If a file still has the old name after a rename, that name must not get an empty range.
#[test]
fn a_start_with_the_former_name_of_a_range_is_refused() {
    let pool = Pool::new();
    pool.set_size(64);
    let rename = |tenants: &[&str]| {
        let server = pool.serve(tenants);
        fill(&server, &[("a", b'A')]);
        let said = server.said(&["rename", "a", "b"]);
        assert!(said.contains("write the new name into the configuration"), "{said}");
        end(server);
    };
    rename(&["a=16", "c=16"]);
    let said = pool.refused(&["a=16", "c=16"]);
    let cure = format!("fairq layout rename {} b a", pool.path());
    for part in ["was renamed to b", "name = \\\"b\\\"\\n  size = \\\"16M\\\"", &cure] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(pool.layout(&["rename", "POOL", "b", "a"]).0);
    assert_eq!(bytes(&pool.serve(&["a", "c"]), &["a"]), *b"A");
    rename(&["a", "c"]);
    assert_eq!(bytes(&pool.serve(&["b=16", "c"]), &["b"]), *b"A");
    // A server has started with the name b, so a in a file now is the name of a new tenant.
    let server = pool.serve(&["a=16", "c"]);
    assert_eq!(bytes(&server, &["a"]), [0]);
}

#[test]
fn a_reload_removes_nobody_who_is_not_named() {
    let pool = Pool::new();
    pool.set_size(64);
    let server = pool.serve(&["a=16", "b=16"]);
    fill(&server, &[("a", b'A'), ("b", b'B')]);
    assert!(server.said(&["add", "--save", "x=16M"]).starts_with("added x: 16M at 32M"));
    fill(&server, &[("x", b'X')]);
    let file = std::fs::read_to_string(server.path("fairq.toml")).unwrap();
    assert!(file.contains("name = \"x\""), "{file}");
    server.said(&["add", "y=8M"]);
    fill(&server, &[("y", b'Y')]);
    // One tenant has another name, and one was never in the file.
    write_config(&server, &pool.config(&["a=16", "b2=16", "x=16"]));
    let words = server.said(&["config", "reload", "--dry-run"]);
    for part in ["tenant b is not in the file, and stays", "tenant y is not", "b2 would be refused"]
    {
        assert!(words.contains(part), "{part}: {words}");
    }
    let said = server.said(&["config", "reload"]);
    assert!(said.contains("fairq ctl rename b b2"), "{said}");
    assert_eq!(bytes(&server, &["a", "b", "x", "y"]), *b"ABXY");
    assert!(open(&server, "b2").is_none());
    // Its client does not notice the rename.
    let mut client = Client::of(&server, "b");
    server.said(&["rename", "b", "b2"]);
    assert_eq!(client.read(0, PAGE).unwrap()[0], b'B');
    assert!(open(&server, "b").is_none());
    let (_, said) = server.refused(&["config", "reload", "--remove", "b2"]);
    assert!(said.contains("tenant b2 is in the file"), "{said}");
    server.said(&["config", "reload", "--remove", "y"]);
    assert!(open(&server, "y").is_none());
    assert!(server.said(&["config", "reload"]).contains("nothing differs"));
    end(server);
    assert_eq!(bytes(&pool.serve(&["x", "b2", "a"]), &["a", "b2", "x"]), *b"ABX");
}

#[test]
fn a_client_without_a_name_is_never_moved_to_another_disk() {
    let server = Server::start(CONFIG, &[]);
    assert!(open(&server, "").is_none(), "two tenants, and none is the default");
    write_config(&server, &format!("default = \"db\"\n{CONFIG}"));
    assert!(server.said(&["config", "reload"]).contains("default"));
    assert_eq!(open(&server, "").unwrap().size, 16 * MIB);
    server.said(&["rename", "db", "data"]);
    assert!(open(&server, "").is_some(), "it has another name");
    server.said(&["remove", "data"]);
    assert!(open(&server, "").is_none(), "the remaining tenant is not the one that the client had");
    drop(server);
    let one = "device = \"ram,size=64M\"\n[[tenant]]\nname = \"only\"\nsize = \"16M\"\n";
    let server = Server::start(one, &[]);
    assert!(open(&server, "").is_some());
    server.said(&["add", "other=8M"]);
    assert!(open(&server, "").is_none());
    server.said(&["remove", "only"]);
    assert!(open(&server, "").is_none(), "the remaining tenant is another disk than before");
    let (code, said) = {
        let config = server.path("bad.toml");
        std::fs::write(&config, format!("default = \"x\"\n{one}")).unwrap();
        let output = fairq(&["serve", "--config", config.to_str().unwrap()]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(code == Some(2) && said.contains("default: there is no tenant x"), "{said}");
}

#[test]
fn a_tenant_is_resized_with_its_clients_attached() {
    let pool = Pool::new();
    pool.set_size(48);
    let (server, address) = pool.watch(&["a=16", "b=16"]);
    fill(&server, &[("a", b'A'), ("b", b'B')]);
    assert_eq!(Client::of(&server, "b").write(16 * MIB - PAGE as u64, &[b'E'; PAGE]), 0);
    let (_, said) = server.refused(&["resize", "a", "24M"]);
    assert!(said.contains("a can have at most 16M: b (16M at 16M) is behind it"), "{said}");
    let mut client = Client::of(&server, "b");
    assert!(server.said(&["resize", "b", "32M"]).starts_with("b: 16M -> 32M"));
    let tenants =
        || -> Value { serde_json::from_str(&server.said(&["tenants", "--json"])).unwrap() };
    // Closed connections leave the count a moment later.
    until("one has not seen the new size", || {
        let outdated = json!([{ "size": 16 * MIB, "connections": 1 }]);
        (tenants()[1]["outdated"] == outdated).then_some(())
    });
    until("the metrics say so", || {
        let (_, metrics) = get(&address, "/metrics");
        let mut lines = metrics.lines();
        let start = "fairq_tenant_outdated_connections{tenant=\"b\",device=\"";
        lines.any(|line| line.starts_with(start) && line.ends_with(" 1")).then_some(())
    });
    let said = server.said(&["status"]);
    assert!(said.contains("b: 1 connection must connect again to see its size"), "{said}");
    assert!(client.read(16 * MIB, PAGE).is_err(), "it has not seen the new size");
    assert_eq!(Client::of(&server, "b").size, 32 * MIB);
    assert_eq!(byte(&server, "b", 16 * MIB), 0);
    assert_eq!(Client::of(&server, "b").write(24 * MIB, &[b'L'; PAGE]), 0);
    let (_, said) = server.refused(&["resize", "b", "8M"]);
    assert!(said.contains("add --discard"), "{said}");
    server.said(&["resize", "b", "8M", "--discard"]);
    assert_eq!(client.read(0, PAGE).unwrap()[0], b'B');
    assert!(client.read(8 * MIB, PAGE).is_err(), "it is another's now");
    // The lost part is zeroed for its next owner, the same tenant or another.
    server.said(&["add", "c=8M,offset=40M"]);
    server.said(&["resize", "b", "24M"]);
    assert_eq!([byte(&server, "b", 16 * MIB - PAGE as u64), byte(&server, "c", 0)], [0, 0]);
    // The image grows while it is served.
    pool.set_size(64);
    until("the new space is found", || {
        let status: Value = serde_json::from_str(&server.said(&["status", "--json"])).unwrap();
        (status["unassigned"] == json!(16 * MIB)).then_some(())
    });
    server.said(&["resize", "c", "24M"]);
    assert_eq!(Client::of(&server, "c").write(24 * MIB - PAGE as u64, &[b'C'; PAGE]), 0);
    end(server);
    let server = pool.serve(&["b", "a", "c=24"]);
    assert_eq!(bytes(&server, &["a", "b", "c"]), [b'A', b'B', 0]);
    assert_eq!(byte(&server, "c", 24 * MIB - PAGE as u64), b'C');
}
