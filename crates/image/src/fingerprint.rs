//! The hash of all that a copy of a tree of files keeps, which distinguishes the tree from others.

use sha2::{Digest, Sha256};
use ubtrfs::format::items::{FileType, Timespec};

use crate::error::Result;
use crate::source::{Description, Source};

/// Computes the hash of a tree: of its names, the descriptions of its files, which names are hard
/// links to the same inode, and the content. Holes count as zeros.
pub fn fingerprint<S: Source>(source: &S, node: S::Node) -> Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut left = vec![(0_u64, Vec::new(), node)];
    let (mut met, mut number) = (std::collections::HashMap::new(), 0_u64);
    while let Some((depth, name, node)) = left.pop() {
        let of = source.describe(&node)?;
        number += 1;
        hash.update(depth.to_le_bytes());
        field(&mut hash, &name);
        describe(&mut hash, &of);
        // The number is zero for the first name of an inode in the tree, so names outside of the
        // tree make no difference.
        let first = of.identity.map_or(number, |identity| *met.entry(identity).or_insert(number));
        if first != number {
            hash.update(first.to_le_bytes());
            continue;
        }
        hash.update(0_u64.to_le_bytes());
        match of.file_type() {
            FileType::Directory => {
                let children = source.children(&node)?.into_iter().rev();
                left.extend(children.map(|(name, node)| (depth + 1, name, node)));
            }
            FileType::Regular => content(&mut hash, source, &node, of.size)?,
            _ => {}
        }
    }
    Ok(hash.finalize().into())
}

/// Hashes a field after its length, so that no two sequences of fields give the same bytes.
fn field(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

fn describe(hash: &mut Sha256, of: &Description) {
    let time = |time: &Timespec| [time.sec, time.nsec.into()];
    let numbers = [of.mode.into(), of.uid.into(), of.gid.into(), of.rdev];
    let numbers = numbers.into_iter().chain(time(&of.atime)).chain(time(&of.mtime));
    numbers.for_each(|number| hash.update(number.to_le_bytes()));
    field(hash, &of.target);
    hash.update((of.xattrs.len() as u64).to_le_bytes());
    for (name, value) in &of.xattrs {
        field(hash, name);
        field(hash, value);
    }
}

fn content<S: Source>(hash: &mut Sha256, source: &S, node: &S::Node, size: u64) -> Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut end = 0;
    let zeros = |hash: &mut Sha256, mut len: u64| {
        while len > 0 {
            let part = len.min(ZEROS.len() as u64);
            hash.update(&ZEROS[..part as usize]);
            len -= part;
        }
    };
    source.read(node, size, &mut |at, data| {
        zeros(hash, at.saturating_sub(end));
        hash.update(data);
        end = at + data.len() as u64;
        Ok(())
    })?;
    zeros(hash, size.saturating_sub(end));
    hash.update(end.max(size).to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{HostFile, HostFiles};

    #[test]
    fn what_a_copy_would_show_changes_a_fingerprint_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let source =
            HostFiles { without_xattrs: true, latest: Some(Timespec { sec: 5, nsec: 0 }), ..HostFiles::default() };
        let print = || fingerprint(&source, HostFile::named(dir.path(), false)).unwrap();
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/one"), vec![0; 100_000]).unwrap();
        fs::write(at("two"), "content").unwrap();
        let first = print();
        // The file gets times after `latest`, a hole where zeros were, and another inode.
        fs::remove_file(at("sub/one")).unwrap();
        fs::File::create(at("sub/one")).unwrap().set_len(100_000).unwrap();
        assert_eq!(print(), first);
        // The file gets another name outside of the tree.
        let elsewhere = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
        fs::hard_link(at("two"), elsewhere.path().join("two")).unwrap();
        assert_eq!(print(), first);
        let mut all = vec![first];
        let mut has_changed = || {
            let now = print();
            assert!(!all.contains(&now), "after {} changes", all.len());
            all.push(now);
        };
        fs::rename(at("two"), at("sub/two")).unwrap();
        has_changed();
        fs::write(at("sub/two"), "Content").unwrap();
        has_changed();
        fs::hard_link(at("sub/two"), at("three")).unwrap();
        has_changed();
        fs::remove_file(at("three")).unwrap();
        fs::copy(at("sub/two"), at("three")).unwrap();
        has_changed();
        std::os::unix::fs::symlink("sub", at("link")).unwrap();
        has_changed();
    }
}
