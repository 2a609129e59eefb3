//! The memory that a server takes while nothing is asked of it.

use super::*;

const MIB: u64 = 1 << 20;

/// A server of files, with one tenant and as many shards; default limits.
fn idle(disk: &Path, shards: usize) -> Server {
    let path = disk.join("pool");
    let config = format!(
        "shards = {shards}\ndevice = \"file,path={},direct=off,size=64M,create\"\n\
         policy = \"mqfq\"\n[[tenant]]\nname = \"a\"\nsize = \"16M\"\n",
        path.display()
    );
    Server::start(&config, &[])
}

/// Bytes of memory that a server has, without the program itself.
fn own(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let of = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    of("RssAnon:") + of("RssShmem:")
}

/// A shard has 294,912 tags by default, and took memory for all of them, in the policies of five
/// stores of which one had a tenant: 172 MiB.
#[test]
fn an_idle_server_takes_memory_for_what_it_uses() {
    let disk = tempfile::tempdir().unwrap();
    let one = idle(disk.path(), 1);
    let alone = own(&one);
    assert!(alone < 20 * MIB, "{alone} bytes");
    for number in 0..2 {
        let before = own(&one);
        let path = disk.path().join(format!("own{number}"));
        one.said(&[
            "add",
            &format!("t{number},path={},size=1M,create,store=S{number}", path.display()),
        ]);
        // The shard has run by then, and has taken the store's port.
        let _client = storage::Client::of(&one, &format!("t{number}"));
        let store = own(&one).saturating_sub(before);
        assert!(store < 4 * MIB, "{store} bytes for a store more");
    }
    drop(one);
    let three = own(&idle(disk.path(), 3));
    assert!(three < alone + 24 * MIB, "{alone} bytes with a shard and {three} with three");
}
