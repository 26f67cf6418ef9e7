//! What each kind of fault means for the files of a volume, and what corrects it.

use crate::fault::FaultKind;
use crate::level::{Level, Mending};

/// What is known of a kind of fault, whatever its fields are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// The name of the kind, which programs may rely on: the `kind` of the JSON.
    pub name: &'static str,
    /// The level of the kind's worst fault.
    pub level: Level,
    /// What corrects it.
    pub mended_by: Mending,
    /// What it means for files, as one sentence.
    pub means: &'static str,
}

/// Declares what is known of each kind. A kind that is left out does not compile.
macro_rules! kinds {
    ($($kind:ident $name:literal $level:ident $mending:ident $means:literal)+) => {
        /// All kinds, in the order of [`FaultKind`].
        pub const KINDS: &[About] = &[$(About {
            name: $name,
            level: Level::$level,
            mended_by: Mending::$mending,
            means: $means,
        }),+];

        fn about(kind: &FaultKind) -> About {
            match kind {
                $(FaultKind::$kind { .. } => About {
                    name: $name,
                    level: Level::$level,
                    mended_by: Mending::$mending,
                    means: $means,
                },)+
            }
        }
    };
}

kinds! {
    SuperblockCopyBad "superblock_copy_bad" Space SuperRecover
        "A mount needs one good superblock; while another copy is good, no file is affected."
    SuperblockCopyDiffers "superblock_copy_differs" Space Mount
        "No file is affected; after the loss of the first superblock this copy would describe the volume wrongly."
    SuperblockCopyStale "superblock_copy_stale" Harmless Mount
        "A crash came while the superblocks were written; the newest one counts."
    SuperblockField "superblock_field" Space Repair
        "No file is affected; the volume's size or use is shown wrongly, and writing may end early or be refused."
    SystemChunkMissing "system_chunk_missing" Space Repair
        "The volume may not be mountable, since this chunk is needed before the chunk tree can be read; the files themselves are not affected."
    SystemChunkDiffers "system_chunk_differs" Space Repair
        "The volume may not be mountable, since this chunk is needed before the chunk tree can be read; the files themselves are not affected."
    SystemChunkArray "system_chunk_array" Space Repair
        "The volume may not be mountable, since the chunk tree can't be found; the files themselves are not affected."
    BadCopy "bad_copy" Space Scrub
        "No file is affected while the other copy is good."
    CopiesDiffer "copies_differ" Space Scrub
        "One of the copies is an old one that was not overwritten; readers may see either of them."
    BadBlock "bad_block" Content Repair
        "Files, directories or attributes whose records are in this block are lost, if the tree is that of a subvolume."
    BlockHeader "block_header" Space Repair
        "No file is affected; a kernel may refuse to read the block."
    GenerationTooNew "generation_too_new" Content Repair
        "The block was written after the commit that refers to it: a write was lost or misdirected, and what the block had before is gone."
    KeyBeyondParent "key_beyond_parent" Content Repair
        "Files whose records are in this block are not found."
    BlockReachedTwice "block_reached_twice" Content Repair
        "Two places have the same block: one of them has lost what it had."
    EmptyTree "empty_tree" Content Repair
        "All that the tree had is lost; without some trees a mount is refused."
    MissingTree "missing_tree" Content Repair
        "All that the tree had is lost; without some trees a mount is refused."
    BadItem "bad_item" Names Repair
        "The file or record that the item describes can't be used; a kernel refuses the whole block."
    MisplacedItem "misplaced_item" Space Repair
        "No file is affected, since readers of this tree ignore the item; it shows that a writer or the memory had a defect."
    UnknownItem "unknown_item" Space Repair
        "No file is affected, since readers of this tree ignore the item; it shows that a writer or the memory had a defect."
    ChunksOverlap "chunks_overlap" Content Backup
        "Two chunks claim the same addresses: some of the data in them is not what was written."
    ChunkWithoutBlockGroup "chunk_without_block_group" Space Repair
        "A mount is refused; the files themselves are not affected."
    BlockGroupWithoutChunk "block_group_without_chunk" Space Repair
        "A mount is refused; the files themselves are not affected."
    BlockGroupDiffersFromChunk "block_group_differs_from_chunk" Space Repair
        "A mount is refused; the files themselves are not affected."
    BlockGroupUsed "block_group_used" Space Repair
        "Free space is shown wrongly; writing may fail early or turn the volume read-only."
    ChunkWithoutDeviceExtent "chunk_without_device_extent" Space Repair
        "A mount is refused, or the place of the chunk is given away a second time and then overwritten."
    DeviceExtentWithoutChunk "device_extent_without_chunk" Space Repair
        "Space of the device can't be used; a mount is refused."
    DeviceExtentDiffers "device_extent_differs" Space Repair
        "A mount is refused; the files themselves are not affected."
    DeviceExtentsOverlap "device_extents_overlap" Content Backup
        "Two chunks have the same place of a device: some of the data in them is overwritten."
    DeviceExtentBeyondDevice "device_extent_beyond_device" Space Backup
        "A mount is refused; what is beyond the end of the device is lost unless there are other copies."
    DeviceBytesUsed "device_bytes_used" Space Repair
        "Free space of the device is shown wrongly; new chunks may be refused."
    DeviceMissing "device_missing" Content Device
        "Data and tree blocks that only this device has can't be read."
    DeviceUuid "device_uuid" Space Repair
        "A mount takes the device for a missing one; the files themselves are not affected."
    DeviceTooSmall "device_too_small" Space Backup
        "A mount is refused; what is beyond the end of the device is lost unless there are other copies."
    ExtentsOverlap "extents_overlap" Content Repair
        "Two extents claim the same space: what was written first is overwritten, unless only the records are wrong."
    ExtentOutsideBlockGroup "extent_outside_block_group" Space Repair
        "The space counts in no block group, so it may be given away a second time."
    ExtentInWrongBlockGroup "extent_in_wrong_block_group" Space Repair
        "No file is affected; a kernel may refuse the block."
    BlockCrossesStripe "block_crosses_stripe" Space Repair
        "No file is affected; scrub of some kernels can't check the block."
    ExtentOverSuperblock "extent_over_superblock" Content Backup
        "The superblock's copy is written over a part of the extent."
    MissingExtentItem "missing_extent_item" Space Repair
        "The space counts as free, so the next write may overwrite the files or records in it."
    UnusedExtentItem "unused_extent_item" Space Repair
        "Space is lost until the item is removed; no file is affected."
    MissingReference "missing_reference" Space Repair
        "The extent may be freed while it is in use; then the next write overwrites the files or records in it."
    SurplusReference "surplus_reference" Space Repair
        "The extent is not freed when its last user is gone; no file is affected."
    ReferenceTotal "reference_total" Space Repair
        "The extent may be freed too early or never; deleting the files that use it may turn the volume read-only."
    ExtentGeneration "extent_generation" Space Repair
        "No file is affected; an incremental send may leave something out."
    ExtentLevel "extent_level" Space Repair
        "No file is affected; moving or freeing the block may turn the volume read-only."
    ExtentLength "extent_length" Space Repair
        "Free space is wrong; the end of the extent may be given away a second time."
    ExtentKind "extent_kind" Space Repair
        "Moving or freeing the extent may turn the volume read-only."
    FullBackrefMissing "full_backref_missing" Space Repair
        "No file is affected yet; changing the block may leave wrong references behind."
    ReferenceWithoutExtent "reference_without_extent" Space Repair
        "The space counts as free, so the next write may overwrite the files or records in it."
    FreeSpaceInfoMissing "free_space_info_missing" Space Repair
        "No file is affected; the free space of the block group is not used, or a write turns the volume read-only."
    FreeSpaceStale "free_space_stale" Harmless Nothing
        "mkfs.btrfs leaves such items of its temporary block groups behind; no reader uses them."
    FreeSpaceCount "free_space_count" Space Repair
        "No file is affected; the free space of the block group is read again from the extents."
    UsedListedFree "used_listed_free" Space Repair
        "The next write may overwrite the files or records in this space."
    FreeNotListed "free_not_listed" Space Repair
        "No file is affected; the space is not used."
    FreeSpaceNotMerged "free_space_not_merged" Space Repair
        "No file is affected; a write that frees space beside it may turn the volume read-only."
    FreeSpaceWrongKind "free_space_wrong_kind" Space Repair
        "No file is affected; the free space of the block group can't be read."
    FreeSpaceOutside "free_space_outside" Space Repair
        "Space of another block group may be given away a second time."
    ChecksumsOverlap "checksums_overlap" Space Repair
        "Data has two checksums; if they differ, reads of it may fail."
    ChecksumWithoutExtent "checksum_without_extent" Space Repair
        "No file is affected; data that is written there later may be compared with the old checksum."
    MissingChecksum "missing_checksum" Content Backup
        "Reads of this data fail, since nothing proves it."
    OddChecksum "odd_checksum" Harmless Nothing
        "Readers ignore checksums of data that should have none."
    BadData "bad_data" Content Backup
        "Reads of this data fail with an I/O error, or use another copy if one is good."
    UnreadableData "unreadable_data" Content Backup
        "Reads of this data fail with an I/O error, or use another copy if one is good."
    BadParity "bad_parity" Space Scrub
        "No file is affected until a device fails; then data of this row can't be computed."
    MissingInode "missing_inode" Content Repair
        "The file's attributes and type are lost; it can't be opened."
    LinkCount "link_count" Names Repair
        "stat shows a wrong link count; the last unlink may leave the file behind or free it too early."
    DirectoryNames "directory_names" Names Repair
        "The directory appears at several places; tools that walk directories may loop."
    DirectorySize "directory_size" Names Repair
        "stat shows a wrong size of the directory, and rmdir may fail on an empty one."
    NoOrphanItem "no_orphan_item" Names Repair
        "The file has no name and is never removed: its space is lost."
    Nbytes "nbytes" Names Repair
        "stat shows a wrong number of blocks; the content is not affected."
    FileGap "file_gap" Names Repair
        "Readers see zeros there; kernels that require an item for each hole may refuse to write."
    FileExtentsOverlap "file_extents_overlap" Content Repair
        "Two extents have the same range of the file: readers see either of them."
    FileExtentRule "file_extent_rule" Content Repair
        "This part of the file can't be read or is not what was written."
    SymlinkRule "symlink_rule" Names Repair
        "The symbolic link has a wrong or truncated target."
    UnexpectedContent "unexpected_content" Names Repair
        "Nothing can read what the inode should not have; it hides space."
    RootNotDirectory "root_not_directory" Content Repair
        "The subvolume can't be mounted or entered: none of its files can be reached."
    InodeCache "inode_cache" Harmless Nothing
        "The inode cache was a cache of free inode numbers; no kernel since Linux 5.11 reads it."
    IndexWithoutItem "index_without_item" Names Repair
        "readdir shows the name, but opening it fails."
    ItemWithoutIndex "item_without_index" Names Repair
        "The name can be opened, but readdir does not show it."
    DuplicateName "duplicate_name" Names Repair
        "The directory has the name twice; only one of the files can be opened."
    EntryLocation "entry_location" Names Repair
        "The name is of no file."
    EntryWithoutInode "entry_without_inode" Content Repair
        "The name is shown, but the file is lost: opening it fails."
    EntryWithoutRef "entry_without_ref" Names Repair
        "The name can be opened; an unlink of it fails and may turn the volume read-only."
    RefWithoutEntry "ref_without_entry" Names Repair
        "The file has lost this name; it may have no other, and then it can't be opened."
    RefWithoutDirectory "ref_without_directory" Names Repair
        "The directory of the file is lost; the file may have no other name, and then it can't be opened."
    IndexMismatch "index_mismatch" Names Repair
        "The name can be opened; an unlink of it may fail and turn the volume read-only."
    TypeMismatch "type_mismatch" Names Repair
        "readdir shows a wrong type of the file."
    NameMismatch "name_mismatch" Names Repair
        "The directory and the file disagree about the name; an unlink of it may fail and turn the volume read-only."
    UnreachableDirectory "unreachable_directory" Names Repair
        "The directory and what is in it have no path."
    ReferenceToItself "reference_to_itself" Names Repair
        "All files can be read, but some programs refuse the directory."
    SubvolumeEntryWithoutRef "subvolume_entry_without_ref" Names Repair
        "The name is shown as an empty directory."
    RootRefWithoutEntry "root_ref_without_entry" Names Repair
        "The subvolume has no path; it can be mounted by its id."
    RootRefWithoutBackref "root_ref_without_backref" Names Repair
        "The path of the subvolume can't be found; deleting it may turn the volume read-only."
    RootBackrefWithoutRef "root_backref_without_ref" Names Repair
        "The name may be shown as an empty directory; deleting the subvolume may turn the volume read-only."
    SubvolumeNames "subvolume_names" Names Repair
        "The subvolume has no path, or several; it can be mounted by its id."
    RootWithoutOrphan "root_without_orphan" Space Repair
        "The deleted subvolume is never removed: its space is lost."
    UuidMissing "uuid_missing" Space Repair
        "btrfs receive does not find the subvolume by this id."
    UuidSurplus "uuid_surplus" Harmless Nothing
        "Kernels leave such entries behind and compare each one with the subvolume before they use it."
    SubvolumeWithoutRoot "subvolume_without_root" Content Repair
        "All files of the subvolume are lost; its entry is shown as an empty directory."
    DefaultSubvolumeMissing "default_subvolume_missing" Names SetDefault
        "A mount without a subvolume's name or id is refused."
    UuidTreeMissing "uuid_tree_missing" Harmless Mount
        "Kernels make the UUID tree again when they mount the volume."
    QgroupsInconsistent "qgroups_inconsistent" Harmless QuotaRescan
        "The quota groups' use may be wrong, and limits may act too early or too late, until a rescan."
    QgroupUse "qgroup_use" Space QuotaRescan
        "The quota group's use is shown wrongly, and its limits act too early or too late."
    QgroupItemMissing "qgroup_item_missing" Space QuotaRescan
        "The use of the quota group is not limited or not shown."
    QgroupRelation "qgroup_relation" Space Repair
        "The use of the subvolume does not count in the quota group above it, or can't be taken out of it."
    LogOverUsedSpace "log_over_used_space" Content ZeroLog
        "The log was overwritten, or its replay would overwrite files; what was synced after the last commit is lost."
    LogOverlapsItself "log_overlaps_itself" Content ZeroLog
        "A part of the log was overwritten; what was synced after the last commit is lost."
    LogGeneration "log_generation" Content ZeroLog
        "A mount refuses the log; what was synced after the last commit is lost."
}

