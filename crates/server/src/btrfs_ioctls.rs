//! btrfs's own ioctls and FITRIM, as far as they reach a server. FUSE passes arguments of the size
//! that a command's number encodes, and nothing behind them, so `SPACE_INFO` and `TREE_SEARCH_V2`,
//! whose answers follow their argument, can't be served.

use std::collections::BTreeMap;

use ubtrfs::{Errno, Filesystem, Result};
use ubtrfs_format::LABEL_SIZE;
use ubtrfs_format::{DeviceId, Generation, ItemType, Key, TreeId};

/// An ioctl that queries or trims the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeIoctl {
    /// `FITRIM`.
    Trim { start: u64, len: u64, least: u64 },
    /// `BTRFS_IOC_FS_INFO`.
    FsInfo,
    /// `BTRFS_IOC_DEV_INFO`.
    DevInfo { devid: u64, uuid: [u8; 16] },
    /// `BTRFS_IOC_GET_DEV_STATS`.
    DeviceErrors { devid: u64, count: u64, reset: bool },
    /// `BTRFS_IOC_TREE_SEARCH`.
    TreeSearch(Box<Search>),
    /// `BTRFS_IOC_GET_FEATURES`.
    Features,
    /// `BTRFS_IOC_GET_FSLABEL`, which is `FS_IOC_GETFSLABEL`.
    Label,
    /// `BTRFS_IOC_SET_FSLABEL`, which is `FS_IOC_SETFSLABEL`.
    SetLabel(Vec<u8>),
}

/// A search in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Search {
    /// The tree; 0 is the subvolume of the ioctl's file.
    tree: u64,
    first: Key,
    last: Key,
    generations: std::ops::RangeInclusive<u64>,
    most: u32,
    /// The first bytes of the argument, which the answer repeats.
    head: Vec<u8>,
}

const FS_INFO_SIZE: usize = 1024;
const DEV_INFO_SIZE: usize = 4096;
const DEV_STATS_SIZE: usize = 1032;
/// The flag of `GET_DEV_STATS` that sets the counters to zero.
const RESET: u64 = 1;
const RESET_AT: usize = 16;
/// The offset of the path in the answer to `DEV_INFO`, and its greatest length with the zero byte
/// after it.
const DEV_INFO_PATH: usize = 3072;
const PATH_SIZE: usize = 1024;
const SEARCH_SIZE: usize = 4096;
const SEARCH_HEAD: usize = 104;
const SEARCH_ITEM_HEAD: usize = 32;
/// The offset of the number of items in the head of a search.
const SEARCH_COUNT: usize = 64;

pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

fn number(data: &[u8], at: usize) -> std::result::Result<u64, Errno> {
    u64_at(data, at).ok_or(Errno::INVAL)
}

/// Returns whether an argument of `GET_DEV_STATS` asks to reset the counters.
pub(crate) fn resets_errors(data: &[u8]) -> bool {
    u64_at(data, RESET_AT).is_some_and(|flags| flags & RESET != 0)
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// Reads a text that ends with a zero byte.
pub(crate) fn text(bytes: &[u8]) -> std::result::Result<String, Errno> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
    String::from_utf8(bytes[..end].to_vec()).map_err(|_| Errno::INVAL)
}

