//! The faults that a volume can have, and their locations.

use std::fmt;

use serde::Serialize;
use ubtrfs_format::{Ino, Key, Logical, TreeId};

use crate::level::{Level, Mending};

/// The location of a fault, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Location {
    /// The tree.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "tree")]
    pub tree: Option<TreeId>,
    /// The address of the block or extent.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "logical")]
    pub address: Option<Logical>,
    /// The item's key.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "key")]
    pub key: Option<Key>,
    /// The inode.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "ino")]
    pub inode: Option<Ino>,
    /// A path of the inode inside its subvolume, if one was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The first and the last inode that may have had items in a block that can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<(u64, u64)>,
    /// The other subvolumes that share the block.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared_with: Vec<u64>,
    /// The path of the subvolume from the top level, unless it is the top level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subvolume: Option<String>,
    /// Paths, from the top level, of files that the block or extent is a part of: the first few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn tree<S: serde::Serializer>(tree: &Option<TreeId>, to: S) -> Result<S::Ok, S::Error> {
    tree.map(|tree| tree.0).serialize(to)
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn logical<S: serde::Serializer>(address: &Option<Logical>, to: S) -> Result<S::Ok, S::Error> {
    address.map(|address| address.0).serialize(to)
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn ino<S: serde::Serializer>(inode: &Option<Ino>, to: S) -> Result<S::Ok, S::Error> {
    inode.map(|inode| inode.0).serialize(to)
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn key<S: serde::Serializer>(key: &Option<Key>, to: S) -> Result<S::Ok, S::Error> {
    key.map(|key| (key.objectid, key.item_type.0, key.offset)).serialize(to)
}

impl Location {
    /// The volume as a whole.
    pub(crate) fn volume() -> Self {
        Self::default()
    }

    /// A block or an extent.
    pub(crate) fn at(address: Logical) -> Self {
        Self { address: Some(address), ..Self::default() }
    }

    /// A tree.
    pub(crate) fn tree(tree: TreeId) -> Self {
        Self { tree: Some(tree), ..Self::default() }
    }

    /// An item of a tree.
    pub(crate) fn item(tree: TreeId, key: Key) -> Self {
        Self { tree: Some(tree), key: Some(key), ..Self::default() }
    }

    /// An inode of a subvolume.
    pub(crate) fn inode(tree: TreeId, inode: Ino) -> Self {
        Self { tree: Some(tree), inode: Some(inode), ..Self::default() }
    }

    /// The same place, in this block.
    pub(crate) fn in_block(self, address: Logical) -> Self {
        Self { address: Some(address), ..self }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |f: &mut fmt::Formatter<'_>, text: String| {
            let result = write!(f, "{separator}{text}");
            separator = ", ";
            result
        };
        if let Some(tree) = self.tree {
            part(f, format!("tree {}", tree.0.cast_signed()))?;
        }
        if let Some(inode) = self.inode {
            part(f, format!("inode {inode}"))?;
        }
        if let Some(path) = &self.path {
            let subvolume = self.subvolume.as_deref().unwrap_or_default();
            part(f, format!("\"{subvolume}{path}\""))?;
        }
        if let Some(key) = self.key {
            part(f, format!("item {key}"))?;
        }
        if let Some(address) = self.address {
            part(f, format!("address {address}"))?;
        }
        if let Some((first, last)) = self.inodes {
            let what = if last == Ino::LAST_FREE.0 {
                format!("inodes from {first}")
            } else {
                format!("inodes {first} to {last}")
            };
            part(f, what)?;
        }
        if !self.shared_with.is_empty() {
            let ids: Vec<String> = self.shared_with.iter().map(ToString::to_string).collect();
            part(f, format!("also in subvolumes {}", ids.join(" ")))?;
        }
        if !self.files.is_empty() {
            part(f, format!("\"{}\"", self.files.join("\", \"")))?;
        }
        if separator.is_empty() { f.write_str("volume") } else { Ok(()) }
    }
}

/// A fault with its location. As JSON it has its level, meaning and remedy, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// Where.
    pub place: Location,
}

