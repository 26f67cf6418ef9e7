//! `mount -o remount`: makes a mount read-only or writable again, changes options of the kernel
//! alone (`nosuid`, `nodev`, `noexec`), the compression of data, and the flags of new files. All
//! other options stay, and a request to change them fails with a message.
//!
//! mount(8) passes its helper all options in one list: those of the mount table, of fstab, and the
//! requested ones. So an option that is in force already is no change.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use ubtrfs::CompressionMode;
use ubtrfs_fuse::Connection;
use ubtrfs_fuse::mount::{MountFlags, Point, device_number_of, remount};
use ubtrfs_server::control::{Report, name_of_new_files};

use super::option::{Remount, Wrong};
use super::option_table::{TABLE, find};
use super::options::each;
use super::request::MountRequest;
use crate::control;
use crate::failure::{Failure, Result};
use crate::holders::users;
use crate::mount_table::{self, Mounted};

const REMOUNT: &str = "remount";
/// Flags that other programs can give a mount, and their names in the mount table. No option of a
/// remount here changes them.
const OF_OTHERS: [(&str, MountFlags); 3] =
    [("nosymfollow", MountFlags::NOSYMFOLLOW), ("sync", MountFlags::SYNCHRONOUS), ("lazytime", MountFlags::LAZYTIME)];
/// The limit of the wait for transient users of the mount and for requests in progress.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the options contain `remount`.
pub fn is_wanted(options: &[String]) -> bool {
    each(options).any(|option| option == REMOUNT)
}

/// The requested state of a mount.
#[derive(Debug)]
pub struct Changes {
    point: PathBuf,
    /// The root of the mount, opened with `O_PATH`. The server of another user's mount may delay
    /// its answer until the path refers to something else (invariant 52).
    root: OwnedFd,
    mounted: Mounted,
    flags: MountFlags,
    /// The flags that the mount has.
    before: MountFlags,
    /// The requests to the server: how data is to be compressed, by how many threads, and the flags
    /// of new files.
    of_data: Vec<String>,
    /// The error after which the server has stopped writing.
    aborted: Option<String>,
}

impl Changes {
    /// Returns the changes that the options request for the mount on `directory`. An error if one
    /// of them is impossible.
    pub fn of(options: &[String], directory: &Path) -> Result<Self> {
        let point = mount_table::resolve(directory)?;
        let shown = point.display();
        let Some(mounted) = mount_table::mounted_on(&point)?.filter(Mounted::is_ours) else {
            return Err(Failure::new(format!("no volume is mounted on {shown} by ubtrfs")));
        };
        let root = Point::open(&point).and_then(|at| at.open_mounted());
        let root = root.map_err(|error| Failure::about(point.display(), &error))?;
        // The open root must be of this mount, whatever is visible at the path now.
        if device_number_of(&root) != Some(mounted.device) {
            return Err(Failure::new(format!("{shown} is mounted no more, or something else is")));
        }
        let report = control::report(&place_of(&root)).map_err(|errno| control::failure(&point, errno))?;
        let flags = wanted_flags(each(options), &mounted.options, &report)?;
        let before = wanted_flags(std::iter::empty(), &mounted.options, &report)?;
        let of_data = of_data(each(options), &report.options)?;
        Ok(Self { point, root, mounted, flags, before, of_data, aborted: report.aborted })
    }
}

/// Changes the mount on `directory`.
pub fn run(options: &[String], directory: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("only root changes a mount; unmount it, and mount it with the other options"));
    }
    let changes = Changes::of(options, directory)?;
    // The server is asked before the kernel does its part.
    control::may_remount(&place_of(&changes.root)).map_err(|errno| control::failure(&changes.point, errno))?;
    for option in &changes.of_data {
        control::change(&place_of(&changes.root), option).map_err(|errno| control::failure(&changes.point, errno))?;
    }
    if changes.flags.contains(MountFlags::RDONLY) { changes.make_read_only() } else { changes.make_writable() }
}

