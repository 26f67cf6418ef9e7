//! The mounts through which a volume is reached: the given one, a read-only bind mount of it, and
//! an idmapped one.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::actors::MOUNT_IDS;
use super::call::View;
use super::process::Process;
use super::sys;
use crate::run::{command, run};
use crate::scratch::scratch_dir;

/// The mounts of a volume. Those made here are removed on drop.
#[derive(Debug)]
pub struct Views {
    tops: Vec<PathBuf>,
    made: Vec<TempDir>,
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path without a zero byte")
}

impl Views {
    /// Makes the mounts of the volume that is mounted at `top`. `program` is that of [`Process`].
    pub fn new(program: &Path, top: &Path) -> Self {
        const IDMAPPED: u64 = 0x0010_0000;
        const READ_ONLY: u64 = 1;
        let holder = Process::start_in_space(program, &[], MOUNT_IDS, MOUNT_IDS);
        let namespace = holder.user_namespace();
        let mut views = Self { tops: vec![top.to_owned()], made: Vec::new() };
        for attributes in [READ_ONLY, IDMAPPED] {
            let tree = sys::owned(sys::copy_mount(&text(top)).expect("a copy of the mount"));
            let dir = scratch_dir();
            sys::set_mount(tree.as_raw_fd(), attributes, namespace.as_raw_fd()).expect("attributes of a mount");
            sys::attach_mount(tree.as_raw_fd(), &text(dir.path())).expect("a place for the mount");
            views.tops.push(dir.path().to_owned());
            views.made.push(dir);
        }
        assert_eq!(views.tops.len(), View::ALL.len());
        views
    }

    /// The mount points, in the order of [`View::ALL`].
    pub fn tops(&self) -> &[PathBuf] {
        &self.tops
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        for dir in &self.made {
            run(command("umount", &["-l", "--"]).arg(dir.path()));
        }
    }
}
