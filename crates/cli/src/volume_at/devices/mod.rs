//! The devices of a volume, mounted or not, and the operations on them. Only `devices` decides
//! whether the volume is mounted. A volume that is not mounted is opened by each operation, since
//! the operations differ in which missing devices they allow.

mod additions;
mod labels;
mod removals;
mod replacements;
mod scrubs;
mod sizes;
mod unmounted;

use std::path::PathBuf;

pub use self::additions::Additions;
pub use self::labels::Labels;
pub use self::removals::Removals;
pub use self::replacements::{Replaced, Replacements, WantedReplacement, replacement_on};
pub use self::scrubs::{Scrubs, WantedScrub, about_scrub, device_ids, running};
pub use self::sizes::Sizes;
use self::unmounted::Unmounted;
use super::on_mount::OnMount;
use crate::args::Window;
use crate::place::mount_of;

/// A volume whose devices can change.
pub trait Devices: Additions + Labels + Removals + Replacements + Scrubs + Sizes {}

impl Devices for OnMount {}
impl Devices for Unmounted {}

/// Returns the volume that is mounted on the only directory of these places, or that has these
/// devices.
pub fn devices(places: &[PathBuf], window: Window) -> Box<dyn Devices> {
    match mount_of(places) {
        Some(directory) => Box::new(OnMount::new(directory.to_owned())),
        None => Box::new(Unmounted::new(places, window)),
    }
}
