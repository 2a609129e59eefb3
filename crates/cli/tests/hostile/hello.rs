//! Handshakes in any order: the options, the right replies, and the result.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use crate::book::Agreed;
use crate::server::{PATIENCE, Server, exactly};
use crate::wire::{Keys, Wire};

/// The names of exports for clients; the last one does not exist.
pub(crate) const EXPORTS: [&str; 3] = ["rw", "ro", "no such export"];

const EXPORT_NAME: u32 = 1;
const LIST: u32 = 3;
const STARTTLS: u32 = 5;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED: u32 = 8;
const LIST_CONTEXT: u32 = 9;
const SET_CONTEXT: u32 = 10;
const EXTENDED: u32 = 11;

const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFORMATION: u32 = 3;
const CONTEXT: u32 = 4;
const ERROR: u32 = 1 << 31;

/// An option that a client sends.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Structured,
    Extended,
    Context {
        set: bool,
        export: usize,
        is_known: bool,
    },
    Info(usize),
    List,
    StartTls,
    Unknown(u32),
    /// A known option with data of any kind.
    Noise(u32, Vec<u8>),
}

/// A client's part of a handshake.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    said: Vec<Said>,
    pub(crate) export: usize,
    by_name: bool,
    /// A bit of the client's bytes that is flipped; the client then disconnects.
    damage: Option<u16>,
    /// Bytes of each write.
    step: usize,
    /// Whether TLS is 1.3, or 1.2; `None` for plain text.
    tls: Option<bool>,
}

fn said() -> impl Strategy<Value = Said> {
    let known = prop::sample::select(vec![
        LIST,
        STARTTLS,
        INFO,
        STRUCTURED,
        LIST_CONTEXT,
        SET_CONTEXT,
        EXTENDED,
    ]);
    prop_oneof![
        6 => Just(Said::Structured),
        3 => Just(Said::Extended),
        6 => (any::<bool>(), 0..3_usize, any::<bool>())
            .prop_map(|(set, export, is_known)| Said::Context { set, export, is_known }),
        1 => (0..3_usize).prop_map(Said::Info),
        1 => Just(Said::List),
        1 => Just(Said::StartTls),
        1 => (12..u32::MAX).prop_map(Said::Unknown),
        1 => (known, prop::collection::vec(any::<u8>(), 1..200))
            .prop_map(|(option, data)| Said::Noise(option, data)),
    ]
}

pub(crate) fn hello() -> impl Strategy<Value = Hello> {
    let export = prop_oneof![12 => Just(0), 2 => Just(1), 1 => Just(2)];
    let damage = prop::option::weighted(0.1, any::<u16>());
    let step = prop_oneof![4 => Just(usize::MAX), 1 => 1..20_usize];
    let tls = prop::option::weighted(0.4, any::<bool>());
    (prop::collection::vec(said(), 0..6), export, any::<bool>(), damage, step, tls).prop_map(
        |(mut said, export, by_name, damage, step, tls)| {
            let tls = tls.filter(|_| damage.is_none());
            // Outside TLS this option would start TLS; inside the server refuses it.
            said.retain(|said| tls.is_some() || !matches!(said, Said::StartTls));
            Hello { said, export, by_name, damage, step, tls }
        },
    )
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [b"IHAVEOPT", &number.to_be_bytes()[..], &length, data].concat()
}

