//! Exports: the tenants' ranges that clients may open, and the rules of access.
//!
//! Any client may open an export without restrictions. An export with an identity can be opened
//! only over TLS, by a client whose certificate has that name (or any certificate, with
//! [`Identity::Any`]). An export with users can be opened only over a Unix socket, by these users.
//! An export with both requires both. For all other clients the export seems not to exist, so that
//! names cannot be guessed: the server answers alike for an export that the client may not open and
//! for one that does not exist.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use crate::nbd::session::users::{User, Users};
use crate::nbd::wire::proto::{BlockSizes, MAX_PAYLOAD, MAX_STRING};

/// Transmission flags (`NBD_FLAG_*`): the properties of an export that are sent to a client.
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The flush command works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag FUA works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The medium rotates; never set here.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// The trim command works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// The write-zeroes command works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag DF works; set once the replies have chunks.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers what all of them wrote.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The cache command works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The flag FAST_ZERO works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// One export as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; not empty.
    pub name: String,
    /// A line for human readers; may be empty.
    pub description: String,
    /// Size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Block sizes, advertised to clients that request them, and to all if they differ from the
    /// defaults.
    pub blocks: BlockSizes,
    /// The identity of the certificate that a client needs; `None` if it needs no certificate.
    pub allowed_identity: Option<Identity>,
    /// The users who may open it, over a Unix socket; any user if none is named.
    pub allowed_users: Users,
}

/// The certificates that open an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Every certificate that the authority has signed.
    Any,
    /// Certificates with this name.
    Name(String),
}

impl From<&str> for Identity {
    /// `any` is [`Identity::Any`].
    fn from(text: &str) -> Identity {
        if text == "any" { Identity::Any } else { Identity::Name(text.to_owned()) }
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Identity::Any => "any",
            Identity::Name(name) => name,
        })
    }
}

impl Export {
    /// An export that any client may open, with the default block sizes.
    pub fn new(name: impl Into<String>, size: u64) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            size,
            read_only: false,
            blocks: BlockSizes::default(),
            allowed_identity: None,
            allowed_users: Users::default(),
        }
    }

    /// The transmission flags for a client; `chunks` if it has negotiated replies in chunks.
    pub fn flags(&self, chunks: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            // The specification forbids offering fast zeroing without zeroing.
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if chunks {
            flags |= flag::SEND_DF;
        }
        flags
    }

    fn check(&self) -> Result<(), ExportsError> {
        let name = || self.name.clone();
        if self.name.is_empty() {
            return Err(ExportsError::EmptyName);
        }
        for text in [&self.name, &self.description] {
            if text.len() > MAX_STRING || text.contains('\0') {
                return Err(ExportsError::Text { name: name() });
            }
        }
        let BlockSizes { min, preferred, max_payload } = self.blocks;
        let sensible = min.is_power_of_two()
            && min <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= min.max(512)
            && (preferred..=MAX_PAYLOAD).contains(&max_payload);
        if sensible {
            Ok(())
        } else {
            Err(ExportsError::Blocks { name: name(), blocks: self.blocks })
        }
    }
}

/// The reason why the protocol does not allow a list of exports.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExportsError {
    /// The empty name stands for the default export.
    #[error("an export needs a name")]
    EmptyName,
    /// Two exports have the same name.
    #[error("export {name:?} exists twice: rename one of the two")]
    Twice {
        /// The name.
        name: String,
    },
    /// A name or description that cannot be sent.
    #[error(
        "name or description of export {name:?} is longer than {MAX_STRING} bytes or has a NUL in \
         it"
    )]
    Text {
        /// The name.
        name: String,
    },
    /// Block sizes that the protocol does not allow.
    #[error(
        "block sizes of export {name:?} ({blocks:?}): min must be a power of two up to 65536, \
         preferred a power of two of \
         at least 512 and min, and max_payload must be between preferred and {MAX_PAYLOAD}"
    )]
    Blocks {
        /// The name.
        name: String,
        /// The sizes.
        blocks: BlockSizes,
    },
    /// The default export is not in the list.
    #[error("the default export has the index {index}, but there are only {count} exports")]
    Default {
        /// The number given.
        index: usize,
        /// The number of exports.
        count: usize,
    },
}

