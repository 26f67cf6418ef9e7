//! Files of volumes that a kernel wrote are read back as it wrote them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_format::items::{Compression, InodeFlags, InodeItem, RootItem, dir_entries};
use ubtrfs_format::{Ino, ItemType, Key, NodeExpectation, TreeId};
use ubtrfs_testkit::content::Digester;
use ubtrfs_testkit::fixture::{self, Fixture};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::walk::Kind;
use ubtrfs_tree::{BoxError, Geometry, NodeCache, NodeSource, Root, Snapshot};
use ubtrfs_volume::{Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

use crate::committed::CommittedExtents;
use crate::csums::{ChecksumTree, Checksums};
use crate::extent_reader::{ExtentReader, ReadContext};
use crate::piece::{Mapped, Piece};
use crate::resolve::Stack;
use crate::seek::Seek;

struct Nodes(Arc<Volume>);

impl NodeSource for Nodes {
    fn read_node(&self, expected: &NodeExpectation) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.reader().read_node(expected)?.to_vec())
    }
}

struct Opened {
    volume: Arc<Volume>,
    roots: Snapshot,
    reader: ExtentReader,
}

impl Opened {
    fn new(image: &std::path::Path) -> Self {
        let device = FileDevice::open(image, OpenMode::ReadOnly, Exclusive::Yes).unwrap();
        let volume = Arc::new(Volume::open(vec![Arc::new(device)], OpenOptions { read_only: true }).unwrap());
        let superblock = volume.superblocks().current();
        let geometry = Geometry {
            node_size: volume.node_size(),
            sector_size: volume.sector_size(),
            fsid: volume.metadata_fsid(),
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            checksum: volume.checksum(),
        };
        let cache = Arc::new(NodeCache::new(Arc::new(Nodes(Arc::clone(&volume))), geometry, 16 << 20));
        let root = Root {
            owner: TreeId::ROOT,
            bytenr: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        };
        Self { roots: Snapshot::new(cache, root), reader: ExtentReader::new(volume.sector_size()), volume }
    }

    fn tree(&self, id: TreeId) -> Snapshot {
        let key = |offset| Key::new(id.0, ItemType::ROOT_ITEM, offset);
        let item = self.roots.range(key(0)..=key(u64::MAX)).next().expect("a root item").unwrap();
        let root = RootItem::parse(&item).unwrap();
        let root = Root { owner: id, bytenr: root.bytenr, generation: root.generation, level: root.level };
        Snapshot::new(Arc::clone(self.roots.cache()), root)
    }

    fn checksums(&self) -> impl Checksums + use<> {
        ChecksumTree::new(self.tree(TreeId::CSUM), self.volume.checksum(), self.volume.sector_size())
    }

    /// Adds all paths below the directory `ino` of subvolume `id`.
    fn walk(&self, id: TreeId, ino: Ino, path: &[u8], found: &mut BTreeMap<Vec<u8>, (TreeId, Ino)>) {
        let key = |offset| Key::new(ino.0, ItemType::DIR_INDEX, offset);
        for item in self.tree(id).range(key(0)..=key(u64::MAX)) {
            for entry in dir_entries(&item.unwrap()) {
                let entry = entry.unwrap();
                let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
                let path = [path, separator, entry.name].concat();
                let (tree, ino) = match entry.location.item_type {
                    ItemType::INODE_ITEM => (id, Ino(entry.location.objectid)),
                    _ => (TreeId(entry.location.objectid), Ino::ROOT_DIR),
                };
                if tree != id {
                    // A snapshot also has the names of the subvolumes in its origin, but they refer
                    // to nothing.
                    let link = Key::new(id.0, ItemType::ROOT_REF, tree.0);
                    if self.roots.get(&link).unwrap().is_none() {
                        continue;
                    }
                }
                found.insert(path.clone(), (tree, ino));
                self.walk(tree, ino, &path, found);
            }
        }
    }
}

fn chunks(size: u64, step: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..size).step_by(step as usize).map(move |at| (at, (size - at).min(step) as usize))
}