impl Fault {
    /// Returns how much this means for files. If the location shows that less is affected than by
    /// other faults of the kind, the level is lower.
    pub fn level(&self) -> Level {
        let level = self.kind.level();
        let of_records = self.place.tree.is_some_and(is_of_records);
        let is_of_any_tree = matches!(
            self.kind,
            FaultKind::BadBlock { .. }
                | FaultKind::BadItem { .. }
                | FaultKind::MissingTree
                | FaultKind::EmptyTree
                | FaultKind::BlockReachedTwice
                | FaultKind::KeyBeyondParent
        );
        if is_of_any_tree && of_records { level.min(Level::Space) } else { level }
    }
}

impl Serialize for Fault {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            kind: &'a FaultKind,
            level: Level,
            means: &'static str,
            mended_by: Mending,
            place: &'a Location,
        }
        let Self { kind, place } = self;
        Whole { kind, level: self.level(), means: kind.means(), mended_by: kind.mended_by(), place }.serialize(to)
    }
}

/// Returns whether a tree has only records that follow from other trees: no file is lost with it.
fn is_of_records(tree: TreeId) -> bool {
    let records = [
        TreeId::EXTENT,
        TreeId::DEV,
        TreeId::QUOTA,
        TreeId::UUID,
        TreeId::FREE_SPACE,
        TreeId::BLOCK_GROUP,
        TreeId::DATA_RELOC,
    ];
    records.contains(&tree)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.kind)
    }
}

