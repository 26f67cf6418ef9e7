//! The operations, each in the state in which it is the most expensive.

use ubtrfs::testing::Faults;
use ubtrfs::{
    Defragmentation, Filesystem, InodeId, NewInode, Recompression, RenameFlags, SetAttributes, WriteAt, XattrMode,
};
use ubtrfs_format::DirIndex;
use ubtrfs_format::items::InodeFlags;

use crate::measure::{Call, alone, repeat, root};

const SECTOR: u64 = 4096;
/// Repetitions of a call that makes no commit.
const TIMES: usize = 10_000;
/// Repetitions of calls that commit, or write to the device, each time.
const FEWER: usize = 3000;
const FEW: usize = 300;

/// The name, the number of repetitions, and the function that prepares the call.
type Case = (&'static str, usize, fn(&Filesystem) -> Call<'_>);

fn file(fs: &Filesystem, name: &str) -> InodeId {
    fs.directories().create(root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap()
}

fn directory(fs: &Filesystem, name: &str) -> InodeId {
    fs.directories().create(root(), name.as_bytes(), &NewInode { mode: 0o040_755, ..NewInode::default() }).unwrap()
}

/// Makes a file with so many sectors of data.
fn written(fs: &Filesystem, name: &str, sectors: u64) -> InodeId {
    let id = file(fs, name);
    let data: Vec<u8> = (0..sectors * SECTOR).map(|at| (at ^ at >> 9) as u8).collect();
    fs.files().write(id, WriteAt::Offset(0), &data, false).unwrap();
    id
}

/// Makes a file with so many sectors of data, and commits it.
fn committed(fs: &Filesystem, name: &str, sectors: u64) -> InodeId {
    let id = written(fs, name, sectors);
    fs.durability().sync().unwrap();
    id
}

fn write(fs: &Filesystem, id: InodeId, sector: u64, number: usize) -> ubtrfs::Result<()> {
    fs.files().write(id, WriteAt::Offset(sector * SECTOR), &[number as u8; SECTOR as usize], false).map(drop)
}

fn clone(fs: &Filesystem, from: InodeId, sector: u64, to: InodeId, at: u64) -> ubtrfs::Result<()> {
    let shared = fs.files().clone_range(from, sector * SECTOR, to, at * SECTOR, SECTOR)?;
    assert_eq!(shared, SECTOR);
    Ok(())
}

fn rename(fs: &Filesystem, from: &[u8], to: &[u8], flags: RenameFlags) -> ubtrfs::Result<()> {
    fs.directories().rename(root(), from, root(), to, flags)
}

fn unlink_forgotten(fs: &Filesystem, dir: InodeId, name: &[u8], id: InodeId) -> ubtrfs::Result<()> {
    fs.directories().unlink(dir, name)?;
    fs.references().forget(id, 1);
    Ok(())
}

/// Repeats all calls, and fails with those that take more than they may.
fn repeat_all(cases: &[Case]) {
    let _turn = alone();
    let only = std::env::var("UBTRFS_ONLY").ok();
    let mut complaints = Vec::new();
    for (name, times, prepare) in cases {
        if only.as_ref().is_some_and(|only| !name.contains(&**only)) {
            continue;
        }
        let measured = repeat(*times, Faults::default(), *prepare);
        println!("{name:44} {}", measured.summary());
        complaints.extend(measured.complaint().map(|complaint| format!("{name}: {complaint}")));
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn reflinks() {
    repeat_all(&[
        ("a block in flight, within its file", TIMES, |fs| {
            let id = written(fs, "file", 1);
            Box::new(move |number| clone(fs, id, 0, id, 1 + number as u64))
        }),
        ("a block in flight, to one place", TIMES, |fs| {
            let id = written(fs, "file", 2);
            Box::new(move |_| clone(fs, id, 0, id, 1))
        }),
        ("a block in flight, there and back", TIMES, |fs| {
            let (one, other) = (written(fs, "one", 2), written(fs, "other", 2));
            Box::new(move |number| {
                let (from, to) = if number % 2 == 0 { (one, other) } else { (other, one) };
                clone(fs, from, 0, to, 1)
            })
        }),
        ("many blocks in flight, to files", TIMES, |fs| {
            let id = file(fs, "file");
            for sector in 0..8 {
                write(fs, id, 2 * sector, 1).unwrap();
            }
            let others: Vec<InodeId> = (0..100).map(|number| file(fs, &format!("{number}"))).collect();
            Box::new(move |number| {
                fs.files().clone_range(id, 0, others[number % 100], (number as u64 / 100) << 20, 15 * SECTOR).map(drop)
            })
        }),
        ("a block rewritten, then cloned", TIMES, |fs| {
            let id = written(fs, "file", 2);
            Box::new(move |number| {
                write(fs, id, 0, number)?;
                clone(fs, id, 0, id, 1)
            })
        }),
        ("a committed block, within its file", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| clone(fs, id, 0, id, 1 + number as u64))
        }),
        ("a committed block, ever more often, committed", 6 * TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| {
                clone(fs, id, 0, id, 1 + number as u64)?;
                if number % 1000 == 999 { fs.durability().sync() } else { Ok(()) }
            })
        }),
        ("a committed block, to one place", TIMES, |fs| {
            let id = committed(fs, "file", 2);
            Box::new(move |_| clone(fs, id, 0, id, 1))
        }),
        ("inline content, to one file", TIMES, |fs| {
            let (from, to) = (file(fs, "from"), file(fs, "to"));
            fs.files().write(from, WriteAt::Offset(0), b"inline", false).unwrap();
            fs.durability().sync().unwrap();
            Box::new(move |_| fs.files().clone_range(from, 0, to, 0, 6).map(drop))
        }),
        ("a block in flight, with fsyncs", FEWER, |fs| {
            let (one, other) = (written(fs, "one", 2), file(fs, "other"));
            Box::new(move |number| {
                write(fs, one, 0, number)?;
                clone(fs, one, 0, other, 0)?;
                fs.durability().fsync(other)
            })
        }),
    ]);
}

