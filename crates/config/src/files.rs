//! Files that a user names on the command line.
//!
//! Only text of a bounded size is read, so that a disk in the place of a configuration is refused
//! and not printed. Output files are opened before the work for them begins: a missing folder must
//! not be discovered after minutes of measuring.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::refusal::Refusal;

/// The longest text, in bytes.
const MOST: u64 = 1 << 20;

/// Reads a text file.
pub fn read_text(path: &Path) -> Result<String, Refusal> {
    let refuse = |what: String| Refusal::new(format!("{}: {what}", path.display()));
    let mut bytes = Vec::new();
    // One byte more than allowed distinguishes a text that is too long.
    File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)).map_err(
        |error| {
            refuse(format!(
                "cannot be read: {error}: check the path, and that this user may read it"
            ))
        },
    )?;
    if bytes.len() as u64 > MOST {
        return Err(refuse(
            "is longer than 1M, the limit for text files: name the file that was meant".into(),
        ));
    }
    // Zero bytes are valid UTF-8, and an empty image of a disk has only these.
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| refuse("is not text: name the file that was meant".into()))
}

/// An output file that is opened before its contents are known.
pub struct Output {
    path: PathBuf,
    file: File,
    /// Whether to remove the file if nothing is written.
    is_new: bool,
}

impl Output {
    /// Opens a file; its contents stay until something is written.
    pub fn open(path: &Path) -> Result<Output, Refusal> {
        let is_new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let refuse = |error| {
            let path = path.display();
            Refusal::new(format!(
                "cannot write {path}: {error}: name a place in a folder that this user may write to"
            ))
        };
        Ok(Output { path: path.into(), file: file.map_err(refuse)?, is_new })
    }

    /// Opens a file if one is named, and it is not standard output (`-`).
    pub fn open_if_named(path: Option<&Path>) -> Result<Option<Output>, Refusal> {
        path.filter(|path| *path != Path::new("-")).map(Output::open).transpose()
    }

    /// Replaces the file's contents.
    pub fn write(
        mut self,
        write: impl FnOnce(&mut File) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        self.is_new = false;
        let done = self.cut().and_then(|()| write(&mut self.file));
        done.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Writes a text with a newline at its end.
    pub fn write_text(self, text: &str) -> anyhow::Result<()> {
        self.write(|file| writeln!(file, "{}", text.trim_end()))
    }

    /// Truncates a regular file; devices and pipes have no length.
    fn cut(&self) -> std::io::Result<()> {
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_new {
            // The work has failed, and its own error is reported: an empty file that cannot be
            // removed does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Replaces an existing file's contents atomically.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let (metadata, beside) = (std::fs::metadata(path)?, path.with_file_name(name));
        let mut file = File::options().write(true).create_new(true).open(&beside)?;
        let written = file
            .set_permissions(metadata.permissions())
            .and_then(|()| {
                // If root writes the file, it keeps its owner; any other user owns it already, so
                // a failure is ignored.
                let _ =
                    std::os::unix::fs::fchown(&file, Some(metadata.uid()), Some(metadata.gid()));
                file.write_all(text.as_bytes())
            })
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&beside, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a line to standard output. A closed pipe is not an error.
pub fn write_out(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let said = || read_text(&path).unwrap_err().to_string();
        assert!(said().contains("x: cannot be read: No such file"));
        std::fs::write(&path, "a\0b").unwrap();
        assert!(said().ends_with("x: is not text: name the file that was meant"));
        File::create(&path).unwrap().set_len(MOST + 1).unwrap();
        assert!(said().contains("is longer than 1M"));
        std::fs::write(&path, "a = 1\n").unwrap();
        assert_eq!(read_text(&path).unwrap(), "a = 1\n");
    }

    #[test]
    fn what_was_there_stays_until_something_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        std::fs::write(&old, "a long text\n").unwrap();
        for path in [&old, &new] {
            drop(Output::open(path).unwrap());
        }
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "a long text\n");
        assert!(!new.exists());
        for path in [&old, &new] {
            Output::open(path).unwrap().write_text("short").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), "short\n");
        }
        assert!(Output::open(&folder.path().join("no/file")).is_err());
        assert!(Output::open_if_named(Some(Path::new("-"))).unwrap().is_none());
    }
}
