//! Tests that mounts compress as their options and the properties and flags of files say, and that
//! the kernel can read the data.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::IFlags;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, ubtrfs};

const SIZE: usize = 1 << 20;

fn text(seed: usize) -> Vec<u8> {
    (0..SIZE).map(|at| b"a quick brown fox "[(at + at / 4096 + seed) % 18]).collect()
}

/// Returns the algorithm of all extents of each file in the top directory, as btrfs-progs show it.
pub fn algorithms(volume: &Volume) -> Vec<(String, String)> {
    let tree = run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "5"]).arg(&volume.image)).ok().stdout;
    let (mut found, mut ino, mut names) = (Vec::new(), String::new(), Vec::new());
    for line in tree.lines().map(str::trim) {
        if let Some((_, key)) = line.split_once("key (").filter(|_| line.starts_with("item ")) {
            ino = key.split(' ').next().unwrap().into();
        } else if let Some((_, name)) = line.split_once(" name: ").filter(|_| line.starts_with("index ")) {
            names.push((ino.clone(), name.to_owned()));
        } else if line.starts_with("extent compression") {
            found.push((ino.clone(), line.split(['(', ')']).nth(1).unwrap().to_owned()));
        }
    }
    let mut shown: Vec<(String, String)> = found
        .into_iter()
        .filter_map(|(ino, how)| Some((names.iter().find(|(of, _)| *of == ino)?.1.clone(), how)))
        .collect();
    shown.sort();
    shown.dedup();
    shown
}

fn property(path: &Path, value: &str) {
    rustix::fs::setxattr(path, "btrfs.compression", value.as_bytes(), rustix::fs::XattrFlags::empty()).unwrap();
}

#[test]
fn options_properties_and_flags_say_how_files_are_compressed() {
    require!(Need::Root, FUSE, Need::Kernel);
    let volume = Volume::new();
    volume.mount("compress=zstd:5");
    let at = |name: &str| volume.point.join(name);
    let write = |name: &str| fs::write(at(name), text(name.len())).unwrap();
    write("by-option");
    File::create(at("by-property")).unwrap();
    property(&at("by-property"), "lzo");
    write("by-property");
    File::create(at("refused")).unwrap();
    property(&at("refused"), "none");
    write("refused");
    File::create(at("nodatacow")).unwrap();
    rustix::fs::ioctl_setflags(File::open(at("nodatacow")).unwrap(), IFlags::from_bits_retain(0x80_0000)).unwrap();
    write("nodatacow");
    let mut direct =
        OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_DIRECT).open(at("direct")).unwrap();
    let aligned = ubtrfs_volume::Buffer::zeroed(SIZE);
    direct.write_all(&aligned).unwrap();
    drop(direct);
    // Before the mount switches to another algorithm.
    run(command("sync", &["-f"]).arg(&volume.point)).ok();
    ubtrfs(&["mount", "-o", "remount,compress=zlib", volume.point.to_str().unwrap()]).ok();
    write("by-remount");
    run(command("sync", &["-f"]).arg(&volume.point)).ok();
    ubtrfs(&["mount", "-o", "remount,compress=no", volume.point.to_str().unwrap()]).ok();
    write("not-any-more");
    File::create(at("by-flag")).unwrap();
    rustix::fs::ioctl_setflags(File::open(at("by-flag")).unwrap(), IFlags::from_bits_retain(0x4)).unwrap();
    write("by-flag");
    volume.umount();

    let expected = [
        ("by-flag", "zlib"),
        ("by-option", "zstd"),
        ("by-property", "lzo"),
        ("by-remount", "zlib"),
        ("direct", "none"),
        ("nodatacow", "none"),
        ("not-any-more", "none"),
        ("refused", "none"),
    ];
    assert_eq!(algorithms(&volume), expected.map(|(name, how)| (name.to_owned(), how.to_owned())));
    assert_btrfs_check_clean(&volume.image);
    let kernel = KernelMount::new(&[&volume.image], "ro");
    for (name, _) in expected.iter().filter(|(name, _)| *name != "direct") {
        assert!(fs::read(kernel.path().join(name)).unwrap() == text(name.len()), "{name}");
    }
    assert_eq!(kernel.unmount(), Vec::<String>::new());
}

/// Files that inherit compression from their directory are compressed, even if they are written by
/// a mapping only.
#[test]
fn a_mapping_in_a_compressed_directory_is_compressed() {
    require!(Need::Root, FUSE, Need::Kernel);
    let volume = Volume::new();
    volume.mount("");
    property(&volume.point, "zstd");
    let path = volume.point.join("mapped");
    File::create(&path).unwrap().set_len(SIZE as u64).unwrap();
    let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nm[:]=b'z'*len(m)\nm.flush()";
    run(command("python3", &["-c", script]).arg(&path)).ok();
    volume.umount();
    assert_eq!(algorithms(&volume), [("mapped".to_owned(), "zstd".to_owned())]);
    let kernel = KernelMount::new(&[&volume.image], "ro");
    assert!(fs::read(kernel.path().join("mapped")).unwrap() == vec![b'z'; SIZE]);
    assert_eq!(kernel.unmount(), Vec::<String>::new());
}
