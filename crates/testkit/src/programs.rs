//! Real programs that work in a mounted directory. Each function makes its own subdirectory of the
//! given directory, and fails the test if a program fails or finds something wrong.

mod bench;
mod build;
mod git;
mod rsync;
mod sqlite;

pub use bench::{STRESSORS, dbench, fio, stress_ng};
pub use build::untar_and_build;
pub(crate) use git::git_in;
pub use git::{git, source_repository};
pub use rsync::{rsync_keeps_up, rsync_there_and_back};
pub use sqlite::sqlite;

use std::path::{Path, PathBuf};

/// Makes the directory `name` in `dir`.
fn workplace(dir: &Path, name: &str) -> PathBuf {
    let place = dir.join(name);
    std::fs::create_dir(&place).unwrap_or_else(|error| panic!("mkdir {}: {error}", place.display()));
    place
}
