//! The volumes to damage: one of our own with all kinds of items, and some of the fixtures, which a
//! kernel made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ubtrfs::{Filesystem, InodeId, NewInode, Options, WriteAt, XattrMode};
use ubtrfs_format::items::ChunkItem;
use ubtrfs_format::{
    ChecksumType, Generation, Header, ItemType, Logical, Node, NodeExpectation, Physical, SUPERBLOCK_COPIES,
    SUPERBLOCK_SIZE, Superblock, TreeId, Uuid, items::RootItem,
};
use ubtrfs_mkfs::{Medium, MkfsOptions};
use ubtrfs_volume::{Device, OpenOptions, OverlayDevice, Volume};

/// How many bases there are.
pub(super) const COUNT: usize = 1 + FIXTURES.len();

/// They have compression, snapshots, orphans, mixed block groups, and a volume without a free-space
/// tree.
const FIXTURES: [&str; 6] = ["comp-zstd", "snapshots", "orphans", "mixed", "v1-cache", "holes"];

/// Bytes of our own volume: little more than the minimum without mixed block groups.
const OWN_SIZE: usize = 110 << 20;

/// How many volumes with a log there are.
pub(crate) const LOG_COUNT: usize = LOGS.len();

/// They have names that were added and removed, extents of all kinds, several levels, several
/// subvolumes, and xattrs.
const LOGS: [&str; 8] =
    ["log-rename", "log-prealloc", "log-punch", "log-node4k", "log-subvols", "log-xattr", "log-link", "log-unlink"];

/// A base: its bytes, and the locations of its blocks and items.
pub(crate) struct Base {
    pub(super) image: Arc<[u8]>,
    pub(super) node_size: usize,
    pub(super) checksum: ChecksumType,
    pub(super) blocks: Vec<Block>,
    /// All items by type, as block and slot.
    pub(crate) items: BTreeMap<u8, Vec<(usize, usize)>>,
}

/// A tree block in use.
pub(super) struct Block {
    pub(super) at: Logical,
    /// The physical addresses of its copies.
    pub(super) places: Vec<Physical>,
}

/// Returns base number `number`, which is made when it is first needed.
pub(crate) fn base(number: usize) -> &'static Base {
    static BASES: [OnceLock<Base>; COUNT] = [const { OnceLock::new() }; COUNT];
    let number = number % COUNT;
    BASES[number].get_or_init(|| {
        let image = match number.checked_sub(1) {
            None => own(),
            Some(fixture) => unpacked(FIXTURES[fixture]),
        };
        Base::explore(image.into(), false)
    })
}

/// Returns volume number `number` with a log, of which only the log is explored.
pub(crate) fn log(number: usize) -> &'static Base {
    static LOG_BASES: [OnceLock<Base>; LOG_COUNT] = [const { OnceLock::new() }; LOG_COUNT];
    let number = number % LOG_COUNT;
    LOG_BASES[number].get_or_init(|| Base::explore(unpacked(LOGS[number]).into(), true))
}

