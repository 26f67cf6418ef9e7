//! Unpacks the fixtures, as volumes to check.

pub mod cases;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ubtrfs_check::{Options, Report, check};
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode};

/// The directory of the fixtures.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// The names of all fixtures, in order.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory())
        .unwrap()
        .filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.strip_suffix(".json")?.to_owned()))
        .collect();
    names.sort();
    names
}

/// The directory of this crate's own volumes: `dropping` (a subvolume whose deletion is about to
/// start) and `shared` (trees of several levels that snapshots share, whose source subvolume is
/// deleted); interrupted work of kernels: `merging` (a balance that merges its trees) and
/// `evicting` (a file that is being freed); `nested` (snapshots of a top level without a UUID that
/// has subvolumes); and `quota` (quota groups of two levels that are consistent).
fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Unpacks a fixture's images into `dir`.
pub fn unpack(name: &str, dir: &Path) -> Vec<PathBuf> {
    let single = |from: PathBuf| Some(from.join(format!("{name}.img.zst"))).filter(|packed| packed.exists());
    let packed: Vec<PathBuf> = match single(own()).or_else(|| single(directory())) {
        Some(packed) => vec![packed],
        None => (0..16)
            .map(|device| directory().join(format!("{name}.{device}.img.zst")))
            .take_while(|packed| packed.exists())
            .collect(),
    };
    assert!(!packed.is_empty(), "no fixture {name}");
    packed
        .iter()
        .map(|packed| {
            let image = dir.join(packed.file_stem().unwrap());
            let arguments = ["-q", "-d", "-f", "--sparse"];
            let status = Command::new("zstd").args(arguments).arg(packed).arg("-o").arg(&image).status().unwrap();
            assert!(status.success(), "zstd -d {}", packed.display());
            image
        })
        .collect()
}

/// Opens images for reading.
pub fn open(images: &[PathBuf]) -> Vec<Arc<dyn Device>> {
    images
        .iter()
        .map(|image| Arc::new(FileDevice::open(image, OpenMode::ReadOnly, Exclusive::No).unwrap()) as Arc<dyn Device>)
        .collect()
}

/// Checks images with their data.
pub fn checked(images: &[PathBuf]) -> Report {
    check(&open(images), &Options::default()).unwrap()
}

/// A report's faults and warnings, one per line.
pub fn shown(report: &Report) -> String {
    let lines: Vec<String> = report.faults.iter().chain(&report.warnings).map(ToString::to_string).collect();
    lines.join("\n")
}
