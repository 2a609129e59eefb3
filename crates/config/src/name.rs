//! The names of tenants and groups, and the places where they are written.

use std::fmt;

/// The most characters of a name; NBD allows 4096 bytes, but no client shows as many.
const NAME_MAX: usize = 64;

/// The place of a configuration, for messages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Origin {
    /// On the command line.
    #[default]
    Flag,
    /// In a file, at this line.
    File(String, usize),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("--tenant"),
            Origin::File(path, line) => write!(f, "{path}:{line}"),
        }
    }
}

/// Checks a name. Names are UTF-8, as in NBD, and appear in command lines, URIs and terminals: of
/// the ASCII characters only letters, digits, `.`, `_` and `-` are allowed, of all others every
/// visible one (not control characters, spaces or marks of writing direction). Two names are equal
/// if their bytes are.
pub fn check_name(name: &str) -> Result<(), String> {
    let unseen = |c: char| {
        // Soft hyphen, Arabic letter mark, Mongolian vowel separator, byte order mark: all are
        // invisible.
        let formats = ['\u{ad}', '\u{61c}', '\u{180e}', '\u{feff}'];
        // Marks of width and direction, separators, invisible operators, specials; private use and
        // tags, which have no glyphs of their own.
        let ranges = [
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
            '\u{fff0}'..='\u{fffd}',
            '\u{e000}'..='\u{f8ff}',
            '\u{e0000}'..='\u{10ffff}',
        ];
        c.is_control()
            || c.is_whitespace()
            || formats.contains(&c)
            || ranges.iter().any(|range| range.contains(&c))
    };
    let plain = |c: char| match c.is_ascii() {
        true => c.is_ascii_alphanumeric() || "._-".contains(c),
        false => !unseen(c),
    };
    if name.is_empty() {
        return Err("a tenant needs a name, as in db=10G,weight=300".into());
    }
    if name.chars().count() > NAME_MAX || !name.chars().all(plain) {
        return Err(format!(
            "tenant name `{name}`: up to {NAME_MAX} letters, digits, `.`, `_` and `-` are allowed"
        ));
    }
    Ok(())
}
