//! OCI layouts: directories, or tar archives of such, with the blobs of images, each named by the
//! digest of its content, and an index of them (the image layout specification). They are
//! untrusted: each blob is checked against its digest and size, no symbolic link in them is
//! followed, and only regular files are read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::archive::{ArchiveReader, components};
use crate::archive_header::Kind;
use crate::error::{Error, Obstacle, Result, outside};

/// The most bytes of an index, a manifest or a configuration (the manual names this limit).
const MAX_JSON: u64 = 4 << 20;
/// The only version of layouts.
const VERSION: &str = "1.0.0";

/// The digest by which a blob is named: `sha256:` and 64 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Parses a digest. Its digits are the name of a file, so only one form of each digest is
    /// accepted, and no other byte.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?.as_bytes();
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Self(bytes))
    }

    /// The name of the file that has the blob.
    fn file_name(self) -> String {
        let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
        self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sha256:{}", self.file_name())
    }
}

/// The reference to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    pub platform: Option<PlatformOfImage>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// The platform that an image is for.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PlatformOfImage {
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub architecture: String,
    pub variant: Option<String>,
}

impl Descriptor {
    /// The digest that it names.
    pub fn digest(&self) -> Result<Digest> {
        Digest::parse(&self.digest).ok_or_else(|| {
            let digest = self.digest.escape_debug();
            Error::Refused(format!("the image has the digest '{digest}', which is not sha256: and 64 digits"))
        })
    }
}

/// An open layout.
#[derive(Debug)]
pub struct Layout {
    path: PathBuf,
    files: Files,
}

/// The files of a layout.
#[derive(Debug)]
enum Files {
    /// In a directory.
    Directory(OwnedFd),
    /// In a tar archive: the offset and the length of the data of each file, in bytes.
    Archive(File, BTreeMap<String, (u64, u64)>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    image_layout_version: String,
}

impl Layout {
    /// Opens a layout in a directory.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = openat(CWD, path, flags, Mode::empty()).map_err(outside(path))?;
        Self { path: path.into(), files: Files::Directory(top) }.checked()
    }

    /// Opens a layout in a tar archive.
    pub fn open_archive(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(outside(path))?;
        let mut members = BTreeMap::new();
        let mut archive = ArchiveReader::new(&file);
        while let Some(of) = archive.next()? {
            let names: Vec<_> = components(&of.path)?.into_iter().map(String::from_utf8_lossy).collect();
            let at = (&file).stream_position().map_err(outside(path))?;
            // Other files don't belong to a layout, and there may be very many of them.
            let name = names.join("/");
            if of.kind == Kind::Regular && of.ranges == [(0, of.size)] && is_of_layout(&name) {
                members.insert(name, (at, of.size));
            }
            let passed = archive.pass_over();
            (&file).seek(SeekFrom::Start(at.saturating_add(passed))).map_err(outside(path))?;
        }
        file.rewind().map_err(outside(path))?;
        Self { path: path.into(), files: Files::Archive(file, members) }.checked()
    }

    fn checked(self) -> Result<Self> {
        let path = self.path.display();
        let mark = match self.file("oci-layout") {
            Err(Error::Outside { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let is_docker = self.file("manifest.json").is_ok();
                let what = format!("{path} is no OCI layout: it has no file oci-layout");
                return Err(if is_docker {
                    Error::Blocked { what, obstacle: Obstacle::DockerArchive }
                } else {
                    Error::Refused(what)
                });
            }
            file => file?,
        };
        let mark: Mark = self.json("oci-layout", &self.bounded("oci-layout", mark)?)?;
        if mark.image_layout_version != VERSION {
            let version = mark.image_layout_version.escape_debug();
            return Err(self.refused(&format!("is a layout of the version '{version}', which is not known")));
        }
        Ok(self)
    }

    /// An error about the layout.
    pub fn refused(&self, why: &str) -> Error {
        Error::Refused(format!("{}: {why}", self.path.display()))
    }

    /// Refuses the image for what is in the way.
    pub fn blocked(&self, why: &str, obstacle: Obstacle) -> Error {
        Error::Blocked { what: format!("{}: {why}", self.path.display()), obstacle }
    }

    /// What `index.json` says.
    pub fn index<T: DeserializeOwned>(&self) -> Result<T> {
        self.json("index.json", &self.bounded("index.json", self.file("index.json")?)?)
    }

    /// Reads a small blob as JSON.
    pub fn document<T: DeserializeOwned>(&self, of: &Descriptor) -> Result<T> {
        let shown = of.digest()?.to_string();
        if of.size > MAX_JSON {
            return Err(self.refused(&format!("the document {shown} has more than {MAX_JSON} bytes")));
        }
        let mut blob = self.blob(of)?;
        let mut bytes = Vec::new();
        blob.read_to_end(&mut bytes).map_err(outside(&self.path))?;
        blob.finish()?;
        self.json(&shown, &bytes)
    }

    /// Opens a blob, which must be read to its end and [finished](Blob::finish).
    pub fn blob(&self, of: &Descriptor) -> Result<Blob<'_>> {
        let digest = of.digest()?;
        let name = format!("blobs/sha256/{}", digest.file_name());
        let part = self.file(&name)?;
        if part.left != of.size {
            let (found, size) = (part.left, of.size);
            return Err(self.refused(&format!("{name} has {found} bytes instead of {size}")));
        }
        Ok(Blob { layout: self, digest, hashed: Hashed::new(part) })
    }

