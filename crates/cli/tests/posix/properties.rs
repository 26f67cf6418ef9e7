//! Tests of properties (`btrfs property`), and the flags that correspond to them.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{CWD, FileType, IFlags, Mode, XattrFlags};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::FUSE;
use crate::run::{Outcomes, compare, short};

const PROPERTY: &str = "btrfs.compression";
const VALUES: [&str; 14] =
    ["no", "none", "", "zst", "nope", "ZSTD", "n", "zstd", "zlib", "lzo", "zstd:3", "zstdx", "lzo1", "zlib:15"];
/// Flags, with the letters of chattr(1).
const FLAGS_BEFORE: [(&str, u32); 4] = [("none", 0), ("C", 0x80_0000), ("c", 0x4), ("m", 0x400)];

fn make(path: &Path, kind: &str) {
    let _ = fs::remove_dir_all(path);
    let _ = fs::remove_file(path);
    match kind {
        "file" => fs::write(path, "content").unwrap(),
        "empty file" => fs::write(path, "").unwrap(),
        "directory" => fs::create_dir(path).unwrap(),
        _ => rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap(),
    }
}

/// Returns the property and the flags of all objects except for the FIFO, which can't be opened.
fn reported(path: &Path) -> String {
    let mut value = [0_u8; 20];
    let property = rustix::fs::lgetxattr(path, PROPERTY, &mut value[..])
        .map(|length| String::from_utf8_lossy(&value[..length]).into_owned());
    let openable = fs::metadata(path).is_ok_and(|metadata| metadata.is_file() || metadata.is_dir());
    let flags = openable.then(|| short(rustix::fs::ioctl_getflags(File::open(path).unwrap())));
    format!("{} {}", short(property), flags.unwrap_or_default())
}

/// Returns what files and directories in a directory inherit from it.
fn heirs(dir: &Path) -> String {
    if !dir.is_dir() {
        return String::new();
    }
    let (file, sub) = (dir.join("file"), dir.join("sub"));
    fs::write(&file, "").unwrap();
    fs::create_dir(&sub).unwrap();
    fs::write(sub.join("below"), "x").unwrap();
    let reported =
        format!(", file {}, directory {}, below {}", reported(&file), reported(&sub), reported(&sub.join("below")));
    fs::remove_dir_all(sub).unwrap();
    fs::remove_file(file).unwrap();
    reported
}

fn table(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let path = root.join("object");
    for kind in ["file", "empty file", "directory", "fifo"] {
        for value in VALUES {
            for flags in [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE] {
                for (before, bits) in FLAGS_BEFORE {
                    make(&path, kind);
                    if kind != "fifo" {
                        let bits = IFlags::from_bits_retain(bits);
                        rustix::fs::ioctl_setflags(File::open(&path).unwrap(), bits).unwrap();
                    }
                    let set = short(rustix::fs::lsetxattr(&path, PROPERTY, value.as_bytes(), flags));
                    let then = format!("{}{}", reported(&path), heirs(&path));
                    let again = short(rustix::fs::lsetxattr(&path, PROPERTY, b"no", flags));
                    let removed = short(rustix::fs::lremovexattr(&path, PROPERTY));
                    let case = format!("{kind} / {before} / {value:?} / {flags:?}");
                    let outcome =
                        format!("{set}: {then}; {again}, removed {removed}: {}{}", reported(&path), heirs(&path));
                    outcomes.insert(case, outcome);
                }
            }
        }
        for name in ["btrfs.", "btrfs.none", "btrfs.compressionx", "btrfs"] {
            make(&path, kind);
            let set = short(rustix::fs::lsetxattr(&path, name, b"none", XattrFlags::empty()));
            let got = short(rustix::fs::lgetxattr(&path, name, &mut [0_u8; 20][..]));
            let removed = short(rustix::fs::lremovexattr(&path, name));
            outcomes.insert(format!("{kind} / {name}"), format!("{set}, {got}, {removed}"));
        }
        make(&path, kind);
        outcomes.insert(format!("{kind} / none to remove"), short(rustix::fs::lremovexattr(&path, PROPERTY)));
    }
    outcomes
}

#[test]
fn properties_are_kept_as_by_the_kernel() {
    require!(Need::Kernel, FUSE);
    compare(("", ""), table, &[]);
}

/// The property that chattr(1) sets depends on the compression of the mount.
#[test]
fn the_flag_stands_for_the_algorithm_of_the_mount() {
    fn flagged(root: &Path) -> Outcomes {
        let path = root.join("object");
        let mut outcomes = Outcomes::new();
        for kind in ["file", "directory"] {
            for (before, first) in FLAGS_BEFORE {
                for (name, then) in FLAGS_BEFORE {
                    make(&path, kind);
                    let set = [first, then].map(|bits| {
                        let bits = IFlags::from_bits_retain(bits);
                        short(rustix::fs::ioctl_setflags(File::open(&path).unwrap(), bits))
                    });
                    let case = format!("{kind} / {before} / {name}");
                    outcomes.insert(case, format!("{set:?}: {}{}", reported(&path), heirs(&path)));
                }
            }
        }
        outcomes
    }
    require!(Need::Kernel, FUSE);
    for options in ["compress=zstd:5", "compress-force=lzo", "compress", "compress=no"] {
        compare((options, options), flagged, &[]);
    }
}