fn unpacked(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/fixtures/{name}.img.zst"));
    let packed = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    zstd::decode_all(packed).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

struct Memory(Vec<u8>);

impl Medium for Memory {
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> io::Result<()> {
        self.0[at.0 as usize..at.0 as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes our own volume. Its blocks are small, so that its trees have several levels.
pub(crate) fn own() -> Vec<u8> {
    let mut options = MkfsOptions::new(OWN_SIZE as u64);
    options.node_size = Some(4096);
    options.fsid = Uuid([1; 16]);
    options.device_uuid = Uuid([2; 16]);
    options.chunk_tree_uuid = Uuid([3; 16]);
    options.subvolume_uuid = Uuid([4; 16]);
    let mut memory = Memory(vec![0; OWN_SIZE]);
    ubtrfs_mkfs::layout(&options).expect("a layout").write(&mut [&mut memory]).expect("a write to memory");
    let device = Arc::new(OverlayDevice::new(memory.0.into()));
    let volume = Volume::open(vec![device.clone()], OpenOptions { read_only: false }).expect("open a new volume");
    let options = Options { background_commits: false, max_inline: 2048, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).expect("open a new file system");
    fill(&fs).expect("fill a new file system");
    fs.close().expect("close a new file system");
    device.to_bytes()
}

fn fill(fs: &Filesystem) -> ubtrfs::Result<()> {
    const FILE: u32 = 0o100_644;
    let root = fs.root();
    let new = |mode| NewInode { mode, uid: 1000, gid: 100, ..NewInode::default() };
    let bytes = |seed: usize, len: usize| -> Vec<u8> { (0..len).map(|at| (at / 7 + seed * 31) as u8).collect() };
    let mut dirs: Vec<InodeId> = vec![root];
    for name in ["bin", "lib", "share"] {
        dirs.push(fs.directories().create(root, name.as_bytes(), &new(0o040_755))?);
    }
    dirs.push(fs.directories().create(dirs[1], b"deep", &new(0o042_770))?);
    for number in 0..120 {
        let dir = dirs[number % dirs.len()];
        let id = fs.directories().create(dir, format!("file-{number}").as_bytes(), &new(FILE))?;
        let len = [0, 5, 300, 2048, 2049, 9000, 70_000, 200_000][number % 8];
        fs.files().write(id, WriteAt::Offset(0), &bytes(number, len), false)?;
        match number % 6 {
            0 => {
                fs.inodes().set_xattr(id, b"user.one", &bytes(number, number), XattrMode::Set)?;
                fs.inodes().set_xattr(id, b"security.capability", &bytes(number, 20), XattrMode::Set)?;
            }
            1 => fs.directories().link(id, dirs[2], format!("also-{number}").as_bytes())?,
            2 => fs.directories().link(id, dir, format!("again-{number}").as_bytes())?,
            3 => drop(fs.files().write(id, WriteAt::Offset(1 << 20), &bytes(number, 6000), false)?),
            _ => {}
        }
        if number == 60 {
            fs.durability().sync()?;
        }
    }
    for name in ["short", "long"] {
        let target = bytes(97, if name == "long" { 900 } else { 3 });
        fs.directories().create(root, name.as_bytes(), &NewInode { symlink_target: target, ..new(0o120_777) })?;
    }
    fs.directories().create(root, b"fifo", &new(0o010_600))?;
    fs.directories().create(root, b"device", &NewInode { rdev: 0x0103, ..new(0o020_600) })?;
    fs.directories().create(root, &[b'n'; 255], &new(FILE))?;
    // Two names with the same hash, and unlinked files that are still open.
    fs.directories().create_unnamed(root, &new(FILE))?;
    let open = fs.directories().create_unnamed(dirs[1], &new(FILE))?;
    fs.files().write(open, WriteAt::Offset(0), &bytes(1, 30_000), false)?;
    fs.durability().sync()?;
    // Overwrites in the middle split extents.
    for number in [6, 14, 22] {
        let id = fs.directories().lookup(dirs[number % dirs.len()], format!("file-{number}").as_bytes())?;
        fs.files().write(id, WriteAt::Offset(20_480), &bytes(number, 4096), false)?;
    }
    fs.durability().sync()
}

impl Base {
    /// Finds the blocks and items that are in use.
    fn explore(image: Arc<[u8]>, log: bool) -> Self {
        let device = Arc::new(OverlayDevice::new(image.clone()));
        let volume = Volume::open(vec![device], OpenOptions { read_only: true }).expect("a sound base");
        let superblock = volume.superblocks().current();
        let mut base = Self {
            image,
            node_size: superblock.node_size as usize,
            checksum: superblock.checksum,
            blocks: Vec::new(),
            items: BTreeMap::new(),
        };
        let chunks = volume.chunk_map().all();
        let fsid = superblock.metadata_fsid();
        let expect = |bytenr, level, generation| NodeExpectation {
            bytenr,
            level: Some(level),
            generation: Some(generation),
            owner: None,
            first_key: None,
            fsid,
        };
        let mut queue = if log {
            vec![expect(superblock.log_root, superblock.log_root_level, superblock.generation.next())]
        } else {
            vec![
                expect(superblock.chunk_root, superblock.chunk_root_level, superblock.chunk_root_generation),
                expect(superblock.root, superblock.root_level, superblock.generation),
            ]
        };
        while let Some(next) = queue.pop() {
            if base.blocks.iter().any(|block| block.at == next.bytenr) {
                continue;
            }
            let bytes = volume.reader().read_node(&next).expect("a sound block");
            let number = base.blocks.len();
            base.blocks.push(Block { at: next.bytenr, places: places(&chunks, next.bytenr) });
            let header = Header::parse(&bytes).expect("a header");
            match Node::view(&bytes).expect("a block") {
                Node::Leaf(leaf) => {
                    for (slot, (key, data)) in leaf.iter().enumerate() {
                        base.items.entry(key.item_type.0).or_default().push((number, slot));
                        if key.item_type == ItemType::ROOT_ITEM && [TreeId::ROOT, TreeId::LOG].contains(&header.owner) {
                            let root = RootItem::parse(data).expect("a root item");
                            queue.push(expect(root.bytenr, root.level, root.generation));
                        }
                    }
                }
                Node::Internal(node) => {
                    for child in node.iter() {
                        queue.push(expect(child.bytenr, header.level - 1, Generation(child.generation.0)));
                    }
                }
            }
        }
        base
    }

    /// Returns the physical addresses of the copies of the superblock.
    pub(super) fn superblocks(&self) -> impl Iterator<Item = Physical> + use<> {
        let size = self.image.len();
        SUPERBLOCK_COPIES.into_iter().filter(move |at| at.0 as usize + SUPERBLOCK_SIZE <= size)
    }
}

/// Returns the physical addresses of the copies of a logical address; bases have single and DUP
/// chunks only.
fn places(chunks: &[(Logical, ChunkItem)], at: Logical) -> Vec<Physical> {
    let holds = |(start, chunk): &&(Logical, ChunkItem)| at >= *start && at.0 - start.0 < chunk.length;
    let (start, chunk) = chunks.iter().find(holds).expect("a block in a chunk");
    chunk.stripes.iter().map(|stripe| stripe.offset.plus(at.0 - start.0)).collect()
}

/// Reads `len` bytes at `at`, without any check.
pub(super) fn read(device: &OverlayDevice, at: Physical, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).expect("within the image");
    bytes
}

/// The checksum algorithm that a superblock names, if it can be read at all.
pub(super) fn superblock_checksum(bytes: &[u8]) -> Option<ChecksumType> {
    Superblock::parse(bytes, SUPERBLOCK_COPIES[0]).ok().map(|superblock| superblock.checksum)
}
