//! What a volume is called and how it is laid out, which does not change while it is open.

use ubtrfs_format::{ChecksumType, Superblock, Uuid};

/// The ids and sizes of an open volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumeIdentity {
    node_size: u32,
    sector_size: u32,
    checksum: ChecksumType,
    fsid: Uuid,
    metadata_fsid: Uuid,
    chunk_tree_uuid: Uuid,
    /// The volumes from which this one was made, whose blocks carry their ids.
    seeds: Vec<Uuid>,
}

impl VolumeIdentity {
    /// What the superblock says, before the chunk tree has been read.
    pub(crate) fn of(superblock: &Superblock, seeds: Vec<Uuid>) -> Self {
        Self {
            node_size: superblock.node_size,
            sector_size: superblock.sector_size,
            checksum: superblock.checksum,
            fsid: superblock.fsid,
            metadata_fsid: superblock.metadata_fsid(),
            chunk_tree_uuid: Uuid::NIL,
            seeds,
        }
    }

    /// Adds what the chunk tree says: its id, and the ids of seeds whose devices are missing.
    pub(crate) fn with_chunk_tree(mut self, uuid: Uuid, seeds: impl IntoIterator<Item = Uuid>) -> Self {
        self.chunk_tree_uuid = uuid;
        self.seeds.extend(seeds);
        self
    }

    /// Returns the size of a tree block in bytes.
    pub(crate) fn node_size(&self) -> u32 {
        self.node_size
    }

    /// Returns the size of a data sector in bytes.
    pub(crate) fn sector_size(&self) -> u32 {
        self.sector_size
    }

    /// Returns the checksum algorithm of tree blocks and data.
    pub(crate) fn checksum(&self) -> ChecksumType {
        self.checksum
    }

    /// Returns the id that users see.
    pub(crate) fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// Returns the id that tree blocks carry.
    pub(crate) fn metadata_fsid(&self) -> Uuid {
        self.metadata_fsid
    }

    /// Returns the id of the chunk tree, which every tree block carries.
    pub(crate) fn chunk_tree_uuid(&self) -> Uuid {
        self.chunk_tree_uuid
    }

    /// Returns whether this is the id of a seed from which this volume was made.
    pub(crate) fn is_of_a_seed(&self, fsid: Uuid) -> bool {
        self.seeds.contains(&fsid)
    }
}
