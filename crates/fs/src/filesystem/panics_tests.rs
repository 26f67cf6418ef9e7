//! Tests that after a panic (invariant 56) nothing becomes durable that a thread may have changed
//! by half.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ubtrfs_format::Generation;
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

use crate::{Error, Filesystem, InodeId, NewInode, Options};

fn regular() -> NewInode {
    NewInode { mode: 0o100_644, ..NewInode::default() }
}

fn generation(device: &Arc<MemoryDevice>) -> Generation {
    let copy = Arc::new(MemoryDevice::from_bytes(device.to_bytes())) as Arc<dyn Device>;
    Volume::open(vec![copy], OpenOptions { read_only: true }).unwrap().superblocks().current().generation
}

/// Lets a thread panic within a file system that has changes, and checks that none of them is
/// durable.
fn nothing_is_written_after(panicking: impl FnOnce(&Filesystem)) {
    let device = super::new_volume();
    let fs = Filesystem::open_devices(vec![Arc::clone(&device) as _], Options::default()).unwrap();
    let file: InodeId = fs.directories().create(fs.root(), b"file", &regular()).unwrap();
    fs.durability().sync().unwrap();
    let before = generation(&device);
    fs.directories().create(fs.root(), b"other", &regular()).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| panicking(&fs))).is_err());
    let error = fs.durability().sync().unwrap_err();
    assert!(matches!(error, Error::Shared(_)) && error.chain().contains("panicked"), "{error:?}");
    assert!(fs.durability().fsync(file).is_err() && fs.directories().create(fs.root(), b"more", &regular()).is_err());
    assert!(fs.close().is_err());
    assert_eq!(generation(&device), before);
}

#[test]
fn of_an_operation() {
    nothing_is_written_after(|fs| {
        let _passage = fs.info.gate.enter();
        panic!("on purpose");
    });
}

/// By invariants 3, 10 and 56: space is given out once.
#[test]
fn of_a_thread_that_gives_space_out() {
    nothing_is_written_after(|fs| {
        let (start, len) = fs.info.space.allocate_data(4096, ubtrfs_format::Logical(0)).unwrap();
        fs.info.space.release(start, len);
        fs.info.space.release(start, len);
    });
}
