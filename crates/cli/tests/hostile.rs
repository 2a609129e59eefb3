//! Strangers who say anything to a running server, on every door: NBD, NBD inside TLS, HTTP, and
//! the control socket. The server lives, its neighbours are served, no reply shows a byte that it
//! must not, and nothing of it all is kept. Each test goes on for some seconds, or for
//! $FAIRQ_FUZZ_SECONDS; what fails is made small and printed.

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
