//! `--listen`: addresses at which clients connect.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::TextOrNumber;

/// The port that IANA assigned to NBD.
pub const NBD_PORT: u16 = 10_809;
/// The longest path that fits into a `sockaddr_un` with its final zero, in bytes.
const UNIX_PATH_MAX: usize = 107;

/// One address to listen on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
    /// Block devices of this machine, one for each tenant that needs no certificate.
    Ublk,
    /// A directory in which each tenant has a socket for guests, `NAME.sock`.
    VhostUser(PathBuf),
    /// A directory in which each tenant has an NVMe controller for guests, `NAME/cntrl`.
    VfioUser(PathBuf),
    /// A directory with one NVMe controller, `cntrl`, that has the whole device.
    VfioUserDevice(PathBuf),
}

/// Refuses a path that does not fit into a socket's address.
pub(crate) fn check_path(path: &Path) -> Result<(), String> {
    let length = path.as_os_str().len();
    if length > UNIX_PATH_MAX {
        return Err(format!(
            "{}: a Unix socket's path has at most {UNIX_PATH_MAX} bytes, this one has {length}",
            path.display()
        ));
    }
    Ok(())
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        match text.split_once(':') {
            Some(("unix", "")) => Err("`unix:` needs a path, as in unix:/run/fairq.sock".into()),
            Some(("unix", path)) => check_path(path.as_ref()).map(|()| Listen::Unix(path.into())),
            Some(("vhost-user", "")) => {
                Err("`vhost-user:` needs a directory, as in vhost-user:/run/fairq/guests".into())
            }
            Some(("vhost-user", path)) => Ok(Listen::VhostUser(path.into())),
            Some(("vfio-user", "")) => {
                Err("`vfio-user:` needs a directory, as in vfio-user:/run/fairq/nvme".into())
            }
            Some(("vfio-user", path)) => Ok(Listen::VfioUser(path.into())),
            Some(("vfio-user-device", "")) => {
                Err("`vfio-user-device:` needs a directory, as in vfio-user-device:/run/ssd".into())
            }
            Some(("vfio-user-device", path)) => Ok(Listen::VfioUserDevice(path.into())),
            Some(("tcp", address)) => parse_tcp(address).map(Listen::Tcp).ok_or_else(|| {
                format!(
                    "`{address}` is not an address: write tcp:127.0.0.1:{NBD_PORT}, \
                     tcp:[::]:{NBD_PORT} or tcp:0.0.0.0"
                )
            }),
            None if text == "ublk" => Ok(Listen::Ublk),
            _ => Err(Self::without_kind(text)),
        }
    }
}

impl Listen {
    /// The refusal of an address without a kind.
    fn without_kind(text: &str) -> String {
        let meant = match parse_tcp(text) {
            Some(_) => format!(": write tcp:{text}"),
            None if text.starts_with('/') => format!(": write unix:{text}"),
            None => String::new(),
        };
        format!(
            "`{text}` is none of unix:PATH, tcp:ADDRESS:PORT, vhost-user:DIRECTORY, \
             vfio-user:DIRECTORY, vfio-user-device:DIRECTORY and ublk{meant}"
        )
    }
}

fn parse_tcp(address: &str) -> Option<SocketAddr> {
    let named =
        address.strip_prefix("localhost").map(|rest| format!("{}{rest}", Ipv4Addr::LOCALHOST));
    let address = named.as_deref().unwrap_or(address);
    let alone = || {
        address.trim_matches(['[', ']']).parse::<IpAddr>().map(|ip| SocketAddr::new(ip, NBD_PORT))
    };
    address.parse().or_else(|_| alone()).ok()
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
            Listen::Ublk => f.write_str("ublk"),
            Listen::VhostUser(path) => write!(f, "vhost-user:{}", path.display()),
            Listen::VfioUser(path) => write!(f, "vfio-user:{}", path.display()),
            Listen::VfioUserDevice(path) => write!(f, "vfio-user-device:{}", path.display()),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Listen, D::Error> {
        let expecting = "\"unix:PATH\", \"tcp:ADDRESS:PORT\", \"vhost-user:DIRECTORY\", \
             \"vfio-user:DIRECTORY\", \"vfio-user-device:DIRECTORY\" or \"ublk\"";
        let text = TextOrNumber { expecting, parse: str::parse };
        deserializer.deserialize_str(text)
    }
}

