//! Tests of tenants' data through the program and its sockets, also with files that misbehave.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use fairq_host::nbd::wire::proto::{Command, CommandFlags, EXTENDED_REQUEST_LEN, Request};

use super::http::{free_address, get, sample};
use super::*;

/// An NBD client with one request at a time.
pub(super) struct Client<S = UnixStream> {
    pub(super) stream: S,
    pub(super) size: u64,
}

/// A client with this export open; `None` if the server refuses it.
pub(super) fn open(server: &Server, export: &str) -> Option<Client> {
    let stream = UnixStream::connect(server.path("sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    open_on(stream, export)
}

/// Like [`open`], on this connection.
pub(super) fn open_on<S: Read + Write>(mut stream: S, export: &str) -> Option<Client<S>> {
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend(1u32.to_be_bytes());
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export.as_bytes());
    stream.write_all(&hello).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).ok()?;
    let size = u64::from_be_bytes(answer[..8].try_into().unwrap());
    Some(Client { stream, size })
}

impl Client {
    pub(super) fn of(server: &Server, export: &str) -> Client {
        until("the export can be opened", || open(server, export))
    }
}

impl<S: Read + Write> Client<S> {
    pub(super) fn ask(&mut self, command: Command, flags: CommandFlags, offset: u64, length: u64) {
        let request = Request { flags, command, cookie: 7, offset, length };
        let mut bytes = [0; EXTENDED_REQUEST_LEN];
        let count = request.encode(false, &mut bytes);
        self.stream.write_all(&bytes[..count]).unwrap();
    }

    /// The error of a reply: 0, or NBD's number.
    pub(super) fn answer(&mut self) -> u32 {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes).unwrap();
        u32::from_be_bytes(bytes[4..8].try_into().unwrap())
    }

    pub(super) fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, u32> {
        self.ask(Command::Read, CommandFlags(0), offset, length as u64);
        match self.answer() {
            0 => {
                let mut data = vec![0; length];
                self.stream.read_exact(&mut data).unwrap();
                Ok(data)
            }
            error => Err(error),
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.ask(Command::Write, CommandFlags(0), offset, data.len() as u64);
        self.stream.write_all(data).unwrap();
        self.answer()
    }
}

/// Moves `length` bytes out of a socket into pipes without reading them, so the pipes share the
/// socket's memory.
fn take(stream: &UnixStream, length: usize) -> Vec<OwnedFd> {
    let (mut pipes, mut left) = (Vec::new(), length);
    while left > 0 {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // One piece for each page, and one at each end of a message of the socket.
        let flags = rustix::pipe::SpliceFlags::empty();
        let most = left.min(32 << 10);
        left -= rustix::pipe::splice(stream, None, &writer, None, most, flags).unwrap();
        pipes.push(reader);
    }
    pipes
}

/// A client may leave a reply unread for any time, in its socket or in pipes that share the
/// socket's memory. The reply must keep the bytes that were read, even if the range changes later:
/// in this test the next owners overwrite the whole range, once after it was zeroed, with unaligned
/// ends, and once without zeroing.
#[test]
fn a_reply_shows_nothing_that_was_written_after_it() {
    const SIZE: usize = 1_331_712 + 512;
    for next in [&["left=1331712", "right=512"][..], &["all=1332224,keep-data"]] {
        let disk = tempfile::tempdir().unwrap();
        let path = disk.path().join("disk");
        std::fs::write(&path, vec![b'o'; SIZE]).unwrap();
        let config = format!(
            "device = \"file,path={},direct=off\"\n[[tenant]]\nname = \"old\"\nsize = {SIZE}\n",
            path.display()
        );
        let server = Server::start(&config, &[]);
        let mut old = Client::of(&server, "old");
        assert_eq!(old.size, SIZE as u64);
        old.ask(Command::Read, CommandFlags(0), 0, SIZE as u64);
        assert_eq!(old.answer(), 0);
        let in_pipes = take(&old.stream, SIZE - 131_072);
        server.said(&["remove", "old"]);
        for tenant in next {
            server.said(&["add", tenant]);
            let mut new = Client::of(&server, tenant.split('=').next().unwrap());
            let data = vec![b'n'; new.size as usize];
            assert_eq!(new.write(0, &data), 0);
        }
        let mut got = Vec::new();
        for pipe in in_pipes {
            std::fs::File::from(pipe).read_to_end(&mut got).unwrap();
        }
        let at = got.len();
        got.resize(SIZE, 0);
        old.stream.read_exact(&mut got[at..]).unwrap();
        let strange = got.iter().filter(|&&byte| byte == b'n').count();
        assert_eq!(strange, 0, "bytes of {next:?} in a reply to another tenant");
        assert!(got.iter().all(|&byte| byte == b'o'), "the reply is what was read");
    }
}

