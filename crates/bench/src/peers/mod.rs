//! The peers, each of which makes a fresh volume and mounts it.

mod conditions;
mod image;
mod kernel;
mod library;
mod loop_device;
mod null;
mod server;
mod ubtrfs;
mod unmount;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::ubtrfs::Options;
use ubtrfs_volume::MemoryDevice;

use crate::failure::{Failure, Result};
use crate::{cleanup, machine, memory, process};
pub use conditions::{Conditions, Layout};
use image::Image;
use kernel::{KernelMount, KernelType};
pub use library::Library;
use null::NullMount;
use server::Server;
use ubtrfs::UbtrfsMount;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `ubtrfs mount` with these options, on the image file or on a loop device.
    Ubtrfs { options: Option<&'static str>, on_loop: bool },
    /// A file system of the kernel on a loop device, which uses the page cache below unless it is
    /// `direct`.
    Kernel { of: KernelType, direct: bool },
    /// The bound of FUSE.
    Null,
    /// The engine in this process, without FUSE, on the image file or on a volume in memory.
    Library { in_memory: bool },
}

/// The peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its description.
    pub about: &'static str,
    kind: Kind,
}

const fn kernel(name: &'static str, about: &'static str, of: KernelType, direct: bool) -> Peer {
    Peer { name, about, kind: Kind::Kernel { of, direct } }
}

/// The mount option for FUSE over `io_uring`.
const RING: &str = "transport=ring";

/// All peers.
pub const ALL: [Peer; 14] = [
    Peer {
        name: "ubtrfs",
        about: "ubtrfs over FUSE, on an image file",
        kind: Kind::Ubtrfs { options: None, on_loop: false },
    },
    Peer {
        name: "ubtrfs-ring",
        about: "ubtrfs, FUSE over io_uring",
        kind: Kind::Ubtrfs { options: Some(RING), on_loop: false },
    },
    Peer {
        name: "ubtrfs-dev",
        about: "ubtrfs, FUSE over /dev/fuse",
        kind: Kind::Ubtrfs { options: Some("transport=dev"), on_loop: false },
    },
    Peer {
        name: "ubtrfs-loop",
        about: "ubtrfs over FUSE, on a loop device (direct)",
        kind: Kind::Ubtrfs { options: None, on_loop: true },
    },
    Peer {
        name: "ubtrfs-single",
        about: "ubtrfs over FUSE for root alone: nobody checks permissions",
        kind: Kind::Ubtrfs { options: Some("single_user"), on_loop: false },
    },
    kernel("btrfs", "the kernel's btrfs on a loop device", KernelType::Btrfs, false),
    kernel("btrfs-direct", "the kernel's btrfs on a loop device with direct I/O", KernelType::Btrfs, true),
    kernel("xfs", "XFS on a loop device", KernelType::Xfs, false),
    kernel("xfs-direct", "XFS on a loop device with direct I/O", KernelType::Xfs, true),
    kernel("ext4", "ext4 on a loop device", KernelType::Ext4, false),
    kernel("ext4-direct", "ext4 on a loop device with direct I/O", KernelType::Ext4, true),
    Peer { name: "null", about: "FUSE's bound: memory, and the barriers of fsync", kind: Kind::Null },
    Peer { name: "library", about: "ubtrfs as a library, without FUSE", kind: Kind::Library { in_memory: false } },
    Peer {
        name: "library-memory",
        about: "ubtrfs as a library, on a volume in memory",
        kind: Kind::Library { in_memory: true },
    },
];

/// ubtrfs for counting on a mount: it makes no commits other than those that are requested.
pub const GUARDED: Peer = Peer {
    name: "ubtrfs-guarded",
    about: "ubtrfs over FUSE and io_uring, without commits in the background",
    kind: Kind::Ubtrfs { options: Some("transport=ring,commit=300"), on_loop: false },
};

impl Peer {
    /// Returns a peer by its name.
    pub fn named(name: &str) -> Result<Self> {
        let found = ALL.into_iter().find(|peer| peer.name == name);
        found.ok_or_else(|| Failure::new(format!("there is no peer {name}; see `ubtrfs-bench list`")))
    }

    /// Returns whether programs can use it, since it is mounted on a directory.
    pub fn has_directory(self) -> bool {
        !matches!(self.kind, Kind::Library { .. })
    }

    /// Returns whether it is the library on an image. Workloads that bring a volume of their own
    /// run only on this peer.
    pub fn is_plain_library(self) -> bool {
        self.kind == Kind::Library { in_memory: false }
    }

