//! Several threads on the same few names at the same time. The result is undetermined, but it must
//! be consistent in itself, and the same for the next reader.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;

use crate::walk::{Kind, Tree, walk};
use ubtrfs_random::Rng;

/// Answers that a race can explain.
const EXPECTED: [Errno; 8] =
    [Errno::NOENT, Errno::EXIST, Errno::NOTEMPTY, Errno::ISDIR, Errno::NOTDIR, Errno::INVAL, Errno::PERM, Errno::NXIO];

/// Lets `threads` threads do `operations` operations each on a few names below `dir`, which is
/// empty, and returns the tree afterwards. Fails the test on an answer that no race explains, and
/// on a tree that contradicts itself.
#[track_caller]
pub fn chaos(dir: &Path, seed: u64, threads: u64, operations: usize) -> Tree {
    for sub in ["a", "b"] {
        std::fs::create_dir(dir.join(sub)).expect("make a directory");
    }
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|number| {
                let mut rng = Rng::new(Rng::new(seed + number).next_u64());
                scope.spawn(move || {
                    for _ in 0..operations {
                        step(dir, &mut rng);
                    }
                })
            })
            .collect();
        for handle in handles {
            if let Err(panic) = handle.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let tree = walk(dir);
    let faults = contradictions(&tree);
    assert!(faults.is_empty(), "after a race: {}", faults.join("\n"));
    tree
}

fn step(dir: &Path, rng: &mut Rng) {
    let mut name = || {
        let sub = *rng.pick(&["a", "b", "a/d", "b/d", "."]);
        dir.join(sub).join(format!("n{}", rng.below(6)))
    };
    let (one, two) = (name(), name());
    let result: Result<(), Errno> = match rng.below(12) {
        0 | 1 => write_file(&one, rng),
        2 => std::fs::create_dir(dir.join(rng.pick(&["a/d", "b/d"]))).map_err(|e| errno_of(&e)),
        3 => std::fs::remove_dir(dir.join(rng.pick(&["a/d", "b/d"]))).map_err(|e| errno_of(&e)),
        4 | 5 => rustix::fs::linkat(CWD, &one, CWD, &two, AtFlags::empty()),
        6 => rustix::fs::renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE),
        7 => rustix::fs::renameat_with(CWD, dir.join("a/d"), CWD, dir.join("b/d"), RenameFlags::empty()),
        8 | 9 => rustix::fs::renameat_with(CWD, &one, CWD, &two, RenameFlags::empty()),
        10 => std::fs::read_dir(dir.join("a"))
            .map(|list| {
                list.count();
            })
            .map_err(|e| errno_of(&e)),
        _ => rustix::fs::unlinkat(CWD, &one, AtFlags::empty()),
    };
    if let Err(error) = result {
        assert!(EXPECTED.contains(&error), "an answer that no race explains: {error}");
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn write_file(path: &Path, rng: &mut Rng) -> Result<(), Errno> {
    let write = || {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        let offset = rng.below(100_000);
        let len = rng.below(20_000) as usize;
        file.write_all_at(&rng.bytes(len), offset)?;
        if rng.one_in(4) {
            file.set_len(rng.below(50_000))?;
        }
        if rng.one_in(20) {
            file.sync_all()?;
        }
        Ok(())
    };
    let mut write = write;
    write().map_err(|error: std::io::Error| errno_of(&error))
}

/// Returns link counts that differ from the number of names, and the anomalies that the walk found.
fn contradictions(tree: &Tree) -> Vec<String> {
    let mut found = tree.anomalies.clone();
    for (path, entry) in tree.entries.iter().filter(|(_, e)| e.kind != Kind::Dir) {
        let group = tree.links.iter().find(|group| group.contains(path));
        let names = group.map_or(1, std::collections::BTreeSet::len) as u64;
        if names != entry.nlink {
            let path = crate::walk::show(path);
            found.push(format!("{path}: {names} names, but a link count of {}", entry.nlink));
        }
    }
    found
}
