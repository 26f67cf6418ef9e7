//! The users of a mount: processes with open files, directories, programs or mappings on it.

use std::fs::{self, DirEntry};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags};

/// The greatest number of processes that are listed.
const MAX_NAMED: usize = 5;

/// A process that holds a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pid: u32,
    name: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (process {})", self.name, self.pid)
    }
}

/// Returns those processes that use the file system with this device number, as far as they are
/// accessible. No request is sent to the server, which may be busy or stuck.
pub fn of(device: (u32, u32)) -> Vec<Holder> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let holder = |entry: DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        if !holds(&entry.path(), device) {
            return None;
        }
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        Some(Holder { pid, name: name.trim_end().into() })
    };
    entries.flatten().filter_map(holder).collect()
}

/// Whether a process has a file, directory, program or mapping on the device.
fn holds(process: &Path, device: (u32, u32)) -> bool {
    let own = ["cwd", "root", "exe"].map(|name| process.join(name));
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    own.into_iter().chain(open).any(|link| is_on(&link, device)) || is_mapped(process, device)
}

fn is_on(link: &Path, device: (u32, u32)) -> bool {
    // The attributes that the kernel has in memory suffice: it knows the device number without the
    // server.
    rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)
        .is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == device)
}

fn is_mapped(process: &Path, device: (u32, u32)) -> bool {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let number = format!("{:02x}:{:02x}", device.0, device.1);
    String::from_utf8_lossy(&maps).lines().any(|line| line.split(' ').nth(3) == Some(&*number))
}

/// Lists the processes that use the file system with this device number, for the user.
pub fn users(device: (u32, u32)) -> String {
    let mut holders: Vec<_> = of(device).iter().map(ToString::to_string).collect();
    let more = holders.len().saturating_sub(MAX_NAMED);
    holders.truncate(MAX_NAMED);
    match (holders.is_empty(), more) {
        (true, _) => "a program uses it that can't be seen from here, or something is mounted inside".into(),
        (false, 0) => format!("it is used by {}", holders.join(", ")),
        (false, more) => format!("it is used by {} and {more} more", holders.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_open_file_holds_its_file_system() {
        let file = tempfile::tempfile().unwrap();
        let number = file.metadata().unwrap().dev();
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        let own = format!("(process {})", std::process::id());
        assert!(of(device).iter().any(|holder| holder.to_string().contains(&own)));
        assert_eq!(of((4095, 4095)), []);
    }
}