#[test]
fn writes() {
    repeat_all(&[
        ("one block", TIMES, |fs| {
            let id = written(fs, "file", 1);
            Box::new(move |number| write(fs, id, 0, number))
        }),
        ("one block of an inline file", TIMES, |fs| {
            let id = file(fs, "file");
            Box::new(move |number| fs.files().write(id, WriteAt::Offset(0), &[number as u8], false).map(drop))
        }),
        ("the next block", TIMES, |fs| {
            let id = file(fs, "file");
            Box::new(move |number| write(fs, id, number as u64, number))
        }),
        ("every other block", TIMES, |fs| {
            let id = file(fs, "file");
            Box::new(move |number| write(fs, id, 2 * number as u64, number))
        }),
        ("every other block, backwards", TIMES, |fs| {
            let id = file(fs, "file");
            Box::new(move |number| write(fs, id, 2 * (TIMES - number) as u64, number))
        }),
        ("every other block of a committed file", TIMES, |fs| {
            let id = committed(fs, "file", 2 * TIMES as u64);
            Box::new(move |number| write(fs, id, 2 * number as u64, number))
        }),
        ("one block, with fsyncs", FEWER, |fs| {
            let id = written(fs, "file", 1);
            Box::new(move |number| {
                write(fs, id, 0, number)?;
                fs.durability().fsync(id)
            })
        }),
        ("the next block, with fsyncs", FEWER, |fs| {
            let id = file(fs, "file");
            Box::new(move |number| {
                write(fs, id, number as u64, number)?;
                fs.durability().fsync(id)
            })
        }),
        ("one block in place, with fsyncs", FEWER, |fs| {
            let id = file(fs, "file");
            fs.inodes().set_flags(id, InodeFlags::NODATACOW).unwrap();
            write(fs, id, 0, 1).unwrap();
            fs.durability().sync().unwrap();
            Box::new(move |number| {
                write(fs, id, 0, number)?;
                fs.durability().fsync(id)
            })
        }),
        ("the next reserved block, with fsyncs", FEWER, |fs| {
            let id = file(fs, "file");
            fs.files().allocate(id, 0, FEWER as u64 * SECTOR, false).unwrap();
            fs.durability().sync().unwrap();
            Box::new(move |number| {
                write(fs, id, number as u64, number)?;
                fs.durability().fsync(id)
            })
        }),
        ("reads of a block in flight", TIMES, |fs| {
            let id = written(fs, "file", 1024);
            fs.files().clone_range(id, 0, id, 1024 * SECTOR, 1024 * SECTOR).unwrap();
            Box::new(move |number| fs.files().read(id, number as u64 % 1024 * SECTOR, SECTOR as usize).map(drop))
        }),
        ("one block, defragmented", FEWER, |fs| {
            let id = committed(fs, "file", 16);
            let how = Defragmentation { compression: Recompression::Keep, ..Defragmentation::default() };
            Box::new(move |number| {
                write(fs, id, 2 * (number as u64 % 8), number)?;
                fs.files().defragment(id, &how).map(drop)
            })
        }),
    ]);
}