impl Changes {
    /// Makes the mount read-only. The kernel refuses that while files are open for writing. Once it
    /// has blocked new writers and written its dirty pages back, the server commits and stops.
    fn make_read_only(&self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match remount(&self.root, self.flags) {
                Err(error) if is_busy(&error) && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) if is_busy(&error) => {
                    return Err(Failure::new(format!(
                        "{} is open for writing: {}",
                        self.point.display(),
                        users(self.mounted.device)
                    )));
                }
                done => break done.map_err(|error| self.failure(&error))?,
            }
        }
        if self.aborted.is_some() {
            // The server has stopped already, and nothing more can become durable.
            return Ok(());
        }
        self.stop_writing().map_err(|failure| {
            if let Some(why) = self.why_aborted() {
                return why;
            }
            // Restore the mount's previous state, in the server and in the kernel.
            if !self.before.contains(MountFlags::RDONLY) {
                let _ = control::write_again(&place_of(&self.root));
            }
            let _ = remount(&self.root, self.before);
            failure
        })
    }

    /// Returns the error that has turned the file system read-only meanwhile, if there was one.
    fn why_aborted(&self) -> Option<Failure> {
        let reason = control::report(&place_of(&self.root)).ok()?.aborted?;
        Some(about_aborted(&self.point, &reason))
    }

    /// Does the server's part: it commits, and stops writing.
    fn stop_writing(&self) -> Result<()> {
        let failed = |errno| control::failure(&self.point, errno);
        // The kernel's last writes may still be in flight, and a server that has stopped would
        // refuse them.
        control::sync_mount(&place_of(&self.root)).map_err(failed)?;
        if !Connection::of(self.mounted.device).is_idle_within(TIMEOUT) {
            return Err(Failure::new(format!("the server of {} is busy: try again", self.point.display())));
        }
        control::stop_writing(&place_of(&self.root)).map_err(failed)
    }

    fn make_writable(&self) -> Result<()> {
        let shown = self.point.display();
        let was_stopped = self.before.contains(MountFlags::RDONLY);
        control::write_again(&place_of(&self.root)).map_err(|errno| match errno {
            Errno::ROFS => self.why_aborted().unwrap_or_else(|| {
                Failure::new(format!(
                    "{shown} was mounted read-only and stays so: unmount it, and mount it for reading and writing"
                ))
            }),
            errno => control::failure(&self.point, errno),
        })?;
        remount(&self.root, self.flags).map_err(|error| {
            if was_stopped {
                let _ = control::stop_writing(&place_of(&self.root));
            }
            self.failure(&error)
        })
    }

    fn failure(&self, error: &io::Error) -> Failure {
        Failure::about(format_args!("changing the mount on {}", self.point.display()), error)
    }
}

/// Returns a path to an open file.
fn place_of(root: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", root.as_raw_fd()).into()
}

fn about_aborted(point: &Path, reason: &str) -> Failure {
    Failure::new(format!("{} turned read-only after an error and stays so: {reason}", point.display()))
}

/// Returns the requests to the server for options about data: the options in force, changed by the
/// requested ones.
fn of_data<'a>(options: impl Iterator<Item = &'a str>, present: &[String]) -> Result<Vec<String>> {
    let (mut changed, mut wanted) = (Vec::new(), Vec::new());
    for option in options {
        match remount_of(option) {
            Some(Remount::Threads) => changed = vec![option.to_owned()],
            Some(Remount::Compression | Remount::NewFiles) => wanted.push(option.to_owned()),
            _ => {}
        }
    }
    if !wanted.is_empty() {
        let is_of_both =
            |option: &&String| matches!(remount_of(option), Some(Remount::Compression | Remount::NewFiles));
        let in_force = present.iter().filter(is_of_both).cloned();
        let whole = MountRequest::parse(&in_force.chain(wanted).collect::<Vec<_>>())?;
        changed.push(whole.compression.map_or_else(|| "compress=no".to_owned(), CompressionMode::to_option));
        changed.extend(name_of_new_files(whole.new_files.flags()).map(str::to_owned));
    }
    Ok(changed)
}

/// Returns the effect of an option in a remount.
fn remount_of(option: &str) -> Option<Remount> {
    find(option).map(|given| given.row.remount)
}

fn is_busy(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::BUSY)
}

/// Returns the flags that a mount is to have: its present flags, changed by the options. Those for
/// access times are not among them, since they [stay](remount).
pub fn wanted_flags<'a>(
    options: impl Iterator<Item = &'a str>,
    present: &[String],
    report: &Report,
) -> Result<MountFlags> {
    let holds = |option: &str| present.iter().any(|other| other == option);
    let mut flags = MountFlags::empty();
    for row in TABLE {
        if let Remount::Flag(flag) = row.remount {
            flags.set(flag, row.names.iter().any(|name| holds(name)));
        }
    }
    for (name, flag) in OF_OTHERS {
        flags.set(flag, holds(name));
    }
    for option in options {
        let is_in_force = |option: &str| holds(option) || report.options.iter().any(|other| other == option);
        // The mount table may show options that only the kernel knows, such as `user_id=`.
        let Some(given) = find(option) else {
            if holds(option) {
                continue;
            }
            return Err(refused(option, None));
        };
        match given.apply(&mut MountRequest::default()) {
            // Another program has given the mount what is refused here, and it stays.
            Err(_) if holds(option) => continue,
            applied => applied.map_err(|wrong| refused(option, Some(&wrong)))?,
        }
        let may_be = match given.row.remount {
            Remount::Flag(flag) => {
                flags.set(flag, !given.is_opposite);
                true
            }
            Remount::Unset(flag) => {
                flags.remove(flag);
                true
            }
            Remount::Threads | Remount::Compression | Remount::NewFiles | Remount::Nothing => true,
            Remount::Unless(others) => !others.iter().any(|other| is_in_force(other)),
            Remount::Stays if given.is_opposite => !given.row.names.iter().any(|name| is_in_force(name)),
            Remount::Stays => is_in_force(option),
        };
        if !may_be {
            return Err(refused(option, None));
        }
    }
    Ok(flags)
}