fn status(server: &Server) -> Value {
    serde_json::from_str(&server.said(&["status", "--json"])).unwrap()
}

/// To answer a read of lost data successfully with zeroes would be the worst fault, because the
/// client takes the zeroes for its own data.
#[test]
fn a_file_that_is_cut_off_is_an_error_and_the_operator_hears_of_it() {
    for direct in ["auto", "off"] {
        let disk = tempfile::tempdir().unwrap();
        let path = disk.path().join("disk");
        std::fs::write(&path, vec![b'd'; 4 << 20]).unwrap();
        let config = format!("device = \"file,path={},direct={direct}\"", path.display());
        let tenants = "\n[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\n";
        let server = Server::start(&(config + tenants), &[]);
        let mut clients = ["a", "b"].map(|name| Client::of(&server, name));
        assert_eq!(status(&server)["cut_off_files"], json!([]));
        std::fs::File::options().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
        // No client reads there: the server checks the file's size.
        let told = until("the loss is reported", || {
            Some(status(&server)["cut_off_files"][0].clone()).filter(|told| !told.is_null())
        });
        assert_eq!(told, json!({ "path": path, "size": 4 << 20, "intact": 3 << 20 }));
        assert!(server.said(&["status"]).contains("has kept 3M of 4M"));
        assert_eq!(clients[0].read(0, 1 << 20), Ok(vec![b'd'; 1 << 20]));
        assert_eq!(clients[1].read(0, 1 << 20), Ok(vec![b'd'; 1 << 20]));
        assert_eq!(clients[1].read(1 << 20, 4096), Err(5));
        assert_eq!(clients[1].write((2 << 20) - 4096, &[1; 4096]), 5, "it would hide the loss");
    }
}

/// The end of a disk's image must not be lost: it may have the copy of the partition table.
#[test]
fn the_end_of_an_image_is_served() {
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("disk");
    std::fs::write(&path, vec![b'd'; 1_574_400]).unwrap();
    let tenants = |names: &[&str]| -> String {
        names.iter().map(|name| format!("\n[[tenant]]\nname = \"{name}\"\n")).collect()
    };
    let device = format!("device = \"file,path={}\"", path.display());
    let mut server = Server::start(&(device.clone() + &tenants(&["a"])), &[]);
    let mut client = Client::of(&server, "a");
    assert_eq!(client.size, 1_574_400);
    assert_eq!(client.write(1_574_400 - 512, &[b'e'; 512]), 0);
    assert_eq!(status(&server)["unassigned"], 0);
    let dump = server.said(&["config", "dump"]);
    drop(client);
    server.signal(Signal::TERM);
    assert_eq!(server.end(), 0);
    assert_eq!(std::fs::read(&path).unwrap()[1_574_400 - 512..], [b'e'; 512]);
    // The dumped configuration works for another server, with odd sizes, too.
    let dump = dump.replace(&*server.path("").to_string_lossy(), "/nowhere/");
    let mut server = Server::start(&dump, &[]);
    assert_eq!(Client::of(&server, "a").size, 1_574_400);
    server.signal(Signal::TERM);
    assert_eq!(server.end(), 0);
    // A rest of less than a sector belongs to no tenant, and is reported.
    std::fs::write(&path, vec![b'd'; 1_574_401]).unwrap();
    let server = Server::start(&(device + &tenants(&["a"])), &[]);
    assert_eq!(status(&server)["unassigned"], 1);
    assert!(server.said(&["status"]).contains("unassigned   1 of the device"));
}

