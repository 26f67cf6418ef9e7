//! The options of a mount.

use std::os::fd::RawFd;
use std::path::PathBuf;

use rustix::fs::FileType;
use rustix::mount::MountAttrFlags;

use super::error::MountError;

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Only a name to show in the mount table.
    Name(String),
    /// A block device: `fuseblk` if that is possible.
    BlockDevice(PathBuf),
    /// A file: `fuseblk` from a loop device that serves only to be the source.
    Image(PathBuf),
    /// The URI of something that the kernel has no device of: `fuseblk` by this name, from an empty
    /// loop device.
    Uri(String),
    /// A block device that this process serves, shown by another name, a path or a URI.
    Served {
        /// The device.
        device: PathBuf,
        /// What the mount table shows.
        name: String,
    },
}

impl Source {
    pub(super) fn wants_block(&self) -> bool {
        !matches!(self, Self::Name(_))
    }
}

/// The options of a mount. By default it is read-write, for the mounting user alone, without
/// devices and set-id programs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "mount options are independent switches")]
pub struct MountOptions {
    /// What is mounted.
    pub source: Source,
    /// What the mount table shows as the source of a plain `fuse` mount. If it is empty, the name
    /// comes from [`source`](Self::source).
    pub name: String,
    /// The subtype behind the dot of the type in the mount table, as in `fuse.ubtrfs`; may be
    /// empty.
    pub subtype: String,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Other users may use it, too.
    pub allow_other: bool,
    /// The kernel checks permissions by owner and mode.
    pub default_permissions: bool,
    /// Reading doesn't change the time of access.
    pub no_atime: bool,
    /// Device nodes work.
    pub dev: bool,
    /// Set-id programs and capabilities of files work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// The most bytes that a READ may ask for, if there is a limit.
    pub max_read: Option<u32>,
    /// Options of the kernel's security modules, such as `context=…`, in quotation marks where
    /// there are commas.
    pub security: Vec<String>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: Source::Name("fuse".into()),
            name: String::new(),
            subtype: String::new(),
            read_only: false,
            allow_other: false,
            default_permissions: false,
            no_atime: false,
            dev: false,
            suid: false,
            exec: true,
            max_read: None,
            security: Vec::new(),
        }
    }
}

/// The block size that `fuseblk` sets on its device, in bytes. All devices support it.
const BLOCK_SIZE: u32 = 4096;

impl MountOptions {
    /// What the mount table shows as the source of a plain `fuse` mount.
    pub(super) fn shown_name(&self) -> &str {
        if !self.name.is_empty() {
            return &self.name;
        }
        match &self.source {
            Source::Name(name) | Source::Uri(name) | Source::Served { name, .. } => name,
            Source::BlockDevice(path) | Source::Image(path) => path.to_str().unwrap_or("fuse"),
        }
    }

    /// The options that the kernel keeps for each mount of a file system.
    pub(super) fn attributes(&self) -> MountAttrFlags {
        let mut flags = MountAttrFlags::empty();
        flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, self.read_only);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOATIME, self.no_atime);
        flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, !self.dev);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !self.suid);
        flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !self.exec);
        flags
    }

    /// The options of the kernel's `fuse` and `fuseblk`, `name=value` or a name alone.
    pub(super) fn kernel_options(&self, device: RawFd, block: bool) -> Result<Vec<String>, MountError> {
        let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let mut all = vec![
            format!("fd={device}"),
            format!("rootmode={:o}", FileType::Directory.as_raw_mode()),
            format!("user_id={user}"),
            format!("group_id={group}"),
        ];
        if !self.subtype.is_empty() {
            all.push(format!("subtype={}", plain(&self.subtype)?));
        }
        all.extend(self.allow_other.then(|| "allow_other".into()));
        all.extend(self.default_permissions.then(|| "default_permissions".into()));
        all.extend(self.max_read.map(|bytes| format!("max_read={bytes}")));
        all.extend(block.then(|| format!("blksize={BLOCK_SIZE}")));
        // Quotation marks protect commas in a list of options; these options are passed one by one.
        all.extend(self.security.iter().map(|option| option.replace('"', "")));
        Ok(all)
    }

    /// The options of `fusermount3 -o`.
    pub(super) fn fusermount_options(&self) -> Result<String, MountError> {
        let mut all = vec![format!("fsname={}", escape(self.shown_name()))];
        if !self.subtype.is_empty() {
            all.push(format!("subtype={}", plain(&self.subtype)?));
        }
        let switches = [
            (self.read_only, "ro"),
            (self.allow_other, "allow_other"),
            (self.default_permissions, "default_permissions"),
            (self.no_atime, "noatime"),
            (!self.exec, "noexec"),
            (self.dev, "dev"),
            (self.suid, "suid"),
        ];
        all.extend(switches.into_iter().filter(|(on, _)| *on).map(|(_, name)| name.to_owned()));
        all.extend(self.security.iter().map(|option| escape(option)));
        all.extend(self.max_read.map(|bytes| format!("max_read={bytes}")));
        Ok(all.join(","))
    }
}

/// Escapes commas, which would end the option, and backslashes, which begin an escape.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

/// Returns `value` if it needs no escape, else an error.
fn plain(value: &str) -> Result<&str, MountError> {
    if value.contains([',', '\\', '\0', '/']) { Err(MountError::Option(value.into())) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_devices_and_no_set_id_unless_asked_for() {
        let mut options = MountOptions::default();
        let (nodev, nosuid) = (MountAttrFlags::MOUNT_ATTR_NODEV, MountAttrFlags::MOUNT_ATTR_NOSUID);
        assert_eq!(options.attributes(), nodev | nosuid);
        (options.dev, options.suid, options.exec, options.read_only) = (true, true, false, true);
        let (noexec, ro) = (MountAttrFlags::MOUNT_ATTR_NOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY);
        assert_eq!(options.attributes(), noexec | ro);
    }

    #[test]
    fn names_cannot_smuggle_options() {
        let options = MountOptions { name: "a,suid\\".into(), subtype: "x".into(), ..MountOptions::default() };
        assert_eq!(options.fusermount_options().unwrap(), "fsname=a\\,suid\\\\,subtype=x");
        let bad = MountOptions { subtype: "x,suid".into(), ..MountOptions::default() };
        assert!(bad.fusermount_options().is_err());
        assert!(bad.kernel_options(3, false).is_err());
    }

    #[test]
    fn the_other_options_are_passed_to_the_kernel() {
        let options = MountOptions {
            allow_other: true,
            default_permissions: true,
            max_read: Some(65536),
            ..MountOptions::default()
        };
        let all = options.kernel_options(7, true).unwrap().join(",");
        assert!(all.starts_with("fd=7,rootmode=40000,user_id="));
        assert!(all.ends_with(",allow_other,default_permissions,max_read=65536,blksize=4096"));
    }
}
