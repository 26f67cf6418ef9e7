//! Replaces the content of a file so that a crash leaves either the whole old content or the whole
//! new content: it makes a new file, fsyncs it, and renames it.
//!
//! `cargo run --example write_and_fsync -- disk.img /motd 'Good morning'`

use std::error::Error;

use ubtrfs::{Dir, Filesystem, Options, Result};

/// Makes `content` the content of the file at `path`. It is durable when this returns.
pub fn replace(root: &Dir, path: &str, content: &[u8]) -> Result<()> {
    let new = format!("{path}.new");
    let file = root.create(&new)?;
    file.write_all_at(content, 0)?;
    // Without this fsync, the new name could refer to an empty file after a crash.
    file.sync_all()?;
    root.rename(&new, path)?;
    // An fsync of the file or of its directory makes the rename durable.
    file.sync_all()?;
    file.close()
}

/// Replaces the content of the file at `path` in the volume `image`.
pub fn run(image: &str, path: &str, content: &str) -> Result<()> {
    let fs = Filesystem::open_path(image, Options::default())?;
    replace(&Dir::root(&fs), path, content.as_bytes())?;
    fs.close()
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, path, content] = arguments.as_slice() else {
        return Err("usage: write_and_fsync IMAGE PATH TEXT".into());
    };
    Ok(run(image, path, content)?)
}
