//! fs-verity: a file that is no longer written, with a tree of hashes of its content in items of
//! its own. A read returns content that matches the tree, or fails (invariant 42).
//!
//! The log never has these items. Kernels replay the flag of a logged inode but not the items, so
//! the file could not be opened then. Until the items are committed, an fsync becomes a commit.
//!
//! The descriptor has the hash of the root block of the tree. The levels of the tree are stored in
//! order, the root first. The kernel's documentation of fs-verity describes the format.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256, Sha512};
use ubtrfs_format::{Ino, ItemType, Key};
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_tree::Snapshot;

use crate::error::{DataError, Result};

/// Bytes of a descriptor without its signature.
const DESCRIPTOR: usize = 256;
/// The places of the root's hash and of the salt in a descriptor.
const ROOT: std::ops::Range<usize> = 16..80;
const SALT: std::ops::Range<usize> = 80..112;
/// How many verified blocks of the tree are kept for a file.
const MAX_KEPT: usize = 64;
/// The memory of an item besides its bytes, in bytes.
const ITEM: usize = 96;
/// The most levels of a tree: each block of the smallest size has 16 hashes of the largest size.
const MAX_LEVELS: usize = 16;
/// The sizes of blocks, as logarithms.
const BLOCK_SIZES: std::ops::RangeInclusive<u8> = 10..=16;

/// A hash algorithm of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    fn of_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha512),
            _ => None,
        }
    }

    fn number(self) -> u16 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }

    /// Returns the size of a hash in bytes.
    fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    fn hash(self, parts: [&[u8]; 2]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::new().chain_update(parts[0]).chain_update(parts[1]).finalize().to_vec(),
            Self::Sha512 => Sha512::new().chain_update(parts[0]).chain_update(parts[1]).finalize().to_vec(),
        }
    }
}

/// The fs-verity items of an inode, which it gets all at once: pieces by the offsets of their keys.
#[derive(Clone, Debug, Default)]
pub struct VerityItems {
    /// The descriptor's size, and its bytes.
    descriptor: BTreeMap<u64, Vec<u8>>,
    /// The tree of hashes.
    hashes: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl VerityItems {
    /// Adds the item of a key. Ignores one of another type.
    pub fn insert(&mut self, key: &Key, item: &[u8]) {
        let pieces = match key.item_type {
            ItemType::VERITY_DESC_ITEM => &mut self.descriptor,
            ItemType::VERITY_MERKLE_ITEM => &mut self.hashes,
            _ => return,
        };
        let old = pieces.insert(key.offset, item.to_vec());
        self.bytes += ITEM + item.len();
        self.bytes -= old.map_or(0, |old| ITEM + old.len());
    }

    /// Returns how many bytes of memory they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the items with their keys in this inode.
    pub fn of(&self, ino: Ino) -> impl Iterator<Item = (Key, &Vec<u8>)> {
        let descriptor = self.descriptor.iter().map(|(offset, item)| (ItemType::VERITY_DESC_ITEM, offset, item));
        let hashes = self.hashes.iter().map(|(offset, item)| (ItemType::VERITY_MERKLE_ITEM, offset, item));
        descriptor.chain(hashes).map(move |(item_type, offset, item)| (Key::new(ino.0, item_type, *offset), item))
    }
}

/// Where the items of a file are.
pub enum VeritySource<'a> {
    /// In a transaction that is not committed yet.
    Pending(&'a VerityItems),
    /// In the tree of the subvolume.
    Committed(Snapshot),
}

impl VeritySource<'_> {
    fn descriptor(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut add = |offset: u64, item: &[u8]| {
            let fits = offset == bytes.len() as u64 + 1 && bytes.len() < DESCRIPTOR;
            if fits {
                bytes.extend_from_slice(item);
            }
            fits
        };
        match self {
            Self::Pending(items) => {
                let mut pieces = items.descriptor.range(1..);
                while pieces.next().is_some_and(|(offset, item)| add(*offset, item)) {}
            }
            Self::Committed(tree) => {
                let key = |offset| Key::new(ino.0, ItemType::VERITY_DESC_ITEM, offset);
                for item in tree.range(key(1)..=key(u64::MAX)) {
                    let item = item?;
                    if !add(item.key.offset, &item) {
                        break;
                    }
                }
            }
        }
        Ok(bytes)
    }

