//! The memory of an idle server, and how a server allocates it.

use super::*;

const MIB: u64 = 1 << 20;

/// A server of a file, with one tenant and default limits.
fn idle(disk: &Path, shards: usize) -> Server {
    let path = disk.join("pool");
    let config = format!(
        "shards = {shards}\ndevice = \"file,path={},direct=off,size=64M,create\"\n\
         policy = \"mqfq\"\n[[tenant]]\nname = \"a\"\nsize = \"16M\"\n",
        path.display()
    );
    Server::start(&config, &[])
}

/// Bytes of a server's memory, without the program itself.
fn own(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let of = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    of("RssAnon:") + of("RssShmem:")
}

/// A shard has 294,912 tags by default. A server with five stores, only one of which had a tenant,
/// allocated memory for all of these tags in the policy of each store: 172 MiB.
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
        // The shard has run by then, and has the store's port.
        let _client = storage::Client::of(&one, &format!("t{number}"));
        let store = own(&one).saturating_sub(before);
        assert!(store < 4 * MIB, "{store} bytes for one more store");
    }
    drop(one);
    let three = own(&idle(disk.path(), 3));
    assert!(three < alone + 24 * MIB, "{alone} bytes with a shard and {three} with three");
}

/// If the kernel is a client of a server on its own machine, it waits for memory that the server
/// frees by writing: the server's threads must not wait for that memory.
#[test]
fn threads_are_io_flushers_or_the_log_says_that_they_are_not() {
    const PF_MEMALLOC_NOIO: u64 = 0x0008_0000;
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("pool").display().to_string();
    let device = format!("file,path={path},size=64M,create");
    let mut server = Server::start(&CONFIG.replace("ram,size=64M", &device), &[]);
    let process = PathBuf::from(format!("/proc/{}", server.process.id()));
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let tasks = std::fs::read_dir(process.join("task")).unwrap().map(|task| {
        let stat = read(task.unwrap().path().join("stat"));
        let flags = stat.rsplit(')').next().unwrap().split_whitespace().nth(6).unwrap();
        flags.parse::<u64>().unwrap() & PF_MEMALLOC_NOIO != 0
    });
    let marked: Vec<bool> = tasks.collect();
    let status = read(process.join("status"));
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        let kept = u64::from_str_radix(line.trim(), 16).unwrap();
        assert_eq!(kept & CAP_SYS_RESOURCE, 0, "{set} {line}");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.end(), 0);
    let mut log = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let is_said = log.contains("not marked as an I/O flusher");
    assert!(marked.iter().all(|marked| *marked != is_said), "{marked:?}: {log}");
}
