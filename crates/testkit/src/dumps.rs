//! Dumps of whole volumes by btrfs-progs, without what differs between any two volumes, to compare
//! two that were made with the same options.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::run::{command, run};

/// Returns the items of all trees, sorted, each as one line with the owner of its tree. It leaves
/// out ids, times, generations and the addresses of tree blocks, and what follows from these
/// addresses: the ranges of free space, and the first keys of tree blocks in their extent items.
pub fn items(images: &[PathBuf]) -> Vec<String> {
    let dump = inspect("dump-tree", images);
    let groups: BTreeSet<&str> = dump
        .lines()
        .filter(|line| line.contains(" BLOCK_GROUP_ITEM "))
        .filter_map(|line| key(line)?.split(' ').next())
        .collect();
    let (mut found, mut owner, mut item) = (Vec::new(), "", String::new());
    for line in dump.lines().chain(["leaf owner none"]) {
        let is_item = line.trim_start().starts_with("item ");
        if is_item || !line.starts_with('\t') {
            if !item.is_empty() {
                found.push(format!("{owner}: {item}"));
            }
            item.clear();
        }
        if let Some((_, of)) = line.split_once(" owner ").filter(|_| line.starts_with("leaf ")) {
            owner = of;
        }
        if let Some(key) = key(line).filter(|_| is_item) {
            item = shown_key(key, &groups);
        } else if line.starts_with('\t') && !item.is_empty() {
            item.push_str(&shown_value(line));
        }
    }
    found.sort();
    found
}

/// Returns the lines of the first device's superblock, without ids, addresses, generations and
/// checksums.
pub fn superblock(images: &[PathBuf]) -> Vec<String> {
    let differs = [
        "superblock",
        "csum\t",
        "fsid",
        "metadata_uuid",
        "generation",
        "root\t",
        "chunk_root",
        "dev_item.uuid",
        "dev_item.fsid",
        "dev_uuid",
    ];
    let dump = inspect("dump-super", &images[..1]);
    dump.lines().filter(|line| !differs.iter().any(|start| line.starts_with(start))).map(str::to_owned).collect()
}

fn inspect(what: &str, images: &[PathBuf]) -> String {
    run(command("btrfs", &["inspect-internal", what]).args(images)).ok().stdout
}

fn key(line: &str) -> Option<&str> {
    Some(line.split_once("key (")?.1.split_once(')')?.0)
}

fn shown_key(key: &str, groups: &BTreeSet<&str>) -> String {
    let parts: Vec<&str> = key.split(' ').collect();
    match parts[1] {
        "METADATA_ITEM" => "tree block".to_owned(),
        "EXTENT_ITEM" => format!("tree block of {}", parts[2]),
        "UUID_KEY_SUBVOL" => "uuid".to_owned(),
        "FREE_SPACE_EXTENT" => String::new(),
        // mkfs.btrfs before 6.3 leaves items of block groups that it has removed.
        "FREE_SPACE_INFO" if !groups.contains(parts[0]) => String::new(),
        "FREE_SPACE_INFO" => format!("{} info", parts[0]),
        _ => key.to_owned(),
    }
}

fn shown_value(line: &str) -> String {
    let line = line.trim();
    let mut words = line.split(' ');
    let mut shown = String::new();
    let differs = [
        "uuid ",
        "dev_uuid ",
        "chunk_tree_uuid ",
        "fsid ",
        "atime ",
        "ctime ",
        "mtime ",
        "free space info",
        "tree block key",
    ];
    if differs.iter().any(|start| line.starts_with(start)) {
        return shown;
    }
    while let Some(word) = words.next() {
        shown.push(' ');
        shown.push_str(word);
        if ["generation", "generation_v2", "gen", "transid", "enable_gen", "bytenr", "otime"].contains(&word) {
            let value = words.next();
            // Whether a time is set does not depend on chance.
            shown.push_str(if value == Some("0.0") { " none" } else { " some" });
            if word == "otime" {
                break;
            }
        }
    }
    shown
}
