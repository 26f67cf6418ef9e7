//! The bound of FUSE, served by another process of this program.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ubtrfs_fuse::mount::{Unmount, unmount};

use crate::failure::{Failure, Result};
use crate::null::READY;

/// A mount of the bound.
pub struct NullMount {
    server: Child,
    directory: PathBuf,
    kind: String,
    mounted: bool,
}

impl NullMount {
    /// Starts the server and waits until it serves.
    pub fn new(backing: &Path, directory: &Path) -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut server = Command::new(program)
            .arg("null")
            .arg(backing)
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut printed = String::new();
        if let Some(output) = server.stdout.take() {
            BufReader::new(output).read_line(&mut printed)?;
        }
        let Some(kind) = printed.trim().strip_prefix(READY) else {
            let _ = server.kill();
            let _ = server.wait();
            return Err(Failure::new("the server of the peer null did not begin"));
        };
        let kind = kind.trim().to_owned();
        Ok(Self { server, directory: directory.into(), kind, mounted: true })
    }

    /// Describes the mount.
    pub fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("mount".into(), format!("as ubtrfs mounts ({})", self.kind)),
            ("backing".into(), "image file, for barriers only".into()),
            ("permissions".into(), "default_permissions".into()),
        ])
    }

    /// Returns the server's process.
    pub fn daemon(&self) -> u32 {
        self.server.id()
    }

    /// Unmounts, and waits for the server's end.
    pub fn unmount(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        // Nothing in it needs to last, so it is removed even from processes that still use it.
        let unmounted = unmount(&self.directory, Unmount::Now).or_else(|_| unmount(&self.directory, Unmount::Lazy));
        if unmounted.is_err() {
            let _ = self.server.kill();
        }
        let status = self.server.wait()?;
        unmounted.map_err(|error| Failure::about("null", &error))?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("the server of the peer null: {status}"))) }
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        if let Err(failure) = self.unmount() {
            eprintln!("ubtrfs-bench: {failure}");
        }
    }
}
