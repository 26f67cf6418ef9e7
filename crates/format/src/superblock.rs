//! The superblock, from which everything else is found.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::epochs::{Epochs, EpochsBytes};
use crate::items::{DevItem, DevItemBytes};
use crate::resilvered::{Resilvered, ResilveredBytes};
use crate::{CHECKSUM_FIELD, ChecksumType, Error, Generation, Logical, MAX_LEVEL, Physical, Result, Uuid, xxhash64};

/// Bytes of a superblock.
pub const SUPERBLOCK_SIZE: usize = 4096;
/// The bytes of a label with at least one zero behind it.
pub const LABEL_SIZE: usize = 256;
/// The bytes at either end of a new device that are wiped, where old superblocks, partition tables
/// and signatures of other file systems are.
pub const WIPED_AT_ENDS: u64 = 2 << 20;
/// The addresses of the copies on every device that is large enough: 64 KiB, 64 MiB, 256 GiB.
pub const SUPERBLOCK_COPIES: [Physical; 3] = [Physical(64 << 10), Physical(64 << 20), Physical(256 << 30)];
/// `_BHRfS_M`.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"_BHRfS_M";
/// The offset of the magic in a superblock.
pub const SUPERBLOCK_MAGIC_AT: usize = 64;
/// The most bytes of chunks that the superblock holds.
pub const SYS_CHUNK_ARRAY_MAX: usize = 2048;
/// The bytes of one chunk with one stripe: a volume without a system chunk can't be read.
const SYS_CHUNK_ARRAY_MIN: usize = 97;

/// Features that a reader must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incompat(pub u64);

/// Features that a writer must know; a reader need not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompatRo(pub u64);

/// The superblock's flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuperblockFlags(pub u64);

macro_rules! bits {
    ($type:ident { $($(#[$doc:meta])* $name:ident = $bit:literal),+ $(,)? }) => {
        impl $type {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)+

            /// Returns whether all of `other`'s bits are set.
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Both sets' bits.
            #[must_use]
            pub fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits without those of `other`.
            #[must_use]
            pub fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Returns the names of the bits that are set; unknown ones as `bit N`.
            pub fn names(self) -> Vec<String> {
                (0..64).filter(|bit| self.0 >> bit & 1 == 1).map(|bit| match bit {
                    $($bit => stringify!($name).to_owned(),)+
                    _ => format!("bit {bit}"),
                }).collect()
            }
        }
    };
}

bits!(Incompat {
    /// References have the current form.
    MIXED_BACKREF = 0,
    /// The default subvolume is not the top level.
    DEFAULT_SUBVOL = 1,
    /// Data and metadata share block groups.
    MIXED_GROUPS = 2,
    /// Some extents are compressed with LZO.
    COMPRESS_LZO = 3,
    /// Some extents are compressed with zstd.
    COMPRESS_ZSTD = 4,
    /// Nodes larger than a page.
    BIG_METADATA = 5,
    /// `INODE_EXTREF` items.
    EXTENDED_IREF = 6,
    /// RAID5 or RAID6.
    RAID56 = 7,
    /// `METADATA_ITEM` items.
    SKINNY_METADATA = 8,
    /// Holes need no item.
    NO_HOLES = 9,
    /// Metadata carries another id than the superblock shows.
    METADATA_UUID = 10,
    /// RAID1 with three or four copies.
    RAID1C34 = 11,
    /// Zoned devices.
    ZONED = 12,
    /// Extent tree v2.
    EXTENT_TREE_V2 = 13,
    /// RAID stripe tree.
    RAID_STRIPE_TREE = 14,
    /// Simple quotas.
    SIMPLE_QUOTA = 16,
    /// Remap tree.
    REMAP_TREE = 17,
});

bits!(CompatRo {
    /// There is a free-space tree.
    FREE_SPACE_TREE = 0,
    /// The free-space tree is up to date.
    FREE_SPACE_TREE_VALID = 1,
    /// Some files have fs-verity.
    VERITY = 2,
    /// Block groups have a tree of their own.
    BLOCK_GROUP_TREE = 3,
});

bits!(SuperblockFlags {
    /// The superblock has been written.
    WRITTEN = 0,
    /// An error was noted.
    ERROR = 2,
    /// A seed device.
    SEEDING = 32,
    /// A metadata dump.
    METADUMP = 33,
    /// A metadata dump, second version.
    METADUMP_V2 = 34,
    /// The file system's id is being changed.
    CHANGING_FSID = 35,
    /// The file system's id is being changed, second version.
    CHANGING_FSID_V2 = 36,
    /// The block-group tree is being made or undone.
    CHANGING_BG_TREE = 38,
    /// Data checksums are being converted.
    CHANGING_DATA_CSUM = 39,
    /// Metadata checksums are being converted.
    CHANGING_META_CSUM = 40,
});

/// A backup of the roots of one commit, as on disk (168 bytes).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BackupRootBytes {
    roots: [[U64; 2]; 6],
    total_bytes: U64,
    bytes_used: U64,
    num_devices: U64,
    unused: [U64; 4],
    levels: [u8; 6],
    unused2: [u8; 10],
}

/// A backup of the roots of one commit. Trees in the order root, chunk, extent, top-level
/// subvolume, device, checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupRoot {
    /// Address, generation and level of each tree.
    pub trees: [(Logical, Generation, u8); 6],
    /// The volume's size in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub bytes_used: u64,
    /// Devices.
    pub num_devices: u64,
}

