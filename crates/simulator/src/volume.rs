//! The volume that a history begins with.

use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ubtrfs_format::{ChecksumType, Physical, Uuid};
use ubtrfs_mkfs::{Medium, MkfsOptions, Profile, layout};

use crate::Random;

/// What kind of volume a history begins with.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// The options for mkfs.
    pub options: MkfsOptions,
    /// The history begins with filling it.
    pub tight: bool,
}

impl VolumePlan {
    /// One of many kinds.
    pub fn random(random: &mut Random) -> Self {
        let mut options = MkfsOptions::new(0);
        let mut uuid = || {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&random.number().to_le_bytes());
            bytes[8..].copy_from_slice(&random.number().to_le_bytes());
            Uuid(bytes)
        };
        options.fsid = uuid();
        options.device_uuid = uuid();
        options.chunk_tree_uuid = uuid();
        options.subvolume_uuid = uuid();
        options.now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let types = [ChecksumType::Crc32c, ChecksumType::XxHash64, ChecksumType::Sha256, ChecksumType::Blake2b];
        options.checksum = if random.one_in(2) { ChecksumType::Crc32c } else { random.one_of(types) };
        options.node_size = Some(random.one_of([4096, 4096, 16384, 16384, 65536]));
        match random.below(6) {
            0 => {
                options.mixed = true;
                options.node_size = Some(4096);
                options.total_bytes = (17 + random.below(16)) << 20;
            }
            1 => options.total_bytes = (115 + random.below(40)) << 20,
            _ => {
                options.metadata_profile = Some(Profile::Single);
                options.total_bytes = (46 + random.below(30)) << 20;
            }
        }
        match random.below(6) {
            0 => options.block_group_tree = true,
            1 => options.free_space_tree = false,
            2 | 3 => options.no_holes = false,
            _ => {}
        }
        let tight = if options.mixed { random.one_in(2) } else { random.one_in(12) };
        if tight {
            // Full volumes hold much data, which is read again and again.
            options.checksum = ChecksumType::Crc32c;
            options.total_bytes = options.total_bytes.min(if options.mixed { 17 << 20 } else { 120 << 20 });
        }
        Self { options, tight }
    }
}

struct Memory(Vec<u8>);

impl Medium for Memory {
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> io::Result<()> {
        let start = at.0 as usize;
        let place = self.0.get_mut(start..start + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        place.copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The bytes of a new volume.
///
/// # Panics
/// If mkfs can't make one of these options.
pub fn make_volume(options: &MkfsOptions) -> Arc<[u8]> {
    let mut medium = Memory(vec![0; options.total_bytes as usize]);
    layout(options)
        .unwrap_or_else(|error| panic!("mkfs {options:?}: {error}"))
        .write(&mut [&mut medium])
        .unwrap_or_else(|error| panic!("mkfs {options:?}: {error}"));
    medium.0.into()
}