/// Whether a client may open an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may open the export.
    Open,
    /// It has to start TLS first; its certificate may then permit the export.
    NeedsTls,
    /// It may not open the export, and does not learn whether the export exists.
    Denied,
}

/// The known properties of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Whether it has presented a certificate.
    pub certified: bool,
    /// The names in its certificate.
    pub names: Vec<String>,
    /// The user at the other end of a Unix socket.
    pub user: Option<User>,
    /// Whether it can still start TLS.
    pub may_start_tls: bool,
}

/// The checked exports of a server, and the default export of clients that send an empty name.
#[derive(Clone, Debug)]
pub struct Exports {
    list: Arc<[Export]>,
    /// The index of each export by name: a client may request thousands of them, one after the
    /// other.
    index: Arc<HashMap<String, usize>>,
    default: Option<usize>,
}

impl Exports {
    /// Checks the list; `default` is the index of the export that the empty name opens.
    pub fn new(
        list: impl Into<Arc<[Export]>>,
        default: Option<usize>,
    ) -> Result<Self, ExportsError> {
        let list = list.into();
        let mut index = HashMap::with_capacity(list.len());
        for (number, export) in list.iter().enumerate() {
            export.check()?;
            if index.insert(export.name.clone(), number).is_some() {
                return Err(ExportsError::Twice { name: export.name.clone() });
            }
        }
        match default {
            Some(index) if index >= list.len() => {
                Err(ExportsError::Default { index, count: list.len() })
            }
            _ => Ok(Self { list, index: Arc::new(index), default }),
        }
    }

    /// The export with an index that [`Exports::find`] has returned.
    pub fn get(&self, index: usize) -> &Export {
        &self.list[index]
    }

    /// The index of the export that a client requests with `name`, if it may open the export.
    ///
    /// `Err` is the answer for an export that does not exist. It depends on the client only: a
    /// client that can still start TLS receives `NeedsTls` for unknown names as well, if any export
    /// requires a certificate.
    pub fn find(&self, name: &[u8], client: &Client) -> Result<usize, Access> {
        let named =
            || std::str::from_utf8(name).ok().and_then(|name| self.index.get(name).copied());
        let index = if name.is_empty() { self.default } else { named() };
        let access = match index {
            Some(index) => self.access(&self.list[index], client),
            None => self.hidden(client),
        };
        match (access, index) {
            (Access::Open, Some(index)) => Ok(index),
            // `hidden` never returns `Open`, so an open access always has an export.
            (access, _) => Err(access),
        }
    }

    /// The exports that `client` may open.
    pub fn visible<'a>(&'a self, client: &'a Client) -> impl Iterator<Item = &'a Export> {
        self.list.iter().filter(|export| self.access(export, client) == Access::Open)
    }

    fn access(&self, export: &Export, client: &Client) -> Access {
        let users = &export.allowed_users;
        let user_may =
            users.is_empty() || client.user.as_ref().is_some_and(|user| users.include(user));
        let certificate_may = match &export.allowed_identity {
            None => true,
            Some(Identity::Any) => client.certified,
            Some(Identity::Name(name)) => client.names.contains(name),
        };
        if user_may && certificate_may { Access::Open } else { self.hidden(client) }
    }