impl From<BackupRoot> for BackupRootBytes {
    fn from(backup: BackupRoot) -> Self {
        Self {
            roots: backup.trees.map(|(bytenr, generation, _)| [bytenr.0.into(), generation.0.into()]),
            total_bytes: backup.total_bytes.into(),
            bytes_used: backup.bytes_used.into(),
            num_devices: backup.num_devices.into(),
            unused: [U64::ZERO; 4],
            levels: backup.trees.map(|(_, _, level)| level),
            unused2: [0; 10],
        }
    }
}

impl From<BackupRootBytes> for BackupRoot {
    fn from(bytes: BackupRootBytes) -> Self {
        let mut trees = [(Logical(0), Generation(0), 0); 6];
        for ((tree, root), level) in trees.iter_mut().zip(bytes.roots).zip(bytes.levels) {
            *tree = (Logical(root[0].get()), Generation(root[1].get()), level);
        }
        Self {
            trees,
            total_bytes: bytes.total_bytes.get(),
            bytes_used: bytes.bytes_used.get(),
            num_devices: bytes.num_devices.get(),
        }
    }
}

#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SuperblockBytes {
    csum: [u8; CHECKSUM_FIELD],
    fsid: Uuid,
    bytenr: U64,
    flags: U64,
    magic: [u8; 8],
    generation: U64,
    root: U64,
    chunk_root: U64,
    log_root: U64,
    log_root_transid: U64,
    total_bytes: U64,
    bytes_used: U64,
    root_dir_objectid: U64,
    num_devices: U64,
    sectorsize: U32,
    nodesize: U32,
    leafsize: U32,
    stripesize: U32,
    sys_chunk_array_size: U32,
    chunk_root_generation: U64,
    compat_flags: U64,
    compat_ro_flags: U64,
    incompat_flags: U64,
    csum_type: U16,
    root_level: u8,
    chunk_root_level: u8,
    log_root_level: u8,
    dev_item: DevItemBytes,
    label: [u8; LABEL_SIZE],
    cache_generation: U64,
    uuid_tree_generation: U64,
    metadata_uuid: Uuid,
    nr_global_roots: U64,
    reserved: [U64; 27],
    sys_chunk_array: [u8; SYS_CHUNK_ARRAY_MAX],
    super_roots: [BackupRootBytes; 4],
    padding: [u8; 13],
    resilvered: ResilveredBytes,
    epochs: EpochsBytes,
}

const _: () = assert!(size_of::<SuperblockBytes>() == SUPERBLOCK_SIZE);

