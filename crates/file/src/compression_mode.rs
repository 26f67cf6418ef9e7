//! How data is compressed as it is written, and the mount options that set it.

use ubtrfs_format::items::Compression;

/// The level of zlib and zstd if none is given.
const DEFAULT_LEVEL: i32 = 3;
const ZLIB_LEVELS: std::ops::RangeInclusive<i32> = 1..=9;
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = -15..=15;

/// Returns the nearest level that an algorithm has. A `level` of 0 stands for the default; an
/// algorithm without levels gets 0.
pub(crate) fn nearest_level(algorithm: Compression, level: i32) -> i32 {
    let level = if level == 0 { DEFAULT_LEVEL } else { level };
    CompressionMode::levels(algorithm).map_or(0, |levels| level.clamp(*levels.start(), *levels.end()))
}

/// How data is compressed as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionMode {
    /// The algorithm, unless a file's property names another.
    pub algorithm: Compression,
    /// The level, if the algorithm has levels; 0 stands for its default.
    pub level: i32,
    /// Compresses the data of every file, even if samples of it, or what was written before, do not
    /// seem compressible.
    pub force: bool,
}

impl CompressionMode {
    /// Parses a value of `compress=` or (`force`) `compress-force=`: `zlib` or `zstd`, with or
    /// without a level after a colon, or `lzo`. `no` and `none` give `Some(None)`, which means no
    /// compression. Any other value gives `None`.
    #[allow(clippy::option_option, reason = "a value may say that nothing is compressed")]
    pub fn parse(value: &str, force: bool) -> Option<Option<Self>> {
        if matches!(value, "no" | "none") {
            return Some(None);
        }
        let (name, level) = value.split_once(':').unwrap_or((value, "0"));
        let algorithm = match name {
            "zlib" => Compression::Zlib,
            "lzo" => Compression::Lzo,
            "zstd" => Compression::Zstd,
            _ => return None,
        };
        Some(Some(Self { algorithm, level: level.parse().ok()?, force }))
    }

    /// Returns the levels of an algorithm, if it has some.
    pub fn levels(algorithm: Compression) -> Option<std::ops::RangeInclusive<i32>> {
        match algorithm {
            Compression::Zlib => Some(ZLIB_LEVELS),
            Compression::Zstd => Some(ZSTD_LEVELS),
            Compression::Lzo | Compression::None => None,
        }
    }

    /// Returns whether a mount option sets the compression, whether or not its value is valid.
    pub fn is_option(option: &str) -> bool {
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        matches!(name, "compress" | "compress-force")
    }

    /// Returns the mount option for this mode, with the level that is used if the algorithm has
    /// levels.
    pub fn to_option(self) -> String {
        let level = match nearest_level(self.algorithm, self.level) {
            0 => String::new(),
            level => format!(":{level}"),
        };
        format!("{}={}{level}", if self.force { "compress-force" } else { "compress" }, Self::property(self.algorithm))
    }

    /// Returns the name of an algorithm in the property of a file.
    pub fn property(algorithm: Compression) -> &'static str {
        match algorithm {
            Compression::None => "none",
            Compression::Zlib => "zlib",
            Compression::Lzo => "lzo",
            Compression::Zstd => "zstd",
        }
    }

    /// Returns the algorithm that a property names. Anything after the name is ignored.
    pub fn algorithm_of(property: &[u8]) -> Option<Compression> {
        const ALL: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];
        ALL.into_iter().find(|algorithm| property.starts_with(Self::property(*algorithm).as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_kernels_options() {
        let mode = |algorithm, level, force| Some(Some(CompressionMode { algorithm, level, force }));
        for (value, force, expected) in [
            ("zlib", false, mode(Compression::Zlib, 0, false)),
            ("zlib:9", true, mode(Compression::Zlib, 9, true)),
            ("lzo", false, mode(Compression::Lzo, 0, false)),
            ("zstd:-15", false, mode(Compression::Zstd, -15, false)),
            ("zstd:15", true, mode(Compression::Zstd, 15, true)),
            ("no", false, Some(None)),
            ("none", true, Some(None)),
            ("ZSTD", false, None),
            ("zstd:", false, None),
            ("zstd:x", false, None),
            ("zstdx", false, None),
            ("", false, None),
        ] {
            assert_eq!(CompressionMode::parse(value, force), expected, "{value}");
        }
    }

    #[test]
    fn options_name_the_level_that_is_used() {
        for (value, shown) in [
            ("zlib", "compress=zlib:3"),
            ("zlib:99", "compress=zlib:9"),
            ("zstd:-99", "compress=zstd:-15"),
            ("lzo:5", "compress=lzo"),
        ] {
            assert_eq!(CompressionMode::parse(value, false).flatten().map(CompressionMode::to_option).unwrap(), shown);
        }
    }

    #[test]
    fn properties_name_algorithms() {
        for (property, algorithm) in
            [("zlib", Some(Compression::Zlib)), ("zstd:7", Some(Compression::Zstd)), ("lzo1", Some(Compression::Lzo))]
        {
            assert_eq!(CompressionMode::algorithm_of(property.as_bytes()), algorithm);
        }
        assert_eq!(CompressionMode::algorithm_of(b"no"), None);
    }
}