    /// Returns whether it has subvolumes.
    pub fn has_subvolumes(self) -> bool {
        match self.kind {
            Kind::Ubtrfs { .. } | Kind::Library { .. } => true,
            Kind::Kernel { of, .. } => of == KernelType::Btrfs,
            Kind::Null => false,
        }
    }

    /// Returns whether its volume can be on a server. The kernel's btrfs is measured with direct
    /// I/O only: a buffered loop device on nbdfuse's file would wait for one write after the other.
    pub fn can_be_far_away(self) -> bool {
        matches!(self.kind, Kind::Ubtrfs { on_loop: false, .. } | Kind::Kernel { of: KernelType::Btrfs, direct: true })
    }

    /// Returns whether its bandwidth can be limited.
    fn has_limit(self) -> bool {
        matches!(self.kind, Kind::Kernel { .. } | Kind::Ubtrfs { on_loop: true, .. } | Kind::Library { .. })
    }

    /// Returns why it can't be measured under such conditions.
    pub fn unable(self, conditions: Conditions) -> Option<String> {
        let is_unlimited = conditions.throttle.is_some() && !self.has_limit();
        let has_profiles = self.has_subvolumes() || conditions.layout == Layout::default();
        if !has_profiles {
            return Some("has no volumes of several devices".into());
        }
        self.missing().or_else(|| is_unlimited.then(|| "has no device of its own with a bandwidth to limit".into()))
    }

    /// Returns why it can't be measured here, as far as that is known without a try.
    pub fn missing(self) -> Option<String> {
        let root = rustix::process::geteuid().is_root();
        let fuse = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").err();
        match self.kind {
            Kind::Kernel { .. } | Kind::Ubtrfs { on_loop: true, .. } if !root => Some("needs root".into()),
            Kind::Kernel { of, .. } => kernel::missing(of),
            Kind::Ubtrfs { .. } if ubtrfs::binary().is_none() => {
                Some("the ubtrfs binary is missing (build it, or set UBTRFS_BIN)".into())
            }
            Kind::Ubtrfs { options: Some(RING), .. } if !machine::ring_allowed() => {
                Some(format!("{} is not Y", machine::RING_SWITCH))
            }
            Kind::Ubtrfs { .. } | Kind::Null if !root && process::find("fusermount3").is_none() => {
                Some("needs root or the program fusermount3".into())
            }
            Kind::Ubtrfs { .. } | Kind::Null => fuse().map(|error| format!("/dev/fuse: {error}")),
            Kind::Library { .. } => None,
        }
    }

    /// Makes a fresh volume of `size` bytes in `yard` and mounts it.
    pub fn begin(self, yard: &Path, size: u64, conditions: Conditions) -> Result<Mounted> {
        let devices = conditions.layout.devices;
        if devices > 1 && conditions.delay.is_some() {
            return Err(Failure::new("one server has one device"));
        }
        let images = (1..=devices).map(|number| Image::new(yard, number, size, conditions.written));
        let images = images.collect::<Result<Vec<Image>>>()?;
        let directory = yard.join("mnt");
        std::fs::create_dir_all(&directory)?;
        let (memory, volume, facts) = (Vec::new(), None, BTreeMap::new());
        let server = None;
        let mut mounted = Mounted { peer: self, conditions, images, memory, directory, volume, server, facts };
        mounted.make(size)?;
        if let Some(delay) = conditions.delay {
            mounted.server = Some(Server::start(mounted.image()?, delay)?);
        }
        mounted.mount()?;
        Ok(mounted)
    }
}

enum Volume {
    Kernel(KernelMount),
    Ubtrfs(UbtrfsMount),
    Null(NullMount),
    Library(Library),
}

/// A mounted volume of a peer, which is unmounted and removed when it is dropped.
pub struct Mounted {
    peer: Peer,
    conditions: Conditions,
    images: Vec<Image>,
    memory: Vec<Arc<MemoryDevice>>,
    directory: PathBuf,
    volume: Option<Volume>,
    server: Option<Server>,
    facts: BTreeMap<String, String>,
}

impl Mounted {
    fn paths(&self) -> Vec<&Path> {
        self.images.iter().map(Image::path).collect()
    }

    /// Returns the first image.
    fn image(&self) -> Result<&Path> {
        self.images.first().map(Image::path).ok_or_else(|| Failure::new("no image"))
    }