impl From<Listen> for fairq_host::server::Listen {
    fn from(listen: Listen) -> fairq_host::server::Listen {
        match listen {
            Listen::Unix(path) => fairq_host::server::Listen::Unix(path),
            Listen::Tcp(address) => fairq_host::server::Listen::Tcp(address),
            Listen::Ublk => fairq_host::server::Listen::Ublk,
            Listen::VhostUser(path) => fairq_host::server::Listen::VhostUser(path),
            Listen::VfioUser(path) => fairq_host::server::Listen::VfioUser(path),
            Listen::VfioUserDevice(path) => fairq_host::server::Listen::VfioUserDevice(path),
        }
    }
}

impl TryFrom<fairq_host::server::Listen> for Listen {
    type Error = ();

    /// Fails for sources without an address.
    fn try_from(listen: fairq_host::server::Listen) -> Result<Listen, ()> {
        match listen {
            fairq_host::server::Listen::Unix(path) => Ok(Listen::Unix(path)),
            fairq_host::server::Listen::Tcp(address) => Ok(Listen::Tcp(address)),
            fairq_host::server::Listen::Ublk => Ok(Listen::Ublk),
            fairq_host::server::Listen::VhostUser(path) => Ok(Listen::VhostUser(path)),
            fairq_host::server::Listen::VfioUser(path) => Ok(Listen::VfioUser(path)),
            fairq_host::server::Listen::VfioUserDevice(path) => Ok(Listen::VfioUserDevice(path)),
            fairq_host::server::Listen::Inherited | fairq_host::server::Listen::Stdio => Err(()),
        }
    }
}

impl Listen {
    /// Whether one controller has the whole device here.
    pub fn is_whole_device(&self) -> bool {
        matches!(self, Listen::VfioUserDevice(_))
    }

    /// Whether NBD clients connect here.
    pub fn is_nbd(&self) -> bool {
        matches!(self, Listen::Unix(_) | Listen::Tcp(_))
    }

    /// The NBD URI of a tenant's export here, or the tenant's socket for guests, or the link to its
    /// block device.
    pub fn uri(&self, name: &str, with_tls: bool) -> String {
        let s = if with_tls { "s" } else { "" };
        let export = escape(name.as_ref());
        match self {
            Listen::Ublk => format!("/dev/fairq/{name}"),
            Listen::VhostUser(directory) => {
                format!("vhost-user:{}", guest_socket(directory, name).display())
            }
            Listen::VfioUser(directory) => {
                format!("vfio-user:{}", controller_socket(directory, name).display())
            }
            Listen::VfioUserDevice(directory) => {
                format!("vfio-user:{}", directory.join("cntrl").display())
            }
            Listen::Unix(path) => format!("nbd{s}+unix:///{export}?socket={}", escape(path)),
            Listen::Tcp(address) => {
                let mut address = *address;
                // A client cannot connect to the unspecified address; on this machine the loopback
                // address works.
                if address.ip().is_unspecified() {
                    address.set_ip(match address {
                        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                        SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
                    });
                }
                match address.port() {
                    // A URI needs brackets around an IPv6 address: `SocketAddr` writes them, and
                    // `IpAddr` does not.
                    NBD_PORT if address.is_ipv4() => format!("nbd{s}://{}/{export}", address.ip()),
                    _ => format!("nbd{s}://{address}/{export}"),
                }
            }
        }
    }
}

/// The socket of a tenant in a directory of sockets for guests.
pub fn guest_socket(directory: &Path, tenant: &str) -> PathBuf {
    directory.join(format!("{tenant}.sock"))
}

/// The socket of a tenant's NVMe controller in a directory of controllers.
pub fn controller_socket(directory: &Path, tenant: &str) -> PathBuf {
    directory.join(tenant).join("cntrl")
}

/// Escapes a path for a URI's query, or a name for its path.
fn escape(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~:@".contains(&byte);
    path.as_os_str()
        .as_bytes()
        .iter()
        .map(
            |&byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") },
        )
        .collect()
}

/// The default Unix socket, in the first usable folder of these: the user's runtime directory,
/// `/run`, a folder of the user's own in the directory for temporary files, the home directory.
pub fn default_socket() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // By the XDG specification relative paths are ignored.
    let runtime = runtime.filter(|directory| directory.is_absolute());
    let is_writable =
        |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    let user = rustix::process::getuid().as_raw();
    runtime
        .into_iter()
        .chain([PathBuf::from("/run")])
        .find(is_writable)
        .or_else(|| private(std::env::temp_dir().join(format!("fairq-{user}"))))
        .or_else(std::env::home_dir)
        .unwrap_or_default()
        .join("fairq.sock")
}

/// A folder that only this user can enter; it is made if it is missing. `None` if another user has
/// made it or can enter it: that user could pretend to be the server.
fn private(folder: PathBuf) -> Option<PathBuf> {
    // If the folder exists, its owner and mode decide.
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    let found = std::fs::symlink_metadata(&folder).ok()?;
    let is_own = found.uid() == rustix::process::getuid().as_raw() && found.mode() & 0o077 == 0;
    (found.is_dir() && is_own).then_some(folder)
}