/// Compares all files and symbolic links, and returns how many there were.
fn compare(fixture: &Fixture) -> usize {
    let name = &fixture.manifest.name;
    let dir = scratch_dir();
    let images = fixture.unpack(dir.path());
    let opened = Opened::new(&images[0]);
    let mut found = BTreeMap::new();
    opened.walk(TreeId(fixture.manifest.subvol), Ino::ROOT_DIR, b"", &mut found);
    let checksums = opened.checksums();
    let mut compared = 0;
    for (path, entry) in fixture.tree().entries {
        if !matches!(entry.kind, Kind::File | Kind::Symlink) {
            continue;
        }
        let place = format!("{name}: {}", String::from_utf8_lossy(&path));
        let (id, ino) = *found.get(&path).unwrap_or_else(|| panic!("{place} is missing"));
        let tree = opened.tree(id);
        let inode = tree.get(&Key::new(ino.0, ItemType::INODE_ITEM, 0)).unwrap().expect("an inode");
        let inode = InodeItem::parse(&inode).unwrap();
        let checked = inode.flags & InodeFlags::NODATASUM == 0;
        let context = ReadContext {
            source: &*opened.volume,
            checksums: checked.then_some(&checksums as &dyn Checksums),
            damage: None,
        };
        let committed = CommittedExtents::new(tree, ino, opened.volume.sector_size());
        let stack = Stack::new(&[], &committed);
        let read = |at: u64, len: usize| {
            let mut buf = vec![0xEE; len];
            let map = stack.resolve(at..at + len as u64).unwrap_or_else(|error| panic!("{place}: {error:?}"));
            opened
                .reader
                .read(context, &map, at, &mut buf)
                .unwrap_or_else(|error| panic!("{place} at {at}: {error:?}"));
            buf
        };
        let mut digester = Digester::new(inode.size);
        let mut whole = Vec::new();
        for (at, len) in chunks(inode.size, 1 << 20) {
            let content = read(at, len);
            digester.add(at, &content);
            if inode.size <= 1 << 20 {
                whole = content;
            }
        }
        compared += 1;
        if entry.kind == Kind::Symlink {
            assert_eq!(Some(whole), entry.target, "{place}");
            continue;
        }
        assert_eq!(Some(digester.finish()), entry.digest, "{place}");
        for (at, len) in chunks(whole.len() as u64, 5003) {
            assert!(read(at, len) == whole[at as usize..][..len], "{place}: {len} bytes at {at}");
        }
        let seek = Seek { dirty: &[], stack, size: inode.size };
        let mut data = Vec::new();
        let mut at = 0;
        while let Some(start) = seek.next_data(at).unwrap() {
            at = seek.next_hole(start).unwrap().expect("the end of the file");
            data.push((start, at - start));
        }
        assert_eq!(Some(data), entry.data, "{place}: data ranges");
    }
    compared
}

/// Returns bytes that compress well, badly and not at all in alternation, so that compressed
/// lengths vary.
fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut random = ubtrfs_random::Rng::new(seed);
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        let state = random.next_u64();
        let run = (state % 900) as usize;
        match state >> 62 {
            0 => out.extend((0..run as u64).map(|index| (state.wrapping_mul(index * 2 + 1) >> 40) as u8)),
            1 => out.extend(std::iter::repeat_n(state as u8, run)),
            _ => out.extend(b"the same words over and over ".iter().cycle().take(run)),
        }
    }
    out.truncate(len);
    out
}

/// The framing of LZO segments depends on their lengths, of which the fixtures have few.
#[test]
fn what_a_kernel_packs_is_unpacked() {
    ubtrfs_testkit::require!(Need::Kernel);
    let dir = scratch_dir();
    for algorithm in ["lzo", "zlib", "zstd"] {
        let image = dir.path().join(algorithm);
        mkfs_btrfs(&image, 256 << 20, &[]);
        let mut files = BTreeMap::new();
        for (seed, len) in (0..40).map(|seed| (seed, 50 + seed as usize * 97)).chain([(90, 24 << 20), (91, 1_234_567)])
        {
            files.insert(format!("file{seed}"), content(len, seed));
        }
        let mount = KernelMount::new(&[&image], &format!("compress-force={algorithm}"));
        for (name, bytes) in &files {
            std::fs::write(mount.path().join(name), bytes).unwrap();
        }
        assert_eq!(mount.unmount(), Vec::<String>::new());
        let opened = Opened::new(&image);
        let mut found = BTreeMap::new();
        opened.walk(TreeId::FS, Ino::ROOT_DIR, b"", &mut found);
        let mut packed = 0;
        for (name, bytes) in &files {
            let (id, ino) = found[name.as_bytes()];
            let committed = CommittedExtents::new(opened.tree(id), ino, opened.volume.sector_size());
            let map = committed.pieces(0..bytes.len() as u64).unwrap();
            let is_packed = |piece: &&Mapped| match &piece.piece {
                Piece::Inline(inline) => inline.compression != Compression::None,
                Piece::Extent(extent) => extent.compression != Compression::None,
                Piece::Hole => false,
            };
            packed += map.iter().filter(is_packed).count();
            let checksums = opened.checksums();
            let context = ReadContext { source: &*opened.volume, checksums: Some(&checksums), damage: None };
            let mut read = vec![0xEE; bytes.len()];
            opened
                .reader
                .read(context, &map, 0, &mut read)
                .unwrap_or_else(|error| panic!("{algorithm} {name}: {error:?}"));
            assert!(read == *bytes, "{algorithm} {name}");
        }
        assert!(packed > 40, "{algorithm}: only {packed} packed pieces");
    }
}

#[test]
fn files_of_all_ordinary_fixtures_read_as_the_kernel_showed_them() {
    for fixture in fixture::ordinary() {
        assert!(compare(&fixture) > 0, "{} has no files", fixture.manifest.name);
    }
}