#[test]
fn sizes_and_holes() {
    repeat_all(&[
        ("truncated and written", TIMES, |fs| {
            let id = written(fs, "file", 1);
            Box::new(move |number| {
                fs.inodes().set_attributes(id, &SetAttributes { size: Some(0), ..SetAttributes::default() })?;
                write(fs, id, 0, number)
            })
        }),
        ("longer and shorter", TIMES, |fs| {
            let id = committed(fs, "file", 4);
            Box::new(move |number| {
                let size = Some(if number % 2 == 0 { 5000 } else { 15_000 });
                fs.inodes().set_attributes(id, &SetAttributes { size, ..SetAttributes::default() }).map(drop)
            })
        }),
        ("ever longer", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| {
                let size = Some(5000 + 10_000 * number as u64);
                fs.inodes().set_attributes(id, &SetAttributes { size, ..SetAttributes::default() }).map(drop)
            })
        }),
        ("a hole in one place", TIMES, |fs| {
            let id = committed(fs, "file", 4);
            Box::new(move |number| {
                write(fs, id, 1, number)?;
                fs.files().punch_hole(id, SECTOR, SECTOR)
            })
        }),
        ("a hole that is there", TIMES, |fs| {
            let id = committed(fs, "file", 4);
            Box::new(move |_| fs.files().punch_hole(id, SECTOR, SECTOR))
        }),
        ("the next hole", TIMES, |fs| {
            let id = committed(fs, "file", 2 * TIMES as u64);
            Box::new(move |number| fs.files().punch_hole(id, 2 * number as u64 * SECTOR, SECTOR))
        }),
        ("a hole of all, and back", TIMES, |fs| {
            let id = committed(fs, "file", 64);
            Box::new(move |number| {
                fs.files().punch_hole(id, 0, 64 * SECTOR)?;
                write(fs, id, number as u64 % 64, number)
            })
        }),
        ("space reserved and given back", TIMES, |fs| {
            let id = file(fs, "file");
            Box::new(move |_| {
                fs.files().allocate(id, 0, 16 * SECTOR, true)?;
                fs.files().punch_hole(id, 0, 16 * SECTOR)?;
                fs.inodes().set_attributes(id, &SetAttributes { size: Some(0), ..SetAttributes::default() }).map(drop)
            })
        }),
        ("the next space", TIMES, |fs| {
            let id = file(fs, "file");
            Box::new(move |number| fs.files().allocate(id, 2 * number as u64 * SECTOR, SECTOR, false))
        }),
        ("space that is there", TIMES, |fs| {
            let id = file(fs, "file");
            Box::new(move |_| fs.files().allocate(id, 0, SECTOR, false))
        }),
        ("one range of zeroes", TIMES, |fs| {
            let id = committed(fs, "file", 4);
            Box::new(move |number| {
                write(fs, id, 1, number)?;
                fs.files().zero_range(id, SECTOR, SECTOR, false)
            })
        }),
    ]);
}