/// A change to the bytes of a superblock. Fields that are not named keep their bytes, so that a
/// superblock with features that are not known here loses nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct SuperblockChange<'a> {
    /// The physical address of the copy.
    pub bytenr: Option<Physical>,
    /// The flags.
    pub flags: Option<SuperblockFlags>,
    /// The device with the superblock.
    pub dev_item: Option<DevItem>,
    /// The label, without zero bytes at its end. What is longer than a label is cut.
    pub label: Option<&'a [u8]>,
}

impl SuperblockChange<'_> {
    /// Makes the change in `bytes`, and corrects the checksum.
    ///
    /// # Errors
    ///
    /// If there are too few bytes, or the checksum's type is unknown.
    pub fn apply(&self, bytes: &mut [u8]) -> Result<()> {
        let have = bytes.len();
        let short = || Error::TooShort { what: "superblock", need: SUPERBLOCK_SIZE, have };
        let bytes = bytes.get_mut(..SUPERBLOCK_SIZE).ok_or_else(short)?;
        let (raw, _) = SuperblockBytes::mut_from_prefix(bytes).map_err(|_| short())?;
        let checksum = ChecksumType::from_raw(raw.csum_type.get())?;
        if let Some(bytenr) = self.bytenr {
            raw.bytenr = bytenr.0.into();
        }
        if let Some(flags) = self.flags {
            raw.flags = flags.0.into();
        }
        if let Some(dev_item) = self.dev_item {
            raw.dev_item = dev_item.into();
        }
        if let Some(label) = self.label {
            let label = &label[..label.len().min(LABEL_SIZE - 1)];
            raw.label = [0; LABEL_SIZE];
            raw.label[..label.len()].copy_from_slice(label);
        }
        let sum = checksum.compute(&bytes[CHECKSUM_FIELD..]);
        bytes[..CHECKSUM_FIELD].copy_from_slice(&sum.0);
        Ok(())
    }
}

/// The content of a superblock. Each device has its own; they differ only in `bytenr` and
/// `dev_item`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The id that users see.
    pub fsid: Uuid,
    /// The physical address of this copy.
    pub bytenr: Physical,
    /// Flags.
    pub flags: SuperblockFlags,
    /// The last commit.
    pub generation: Generation,
    /// The root tree's root block.
    pub root: Logical,
    /// The chunk tree's root block.
    pub chunk_root: Logical,
    /// The log root tree's root block; 0 without a log.
    pub log_root: Logical,
    /// The number of the log within its commit: [`Self::log_number`]. Kernels write the value that
    /// they have found, and do not use it.
    pub log_root_transid: u64,
    /// The volume's size: the sum of its devices', in bytes.
    pub total_bytes: u64,
    /// Bytes in use: the sum of the block groups'.
    pub bytes_used: u64,
    /// The directory in the root tree that names the default subvolume (6).
    pub root_dir_objectid: u64,
    /// Devices of the volume.
    pub num_devices: u64,
    /// Bytes of a sector: the unit of data and of its checksums.
    pub sector_size: u32,
    /// Bytes of a tree block.
    pub node_size: u32,
    /// Always the node size.
    pub leaf_size: u32,
    /// Always the sector size.
    pub stripe_size: u32,
    /// The commit that last changed the chunk tree.
    pub chunk_root_generation: Generation,
    /// Features that no reader or writer needs to know.
    pub compat_flags: u64,
    /// Features that writers need to know.
    pub compat_ro: CompatRo,
    /// Features that readers need to know.
    pub incompat: Incompat,
    /// Checksum algorithm.
    pub checksum: ChecksumType,
    /// Level of the root tree's root.
    pub root_level: u8,
    /// Level of the chunk tree's root.
    pub chunk_root_level: u8,
    /// Level of the log root tree's root.
    pub log_root_level: u8,
    /// The device with this superblock.
    pub dev_item: DevItem,
    /// The label, up to the first zero byte.
    pub label: [u8; LABEL_SIZE],
    /// The commit that the v1 free-space cache belongs to; 0 with a free-space tree.
    pub cache_generation: Generation,
    /// The last commit that kept the UUID tree up to date.
    pub uuid_tree_generation: Generation,
    /// The id that metadata carries when `METADATA_UUID` is set.
    pub metadata_uuid: Uuid,
    /// Extent tree v2 only; kept.
    pub nr_global_roots: u64,
    /// System chunks: keys each followed by a chunk item.
    pub sys_chunk_array: Vec<u8>,
    /// Roots of the last four commits.
    pub backup_roots: [BackupRoot; 4],
    /// The epochs, which show since when devices were left out.
    pub epochs: Epochs,
    /// How far a device that lags has been brought up to the others.
    pub resilvered: Option<Resilvered>,
}

