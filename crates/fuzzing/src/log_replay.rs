//! Volumes with a damaged log: replayed in memory, and on the device.

use std::collections::BTreeSet;
use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Device, OpenOptions, OverlayDevice, Volume};

use crate::whole_image::base::{LOG_COUNT, log};
use crate::whole_image::damage::{apply, damage};
use crate::whole_image::look;

/// Replays a damaged log. An input is a volume with a log, and damages to the log in the language
/// of `whole_image`. Whatever the damages are, the replay may fail, but it neither panics nor runs
/// without end; and a log whose replay failed is still there.
pub fn log_replay(data: &[u8]) {
    let _ = use_log(data);
}

/// Does what [`log_replay`] does. Returns whether the log was replayed in memory, and whether on
/// the device.
pub fn use_log(data: &[u8]) -> (bool, bool) {
    let Some(image) = apply(data, log) else { return (false, false) };
    let read = open(&image, true);
    if let Some(fs) = &read {
        look::walk(fs);
        drop(fs.close());
    }
    let before = log_root(&image);
    let written = open(&image, false);
    match &written {
        Some(fs) => {
            look::walk(fs);
            fs.close().unwrap_or_else(|error| panic!("a replayed volume could not be closed: {error:?}"));
            assert_eq!(log_root(&image), Some(0), "a log is there after its replay");
            assert!(open(&image, true).is_some(), "a replayed volume cannot be opened");
        }
        None => assert_eq!(log_root(&image), before, "a log is gone that was not replayed"),
    }
    (read.is_some(), written.is_some())
}

fn volume(image: &Arc<OverlayDevice>, read_only: bool) -> Option<Volume> {
    Volume::open(vec![Arc::clone(image) as Arc<dyn Device>], OpenOptions { read_only }).ok()
}

fn log_root(image: &Arc<OverlayDevice>) -> Option<u64> {
    volume(image, true).map(|volume| volume.superblocks().current().log_root.0)
}

fn open(image: &Arc<OverlayDevice>, read_only: bool) -> Option<Arc<Filesystem>> {
    let options = Options { read_only, background_commits: false, memory: 16 << 20, ..Options::default() };
    Filesystem::open(Arc::new(volume(image, read_only)?), options).ok()
}

/// Returns inputs, with their names, that hit every type of item of a log at several places. The
/// corpus begins with them.
pub fn inputs() -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    let mut seen = BTreeSet::new();
    for number in 0..LOG_COUNT as u8 {
        inputs.push((format!("sound-{number}"), vec![number]));
        for item_type in log(number.into()).items.keys().filter(|item_type| seen.insert(**item_type)) {
            let item_type = *item_type;
            for (offset, bytes) in [(0, [0xff; 8]), (8, [0; 8]), (21, [0xff; 8]), (40, [1, 0, 0, 0, 0, 0, 0, 0])] {
                inputs.push((
                    format!("item-{number}-{item_type}-{offset}"),
                    damage(number, &[0, item_type, 1, offset, 0], &bytes),
                ));
            }
            inputs.push((format!("key-{number}-{item_type}"), damage(number, &[1, item_type, 1, 9], &[0xff; 8])));
            inputs.push((format!("owner-{number}-{item_type}"), damage(number, &[1, item_type, 0, 0], &[1, 1])));
            inputs.push((format!("size-{number}-{item_type}"), damage(number, &[1, item_type, 0, 21], &[1, 0, 0])));
        }
        inputs.push((format!("block-{number}"), damage(number, &[2, 1, 0, 80, 0], &[0xff; 8])));
        inputs.push((format!("swap-{number}"), vec![number, 5, 0, 0, 1, 0]));
        inputs.push((format!("root-{number}"), damage(number, &[3, 96, 0], &[0, 0, 1])));
    }
    inputs
}
