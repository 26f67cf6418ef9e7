//! Actions of a user who is not root.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::command;

/// The user `nobody`, and its group.
pub const NOBODY: u32 = 65534;

/// The user `games` of every Debian, and its group, for a test that counts a user's processes, all
/// of which must be its own.
pub const GAMES: u32 = 5;

/// Gives every user access to `/dev/fuse`. `$1` is where a node may be made; the rest is the
/// command to run.
const OPEN_FUSE: &str = r#"
    set -e
    cp -a /dev/fuse "$1"
    chmod 666 "$1"
    mount --bind "$1" /dev/fuse
    shift
    exec "$@"
"#;

/// A new mount namespace has all existing mounts. Those of other tests must not stay in it, since
/// their servers could not end. `$1` is the directory of this test; the rest is the command to run.
const LEAVE_OTHERS: &str = r#"
    awk -v own="$1/" '$2 ~ "/ubtrfs-test-" && index($2, own) != 1 { print $2 }' /proc/self/mounts |
        xargs -r -n 1 umount -l 2>/dev/null
    shift
    exec "$@"
"#;

/// Returns a command that runs its further arguments in a mount namespace of its own. Of the mounts
/// of tests, only those in `dir` are there.
pub fn in_private_namespace(dir: &Path) -> Command {
    let mut line = command("unshare", &["--mount", "--propagation", "private", "sh", "-c", LEAVE_OTHERS, "sh"]);
    line.arg(dir);
    line
}

/// Mounts something else over `/dev/fuse`, and runs a command.
const HIDE_FUSE: &str = r#"
    set -e
    [ ! -e /dev/fuse ] || mount --bind /dev/null /dev/fuse
    exec "$@"
"#;

/// Returns a command that runs its further arguments as [`NOBODY`], without other groups and
/// without capabilities, where no FUSE mount is possible. Of the mounts of tests, only those in
/// `dir` are there.
pub fn without_fuse(dir: &Path) -> Command {
    let mut line = in_private_namespace(dir);
    line.args(["sh", "-c", HIDE_FUSE, "sh", "setpriv", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]);
    line.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
    line
}

/// Gives [`NOBODY`] a copy of a program, access to these paths (if they exist), and to their
/// directory.
pub fn lend(dir: &Path, program: &Path, paths: &[&Path]) -> PathBuf {
    let copy = dir.join("program");
    std::fs::copy(program, &copy).expect("a copy");
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).expect("the directory");
    for path in paths {
        let _ = chown(path, Some(NOBODY), Some(NOBODY));
    }
    copy
}

/// [`shell_of`] the user [`NOBODY`].
pub fn shell(dir: &Path, script: &str) -> Command {
    shell_of(NOBODY, dir, script)
}

/// Returns a shell that runs `script` as a user and its group, without other groups. It is in a
/// mount namespace of its own, in which every user has access to `/dev/fuse` (which some machines
/// reserve for root): a node of it is made in `dir`. Further arguments are those of the script.
pub fn shell_of(user: u32, dir: &Path, script: &str) -> Command {
    let mut line = in_private_namespace(dir);
    line.args(["sh", "-c", OPEN_FUSE, "sh"]).arg(dir.join("fuse"));
    line.args(["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
    line.args(["sh", "-c", script, "sh"]);
    line
}
