//! How data is compressed that a command writes.

use ubtrfs::CompressionMode;

/// How files are compressed; `None` is not at all.
#[derive(Clone, Copy, Debug)]
pub struct Compression(pub Option<CompressionMode>);

/// An algorithm, with or without a level that it has, or `no`.
pub fn parse_compression(text: &str) -> Result<Compression, String> {
    if matches!(text, "no" | "none") {
        return Ok(Compression(None));
    }
    let mode = CompressionMode::parse(text, false)
        .flatten()
        .ok_or_else(|| format!("'{text}' is not zlib, lzo or zstd, with or without a level as in zstd:9, nor no"))?;
    let name = CompressionMode::property(mode.algorithm);
    match CompressionMode::levels(mode.algorithm) {
        _ if mode.level == 0 => {}
        Some(levels) if levels.contains(&mode.level) => {}
        Some(levels) => return Err(format!("{name} has the levels {} to {}", levels.start(), levels.end())),
        None => return Err(format!("{name} has no levels")),
    }
    Ok(Compression(Some(mode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_that_there_are() {
        for taken in ["zlib", "zlib:9", "zlib:0", "zstd:15", "zstd:-15", "lzo", "lzo:0", "no", "none"] {
            assert!(parse_compression(taken).is_ok(), "{taken}");
        }
        for (refused, why) in [
            ("zlib:10", "levels 1 to 9"),
            ("zstd:99", "levels -15 to 15"),
            ("zstd:-16", "levels -15 to 15"),
            ("lzo:3", "no levels"),
            ("gzip", "not zlib"),
        ] {
            assert!(parse_compression(refused).unwrap_err().contains(why), "{refused}");
        }
    }
}
