//! The program as a helper of mount(8). For the types `ubtrfs` and `fuse.ubtrfs` mount(8) calls
//! `mount.ubtrfs SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE.SUBTYPE]`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use super::option_table::find;
use super::options::each;
use super::remount;
use super::request::MountRequest;
use crate::args;
use crate::failure::{Failure, Result};

/// Exit statuses that mount(8) knows: wrong usage, and a failed mount.
const WRONG_CALL: u8 = 1;
const NOT_MOUNTED: u8 = 32;

/// What mount(8) calls a helper with.
#[derive(Debug, Parser)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
#[command(name = "mount.ubtrfs", version, about = "Mounts a btrfs volume in user space, for mount(8).")]
struct Arguments {
    /// Ignore unknown options.
    #[arg(short)]
    sloppy: bool,
    /// Only check whether the options are valid.
    #[arg(short)]
    fake: bool,
    /// Accepted: there is no mtab to update.
    #[arg(short)]
    no_mtab: bool,
    /// Print the device and the directory.
    #[arg(short)]
    verbose: bool,
    /// Mount read-only, the same as `-o ro`. This is for users; mount(8) passes `-o ro`.
    #[arg(short, overrides_with = "writable")]
    read_only: bool,
    /// Mount for reading and writing, the same as `-o rw`.
    #[arg(short = 'w')]
    writable: bool,
    /// Refused: the mount namespace to mount in.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<OsString>,
    /// Options, separated by commas.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignored: the type of the file system.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// The device or image to mount.
    spec: PathBuf,
    /// The directory to mount on.
    directory: PathBuf,
}

/// Whether the program was called as a helper.
pub fn is_called(name: Option<&OsString>) -> bool {
    let name = name.and_then(|name| Path::new(name).file_name()).and_then(|name| name.to_str());
    name.is_some_and(|name| matches!(name, "mount.ubtrfs" | "mount.fuse.ubtrfs" | "mount.fuseblk.ubtrfs"))
}

/// Returns the command line of this program, for its manual page.
pub fn command_line() -> clap::Command {
    Arguments::command()
}

/// Runs the program as a helper.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { WRONG_CALL.into() } else { ExitCode::SUCCESS };
        }
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.with_status(NOT_MOUNTED).report().into(),
    }
}

fn run(mut arguments: Arguments) -> Result<()> {
    if arguments.namespace.is_some() {
        return Err(Failure::new("mounting in another namespace is not possible: use nsenter(1)"));
    }
    // Inserted at the front, so that the options take precedence.
    if arguments.read_only {
        arguments.options.insert(0, "ro".into());
    } else if arguments.writable {
        arguments.options.insert(0, "rw".into());
    }
    let is_remount = remount::is_wanted(&arguments.options);
    if arguments.sloppy && !is_remount {
        arguments.options = vec![known(&arguments.options).join(",")];
    }
    if arguments.fake {
        if is_remount {
            return remount::Changes::of(&arguments.options, &arguments.directory).map(drop);
        }
        return MountRequest::parse(&arguments.options).map(|_| ());
    }
    if arguments.verbose {
        let _ =
            writeln!(io::stdout(), "mount.ubtrfs: {} on {}", arguments.spec.display(), arguments.directory.display());
    }
    super::run(&args::Mount {
        options: arguments.options,
        foreground: false,
        discard_device: Vec::new(),
        server: false,
        tied_to: None,
        watcher: false,
        places: vec![arguments.spec, arguments.directory],
    })
}

/// Returns the options that are in the table.
fn known(lists: &[String]) -> Vec<&str> {
    each(lists).filter(|option| find(option).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_called_as_mount_calls_it() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap();
        let arguments = parse("mount.ubtrfs /image /mnt -sfnv -o rw,noatime -t fuse.ubtrfs");
        assert!(arguments.sloppy && arguments.fake && arguments.no_mtab && arguments.verbose);
        assert_eq!(arguments.options, ["rw,noatime"]);
        assert_eq!(arguments.kind.as_deref(), Some("fuse.ubtrfs"));
        let arguments = parse("mount.ubtrfs -r /image /mnt");
        assert!(arguments.read_only && !arguments.writable);
        let arguments = parse("mount.ubtrfs /image /mnt -rw");
        assert!(!arguments.read_only && arguments.writable, "the last one holds");
        assert!(parse("mount.ubtrfs -N 7 /image /mnt").namespace.is_some());
        for (name, is) in [("/sbin/mount.ubtrfs", true), ("mount.fuse.ubtrfs", true), ("/usr/bin/ubtrfs", false)] {
            assert_eq!(is_called(Some(&name.into())), is, "{name}");
        }
    }

    #[test]
    fn sloppy_ignores_only_unknown_options() {
        assert_eq!(
            known(&["ro,foo,compress=zstd,bar=1,nofail,subvol=a".into()]),
            ["ro", "compress=zstd", "nofail", "subvol=a"]
        );
    }
}