    /// Fills a block of the tree of hashes that begins at offset `from` of it. Missing parts stay
    /// as they are: zeros, which match no hash.
    fn fill(&self, ino: Ino, from: u64, block: &mut [u8]) -> Result<()> {
        let end = from + block.len() as u64;
        let mut add = |at: u64, item: &[u8]| {
            let (first, last) = (at.max(from), (at + item.len() as u64).min(end));
            if first < last {
                let part = &item[(first - at) as usize..(last - at) as usize];
                block[(first - from) as usize..(last - from) as usize].copy_from_slice(part);
            }
        };
        match self {
            Self::Pending(items) => {
                // The piece before may reach into the block.
                let first = items.hashes.range(..=from).next_back().map_or(from, |(offset, _)| *offset);
                items.hashes.range(first..end).for_each(|(offset, item)| add(*offset, item));
            }
            Self::Committed(tree) => {
                let key = |offset| Key::new(ino.0, ItemType::VERITY_MERKLE_ITEM, offset);
                let before = tree.range_rev(key(0)..=key(from)).next().transpose()?;
                let first = before.map_or(from, |item| item.key.offset);
                for item in tree.range(key(first)..=key(end - 1)) {
                    let item = item?;
                    add(item.key.offset, &item);
                }
            }
        }
        Ok(())
    }
}

/// The digest of a file: the number of the algorithm, and the hash of the descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerityDigest {
    /// The number of the algorithm, such as `FS_VERITY_HASH_ALG_SHA256`.
    pub algorithm: u16,
    /// The hash.
    pub hash: Vec<u8>,
}

/// How a file is to be protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerityParameters {
    /// The number of the algorithm, such as `FS_VERITY_HASH_ALG_SHA256`.
    pub algorithm: u32,
    /// Bytes of a block, of the content and of the tree of hashes.
    pub block_size: u32,
    /// The bytes that are hashed before each block; at most 32.
    pub salt: Vec<u8>,
    /// The signature that is kept with the descriptor. It may be empty, and nothing checks it.
    pub signature: Vec<u8>,
}

/// The size in bytes of an item with a piece of the descriptor or of the tree.
const PIECE: usize = 2048;
/// Bytes of the longest signature.
const MAX_SIGNATURE: usize = 16_128;

/// Makes the items of a file from its content.
pub struct VerityBuilder {
    verity: Verity,
    descriptor: Vec<u8>,
    /// The begun block of the content.
    rest: Vec<u8>,
    /// The hashes of the content's blocks.
    hashes: Vec<u8>,
    size: u64,
}

impl VerityBuilder {
    /// Makes a builder for a file of this size, or returns `None` if fs-verity does not allow these
    /// parameters.
    pub fn new(parameters: &VerityParameters, size: u64, sector: u64) -> Option<Self> {
        let VerityParameters { algorithm, block_size, salt, signature } = parameters;
        let fits = block_size.is_power_of_two()
            && u64::from(*block_size) <= sector
            && salt.len() <= SALT.len()
            && signature.len() <= MAX_SIGNATURE;
        if !fits {
            return None;
        }
        let mut descriptor = vec![0; DESCRIPTOR];
        descriptor[..4].copy_from_slice(&[
            1,
            u8::try_from(*algorithm).ok()?,
            u8::try_from(block_size.trailing_zeros()).ok()?,
            u8::try_from(salt.len()).ok()?,
        ]);
        descriptor[4..8].copy_from_slice(&u32::try_from(signature.len()).ok()?.to_le_bytes());
        descriptor[8..16].copy_from_slice(&size.to_le_bytes());
        descriptor[SALT][..salt.len()].copy_from_slice(salt);
        let verity = Verity::of_descriptor(&descriptor, size)?;
        descriptor.extend(signature);
        Some(Self { verity, descriptor, rest: Vec::new(), hashes: Vec::new(), size })
    }

