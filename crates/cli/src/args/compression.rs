//! The compression of the data that a command writes.

use ubtrfs::CompressionMode;

/// How files are compressed.
#[derive(Clone, Copy, Debug)]
pub struct Compression {
    /// `None` is not at all.
    mode: Option<CompressionMode>,
    /// A level was given, or a default one was asked for.
    has_level: bool,
}

impl Compression {
    /// `None` is not at all.
    pub fn mode(self) -> Option<CompressionMode> {
        self.mode
    }

    /// As mkfs.btrfs shows it: with the level that is used, if one was given.
    pub fn shown(self) -> String {
        let Some(mode) = self.mode else { return "no".to_owned() };
        let name = CompressionMode::property(mode.algorithm);
        match CompressionMode::levels(mode.algorithm) {
            _ if !self.has_level => name.to_owned(),
            Some(_) => mode.to_option().replacen("compress=", "", 1),
            None => format!("{name}:{ONLY_LEVEL}"),
        }
    }
}

/// The level that lzo has for mkfs.btrfs.
const ONLY_LEVEL: i32 = 1;

/// An algorithm, with or without a level that it has, or `no`.
pub fn parse_compression(text: &str) -> Result<Compression, String> {
    if matches!(text, "no" | "none") {
        return Ok(Compression { mode: None, has_level: false });
    }
    let mut mode = CompressionMode::parse(text, false)
        .flatten()
        .ok_or_else(|| format!("'{text}' is not zlib, lzo or zstd, with or without a level as in zstd:9, nor no"))?;
    let name = CompressionMode::property(mode.algorithm);
    match CompressionMode::levels(mode.algorithm) {
        _ if mode.level == 0 => {}
        Some(levels) if levels.contains(&mode.level) => {}
        Some(levels) => return Err(format!("{name} has the levels {} to {}", levels.start(), levels.end())),
        None if mode.level == ONLY_LEVEL => mode.level = 0,
        None => return Err(format!("{name} has no level but {ONLY_LEVEL}")),
    }
    Ok(Compression { mode: Some(mode), has_level: text.contains(':') })
}

/// The same as mkfs.btrfs takes it: a level that is empty is the default one.
pub fn parse_compression_of_mkfs_btrfs(text: &str) -> Result<Compression, String> {
    match text.strip_suffix(':').map(parse_compression) {
        Some(Ok(Compression { mode: mode @ Some(_), has_level: false })) => Ok(Compression { mode, has_level: true }),
        _ => parse_compression(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_that_there_are() {
        for taken in ["zlib", "zlib:9", "zlib:0", "zstd:15", "zstd:-15", "lzo", "lzo:0", "lzo:1", "no", "none"] {
            assert!(parse_compression(taken).is_ok(), "{taken}");
        }
        for (refused, why) in [
            ("zlib:10", "levels 1 to 9"),
            ("zstd:99", "levels -15 to 15"),
            ("zstd:-16", "levels -15 to 15"),
            ("lzo:3", "no level but 1"),
            ("gzip", "not zlib"),
            ("zstd:", "not zlib"),
        ] {
            assert!(parse_compression(refused).unwrap_err().contains(why), "{refused}");
        }
    }

    #[test]
    fn what_mkfs_btrfs_takes_is_shown_as_it_shows_it() {
        for (taken, shown) in [
            ("no", "no"),
            ("zstd", "zstd"),
            ("zlib", "zlib"),
            ("lzo", "lzo"),
            ("zstd:", "zstd:3"),
            ("zstd:0", "zstd:3"),
            ("zstd:03", "zstd:3"),
            ("zlib:", "zlib:3"),
            ("zlib:9", "zlib:9"),
            ("lzo:", "lzo:1"),
            ("lzo:0", "lzo:1"),
            ("lzo:1", "lzo:1"),
        ] {
            assert_eq!(parse_compression_of_mkfs_btrfs(taken).unwrap().shown(), shown, "{taken}");
        }
        for refused in ["no:", "zstd::", "zstd:3:", "lzo:2", ":", ""] {
            assert!(parse_compression_of_mkfs_btrfs(refused).is_err(), "{refused}");
        }
    }
}