    fn make(&mut self, size: u64) -> Result<()> {
        let layout = self.conditions.layout;
        let how = match self.peer.kind {
            Kind::Kernel { of, .. } => kernel::make(of, &self.paths(), layout)?,
            Kind::Library { in_memory: true } => {
                let devices = memory::volume_of_several(size, layout.devices, layout.profile)?;
                self.memory = devices.into_iter().map(Arc::new).collect();
                "in memory".into()
            }
            Kind::Ubtrfs { .. } | Kind::Library { .. } => library::make(&self.paths(), size, layout)?,
            Kind::Null => return Ok(()),
        };
        self.facts.insert("mkfs".into(), how);
        self.images.iter().try_for_each(Image::fill)
    }

    /// Mounts the volume.
    pub fn mount(&mut self) -> Result<()> {
        self.mount_on(self.images.len())
    }

    /// Mounts the volume without the last of its devices.
    pub fn mount_degraded(&mut self) -> Result<()> {
        if !matches!(self.peer.kind, Kind::Ubtrfs { .. } | Kind::Kernel { .. }) {
            return Err(Failure::Impossible("it has no mount without a device".into()));
        }
        self.mount_on(self.images.len().saturating_sub(1))
    }

    fn mount_on(&mut self, devices: usize) -> Result<()> {
        let (mut images, directory, conditions) = (self.paths(), &self.directory, self.conditions);
        images.truncate(devices);
        let uri = self.server.as_ref().map(Server::uri);
        let volume = match self.peer.kind {
            Kind::Kernel { of, direct } if let Some(uri) = &uri => {
                Volume::Kernel(KernelMount::of_export(of, direct, uri, directory)?)
            }
            Kind::Kernel { of, direct } => {
                Volume::Kernel(KernelMount::new(of, direct, conditions, &images, directory)?)
            }
            Kind::Ubtrfs { options, on_loop } => {
                let images = uri.as_ref().map_or(images, |uri| vec![Path::new(uri)]);
                Volume::Ubtrfs(UbtrfsMount::new(options, on_loop, conditions, &images, directory)?)
            }
            Kind::Null => Volume::Null(NullMount::new(self.image()?, directory)?),
            Kind::Library { .. } => {
                let devices = match &*self.memory {
                    [] => library::image_devices(&images)?,
                    memory => memory.iter().map(|device| Arc::clone(device) as _).collect(),
                };
                let limited = devices.into_iter().map(|device| library::limited(device, conditions.throttle));
                Volume::Library(Library::open(limited.collect(), Options::default())?)
            }
        };
        self.facts.extend(match &volume {
            Volume::Kernel(mount) => mount.facts(),
            Volume::Ubtrfs(mount) => mount.facts(),
            Volume::Null(mount) => mount.facts(),
            Volume::Library(_) => BTreeMap::new(),
        });
        if conditions.layout.devices > 1 {
            self.facts.insert("devices".into(), conditions.layout.devices.to_string());
        }
        if let Some(bytes) = conditions.throttle {
            self.facts.insert("bandwidth".into(), format!("{} MB/s", bytes / 1_000_000));
        }
        self.volume = Some(volume);
        Ok(())
    }

    /// Returns how long the last mount took.
    pub fn mount_took(&self) -> Duration {
        match &self.volume {
            Some(Volume::Kernel(mount)) => mount.took(),
            Some(Volume::Ubtrfs(mount)) => mount.took(),
            Some(Volume::Null(_) | Volume::Library(_)) | None => Duration::ZERO,
        }
    }

    /// Unmounts the volume. Everything is durable when this returns.
    pub fn unmount(&mut self) -> Result<()> {
        let unmounted = match self.volume.take() {
            Some(Volume::Kernel(mut mount)) => mount.unmount(),
            Some(Volume::Ubtrfs(mut mount)) => mount.unmount(),
            Some(Volume::Null(mut mount)) => mount.unmount(),
            Some(Volume::Library(library)) => library.close(),
            None => return Ok(()),
        };
        if let Some(image) = self.images.first() {
            self.facts.insert("blocks of the image".into(), image.blocks());
        }
        unmounted
    }

    /// Removes the images from the page cache of the file system below.
    pub fn forget_cached(&self) -> Result<()> {
        self.images.iter().try_for_each(Image::forget_cached)
    }

    /// Returns whether an unmounted volume can be mounted again with its content.
    pub fn keeps(&self) -> bool {
        self.peer.kind != Kind::Null
    }

