//! The text that `mkfs.btrfs` prints about a new volume, in the lines that scripts parse.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ubtrfs_format::items::{BlockGroupFlags, InodeFlags};
use ubtrfs_image::NewSubvolume;
use ubtrfs_mkfs::MkfsOptions;

use super::features;
use crate::args::{Compression, Mkfs};
use crate::size::Unit;

/// The widths of the columns in a device's line.
const ID: usize = 5;
const SIZE: usize = 10;

/// A new volume.
pub struct Summary<'a> {
    pub arguments: &'a Mkfs,
    pub options: &'a MkfsOptions,
    /// The bytes of each device.
    pub sizes: &'a [u64],
    /// The type of each chunk, and its bytes.
    pub chunks: &'a [(BlockGroupFlags, u64)],
}

impl Summary<'_> {
    /// Returns the lines, without the last line break.
    pub fn lines(&self) -> String {
        let (arguments, options) = (self.arguments, self.options);
        let mut lines = vec![format!("mkfs.btrfs of ubtrfs {}", env!("CARGO_PKG_VERSION")), String::new()];
        let mut say = |label: &str, value: &str| lines.push(format!("{label:<20}{value}"));
        let populate = &arguments.populate;
        if let Some(from) = &populate.rootdir {
            say("Rootdir from:", &absolute(from).display().to_string());
            say("  Compress:", &populate.compress.map_or_else(|| "no".to_owned(), Compression::shown));
            for given in &populate.subvol {
                let NewSubvolume { default, read_only, .. } = given.value;
                let kind = format!("{}{}", if default { "d" } else { "" }, if read_only { "ro" } else { "rw" });
                say(&format!("  Subvolume ({kind}):"), &given.path);
            }
            for given in &populate.inode_flags {
                let (_, flags) = given.value;
                // NODATACOW implies NODATASUM, so only the former is named.
                let name = if flags & InodeFlags::NODATACOW == 0 { "NODATASUM" } else { "NODATACOW" };
                say(&format!("  Inode flags ({name}):  "), &given.path);
            }
            say("  Shrink:", if populate.shrink { "yes" } else { "no" });
        }
        let label = String::from_utf8_lossy(&options.label);
        say("Label:", if label.is_empty() { "(null)" } else { &label });
        say("UUID:", &options.fsid.to_string());
        if arguments.device_uuid.is_some() {
            say("Device UUID:", &options.device_uuid.to_string());
        }
        say("Node size:", &options.node_size().to_string());
        let page = rustix::param::page_size();
        say("Sector size:", &format!("{}\t(CPU page size: {page})", options.sector_size));
        say("Filesystem size:", &shown(self.sizes.iter().sum()));
        say("Block group profiles:", "");
        for (kind, profile, bytes) in self.groups() {
            say(&format!("  {kind}:"), &format!("{profile:<8} {:>16}", shown(bytes)));
        }
        say("SSD detected:", if arguments.devices.first().is_some_and(|device| is_ssd(device)) { "yes" } else { "no" });
        say("Zoned device:", "no");
        say("Features:", &features::names(options));
        say("Checksum:", options.checksum.name());
        say("Number of devices:", &self.sizes.len().to_string());
        say("Devices:", "");
        say(&format!("{:>ID$}  {:>SIZE$}  PATH", "ID", "SIZE"), "");
        for ((id, path), bytes) in (1..).zip(&arguments.devices).zip(self.sizes) {
            say(&device_line(id, path, *bytes), "");
        }
        let mut text = String::new();
        for line in lines {
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    /// Returns the types of block groups with their profiles and bytes, data first.
    fn groups(&self) -> Vec<(&'static str, &'static str, u64)> {
        let kinds = [
            ("Data", BlockGroupFlags::DATA),
            ("Data+Metadata", BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA)),
            ("Metadata", BlockGroupFlags::METADATA),
            ("System", BlockGroupFlags::SYSTEM),
        ];
        let mut groups = Vec::new();
        for (name, kind) in kinds {
            let of_kind: Vec<_> = self.chunks.iter().filter(|(flags, _)| flags.types() == kind).collect();
            if let Some((flags, _)) = of_kind.first() {
                groups.push((name, flags.profile_name(), of_kind.iter().map(|(_, bytes)| bytes).sum()));
            }
        }
        groups
    }
}

/// Returns the absolute path of the input. An OCI image and the standard input are returned as they
/// are given.
fn absolute(from: &Path) -> PathBuf {
    let real = if from.as_os_str() == "-" { None } else { from.canonicalize().ok() };
    real.unwrap_or_else(|| from.into())
}

fn shown(bytes: u64) -> String {
    Unit { is_decimal: false, power: None }.show(bytes)
}

fn device_line(id: u64, path: &Path, bytes: u64) -> String {
    format!("{id:>ID$}  {:>SIZE$}  {}", shown(bytes), path.display())
}

/// Whether the kernel reports a block device as non-rotational. For a partition the whole device
/// has that attribute.
fn is_ssd(path: &Path) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let Ok(found) = std::fs::metadata(path) else { return false };
    if !found.file_type().is_block_device() {
        return false;
    }
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let Ok(device) = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else { return false };
    let whole = if device.join("partition").exists() { device.parent().unwrap_or(&device) } else { &device };
    std::fs::read_to_string(whole.join("queue/rotational")).is_ok_and(|text| text.trim() == "0")
}
