//! The requirements of each profile of chunks, as mkfs.btrfs(8) lists them under "Profiles".

use super::chunk::BlockGroupFlags;

/// How a profile spreads a chunk over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaidProfile {
    /// How many stripes hold the same data.
    pub copies: u64,
    /// How many stripes of a row hold parity.
    pub parities: u64,
    /// Stripes of a chunk on each of its devices.
    pub device_stripes: u64,
    /// The fewest devices of a new chunk.
    pub least_devices: usize,
    /// The most devices of a chunk; `None` uses all that have room.
    pub most_devices: Option<usize>,
    /// The number of devices has to be a multiple of this.
    pub devices_step: usize,
    /// The field of the chunk item: stripes that mirror each other.
    pub sub_stripes: u16,
}

impl RaidProfile {
    /// One copy on one device.
    pub const SINGLE: Self = Self {
        copies: 1,
        parities: 0,
        device_stripes: 1,
        least_devices: 1,
        most_devices: Some(1),
        devices_step: 1,
        sub_stripes: 1,
    };

    /// A profile with `copies` copies on as many devices.
    const fn mirrors(copies: usize) -> Self {
        Self {
            copies: copies as u64,
            least_devices: copies,
            most_devices: Some(copies),
            devices_step: copies,
            ..Self::SINGLE
        }
    }

    /// Returns how many devices can be lost while all data is still there.
    pub fn tolerated_losses(&self) -> u64 {
        if self.device_stripes > 1 { 0 } else { self.parities + self.copies - 1 }
    }

    /// Returns how many stripes of a row hold different data, in a chunk of so many stripes; at
    /// least 1.
    pub fn data_stripes(&self, stripes: usize) -> u64 {
        (stripes as u64 / self.copies).saturating_sub(self.parities).max(1)
    }
}

impl BlockGroupFlags {
    /// Returns what the profile requires, or `None` for a mix of profiles.
    pub fn raid(self) -> Option<RaidProfile> {
        const SINGLE: RaidProfile = RaidProfile::SINGLE;
        Some(match self.profile() {
            Self(0) => SINGLE,
            Self::DUP => RaidProfile { copies: 2, device_stripes: 2, ..SINGLE },
            Self::RAID0 => RaidProfile { most_devices: None, ..SINGLE },
            Self::RAID1 => RaidProfile::mirrors(2),
            Self::RAID1C3 => RaidProfile::mirrors(3),
            Self::RAID1C4 => RaidProfile::mirrors(4),
            Self::RAID10 => RaidProfile { most_devices: None, sub_stripes: 2, ..RaidProfile::mirrors(2) },
            Self::RAID5 => RaidProfile { parities: 1, least_devices: 2, most_devices: None, ..SINGLE },
            Self::RAID6 => RaidProfile { parities: 2, least_devices: 3, most_devices: None, ..SINGLE },
            _ => return None,
        })
    }

    /// Returns the profile of this name, as `mkfs.btrfs -d` takes it, ignoring case.
    pub fn profile_of_name(name: &str) -> Option<Self> {
        const ALL: [BlockGroupFlags; 9] = [
            BlockGroupFlags(0),
            BlockGroupFlags::DUP,
            BlockGroupFlags::RAID0,
            BlockGroupFlags::RAID1,
            BlockGroupFlags::RAID1C3,
            BlockGroupFlags::RAID1C4,
            BlockGroupFlags::RAID10,
            BlockGroupFlags::RAID5,
            BlockGroupFlags::RAID6,
        ];
        ALL.into_iter().find(|profile| profile.profile_name().eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_as_the_manual_lists_them() {
        let shape = |name: &str, stripes: usize| {
            let raid = BlockGroupFlags::profile_of_name(name).and_then(BlockGroupFlags::raid).unwrap();
            (raid.copies, raid.data_stripes(stripes), raid.tolerated_losses())
        };
        assert_eq!(shape("single", 1), (1, 1, 0));
        assert_eq!(shape("dup", 2), (2, 1, 0));
        assert_eq!(shape("RAID0", 3), (1, 3, 0));
        assert_eq!(shape("raid1", 2), (2, 1, 1));
        assert_eq!(shape("raid1c3", 3), (3, 1, 2));
        assert_eq!(shape("raid1c4", 4), (4, 1, 3));
        assert_eq!(shape("raid10", 6), (2, 3, 1));
        assert_eq!(shape("raid5", 4), (1, 3, 1));
        assert_eq!(shape("raid6", 5), (1, 3, 2));
        assert_eq!(BlockGroupFlags::profile_of_name("raid7"), None);
        assert_eq!(BlockGroupFlags::RAID0.with(BlockGroupFlags::DUP).raid(), None);
    }
}
