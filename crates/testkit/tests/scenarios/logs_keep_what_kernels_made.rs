//! Files that only the kernel makes in these forms: compressed, shared, with space preallocated
//! beyond their end, with more names than fit an item, in subvolumes. ubtrfs changes and syncs
//! them. After a replay of its log by either driver they are otherwise unchanged.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use ubtrfs_testkit::diff::{Options, assert_same};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;
use ubtrfs_testkit::walk::walk;

const KIB: u64 = 1024;
const RESERVED: [&str; 3] = ["reserved", "renamed", "linked"];

/// Options of mkfs.btrfs for volumes of several forms.
const FORMS: [&[&str]; 3] = [&[], &["-n", "4k", "-O", "^no-holes"], &["--mixed", "--csum", "sha256"]];

/// The times of other inodes may be older, and ubtrfs shows other numbers for inodes of other
/// subvolumes.
const SHOWN: Options = Options { ino: false, mtime: false, ctime: false, ..Options::SAME_VOLUME };

fn text(len: u64, fill: u8) -> Vec<u8> {
    (0..len).map(|at| fill + (at / 97 % 20) as u8).collect()
}

fn long_name(number: usize) -> String {
    format!("{number:0200}")
}

/// Makes the files by the kernel.
fn make(top: &Path) {
    run(command("btrfs", &["subvolume", "create"]).arg(top.join("inside"))).ok();
    for dir in [top.to_owned(), top.join("inside")] {
        std::fs::create_dir(dir.join("dir")).unwrap();
        std::fs::write(dir.join("packed"), text(300 * KIB, b'a')).unwrap();
        File::open(dir.join("packed")).unwrap().sync_all().unwrap();
        let shared = run(command("cp", &["--reflink=always"]).arg(dir.join("packed")).arg(dir.join("shared")));
        shared.ok();
        for name in RESERVED {
            std::fs::write(dir.join(name), text(8 * KIB, b'A')).unwrap();
            let reserve = ["--keep-size", "--offset", "8192", "--length", "1048576"];
            run(command("fallocate", &reserve).arg(dir.join(name))).ok();
        }
        for number in 0..150 {
            std::fs::hard_link(dir.join("linked"), dir.join(long_name(number))).unwrap();
        }
        let truncated = File::create(dir.join("truncated")).unwrap();
        truncated.write_all_at(&text(200 * KIB, b'k'), 0).unwrap();
    }
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// Writes to an existing file, and syncs it.
fn write(path: &Path, at: u64, data: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(data, at).unwrap();
    file.sync_all().unwrap();
}

/// Changes the files by ubtrfs.
fn change(dir: &Path) {
    write(&dir.join("packed"), 100 * KIB, &text(8 * KIB, b'0'));
    write(&dir.join("shared"), 0, &text(5 * KIB, b'1'));
    // The rest of the space preallocated beyond the end stays.
    write(&dir.join("reserved"), 8 * KIB, &text(4 * KIB, b'2'));
    // A file that is in the log only because another one has its name.
    std::fs::rename(dir.join("renamed"), dir.join("dir/elsewhere")).unwrap();
    std::fs::write(dir.join("renamed"), b"new").unwrap();
    sync(&dir.join("renamed"));
    for number in 0..40 {
        std::fs::remove_file(dir.join(long_name(number * 3))).unwrap();
        std::fs::hard_link(dir.join("linked"), dir.join("dir").join(long_name(number))).unwrap();
    }
    sync(&dir.join("linked"));
    let truncated = OpenOptions::new().write(true).open(dir.join("truncated")).unwrap();
    truncated.set_len(50 * KIB + 7).unwrap();
    truncated.sync_all().unwrap();
    truncated.set_len(120 * KIB).unwrap();
    truncated.sync_all().unwrap();
    std::fs::create_dir(dir.join("dir/new")).unwrap();
    std::fs::write(dir.join("dir/new/file"), text(20 * KIB, b'3')).unwrap();
    sync(&dir.join("dir/new/file"));
}

fn blocks(top: &Path) -> Vec<u64> {
    let names = ["reserved", "dir/elsewhere", "linked", "inside/reserved", "inside/dir/elsewhere", "inside/linked"];
    names.iter().map(|name| top.join(name).metadata().unwrap().blocks()).collect()
}

#[test]
fn files_that_the_kernel_made_survive_our_log() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for form in FORMS {
        let dir = scratch_dir();
        let image = |name: &str| dir.path().join(name);
        let copy = |to: &str| {
            run(command("cp", &["--sparse=always"]).arg(image("image")).arg(image(to))).ok();
        };
        mkfs_btrfs(&image("image"), 512 << 20, form);
        let mount = KernelMount::new(&[&image("image")], "compress=zstd");
        make(mount.path());
        mount.unmount();

        let mount = Subject::ubtrfs().mount(&[&image("image")], "commit=900");
        change(mount.path());
        change(&mount.path().join("inside"));
        let (wanted, wanted_blocks) = (walk(mount.path()), blocks(mount.path()));
        copy("for the kernel");
        copy("for us");
        mount.unmount();

        let mount = KernelMount::new(&[&image("for the kernel")], "");
        assert_same("replayed by the kernel", &wanted, &walk(mount.path()), SHOWN);
        assert_eq!(blocks(mount.path()), wanted_blocks, "{form:?}");
        assert_eq!(mount.unmount(), [""; 0]);
        assert_btrfs_check_clean(&image("for the kernel"));

        let mount = Subject::ubtrfs().mount(&[&image("for us")], "");
        assert_same("replayed by ubtrfs", &wanted, &walk(mount.path()), SHOWN);
        assert_eq!(blocks(mount.path()), wanted_blocks, "{form:?}");
        mount.unmount();
        assert_btrfs_check_clean(&image("for us"));
    }
}
