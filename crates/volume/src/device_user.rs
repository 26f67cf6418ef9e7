//! Who keeps us from a device.

use std::path::{Path, PathBuf};

/// Why an image file may not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// The kernel has mounted it through this device.
    Mounted(PathBuf),
    /// A holder that this mount namespace doesn't show has this device open, as mounts do.
    Undetermined(PathBuf),
    /// It is attached to this device, and whether that is mounted can't be found out.
    Unknown(PathBuf),
    /// It may be attached to this device: what the device is attached to can't be looked at.
    Hidden(PathBuf),
}

impl User {
    /// What is to be said of the device or image `path`.
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
