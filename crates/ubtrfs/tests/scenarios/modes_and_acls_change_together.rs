//! A mode and the ACL that belongs to it are changed in one transaction: no crash separates them
//! (invariant 5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::memory::new_volume;
use ubtrfs::{Filesystem, ModeAndXattr, NewInode, Options, SetAttributes};
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

const ACL: &[u8] = b"system.posix_acl_access";

fn open(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let device: Arc<dyn Device> = device.clone();
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..Options::default() }).unwrap()
}

#[test]
fn every_commit_has_a_mode_with_its_list() {
    let device = Arc::new(new_volume(128 << 20));
    let fs = open(&device);
    let file = fs.directories().create(fs.root(), b"f", &NewInode { mode: 0o100_000, ..NewInode::default() }).unwrap();
    // The bytes of the ACL repeat the mode, so that the test sees which belong together.
    let change = |mode: u32| {
        let plan = |_: u32, _: Option<&[u8]>| {
            Ok((mode, (!mode.is_multiple_of(5)).then(|| mode.to_le_bytes().repeat(mode as usize % 7 + 1))))
        };
        fs.inodes()
            .set_attributes_with(file, &SetAttributes::default(), &ModeAndXattr { name: ACL, plan: &plan })
            .unwrap();
    };
    change(1);
    fs.durability().sync().unwrap();
    let ended = AtomicBool::new(false);
    let mut seen = std::collections::HashSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                change(round % 511 + 1);
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..60 {
            fs.durability().sync().unwrap();
            let crashed = open(&Arc::new(MemoryDevice::from_bytes(device.to_bytes())));
            let there = crashed.directories().lookup(crashed.root(), b"f").unwrap();
            let mode = crashed.inodes().attributes(there).unwrap().mode & 0o777;
            let list = crashed.inodes().get_xattr(there, ACL).ok();
            let wanted = (!mode.is_multiple_of(5)).then(|| mode.to_le_bytes().repeat(mode as usize % 7 + 1));
            assert_eq!(list, wanted, "{mode:o}");
            seen.insert(mode);
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(seen.len() > 10, "the commits came between the changes: {seen:?}");
    fs.close().unwrap();
}