fn sized(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

impl Said {
    fn number(&self) -> u32 {
        match self {
            Said::Structured => STRUCTURED,
            Said::Extended => EXTENDED,
            Said::Context { set: true, .. } => SET_CONTEXT,
            Said::Context { .. } => LIST_CONTEXT,
            Said::Info(_) => INFO,
            Said::List => LIST,
            Said::StartTls => STARTTLS,
            Said::Unknown(number) | Said::Noise(number, _) => *number,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let data = match self {
            Said::Context { export, is_known, .. } => {
                let query: &[u8] = if *is_known { b"base:allocation" } else { b"qemu:dirty" };
                [sized(EXPORTS[*export].as_bytes()), vec![0, 0, 0, 1], sized(query)].concat()
            }
            Said::Info(export) => [sized(EXPORTS[*export].as_bytes()), vec![0, 0]].concat(),
            Said::Noise(_, data) => data.clone(),
            _ => Vec::new(),
        };
        option(self.number(), &data)
    }
}

/// A reply's kind and data.
type Reply = (u32, Vec<u8>);

/// The replies to an option, the last included.
fn replies(stream: &mut Wire, number: u32) -> Result<Vec<Reply>, String> {
    let mut replies = Vec::new();
    loop {
        let head = exactly(stream, 20).map_err(|error| format!("option {number}: {error}"))?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (kind, length) = (word(12), word(16) as usize);
        if (word(0), word(4), word(8)) != (0x0003_e889, 0x0455_65a9, number) || length > 1 << 20 {
            return Err(format!("option {number} is answered by {head:x?}"));
        }
        replies.push((kind, exactly(stream, length).map_err(|error| error.to_string())?));
        if kind == ACK || kind & ERROR != 0 {
            return Ok(replies);
        }
    }
}

/// The result of the options so far.
#[derive(Default)]
struct State {
    structured: bool,
    extended: bool,
    context: Option<(usize, u32)>,
}

impl State {
    fn has_chunks(&self) -> bool {
        self.structured || self.extended
    }

    /// Checks the replies to an option against the specification.
    fn heard(&mut self, said: &Said, replies: &[Reply]) -> Result<(), String> {
        let (last, _) = replies.last().expect("there is a last one");
        let is_taken = *last == ACK;
        let kinds: Vec<u32> = replies.iter().map(|(kind, _)| *kind).collect();
        let wrong = || Err(format!("{said:?} is answered by {kinds:x?}"));
        if said.number() == SET_CONTEXT {
            self.context = None;
        }
        let due = match said {
            Said::Structured => !self.extended,
            Said::Extended => true,
            Said::Context { export, .. } => self.has_chunks() && *export < 2,
            Said::Info(export) => *export < 2,
            Said::List => true,
            Said::StartTls | Said::Unknown(_) => false,
            // Random data may be accepted or refused.
            Said::Noise(..) => is_taken,
        };
        if due != is_taken {
            return wrong();
        }
        match said {
            Said::Structured => self.structured |= is_taken,
            Said::Extended => self.extended = true,
            Said::Context { set, export, is_known } if is_taken => {
                let told = replies.iter().find(|(kind, _)| *kind == CONTEXT);
                if told.is_some() != *is_known {
                    return wrong();
                }
                if let Some((_, data)) = told.filter(|_| *set) {
                    let number = u32::from_be_bytes(data[..4].try_into().unwrap());
                    self.context = Some((*export, number));
                }
            }
            Said::List if kinds.iter().filter(|kind| **kind == SERVER).count() != 3 => {
                return wrong();
            }
            _ => {}
        }
        Ok(())
    }
}

impl Hello {
    /// A plain client of the first export.
    pub(crate) fn plain() -> Hello {
        Hello {
            said: Vec::new(),
            export: 0,
            by_name: false,
            damage: None,
            step: usize::MAX,
            tls: None,
        }
    }

    /// Performs the handshake; returns the connection if an export was opened.
    pub(crate) fn play(
        &self,
        server: &Server,
        keys: &Keys,
    ) -> Result<Option<(Wire, Agreed)>, String> {
        let fail = |error: std::io::Error| format!("{self:?}: {error}");
        let mut stream = UnixStream::connect(server.path("sock")).map_err(fail)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(fail)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(fail)?;
        let name = EXPORTS[self.export].as_bytes();
        // The old option to open an export (EXPORT_NAME) is not used after extended headers are
        // requested.
        let by_name =
            self.by_name && !self.said.iter().any(|said| matches!(said.number(), EXTENDED));
        if exactly(&mut stream, 18).map_err(fail)? != b"NBDMAGICIHAVEOPT\0\x03" {
            return Err("another greeting".into());
        }
        let mut bytes = 3_u32.to_be_bytes().to_vec();
        let mut wire = match self.tls {
            None => Wire::Plain(stream),
            Some(is_new) => {
                bytes.extend(option(STARTTLS, &[]));
                stream.write_all(&bytes).map_err(fail)?;
                bytes.clear();
                let answer = exactly(&mut stream, 20).map_err(fail)?;
                if answer[12..] != [0, 0, 0, 1, 0, 0, 0, 0] {
                    return Err(format!("TLS does not start: {answer:x?}"));
                }
                Wire::secret(stream, &keys.clients[usize::from(is_new)])
            }
        };
        self.said.iter().for_each(|said| bytes.extend(said.bytes()));
        bytes.extend(if by_name {
            option(EXPORT_NAME, name)
        } else {
            option(GO, &[sized(name), vec![0, 0]].concat())
        });
        if let Some(bit) = self.damage {
            let bit = usize::from(bit) % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for piece in bytes.chunks(self.step.min(bytes.len())) {
            match wire.write_all(piece) {
                Err(_) if self.damage.is_some() => break,
                result => result.map_err(fail)?,
            }
        }
        if self.damage.is_some() {
            // The server has to close the connection after any damage.
            wire.end_stream();
            let ended = wire.read_to_end(&mut Vec::new());
            let is_late = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            return if is_late { Err("the server waits for ever".into()) } else { Ok(None) };
        }
        let mut state = State::default();
        for said in &self.said {
            let replies = replies(&mut wire, said.number())?;
            state.heard(said, &replies)?;
        }
        let information = if by_name && self.export == 2 {
            return match wire.read(&mut [0]) {
                Ok(0) => Ok(None),
                other => Err(format!("an export that is none opens: {other:?}")),
            };
        } else if by_name {
            exactly(&mut wire, 10).map_err(fail)?
        } else {
            let replies = replies(&mut wire, GO)?;
            let is_open = replies.last().is_some_and(|(kind, _)| *kind == ACK);
            if is_open != (self.export < 2) {
                return Err(format!("{self:?}: the export opens: {is_open}"));
            }
            let told = replies.iter().find(|(kind, data)| {
                *kind == INFORMATION && data.len() == 12 && data[..2] == [0, 0]
            });
            match told {
                Some((_, data)) => data[2..].to_vec(),
                None if is_open => return Err("nothing is said of the export".into()),
                None => return Ok(None),
            }
        };
        let size = u64::from_be_bytes(information[..8].try_into().unwrap());
        let context = state.context.filter(|(export, _)| *export == self.export);
        let agreed = Agreed {
            structured: state.has_chunks(),
            extended: state.extended,
            context: context.map(|(_, number)| number),
            size,
            read_only: information[9] & 2 != 0,
        };
        Ok(Some((wire, agreed)))
    }
}