/// A removed tenant's requests in the scheduler or on the device are still carried out. The next
/// owner of its range can be opened only when they have ended, so that none of them overwrites the
/// new owner's flushed data.
#[test]
fn nothing_of_a_removed_tenant_arrives_at_the_next_one() {
    const BLOCKS: u64 = 200;
    let tenant = "\n[[tenant]]\nname = \"old\"\nsize = \"1M\"\n";
    let device = "policy = \"mqfq:D=4\"\ndevice = \"paced,size=1M,iops=400\"";
    let server = Server::start(&(device.to_owned() + tenant), &[]);
    let mut old = Client::of(&server, "old");
    for block in 0..BLOCKS {
        old.ask(Command::Write, CommandFlags(0), block * 512, 512);
        old.stream.write_all(&[b'o'; 512]).unwrap();
    }
    // One request is done, so the others are in the scheduler.
    assert_eq!(old.answer(), 0);
    server.said(&["remove", "old"]);
    server.said(&["add", "new=1M,keep-data"]);
    let mut new = Client::of(&server, "new");
    for block in (0..BLOCKS).rev() {
        assert_eq!(new.write(block * 512, &[b'n'; 512]), 0);
    }
    // Its connection ends when all of its requests have been answered.
    old.stream.read_to_end(&mut Vec::new()).unwrap();
    let data = new.read(0, BLOCKS as usize * 512).unwrap();
    let overwritten = data.chunks(512).filter(|block| block[0] != b'n').count();
    assert_eq!(overwritten, 0, "blocks of the next owner with the old one's data");
}

/// Calls a method, repeatedly while a file is being opened; returns the error, if any.
fn call(stream: &mut BufReader<UnixStream>, method: &str, params: Value) -> Option<String> {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    until("the file is open", || {
        writeln!(stream.get_mut(), "{call}").unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let error = answer["error"]["message"].as_str().map(str::to_owned);
        (!error.as_ref().is_some_and(|text| text.contains("being opened"))).then_some(error)
    })
}

fn two_stores(disk: &Path) -> String {
    let tenant = |name: &str, store: &str| {
        let path = disk.join(name);
        format!(
            "[[tenant]]\nname = {name:?}\npath = {path:?}\ncreate = true\nsize = \"1M\"\n\
             store = {store:?}\n"
        )
    };
    let device = "shards = 2\n[device]\nkind = \"file\"\ndirect = \"off\"\n";
    [device, &tenant("x", "A"), &tenant("y", "B")].concat()
}

/// Regression: the first store's values were shown as those of all stores, and labels named the
/// server's device.
#[test]
fn figures_name_the_store_that_they_are_of() {
    let disk = tempfile::tempdir().unwrap();
    let address = free_address();
    let metrics = format!("tcp:{address}");
    let server = Server::start(&two_stores(disk.path()), &["--metrics", &metrics]);
    assert_eq!(Client::of(&server, "x").write(0, &[b'x'; 1 << 20]), 0);
    assert_eq!(Client::of(&server, "y").write(512, &[b'y'; 4096]), 0);
    let tenants: Value = serde_json::from_str(&server.said(&["tenants", "--json"])).unwrap();
    let counts =
        |tenant: usize| (&tenants[tenant]["requests"]["writes"], &tenants[tenant]["writes"]);
    assert_eq!(counts(0), (&json!(1), &json!(16)), "one request of 1 MiB, in pieces");
    assert_eq!(counts(1), (&json!(1), &json!(1)));
    let text = get(&address, "/metrics").1;
    for (tenant, store, count) in [("x", "A", 16.0), ("y", "B", 1.0)] {
        let labels = format!("{{tenant=\"{tenant}\",device=\"{store}\"");
        let op = |name: &str| format!("fairq_tenant_{name}_total{labels},op=\"write\"}}");
        assert_eq!(sample(&text, &op("requests")), Some(1.0), "{text}");
        assert_eq!(sample(&text, &op("operations")), Some(count), "{text}");
        assert!(sample(&text, &format!("fairq_tenant_weight{labels}}}")).is_some(), "{text}");
        let name = "fairq_policy_virtual_time_bytes";
        assert!(sample(&text, &format!("{name}{{store=\"{store}\"}}")).is_some(), "{text}");
        assert_eq!(sample(&text, name), None, "of the first store");
    }
    let of_device = |line: &&str| line.contains("device=") && !line.starts_with("fairq_info");
    let is_of_store =
        |line: &str| ["device=\"A\"", "device=\"B\""].iter().any(|of| line.contains(of));
    assert!(text.lines().filter(of_device).all(is_of_store), "{text}");
    let status = status(&server);
    assert_eq!(status["policy_state"]["virtual_time"], Value::Null, "each store has its own");
    for store in 0..2 {
        let state = &status["stores"][store]["policy_state"];
        assert!(state["virtual_time"].is_u64() && state["depth"].is_object(), "{state}");
    }
    let said = server.said(&["status"]);
    assert!(said.contains("A: x; slots ") && said.contains("B: y; slots "), "{said}");
}