    fn hidden(&self, client: &Client) -> Access {
        // The answer must not show whether the requested export exists, so any export that requires
        // a certificate counts. An export that requires only a user does not count, since no
        // certificate opens it.
        let restricted = || self.list.iter().any(|export| export.allowed_identity.is_some());
        if client.may_start_tls && restricted() { Access::NeedsTls } else { Access::Denied }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let plain = || Export::new("a", 1);
        let refused = |list: Vec<Export>, default| Exports::new(list, default).unwrap_err();
        assert_eq!(refused(vec![Export::new("", 1)], None), ExportsError::EmptyName);
        assert_eq!(refused(vec![plain(), plain()], None), ExportsError::Twice { name: "a".into() });
        assert_eq!(refused(vec![plain()], Some(1)), ExportsError::Default { index: 1, count: 1 });
        let long = "x".repeat(MAX_STRING + 1);
        assert!(matches!(refused(vec![Export::new(long, 1)], None), ExportsError::Text { .. }));
        assert!(matches!(refused(vec![Export::new("a\0b", 1)], None), ExportsError::Text { .. }));
        let good = BlockSizes::default();
        for blocks in [
            BlockSizes { min: 0, ..good },
            BlockSizes { min: 3, ..good },
            BlockSizes { min: 1 << 17, preferred: 1 << 17, ..good },
            BlockSizes { preferred: 256, ..good },
            BlockSizes { min: 8192, ..good },
            BlockSizes { max_payload: MAX_PAYLOAD + 1, ..good },
            BlockSizes { max_payload: 4095, ..good },
        ] {
            let export = Export { blocks, ..plain() };
            assert!(
                matches!(refused(vec![export], None), ExportsError::Blocks { .. }),
                "{blocks:?}"
            );
        }
    }

    #[test]
    fn an_export_opens_to_its_owner_only() {
        let of_alice = Export { allowed_identity: Some("alice".into()), ..Export::new("db", 1) };
        let exports = Exports::new(vec![Export::new("open", 1), of_alice], Some(1)).unwrap();
        let named = |names: &[&str]| Client {
            certified: true,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Client::default()
        };
        let (alice, bob) = (named(&["host1", "alice"]), named(&["bob"]));
        let nobody = Client::default();
        let unknown_yet = Client { may_start_tls: true, ..Client::default() };
        for (client, db, missing) in [
            (&alice, Ok(1), Err(Access::Denied)),
            (&bob, Err(Access::Denied), Err(Access::Denied)),
            (&nobody, Err(Access::Denied), Err(Access::Denied)),
            (&unknown_yet, Err(Access::NeedsTls), Err(Access::NeedsTls)),
        ] {
            assert_eq!(exports.find(b"open", client), Ok(0));
            assert_eq!(exports.find(b"db", client), db);
            assert_eq!(exports.find(b"", client), db, "the default export is no way around it");
            assert_eq!(exports.find(b"missing", client), missing);
            assert_eq!(exports.visible(client).count(), if db.is_ok() { 2 } else { 1 });
        }
    }

    #[test]
    fn users_and_certificates_have_to_be_right_both() {
        let users = Users { uids: vec![7, 8], gids: vec![] };
        let list = vec![
            Export { allowed_identity: Some("any".into()), ..Export::new("certified", 1) },
            Export { allowed_users: users.clone(), ..Export::new("local", 1) },
            Export {
                allowed_identity: Some("alice".into()),
                allowed_users: users,
                ..Export::new("both", 1)
            },
        ];
        let exports = Exports::new(list, None).unwrap();
        let seen = |client: Client| -> Vec<String> {
            exports.visible(&client).map(|export| export.name.clone()).collect()
        };
        let user = |uid| Some(User { uid, gids: vec![uid] });
        let alice = Client { certified: true, names: vec!["alice".into()], ..Client::default() };
        assert_eq!(seen(Client::default()), [""; 0]);
        assert_eq!(seen(Client { certified: true, ..Client::default() }), ["certified"]);
        assert_eq!(seen(Client { user: user(8), ..Client::default() }), ["local"]);
        assert_eq!(seen(Client { user: user(9), ..Client::default() }), [""; 0]);
        assert_eq!(seen(alice.clone()), ["certified"]);
        assert_eq!(seen(Client { user: user(9), ..alice.clone() }), ["certified"]);
        assert_eq!(seen(Client { user: user(7), ..alice }), ["certified", "local", "both"]);
    }

    #[test]
    fn read_only_exports_offer_no_writes() {
        let export = Export { read_only: true, ..Export::new("a", 1) };
        let writes = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        assert_eq!(
            export.flags(false) & (writes | flag::READ_ONLY | flag::SEND_DF),
            flag::READ_ONLY
        );
        assert_eq!(
            Export::new("a", 1).flags(true) & (writes | flag::READ_ONLY | flag::SEND_DF),
            writes | flag::SEND_DF
        );
    }
}
