//! The devices that a volume has at one moment. Who writes looks at one such set from beginning to
//! end, whatever devices come meanwhile.

use std::sync::Arc;

use ubtrfs_format::DeviceId;

use crate::error::{Error, Result};
use crate::member::Member;

/// The devices of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSet {
    /// By their numbers.
    pub(crate) members: Vec<Arc<Member>>,
}

impl DeviceSet {
    /// The device of this number.
    pub(crate) fn member(&self, devid: DeviceId) -> Result<&Arc<Member>> {
        self.members.iter().find(|member| member.devid() == devid).ok_or(Error::MissingDevice(devid))
    }

    /// Devices that have all that was written.
    pub(crate) fn current(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.iter().filter(|member| !member.lags())
    }
}
