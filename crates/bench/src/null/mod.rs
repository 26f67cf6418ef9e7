//! The peer `null`: a file system in memory on our own FUSE crate, whose only other cost is that of
//! the barriers of fsync. So it is the upper bound for any server on this transport.

mod barrier;
mod data;
mod inodes;
mod server;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use ubtrfs_errors::sentence;
use ubtrfs_fuse::mount::{Mount, MountOptions, Source, Unmount};
use ubtrfs_fuse::{Session, Transport};

use crate::failure::{Failure, Result};

/// The word on the server's standard output when it is ready; the kind of mount follows.
pub const READY: &str = "ready";

/// Serves a mount on `directory` until it is unmounted. Barriers use the image `backing`, which is
/// overwritten.
pub fn serve(backing: &Path, directory: &Path) -> Result<()> {
    let failed = |what: &str, error: &dyn std::error::Error| Failure::new(format!("null: {what}: {}", sentence(error)));
    let root = rustix::process::geteuid().is_root();
    // Mounts like the ubtrfs command: see `crates/cli/src/mount/serve.rs`.
    let options = MountOptions {
        source: Source::Image(backing.into()),
        subtype: "null".into(),
        allow_other: root,
        default_permissions: true,
        ..MountOptions::default()
    };
    let (mount, device) = Mount::new(directory, &options).map_err(|error| failed("mount", &error))?;
    let mount = Arc::new(mount);
    let server = server::Null::new(backing).map_err(|error| failed("open the backing file", &error))?;
    let session = Session::establish(device, server, &ubtrfs_server::config(None, Transport::Auto, true))
        .map_err(|error| failed("begin", &error))?;
    mount.read_far_ahead();
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| failed("signals", &error))?;
    let ending = Arc::clone(&mount);
    std::thread::spawn(move || {
        for _ in signals.forever() {
            // If this fails, the mount visibly stays.
            let _ = ending.unmount(Unmount::Lazy);
        }
    });
    println!("{READY} {:?}", mount.kind());
    let _ = std::io::stdout().flush();
    session.run().map_err(|error| failed("serve", &error))
}
