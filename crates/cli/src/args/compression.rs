//! How data is compressed that a command writes.

use ubtrfs::CompressionMode;

/// How files are compressed; `None` is not at all.
#[derive(Clone, Copy, Debug)]
pub struct Compression(pub Option<CompressionMode>);

/// An algorithm, with or without a level, or `no`.
pub fn parse_compression(text: &str) -> Result<Compression, String> {
    if matches!(text, "no" | "none") {
        return Ok(Compression(None));
    }
    let mode = CompressionMode::parse(text, false).flatten();
    mode.map(|mode| Compression(Some(mode)))
        .ok_or_else(|| format!("'{text}' is not zlib, lzo or zstd, with or without a level as in zstd:9, nor no"))
}