/// Tenants without series of their own are counted together, for each store.
#[test]
fn many_tenants_have_one_series_for_the_rest_of_a_store() {
    let tenants: String =
        (0..502).map(|n| format!("[[tenant]]\nname = \"t{n}\"\nsize = 4096\n")).collect();
    let address = free_address();
    let config = format!("device = \"ram,size=4M\"\n{tenants}");
    let server = Server::start(&config, &["--metrics", &format!("tcp:{address}")]);
    for name in ["t0", "t500", "t501"] {
        assert_eq!(Client::of(&server, name).write(0, &[1; 512]), 0);
    }
    let text = get(&address, "/metrics").1;
    let writes = |tenant: &str| {
        let labels = format!("{{tenant=\"{tenant}\",device=\"ram\",op=\"write\"}}");
        sample(&text, &format!("fairq_tenant_requests_total{labels}"))
    };
    assert_eq!((writes("t0"), writes("(others)"), writes("t500")), (Some(1.0), Some(2.0), None));
    assert!(!text.contains("fairq_tenant_weight{tenant=\"(others)\""), "{text}");
}

/// Regression: a tenant's number belonged to one store for ever, so 64 tenants that were added and
/// removed in one store used up the numbers of all stores.
#[test]
fn tenants_that_came_and_went_in_one_store_leave_room_in_others() {
    let disk = tempfile::tempdir().unwrap();
    let server = Server::start(&two_stores(disk.path()), &[]);
    let mut control = BufReader::new(UnixStream::connect(server.path("ctl")).unwrap());
    let spec = |name: &str, store: &str| {
        let path = disk.path().join(name);
        json!({ "tenant": format!("{name},path={},size=1M,create,store={store}", path.display()) })
    };
    let mut old = Client::of(&server, "y");
    assert_eq!(old.write(0, &[b'y'; 4096]), 0);
    let mut count = 0;
    let full = loop {
        match call(&mut control, "add", spec(&format!("t{count}"), "A")) {
            None => count += 1,
            Some(error) => break error,
        }
    };
    assert!(count >= 64, "{count}: {full}");
    for index in 0..count {
        let name = format!("t{index}");
        assert_eq!(call(&mut control, "remove", json!({ "tenant": name })), None);
    }
    for round in 0..2 {
        for index in 0..count {
            let (name, store) = (format!("u{index}"), ["B", "A"][round]);
            assert_eq!(call(&mut control, "add", spec(&name, store)), None, "{store} {name}");
        }
        let mut new = Client::of(&server, "u7");
        assert_eq!(new.write(0, &[b'u'; 4096]), 0);
        // Another policy has the flows under the same numbers.
        server.said(&["policy", ["sfqd", "mqfq"][round]]);
        assert_eq!(new.read(0, 4096), Ok(vec![b'u'; 4096]));
        assert_eq!(old.read(0, 4096), Ok(vec![b'y'; 4096]));
        for index in 0..count {
            let name = format!("u{index}");
            assert_eq!(call(&mut control, "remove", json!({ "tenant": name })), None);
        }
    }
}

/// Regression: a file that was added again before it was closed kept its old store.
#[test]
fn a_file_that_is_added_again_belongs_to_the_store_that_is_named() {
    let disk = tempfile::tempdir().unwrap();
    let server = Server::start(&two_stores(disk.path()), &[]);
    let mut control = BufReader::new(UnixStream::connect(server.path("ctl")).unwrap());
    let path = disk.path().join("own").display().to_string();
    for store in ["A", "B", "A", "A", "B"] {
        let spec = format!("guest,path={path},size=1M,create,store={store}");
        assert_eq!(call(&mut control, "add", json!({ "tenant": spec })), None, "{store}");
        let tenants: Value = serde_json::from_str(&server.said(&["tenants", "--json"])).unwrap();
        let guest = tenants.as_array().unwrap().iter().find(|of| of["name"] == "guest").unwrap();
        assert_eq!(guest["store"], store, "{guest}");
        let mut client = Client::of(&server, "guest");
        assert_eq!(client.write(0, &[1; 4096]), 0);
        drop(client);
        assert_eq!(call(&mut control, "remove", json!({ "tenant": "guest" })), None);
    }
}

