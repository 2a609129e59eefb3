//! Untrusted input to a running server on every interface: NBD, NBD inside TLS, HTTP, and the
//! control socket. The server survives, its other tenants are served, no reply shows a byte that it
//! must not, and the server keeps no memory or descriptors. Each test runs for some seconds, or for
//! $FAIRQ_FUZZ_SECONDS; a failing input is minimized and printed.

#[path = "hostile/book.rs"]
mod book;
mod common;
#[path = "hostile/disk.rs"]
mod disk;
#[path = "hostile/doors.rs"]
mod doors;
#[path = "hostile/hello.rs"]
mod hello;
#[path = "hostile/server.rs"]
mod server;
#[path = "hostile/session.rs"]
mod session;
#[path = "hostile/tls.rs"]
mod tls;
#[path = "hostile/wire.rs"]
mod wire;