/// Writes a text into bytes that are zero, and leaves a zero behind it.
pub(crate) fn put_text(argument: &mut [u8], at: usize, room: usize, text: &str) -> std::result::Result<(), Errno> {
    let bytes = text.as_bytes();
    if bytes.len() >= room {
        return Err(Errno::NAMETOOLONG);
    }
    argument[at..at + bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// The bytes that an ioctl leaves in its argument. ioctl(2) returns 0.
pub(crate) type Answer = Vec<u8>;

impl VolumeIoctl {
    /// Reads the argument of `FITRIM`. Like the others, returns `EINVAL` if it makes no sense.
    pub(crate) fn trim(data: &[u8]) -> std::result::Result<Self, Errno> {
        Ok(Self::Trim { start: number(data, 0)?, len: number(data, 8)?, least: number(data, 16)? })
    }

    pub(crate) fn device_info(data: &[u8]) -> std::result::Result<Self, Errno> {
        let uuid = data.get(8..).and_then(|rest| rest.first_chunk()).ok_or(Errno::INVAL)?;
        Ok(Self::DevInfo { devid: number(data, 0)?, uuid: *uuid })
    }

    pub(crate) fn device_errors(data: &[u8]) -> std::result::Result<Self, Errno> {
        let reset = number(data, RESET_AT)? & RESET != 0;
        Ok(Self::DeviceErrors { devid: number(data, 0)?, count: number(data, 8)?, reset })
    }

    pub(crate) fn tree_search(data: &[u8]) -> std::result::Result<Self, Errno> {
        Search::parse(data).map(|search| Self::TreeSearch(Box::new(search))).ok_or(Errno::INVAL)
    }

    pub(crate) fn set_label(data: &[u8]) -> std::result::Result<Self, Errno> {
        // A label must end with a zero byte.
        let end = data.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        Ok(Self::SetLabel(data[..end].to_vec()))
    }

    /// Makes the answer. `subvolume` is that of the ioctl's file; `devices` has the paths of the
    /// volume's devices by their numbers.
    pub(crate) fn answer(
        self,
        engine: &Filesystem,
        subvolume: TreeId,
        devices: &BTreeMap<u64, String>,
    ) -> Result<Answer> {
        match self {
            Self::Trim { start, len, least } => {
                let trimmed = engine.discarder().trim(start, len, least)?;
                let least = least.max(u64::from(engine.volume().sector_size()));
                Ok([start, trimmed, least].iter().flat_map(|number| number.to_le_bytes()).collect())
            }
            Self::FsInfo => Ok(fs_info(engine)),
            Self::DevInfo { devid, uuid } => dev_info(engine, devid, uuid, devices),
            Self::DeviceErrors { devid, count, reset } => device_errors(engine, DeviceId(devid), count, reset),
            Self::TreeSearch(search) => search.answer(engine, subvolume),
            Self::Features => {
                let superblock = engine.volume().superblocks().current();
                let flags = [superblock.compat_flags, superblock.compat_ro.0, superblock.incompat.0];
                Ok(flags.iter().flat_map(|flags| flags.to_le_bytes()).collect())
            }
            Self::Label => {
                let mut label = engine.label();
                label.resize(LABEL_SIZE, 0);
                Ok(label)
            }
            Self::SetLabel(label) => engine.set_label(&label).map(|()| Vec::new()),
        }
    }
}

fn fs_info(engine: &Filesystem) -> Answer {
    /// The flags that say which of the later fields are filled in: checksums, generation, metadata
    /// id.
    const ALL: u64 = 7;
    let volume = engine.volume();
    let superblock = volume.superblocks().current();
    let devices = volume.devices().items();
    let highest = devices.iter().map(|device| device.devid.0).max().unwrap_or_default();
    let mut answer = Vec::with_capacity(FS_INFO_SIZE);
    answer.extend(highest.to_le_bytes());
    answer.extend((devices.len() as u64).to_le_bytes());
    answer.extend(volume.fsid().0);
    for number in [volume.node_size(), volume.sector_size(), volume.sector_size()] {
        answer.extend(number.to_le_bytes());
    }
    answer.extend((volume.checksum() as u16).to_le_bytes());
    answer.extend((volume.checksum().size() as u16).to_le_bytes());
    answer.extend(ALL.to_le_bytes());
    answer.extend(superblock.generation.0.to_le_bytes());
    answer.extend(volume.metadata_fsid().0);
    answer.resize(FS_INFO_SIZE, 0);
    answer
}

/// The error counters of a device, at most `count` of them. The next commit makes a reset durable.
fn device_errors(engine: &Filesystem, devid: DeviceId, count: u64, reset: bool) -> Result<Answer> {
    let found = engine.volume().devices().errors().into_iter().find(|(id, _)| *id == devid);
    let (_, errors) = found.ok_or(Errno::NODEV)?;
    if reset {
        engine.reset_device_errors(devid)?;
    }
    let shown = &errors.counts[..errors.counts.len().min(count as usize)];
    let head = [devid.0, shown.len() as u64, if reset { RESET } else { 0 }];
    let mut answer: Answer = head.iter().chain(shown).flat_map(|number| number.to_le_bytes()).collect();
    answer.resize(DEV_STATS_SIZE, 0);
    Ok(answer)
}

fn dev_info(engine: &Filesystem, devid: u64, uuid: [u8; 16], paths: &BTreeMap<u64, String>) -> Result<Answer> {
    let devices = engine.volume().devices().items();
    let asked = |device: &ubtrfs_format::items::DevItem| {
        device.devid == DeviceId(devid) && (uuid == [0; 16] || device.uuid.0 == uuid)
    };
    let device = devices.iter().find(|device| asked(device)).ok_or(Errno::NODEV)?;
    let mut answer = Vec::with_capacity(DEV_INFO_SIZE);
    answer.extend(devid.to_le_bytes());
    answer.extend(device.uuid.0);
    answer.extend(device.bytes_used.to_le_bytes());
    answer.extend(device.total_bytes.to_le_bytes());
    answer.extend(device.fsid.0);
    answer.resize(DEV_INFO_PATH, 0);
    let path = paths.get(&devid).map(String::as_bytes).unwrap_or_default();
    answer.extend(&path[..path.len().min(PATH_SIZE - 1)]);
    answer.resize(DEV_INFO_SIZE, 0);
    Ok(answer)
}

impl Search {
    fn parse(data: &[u8]) -> Option<Self> {
        let number = |index: usize| u64_at(data, index * 8);
        let item_type = |at| Some(ItemType(u8::try_from(u32_at(data, at)?).unwrap_or(u8::MAX)));
        Some(Self {
            tree: number(0)?,
            first: Key::new(number(1)?, item_type(56)?, number(3)?),
            last: Key::new(number(2)?, item_type(60)?, number(4)?),
            generations: number(5)?..=number(6)?,
            most: u32_at(data, SEARCH_COUNT)?,
            head: data.get(..SEARCH_HEAD)?.to_vec(),
        })
    }

    fn answer(self, engine: &Filesystem, subvolume: TreeId) -> Result<Answer> {
        let tree = if self.tree == 0 { subvolume } else { TreeId(self.tree) };
        // A search shows trees as of the last commit, and programs list subvolumes by these two
        // trees.
        if [TreeId::ROOT, TreeId::UUID].contains(&tree) {
            engine.subvolumes().commit_subvolume_entries()?;
        }
        let mut answer = self.head;
        let mut count = 0_u32;
        let mut too_large = false;
        if self.first <= self.last {
            // Programs that look for changes ask for generations, so older leaves need not be read.
            let oldest = Generation(*self.generations.start());
            engine.search_tree_since(tree, oldest, (self.first, self.last), &mut |item| {
                if !self.generations.contains(&item.generation) {
                    return true;
                }
                if answer.len() + SEARCH_ITEM_HEAD + item.data.len() > SEARCH_SIZE {
                    too_large = count == 0;
                    return false;
                }
                for number in [item.generation, item.key.objectid, item.key.offset] {
                    answer.extend(number.to_le_bytes());
                }
                answer.extend(u32::from(item.key.item_type.0).to_le_bytes());
                answer.extend((item.data.len() as u32).to_le_bytes());
                answer.extend(item.data);
                count += 1;
                // As in the kernel, the answer gets the first item before items are counted.
                count < self.most
            })?;
        }
        if too_large {
            return Err(Errno::OVERFLOW.into());
        }
        answer[SEARCH_COUNT..SEARCH_COUNT + 4].copy_from_slice(&count.to_le_bytes());
        answer.resize(SEARCH_SIZE, 0);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_commands_encode_the_sizes_of_their_answers() {
        use ubtrfs_format::ioctl::{DEV_INFO, FS_INFO, GET_DEV_STATS, GET_LABEL, SET_LABEL, TREE_SEARCH, size_of};
        assert_eq!(
            [FS_INFO, DEV_INFO, GET_DEV_STATS, TREE_SEARCH, GET_LABEL, SET_LABEL].map(size_of),
            [FS_INFO_SIZE, DEV_INFO_SIZE, DEV_STATS_SIZE, SEARCH_SIZE, LABEL_SIZE, LABEL_SIZE]
        );
    }

    #[test]
    fn a_search_is_read() {
        let mut data = [0; SEARCH_SIZE];
        let numbers: [u64; 7] = [5, 256, 300, 1, u64::MAX, 2, 9];
        for (at, number) in numbers.iter().enumerate() {
            data[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        data[56] = 1;
        data[60..64].copy_from_slice(&u32::MAX.to_le_bytes());
        data[64] = 7;
        let Ok(VolumeIoctl::TreeSearch(search)) = VolumeIoctl::tree_search(&data) else { panic!() };
        assert_eq!((search.tree, search.most, search.generations.clone()), (5, 7, 2..=9));
        assert_eq!(search.first, Key::new(256, ItemType(1), 1));
        assert_eq!(search.last, Key::new(300, ItemType(255), u64::MAX));
    }
}
