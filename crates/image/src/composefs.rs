//! Writes a tree of a volume as the text that composefs-dump(5) describes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;

use ubtrfs::Filesystem;
use ubtrfs::format::items::FileType;

use crate::error::{Result, outside};
use crate::inside::{VolumeFile, VolumeFiles};
use crate::job::Job;
use crate::linked_path::LinkedPath;
use crate::source::{Description, Source};
use crate::verity::Verity;

/// The most bytes of a file whose content is in the text.
const INLINE: u64 = 64;

/// Writes the tree below a directory, which is shown as `/`. With `digests`, files whose content is
/// not in the text get the fs-verity digest, and the path that they have in a store of files.
pub fn dump(
    fs: &Arc<Filesystem>,
    dir: VolumeFile,
    digests: bool,
    mut out: impl Write,
    job: &mut Job<'_>,
) -> Result<()> {
    let source = VolumeFiles::new(fs);
    let mut links: HashMap<(u64, u64), LinkedPath> = HashMap::new();
    let mut left = vec![dir];
    while let Some(file) = left.pop() {
        let of = source.describe(&file)?;
        let nlink = fs.inodes().attributes(file.id).map_err(|error| file.failed(error))?.nlink;
        let mut line = escaped(&file.path().below(b"/"), false);
        let size = if of.file_type() == FileType::Symlink { of.target.len() as u64 } else { of.size };
        let first = of.identity.and_then(|identity| links.get(&identity));
        let mark = if first.is_some() { "@" } else { "" };
        let rdev = rustix::fs::makedev((of.rdev >> 20) as u32, (of.rdev & 0xf_ffff) as u32);
        let (uid, gid, sec, nsec) = (of.uid, of.gid, of.mtime.sec as i64, of.mtime.nsec);
        let _ = write!(line, " {size} {mark}{:o} {nlink} {uid} {gid} {rdev} {sec}.{nsec}", of.mode);
        let fields = match first {
            Some(first) => format!(" {} - -", escaped(&first.below(b"/"), false)),
            None => content(&source, &file, &of, digests, job)?,
        };
        line.push_str(&fields);
        for (key, value) in &of.xattrs {
            let _ = write!(line, " {}={}", escaped(key, true), escaped(value, true));
        }
        line.push('\n');
        out.write_all(line.as_bytes()).map_err(outside("standard output"))?;
        if of.file_type() == FileType::Directory {
            left.extend(source.named_children(&file)?.into_iter().rev());
        }
        if let Some(identity) = of.identity {
            links.entry(identity).or_insert_with(|| file.path().clone());
        }
        job.done(of.file_type())?;
    }
    out.flush().map_err(outside("standard output"))
}

/// Makes the fields of the payload, the content and the digest, each with a space before it.
fn content(
    source: &VolumeFiles,
    file: &VolumeFile,
    of: &Description,
    digests: bool,
    job: &mut Job<'_>,
) -> Result<String> {
    let is_inline = of.size <= INLINE;
    match of.file_type() {
        FileType::Symlink => return Ok(format!(" {} - -", optional(&of.target))),
        FileType::Regular if of.size > 0 && (is_inline || digests) => {}
        _ => return Ok(" - - -".into()),
    }
    let (mut whole, mut verity) = (Vec::new(), Verity::default());
    let mut at = 0;
    while at < of.size {
        let end = of.size.min(at + (1 << 20));
        source.read_range(file, (at, end), &mut |_, data| {
            job.add(data.len() as u64);
            if is_inline {
                whole.extend_from_slice(data);
            } else {
                verity.update(data);
            }
            Ok(())
        })?;
        at = end;
    }
    if is_inline {
        return Ok(format!(" - {} -", optional(&whole)));
    }
    let digest = verity.finish().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let (dir, name) = digest.split_at(2);
    Ok(format!(" {dir}/{name} - {digest}"))
}

/// Formats a field that may be missing.
fn optional(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".into() } else { escaped(bytes, false) }
}

/// Formats a field. Bytes that separate fields and unprintable bytes are escaped, and so is a field
/// that looks like a missing one.
fn escaped(bytes: &[u8], is_xattr: bool) -> String {
    if bytes == b"-" {
        return "\\x2d".into();
    }
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if !byte.is_ascii_graphic() || *byte == b'\\' || (is_xattr && *byte == b'=') {
            let _ = write!(text, "\\x{byte:02x}");
        } else {
            text.push(char::from(*byte));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_no_byte_that_separates_them() {
        assert_eq!(escaped(b"a b=\n\\\xff-", false), "a\\x20b=\\x0a\\x5c\\xff-");
        assert_eq!(escaped(b"a=b", true), "a\\x3db");
        assert_eq!((optional(b""), optional(b"-")), ("-".into(), "\\x2d".into()));
    }
}
