//! Rebuilds the corpora of `fuzz/corpus` from the fixtures and from our own volume: `cargo run
//! --profile proof -p ubtrfs-fuzzing --example make_corpus`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ubtrfs_format::{
    ChecksumType, Header, Leaf, LeafBuilder, MAX_LEVEL, Node, SUPERBLOCK_COPIES, SUPERBLOCK_MAGIC, SUPERBLOCK_SIZE,
    Superblock, verify_node_checksum,
};
use ubtrfs_testkit::fixture::{Fixture, names};
use ubtrfs_testkit::partitions::{Pieces, gpt, mbr};
use ubtrfs_testkit::scratch::scratch_dir;

/// The size of the corpus's tree blocks at most: in small blocks, mutations often hit something.
const BLOCK: usize = 4096;

fn keep(target: &str, name: &str, input: &[u8]) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    std::fs::create_dir_all(&directory).expect("the directory of the corpus");
    std::fs::write(directory.join(name), input).expect("write an input");
}

/// Builds a small block that represents the leaf: one or two items of each type and length, as many
/// as fit.
fn condensed(leaf: &Leaf<'_>, header: Header, checksum: ChecksumType) -> (Vec<u8>, BTreeSet<(u8, usize)>) {
    let mut block = vec![0; BLOCK];
    let mut builder = LeafBuilder::new(&mut block);
    let mut shapes = BTreeSet::new();
    for (key, item) in leaf.iter() {
        let shape = (key.item_type.0, item.len().min(200) / 16);
        if shapes.insert(shape) && builder.push(key, item).is_err() {
            shapes.remove(&shape);
        }
    }
    builder.finish(header);
    LeafBuilder::seal(&mut block, checksum);
    (block, shapes)
}

fn main() {
    make_whole_image();
    make_log_replay();
    make_partitions();
    make_import();
    make_nbd();
    make_dump();
    make_from_the_fixtures();
}

fn make_whole_image() {
    for (name, input) in ubtrfs_fuzzing::whole_image_inputs() {
        keep("whole_image", &name, &input);
    }
}

fn make_log_replay() {
    for (name, input) in ubtrfs_fuzzing::log_replay_inputs() {
        keep("log_replay", &name, &input);
    }
}

/// The beginnings of devices with partition tables.
fn make_partitions() {
    const SIZE: u64 = 96 << 10;
    let tables: [(&str, Pieces); 6] = [
        ("gpt-512", gpt(SIZE, 512, &[(40, 47), (48, 63), (64, 127)])),
        ("gpt-4096", gpt(SIZE, 4096, &[(8, 9), (12, 15)])),
        ("mbr", vec![(0, mbr(&[(0x83, 8, 8), (0x82, 16, 64), (0, 0, 0), (0x0c, 100, 20)]))]),
        (
            "mbr-logical",
            vec![
                (0, mbr(&[(0x83, 1, 7), (0x05, 8, 150)])),
                (8 * 512, mbr(&[(0x83, 8, 8), (0x05, 16, 16)])),
                (24 * 512, mbr(&[(0x83, 8, 8)])),
            ],
        ),
        ("mbr-loop", vec![(0, mbr(&[(0x0f, 8, 100)])), (8 * 512, mbr(&[(0x83, 8, 8), (0x05, 0, 16)]))]),
        ("gpt-overlapping", gpt(SIZE, 512, &[(40, 63), (48, 55), (56, 900)])),
    ];
    for (name, pieces) in tables {
        let mut bytes = vec![0; 16 << 10];
        for (at, piece) in pieces {
            let Some(place) = bytes.get_mut(at as usize..) else { continue };
            let len = piece.len().min(place.len());
            place[..len].copy_from_slice(&piece[..len]);
        }
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        keep("partitions", name, &bytes[..end]);
    }
}

fn make_nbd() {
    for (name, input) in ubtrfs_fuzzing::nbd_inputs() {
        keep("nbd", name, &input);
    }
}

fn make_dump() {
    for (name, input) in ubtrfs_fuzzing::dump_inputs() {
        keep("dump", &name, &input);
    }
}

fn make_import() {
    for (name, input) in ubtrfs_fuzzing::import_inputs() {
        keep("import", &name, &input);
    }
}

fn make_from_the_fixtures() {
    let dir = scratch_dir();
    let mut seen: BTreeSet<(u64, u8, usize)> = BTreeSet::new();
    for name in names() {
        let images: Vec<PathBuf> = Fixture::load(&name).unpack(dir.path());
        for path in &images {
            let image = std::fs::read(path).expect("an image");
            let at = SUPERBLOCK_COPIES[0].0 as usize;
            let superblock =
                Superblock::parse(&image[at..at + SUPERBLOCK_SIZE], SUPERBLOCK_COPIES[0]).expect("a superblock");
            keep("superblock", &name, &image[at..at + SUPERBLOCK_SIZE]);
            for start in (0..image.len()).step_by(superblock.sector_size as usize) {
                let Some(block) = image.get(start..start + superblock.node_size as usize) else { break };
                let header = Header::parse(block).expect("a header");
                let is_block = header.fsid == superblock.metadata_fsid()
                    && header.level < MAX_LEVEL
                    && block[64..72] != SUPERBLOCK_MAGIC
                    && verify_node_checksum(block, superblock.checksum).is_ok();
                if !is_block {
                    continue;
                }
                let owner = header.owner;
                match Node::view(block).expect("a block") {
                    Node::Leaf(leaf) => {
                        let (condensed, shapes) = condensed(&leaf, header, superblock.checksum);
                        let new =
                            shapes.into_iter().filter(|(item_type, size)| seen.insert((0, *item_type, *size))).count();
                        if new > 0 {
                            keep("node_and_items", &format!("{name}-{}-{}", owner.0 as i64, header.bytenr), &condensed);
                        }
                    }
                    Node::Internal(_) if block.len() == BLOCK && seen.insert((owner.0, header.level, 0)) => {
                        keep("node_and_items", &format!("{name}-{}-{}-internal", owner.0 as i64, header.bytenr), block);
                    }
                    Node::Internal(_) => {}
                }
            }
            std::fs::remove_file(path).expect("remove an image");
        }
    }
}
