//! Writes the content of a file of a volume to the standard output. It neither mounts the volume
//! nor writes to it.
//!
//! `cargo run --example read_file -- disk.img /etc/hostname`

use std::error::Error;
use std::io::{self, Write};

use ubtrfs::{Dir, Filesystem, Options};

/// Copies the file at `path` in the volume `image` to `to`.
pub fn run(image: &str, path: &str, to: &mut dyn Write) -> Result<u64, Box<dyn Error>> {
    let fs = Filesystem::open_path(image, Options { read_only: true, ..Options::default() })?;
    let mut file = Dir::root(&fs).open(path)?;
    Ok(io::copy(&mut file, to)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, path] = arguments.as_slice() else {
        return Err("usage: read_file IMAGE PATH".into());
    };
    run(image, path, &mut io::stdout().lock()).map(drop)
}
