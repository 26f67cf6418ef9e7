//! Writes and reads compressed files: a source tree, a database's pages, and data that can't be
//! compressed. The property of the directory chooses the compression, for all peers alike.

use std::path::Path;
use std::time::Instant;

use ubtrfs_random::Rng;

use super::case::{Case, Scale};
use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::meter::metered;
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

const ALGORITHMS: [&str; 3] = ["zstd", "lzo", "zlib"];
const DIRECTORY: &str = "compressed";
/// Bytes of a source file, and of other writes.
const SMALL: usize = 12 << 10;
const LARGE: usize = 1 << 20;
/// A database's page.
const PAGE: usize = 8 << 10;

/// The kind of content.
#[derive(Clone, Copy)]
enum What {
    Sources,
    Pages,
    Noise,
}

pub fn cases(scale: Scale) -> Vec<Case> {
    let bytes = scale.pick(4_usize, 64, 256, 1024) << 20;
    let what = [(What::Sources, "sources"), (What::Pages, "pages"), (What::Noise, "noise")];
    let all = what.into_iter().flat_map(|what| ALGORITHMS.map(|algorithm| (what, algorithm)));
    all.map(|((what, name), algorithm)| {
        let run =
            move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, what, algorithm, bytes);
        let title = format!("{name} compressed by {algorithm}");
        Case::new("compress", format!("compress-{name}-{algorithm}"), title, "written", run).with_subvolumes()
    })
    .collect()
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, what: What, algorithm: &str, bytes: usize) -> Result<()> {
    let place = mounted.directory().join(DIRECTORY);
    let piece = if matches!(what, What::Sources) { SMALL } else { LARGE };
    let contents: Vec<Vec<u8>> = (0..(bytes / piece) as u64).map(|number| content(what, number, piece)).collect();
    let total = contents.iter().map(Vec::len).sum::<usize>() as f64;
    {
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        calls.close(calls.mkdir(&root, DIRECTORY)?);
        calls.close(root);
    }
    let set = rustix::fs::setxattr(&place, "btrfs.compression", algorithm.as_bytes(), rustix::fs::XattrFlags::empty());
    set.map_err(|errno| Failure::about(place.display(), &errno))?;
    mounted.sync()?;
    let before = used(mounted.directory())?;
    let (seconds, usage) = metered(mounted, || {
        let start = Instant::now();
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        let dir = calls.open_dir(&root, DIRECTORY)?;
        write(&calls, &dir, &contents, what)?;
        calls.close(dir);
        calls.close(root);
        mounted.sync()?;
        Ok(start.elapsed().as_secs_f64())
    })?;
    measured.add("written", total / seconds / 1e6, "MB/s", Better::Higher);
    measured.add("takes", (used(mounted.directory())? - before) as f64 / total * 100.0, "%", Better::Lower);
    usage.per_operation(measured, contents.len() as f64);
    mounted.unmount()?;
    mounted.forget_cached()?;
    mounted.mount()?;
    let start = Instant::now();
    let is_right = read(mounted.directory(), &contents, what)?;
    measured.add("read", total / start.elapsed().as_secs_f64() / 1e6, "MB/s", Better::Higher);
    if is_right { Ok(()) } else { Err(Failure::new(format!("{} reads as what was not written", place.display()))) }
}

fn write(calls: &Calls, dir: &Handle, contents: &[Vec<u8>], what: What) -> Result<()> {
    if matches!(what, What::Sources) {
        for (number, content) in contents.iter().enumerate() {
            let file = calls.create(dir, &number.to_string())?;
            calls.write(&file, 0, content)?;
            calls.close(file);
        }
        return cleanup::check();
    }
    let file = calls.create(dir, "0")?;
    let mut offset = 0;
    for content in contents {
        calls.write(&file, offset, content)?;
        offset += content.len() as u64;
        cleanup::check()?;
    }
    calls.close(file);
    Ok(())
}

/// Reads everything. Returns whether it is as it was written.
fn read(root: &Path, contents: &[Vec<u8>], what: What) -> Result<bool> {
    let open = |number: usize| {
        let path = root.join(DIRECTORY).join(number.to_string());
        std::fs::read(&path).map_err(|error| Failure::about(path.display(), &error))
    };
    if matches!(what, What::Sources) {
        for (number, content) in contents.iter().enumerate() {
            if open(number)? != *content {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    Ok(open(0)?.chunks(LARGE).eq(contents.iter().map(Vec::as_slice)))
}

/// Returns the bytes in use.
fn used(root: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(root).map_err(|errno| Failure::about(root.display(), &errno))?;
    Ok((found.f_blocks - found.f_bfree) * found.f_frsize)
}

/// Returns a piece of content, which the number determines.
fn content(what: What, number: u64, len: usize) -> Vec<u8> {
    let mut random = Rng::new(number);
    let mut bytes = Vec::with_capacity(len + PAGE);
    while bytes.len() < len {
        match what {
            What::Noise => bytes.extend_from_slice(&random.next_u64().to_le_bytes()),
            What::Sources => statement(&mut bytes, random.next_u64()),
            What::Pages => page(&mut bytes, &mut random),
        }
    }
    bytes.truncate(len);
    bytes
}

/// Appends a line of a program, with names of its own.
fn statement(bytes: &mut Vec<u8>, number: u64) {
    const VERBS: [&str; 8] = ["read", "write", "find", "insert", "remove", "commit", "lookup", "resolve"];
    const NOUNS: [&str; 8] = ["extent", "inode", "directory", "transaction", "snapshot", "item", "node", "range"];
    let name = |shift: u64| {
        let word = |words: [&'static str; 8], at: u64| words[(number >> (shift + at) & 7) as usize];
        format!("{}_{}{}", word(VERBS, 0), word(NOUNS, 3), number >> (shift + 6) & 63)
    };
    let indent = "    ".repeat((number >> 60) as usize % 4);
    bytes.extend(format!("{indent}let {} = self.{}({:#x})?;\n", name(0), name(20), number >> 48).bytes());
}

/// Appends a page with records at its end, their offsets at its start, and free space in between.
fn page(bytes: &mut Vec<u8>, random: &mut Rng) {
    const RECORD: usize = 96;
    let mut page = vec![0; PAGE];
    let records = 40 + random.next_u64() as usize % 30;
    for record in 0..records {
        let at = PAGE - (record + 1) * RECORD;
        page[24 + record * 4..28 + record * 4].copy_from_slice(&(at as u32).to_le_bytes());
        let (id, amount) = (random.next_u64() % 1_000_000, random.next_u64());
        let text = format!("{id:08}|customer {}|{:012}|open", id % 1000, amount % 10_000_000);
        page[at..at + text.len()].copy_from_slice(text.as_bytes());
        page[at + RECORD - 16..at + RECORD - 8].copy_from_slice(&amount.to_le_bytes());
    }
    bytes.extend(page);
}
