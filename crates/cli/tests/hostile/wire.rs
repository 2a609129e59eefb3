//! A client's end of a connection, in plain text or inside TLS, blocking or not.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

/// A server's certificate, and clients that trust it.
pub(crate) struct Keys {
    /// The server's line of configuration: TLS is optional.
    pub(crate) server: String,
    /// Configurations for clients of TLS 1.2 and of 1.3.
    pub(crate) clients: [Arc<ClientConfig>; 2],
}

impl Keys {
    /// Makes the keys, in files of this folder.
    pub(crate) fn make(folder: &Path) -> Keys {
        let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&cert, issued.cert.pem()).unwrap();
        std::fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(issued.cert.der().clone()).unwrap();
        let client = |version: &'static SupportedProtocolVersion| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap();
            Arc::new(builder.with_root_certificates(roots.clone()).with_no_client_auth())
        };
        let server = format!("tls = {{ mode = \"optional\", cert = {cert:?}, key = {key:?} }}\n");
        let clients = [client(&rustls::version::TLS12), client(&rustls::version::TLS13)];
        Keys { server, clients }
    }
}

pub(crate) enum Wire {
    Plain(UnixStream),
    Tls { socket: UnixStream, session: Box<ClientConnection> },
}

impl Wire {
    /// Continues inside TLS, which the server has accepted.
    pub(crate) fn secret(socket: UnixStream, config: &Arc<ClientConfig>) -> Wire {
        let session = ClientConnection::new(config.clone(), "localhost".try_into().unwrap());
        Wire::Tls { socket, session: Box::new(session.expect("a session can begin")) }
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        let (Wire::Plain(socket) | Wire::Tls { socket, .. }) = self;
        socket
    }

    /// Shuts down the sending side without a close alert of TLS.
    pub(crate) fn end_stream(&self) {
        let _ = self.socket().shutdown(Shutdown::Write);
    }

    /// Whether TLS has records that the socket did not accept yet.
    pub(crate) fn has_pending(&self) -> bool {
        matches!(self, Wire::Tls { session, .. } if session.wants_write())
    }
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        // The server may wait for the rest of the sent bytes.
        let _ = self.flush();
        let (socket, session) = match self {
            Wire::Plain(socket) => return socket.read(bytes),
            Wire::Tls { socket, session } => (socket, session),
        };
        loop {
            match session.reader().read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            if session.read_tls(socket)? == 0 {
                return Ok(0);
            }
            session.process_new_packets().map_err(std::io::Error::other)?;
            // At the end of the TLS handshake all data that were written before may be pending; one
            // call of `write_tls` sends a part of them.
            while session.wants_write() && session.write_tls(socket).is_ok() {}
        }
    }
}

impl Write for Wire {
    /// Returns the bytes that TLS has accepted; their records may still be pending.
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.flush()?;
        match self {
            Wire::Plain(socket) => socket.write(bytes),
            Wire::Tls { session, .. } => {
                let count = session.writer().write(&bytes[..bytes.len().min(60_000)])?;
                let _ = self.flush();
                Ok(count)
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        if let Wire::Tls { socket, session } = self {
            while session.wants_write() {
                session.write_tls(socket)?;
            }
        }
        Ok(())
    }
}