    /// Returns how many bytes the items take, with their headers.
    pub fn item_bytes(&self) -> u64 {
        let (block, size) = (self.verity.block as u64, self.verity.algorithm.size() as u64);
        let mut bytes = self.descriptor.len() as u64;
        let mut blocks = self.size.div_ceil(block);
        while blocks > 1 {
            blocks = (blocks * size).div_ceil(block);
            bytes += blocks * block;
        }
        bytes + (bytes / PIECE as u64 + 3) * ITEM as u64
    }

    /// Adds the next bytes of the content.
    pub fn add(&mut self, mut content: &[u8]) {
        let block = self.verity.block;
        while !content.is_empty() {
            let (now, after) = content.split_at(content.len().min(block - self.rest.len()));
            self.rest.extend_from_slice(now);
            content = after;
            if self.rest.len() == block {
                self.end_block();
            }
        }
    }

    fn end_block(&mut self) {
        self.rest.resize(self.verity.block, 0);
        self.hashes.extend(self.verity.hash(&self.rest));
        self.rest.clear();
    }

    /// Returns the items, once all of the content was added.
    pub fn finish(mut self) -> VerityItems {
        if !self.rest.is_empty() {
            self.end_block();
        }
        let (block, size) = (self.verity.block, self.verity.algorithm.size());
        let mut levels = Vec::new();
        let mut hashes = std::mem::take(&mut self.hashes);
        while hashes.len() > size {
            hashes.resize(hashes.len().next_multiple_of(block), 0);
            let above = hashes.chunks(block).flat_map(|block| self.verity.hash(block)).collect();
            levels.push(std::mem::replace(&mut hashes, above));
        }
        // The root hash of an empty file is zeros.
        self.descriptor[ROOT][..hashes.len()].copy_from_slice(&hashes);
        let mut items = VerityItems::default();
        let key = |item_type, offset| Key::new(0, item_type, offset);
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&(self.descriptor.len() as u64).to_le_bytes());
        items.insert(&key(ItemType::VERITY_DESC_ITEM, 0), &head);
        for (number, piece) in (0..).zip(self.descriptor.chunks(PIECE)) {
            items.insert(&key(ItemType::VERITY_DESC_ITEM, 1 + number * PIECE as u64), piece);
        }
        let tree: Vec<u8> = levels.into_iter().rev().flatten().collect();
        for (number, piece) in (0..).zip(tree.chunks(PIECE)) {
            items.insert(&key(ItemType::VERITY_MERKLE_ITEM, number * PIECE as u64), piece);
        }
        items
    }
}

/// The size in bytes of the item with the descriptor's size.
const HEAD: usize = 25;

/// The data by which a file's content is verified.
#[derive(Debug)]
pub struct Verity {
    algorithm: Algorithm,
    block: usize,
    /// The salt, padded to a block of the hash function.
    salt: Vec<u8>,
    root: Vec<u8>,
    /// The block of the tree at which each level begins, the level above the content first.
    levels: Vec<u64>,
    digest: VerityDigest,
    /// Blocks of the tree that were verified.
    proved: Mutex<BTreeMap<u64, Arc<[u8]>>>,
}

impl Verity {
    /// Reads the descriptor of a file of this size.
    pub fn load(source: &VeritySource<'_>, ino: Ino, size: u64) -> Result<Self> {
        let wrong = |problem| DataError::Verity { ino, problem };
        let descriptor = source.descriptor(ino)?;
        let Some(descriptor) = descriptor.get(..DESCRIPTOR) else { return Err(wrong("has no descriptor")) };
        Self::of_descriptor(descriptor, size).ok_or_else(|| wrong("has a descriptor that can't be its own"))
    }

