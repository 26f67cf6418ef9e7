//! Tests that listings are complete and show no deleted names, though the kernel caches what other
//! programs have read of the directory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::fs::{RawDir, SeekFrom, seek};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume};

/// More names than one request of the kernel returns.
const NAMES: usize = 2000;

fn name(number: usize) -> String {
    format!("name {number:06}")
}

/// Returns the names that one getdents(2) reads; `None` at the end.
fn some(dir: &File) -> Option<Vec<String>> {
    Some(some_with_positions(dir)?.into_iter().map(|(name, _)| name).collect())
}

/// Returns the names that one getdents(2) reads, with the positions after them, as telldir(3)
/// returns them.
fn some_with_positions(dir: &File) -> Option<Vec<(String, u64)>> {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut raw = RawDir::new(dir, &mut room);
    let mut names = Vec::new();
    let mut any = false;
    // Stops before it would call the kernel again.
    while !any || !raw.is_buffer_empty() {
        let Some(entry) = raw.next() else { break };
        any = true;
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        if !name.starts_with('.') {
            names.push((name, entry.next_entry_cookie()));
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
    // A reader reads a part of the directory.
    let first = File::open(&dir).unwrap();
    let seen: Vec<String> = std::iter::repeat_with(|| some(&first).unwrap()).take(3).flatten().collect();
    // One of these names is deleted.
    let gone = &seen[seen.len() - 2];
    fs::remove_file(dir.join(gone)).unwrap();
    // Another listing begins, and before it ends, a third one is read completely.
    let second = File::open(&dir).unwrap();
    let mut names = some(&second).unwrap();
    assert!(!names.contains(gone));
    assert_eq!(listed(&dir).len(), NAMES - 1);
    names.extend(rest(&second));
    assert!(!names.contains(gone), "{gone}");
    assert_eq!(names.len(), NAMES - 1);
    // The first reader, which began before the deletion, misses none of the other names, and all
    // readers see the same from now on.
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

/// Makes and removes names in the directory until their numbers exceed positions of 31 bits.
fn count_up(dir: &Path) {
    let names = [dir.join(name(0)), dir.join("other")];
    for number in 0..1 << 15 {
        fs::rename(&names[number % 2], &names[(number + 1) % 2]).unwrap();
    }
}

#[test]
fn a_program_that_renames_what_it_reads_ends_though_others_list_the_directory() {
    require!(FUSE);
    // Both without attributes, and with them, which causes READDIRPLUS.
    for (counts_up, looks) in [(false, false), (false, true), (true, false)] {
        let volume = Volume::new();
        volume.mount("");
        let dir = full(&volume);
        if counts_up {
            count_up(&dir);
        }
        let (reader, mut read) = (File::open(&dir).unwrap(), Vec::new());
        while let Some(names) = some(&reader) {
            for old in names {
                let new = format!("renamed {}", read.len());
                fs::rename(dir.join(&old), dir.join(&new)).unwrap();
                if looks {
                    fs::metadata(dir.join(&new)).unwrap();
                }
                read.push(old);
            }
            assert!(read.len() <= NAMES, "{} is read again", read.last().unwrap());
            // The kernel caches what the second listing reads.
            assert!((0..2).all(|_| listed(&dir).len() == NAMES));
        }
        read.sort();
        assert!(read.into_iter().eq((0..NAMES).map(name)), "counts up: {counts_up}, looks: {looks}");
        drop(reader);
        volume.umount();
    }
}

#[test]
fn no_name_comes_twice_though_others_list_the_directory() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let dir = full(&volume);
    let reader = File::open(&dir).unwrap();
    let mut read = some(&reader).unwrap();
    let path = dir.join(&read[0]);
    fs::rename(&path, dir.join("elsewhere")).unwrap();
    fs::rename(dir.join("elsewhere"), &path).unwrap();
    assert_eq!(listed(&dir).len(), NAMES);
    read.extend(rest(&reader));
    read.sort();
    assert!(read.into_iter().eq((0..NAMES).map(name)));
    drop(reader);
    volume.umount();
}

/// A program that reads all names but not the end, such as one that checks whether a directory is
/// empty, leaves an incomplete listing in the kernel. The kernel caches later ones all the same.
#[test]
fn the_kernel_keeps_listings_though_one_before_was_broken_off() {
    const FEW: usize = 20;
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let dir = volume.point.join("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..FEW {
        File::create(dir.join(name(number))).unwrap();
        some(&File::open(&dir).unwrap()).unwrap();
    }
    assert!((0..2).all(|_| listed(&dir).len() == FEW));
    let requests = || {
        let of = |kind: &str| volume.stats()["requests"][kind].as_u64().unwrap_or_default();
        of("readdir") + of("readdirplus")
    };
    let before = requests();
    assert!((0..10).all(|_| listed(&dir).len() == FEW));
    assert_eq!(requests(), before);
    volume.umount();
}

/// Returns what a reader sees that rewinds, or seeks to a position that it or another reader has
/// kept.
fn tour_of_positions(point: &Path) -> Vec<String> {
    let dir = point.join("places");
    fs::create_dir(&dir).unwrap();
    let make = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            File::create(dir.join(name(number))).unwrap();
        }
    };
    let go = |dir: &File, to: u64| seek(dir, SeekFrom::Start(to)).unwrap();
    // Only names that exist from the beginning count, since POSIX leaves open whether others are
    // shown.
    let first = |names: Vec<String>| names.into_iter().filter(|shown| *shown < name(400)).collect::<Vec<_>>();
    make(0..400);
    let mut tour = Vec::new();
    let reader = File::open(&dir).unwrap();
    let (last, position) = some_with_positions(&reader).unwrap().remove(9);
    make(400..500);
    let mut note = |what: &str, names: Vec<String>| tour.push(format!("{what}: {} {names:?}", names.len()));
    rest(&reader);
    note("at the end", rest(&reader));
    go(&reader, 0);
    note("rewound", rest(&reader));
    fs::remove_file(dir.join(name(399))).unwrap();
    fs::rename(dir.join(name(1)), dir.join("z")).unwrap();
    go(&reader, 0);
    note("rewound after a change", rest(&reader));
    fs::rename(dir.join("z"), dir.join("zz")).unwrap();
    go(&reader, position);
    note("where it was", first(rest(&reader)));
    fs::remove_file(dir.join(last)).unwrap();
    go(&reader, position);
    note("behind a deleted name", first(rest(&reader)));
    let other = File::open(&dir).unwrap();
    go(&other, position);
    note("where another was", first(rest(&other)));
    make(500..510);
    go(&other, 2);
    note("behind the dots", rest(&other));
    go(&other, 1 << 60);
    note("far away", rest(&other));
    go(&other, 0);
    note("rewound again", rest(&other));
    tour
}

#[test]
fn positions_are_what_they_are_on_the_kernels_driver() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let ours = tour_of_positions(&volume.point);
    volume.umount();
    volume.assert_kernels_tour_is_the_same(&ours, tour_of_positions);
}