impl Superblock {
    /// Returns whether its device has the number of an older superblock's device. Then it has
    /// replaced that device, or got its number after that was removed, or that device is an old
    /// copy of it. The older device no longer belongs to the volume.
    pub fn has_the_number_of(&self, older: &Self) -> bool {
        self.dev_item.devid == older.dev_item.devid && self.fsid == older.fsid && self.generation > older.generation
    }

    /// Returns which log of its commit the superblock refers to, counted from 1. Returns `None` if
    /// it refers to no log, or to one without a known number, as the kernel's logs are. A value
    /// that is left in the field from an earlier commit names another transaction.
    pub fn log_number(&self) -> Option<u32> {
        let (transaction, number) = ((self.log_root_transid >> 32) as u32, self.log_root_transid as u32);
        (self.log_root.0 != 0 && number > 0 && transaction == self.generation.next().0 as u32).then_some(number)
    }

    /// Returns whether ubtrfs has written it, or has written an earlier one of the same commit
    /// after which no kernel wrote a log. Known only for volumes with several devices.
    pub fn is_of_ubtrfs(&self) -> bool {
        self.epochs.of_ubtrfs() == self.generation && (self.log_root.0 == 0 || self.log_number().is_some())
    }

    /// Returns its place in the order in which superblocks are written: the commit, whether a log
    /// follows, and which one. For two logs without numbers it is not known which is newer.
    pub fn moment(&self) -> (Generation, bool, u32) {
        (self.generation, self.log_root.0 != 0, self.log_number().unwrap_or(0))
    }

    /// Returns a number that distinguishes this superblock from others. It does not depend on the
    /// device or copy, nor on how far a device was brought up.
    pub fn fingerprint(&self) -> u64 {
        let own = Self { bytenr: Physical(0), dev_item: DevItem::default(), resilvered: None, ..self.clone() };
        own.to_bytes().map_or(0, |bytes| xxhash64(&bytes[CHECKSUM_FIELD..]))
    }

    /// Gives the log the number after that of the log in the superblock that was written before.
    pub fn number_log_after(&mut self, before: &Self) {
        if self.log_root.0 == 0 {
            return self.drop_log();
        }
        let last = if before.generation == self.generation { before.log_number().unwrap_or(0) } else { 0 };
        let transaction = u64::from(self.generation.next().0 as u32);
        self.log_root_transid = transaction << 32 | u64::from(last.saturating_add(1));
    }

    /// Removes the reference to the log.
    pub fn drop_log(&mut self) {
        (self.log_root, self.log_root_level, self.log_root_transid) = (Logical(0), 0, 0);
    }

