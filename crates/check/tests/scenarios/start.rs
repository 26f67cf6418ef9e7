//! Tests that a check starts at other roots than those of the newest superblock, if asked to.

use std::collections::BTreeSet;

use crate::common::cases::kinds;
use crate::common::{open, unpack};
use ubtrfs_check::{Error, Options, Report, Start, check};
use ubtrfs_damage::Image;
use ubtrfs_format::Logical;

const ELSEWHERE: Logical = Logical(1 << 50);

fn started(images: &[std::path::PathBuf], start: Start) -> Result<Report, Error> {
    check(&open(images), &Options { start, ..Options::default() })
}

fn differs() -> BTreeSet<String> {
    BTreeSet::from(["superblock_copy_differs".to_owned()])
}

#[test]
fn a_check_starts_at_another_copy_of_the_superblock() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("prof-dup", dir.path());
    Image::open(&images[0]).edit_superblock(&[0], |superblock| superblock.root = ELSEWHERE);
    assert!(matches!(started(&images, Start::default()), Err(Error::RootTree(_))));
    let report = started(&images, Start { superblock: Some(1), ..Start::default() }).unwrap();
    assert_eq!(kinds(&report), differs());
    let third = started(&images, Start { superblock: Some(2), ..Start::default() });
    assert!(matches!(third, Err(Error::NoSuperblockCopy(2))), "the volume is too small for it");
}

#[test]
fn a_check_starts_at_the_root_tree_at_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("prof-dup", dir.path());
    let image = Image::open(&images[0]);
    image.edit_superblock(&[0], |superblock| superblock.root = ELSEWHERE);
    let at = |root| Start { root: Some(root), ..Start::default() };
    let report = started(&images, at(image.superblock.root)).unwrap();
    assert_eq!(kinds(&report), differs());
    assert!(matches!(started(&images, at(ELSEWHERE)), Err(Error::NoBlock(ELSEWHERE))));
}

#[test]
fn a_check_starts_at_the_chunk_tree_at_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("prof-dup", dir.path());
    let image = Image::open(&images[0]);
    image.edit_superblock(&[0], |superblock| superblock.chunk_root = ELSEWHERE);
    assert!(matches!(started(&images, Start::default()), Err(Error::ChunkTree(_))));
    let start = Start { chunk_root: Some(image.superblock.chunk_root), ..Start::default() };
    assert_eq!(kinds(&started(&images, start).unwrap()), differs());
}

#[test]
fn a_check_starts_at_the_newest_backup_of_the_roots() {
    let dir = tempfile::tempdir().unwrap();
    let images = unpack("prof-dup", dir.path());
    let image = Image::open(&images[0]);
    image.edit_superblock(&[0], |superblock| superblock.root = ELSEWHERE);
    let backup = Start { backup: true, ..Start::default() };
    assert_eq!(kinds(&started(&images, backup).unwrap()), differs());
    image.edit_superblock(&[0, 1], |superblock| superblock.backup_roots = Default::default());
    assert!(matches!(started(&images, backup), Err(Error::NoBackup)));
}
