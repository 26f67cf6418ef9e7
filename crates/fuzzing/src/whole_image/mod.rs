//! Whole volumes with some bytes changed: opened, checked, walked, read, and written to if the
//! engine accepts that.

pub(crate) mod base;
mod change;
pub(crate) mod damage;
pub(crate) mod look;

use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_check::check;
use ubtrfs_volume::{Device, OpenOptions, OverlayDevice, Volume};

pub use damage::inputs;

/// Uses a damaged volume. An input is a base and damages to it, in the language of `damage.rs`.
/// Whatever the damages are, operations may fail, but none panics or runs without end. A volume
/// that `check` finds sound stays sound when it is written to.
pub fn whole_image(data: &[u8]) {
    let _ = use_image(data);
}

/// How far the use of a damaged volume went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// `check` found no fault.
    pub is_clean: bool,
    /// The number of inodes that a walk found.
    pub inodes: usize,
    /// The volume could be opened for writing.
    pub opened: bool,
    /// The changes to it were committed.
    pub committed: bool,
}

/// Does what [`whole_image`] does, and returns how far it went.
pub fn use_image(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let Some(image) = damage::apply(data, base::base) else { return reached };
    if let Some(fs) = open(&image, true) {
        reached.inodes = look::walk(&fs);
        drop(fs.close());
    }
    reached.is_clean = is_clean(&image);
    let Some(fs) = open(&image, false) else { return reached };
    reached.opened = true;
    let used = change::use_it(&fs);
    let closed = fs.close();
    drop(fs);
    reached.committed = used.is_ok() && closed.is_ok();
    if reached.committed {
        let again = open(&image, true);
        assert!(again.is_some(), "a volume that was closed in good order cannot be opened");
    }
    if reached.is_clean {
        used.and(closed).unwrap_or_else(|error| panic!("a sound volume could not be written to: {error:?}"));
        let report = check(&devices(&image), &ubtrfs_check::Options::default());
        let report =
            report.unwrap_or_else(|error| panic!("a volume that was sound can no longer be checked: {error:?}"));
        assert!(report.is_clean(), "a volume that was sound has faults after writing: {:#?}", report.faults);
    }
    reached
}

/// How many old commits are opened.
const MAX_COMMITS: usize = 4;

fn devices(image: &Arc<OverlayDevice>) -> Vec<Arc<dyn Device>> {
    vec![Arc::clone(image) as Arc<dyn Device>]
}

fn is_clean(image: &Arc<OverlayDevice>) -> bool {
    let options = ubtrfs_check::Options { keep: 20, ..ubtrfs_check::Options::default() };
    check(&devices(image), &options).is_ok_and(|report| report.is_clean())
}

fn open(image: &Arc<OverlayDevice>, read_only: bool) -> Option<Arc<Filesystem>> {
    let volume = Volume::open(devices(image), OpenOptions { read_only }).ok()?;
    if read_only {
        for commit in volume.find_old_roots().iter().take(MAX_COMMITS) {
            drop(Volume::open_candidate(devices(image), commit));
        }
    }
    let options = Options {
        read_only,
        no_log_replay: read_only,
        background_commits: false,
        memory: 16 << 20,
        ..Options::default()
    };
    Filesystem::open(Arc::new(volume), options).ok()
}