    /// Reads a superblock, and checks magic, checksum and every field that can be judged by itself.
    /// `at` is the address where it was read.
    pub fn parse(bytes: &[u8], at: Physical) -> Result<Self> {
        let (raw, _) = SuperblockBytes::ref_from_prefix(bytes).map_err(|_| Error::TooShort {
            what: "superblock",
            need: SUPERBLOCK_SIZE,
            have: bytes.len(),
        })?;
        if raw.magic != SUPERBLOCK_MAGIC {
            return Err(Error::BadMagic);
        }
        let checksum = ChecksumType::from_raw(raw.csum_type.get())?;
        if !checksum.matches(&bytes[CHECKSUM_FIELD..SUPERBLOCK_SIZE], &raw.csum) {
            return Err(Error::BadChecksum { what: "superblock" });
        }
        let array_size = raw.sys_chunk_array_size.get() as usize;
        let sys_chunk_array = raw
            .sys_chunk_array
            .get(..array_size)
            .ok_or(Error::BadValue { what: "superblock sys_chunk_array_size", value: array_size as u64 })?;
        let mut superblock = Self {
            fsid: raw.fsid,
            bytenr: Physical(raw.bytenr.get()),
            flags: SuperblockFlags(raw.flags.get()),
            generation: Generation(raw.generation.get()),
            root: Logical(raw.root.get()),
            chunk_root: Logical(raw.chunk_root.get()),
            log_root: Logical(raw.log_root.get()),
            log_root_transid: raw.log_root_transid.get(),
            total_bytes: raw.total_bytes.get(),
            bytes_used: raw.bytes_used.get(),
            root_dir_objectid: raw.root_dir_objectid.get(),
            num_devices: raw.num_devices.get(),
            sector_size: raw.sectorsize.get(),
            node_size: raw.nodesize.get(),
            leaf_size: raw.leafsize.get(),
            stripe_size: raw.stripesize.get(),
            chunk_root_generation: Generation(raw.chunk_root_generation.get()),
            compat_flags: raw.compat_flags.get(),
            compat_ro: CompatRo(raw.compat_ro_flags.get()),
            incompat: Incompat(raw.incompat_flags.get()),
            checksum,
            root_level: raw.root_level,
            chunk_root_level: raw.chunk_root_level,
            log_root_level: raw.log_root_level,
            dev_item: raw.dev_item.into(),
            label: raw.label,
            cache_generation: Generation(raw.cache_generation.get()),
            uuid_tree_generation: Generation(raw.uuid_tree_generation.get()),
            metadata_uuid: raw.metadata_uuid,
            nr_global_roots: raw.nr_global_roots.get(),
            sys_chunk_array: sys_chunk_array.to_vec(),
            backup_roots: raw.super_roots.map(Into::into),
            epochs: Epochs::parse(&raw.epochs, Generation(raw.generation.get())),
            resilvered: None,
        };
        superblock.check(at)?;
        superblock.resilvered = Resilvered::parse(&raw.resilvered, || superblock.fingerprint());
        Ok(superblock)
    }