/// Returns the failure about an option that a remount can't set.
fn refused(option: &str, wrong: Option<&Wrong>) -> Failure {
    let remark = find(option).and_then(|given| given.remark(true));
    let why = match wrong {
        Some(Wrong::Argument(why)) => why,
        Some(Wrong::Option(why)) => *why,
        None if find(option).is_none() => "there is no such option, or not in this form",
        None => remark.unwrap_or("unmount the volume, and mount it with that option"),
    };
    Failure::new(format!("mount option '{option}' can't be had by a remount: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options of a mount in the mount table.
    const PRESENT: &str = "rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,allow_other,blksize=4096";

    fn wanted(options: &str) -> std::result::Result<MountFlags, String> {
        let present: Vec<String> = PRESENT.split(',').map(Into::into).collect();
        let report = Report { options: vec!["commit=10".into(), "compress=lzo".into()], ..Report::default() };
        wanted_flags(options.split(','), &present, &report).map_err(|failure| match failure {
            Failure::Sentence(sentence, _) => sentence,
            other @ Failure::Said(_) => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_options_of_mount_change_only_the_requested_ones() {
        let usual = MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(wanted("remount"), Ok(usual));
        assert_eq!(wanted("remount,ro"), Ok(usual | MountFlags::RDONLY));
        let rest = PRESENT.strip_prefix("rw").unwrap();
        assert_eq!(wanted(&format!("ro{rest},remount")), Ok(usual | MountFlags::RDONLY));
        assert_eq!(wanted("rw,remount,suid,noexec,commit=10,nofail"), Ok(MountFlags::NODEV | MountFlags::NOEXEC));
        assert_eq!(wanted("ro,remount,compress=lzo"), Ok(usual | MountFlags::RDONLY), "it was mounted with that");
    }

    #[test]
    fn flags_that_other_programs_have_given_the_mount_stay() {
        let report = Report::default();
        for (present, flags) in [
            ("rw,nosymfollow,relatime", MountFlags::NOSYMFOLLOW),
            ("rw,noexec,noatime,sync,lazytime", MountFlags::NOEXEC | MountFlags::SYNCHRONOUS | MountFlags::LAZYTIME),
        ] {
            let list: Vec<String> = present.split(',').map(Into::into).collect();
            // mount(8) may name all options of the mount.
            for options in ["remount,compress=zstd".to_owned(), format!("{present},remount,compress=zstd")] {
                assert_eq!(wanted_flags(options.split(','), &list, &report).unwrap(), flags, "{options}");
            }
        }
    }

    #[test]
    fn the_last_option_of_compression_and_of_new_files_counts() {
        for (present, options, changed) in [
            ("", "rw,remount", ""),
            ("", "remount,compress=zstd:3,compress-force=lzo,rw", "compress-force=lzo datacow"),
            ("compress=zstd:3", "compress-force=lzo,compress=no", "compress=no datacow"),
            ("", "compress=lzo,compress", "compress=zlib:3 datacow"),
            ("commit=7,compress=lzo", "thread_pool=3,nodatasum", "thread_pool=3 compress=lzo nodatasum"),
            ("compress=lzo", "nodatacow", "compress=no nodatacow"),
            ("nodatacow", "compress=lzo", "compress=lzo datacow"),
            ("nodatacow", "datacow", "compress=no nodatasum"),
            ("nodatacow", "datasum", "compress=no datacow"),
            ("compress=lzo", "datasum,datacow", "compress=lzo datacow"),
        ] {
            let present: Vec<String> = present.split(',').map(str::to_owned).collect();
            assert_eq!(of_data(options.split(','), &present).unwrap().join(" "), changed, "{present:?}, {options}");
            assert!(wanted(&format!("remount,{options}")).is_ok());
        }
    }

    #[test]
    fn what_can_not_be_changed_is_said() {
        for option in ["compress=lz4", "commit=5", "noatime", "memory=1G", "subvol=a", "nonsense", "loop"] {
            let said = wanted(&format!("rw,remount,{option}")).unwrap_err();
            assert!(said.contains(&format!("'{option}' can't be had by a remount: ")), "{said}");
        }
        assert!(wanted("remount,nonsense").unwrap_err().ends_with("there is no such option, or not in this form"));
        assert!(wanted("remount,nosymfollow").unwrap_err().contains("mount -i -o remount,bind,nosymfollow"));
    }
}