    /// Opens a file of the layout.
    fn file(&self, name: &str) -> Result<Part> {
        let shown = self.path.join(name);
        match &self.files {
            Files::Directory(top) => {
                let file = regular(top.as_fd(), name, &shown)?;
                let left = file.metadata().map_err(outside(&shown))?.len();
                Ok(Part { file, at: 0, left })
            }
            Files::Archive(archive, members) => {
                let missing = || outside(&shown)(io::Error::from(io::ErrorKind::NotFound));
                let (at, left) = *members.get(name).ok_or_else(missing)?;
                Ok(Part { file: archive.try_clone().map_err(outside(&shown))?, at, left })
            }
        }
    }

    fn bounded(&self, name: &str, file: Part) -> Result<Vec<u8>> {
        if file.left > MAX_JSON {
            return Err(self.refused(&format!("{name} has more than {MAX_JSON} bytes")));
        }
        let mut bytes = Vec::new();
        file.take(MAX_JSON).read_to_end(&mut bytes).map_err(outside(self.path.join(name)))?;
        Ok(bytes)
    }

    fn json<T: DeserializeOwned>(&self, name: &str, bytes: &[u8]) -> Result<T> {
        serde_json::from_slice(bytes).map_err(|error| {
            let error = error.to_string();
            self.refused(&format!("{name} can't be understood: {}", error.escape_debug()))
        })
    }
}

/// Returns whether a file of this name belongs to a layout, or shows that the archive is another
/// format.
fn is_of_layout(name: &str) -> bool {
    matches!(name, "oci-layout" | "index.json" | "manifest.json")
        || name.strip_prefix("blobs/sha256/").is_some_and(|digits| digits.len() == 64)
}

/// Opens a regular file below a directory, through no symbolic link.
fn regular(top: BorrowedFd<'_>, name: &str, shown: &Path) -> Result<File> {
    let open = |dir: BorrowedFd<'_>, name: &str, more: OFlags| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
        openat(dir, name, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::LOOP => {
                Error::Refused(format!("{} is a symbolic link, which no layout has", shown.display()))
            }
            error => outside(shown)(error),
        })
    };
    let mut names: Vec<&str> = name.split('/').collect();
    let last = names.pop().unwrap_or_default();
    let mut dir: Option<OwnedFd> = None;
    for name in names {
        dir = Some(open(dir.as_ref().map_or(top, AsFd::as_fd), name, OFlags::DIRECTORY)?);
    }
    // Without `O_NONBLOCK`, the open of a FIFO would wait.
    let file = open(dir.as_ref().map_or(top, AsFd::as_fd), last, OFlags::NONBLOCK)?;
    let found = fstat(&file).map_err(outside(shown))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Error::Refused(format!("{} is no regular file", shown.display())));
    }
    Ok(file.into())
}

/// A part of a file.
#[derive(Debug)]
struct Part {
    file: File,
    at: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = self.left.min(buf.len() as u64) as usize;
        let read = self.file.read_at(&mut buf[..most], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// A blob that is being read.
pub struct Blob<'a> {
    layout: &'a Layout,
    digest: Digest,
    hashed: Hashed<Part>,
}

impl Read for Blob<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.hashed.read(buf)
    }
}

impl Blob<'_> {
    /// Reads the rest of the blob, and checks its digest.
    pub fn finish(mut self) -> Result<()> {
        let found = self.hashed.finish().map_err(outside(&self.layout.path))?;
        if found != self.digest {
            return Err(self.layout.refused(&format!("the blob {} has other content: it is damaged", self.digest)));
        }
        Ok(())
    }
}

/// A reader that computes the digest of what it reads.
pub struct Hashed<R> {
    reader: R,
    hash: Sha256,
}

impl<R: Read> Hashed<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, hash: Sha256::new() }
    }

    /// Reads the rest, and returns the digest of all.
    pub fn finish(&mut self) -> io::Result<Digest> {
        io::copy(self, &mut io::sink())?;
        Ok(Digest(self.hash.finalize_reset().into()))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buf)?;
        self.hash.update(&buf[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_have_one_form() {
        let digits = "0123456789abcdef".repeat(4);
        let digest = Digest::parse(&format!("sha256:{digits}")).unwrap();
        assert_eq!(digest.to_string(), format!("sha256:{digits}"));
        assert_eq!(&digest.0[..3], [0x01, 0x23, 0x45]);
        let wrong = [
            digits.clone(),
            format!("sha512:{digits}"),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:{digits}0"),
            format!("sha256:{}", digits.to_uppercase()),
            format!("sha256:../../../../etc/passwd{}", &digits[..43]),
            format!("sha256:{}\0{}", &digits[..30], &digits[..33]),
            format!("sha256:\u{e4}{}", &digits[..62]),
        ];
        for wrong in wrong {
            assert_eq!(Digest::parse(&wrong), None, "{wrong:?}");
        }
    }
}
