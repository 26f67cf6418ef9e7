//! Arguments about what a new volume is filled with.

use std::path::PathBuf;

use clap::Args;
use ubtrfs::CompressionMode;
use ubtrfs_image::{NewSubvolume, PathFlags, Platform};

/// What a new volume is filled with.
#[derive(Debug, Args)]
pub struct Populate {
    /// Fill the volume with what is in a directory, a tar archive (- is one on the standard input),
    /// or an image in an OCI layout: oci:DIR, oci-archive:FILE, with or without :NAME.
    #[arg(short, long, value_name = "DIR|TAR|oci:DIR")]
    pub rootdir: Option<PathBuf>,
    /// Of an OCI image that there is for several platforms, take that for OS/ARCHITECTURE [default:
    /// the one that this program runs on].
    #[arg(long, value_name = "OS/ARCHITECTURE", requires = "rootdir")]
    pub platform: Option<Platform>,
    /// Make a directory of it a subvolume: ro: one that can't be changed, default: the one that is
    /// mounted, default-ro: both.
    #[arg(short = 'u', long, value_name = "[KIND:]PATH", value_parser = parse_subvolume, requires = "rootdir")]
    pub subvol: Vec<NewSubvolume>,
    /// Give what is at a path of it, and below, flags: nodatacow, nodatasum, or both with a comma.
    #[arg(long, value_name = "FLAGS:PATH", value_parser = parse_flags, requires = "rootdir")]
    pub inode_flags: Vec<(PathBuf, u64)>,
    /// Compress what the volume is filled with: zlib, lzo or zstd, with or without :LEVEL.
    #[arg(long, value_name = "ALGORITHM", value_parser = parse_compression, requires = "rootdir")]
    pub compress: Option<CompressionMode>,
    /// Data that several files have is stored once: equal blocks share extents.
    #[arg(long, requires = "rootdir")]
    pub dedupe: bool,
    /// End the volume, and the image file, where its last chunk ends; --size is the most then.
    #[arg(long, requires = "rootdir")]
    pub shrink: bool,
}

fn parse_compression(text: &str) -> Result<CompressionMode, String> {
    let mode = CompressionMode::parse(text, false).flatten();
    mode.ok_or_else(|| format!("'{text}' is not zlib, lzo or zstd, with or without a level as in zstd:9"))
}

fn parse_flags(text: &str) -> Result<(PathBuf, u64), String> {
    PathFlags::parse(text).ok_or_else(|| format!("'{text}' is not nodatacow:PATH, nodatasum:PATH or both with a comma"))
}

fn parse_subvolume(text: &str) -> Result<NewSubvolume, String> {
    let (kind, path) = match text.split_once(':') {
        Some((kind @ ("rw" | "ro" | "default" | "default-ro"), path)) => (kind, path),
        _ => ("rw", text),
    };
    let path = path.trim_matches('/');
    if path.is_empty() || path.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err(format!("'{text}' names no directory below the root directory"));
    }
    let (read_only, default) = (kind.ends_with("ro"), kind.starts_with("default"));
    Ok(NewSubvolume { path: path.into(), read_only, default })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subvolumes_have_a_kind_and_a_path() {
        let parsed =
            |text| parse_subvolume(text).map(|new| (new.path.display().to_string(), new.read_only, new.default));
        assert_eq!(parsed("home"), Ok(("home".into(), false, false)));
        assert_eq!(parsed("rw:/var/log/"), Ok(("var/log".into(), false, false)));
        assert_eq!(parsed("ro:usr"), Ok(("usr".into(), true, false)));
        assert_eq!(parsed("default:root"), Ok(("root".into(), false, true)));
        assert_eq!(parsed("default-ro:root"), Ok(("root".into(), true, true)));
        assert_eq!(parsed("x:y"), Ok(("x:y".into(), false, false)));
        for wrong in ["", "/", "ro:", "a//b", "../a", "a/."] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
