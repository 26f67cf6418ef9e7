//! What a user does who is not root.

use std::path::Path;
use std::process::Command;

use crate::run::command;

/// The user `nobody`, and its group.
pub const NOBODY: u32 = 65534;

/// Lets everybody have `/dev/fuse`. `$1` is where a node may be made; the rest is what to run then.
const OPEN_FUSE: &str = r#"
    set -e
    cp -a /dev/fuse "$1"
    chmod 666 "$1"
    mount --bind "$1" /dev/fuse
    shift
    exec "$@"
"#;

/// A shell that does what `script` says as [`NOBODY`], without other groups. It is in a mount
/// namespace of its own, where everybody may have `/dev/fuse`, which some machines keep for root: a
/// node of it is made in `dir`. Arguments that are added are the script's.
pub fn shell(dir: &Path, script: &str) -> Command {
    let mut line = command("unshare", &["--mount", "--propagation", "private", "sh", "-c", OPEN_FUSE, "sh"]);
    line.arg(dir.join("fuse"));
    line.args(["setpriv", &format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
    line.args(["sh", "-c", script, "sh"]);
    line
}
