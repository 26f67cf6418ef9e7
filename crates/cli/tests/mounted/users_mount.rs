//! A mount by an ordinary user, in a mount namespace of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;
use ubtrfs_testkit::ordinary_user::{NOBODY, lend, shell};
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{Abort, Server, TRANSPORT, Volume};

/// `$1` is ubtrfs, `$2` the options, `$3` the image, `$4` the mount point, whose root the user may
/// read, or the directory `dir` in it. Prints the server's pid and the mount's device number.
const MOUNT: &str = r#"
    set -e
    "$1" mount -o "$2" "$3" "$4"
    { "$1" stats --json "$4" 2>/dev/null || "$1" stats --json "$4/dir"; } | tr -d '\n'
    echo
    mountpoint -d "$4"
"#;

/// The mount. Its connection is aborted when this is dropped.
pub struct UsersMount {
    pub server: Server,
    pub program: PathBuf,
    abort: Abort,
}

impl UsersMount {
    /// Mounts a volume as a user other than root.
    #[track_caller]
    pub fn new(volume: &Volume, options: &str) -> Self {
        let program = lend(volume.dir.path(), env!("CARGO_BIN_EXE_ubtrfs").as_ref(), &[&volume.image, &volume.point]);
        let mut line = shell(volume.dir.path(), MOUNT);
        line.arg(&program).arg(format!("{TRANSPORT},{options}")).args([&volume.image, &volume.point]);
        let said = run(&mut line).ok().stdout;
        let [stats, device] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
        let stats: Value = serde_json::from_str(stats).unwrap();
        let server = Server(i32::try_from(stats["pid"].as_u64().unwrap()).unwrap());
        let (_, number) = device.split_once(':').unwrap();
        Self { server, program, abort: Abort::of_connection(number) }
    }

    /// Makes a new volume whose root directory all users may access, and mounts it as that user.
    pub fn of_new_volume(options: &str) -> (Volume, Self) {
        let volume = Volume::new();
        volume.mount("");
        fs::set_permissions(&volume.point, PermissionsExt::from_mode(0o777)).unwrap();
        volume.umount();
        let mount = Self::new(&volume, options);
        (volume, mount)
    }

    /// Runs a script as the user in that namespace. `$1` is ubtrfs, `$2` the mount point, `$3` the
    /// directory above it.
    pub fn as_user(&self, script: &str, volume: &Volume) -> Outcome {
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        self.within(&["setpriv", &ids[0], &ids[1], "--clear-groups", "sh", "-c", script, "sh"], volume)
    }

    /// Runs a command as root in that namespace, with the same arguments after it.
    pub fn within(&self, line: &[&str], volume: &Volume) -> Outcome {
        let mut within = command("nsenter", &["--mount", "--target", &self.server.0.to_string(), "--"]);
        run(within.args(line).arg(&self.program).arg(&volume.point).arg(volume.dir.path()))
    }
}

impl Drop for UsersMount {
    fn drop(&mut self) {
        self.abort.abort();
    }
}
