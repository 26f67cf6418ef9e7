//! `ubtrfs subvolume reset`: replaces a subvolume by a snapshot.

use crate::args::subvolume::Reset;
use crate::failure::Result;
use crate::output::say_line;
use crate::place::Opening;
use crate::volume_at::open_together;

/// `ubtrfs subvolume reset`
pub fn run(arguments: &Reset) -> Result<()> {
    let words = [&*arguments.target, &*arguments.source];
    let named = open_together(words, &arguments.image, Opening::WRITING)?;
    let (shown, _) = named.change(|volume, paths| {
        volume.reset(&paths[0], &paths[1])?;
        Ok((volume.shown(&paths[0]), volume.shown(&paths[1])))
    })?;
    say_line(&format!("Reset subvolume '{}' to '{}'", shown.0, shown.1));
    Ok(())
}