impl FaultKind {
    /// The name of the kind, which programs may rely on.
    pub fn name(&self) -> &'static str {
        about(self).name
    }

    /// Returns how much this means for files.
    pub fn level(&self) -> Level {
        match self {
            Self::BadData { has_good_copy: true, .. }
            | Self::UnreadableData { has_good_copy: true, .. }
            | Self::DeviceMissing { bytes_lost: 0, .. } => Level::Space,
            _ => about(self).level,
        }
    }

    /// Returns what this means for files, as one sentence.
    pub fn means(&self) -> &'static str {
        match self {
            Self::DeviceMissing { bytes_lost: 0, .. } => {
                "All files can be read from the other devices; another failure may lose data."
            }
            Self::BadData { has_good_copy: true, .. } | Self::UnreadableData { has_good_copy: true, .. } => {
                "No file is affected while the other copy is good."
            }
            _ => about(self).means,
        }
    }

    /// Returns what corrects this.
    pub fn mended_by(&self) -> Mending {
        match self {
            Self::BadData { has_good_copy: true, .. } | Self::UnreadableData { has_good_copy: true, .. } => {
                Mending::Scrub
            }
            _ => about(self).mended_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kinds_are_those_of_json_and_unique() {
        let samples = [
            FaultKind::CopiesDiffer,
            FaultKind::MisplacedItem,
            FaultKind::UnknownItem { item_type: 1 },
            FaultKind::Nbytes { found: 1, expected: 2 },
            FaultKind::UuidMissing { which: "UUID" },
        ];
        for kind in samples {
            assert_eq!(serde_json::to_value(&kind).unwrap()["kind"], kind.name());
        }
        let mut names: Vec<&str> = KINDS.iter().map(|about| about.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
        assert!(KINDS.iter().all(|about| about.means.ends_with('.')));
    }
}