/// The policy of a store is built when its first tenant is added.
#[test]
fn a_store_that_comes_later_is_scheduled_as_the_others_are() {
    let disk = tempfile::tempdir().unwrap();
    let config = format!("policy = \"mqfq\"\n{}[[group]]\nname = \"g\"\n", two_stores(disk.path()));
    let server = Server::start(&config, &[]);
    let slots = || -> Vec<Value> {
        let status: Value = serde_json::from_str(&server.said(&["status", "--json"])).unwrap();
        status["stores"].as_array().unwrap().iter().map(|store| store["slots"].clone()).collect()
    };
    for slots in ["slots=auto", "slots=7"] {
        server.said(&["params", slots]);
    }
    let path = disk.path().join("z").display().to_string();
    // Adding the tenant would fail if the new policy did not have the group.
    server.said(&["add", &format!("z,path={path},size=1M,create,store=C,group=g")]);
    assert_eq!(slots(), [7, 7, 7]);
    let mut client = Client::of(&server, "z");
    assert_eq!(client.write(0, &[b'z'; 4096]), 0);
    server.said(&["policy", "sfqd"]);
    assert_eq!(client.read(0, 4096), Ok(vec![b'z'; 4096]));
    server.said(&["remove", "z"]);
}

/// If the cap counted the whole length of these zeroes, the request would wait for a quarter of an
/// hour.
#[test]
fn zeroes_by_the_map_of_a_file_count_little_for_a_cap() {
    let disk = tempfile::tempdir().unwrap();
    let config = format!(
        "device = \"file,path={},direct=off,size=64M,create\"\n[[tenant]]\nname = \"a\"\n\
         max-bandwidth = \"64k/s\"\n",
        disk.path().join("disk").display()
    );
    let server = Server::start(&config, &[]);
    let mut client = Client::of(&server, "a");
    for length in [4096, 64 << 20] {
        client.ask(Command::WriteZeroes, CommandFlags(0), 0, length);
        assert_eq!(client.answer(), 0);
    }
    let tenants: Value = serde_json::from_str(&server.said(&["tenants", "--json"])).unwrap();
    assert_eq!(tenants[0]["capped"]["waiting"], 0, "{tenants}");
}

/// A tenant may have as many dirty bytes in the page cache as the disk writes in half a second.
/// Further writes of this tenant wait for the disk, and other tenants do not wait for them.
#[test]
fn a_tenant_that_fills_the_page_cache_waits_for_the_disk_and_its_neighbour_does_not() {
    const WRITES: usize = 64;
    const PIECE: usize = 64 << 10;
    // A file system in memory is unlikely here: it has no disk to wait for.
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| disk.path().join(name);
    let library = super::control::library("slow_cache.c", disk.path());
    std::fs::File::create(path("pool")).unwrap().set_len(17 << 20).unwrap();
    let tenants =
        ["big", "small"].map(|name| format!("[[tenant]]\nname = {name:?}\nsize = \"8M\"\n"));
    let config = format!(
        "shards = 1\ndevice = \"file,path={},direct=off\"\n{}",
        path("pool").display(),
        tenants.concat()
    );
    let set = |command: &mut std::process::Command| {
        command.env("LD_PRELOAD", library).env("FAIRQ_DISK", path("disk"));
    };
    let server = Server::start_with(set, Stdio::null(), &config, &[]);
    let [mut big, mut small] = ["big", "small"].map(|name| Client::of(&server, name));
    std::fs::write(path("disk.wait"), "").unwrap();
    let answered = AtomicUsize::new(0);
    let mut sender = Client { stream: big.stream.try_clone().unwrap(), size: big.size };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..WRITES {
                let (offset, length) = ((at * PIECE) as u64, PIECE as u64);
                sender.ask(Command::Write, CommandFlags(0), offset, length);
                sender.stream.write_all(&[7; PIECE]).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..WRITES {
                assert_eq!(big.answer(), 0);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        until("a writeback waits for the disk", || path("disk").exists().then_some(()));
        for block in 0..20 {
            assert_eq!(small.write(block * 4096, &[8; 4096]), 0);
            small.ask(Command::Flush, CommandFlags(0), 0, 0);
            assert_eq!(small.answer(), 0);
        }
        // The least bound is 1 MiB.
        let dirty = answered.load(Ordering::Relaxed) * PIECE;
        assert!(dirty <= 1 << 20, "{dirty} bytes are dirty");
        std::fs::remove_file(path("disk.wait")).unwrap();
    });
    assert_eq!(answered.load(Ordering::Relaxed), WRITES);
    assert_eq!(big.read(((WRITES - 1) * PIECE) as u64, PIECE), Ok(vec![7; PIECE]));
    assert_eq!(small.read(0, 4096), Ok(vec![8; 4096]));
}
