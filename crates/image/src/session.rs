//! A volume that is edited: all of an edit becomes durable by one write of the superblocks.

use std::sync::Arc;

use ubtrfs::volume::{DeferredSuperblocks, Device, OpenOptions, Volume};
use ubtrfs::{Filesystem, KeptCommit, Options};

use crate::error::{Error, Result};

/// A volume that is open for an edit, from its top level.
///
/// The engine may commit in between, when memory or space asks for it; but nothing that the volume
/// on the devices refers to is overwritten, and its superblocks are not written before
/// [`Self::publish`]. A session that is dropped, or killed, has changed nothing. Only data that is
/// not copied on write (`chattr +C`, preallocated space) is overwritten where it is.
#[derive(Debug)]
pub struct Session {
    fs: Arc<Filesystem>,
    deferred: Vec<Arc<DeferredSuperblocks>>,
    _kept: KeptCommit,
}

impl Session {
    /// Opens the volume on these devices. A log is replayed before, in a commit of its own.
    pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<Self> {
        Self::open_with(devices, Options::default())
    }

    /// The same with options, except for those that a session has to choose itself: the subvolume,
    /// and when commits happen.
    pub fn open_with(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Self> {
        let options = Options { background_commits: false, subvolume_id: Some(0), no_atime: true, ..options };
        let volume = open_volume(devices.clone())?;
        if volume.superblock().log_root.0 != 0 {
            Filesystem::open(volume, options.clone())?.close()?;
        }
        let deferred: Vec<_> = devices.into_iter().map(|device| Arc::new(DeferredSuperblocks::new(device))).collect();
        let devices = deferred.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let fs = Filesystem::open(open_volume(devices)?, options)?;
        let kept = fs.keep_commit();
        Ok(Self { fs, deferred, _kept: kept })
    }

    /// The file system. Its root is the top level of the volume.
    pub fn fs(&self) -> &Arc<Filesystem> {
        &self.fs
    }

    /// Makes the edit durable.
    pub fn publish(self) -> Result<()> {
        self.fs.close()?;
        for device in &self.deferred {
            device.publish().map_err(Error::Superblocks)?;
        }
        Ok(())
    }
}

fn open_volume(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Volume>> {
    let volume = Volume::open(devices, OpenOptions { read_only: false });
    Ok(Arc::new(volume.map_err(ubtrfs::Error::from)?))
}

#[cfg(test)]
mod tests {
    use ubtrfs::mkfs::{self, MkfsOptions};
    use ubtrfs::volume::MemoryDevice;
    use ubtrfs::{Dir, Errno};

    use super::*;

    const FILES: u64 = 40;

    fn session(device: &Arc<MemoryDevice>) -> Session {
        Session::open(vec![Arc::clone(device) as _]).unwrap()
    }

    /// Every file of the volume, with its first byte.
    fn seen(device: &Arc<MemoryDevice>) -> Vec<(String, u8)> {
        let copy: Arc<dyn Device> = Arc::new(MemoryDevice::from_bytes(device.to_bytes()));
        let fs = Filesystem::open_devices(vec![copy], Options { read_only: true, ..Options::default() }).unwrap();
        let root = Dir::root(&fs);
        let mut all = Vec::new();
        for entry in root.read_dir("/").unwrap() {
            let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
            let content = root.read(&name).unwrap();
            assert!(content.iter().all(|byte| *byte == content[0]), "{name}");
            all.push((name, content[0]));
        }
        all.sort();
        all
    }

    fn fill(session: &Session, byte: u8) -> ubtrfs::Result<()> {
        let root = Dir::root(session.fs());
        for number in 0..FILES {
            root.write(format!("file{number}"), vec![byte; 1 << 20])?;
        }
        Ok(())
    }

    #[test]
    fn commits_in_between_change_nothing_until_the_edit_is_published() {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        mkfs::make(&*device, &MkfsOptions::new(256 << 20)).unwrap();
        let edit = session(&device);
        fill(&edit, 1).unwrap();
        assert!(seen(&device).is_empty());
        edit.publish().unwrap();
        let before = seen(&device);
        assert_eq!(before.len() as u64, FILES);
        let edit = session(&device);
        for byte in 2..5 {
            fill(&edit, byte).unwrap();
            edit.fs().sync().unwrap();
            assert!(seen(&device) == before, "after commit {byte}");
        }
        // What the volume refers to is kept even where room is short.
        let full = (5..30).find_map(|byte| fill(&edit, byte).err()).unwrap();
        assert_eq!(full.errno(), Errno::NOSPC);
        drop(edit);
        assert!(seen(&device) == before);
        let edit = session(&device);
        fill(&edit, 9).unwrap();
        edit.publish().unwrap();
        assert!(seen(&device).iter().all(|(_, byte)| *byte == 9));
    }
}
