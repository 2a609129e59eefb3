//! A connection to the control socket of a server.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use fairq_config::listen;
use fairq_config::refusal::Refusal;
use serde_json::{Value, json};

/// Control socket of the service of contrib/systemd.
const SERVICE: &str = "/run/fairq/fairq.ctl";
/// The longest time that a server may take to answer.
// A call that waits for a file system is answered after at most 8 s, so the server is faster than
// this limit.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a server's control socket.
pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
    calls: u64,
    /// Whether the server has answered the last call.
    is_open: bool,
}

/// The control socket to use: the given one, else the one in FAIRQ_CONTROL, else the default one,
/// else that of the service in contrib/systemd.
pub(crate) fn socket(said: Option<PathBuf>) -> PathBuf {
    let usual = || {
        let (usual, service) = (listen::default_control(), PathBuf::from(SERVICE));
        if !usual.exists() && service.exists() { service } else { usual }
    };
    said.or_else(|| std::env::var_os("FAIRQ_CONTROL").map(PathBuf::from)).unwrap_or_else(usual)
}

impl Connection {
    /// Connects to a server.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Connection> {
        let stream = UnixStream::connect(path).with_context(|| {
            format!(
                "no server answers at {}: start it with --control {0}, or add --control PATH here",
                path.display()
            )
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection { stream: BufReader::new(stream), calls: 0, is_open: true })
    }

    /// Calls a method that may be called twice. If the connection ends, as in an upgrade of the
    /// server, another connection to the same socket replaces it.
    pub(crate) fn call_again(
        &mut self,
        path: &Path,
        method: &str,
        params: Value,
    ) -> anyhow::Result<Value> {
        let result = self.call(method, params.clone());
        if self.is_open {
            return result;
        }
        *self = Connection::open(path)?;
        self.call(method, params)
    }

    /// Calls a method.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let mut answer = self.ask(method, &params)?;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        match answer["error"]["code"].as_i64() {
            None => Ok(answer["result"].take()),
            // Invalid params: the command itself is wrong, so the exit status is 2.
            Some(-32602) => Err(Refusal::new(message).into()),
            Some(_) => bail!("{message}"),
        }
    }

    /// Sends a call and returns the answer.
    fn ask(&mut self, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.calls += 1;
        self.is_open = false;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.calls, "method": method, "params": params });
        writeln!(self.stream.get_mut(), "{request}")
            .context("cannot send the request to the server")?;
        let mut line = String::new();
        self.stream.read_line(&mut line).context("the server does not answer")?;
        if line.is_empty() {
            bail!("the server ended the connection: only its own user and root may control it");
        }
        self.is_open = true;
        serde_json::from_str(&line).context("the program that answers there is not a fairq server")
    }
}
