//! Applications as closed loops, made only from the papers' descriptions.
//!
//! | name | source | threads x depth | requests |
//! |---|---|---|---|
//! | `ycsb` | D2FQ, 4.4 (RocksDB) | 48 x 1 | 4 KiB reads (RocksDB's block), 20 us of computing |
//! | `flashx` | MQFQ, 4.1 (pagerank) | 6 x 4 | 4 KiB reads, 20 us of computing for each, in each thread one after the other: "does not maintain a large queue depth" |
//! | `aerospike` | MQFQ, 4.1 | 16 x 8 | 512 bytes read, at most a million a second; four threads for each of 32 CPUs (its default configuration), which wait for their read |
//! | `file-server`, `mail-server`, `database` | NASS, Table IV (Filebench) | 32 x 1, 8 x 1, 64 x 1 | as the table says; a sequential thread has a file of its own |
//! | `oltp`, `sort`, `wordcount` | NASS, 4.2 (sysbench, Spark) | 8 x 1 each | 4 KiB mixed; 800 KiB mixed; 500 KiB reads with 40 ms of computing |
//!
//! The computing time between requests is a guess wherever the papers do not state it. It is not
//! fitted to their measurements, except for `aerospike`, which is derived from its rate alone.

use crate::scenario::{Access, Job, MS, US};

/// The number of threads, and the job of each.
pub type Proxy = (usize, Job);

/// A name and its proxy.
pub type Named = (&'static str, fn() -> Proxy);

/// All proxies, by name.
pub const ALL: [Named; 9] = [
    ("ycsb", ycsb),
    ("flashx", flashx),
    ("aerospike", aerospike),
    ("file-server", file_server),
    ("mail-server", mail_server),
    ("database", database),
    ("oltp", oltp),
    ("sort", sort),
    ("wordcount", wordcount),
];

/// The proxy with this name.
pub fn named(name: &str) -> Option<Proxy> {
    ALL.iter().find(|proxy| proxy.0 == name).map(|proxy| (proxy.1)())
}

/// The pause of a thread of Filebench or Spark between two requests.
const THINK_NS: u64 = 10 * US;

/// A thread with one request outstanding.
fn mixed(bytes: u32, access: Access, read_percent: u32) -> Job {
    Job { access, read_percent, think_ns: THINK_NS, ..Job::random_read(bytes, 1) }
}

/// Clients of RocksDB.
pub fn ycsb() -> Proxy {
    (48, Job { think_ns: 20 * US, ..Job::random_read(4096, 1) })
}

/// Pagerank on a graph.
pub fn flashx() -> Proxy {
    (6, Job { interval_ns: 20 * US, ..Job::random_read(4096, 4) })
}

/// A key-value store of small values.
pub fn aerospike() -> Proxy {
    (16, Job { interval_ns: 16 * US, ..Job::random_read(512, 8) })
}

/// Reads to writes 1:2, sequential, 32 threads, 16 to 512 KiB.
pub fn file_server() -> Proxy {
    let sizes = [16, 32, 64, 128, 256, 512].map(|kib| (kib << 10, 1)).to_vec();
    (32, Job { sizes, ..mixed(4096, Access::Sequential, 33) })
}

/// 1:1, sequential, 8 threads, 16 KiB.
pub fn mail_server() -> Proxy {
    (8, mixed(16 << 10, Access::Sequential, 50))
}

/// 2:1, random, 64 threads, 4 KiB.
pub fn database() -> Proxy {
    (64, mixed(4096, Access::Random, 67))
}

/// Eight threads of small requests.
pub fn oltp() -> Proxy {
    (8, Job { think_ns: 50 * US, ..mixed(4096, Access::Random, 70) })
}

/// Eight map tasks that read and write.
pub fn sort() -> Proxy {
    (8, mixed(800 << 10, Access::Sequential, 50))
}

/// Eight map tasks that read, and compute more.
pub fn wordcount() -> Proxy {
    (8, Job { think_ns: 40 * MS, ..mixed(500 << 10, Access::Sequential, 100) })
}
