//! NBD for unauthenticated peers: byte scripts against the handshake, TLS with generated
//! certificates, and the fuzzer's seeds.

mod client;
#[path = "../../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub)] // it is a crate of its own, for the fuzzer
mod drivers;
mod handshake;
mod seeds;
mod tls;
