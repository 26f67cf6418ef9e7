//! The devices of a volume that is not mounted.

use std::path::{Path, PathBuf};

use crate::args::Window;

/// The devices of a volume. They are opened later.
pub struct Unmounted {
    /// All devices that were named, of which some may be away.
    pub paths: Vec<PathBuf>,
    pub window: Window,
}

impl Unmounted {
    pub fn new(paths: &[PathBuf], window: Window) -> Self {
        Self { paths: paths.to_vec(), window }
    }

    /// Returns the place that errors name: the first device.
    pub fn place(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), |path| path)
    }
}
