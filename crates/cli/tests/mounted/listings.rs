//! Listings neither lack names nor show deleted ones, though the kernel caches what other programs
//! have read of the directory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::fs::RawDir;
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume};

/// More than one request of the kernel brings.
const NAMES: usize = 2000;

fn name(number: usize) -> String {
    format!("name {number:06}")
}

/// The names that one getdents(2) brings; `None` at the end.
fn some(dir: &File) -> Option<Vec<String>> {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut raw = RawDir::new(dir, &mut room);
    let mut names = Vec::new();
    let mut any = false;
    // Up to where it would call the kernel again.
    while !any || !raw.is_buffer_empty() {
        let Some(entry) = raw.next() else { break };
        any = true;
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    any.then_some(names)
}

fn rest(dir: &File) -> Vec<String> {
    std::iter::from_fn(|| some(dir)).flatten().collect()
}

fn listed(dir: &Path) -> BTreeSet<String> {
    rest(&File::open(dir).unwrap()).into_iter().collect()
}

fn full(volume: &Volume) -> PathBuf {
    let dir = volume.point.join("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..NAMES {
        File::create(dir.join(name(number))).unwrap();
    }
    dir
}

#[test]
fn a_name_that_was_removed_before_a_listing_began_is_not_in_it() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let dir = full(&volume);
    // A reader reads a part.
    let first = File::open(&dir).unwrap();
    let seen: Vec<String> = std::iter::repeat_with(|| some(&first).unwrap()).take(3).flatten().collect();
    // A name of it is deleted.
    let gone = &seen[seen.len() - 2];
    fs::remove_file(dir.join(gone)).unwrap();
    // A listing begins, and before it ends another has been read as a whole.
    let second = File::open(&dir).unwrap();
    let mut names = some(&second).unwrap();
    assert!(!names.contains(gone));
    assert_eq!(listed(&dir).len(), NAMES - 1);
    names.extend(rest(&second));
    assert!(!names.contains(gone), "{gone}");
    assert_eq!(names.len(), NAMES - 1);
    // A reader that began before the deletion misses none of the other names, and all readers see
    // the same from now on.
    let left: BTreeSet<String> = seen.iter().cloned().chain(rest(&first)).collect();
    assert!((0..NAMES).map(name).all(|name| left.contains(&name)));
    assert!((0..3).all(|_| listed(&dir).len() == NAMES - 1));
    drop((first, second));
    volume.umount();
}

#[test]
fn a_listing_among_other_changes_shows_the_readers_own_changes() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let dir = full(&volume);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let dir = &dir;
            scope.spawn(move || {
                let mut own = BTreeSet::new();
                for number in 0..200 {
                    let name = format!("of {worker} {number}");
                    File::create(dir.join(&name)).unwrap();
                    own.insert(name);
                    if number % 3 == 2 {
                        fs::remove_file(dir.join(own.pop_first().unwrap())).unwrap();
                    }
                    if number % 3 == 1 {
                        let renamed = format!("of {worker} {number} renamed");
                        fs::rename(dir.join(own.pop_first().unwrap()), dir.join(&renamed)).unwrap();
                        own.insert(renamed);
                    }
                    let names = listed(dir);
                    let mine = format!("of {worker} ");
                    let shown: BTreeSet<_> = names.iter().filter(|name| name.starts_with(&mine)).cloned().collect();
                    assert_eq!(shown, own, "after step {number}");
                    assert_eq!(names.iter().filter(|name| name.starts_with("name ")).count(), NAMES);
                }
            });
        }
    });
    volume.umount();
}
