//! Volumes that are filled and emptied many times hold as much the last time as the first, and
//! report so before.

use std::process::Command;

use crate::common::filling::{Content, available, empty, fill, open};
use crate::common::image::make;
use ubtrfs_mkfs::MkfsOptions;
use ubtrfs_testkit::seeds::soaks;

const MIB: u64 = 1 << 20;

fn assert_clean(path: &std::path::Path) {
    let output = Command::new("btrfs").args(["check"]).arg(path).output().unwrap();
    let reported = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}{}", reported[0], reported[1]);
}

fn rounds(size: u64, change: impl FnOnce(&mut MkfsOptions), contents: &[Content], usual: usize) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, size, change);
    let mut first: Vec<Option<u64>> = vec![None; contents.len()];
    let mut fs = open(&image, |_| ());
    let empty_volume = available(&fs);
    for round in 0..if soaks() { 20 } else { usual } {
        let which = round % contents.len();
        let content = contents[which];
        let filled = fill(&fs, content);
        eprintln!("{size} bytes, round {round}, {content:?}: {filled:?}, then {} free", available(&fs));
        fs.durability().sync().unwrap();
        let most = *first[which].get_or_insert(filled.files);
        assert!(filled.files * 20 >= most * 19, "{} files, {most} at first", filled.files);
        if let Content::Files { len, .. } = content
            && len > MIB
        {
            let (said, had) = (filled.said_free, filled.bytes);
            assert!(
                had * 100 >= said * 95 && had * 95 <= said * 100,
                "{said} bytes were said to be free; it had {had}"
            );
        }
        let left = available(&fs);
        assert!(left <= filled.said_free / 50, "full of {content:?}, and {left} bytes are said to be free");
        if round % 5 == 4 {
            fs.close().unwrap();
            drop(fs);
            assert_clean(&image);
            fs = open(&image, |_| ());
        }
        empty(&fs, &filled);
        let now = available(&fs);
        assert!(now * 10 >= empty_volume * 9, "{now} bytes are free, {empty_volume} at first");
    }
    fs.close().unwrap();
    drop(fs);
    assert_clean(&image);
}

const SMALL: Content = Content::Files { len: 20_000, step: 20_000 };
const LARGE: Content = Content::Files { len: 16 * MIB, step: 1 << 20 };
const INLINE: Content = Content::Inline(1900);

#[test]
fn a_volume_of_256_mib_holds_as_much_each_time() {
    rounds(256 * MIB, |_| (), &[SMALL, LARGE, INLINE], 6);
}

#[test]
fn a_volume_of_mixed_block_groups_holds_as_much_each_time() {
    rounds(128 * MIB, |options| options.mixed = true, &[SMALL, LARGE, INLINE], 6);
}

#[test]
fn a_volume_of_8_gib_holds_as_much_each_time() {
    let change = |options: &mut MkfsOptions| options.block_group_tree = true;
    rounds(8192 * MIB, change, &[Content::Files { len: 300 * MIB, step: 1 << 20 }], 2);
}

/// Commits remove no chunk of such a volume, and must not try again and again.
#[test]
fn without_a_free_space_tree_empty_chunks_stay_and_cost_no_commits() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let old = |options: &mut MkfsOptions| {
        options.free_space_tree = false;
        options.block_group_tree = false;
    };
    make(&image, 1024 * MIB, old);
    let fs = open(&image, |_| ());
    let filled = fill(&fs, Content::Files { len: 100 * MIB, step: 1 << 20 });
    empty(&fs, &filled);
    for _ in 0..4 {
        fs.durability().sync().unwrap();
    }
    let commits = fs.stats().commits;
    for _ in 0..4 {
        fs.durability().sync().unwrap();
    }
    assert_eq!(fs.stats().commits, commits, "nothing has changed");
    fs.shrink_devices().unwrap();
    fs.close().unwrap();
    assert_clean(&image);
}
