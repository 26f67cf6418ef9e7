//! Tests of ACLs of whole trees, and of idmapped mounts.

use std::fmt::Write;
use std::path::Path;

use ubtrfs_random::Rng;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::FUSE;
use crate::run::{Outcomes, compare};

/// Returns a script that makes, lists and changes files with ACLs, as several users.
fn script(seed: u64) -> String {
    const PLACES: [&str; 7] = [".", "d1", "d2", "d1/e", "f1", "d1/f2", "d1/e/f3"];
    const DIRS: [&str; 4] = [".", "d1", "d2", "d1/e"];
    const RIGHTS: [&str; 6] = ["rwx", "r-x", "rw-", "r--", "---", "-wx"];
    let mut rng = Rng::new(seed);
    let mut script = String::from("mkdir -p d1/e d2; touch f1 d1/f2 d1/e/f3\n");
    for step in 0..60 {
        let (place, dir, rights) = (*rng.pick(&PLACES), *rng.pick(&DIRS), *rng.pick(&RIGHTS));
        let user = 1000 + rng.below(4);
        let mode = rng.below(0o10000);
        let act = match rng.below(14) {
            0 => format!("setfacl -m u:{user}:{rights} {place}"),
            1 => format!("setfacl -m g:{user}:{rights} {place}"),
            2 => format!("setfacl -m m::{rights} {place}"),
            3 => format!("setfacl -d -m u:{user}:{rights},g::{rights} {dir}"),
            4 => format!("setfacl -x u:{user} {place}"),
            5 => format!("setfacl {} {place}", rng.pick(&["-b", "-k"])),
            6 => format!("setfacl -R -m u:{user}:{rights} {dir}"),
            7 => format!("chmod {mode:o} {place}"),
            8 => format!("chmod g={} {place}", rng.pick(&["rwx", "r", "x", ""])),
            9 => format!("umask {:03o}; touch {dir}/n{step}", rng.below(0o1000)),
            10 => format!("umask {:03o}; mkdir {dir}/m{step}", rng.below(0o1000)),
            11 => format!("chown {user}:{} {place}", 1000 + rng.below(4)),
            12 => format!("cp -a {place} {dir}/c{step} 2>&1 | wc -l"),
            _ => format!("mv -n d1/f2 d2/f2; setfacl --set u::{rights},g::r,o::-,u:{user}:{rights},m::rwx {place}"),
        };
        let who = *rng.pick(&[
            "",
            "",
            "setpriv --reuid=1000 --regid=1000 --groups=1001 ",
            "setpriv --reuid=1002 --regid=1002 --clear-groups ",
        ]);
        let _ = writeln!(script, "{who}sh -c '{act}' > /dev/null 2>&1; echo {step} $?");
    }
    script.push_str("getfacl -R -n . 2>/dev/null; find . -printf '%p %m %U %G %y\\n' | sort\n");
    script
}

fn trees(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for seed in 0..25 {
        let dir = root.join(seed.to_string());
        std::fs::create_dir(&dir).unwrap();
        let outcome = run(command("sh", &["-c", &script(seed)]).current_dir(&dir).env("LC_ALL", "C"));
        for (number, line) in outcome.stdout.lines().enumerate() {
            // getfacl lists files in the order of the directory.
            outcomes.insert(format!("seed {seed} / line {number:05}"), line.to_owned());
        }
        outcomes.insert(format!("seed {seed} / errors"), outcome.stderr);
    }
    outcomes
}

#[test]
fn lists_of_trees_are_as_the_kernels() {
    require!(Need::Kernel, FUSE, Need::Tool("setfacl"), Need::Tool("setpriv"));
    compare(("", ""), trees, &[]);
}

