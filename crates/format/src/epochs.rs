//! The epochs of a volume of several devices, in the unused end of the superblock.
//!
//! An epoch begins with the first superblock that a device does not get which has got all of them
//! before. So if two devices were each written without the other one, each has epochs that the
//! other one lacks, though their commits have the same numbers. Only ubtrfs begins epochs. Kernels
//! and btrfs-progs write this part of the superblock as they have found it (seen with Linux 6.18
//! and btrfs-progs 6.2).

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{DeviceId, Generation};

/// The most epochs that a superblock keeps.
pub const EPOCHS_MAX: usize = 12;
/// The magic before the list.
const MAGIC: [u8; 8] = *b"ubEpochs";

/// One epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The last superblock before it: the commit, and the number of the log, or 0 without a log.
    pub before: (Generation, u32),
    /// A random number.
    pub id: u64,
    /// When it began, in seconds since 1970.
    pub time: u64,
    /// The fingerprint of that superblock: [`crate::Superblock::fingerprint`].
    pub fingerprint: u64,
    /// The devices that have been left out since it began. This only helps to choose the epochs
    /// that are worth keeping: a device that has returned may have this epoch though other
    /// superblocks say that it does not.
    pub without: DevicesWithout,
}

/// Devices with numbers up to 32 that have been left out since an epoch began: a bit for each.
/// Earlier versions of ubtrfs wrote zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicesWithout(u32);

impl DevicesWithout {
    fn bit(devid: DeviceId) -> u32 {
        let place = devid.0.checked_sub(1).and_then(|place| u32::try_from(place).ok());
        place.and_then(|place| 1_u32.checked_shl(place)).unwrap_or(0)
    }

    /// Returns whether the device is known to be left out.
    pub fn has(self, devid: DeviceId) -> bool {
        self.0 & Self::bit(devid) != 0
    }
}

impl FromIterator<DeviceId> for DevicesWithout {
    fn from_iter<T: IntoIterator<Item = DeviceId>>(devices: T) -> Self {
        Self(devices.into_iter().fold(0, |bits, devid| bits | Self::bit(devid)))
    }
}

/// The epochs of a volume. There are none before the first device was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    /// The oldest first.
    list: Vec<Epoch>,
    /// The commit of the last superblock that ubtrfs has written. Later ones are from kernels,
    /// which begin no epochs. 0 on volumes with one device.
    of_ubtrfs: Generation,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct EpochBytes {
    generation: U64,
    log: U32,
    without: U32,
    id: U64,
    time: U64,
    fingerprint: U64,
}

/// The epochs as on disk (504 bytes).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct EpochsBytes {
    magic: [u8; 8],
    count: U32,
    unused: U32,
    of_ubtrfs: U64,
    epochs: [EpochBytes; EPOCHS_MAX],
}

impl Epochs {
    /// Returns the epochs, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Epoch> {
        self.list.iter()
    }

    /// Returns the commit of the last superblock that ubtrfs has written.
    pub fn of_ubtrfs(&self) -> Generation {
        self.of_ubtrfs
    }

    /// Notes that ubtrfs writes a superblock of this commit.
    pub fn set_of_ubtrfs(&mut self, generation: Generation) {
        self.of_ubtrfs = generation;
    }

    /// Returns the current epoch, or `None` before the first.
    pub fn last(&self) -> Option<&Epoch> {
        self.list.last()
    }

    /// Of the devices that have been left out since the current epoch began, keeps only these as
    /// left out: the others get superblocks again.
    pub fn keep_without(&mut self, devices: DevicesWithout) {
        if let Some(epoch) = self.list.last_mut() {
            epoch.without.0 &= devices.0;
        }
    }

    /// Returns the epoch that followed `before` (`None` means the time before the first epoch).
    /// Fails if `before` is not one of these epochs.
    pub fn after(&self, before: Option<&Epoch>) -> std::result::Result<Option<&Epoch>, NotContained> {
        let place = |before: &Epoch| self.list.iter().position(|epoch| epoch.id == before.id).ok_or(NotContained);
        let next = before.map_or(Ok(0), |before| place(before).map(|place| place + 1))?;
        Ok(self.list.get(next))
    }

    /// Returns the first epoch that `others` lack.
    pub fn without(&self, others: &Self) -> Option<&Epoch> {
        self.list.iter().find(|epoch| others.list.iter().all(|other| other.id != epoch.id))
    }

    /// Begins another epoch. If the list is full, removes one: not the first, which shows for good
    /// since when a device may be behind that was never left out before. If there are others, it is
    /// also not one that shows what a device has that is left out now.
    pub fn begin(&mut self, epoch: Epoch) {
        self.list.push(epoch);
        if self.list.len() > EPOCHS_MAX {
            let since: Vec<usize> = (0..u32::BITS).filter_map(|bit| self.left_out_since(1 << bit)).collect();
            let is_needed = |place: &usize| since.iter().any(|since| [*since, since.saturating_sub(1)].contains(place));
            let forgotten = (1..EPOCHS_MAX).find(|place| !is_needed(place)).unwrap_or(1);
            self.list.remove(forgotten);
        }
    }

    /// Returns the index of the epoch since which a device, given by its bit, has been left out.
    fn left_out_since(&self, bit: u32) -> Option<usize> {
        let later = self.list.iter().rev().take_while(|epoch| epoch.without.0 & bit != 0).count();
        (later > 0).then(|| self.list.len() - later)
    }

    /// Reads the epochs. A missing or invalid list gives none, since other programs may use the
    /// place.
    pub(crate) fn parse(bytes: &EpochsBytes, generation: Generation) -> Self {
        let count = bytes.count.get() as usize;
        if bytes.magic != MAGIC || count > EPOCHS_MAX {
            return Self::default();
        }
        let epoch = |bytes: &EpochBytes| Epoch {
            before: (Generation(bytes.generation.get()), bytes.log.get()),
            id: bytes.id.get(),
            time: bytes.time.get(),
            fingerprint: bytes.fingerprint.get(),
            without: DevicesWithout(bytes.without.get()),
        };
        let mut epochs: Vec<Epoch> = bytes.epochs.iter().take(count).map(epoch).collect();
        if !epochs.is_sorted_by_key(|epoch| epoch.before) {
            return Self::default();
        }
        // Epochs of commits that were given up are dropped.
        epochs.retain(|epoch| epoch.before.0 <= generation);
        Self { list: epochs, of_ubtrfs: Generation(bytes.of_ubtrfs.get()) }
    }

    pub(crate) fn to_bytes(&self) -> EpochsBytes {
        let mut bytes = EpochsBytes::new_zeroed();
        if *self == Self::default() {
            return bytes;
        }
        (bytes.magic, bytes.count) = (MAGIC, (self.list.len() as u32).into());
        bytes.of_ubtrfs = self.of_ubtrfs.0.into();
        for (slot, epoch) in bytes.epochs.iter_mut().zip(&self.list) {
            let (generation, log) = (epoch.before.0.0.into(), epoch.before.1.into());
            let (id, time, fingerprint) = (epoch.id.into(), epoch.time.into(), epoch.fingerprint.into());
            *slot = EpochBytes { generation, log, without: epoch.without.0.into(), id, time, fingerprint };
        }
        bytes
    }
}

