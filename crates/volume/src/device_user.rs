//! The uses that keep us from a device.

use std::path::{Path, PathBuf};

/// Why an image file may not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// The kernel has mounted it through this device.
    Mounted(PathBuf),
    /// Somebody has this device open exclusively, as a mount does, but this mount namespace shows
    /// no mount of it.
    Undetermined(PathBuf),
    /// It is attached to this device, and it can't be found out whether that is mounted.
    Unknown(PathBuf),
    /// It may be attached to this device: we may not look at what the device is attached to.
    Hidden(PathBuf),
}

impl User {
    /// Returns the message about the device or image `path`.
    pub(crate) fn of(&self, path: &Path) -> String {
        let shown = path.display();
        match self {
            Self::Mounted(by) => format!("{shown} is mounted by the kernel, through {}", by.display()),
            Self::Undetermined(by) => format!(
                "{shown} is in use by the kernel, through {}: it is mounted in another mount namespace, or held otherwise",
                by.display()
            ),
            Self::Unknown(by) if rustix::process::geteuid().is_root() => {
                format!("{shown} is attached to {}, which can't be asked whether it is mounted", by.display())
            }
            Self::Unknown(by) => {
                format!("{shown} is attached to {}, and only root can find out whether that is mounted", by.display())
            }
            Self::Hidden(by) => format!(
                "{shown} may be attached to {}, which is as large and has a file that can't be looked at",
                by.display()
            ),
        }
    }
}