#[test]
fn names() {
    const EXCHANGE: RenameFlags =
        RenameFlags { no_replace: false, exchange: true, whiteout: false, whiteout_owner: (0, 0) };
    repeat_all(&[
        ("made and unlinked", TIMES, |fs| {
            Box::new(move |_| {
                let id = file(fs, "file");
                unlink_forgotten(fs, root(), b"file", id)
            })
        }),
        ("made and unlinked in a logged directory", TIMES, |fs| {
            let dir = directory(fs, "dir");
            fs.durability().sync().unwrap();
            let new = NewInode { mode: 0o100_644, ..NewInode::default() };
            fs.references().forget(fs.directories().create(dir, b"first", &new).unwrap(), 1);
            fs.durability().fsync(dir).unwrap();
            Box::new(move |_| {
                let id = fs.directories().create(dir, b"file", &new)?;
                unlink_forgotten(fs, dir, b"file", id)
            })
        }),
        ("made, fsynced and unlinked", FEWER, |fs| {
            Box::new(move |_| {
                let id = file(fs, "file");
                fs.durability().fsync(id)?;
                unlink_forgotten(fs, root(), b"file", id)
            })
        }),
        ("a directory made and removed", TIMES, |fs| {
            Box::new(move |_| {
                let id = directory(fs, "dir");
                fs.directories().rmdir(root(), b"dir")?;
                fs.references().forget(id, 1);
                Ok(())
            })
        }),
        ("the next file", TIMES, |fs| {
            Box::new(move |number| {
                fs.references().forget(file(fs, &format!("{number}")), 1);
                Ok(())
            })
        }),
        ("the next file without a name, open", TIMES, |fs| {
            Box::new(move |_| {
                let new = NewInode { mode: 0o100_644, ..NewInode::default() };
                fs.directories().create_unnamed(root(), &new).map(drop)
            })
        }),
        ("unlinked while open", TIMES, |fs| {
            Box::new(move |_| {
                file(fs, "file");
                fs.directories().unlink(root(), b"file")
            })
        }),
        ("one link, made and removed", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |_| {
                fs.directories().link(id, root(), b"link")?;
                fs.directories().unlink(root(), b"link")
            })
        }),
        ("the next link", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| fs.directories().link(id, root(), format!("{number}").as_bytes()))
        }),
        ("renamed there and back", TIMES, |fs| {
            committed(fs, "0", 1);
            Box::new(move |number| {
                let (from, to) = if number % 2 == 0 { (b"0", b"1") } else { (b"1", b"0") };
                rename(fs, from, to, RenameFlags::default())
            })
        }),
        ("renamed to the next name", TIMES, |fs| {
            committed(fs, "0", 1);
            Box::new(move |number| {
                let (from, to) = (format!("{number}"), format!("{}", number + 1));
                rename(fs, from.as_bytes(), to.as_bytes(), RenameFlags::default())
            })
        }),
        ("names exchanged", TIMES, |fs| {
            written(fs, "0", 1);
            committed(fs, "1", 1);
            Box::new(move |_| rename(fs, b"0", b"1", EXCHANGE))
        }),
        ("names exchanged of what is logged", TIMES, |fs| {
            let ids = [written(fs, "0", 1), committed(fs, "1", 1)];
            for id in ids {
                write(fs, id, 0, 7).unwrap();
                fs.durability().fsync(id).unwrap();
            }
            Box::new(move |_| rename(fs, b"0", b"1", EXCHANGE))
        }),
        ("renamed over a file", TIMES, |fs| {
            committed(fs, "target", 1);
            Box::new(move |_| {
                let id = file(fs, "new");
                rename(fs, b"new", b"target", RenameFlags::default())?;
                fs.references().forget(id, 1);
                Ok(())
            })
        }),
        ("renamed over a file, fsynced", FEWER, |fs| {
            committed(fs, "target", 1);
            Box::new(move |number| {
                let id = file(fs, "new");
                write(fs, id, 0, number)?;
                fs.durability().fsync(id)?;
                rename(fs, b"new", b"target", RenameFlags::default())?;
                fs.references().forget(id, 1);
                Ok(())
            })
        }),
        ("looked up in vain", TIMES, |fs| {
            Box::new(move |number| {
                assert!(fs.directories().lookup(root(), format!("{number}").as_bytes()).is_err());
                Ok(())
            })
        }),
        ("looked up and forgotten", TIMES, |fs| {
            committed(fs, "file", 1);
            Box::new(move |_| {
                let id = fs.directories().lookup(root(), b"file")?;
                fs.references().forget(id, 1);
                Ok(())
            })
        }),
        ("listings that nobody ends, names changing", TIMES, |fs| {
            for number in 0..10 {
                committed(fs, &format!("{number}"), 1);
            }
            Box::new(move |number| {
                let last = fs.directories().begin_listing(root())?;
                fs.directories().list(root(), DirIndex(0), last, 3)?;
                let (from, to) = if number % 2 == 0 { (b"0", b"x") } else { (b"x", b"0") };
                rename(fs, from, to, RenameFlags::default())
            })
        }),
    ]);
}

