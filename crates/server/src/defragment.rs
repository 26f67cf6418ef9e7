//! The ioctls that defragment a file: btrfs's own, with their numbers and arguments.
//!
//! The kernel's driver also rewrites shared extents, after which each of the files takes space of
//! its own. This server leaves shared extents as they are unless a flag of ours asks to rewrite
//! them. It does not defragment the tree of a subvolume: an ioctl on a directory is refused.

use ubtrfs::{Compression, Defragmentation, Recompression};
use ubtrfs_format::ioctl::{DEFRAG_RANGE, size_of};
use ubtrfs_fuse::Errno;

use crate::btrfs_ioctls::u64_at;

/// Bytes of the argument of [`DEFRAG_RANGE`].
pub const ARGUMENT_SIZE: usize = size_of(DEFRAG_RANGE);

const COMPRESS: u64 = 1;
const START_IO: u64 = 1 << 1;
const COMPRESS_LEVEL: u64 = 1 << 2;
const NOCOMPRESS: u64 = 1 << 3;
/// Our own flag: shared extents are rewritten, too.
const UNSHARE: u64 = 1 << 63;
const KNOWN: u64 = COMPRESS | START_IO | COMPRESS_LEVEL | NOCOMPRESS | UNSHARE;

/// The offsets in the argument of flags, threshold, algorithm and level. Start and length precede
/// them.
const FLAGS: usize = 16;
const THRESHOLD: usize = 24;
const ALGORITHM: usize = 28;
const LEVEL: usize = 29;

/// Algorithms by their numbers from 1 on; 0 also means the first.
const ALGORITHMS: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

/// Reads the argument of [`DEFRAG_RANGE`]. `EINVAL` if it makes no sense.
pub(crate) fn parse(data: &[u8]) -> Result<Defragmentation, Errno> {
    data.first_chunk().ok_or(Errno::INVAL).and_then(decode)
}

/// The argument that asks for this defragmentation.
pub fn encode(how: &Defragmentation) -> [u8; ARGUMENT_SIZE] {
    let mut argument = [0; ARGUMENT_SIZE];
    let mut flags = START_IO | if how.unshare { UNSHARE } else { 0 };
    match how.compression {
        Recompression::Keep => {}
        Recompression::Remove => flags |= NOCOMPRESS,
        Recompression::With { algorithm, level } => {
            flags |= COMPRESS;
            let number = ALGORITHMS.iter().position(|known| *known == algorithm);
            argument[ALGORITHM] = number.map_or(0, |number| number as u8 + 1);
            if let Some(level) = level {
                flags |= COMPRESS_LEVEL;
                argument[LEVEL] = level.clamp(i8::MIN.into(), i8::MAX.into()) as u8;
            }
        }
    }
    let threshold = u32::try_from(how.extent_threshold).unwrap_or(u32::MAX);
    argument[..8].copy_from_slice(&how.range.start.to_le_bytes());
    argument[8..16].copy_from_slice(&(how.range.end - how.range.start).to_le_bytes());
    argument[FLAGS..FLAGS + 8].copy_from_slice(&flags.to_le_bytes());
    argument[THRESHOLD..THRESHOLD + 4].copy_from_slice(&threshold.to_le_bytes());
    argument
}

fn decode(data: &[u8; ARGUMENT_SIZE]) -> Result<Defragmentation, Errno> {
    let number = |at| u64_at(data, at).unwrap_or_default();
    let (start, len, flags) = (number(0), number(8), number(FLAGS));
    if flags & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let has = |flag| flags & flag != 0;
    let compression = match (has(COMPRESS), has(NOCOMPRESS)) {
        (true, true) => return Err(Errno::INVAL),
        (false, true) => Recompression::Remove,
        (false, false) => Recompression::Keep,
        (true, false) => {
            let algorithm = ALGORITHMS.get(usize::from(data[ALGORITHM].saturating_sub(1))).ok_or(Errno::INVAL)?;
            let level = has(COMPRESS_LEVEL).then(|| i32::from(data[LEVEL].cast_signed()));
            Recompression::With { algorithm: *algorithm, level }
        }
    };
    let threshold = number(THRESHOLD) & u64::from(u32::MAX);
    Ok(Defragmentation {
        range: start..start.saturating_add(len),
        extent_threshold: if threshold == 0 { Defragmentation::default().extent_threshold } else { threshold },
        compression,
        unshare: has(UNSHARE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read() {
        for (unshare, compression) in [
            (false, Recompression::Keep),
            (true, Recompression::Remove),
            (false, Recompression::With { algorithm: Compression::Zlib, level: None }),
            (false, Recompression::With { algorithm: Compression::Lzo, level: None }),
            (true, Recompression::With { algorithm: Compression::Zstd, level: Some(-15) }),
        ] {
            let how = Defragmentation { range: 4096..1 << 40, extent_threshold: 32 << 20, compression, unshare };
            assert_eq!(parse(&encode(&how)), Ok(how));
        }
    }

    #[test]
    fn arguments_of_btrfs_progs_are_read() {
        // `btrfs filesystem defragment -czstd -t 1M`: all of the file.
        let mut data = [0; ARGUMENT_SIZE];
        data[8..16].fill(0xff);
        data[FLAGS] = 3;
        data[THRESHOLD + 2] = 0x10;
        data[ALGORITHM] = 3;
        let compression = Recompression::With { algorithm: Compression::Zstd, level: None };
        let expected = Defragmentation { range: 0..u64::MAX, extent_threshold: 1 << 20, compression, unshare: false };
        assert_eq!(parse(&data), Ok(expected));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let with = |at: usize, value: u8| {
            let mut data = encode(&Defragmentation::default());
            data[at] = value;
            parse(&data)
        };
        assert_eq!(with(FLAGS, 0x10), Err(Errno::OPNOTSUPP));
        assert_eq!(with(FLAGS, 9), Err(Errno::INVAL));
        let mut data = encode(&Defragmentation::default());
        (data[FLAGS], data[ALGORITHM]) = (1, 4);
        assert_eq!(parse(&data), Err(Errno::INVAL));
        assert_eq!(parse(&data[..47]), Err(Errno::INVAL));
    }
}
