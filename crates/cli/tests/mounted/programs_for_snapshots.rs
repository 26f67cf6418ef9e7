//! Tests that programs which manage snapshots work on a mount as far as docs/snapshot-programs.md
//! says.

use std::path::Path;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, fails};

/// The Python of Debian, which has the module.
const PYTHON: &str = "/usr/bin/python3";

/// Calls the functions of libbtrfsutil that do not check the type of the mount, in the directory
/// `argv[1]`, and then those that do.
const LIBRARY: &str = r"
import os, sys
import btrfsutil as b
os.chdir(sys.argv[1])
def say(name, act):
    try: print(name, act())
    except b.BtrfsUtilError as error: print(name, 'fails:', error.btrfsutilerror, error.errno)
def facts(info):
    return (info.id, info.parent_id, info.dir_id, info.flags, any(info.uuid), any(info.parent_uuid), any(info.received_uuid),
            info.stransid, info.rtransid, info.otransid > 0, info.ctime > 0)
say('create', lambda: b.create_subvolume('a'))
open('a/file', 'w').write('content')
say('create what is there', lambda: b.create_subvolume('a'))
say('create elsewhere', lambda: b.create_subvolume('none/a'))
say('snapshot', lambda: b.create_snapshot('a', 'copy'))
say('read-only snapshot', lambda: b.create_snapshot('a', 'fixed', read_only=True))
print(open('copy/file').read(), open('fixed/file').read())
say('id', lambda: [b.subvolume_id(path) for path in ['.', 'a', 'copy', 'a/file']])
say('path', lambda: [b.subvolume_path('.', id) for id in [256, 257]])
say('path of none', lambda: b.subvolume_path('.', 999))
say('info', lambda: [facts(b.subvolume_info('.', id)) for id in [5, 256, 257, 258]])
say('info of none', lambda: b.subvolume_info('.', 999))
say('read-only', lambda: [b.get_subvolume_read_only(path) for path in ['a', 'copy', 'fixed']])
say('make it writable', lambda: b.set_subvolume_read_only('fixed', False))
say('make it read-only', lambda: b.set_subvolume_read_only('copy', True))
say('read-only', lambda: [b.get_subvolume_read_only(path) for path in ['a', 'copy', 'fixed']])
say('default', lambda: b.get_default_subvolume('.'))
say('set default', lambda: b.set_default_subvolume('.', 256))
say('default', lambda: b.get_default_subvolume('.'))
say('delete the default', lambda: b.delete_subvolume('a'))
say('set default', lambda: b.set_default_subvolume('.', 5))
say('delete', lambda: b.delete_subvolume('a'))
say('delete what is none', lambda: b.delete_subvolume('a'))
say('sync', lambda: b.sync('.'))
say('start sync', lambda: b.start_sync('.') > 0)
say('wait for it', lambda: b.wait_sync('.'))
say('deleted', lambda: type(b.deleted_subvolumes('.')))
print('those that look at the type')
say('is one', lambda: b.is_subvolume('copy'))
say('path', lambda: b.subvolume_path('copy'))
say('info', lambda: b.subvolume_info('copy').id)
say('iterate', lambda: [path for path, id in b.SubvolumeIterator('.')])
say('recursive snapshot', lambda: b.create_snapshot('fixed', 'all', recursive=True))
say('recursive deletion', lambda: b.delete_subvolume('copy', recursive=True))
";

#[test]
fn libbtrfsutil_does_what_it_does_on_the_kernels_mount() {
    require!(Need::Kernel, FUSE, Need::PythonModule("btrfsutil"));
    let tour = |point: &Path| -> Vec<String> {
        let outcome = run(command(PYTHON, &["-c", LIBRARY]).arg(point)).ok();
        outcome.stdout.lines().map(str::to_owned).collect()
    };
    let volume = Volume::new();
    volume.mount("");
    let ours = tour(&volume.point);
    volume.umount();
    volume.check();
    let theirs = volume.tour_of_kernels("", |_| (), tour);
    let at = theirs.iter().position(|line| line == "those that look at the type").unwrap();
    assert_eq!(ours[..at], theirs[..at]);
    // The error 4 means that this is not a btrfs file system.
    let refused = ["is one False", "path fails: 4 22", "info fails: 4 22", "iterate fails: 4 22"];
    assert_eq!(ours[at + 1..at + 5], refused);
    assert!(ours[at + 5..].iter().all(|line| line.ends_with("fails: 4 22")), "{ours:?}");
    assert!(theirs[at..].iter().all(|line| !line.contains("fails")), "{theirs:?}");
}

#[test]
fn btrfs_filesystem_and_properties_of_files_work() {
    require!(Need::Root, FUSE, Need::Tool("btrfs"));
    let volume = Volume::new();
    volume.mount("");
    let point = &volume.point;
    let btrfs = |arguments: &[&str]| run(command("btrfs", arguments).current_dir(point));
    btrfs(&["filesystem", "label", ".", "first"]).ok();
    assert_eq!(btrfs(&["filesystem", "label", "."]).ok().stdout, "first\n");
    btrfs(&["property", "set", ".", "label", "second"]).ok();
    assert_eq!(btrfs(&["property", "get", ".", "label"]).ok().stdout, "label=second\n");
    std::fs::write(point.join("file"), "content").unwrap();
    btrfs(&["filesystem", "sync", "."]).ok();
    btrfs(&["property", "set", "file", "compression", "none"]).ok();
    assert_eq!(btrfs(&["property", "get", "file", "compression"]).ok().stdout, "compression=none\n");
    btrfs(&["property", "set", "file", "compression", "zstd"]).ok();
    assert_eq!(btrfs(&["property", "get", "file", "compression"]).ok().stdout, "compression=zstd\n");
    // It takes any directory with inode number 256 for a subvolume.
    run(command(env!("CARGO_BIN_EXE_ubtrfs"), &["subvolume", "create", "a"]).current_dir(point)).ok();
    fails(&btrfs(&["property", "get", "a", "ro"]), "not compatible with property");
    assert_eq!(btrfs(&["property", "get", ".", "ro"]).ok().stdout, "ro=false\n");
    volume.umount();
    volume.check();
}
