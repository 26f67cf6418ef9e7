//! Images for tests: fixtures unpacked with zstd, and volumes that mkfs.btrfs makes.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ubtrfs_format::items::ChunkItem;
use ubtrfs_format::{Logical, NodeExpectation, Physical, TreeId};
use ubtrfs_volume::{Device, Engine, Exclusive, FileDevice, OpenMode, OpenOptions, Result, Volume};

pub const READ_ONLY: OpenOptions = OpenOptions { read_only: true };
pub const READ_WRITE: OpenOptions = OpenOptions { read_only: false };

/// Returns the directory of the fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Returns whether a program can be run. If not, prints that the test is skipped, or panics on a
/// machine that is declared complete.
pub fn has(program: &str) -> bool {
    if Command::new(program).arg("--version").output().is_ok() {
        return true;
    }
    assert!(std::env::var("UBTRFS_TEST_KERNEL").as_deref() != Ok("1"), "{program} is missing");
    eprintln!("skipped: {program} is missing");
    false
}

/// Returns the compressed images of all fixtures by the fixture's name, with devices in order.
pub fn all_fixtures() -> Vec<(String, Vec<PathBuf>)> {
    let mut found = std::collections::BTreeMap::<String, Vec<PathBuf>>::new();
    for entry in std::fs::read_dir(fixtures()).into_iter().flatten().flatten() {
        let file = entry.file_name().into_string().unwrap();
        if let Some(name) = file.strip_suffix(".img.zst") {
            let name = name.split('.').next().unwrap().to_owned();
            found.entry(name).or_default().push(entry.path());
        }
    }
    for images in found.values_mut() {
        images.sort();
    }
    found.into_iter().collect()
}

/// Unpacks images into a directory.
pub fn unpack(images: &[PathBuf], into: &Path) -> Vec<PathBuf> {
    let unpack = |image: &PathBuf| {
        let to = into.join(image.file_stem().unwrap());
        let status = Command::new("zstd").args(["-dqf", "--sparse"]).arg(image).arg("-o").arg(&to).status().unwrap();
        assert!(status.success(), "zstd {}", image.display());
        to
    };
    images.iter().map(unpack).collect()
}

/// Returns the images of one fixture.
pub fn fixture(name: &str, into: &Path) -> Vec<PathBuf> {
    let all = all_fixtures();
    let (_, images) = all.iter().find(|(fixture, _)| fixture == name).expect("the fixture");
    unpack(images, into)
}

/// Returns a volume made by mkfs.btrfs in a sparse file.
pub fn mkfs(into: &Path, size: u64, options: &[&str]) -> PathBuf {
    let path = into.join("mkfs.img");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let output = Command::new("mkfs.btrfs").arg("-qf").args(options).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

pub fn device(path: &Path, mode: OpenMode, engine: Engine) -> Arc<dyn Device> {
    Arc::new(FileDevice::open_with_engine(path, mode, Exclusive::Yes, engine).unwrap())
}

/// Opens a volume in files.
pub fn open(paths: &[PathBuf], options: OpenOptions, engine: Engine) -> Result<Volume> {
    let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    Volume::open(paths.iter().map(|path| device(path, mode, engine)).collect(), options)
}

/// Returns the expectation for the root tree's root.
pub fn root_of(volume: &Volume) -> NodeExpectation {
    let superblock = volume.superblocks().current();
    NodeExpectation {
        bytenr: superblock.root,
        level: Some(superblock.root_level),
        generation: Some(superblock.generation),
        owner: Some(TreeId::ROOT),
        first_key: None,
        fsid: volume.metadata_fsid(),
    }
}

/// Returns the chunk that holds an address.
pub fn chunk_at(volume: &Volume, at: Logical) -> (Logical, ChunkItem) {
    let holds = |(start, item): &(Logical, ChunkItem)| *start <= at && at.0 < start.0 + item.length;
    volume.chunk_map().all().into_iter().find(holds).expect("a chunk")
}

/// Returns the locations of the copies of an address, in a chunk that isn't striped.
pub fn copies(volume: &Volume, at: Logical) -> Vec<Physical> {
    let (start, item) = chunk_at(volume, at);
    item.stripes.iter().map(|stripe| stripe.offset.plus(at.0 - start.0)).collect()
}

/// Overwrites bytes of a file.
pub fn scribble(path: &Path, at: Physical, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, at.0).unwrap();
}

/// Reads bytes of a file.
pub fn bytes_at(path: &Path, at: Physical, len: usize) -> Vec<u8> {
    let file = std::fs::File::open(path).unwrap();
    let mut bytes = vec![0; len];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, at.0).unwrap();
    bytes
}
