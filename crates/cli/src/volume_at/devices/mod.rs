//! The devices of a volume, mounted or not, and what can be done with them. `devices` alone decides
//! which of the two it is. A volume that is not mounted is opened by what is done with it, since
//! each of these can do without other devices that are away.

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

/// The volume that is mounted on the only directory of these places, or has these devices.
pub fn devices(places: &[PathBuf], window: Window) -> Box<dyn Devices> {
    match mount_of(places) {
        Some(directory) => Box::new(OnMount::new(directory.to_owned())),
        None => Box::new(Unmounted::new(places, window)),
    }
}
