//! Newtypes for everything that would otherwise be a bare `u64`.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// A byte address in the volume's logical address space, which chunks map to devices.
    Logical
}
id! {
    /// A byte address on one device.
    Physical
}
id! {
    /// An inode number; unique within its subvolume.
    Ino
}
id! {
    /// The object id of a tree's root item; a subvolume's id is its tree's.
    TreeId
}
id! {
    /// The number of a transaction; every block and many items carry the one that wrote them.
    Generation
}
id! {
    /// The sequence number of an entry in its directory; never reused. Entries start at 2.
    DirIndex
}
id! {
    /// The number of a device in its volume, from 1.
    DeviceId
}

impl Logical {
    /// Returns the address `bytes` bytes further on (saturating, so that hostile values do no
    /// harm).
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl Physical {
    /// Returns the address `bytes` bytes further on (saturating).
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl Generation {
    /// Returns the transaction after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Ino {
    /// The root directory of every subvolume.
    pub const ROOT_DIR: Self = Self(256);
    /// The first inode number of files and directories.
    pub const FIRST_FREE: Self = Self(256);
    /// The last inode number that files may have.
    pub const LAST_FREE: Self = Self(256_u64.wrapping_neg());
}

impl DirIndex {
    /// The index of a directory's first entry (0 and 1 are `.` and `..`).
    pub const FIRST: Self = Self(2);
}

impl TreeId {
    /// Roots of all other trees.
    pub const ROOT: Self = Self(1);
    /// Extents and their references.
    pub const EXTENT: Self = Self(2);
    /// Logical to physical mapping.
    pub const CHUNK: Self = Self(3);
    /// Physical to logical mapping.
    pub const DEV: Self = Self(4);
    /// The top-level subvolume.
    pub const FS: Self = Self(5);
    /// The directory inside the root tree that names the default subvolume.
    pub const ROOT_TREE_DIR: Self = Self(6);
    /// Checksums of data.
    pub const CSUM: Self = Self(7);
    /// Quota groups.
    pub const QUOTA: Self = Self(8);
    /// Subvolume ids by UUID.
    pub const UUID: Self = Self(9);
    /// Free space.
    pub const FREE_SPACE: Self = Self(10);
    /// Block groups, if they have a tree of their own.
    pub const BLOCK_GROUP: Self = Self(11);
    /// Stripes of RAID stripe-tree volumes.
    pub const RAID_STRIPE: Self = Self(12);
    /// Log trees.
    pub const LOG: Self = Self(6_u64.wrapping_neg());
    /// Trees of a relocation in progress.
    pub const RELOC: Self = Self(8_u64.wrapping_neg());
    /// Scratch tree of data relocation.
    pub const DATA_RELOC: Self = Self(9_u64.wrapping_neg());

    /// Returns whether this tree holds files: the top level or a subvolume.
    pub fn is_subvolume(self) -> bool {
        self == Self::FS || (self.0 >= Ino::FIRST_FREE.0 && self.0 <= Ino::LAST_FREE.0)
    }
}

/// A UUID as on disk.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(transparent)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The UUID of nothing.
    pub const NIL: Self = Self([0; 16]);
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            if matches!(position, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