/// The default control socket, beside the default socket.
pub fn default_control() -> PathBuf {
    default_socket().with_extension("ctl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_may_enter_is_not_private() {
        use std::os::unix::fs::PermissionsExt;
        let parent = std::env::temp_dir().join(format!("fairq-private-{}", std::process::id()));
        std::fs::create_dir(&parent).unwrap();
        let folder = parent.join("folder");
        assert_eq!(private(folder.clone()), Some(folder.clone()), "it is made");
        assert_eq!(private(folder.clone()), Some(folder.clone()));
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711)).unwrap();
        assert_eq!(private(folder.clone()), None);
        let link = parent.join("link");
        std::os::unix::fs::symlink(&parent, &link).unwrap();
        assert_eq!(private(link), None);
        std::fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn addresses_are_read_and_written_alike() {
        let (guests, controllers) = ("vhost-user:/run/fairq/guests", "vfio-user:/run/fairq/nvme");
        let addresses = ["unix:/run/fairq.sock", "tcp:127.0.0.1:10810", "tcp:[::1]:10809"];
        let device = "vfio-user-device:/run/ssd";
        for text in addresses.into_iter().chain([guests, controllers, device]) {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for (text, meaning) in [
            ("tcp:0.0.0.0", "tcp:0.0.0.0:10809"),
            ("tcp:localhost:7", "tcp:127.0.0.1:7"),
            ("tcp:localhost", "tcp:127.0.0.1:10809"),
            ("tcp:[::]", "tcp:[::]:10809"),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), meaning);
        }
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        let refusal = |text: &str| text.parse::<Listen>().unwrap_err();
        let neither = "is none of unix:PATH, tcp:ADDRESS:PORT, vhost-user:DIRECTORY, \
                       vfio-user:DIRECTORY, vfio-user-device:DIRECTORY and ublk";
        assert_eq!(refusal("here"), format!("`here` {neither}"));
        assert_eq!(refusal("/run/x"), format!("`/run/x` {neither}: write unix:/run/x"));
        assert_eq!(
            refusal("localhost:9090"),
            format!("`localhost:9090` {neither}: write tcp:localhost:9090")
        );
        assert_eq!(refusal("unix:"), "`unix:` needs a path, as in unix:/run/fairq.sock");
        assert!(refusal("vhost-user:").starts_with("`vhost-user:` needs a directory"));
        assert!(refusal("vfio-user:").starts_with("`vfio-user:` needs a directory"));
        assert!(refusal("vfio-user-device:").starts_with("`vfio-user-device:` needs a directory"));
        assert_eq!(
            refusal("tcp:example:99999"),
            "`example:99999` is not an address: write tcp:127.0.0.1:10809, tcp:[::]:10809 or \
             tcp:0.0.0.0"
        );
        let long = format!("unix:/{}", "a".repeat(107));
        assert!(
            refusal(&long)
                .ends_with("a Unix socket's path has at most 107 bytes, this one has 108")
        );
    }

    #[test]
    fn uris_are_what_clients_take() {
        let uri = |text: &str| text.parse::<Listen>().unwrap().uri("gold", false);
        assert_eq!(uri("unix:/run/fairq.sock"), "nbd+unix:///gold?socket=/run/fairq.sock");
        assert_eq!(uri("unix:/run/a b&c.sock"), "nbd+unix:///gold?socket=/run/a%20b%26c.sock");
        assert_eq!(uri("tcp:0.0.0.0"), "nbd://127.0.0.1/gold");
        assert_eq!(uri("vhost-user:/run/vms"), "vhost-user:/run/vms/gold.sock");
        assert_eq!(uri("vfio-user:/run/vms"), "vfio-user:/run/vms/gold/cntrl");
        assert_eq!(uri("vfio-user-device:/run/ssd"), "vfio-user:/run/ssd/cntrl");
        let tcp: Listen = "tcp:10.0.0.1".parse().unwrap();
        assert_eq!(tcp.uri("größe", false), "nbd://10.0.0.1/gr%C3%B6%C3%9Fe");
        assert_eq!(uri("tcp:10.0.0.1:99"), "nbd://10.0.0.1:99/gold");
        assert_eq!(uri("tcp:[::]:10809"), "nbd://[::1]:10809/gold");
        let tls = Listen::Tcp("10.0.0.1:10809".parse().unwrap());
        assert_eq!(tls.uri("gold", true), "nbds://10.0.0.1/gold");
    }
}
