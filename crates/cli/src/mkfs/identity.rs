//! The ids of a new volume, and its creation time: either random and current, or such that the same
//! input makes the same volume, byte for byte.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use ubtrfs::Reproducible;
use ubtrfs_format::Uuid;
use ubtrfs_format::items::Timespec;
use ubtrfs_image::{HostFile, HostFiles, Selection, fingerprint};
use ubtrfs_mkfs::MkfsOptions;

use super::input::Input;
use crate::args::Mkfs;
use crate::failure::{Failure, Result};

/// The variable with the time that builds have to use as the current time, by
/// <https://reproducible-builds.org/specs/source-date-epoch/>.
const SOURCE_DATE_EPOCH: &str = "SOURCE_DATE_EPOCH";

/// The properties of a volume that are fixed by the user, rather than by where and when it is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity {
    /// The creation time.
    time: Option<Timespec>,
    fsid: Option<Uuid>,
    /// The id of the device, for a volume of one device.
    device: Option<Uuid>,
}

impl Identity {
    /// Takes the properties from the arguments and the environment. If the time is given and the id
    /// is not, the id is derived from the input.
    pub fn new(arguments: &Mkfs, input: Option<&Input>, selection: &Selection) -> Result<Self> {
        let time = source_date_epoch()?.map(|sec| Timespec { sec, nsec: 0 });
        let fsid = match (arguments.uuid, time, input) {
            (Some(uuid), ..) => Some(Uuid(uuid.into_bytes())),
            (None, Some(time), Some(input)) => Some(id_of(input, time, selection)?),
            _ => None,
        };
        let device = arguments.device_uuid.map(|uuid| Uuid(uuid.into_bytes()));
        if device.is_some() && arguments.devices.len() > 1 {
            return Err(Failure::new("--device-uuid is for a volume of one device").with_status(2));
        }
        Ok(Self { time, fsid, device })
    }

    /// Returns the latest time that a file gets.
    pub fn time(self) -> Option<Timespec> {
        self.time
    }

    /// Sets the ids and the time in the options of the volume.
    pub fn apply(self, options: &mut MkfsOptions) {
        if let Some(fsid) = self.fsid {
            options.fsid = fsid;
            options.device_uuid = derived(fsid, "device");
            for (number, device) in (2..).zip(&mut options.more_devices) {
                device.uuid = derived(fsid, &format!("device {number}"));
            }
            options.chunk_tree_uuid = derived(fsid, "chunk tree");
            options.subvolume_uuid = derived(fsid, "top-level subvolume");
        }
        if let Some(device) = self.device {
            options.device_uuid = device;
        }
        if let Some(time) = self.time {
            options.now = UNIX_EPOCH + Duration::from_secs(time.sec);
        }
    }

    /// Returns the settings for what is made in the volume.
    pub fn reproducible(self) -> Option<Reproducible> {
        Some(Reproducible { time: self.time?, seed: self.fsid? })
    }
}

/// Returns the time, in seconds since 1970, that is used as the current time.
pub fn source_date_epoch() -> Result<Option<u64>> {
    let Some(value) = std::env::var_os(SOURCE_DATE_EPOCH).filter(|value| !value.is_empty()) else { return Ok(None) };
    // No file system has later times.
    let seconds = value.to_str().and_then(|text| text.parse().ok()).filter(|seconds| *seconds < 1 << 60);
    let wrong = || {
        let value = value.display();
        Failure::new(format!("{SOURCE_DATE_EPOCH} is '{value}', which is no number of seconds since 1970"))
    };
    seconds.ok_or_else(wrong).map(Some)
}

fn derived(from: Uuid, what: &str) -> Uuid {
    Uuid(uuid::Uuid::new_v5(&uuid::Uuid::from_bytes(from.0), what.as_bytes()).into_bytes())
}

/// Returns an id that is derived from the input.
fn id_of(input: &Input, time: Timespec, selection: &Selection) -> Result<Uuid> {
    let hash = match input {
        Input::Directory(path) => {
            let (selection, top) = (selection.clone(), path.clone());
            let source = HostFiles { latest: Some(time), selection, top, ..HostFiles::default() };
            fingerprint(&source, HostFile::named(path, true)).map_err(|error| Failure::of(&error))?
        }
        Input::Archive(path) => hash_of(path)?,
        Input::Oci(image) => image.digest(),
        Input::Stdin => {
            return Err(Failure::new(format!(
                "an archive from the standard input can't be read twice, to derive the volume's id from it, as \
                 {SOURCE_DATE_EPOCH} asks for: give --uuid, or the archive as a file"
            )));
        }
    };
    // The content of the volume depends on the time and the selection, too. The hash of a directory
    // already covers only what is selected.
    let selected = if let Input::Directory(_) = input { String::new() } else { format!("{selection:?}") };
    let chosen = format!("{} {selected}", time.sec);
    let hash = Sha256::new().chain_update(hash).chain_update(chosen).finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    // This UUID version leaves the bits to the application.
    Ok(Uuid(uuid::Builder::from_custom_bytes(id).into_uuid().into_bytes()))
}

fn hash_of(path: &Path) -> Result<[u8; 32]> {
    let failed = |error: std::io::Error| Failure::about(path.display(), &error);
    let (mut file, mut hash, mut buf) = (File::open(path).map_err(failed)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buf).map_err(failed)? {
            0 => return Ok(hash.finalize().into()),
            len => hash.update(&buf[..len]),
        }
    }
}