/// The kind of a fault. In a pair of values, `found` is the value on the volume, and `expected` the
/// one that follows from other items. Names are shown with replacement characters where they are
/// not UTF-8. Addresses and lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its variant and fields mean")]
pub enum FaultKind {
    // Superblock.
    #[error("superblock copy {copy} of device {device} is bad: {reason}")]
    SuperblockCopyBad { device: u64, copy: u8, reason: String },
    #[error("superblock copy {copy} of device {device} differs from the one that counts")]
    SuperblockCopyDiffers { device: u64, copy: u8 },
    #[error("superblock copy {copy} of device {device} is of generation {found}, the one that counts of {expected}")]
    SuperblockCopyStale { device: u64, copy: u8, found: u64, expected: u64 },
    #[error("superblock: {field} is {found} where {expected} is right")]
    SuperblockField { field: &'static str, found: u64, expected: u64 },
    #[error("the superblock's system chunk array lacks chunk {chunk}")]
    SystemChunkMissing { chunk: u64 },
    #[error("the superblock's system chunk array has another chunk {chunk} than the chunk tree")]
    SystemChunkDiffers { chunk: u64 },
    #[error("the superblock's system chunk array can't be read: {reason}")]
    SystemChunkArray { reason: String },

    // Blocks.
    #[error("copy {copy} of a tree block is bad: {reason}")]
    BadCopy { copy: u64, reason: String },
    #[error("the copies of a tree block differ, though each has a right checksum")]
    CopiesDiffer,
    #[error("no copy of a tree block can be used: {reason}")]
    BadBlock { reason: String },
    #[error("tree block: {what}")]
    BlockHeader { what: &'static str },
    #[error("tree block of generation {found} in a volume of generation {newest}")]
    GenerationTooNew { found: u64, newest: u64 },
    #[error("a block's keys reach into the range of the next block")]
    KeyBeyondParent,
    #[error("a block is reached twice, and by a tree that shares none")]
    BlockReachedTwice,
    #[error("a tree that never is empty has no items")]
    EmptyTree,
    #[error("the tree is missing")]
    MissingTree,
    #[error("bad item: {reason}")]
    BadItem { reason: String },
    #[error("an item of a type that this tree never has")]
    MisplacedItem,
    #[error("an item of the unknown type {item_type}")]
    UnknownItem { item_type: u8 },

    // Chunks, block groups, devices.
    #[error("chunks overlap")]
    ChunksOverlap,
    #[error("a chunk has no block group")]
    ChunkWithoutBlockGroup,
    #[error("a block group has no chunk")]
    BlockGroupWithoutChunk,
    #[error("a block group's {field} is {found} where its chunk's is {expected}")]
    BlockGroupDiffersFromChunk { field: &'static str, found: u64, expected: u64 },
    #[error("a block group says that {found} bytes are used where extents take {expected}")]
    BlockGroupUsed { found: u64, expected: u64 },
    #[error("a chunk's stripe at {physical} of device {device} has no device extent")]
    ChunkWithoutDeviceExtent { device: u64, physical: u64 },
    #[error("the device extent at {physical} of device {device} belongs to no chunk's stripe")]
    DeviceExtentWithoutChunk { device: u64, physical: u64 },
    #[error("the device extent at {physical} of device {device}: {field} is {found} where {expected} is right")]
    DeviceExtentDiffers { device: u64, physical: u64, field: &'static str, found: u64, expected: u64 },
    #[error("the device extent at {physical} of device {device} overlaps the one before")]
    DeviceExtentsOverlap { device: u64, physical: u64 },
    #[error("the device extent at {physical} of device {device} ends beyond the device")]
    DeviceExtentBeyondDevice { device: u64, physical: u64 },
    #[error("device {device} says that {found} bytes are given to extents where they take {expected}")]
    DeviceBytesUsed { device: u64, found: u64, expected: u64 },
    #[error(
        "device {device} is missing; {bytes_not_compared} bytes on it have other copies, {bytes_lost} bytes have none"
    )]
    DeviceMissing { device: u64, bytes_not_compared: u64, bytes_lost: u64 },
    #[error("the UUID of device {device} in {record} is not that of its device item")]
    DeviceUuid { device: u64, record: &'static str },
    #[error("device {device} has {found} bytes where the volume takes {expected}")]
    DeviceTooSmall { device: u64, found: u64, expected: u64 },

    // Extents.
    #[error("an extent overlaps the one before it")]
    ExtentsOverlap,
    #[error("an extent of {length} bytes is not inside a block group")]
    ExtentOutsideBlockGroup { length: u64 },
    #[error("an extent is in a block group of the wrong type")]
    ExtentInWrongBlockGroup,
    #[error("a tree block crosses a 64 KiB boundary")]
    BlockCrossesStripe,
    #[error("an extent lies over a copy of the superblock")]
    ExtentOverSuperblock,
    #[error("{uses} uses of an extent that has no extent item")]
    MissingExtentItem { uses: u64 },
    #[error("an extent item that nothing uses")]
    UnusedExtentItem,
    #[error("the extent item lacks {reference} ({expected} uses, {found} noted)")]
    MissingReference { reference: String, found: u64, expected: u64 },
    #[error("the extent item notes {reference}, which is not true ({expected} uses, {found} noted)")]
    SurplusReference { reference: String, found: u64, expected: u64 },
    #[error("the extent item counts {found} references where it lists {expected}")]
    ReferenceTotal { found: u64, expected: u64 },
    #[error("the extent item says generation {found}, the block {expected}")]
    ExtentGeneration { found: u64, expected: u64 },
    #[error("the extent item says level {found}, the block {expected}")]
    ExtentLevel { found: u64, expected: u64 },
    #[error("the extent item says {found} bytes, a user {expected}")]
    ExtentLength { found: u64, expected: u64 },
    #[error("the extent item takes data for a tree block or the other way round")]
    ExtentKind,
    #[error("a block's owner does not use it, but it is not marked for full back references")]
    FullBackrefMissing,
    #[error("a reference to an extent that has no extent item")]
    ReferenceWithoutExtent,

    // Free space.
    #[error("a block group has no free space info")]
    FreeSpaceInfoMissing,
    #[error("free space items of a block group that does not exist")]
    FreeSpaceStale,
    #[error("free space info counts {found} ranges where there are {expected}")]
    FreeSpaceCount { found: u64, expected: u64 },
    #[error("{length} used bytes are listed as free")]
    UsedListedFree { length: u64 },
    #[error("{length} free bytes are not listed")]
    FreeNotListed { length: u64 },
    #[error("free ranges overlap or touch, where they should be one")]
    FreeSpaceNotMerged,
    #[error("a free space item of the wrong kind for its block group")]
    FreeSpaceWrongKind,
    #[error("a free space item outside of its block group")]
    FreeSpaceOutside,

    // Checksums.
    #[error("checksum items overlap")]
    ChecksumsOverlap,
    #[error("checksums of {length} bytes that no data extent covers")]
    ChecksumWithoutExtent { length: u64 },
    #[error("{length} bytes of written data have no checksum")]
    MissingChecksum { length: u64 },
    #[error("{length} bytes of {of} have checksums")]
    OddChecksum { length: u64, of: &'static str },
    #[error("copy {copy} of {length} bytes of data: checksums do not match")]
    BadData { copy: u64, length: u64, has_good_copy: bool },
    #[error("copy {copy} of {length} bytes of data can't be read: {reason}")]
    UnreadableData { copy: u64, length: u64, reason: String, has_good_copy: bool },
    #[error(
        "{length} bytes of parity at {physical} of device {device} do not match the data of their row, or can't be read"
    )]
    BadParity { device: u64, physical: u64, length: u64 },

    // Inodes.
    #[error("items of an inode that has no inode item")]
    MissingInode,
    #[error("link count {found} where there are {expected} names")]
    LinkCount { found: u64, expected: u64 },
    #[error("a directory with {names} names")]
    DirectoryNames { names: u64 },
    #[error("directory size {found} where {expected} is right")]
    DirectorySize { found: u64, expected: u64 },
    #[error("link count 0, but no orphan item")]
    NoOrphanItem,
    #[error("nbytes is {found} where extents add up to {expected}")]
    Nbytes { found: u64, expected: u64 },
    #[error("no extent at {offset}")]
    FileGap { offset: u64 },
    #[error("the extent at {offset} overlaps the one before")]
    FileExtentsOverlap { offset: u64 },
    #[error("the extent at {offset}: {rule}")]
    FileExtentRule { offset: u64, rule: &'static str },
    #[error("symbolic link: {rule}")]
    SymlinkRule { rule: &'static str },
    #[error("an inode of this type can't have {what}")]
    UnexpectedContent { what: &'static str },
    #[error("the root of the subvolume is no directory")]
    RootNotDirectory,
    #[error("items of the inode cache, which kernels since Linux 5.11 ignore")]
    InodeCache,

    // Names.
    #[error("the directory index {index} \"{name}\" has no directory item")]
    IndexWithoutItem { index: u64, name: String },
    #[error("the directory item \"{name}\" has no directory index")]
    ItemWithoutIndex { name: String },
    #[error("the name \"{name}\" stands twice")]
    DuplicateName { name: String },
    #[error("the entry \"{name}\" points to {location}, which is no key of an inode or a subvolume")]
    EntryLocation { name: String, location: String },
    #[error("the entry \"{name}\" points to inode {inode}, which does not exist")]
    EntryWithoutInode { name: String, inode: u64 },
    #[error("the entry \"{name}\" points to inode {inode}, which does not know this name")]
    EntryWithoutRef { name: String, inode: u64 },
    #[error("the name \"{name}\" in directory {parent}, which has no such entry")]
    RefWithoutEntry { name: String, parent: u64 },
    #[error("the name \"{name}\" in directory {parent}, which does not exist")]
    RefWithoutDirectory { name: String, parent: u64 },
    #[error("the name \"{name}\" has index {found} in the inode, {expected} in directory {parent}")]
    IndexMismatch { name: String, parent: u64, found: u64, expected: u64 },
    #[error("the entry \"{name}\" of directory {parent} notes the type {found} where {expected} is right")]
    TypeMismatch { name: String, parent: u64, found: u64, expected: u64 },
    #[error("index {index} of directory {parent} is \"{found}\" there, \"{expected}\" in the inode")]
    NameMismatch { parent: u64, index: u64, found: String, expected: String },
    #[error("the directory can't be reached from the root")]
    UnreachableDirectory,
    #[error("an inode names itself as its directory, where only a root directory does, as \"..\" with index 0")]
    ReferenceToItself,

    // Subvolumes.
    #[error("the entry for subvolume {child} \"{name}\" has no root reference")]
    SubvolumeEntryWithoutRef { child: u64, name: String },
    #[error("the root reference to subvolume {child} \"{name}\" has no directory entry")]
    RootRefWithoutEntry { child: u64, name: String },
    #[error("the root reference to subvolume {child} has no back reference that says the same")]
    RootRefWithoutBackref { child: u64 },
    #[error("the root back reference of subvolume {child} has no reference that says the same")]
    RootBackrefWithoutRef { child: u64 },
    #[error("a subvolume with {found} names")]
    SubvolumeNames { found: u64 },
    #[error("a deleted subvolume has no orphan item")]
    RootWithoutOrphan,
    #[error("the UUID tree lacks the subvolume's {which}")]
    UuidMissing { which: &'static str },
    #[error("the UUID tree names subvolume {subvolume}, which has another {which} or none")]
    UuidSurplus { subvolume: u64, which: &'static str },

    #[error("subvolume {child} \"{name}\" has no root item; {references} references to extents are its own")]
    SubvolumeWithoutRoot { child: u64, name: String, references: u64 },
    #[error("the default subvolume is {subvolume}, which does not exist")]
    DefaultSubvolumeMissing { subvolume: u64 },
    #[error("there is no UUID tree")]
    UuidTreeMissing,

    // Quota groups.
    #[error("the quota groups are marked as inconsistent")]
    QgroupsInconsistent,
    #[error("quota group {qgroup}: {field} is {found} where {expected} is right")]
    QgroupUse { qgroup: String, field: &'static str, found: u64, expected: u64 },
    #[error("quota group {qgroup} has no {what}")]
    QgroupItemMissing { qgroup: String, what: &'static str },
    #[error("the relation of quota group {child} to {parent}: {rule}")]
    QgroupRelation { child: String, parent: String, rule: &'static str },

    // Log.
    #[error("a block or extent of the log lies in space that is in use, or where it may not lie")]
    LogOverUsedSpace,
    #[error("blocks or extents of the log overlap")]
    LogOverlapsItself,
    #[error("the log is of generation {found} where {expected} is right")]
    LogGeneration { found: u64, expected: u64 },
}

impl FaultKind {
    /// Returns whether this is harmless, since known implementations leave it behind and all of
    /// them accept it.
    pub fn is_warning(&self) -> bool {
        self.level() == Level::Harmless
    }
}

/// A name in the form in which a fault shows it.
pub(crate) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_format::ItemType;

    #[test]
    fn a_fault_is_a_sentence_and_json() {
        let mut place = Location::inode(TreeId::FS, Ino(257));
        place.path = Some("/a/file".to_owned());
        let fault = Fault { kind: FaultKind::LinkCount { found: 2, expected: 1 }, place };
        assert_eq!(fault.to_string(), "tree 5, inode 257, \"/a/file\": link count 2 where there are 1 names");
        let json = serde_json::json!({
            "kind": "link_count", "found": 2, "expected": 1,
            "level": "names", "means": fault.kind.means(), "mended_by": "repair",
            "place": { "tree": 5, "inode": 257, "path": "/a/file" },
        });
        assert_eq!(serde_json::to_value(&fault).unwrap(), json);

        let place = Location::item(TreeId::DATA_RELOC, Key::new(256, ItemType::DIR_INDEX, 2)).in_block(Logical(4096));
        assert_eq!(place.to_string(), "tree -9, item (256 DIR_INDEX 2), address 4096");
        let json = serde_json::json!({ "tree": TreeId::DATA_RELOC.0, "key": [256, 96, 2], "address": 4096 });
        assert_eq!(serde_json::to_value(&place).unwrap(), json);
        assert_eq!(Location::volume().to_string(), "volume");
    }
}