    /// Returns the directory on which it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the engine, if it runs in this process.
    pub fn library(&self) -> Option<&Arc<::ubtrfs::Filesystem>> {
        if let Some(Volume::Library(library)) = &self.volume { Some(library.filesystem()) } else { None }
    }

    /// Returns the process that serves the mount.
    pub fn daemon(&self) -> Option<u32> {
        match &self.volume {
            Some(Volume::Ubtrfs(mount)) => Some(mount.daemon()),
            Some(Volume::Null(mount)) => Some(mount.daemon()),
            _ => None,
        }
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        match &self.volume {
            Some(Volume::Kernel(_) | Volume::Null(_)) => {
                let directory = std::fs::File::open(&self.directory)?;
                Ok(rustix::fs::syncfs(&directory)?)
            }
            Some(Volume::Ubtrfs(mount)) => mount.sync(),
            Some(Volume::Library(library)) => Ok(library.filesystem().durability().sync()?),
            None => Ok(()),
        }
    }

    /// Runs a command of ubtrfs on the mount's directory, also on the kernel's btrfs.
    pub fn command(&self, words: &[&str]) -> Result<()> {
        let binary = ubtrfs::binary().ok_or_else(|| Failure::new("the ubtrfs binary is missing"))?;
        let output = std::process::Command::new(binary).args(words).arg(&self.directory).output()?;
        let complaint = || Failure::new(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        output.status.success().then_some(()).ok_or_else(complaint)
    }

    /// Runs a command of the peer's own program on the volume: of ubtrfs, or of btrfs-progs.
    pub fn maintain(&mut self, ubtrfs: &[&str], btrfs: &[&str]) -> Result<()> {
        self.maintain_with(ubtrfs, btrfs, None)
    }

    /// Replaces the first device by a new one of the same size as the others.
    pub fn replace_first(&mut self, size: u64) -> Result<()> {
        let written = self.conditions.written;
        let directory = self.image()?.parent().ok_or_else(|| Failure::new("no directory"))?;
        let new = Image::new(directory, self.images.len() + 1, size, written)?;
        let path = new.path().to_owned();
        self.images.push(new);
        let btrfs = ["replace", "start", "-B", "-f", "1"];
        self.maintain_with(&["replace", "start", "1"], &btrfs, Some(&path))
    }

    fn maintain_with(&mut self, ubtrfs: &[&str], btrfs: &[&str], new: Option<&Path>) -> Result<()> {
        let throttle = self.conditions.throttle;
        match &mut self.volume {
            Some(Volume::Kernel(mount)) => mount.maintain(btrfs, new, throttle),
            Some(Volume::Ubtrfs(mount)) => mount.maintain(ubtrfs, new, throttle),
            _ => Err(Failure::Impossible("there is no program for it".into())),
        }
    }

    /// Waits until all devices of a mirror have everything after one of them has missed something:
    /// ubtrfs brings it up by itself, the kernel needs a scrub.
    pub fn bring_up(&mut self) -> Result<()> {
        if let Some(Volume::Ubtrfs(mount)) = &self.volume {
            while !mount.is_redundant()? {
                cleanup::check()?;
                std::thread::sleep(Duration::from_millis(10));
            }
            return Ok(());
        }
        self.maintain(&[], &["scrub", "start", "-B"])
    }

    /// Returns whether it is a mirror of two devices that both have everything.
    pub fn is_pair(&self) -> bool {
        self.conditions.layout == Layout { devices: 2, profile: ubtrfs_mkfs::Profile::Raid1 }
    }

    /// Returns the statistics of the server of ubtrfs.
    pub fn report(&self) -> Result<serde_json::Value> {
        match &self.volume {
            Some(Volume::Ubtrfs(mount)) => mount.report(),
            _ => Err(Failure::new("only a mount of ubtrfs has statistics")),
        }
    }

    /// Returns the bytes that the file system has written to its devices so far.
    pub fn device_written(&self) -> Option<u64> {
        match self.volume.as_ref()? {
            Volume::Kernel(mount) => mount.device_written(),
            Volume::Ubtrfs(mount) => mount.device_written(),
            Volume::Library(library) => Some(library.filesystem().stats().volume.devices.written_bytes),
            Volume::Null(_) => None,
        }
    }

    /// Returns how it was made and mounted.
    pub fn facts(&self) -> &BTreeMap<String, String> {
        &self.facts
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(failure) = self.unmount() {
            eprintln!("ubtrfs-bench: {}: {failure}", self.peer.name);
        }
    }
}
