//! Finds out whether data that a caller copies into a file must be durable when the call returns.
//! FUSE does not say how the target of `copy_file_range` is open (`O_DSYNC`, `O_SYNC`).

use std::fs;

use super::arguments;

/// The place of the target among the arguments of `copy_file_range`.
const TARGET: usize = 2;

/// Returns whether the process has the target of its copy open with `O_DSYNC` or `O_SYNC`; true
/// where that can't be seen.
pub fn copies_durably(pid: u32, is_target: &dyn Fn(u64) -> bool) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let is_durable = |number: &str| is_durable(&format!("/proc/{pid}/fdinfo/{number}"), is_target);
    if let Some(number) = arguments(&line).nth(TARGET)
        && let Some(found) = is_durable(&(number as u32).to_string())
    {
        return found;
    }
    let Ok(all) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return true };
    all.flatten().any(|entry| entry.file_name().to_str().and_then(is_durable) == Some(true))
}

/// Returns whether writes by a descriptor are durable; `None` if the descriptor is not one of the
/// target.
fn is_durable(info: &str, is_target: &dyn Fn(u64) -> bool) -> Option<bool> {
    let info = fs::read_to_string(info).ok()?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    // Kernels before 5.14 don't show the inode number.
    let is_target = field("ino:").is_none_or(|number| number.parse().is_ok_and(is_target));
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    // O_SYNC has this bit, too.
    is_target.then_some(flags & libc::O_DSYNC != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    use super::*;

    #[test]
    fn open_files_say_whether_writes_are_durable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let open = |flags: i32| {
            let mut how = OpenOptions::new();
            how.write(true).create(true).truncate(false).custom_flags(flags).open(&path).unwrap()
        };
        let plain = open(0);
        let ino = plain.metadata().unwrap().ino();
        let own = || copies_durably(std::process::id(), &|number| number == ino);
        assert!(!own());
        for flags in [libc::O_DSYNC, libc::O_SYNC] {
            let durable = open(flags);
            assert!(own(), "of several the one counts that asks for more");
            drop(durable);
        }
        assert!(!own());
        drop(plain);
        assert!(copies_durably(0, &|_| true), "a process that is not visible");
    }
}