/// The error that an epoch does not belong to a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotContained;

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: u64) -> Epoch {
        let without = DevicesWithout::from_iter([DeviceId(1 + number)]);
        Epoch { before: (Generation(10 + number), 0), id: 1000 + number, time: 5, fingerprint: 7, without }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let mut epochs = Epochs::default();
        epochs.set_of_ubtrfs(Generation(20));
        for number in 0..20 {
            assert_eq!(Epochs::parse(&epochs.to_bytes(), Generation(40)), epochs);
            epochs.begin(epoch(number));
        }
        let ids: Vec<u64> = epochs.iter().map(|epoch| epoch.id).collect();
        assert_eq!((ids.len(), ids[0], ids[1], ids[11]), (EPOCHS_MAX, 1000, 1009, 1019));
        assert_eq!(epochs.after(None), Ok(Some(&epoch(0))));
        assert_eq!(epochs.after(Some(&epoch(9))), Ok(Some(&epoch(10))));
        assert_eq!(epochs.after(Some(&epoch(19))), Ok(None));
        assert_eq!(epochs.after(Some(&epoch(8))), Err(NotContained));
    }

    /// One device fails repeatedly while another one is away.
    #[test]
    fn what_a_device_has_that_is_away_is_not_forgotten() {
        let mut epochs = Epochs::default();
        let of = |number, devices: &[u64]| Epoch {
            without: devices.iter().map(|devid| DeviceId(*devid)).collect(),
            ..epoch(number)
        };
        (0..5).for_each(|number| epochs.begin(of(number, &[3])));
        // The last superblock of device 4 is of epoch 4.
        (5..60).for_each(|number| epochs.begin(of(number, &[3, 4])));
        let ids: Vec<u64> = epochs.iter().map(|epoch| epoch.id - 1000).collect();
        assert_eq!((ids.len(), ids[0], ids[11]), (EPOCHS_MAX, 0, 59));
        let next = epochs.after(Some(&of(4, &[3]))).unwrap().unwrap();
        assert_eq!(next.id, 1005, "{ids:?}");
    }

    #[test]
    fn devices_without_are_known_by_number() {
        let two = DevicesWithout::from_iter([DeviceId(1), DeviceId(32), DeviceId(33), DeviceId(0), DeviceId(u64::MAX)]);
        let known: Vec<u64> = (0..70).filter(|devid| two.has(DeviceId(*devid))).collect();
        assert_eq!(known, [1, 32]);
        let mut epochs = Epochs::default();
        epochs.begin(Epoch { without: two, ..epoch(1) });
        epochs.keep_without([DeviceId(32), DeviceId(2)].into_iter().collect());
        assert_eq!(epochs.last().map(|epoch| epoch.without), Some(DevicesWithout::from_iter([DeviceId(32)])));
    }

    #[test]
    fn what_nobody_writes_so_is_no_list() {
        let mut epochs = Epochs::default();
        (0..3).for_each(|number| epochs.begin(epoch(number)));
        let whole = epochs.to_bytes();
        let changed = |change: &dyn Fn(&mut EpochsBytes)| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            Epochs::parse(&bytes, Generation(12))
        };
        assert_eq!(changed(&|_| ()), epochs);
        assert_eq!(changed(&|bytes| bytes.magic[0] += 1), Epochs::default());
        assert_eq!(changed(&|bytes| bytes.count = 13.into()), Epochs::default());
        assert_eq!(changed(&|bytes| bytes.epochs[0].generation = 12.into()), Epochs::default());
        assert_eq!(changed(&|bytes| bytes.epochs[2].generation = 13.into()).iter().count(), 2);
    }
}