    fn of_descriptor(descriptor: &[u8], size: u64) -> Option<Self> {
        let [1, algorithm, block, salted, ..] = *descriptor else { return None };
        let algorithm = Algorithm::of_number(algorithm)?;
        let data_size = u64::from_le_bytes(descriptor.get(8..16)?.try_into().ok()?);
        let mut salt = descriptor.get(SALT)?.get(..usize::from(salted))?.to_vec();
        if data_size != size || !BLOCK_SIZES.contains(&block) {
            return None;
        }
        if !salt.is_empty() {
            // The block size of the hash functions is twice the size of their hashes.
            salt.resize(salt.len().next_multiple_of(2 * algorithm.size()), 0);
        }
        let (block, per_block) = (1 << block, (1_u64 << block) / algorithm.size() as u64);
        let mut counts = Vec::new();
        let mut blocks = size.div_ceil(block as u64);
        while blocks > 1 {
            blocks = blocks.div_ceil(per_block);
            counts.push(blocks);
        }
        if counts.len() > MAX_LEVELS {
            return None;
        }
        let mut start = 0;
        let mut levels: Vec<u64> = Vec::new();
        for count in counts.iter().rev() {
            levels.push(start);
            start += count;
        }
        levels.reverse();
        let mut measured = descriptor.to_vec();
        // The signature is not part of the data that it signs.
        measured[4..8].fill(0);
        let digest = VerityDigest { algorithm: algorithm.number(), hash: algorithm.hash([&[], &measured]) };
        let root = descriptor.get(ROOT)?[..algorithm.size()].to_vec();
        Some(Self { algorithm, block, salt, root, levels, digest, proved: Mutex::with_default(Rank::ProvedVerity) })
    }

    /// Returns the size in bytes of a block of the content.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Returns the digest of the file.
    pub fn digest(&self) -> &VerityDigest {
        &self.digest
    }

    /// Verifies that a block of the content, with zeros behind the end of the file, is what the
    /// file had when its tree was made. Fails otherwise.
    pub fn prove(&self, source: &VeritySource<'_>, ino: Ino, number: u64, content: &[u8]) -> Result<()> {
        let wrong = DataError::Verity { ino, problem: "is not what its tree of hashes says" };
        let size = self.algorithm.size();
        let per_block = (self.block / size) as u64;
        let (mut hash, mut index) = (self.hash(content), number);
        let mut climbed = Vec::new();
        for level in &self.levels {
            let place = level + index / per_block;
            let slot = (index % per_block) as usize * size;
            let proved = self.proved.lock().get(&place).cloned();
            let is_proved = proved.is_some();
            let block = if let Some(block) = proved {
                block
            } else {
                let mut block = vec![0; self.block];
                source.fill(ino, place * self.block as u64, &mut block)?;
                block.into()
            };
            if block.get(slot..slot + size) != Some(&*hash) {
                // By invariant 42 this is an error: nothing proves the content.
                return Err(wrong);
            }
            if is_proved {
                self.keep(climbed);
                return Ok(());
            }
            hash = self.hash(&block);
            climbed.push((place, block));
            index /= per_block;
        }
        if hash != self.root {
            return Err(wrong);
        }
        self.keep(climbed);
        Ok(())
    }

    fn hash(&self, block: &[u8]) -> Vec<u8> {
        self.algorithm.hash([&self.salt, block])
    }

    fn keep(&self, climbed: Vec<(u64, Arc<[u8]>)>) {
        let mut proved = self.proved.lock();
        if proved.len() + climbed.len() > MAX_KEPT {
            proved.clear();
        }
        proved.extend(climbed);
    }
}
