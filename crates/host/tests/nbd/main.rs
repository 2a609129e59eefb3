//! NBD as strangers meet it: byte scripts against the handshake, TLS with certificates made on the spot, and the
//! fuzzer's corpus.

mod client;
mod handshake;
mod tls;
