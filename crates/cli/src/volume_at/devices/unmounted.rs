//! A volume that is not mounted, by its devices.

use std::path::{Path, PathBuf};

use crate::args::Window;

/// The devices of a volume. Nothing is opened yet.
pub struct Unmounted {
    /// All that were named, of which some may be away.
    pub paths: Vec<PathBuf>,
    pub window: Window,
}

impl Unmounted {
    pub fn new(paths: &[PathBuf], window: Window) -> Self {
        Self { paths: paths.to_vec(), window }
    }

    /// What errors name: the first device.
    pub fn place(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), |path| path)
    }
}