    fn check(&self, at: Physical) -> Result<()> {
        let require = |holds: bool, what: &'static str, value: u64| {
            if holds { Ok(()) } else { Err(Error::BadValue { what, value }) }
        };
        let sector = u64::from(self.sector_size);
        require(self.bytenr == at, "superblock bytenr", self.bytenr.0)?;
        require(
            self.sector_size.is_power_of_two() && (4096..=65536).contains(&self.sector_size),
            "superblock sectorsize",
            sector,
        )?;
        require(
            self.node_size.is_power_of_two() && self.node_size >= self.sector_size && self.node_size <= 65536,
            "superblock nodesize",
            self.node_size.into(),
        )?;
        require(self.leaf_size == self.node_size, "superblock leafsize", self.leaf_size.into())?;
        for (what, root) in [
            ("superblock root", self.root),
            ("superblock chunk_root", self.chunk_root),
            ("superblock log_root", self.log_root),
        ] {
            require(root.0.is_multiple_of(sector), what, root.0)?;
        }
        for (what, level) in [
            ("superblock root_level", self.root_level),
            ("superblock chunk_root_level", self.chunk_root_level),
            ("superblock log_root_level", self.log_root_level),
        ] {
            require(level < MAX_LEVEL, what, level.into())?;
        }
        require(self.num_devices != 0, "superblock num_devices", self.num_devices)?;
        require(
            self.chunk_root_generation <= self.generation,
            "superblock chunk_root_generation",
            self.chunk_root_generation.0,
        )?;
        require(
            self.cache_generation <= self.generation || self.cache_generation.0 == u64::MAX,
            "superblock cache_generation",
            self.cache_generation.0,
        )
    }

    /// Checks the rules between fields by which the kernel refuses a mount. [`Self::parse`] leaves
    /// them out, so that a damaged volume can still be examined.
    pub fn check_mountable(&self) -> Result<()> {
        let require = |holds: bool, what: &'static str, value: u64| {
            if holds { Ok(()) } else { Err(Error::BadValue { what, value }) }
        };
        require(self.dev_item.fsid == self.metadata_fsid(), "superblock dev_item.fsid", self.dev_item.devid.0)?;
        if self.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            let resting_on = CompatRo::FREE_SPACE_TREE.with(CompatRo::FREE_SPACE_TREE_VALID);
            require(self.compat_ro.contains(resting_on), "superblock compat_ro_flags", self.compat_ro.0)?;
            require(self.incompat.contains(Incompat::NO_HOLES), "superblock incompat_flags", self.incompat.0)?;
        }
        let least = 6 * u64::from(self.node_size);
        require(self.bytes_used >= least, "superblock bytes_used", self.bytes_used)?;
        require(self.stripe_size == self.sector_size, "superblock stripesize", self.stripe_size.into())?;
        let array = self.sys_chunk_array.len();
        require(array >= SYS_CHUNK_ARRAY_MIN, "superblock sys_chunk_array_size", array as u64)
    }

    /// Returns the superblock's bytes, with its checksum.
    pub fn to_bytes(&self) -> Result<Box<[u8; SUPERBLOCK_SIZE]>> {
        let mut raw = SuperblockBytes::new_zeroed();
        raw.fsid = self.fsid;
        raw.bytenr = self.bytenr.0.into();
        raw.flags = self.flags.0.into();
        raw.magic = SUPERBLOCK_MAGIC;
        raw.generation = self.generation.0.into();
        raw.root = self.root.0.into();
        raw.chunk_root = self.chunk_root.0.into();
        raw.log_root = self.log_root.0.into();
        raw.log_root_transid = self.log_root_transid.into();
        raw.total_bytes = self.total_bytes.into();
        raw.bytes_used = self.bytes_used.into();
        raw.root_dir_objectid = self.root_dir_objectid.into();
        raw.num_devices = self.num_devices.into();
        raw.sectorsize = self.sector_size.into();
        raw.nodesize = self.node_size.into();
        raw.leafsize = self.leaf_size.into();
        raw.stripesize = self.stripe_size.into();
        raw.sys_chunk_array_size = (self.sys_chunk_array.len() as u32).into();
        raw.chunk_root_generation = self.chunk_root_generation.0.into();
        raw.compat_flags = self.compat_flags.into();
        raw.compat_ro_flags = self.compat_ro.0.into();
        raw.incompat_flags = self.incompat.0.into();
        raw.csum_type = self.checksum.raw().into();
        raw.root_level = self.root_level;
        raw.chunk_root_level = self.chunk_root_level;
        raw.log_root_level = self.log_root_level;
        raw.dev_item = self.dev_item.into();
        raw.label = self.label;
        raw.cache_generation = self.cache_generation.0.into();
        raw.uuid_tree_generation = self.uuid_tree_generation.0.into();
        raw.metadata_uuid = self.metadata_uuid;
        raw.nr_global_roots = self.nr_global_roots.into();
        raw.sys_chunk_array
            .get_mut(..self.sys_chunk_array.len())
            .ok_or(Error::NoRoom { size: self.sys_chunk_array.len() })?
            .copy_from_slice(&self.sys_chunk_array);
        raw.super_roots = self.backup_roots.map(Into::into);
        raw.epochs = self.epochs.to_bytes();
        if let Some(resilvered) = self.resilvered {
            raw.resilvered = resilvered.to_bytes(self.fingerprint());
        }
        let mut bytes = Box::new([0; SUPERBLOCK_SIZE]);
        bytes.copy_from_slice(raw.as_bytes());
        let sum = self.checksum.compute(&bytes[CHECKSUM_FIELD..]);
        bytes[..CHECKSUM_FIELD].copy_from_slice(&sum.0);
        Ok(bytes)
    }

    /// Returns the id that tree blocks carry.
    pub fn metadata_fsid(&self) -> Uuid {
        if self.incompat.contains(Incompat::METADATA_UUID) { self.metadata_uuid } else { self.fsid }
    }

    /// Returns the label's bytes, up to the first zero byte.
    pub fn label_bytes(&self) -> &[u8] {
        let end = self.label.iter().position(|byte| *byte == 0).unwrap_or(self.label.len());
        &self.label[..end]
    }
}