/// Mounts `root` a second time, with ids 1000 to 1009 shown as 2000 to 2009, and returns the
/// results on both mounts.
fn idmapped(root: &Path) -> Outcomes {
    let script = r#"
import ctypes, os, subprocess, sys, time
root = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
os.mkdir(root + "/shared"); os.chown(root + "/shared", 1002, 1002); os.chmod(root + "/shared", 0o2777)
open(root + "/shared/theirs", "w").write("x"); os.chown(root + "/shared/theirs", 1001, 1001)
os.mkdir(root + "/target")
# A user namespace with the mapping, kept by a process that waits.
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    libc.unshare(0x10000000); os.write(writer, b"x")
    time.sleep(60); os._exit(0)
os.read(reader, 1)
for name in "uid_map", "gid_map":
    open(f"/proc/{pid}/{name}", "w").write("1000 2000 10\n")
namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
tree = call(OPEN_TREE, -100, (root + "/shared").encode(), 1 | 0o2000000)
class Attr(ctypes.Structure):
    _fields_ = [("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64), ("userns", ctypes.c_uint64)]
attr = Attr(0x00100000, 0, 0, namespace)
try:
    call(MOUNT_SETATTR, tree, b"", 0x1000, ctypes.byref(attr), 32)
    print("idmapped: yes")
except OSError as error:
    print("idmapped:", error); os.kill(pid, 9); sys.exit()
call(MOVE_MOUNT, tree, b"", -100, (root + "/target").encode(), 4)
mapped = root + "/target/"
def shown(path):
    try:
        seen = os.lstat(path); return f"{seen.st_mode:o} {seen.st_uid}:{seen.st_gid}"
    except OSError as error: return str(error.errno)
def tried(name, what, *args):
    try: result = what(*args)
    except OSError as error: result = f"error {error.errno}"
    print(name, result, flush=True)
def as_user(user, what):
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
        what(); os._exit(0)
    os.waitpid(child, 0)
def user_acts():
    tried("create", lambda: open(mapped + "made", "w").write("y"))
    tried("mkdir", os.mkdir, mapped + "dir")
    tried("symlink", os.symlink, "x", mapped + "link")
    tried("chmod own", os.chmod, mapped + "made", 0o640)
    tried("chown own", os.chown, mapped + "made", 2003, -1)
    tried("read others'", lambda: open(mapped + "theirs").read())
    tried("write others'", lambda: open(mapped + "theirs", "a").write("z"))
    tried("rename", os.rename, mapped + "link", mapped + "renamed")
    tried("tmpfile", lambda: os.fstat(os.open(mapped, os.O_TMPFILE | os.O_RDWR, 0o600)).st_uid)
    tried("setfacl", lambda: subprocess.run(["setfacl", "-m", "u:2005:rw", mapped + "made"]).returncode)
def unmapped_acts():
    tried("unmapped create", lambda: open(mapped + "unmapped", "w").write("y"))
    tried("unmapped mkdir", os.mkdir, mapped + "unmapped_dir")
    tried("unmapped read", lambda: open(mapped + "theirs").read())
as_user(2000, user_acts)
as_user(1000, unmapped_acts)
tried("root chown", os.chown, mapped + "theirs", 2004, 2004)
tried("root chown to unmapped", os.chown, mapped + "theirs", 5, 5)
tried("root create", lambda: open(mapped + "roots", "w").write("y"))
for name in "theirs", "made", "dir", "renamed", "roots", "unmapped", "unmapped_dir":
    print(name, shown(root + "/shared/" + name), shown(mapped + name))
print(subprocess.run(["getfacl", "-n", "-c", root + "/shared/made"], capture_output=True, text=True).stdout)
print(subprocess.run(["getfacl", "-n", "-c", mapped + "made"], capture_output=True, text=True).stdout)
os.close(tree); subprocess.run(["umount", root + "/target"]); os.kill(pid, 9)
"#;
    let outcome = run(command("python3", &["-c", script]).arg(root));
    let lines = outcome.stdout.lines().chain(outcome.stderr.lines());
    lines.enumerate().map(|(number, line)| (format!("line {number:03}"), line.to_owned())).collect()
}

#[test]
fn idmapped_mounts_are_as_the_kernels() {
    require!(Need::Kernel, FUSE, Need::Tool("python3"), Need::Tool("setfacl"));
    compare(("dev,suid", ""), idmapped, &[]);
}