#[test]
fn attributes() {
    repeat_all(&[
        ("the mode", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| {
                let mode = Some(0o600 + (number as u32 & 0o77));
                fs.inodes().set_attributes(id, &SetAttributes { mode, ..SetAttributes::default() }).map(drop)
            })
        }),
        ("the mode, with fsyncs", FEWER, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| {
                let mode = Some(0o600 + (number as u32 & 0o77));
                fs.inodes().set_attributes(id, &SetAttributes { mode, ..SetAttributes::default() })?;
                fs.durability().fsync(id)
            })
        }),
        ("flags", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| fs.inodes().set_flags(id, if number % 2 == 0 { InodeFlags::COMPRESS } else { 0 }))
        }),
        ("one xattr, ever another value", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| fs.inodes().set_xattr(id, b"user.x", &vec![number as u8; 1000], XattrMode::Set))
        }),
        ("one xattr, set and removed", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| {
                fs.inodes().set_xattr(id, b"user.x", &[number as u8], XattrMode::Set)?;
                fs.inodes().remove_xattr(id, b"user.x")
            })
        }),
        ("the next xattr, set and removed", TIMES, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| {
                let name = format!("user.{number}");
                fs.inodes().set_xattr(id, name.as_bytes(), b"x", XattrMode::Set)?;
                fs.inodes().remove_xattr(id, name.as_bytes())
            })
        }),
        ("one xattr, with fsyncs", FEWER, |fs| {
            let id = committed(fs, "file", 1);
            Box::new(move |number| {
                fs.inodes().set_xattr(id, b"user.x", &vec![number as u8; 1000], XattrMode::Set)?;
                fs.durability().fsync(id)
            })
        }),
    ]);
}

#[test]
fn subvolumes() {
    repeat_all(&[
        ("a subvolume, made and deleted", FEW, |fs| {
            Box::new(move |_| {
                fs.subvolumes().create_subvolume(root(), b"sub", 0o755, (0, 0))?;
                fs.subvolumes().delete_subvolume(root(), b"sub")?;
                fs.durability().sync()
            })
        }),
        ("a snapshot, made and deleted", FEW, |fs| {
            let id = committed(fs, "file", 64);
            Box::new(move |number| {
                write(fs, id, number as u64 % 64, number)?;
                fs.subvolumes().snapshot(root().subvolume, root(), b"snapshot", false)?;
                fs.subvolumes().delete_subvolume(root(), b"snapshot")?;
                fs.durability().sync()
            })
        }),
        ("a subvolume renamed", TIMES, |fs| {
            fs.subvolumes().create_subvolume(root(), b"0", 0o755, (0, 0)).unwrap();
            Box::new(move |number| {
                let (from, to) = (format!("{number}"), format!("{}", number + 1));
                rename(fs, from.as_bytes(), to.as_bytes(), RenameFlags::default())
            })
        }),
        ("a subvolume read-only and not", FEW, |fs| {
            let id = fs.subvolumes().create_subvolume(root(), b"sub", 0o755, (0, 0)).unwrap();
            Box::new(move |number| fs.subvolumes().set_subvolume_read_only(id, number % 2 == 0))
        }),
    ]);
}

/// The measurement finds a past fault that doubled memory with each call.
#[test]
fn memory_that_doubles_with_each_call_is_noticed() {
    let _turn = alone();
    let faults = Faults { repeat_in_flight: true, ..Faults::default() };
    let measured = repeat(20, faults, |fs| {
        let id = written(fs, "file", 1);
        Box::new(move |number| clone(fs, id, 0, id, 1 + number as u64))
    });
    let complaint = measured.complaint();
    assert!(complaint.as_ref().is_some_and(|what| what.contains("bytes of a call")), "{}", measured.summary());
}
