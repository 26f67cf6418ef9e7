//! Parses the request of an ioctl from its number and its argument.

use ubtrfs::{Defragmentation, VerityParameters};
use ubtrfs_fuse::Errno;

use crate::balance::BalanceIoctl;
use crate::btrfs_ioctls::VolumeIoctl;
use crate::control_ioctls::ControlIoctl;
use crate::device_ioctls::DeviceIoctl;
use crate::ioctl_table::Command;
use crate::merge_ioctl::Merge;
use crate::scrub::ScrubIoctl;
use crate::subvolume_ioctls::SubvolumeIoctl;
use crate::vacate_ioctls::VacateIoctl;
use crate::{defragment, extent_map, verity};

/// A request, with one variant for each part of the server that answers ioctls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Flags of an inode. The ioctl's number depends on the word size of the caller.
    Flags,
    /// The transaction in which the inode was made.
    Version,
    EnableVerity(VerityParameters),
    MeasureVerity,
    Defragment(Defragmentation),
    /// The extents of a file from an offset in bytes on.
    Extents(u64),
    Subvolume(SubvolumeIoctl),
    Volume(VolumeIoctl),
    Scrub(ScrubIoctl),
    Balance(BalanceIoctl),
    Device(DeviceIoctl),
    Vacate(VacateIoctl),
    Merge(Merge),
    Control(ControlIoctl),
}

impl Request {
    /// Reads an argument. Returns `EINVAL`, or the error that btrfs has for it, if it makes no
    /// sense.
    pub(crate) fn parse(command: Command, data: &[u8]) -> Result<Self, Errno> {
        use Command as C;
        Ok(match command {
            C::GetFlags | C::SetFlags | C::GetFlags32 | C::SetFlags32 | C::GetExtendedFlags | C::SetExtendedFlags => {
                Self::Flags
            }
            C::GetVersion => Self::Version,
            C::EnableVerity => Self::EnableVerity(verity::parse_enable(data)?),
            C::MeasureVerity => Self::MeasureVerity,
            C::Defragment => Self::Defragment(Defragmentation::default()),
            C::DefragmentRange => Self::Defragment(defragment::parse(data)?),
            C::ExtentMap => Self::Extents(extent_map::parse(data)?),
            C::Create => Self::Subvolume(SubvolumeIoctl::create(data)?),
            C::CreateV2 => Self::Subvolume(SubvolumeIoctl::create_v2(data)?),
            C::Snapshot => Self::Subvolume(SubvolumeIoctl::snapshot(data)?),
            C::SnapshotV2 => Self::Subvolume(SubvolumeIoctl::snapshot_v2(data)?),
            C::Delete => Self::Subvolume(SubvolumeIoctl::delete(data)?),
            C::DeleteV2 => Self::Subvolume(SubvolumeIoctl::delete_v2(data)?),
            C::Reset => Self::Subvolume(SubvolumeIoctl::reset(data)?),
            C::GetSubvolumeFlags => Self::Subvolume(SubvolumeIoctl::Flags),
            C::SetSubvolumeFlags => Self::Subvolume(SubvolumeIoctl::set_flags(data)?),
            C::SetReceived => Self::Subvolume(SubvolumeIoctl::set_received(data)?),
            C::SubvolumeInfo => Self::Subvolume(SubvolumeIoctl::Info),
            C::SubvolumeChildren => Self::Subvolume(SubvolumeIoctl::children(data)?),
            C::Path => Self::Subvolume(SubvolumeIoctl::path(data)?),
            C::PathOfSubvolume => Self::Subvolume(SubvolumeIoctl::path_of_subvolume(data)?),
            C::SetDefault => Self::Subvolume(SubvolumeIoctl::set_default(data)?),
            C::Sync => Self::Subvolume(SubvolumeIoctl::Sync),
            C::StartSync => Self::Subvolume(SubvolumeIoctl::StartSync),
            C::WaitSync => Self::Subvolume(SubvolumeIoctl::wait_sync(data)?),
            C::Trim => Self::Volume(VolumeIoctl::trim(data)?),
            C::TreeSearch => Self::Volume(VolumeIoctl::tree_search(data)?),
            C::FsInfo => Self::Volume(VolumeIoctl::FsInfo),
            C::DeviceInfo => Self::Volume(VolumeIoctl::device_info(data)?),
            C::DeviceErrors => Self::Volume(VolumeIoctl::device_errors(data)?),
            C::GetFeatures => Self::Volume(VolumeIoctl::Features),
            C::GetLabel => Self::Volume(VolumeIoctl::Label),
            C::SetLabel => Self::Volume(VolumeIoctl::set_label(data)?),
            C::Scrub => Self::Scrub(ScrubIoctl::start(data)?),
            C::CancelScrub => Self::Scrub(ScrubIoctl::Cancel),
            C::ScrubProgress => Self::Scrub(ScrubIoctl::progress(data)?),
            C::Balance => Self::Balance(BalanceIoctl::run(data)?),
            C::ControlBalance => Self::Balance(BalanceIoctl::control(data)?),
            C::BalanceProgress => Self::Balance(BalanceIoctl::Progress),
            C::AddDevice => Self::Device(DeviceIoctl::add(data)?),
            C::ReplaceDevice => Self::Device(DeviceIoctl::replace(data)?),
            C::RemoveDevice => Self::Vacate(VacateIoctl::remove(data)?),
            C::RemoveDeviceV2 => Self::Vacate(VacateIoctl::remove_v2(data)?),
            C::Resize => Self::Vacate(VacateIoctl::resize(data)?),
            C::Merge => Self::Merge(Merge::parse(data)?),
            C::Changes => Self::Control(ControlIoctl::changes(data)?),
            C::ChangesSince => Self::Control(ControlIoctl::changes_since(data)?),
            C::Next => Self::Control(ControlIoctl::next(data)?),
            C::Keep => Self::Control(ControlIoctl::keep(data)?),
            C::ControlSync => Self::Control(ControlIoctl::Sync),
            C::Remount => Self::Control(ControlIoctl::remount(data)?),
            C::Force => Self::Control(ControlIoctl::Force),
        })
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::TreeId;

    use super::*;
    use crate::ioctl_table::TABLE;

    /// Zeros of the size that the number encodes give a request or an error; a short argument is an
    /// error unless the ioctl reads none.
    #[test]
    fn arguments_of_any_length_are_read_or_refused() {
        for row in TABLE {
            let size = ubtrfs_format::ioctl::size_of(row.number);
            let whole = Request::parse(row.command, &vec![0; size]);
            let reads_nothing = Request::parse(row.command, &[]).is_ok();
            for length in [0, 1, 7, size / 2, size.saturating_sub(1)] {
                let read = Request::parse(row.command, &vec![0; length.min(size)]);
                assert!(read.is_err() || read == whole, "{:?}, {length} bytes", row.command);
                assert!(read.is_ok() || !reads_nothing, "{:?}, {length} bytes", row.command);
            }
        }
    }

    #[test]
    fn the_default_subvolume_zero_is_the_top_level() {
        let read = Request::parse(Command::SetDefault, &[0; 8]);
        assert_eq!(read, Ok(Request::Subvolume(SubvolumeIoctl::SetDefault(TreeId::FS))));
    }
}
