//! What a test needs of the machine. A test whose needs are not met reports that and passes. If the
//! machine was declared complete with `UBTRFS_TEST_KERNEL=1`, the test fails instead, and names
//! what is missing.

use std::io::Write;
use std::path::{Path, PathBuf};

/// One thing that a test cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Running as root.
    Root,
    /// Root, loop devices, the kernel's btrfs and btrfs-progs.
    Kernel,
    /// Access to `/dev/fuse` for reading and writing. For root it also needs FUSE's control file
    /// system, by which tests abort connections; this is mounted if necessary, and stays mounted.
    Fuse,
    /// The needs of [`Self::Fuse`], and FUSE over `io_uring`. The kernel's switch for it is turned
    /// on and stays on, so mounts that must not use it have to say so.
    FuseRing,
    /// The `ubtrfs` binary: see [`ubtrfs_binary`].
    Ubtrfs,
    /// A program on the `PATH`.
    Tool(&'static str),
    /// A module of the system's Python, `/usr/bin/python3`.
    PythonModule(&'static str),
}

impl Need {
    /// Returns what is missing, in a few words, or `None` if the need is met.
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Root => (!rustix::process::geteuid().is_root()).then(|| "root".into()),
            Need::Kernel => Need::Root
                .missing()
                .or_else(|| {
                    (!Path::new("/dev/loop-control").exists()).then(|| "loop devices (/dev/loop-control)".into())
                })
                .or_else(|| (!kernel_has_btrfs()).then(|| "btrfs in the kernel".into()))
                .or_else(|| Need::Tool("losetup").missing())
                .or_else(|| Need::Tool("mkfs.btrfs").missing())
                .or_else(|| Need::Tool("btrfs").missing()),
            Need::Fuse => std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .err()
                .map(|error| format!("/dev/fuse: {error}"))
                .or_else(|| {
                    let lacks = Need::Root.missing().is_none() && !connections_are_shown();
                    lacks.then(|| format!("FUSE's control file system ({CONNECTIONS})"))
                }),
            Need::FuseRing => Need::Fuse.missing().or_else(|| {
                (!turn_rings_on()).then(|| format!("FUSE over io_uring ({RING_SWITCH}, which only root turns on)"))
            }),
            Need::Ubtrfs => ubtrfs_binary().is_none().then(|| "the ubtrfs binary (build it, or set UBTRFS_BIN)".into()),
            Need::PythonModule(name) => {
                let import = format!("import {name}");
                let mut python = crate::run::command("/usr/bin/python3", &["-c", &import]);
                let is_there = Path::new("/usr/bin/python3").is_file() && crate::run::run(&mut python).success();
                (!is_there).then(|| format!("python3-{name}"))
            }
            Need::Tool(name) => find_tool(name).is_none().then(|| format!("program {name}")),
        }
    }
}

/// Returns the `ubtrfs` binary under test: `UBTRFS_BIN`, or the one next to the running test
/// executable.
pub fn ubtrfs_binary() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("UBTRFS_BIN") {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let exe = std::env::current_exe().ok()?;
    let candidates = [exe.parent()?, exe.parent()?.parent()?];
    candidates.iter().map(|dir| dir.join("ubtrfs")).find(|path| path.is_file())
}

/// Returns the path of a program on the `PATH` or in the directories of the administrator's
/// programs.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// The kernel's switch for FUSE over `io_uring`.
const RING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

fn turn_rings_on() -> bool {
    let is_on = || std::fs::read_to_string(RING_SWITCH).is_ok_and(|value| value.trim() == "Y");
    is_on() || std::fs::write(RING_SWITCH, "Y").is_ok() && is_on()
}

/// Where FUSE's control file system belongs.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

fn connections_are_shown() -> bool {
    let is_there = || {
        let all = ubtrfs_mounts::all().unwrap_or_default();
        all.iter().any(|mounted| mounted.point.as_os_str() == CONNECTIONS)
    };
    // Another test may have mounted it meanwhile.
    is_there() || {
        let mounted = rustix::mount::mount("none", CONNECTIONS, "fusectl", rustix::mount::MountFlags::empty(), None);
        mounted.is_ok() || is_there()
    }
}

fn kernel_has_btrfs() -> bool {
    let listed = || {
        std::fs::read_to_string("/proc/filesystems")
            .is_ok_and(|text| text.split_whitespace().any(|word| word == "btrfs"))
    };
    listed() || {
        let loaded = crate::run::run(&mut crate::run::command("modprobe", &["btrfs"]));
        loaded.success() && listed()
    }
}

/// Returns true if every need is met. Otherwise reports the test `name` as skipped, or fails it if
/// the machine was declared complete. It is used through [`require!`](crate::require).
#[track_caller]
pub fn met(name: &str, needs: &[Need]) -> bool {
    let missing: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    if missing.is_empty() {
        return true;
    }
    let reason = missing.join(", ");
    assert!(
        std::env::var_os("UBTRFS_TEST_KERNEL").is_none_or(|value| value != "1"),
        "{name}: UBTRFS_TEST_KERNEL=1, but this is missing: {reason}"
    );
    let line = format!("skipped: {name}: missing {reason}\n");
    // Written to the stream itself: the print macros are silent in a test that passes.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(log) = std::env::var_os("UBTRFS_SKIP_LOG") {
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(log);
        if let Ok(mut file) = opened {
            let _ = file.write_all(line.as_bytes());
        }
    }
    false
}

/// Returns from the test, and reports it as skipped, unless the machine meets the named needs:
/// `require!(Need::Kernel, …)`.
#[macro_export]
macro_rules! require {
    ($($need:expr),+ $(,)?) => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").unwrap_or(name);
        if !$crate::need::met(name, &[$($need),+]) {
            return;
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_or_named() {
        assert_eq!(Need::Tool("sh").missing(), None);
        assert_eq!(Need::Tool("no-such-tool").missing().as_deref(), Some("program no-such-tool"));
    }
}
