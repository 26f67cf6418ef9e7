//! Uses a file system as programs would. Each operation may fail, and old files and directories
//! take part.

use ubtrfs::{DirectoryEntry, Filesystem, InodeId, NewInode, RenameFlags, Result, SetAttributes, WriteAt, XattrMode};
use ubtrfs_format::DirIndex;
use ubtrfs_format::items::FileType;

/// How many entries of each directory are changed.
const ENTRIES: usize = 24;
/// How many directories are changed.
const DIRECTORIES: usize = 4;

/// Makes, changes and removes files. Returns the result of the last commit.
pub(super) fn use_it(fs: &Filesystem) -> Result<()> {
    let root = fs.root();
    let mut dirs = vec![root];
    let mut targets: Vec<(InodeId, DirectoryEntry)> = Vec::new();
    let mut next = 0;
    while let Some(dir) = dirs.get(next).copied() {
        next += 1;
        let Ok(last) = fs.directories().last_index(dir) else { continue };
        for entry in fs.directories().list(dir, DirIndex(0), last, ENTRIES).unwrap_or_default() {
            if entry.file_type == FileType::Directory && dirs.len() < DIRECTORIES && !dirs.contains(&entry.inode) {
                dirs.push(entry.inode);
            }
            targets.push((dir, entry));
        }
    }
    drop(make(fs, root));
    drop(fs.durability().sync());
    for (number, (dir, entry)) in targets.iter().enumerate() {
        drop(touch(fs, number, *dir, entry, &dirs));
    }
    drop(fs.durability().sync());
    for (number, (dir, entry)) in targets.iter().enumerate().filter(|(number, _)| number % 3 == 0) {
        drop(if number % 2 == 0 {
            fs.directories().unlink(*dir, &entry.name)
        } else {
            fs.directories().rmdir(*dir, &entry.name)
        });
    }
    fs.durability().sync()
}

fn make(fs: &Filesystem, root: InodeId) -> Result<()> {
    let new = |mode| NewInode { mode, ..NewInode::default() };
    let dir = fs.directories().create(root, b"made", &new(0o040_755))?;
    let file = fs.directories().create(dir, b"file", &new(0o100_644))?;
    fs.files().write(file, WriteAt::Offset(100), &vec![7; 20_000], true)?;
    fs.inodes().set_xattr(file, b"user.made", b"yes", XattrMode::Create)?;
    fs.directories().link(file, root, b"made-too")?;
    let small = fs.directories().create(dir, b"small", &new(0o100_600))?;
    fs.files().write(small, WriteAt::End, b"a few bytes", false)?;
    fs.directories().create(dir, b"link", &NewInode { symlink_target: b"small".to_vec(), ..new(0o120_777) })?;
    let unnamed = fs.directories().create_unnamed(dir, &new(0o100_600))?;
    fs.files().write(unnamed, WriteAt::Offset(5000), b"nobody will know", false)?;
    fs.references().forget(unnamed, 1);
    Ok(())
}

/// Changes an old entry; the kind of change depends on its number.
fn touch(fs: &Filesystem, number: usize, dir: InodeId, entry: &DirectoryEntry, dirs: &[InodeId]) -> Result<()> {
    let id = fs.directories().lookup(dir, &entry.name)?;
    let other = dirs[number % dirs.len()];
    let name = format!("touched-{number}");
    let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    let result = match number % 10 {
        0 => fs.files().write(id, WriteAt::End, &[1; 5000], true).map(drop),
        1 => fs.inodes().set_attributes(id, &size(100)).map(drop),
        2 => fs.directories().rename(dir, &entry.name, other, name.as_bytes(), RenameFlags::default()),
        3 => fs.inodes().set_xattr(id, b"user.touched", &[2; 100], XattrMode::Set),
        4 => fs.directories().link(id, other, name.as_bytes()),
        5 => fs.files().write(id, WriteAt::Offset(4097), b"in the middle", false).map(drop),
        6 => fs
            .inodes()
            .list_xattrs(id)
            .and_then(|names| names.iter().try_for_each(|name| fs.inodes().remove_xattr(id, name))),
        7 => fs.directories().rename(
            dir,
            &entry.name,
            other,
            b"made-too",
            RenameFlags { exchange: true, ..RenameFlags::default() },
        ),
        8 => fs.inodes().set_attributes(id, &size(1 << 21)).map(drop),
        _ => {
            let changes = SetAttributes { mode: Some(0o700), uid: Some(5), ..SetAttributes::default() };
            fs.inodes().set_attributes(id, &changes).map(drop)
        }
    };
    fs.references().forget(id, 1);
    result
}
