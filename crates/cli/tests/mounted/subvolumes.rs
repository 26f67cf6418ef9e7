//! Tests with subvolumes of a mount: by the command, by the ioctls, and compared with the kernel.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use ubtrfs_damage::Image;
use ubtrfs_format::TreeId;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::NOBODY;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{FUSE, Volume, assert_same, fails, ubtrfs};
use crate::users_mount::UsersMount;

/// Calls the ioctls as other programs do, in the directory `argv[1]`, as root and as an ordinary
/// user, and prints the results.
const IOCTLS: &str = r"
import errno, fcntl, os, struct, sys
os.chdir(sys.argv[1])
def call(what, path, number, argument=None, shown=lambda a: ''):
    fd = os.open(path, os.O_RDONLY)
    a = bytearray(argument) if argument is not None else 0
    try: fcntl.ioctl(fd, number, a); print(what, 'ok', shown(a))
    except OSError as e: print(what, errno.errorcode[e.errno])
    os.close(fd)
def v1(name, fd=-1): return struct.pack('<q', fd) + name.ljust(4088, b'\0')
def v2(name, fd=-1, flags=0): return struct.pack('<q6Q', fd, 0, flags, 0, 0, 0, 0) + name.ljust(4040, b'\0')
def snap(source, to, name, flags=0, number=0x50009417, who=''):
    fd = os.open(source, os.O_RDONLY)
    call(f'{who} snapshot of {source} as {to}/{name}', to, number, v2(name, fd, flags) if number == 0x50009417 else v1(name, fd))
    os.close(fd)
text = lambda b: bytes(b).split(b'\0')[0].decode()
def info(path):
    call(f'info of {path}', path, 0x81f8943c, bytes(504),
         lambda a: (struct.unpack_from('<Q', a), text(a[8:264]), struct.unpack_from('<2Q', a, 264), struct.unpack_from('<Q', a, 288), any(a[312:328])))
def refs(path, least=0):
    call(f'children of {path} from {least}', path, 0xd000943d, struct.pack('<Q', least).ljust(4096, b'\0'),
         lambda a: (struct.unpack_from('<Q', a), [struct.unpack_from('<2Q', a, 8 + 16 * n) for n in range(a[4088])]))
def lookup(path, tree, ino):
    call(f'path of {ino} in {tree} by {path}', path, 0xd0009412, struct.pack('<2Q', tree, ino).ljust(4096, b'\0'),
         lambda a: (struct.unpack_from('<2Q', a), text(a[16:])))
def lookup_user(path, directory, tree):
    call(f'path of {tree} in {directory} by {path}', path, 0xd000943e, struct.pack('<2Q', directory, tree).ljust(4096, b'\0'),
         lambda a: (text(a[16:272]), text(a[272:])))
def flags(path): call(f'flags of {path}', path, 0x80089419, bytes(8), lambda a: struct.unpack('<Q', a))
def set_flags(path, value): call(f'flags of {path} to {value}', path, 0x4008941a, struct.pack('<Q', value))
def default(path, id): call(f'default {id}', path, 0x40089413, struct.pack('<Q', id))
def all(who):
    print(who)
    for name in [b'one', b'one', b'.', b'..', b'', b'a/b', b'x' * 255, b'x' * 256]:
        call(f'create {name[:9]}', '.', 0x5000940e, v1(name))
    call('create 2', '.', 0x50009418, v2(b'two'))
    call('create read-only', '.', 0x50009418, v2(b'ro', flags=2))
    call('create with odd flags', '.', 0x50009418, v2(b'odd', flags=1 << 20))
    call('create in a file', 'file', 0x50009418, v2(b'odd'))
    call('create in others', 'others', 0x50009418, v2(b'odd'))
    os.makedirs('one/d/e', exist_ok=True)
    call('create below', 'one/d/e', 0x50009418, v2(b'inner'))
    os.sync()
    snap('one', '.', b'copy'); snap('one', '.', b'copy1', number=0x50009401); snap('one', '.', b'copyro', 2); snap('one', '.', b'copy')
    snap('one/d', '.', b'odd'); snap('file', '.', b'odd'); snap('others', '.', b'odd'); snap('/proc', '.', b'odd'); snap('.', '.', b'whole')
    call('snapshot of nothing', '.', 0x50009417, v2(b'odd', 999)); call('snapshot of -1', '.', 0x50009417, v2(b'odd', -1))
    for path in ['one', 'one/d', 'ro', 'file', 'copyro', 'others']: flags(path); info(path)
    for value in [2, 2, 0, 1, 1 << 40]: set_flags('two', value)
    set_flags('one/d', 2); set_flags('others', 2); flags('others')
    for path in ['.', 'one', 'one/d', 'two']: refs(path)
    refs('.', 258); refs('.', 1 << 50)
    for place in [('.', 0, 256), ('one', 0, 256), ('.', 257, 256), ('.', 5, 256), ('one', 0, 258), ('.', 999, 300), ('one', 0, 99999)]: lookup(*place)
    default('.', 999999); default('.', 256); default('.', 0)
    for number, size in [(0x9408, None), (0x40089416, 8)]: call(f'sync {number:x}', '.', number, None if size is None else bytes(size))
    call('wait', '.', 0x40089416, struct.pack('<Q', 1 << 40))
    call('start', '.', 0x80089418, bytes(8), lambda a: struct.unpack('<Q', a)[0] > 0)
    for name in [b'file', b'none', b'one', b'.', b'a/b', b'']: call(f'delete {name}', '.', 0x5000940f, v1(name))
    for name in [b'copy', b'copy1', b'two', b'ro']: call(f'delete {name}', '.', 0x5000943f, v2(name))
    call('delete with odd flags', '.', 0x5000943f, v2(b'two', flags=2))
    by_id = lambda id: v2(struct.pack('<Q', id), flags=16)
    for id in [5, 100, 99999]: call(f'delete {id}', '.', 0x5000943f, by_id(id))
    call('inner', 'one/d/e', 0x5000943f, v2(b'inner')); call('outer', '.', 0x5000943f, v2(b'one'))
    print(sorted(os.listdir('.')))
call('', '.', 0x5000940e, v1(b'others'))
open('file', 'w').close()
os.mkdir('way'); os.mkdir('way/closed', 0o700); os.mkdir('way/open')
for place in ['way/closed', 'way/open']: call(place, place, 0x5000940e, v1(b'sub'))
os.mkdir('users'); os.chown('users', 65534, 65534); os.chmod('.', 0o755)
os.sync()
stat = lambda path: os.stat(path).st_ino
def users():
    for path, place in [('.', 'way/closed'), ('.', 'way/open'), ('way', 'way/open'), ('way/open', 'way/open'), ('users', 'way/open'), ('.', 'users')]:
        for id in [257, 258, 999]: lookup_user(path, stat(place), id)
users()
os.mkdir('roots'); open('roots/file', 'w').close()
def within(place, who):
    os.chdir(place)
    if not os.path.exists('file'): open('file', 'w').close()
    all(who)
    os.chdir('..')
call('', 'roots', 0x5000940e, v1(b'others'))
call('', 'users', 0x5000940e, v1(b'others'))
os.sync()
within('roots', 'root')
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
users()
within('users', 'user')
";

/// Runs `ubtrfs subvolume` in a directory.
fn subvolume(dir: &Path, arguments: &[&str]) -> Outcome {
    run(Command::new(env!("CARGO_BIN_EXE_ubtrfs")).arg("subvolume").args(arguments).current_dir(dir))
}

/// Returns the listing of a mount, of ubtrfs or of the kernel, with all columns.
fn listing(dir: &Path) -> String {
    run(command("btrfs", &["subvolume", "list", "-pcuqR"]).arg(dir)).ok().stdout
}

/// The actions of an ordinary user of root's mount. `$1` is ubtrfs.
const USER: &str = r#"
    set -e
    umask 027
    "$1" subvolume create mine
    test "$(stat -c %a:%u mine)" = 750:$(id -u)
    echo content > mine/file
    "$1" subvolume snapshot mine copy
    test "$(cat copy/file)" = content
    "$1" property set copy ro true
    if "$1" subvolume snapshot others stolen; then exit 1; fi
    if "$1" subvolume create others/inside; then exit 1; fi
    if "$1" property set others ro true; then exit 1; fi
    if "$1" subvolume set-default mine; then exit 1; fi
    if "$1" subvolume list .; then exit 1; fi
    "$1" property get others
    if "$1" subvolume delete others; then exit 1; fi
    "$1" subvolume delete mine && echo deleted
"#;

/// `$1` is ubtrfs, `$2` the mount point.
const OWN_IMAGE: &str = r#"
    set -e
    cd "$2"
    "$1" subvolume create tree
    echo one > tree/file
    "$1" subvolume snapshot -r tree before
    echo two > tree/file
    test "$(cat before/file)" = one
    "$1" subvolume list .
    "$1" subvolume set-default tree
    "$1" subvolume set-default 5 .
    "$1" subvolume delete -c tree
    test ! -e tree
    "$1" subvolume sync .
"#;

#[test]
fn the_kernel_sees_what_was_made_here() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let point = &volume.point;
    // The kernel drops the negative entries that it has cached.
    assert!(!point.join("a").exists() && fs::read_dir(point).unwrap().count() == 0);
    subvolume(point, &["create", "a", "a/inner"]).ok();
    assert!(point.join("a").is_dir() && fs::read_dir(point).unwrap().count() == 1);
    fs::write(point.join("a/file"), "content").unwrap();
    fs::create_dir(point.join("dir")).unwrap();
    subvolume(point, &["snapshot", "-r", "a", "read-only"]).ok();
    fs::write(point.join("a/file"), "changed").unwrap();
    subvolume(point, &["snapshot", "a", "dir"]).ok();
    for (path, content) in [("read-only/file", "content"), ("dir/a/file", "changed"), ("a/file", "changed")] {
        assert_eq!(fs::read_to_string(point.join(path)).unwrap(), content, "{path}");
    }
    assert!(fs::write(point.join("read-only/file"), "x").is_err());
    subvolume(point, &["create", "gone"]).ok();
    let open = File::open(point.join("gone")).unwrap();
    subvolume(point, &["delete", "gone"]).ok();
    assert!(
        !point.join("gone").exists() && !fs::read_dir(point).unwrap().any(|entry| entry.unwrap().file_name() == "gone")
    );
    drop(open);
    fails(&subvolume(point, &["delete", "a"]), "there are other subvolumes in it");
    fails(&subvolume(point, &["delete", "dir"]), "is not a subvolume");
    fails(&subvolume(point, &["create", "dir"]), "File exists");
    let ours = subvolume(point, &["list", "-pcuqR", "."]).ok().stdout;
    let shown = subvolume(point, &["show", "a"]).ok().stdout;
    let table = subvolume(point, &["list", "-t", "-u", "-q", "-s", "."]).ok().stdout;
    subvolume(point, &["sync", "."]).ok();
    assert_eq!(volume.stats()["subvolumes_deleted_left"], 0);
    volume.umount();
    volume.check();
    let kernel = KernelMount::new(&[&volume.image], "");
    assert_eq!(ours, listing(kernel.path()));
    let theirs = |arguments: &[&str]| {
        run(command("btrfs", &[&["subvolume"], arguments].concat()).current_dir(kernel.path())).ok().stdout
    };
    assert_eq!(table, theirs(&["list", "-t", "-u", "-q", "-s", "."]));
    // btrfs(8) shows the creation time as the time of a send that never happened.
    let is_shown = |line: &&str| !line.starts_with("\tSend time:");
    assert!(shown.lines().filter(is_shown).eq(theirs(&["show", "a"]).lines().filter(is_shown)), "{shown}");
    // Our command works on the kernel's mount by the same ioctls.
    assert_eq!(subvolume(kernel.path(), &["list", "-pcuqR", "."]).ok().stdout, ours);
    subvolume(kernel.path(), &["delete", "-C", "dir/a"]).ok();
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    volume.check();
}

/// A snapshot contains pages that mappings have dirtied, though only the kernel has them.
#[test]
fn a_snapshot_has_what_was_written_before() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let point = &volume.point;
    subvolume(point, &["create", "a"]).ok();
    for round in 0..20 {
        let content = vec![round; 300_000];
        fs::write(point.join("a/file"), &content).unwrap();
        subvolume(point, &["snapshot", "a", &format!("s{round}")]).ok();
        assert!(fs::read(point.join(format!("s{round}/file"))).unwrap() == content, "{round}");
    }
    let names: Vec<_> = (0..20).map(|round| format!("s{round}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    subvolume(point, &[&["delete"], &names[..]].concat()).ok();
    subvolume(point, &["sync", "."]).ok();
    volume.umount();
    volume.check();
}

#[test]
fn a_damaged_block_of_a_deleted_subvolume_costs_its_space_alone_and_nobody_waits_for_that() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let point = &volume.point;
    subvolume(point, &["create", "a", "b"]).ok();
    for number in 0..300 {
        fs::write(point.join(format!("a/{number:0200}")), "content").unwrap();
    }
    volume.umount();
    let damaged = Image::open(&volume.image);
    let leaves = damaged.leaves(TreeId(256));
    let leaf = leaves[leaves.len() / 2];
    damaged.flip_all(leaf.plus(300));
    volume.mount("");
    subvolume(point, &["delete", "-c", "a", "b"]).ok();
    fails(&subvolume(point, &["sync", "."]), "of the deleted subvolumes 256, tree blocks can't be read");
    subvolume(point, &["sync", ".", "257"]).ok();
    fs::write(point.join("file"), "content").unwrap();
    ubtrfs(&["sync".as_ref(), point.as_os_str()]).ok();
    let stats = volume.stats();
    assert_eq!((&stats["subvolumes_deleted_left"], &stats["subvolumes_undropped"]), (&1.into(), &1.into()), "{stats}");
    assert_eq!(stats["last_errors"][0]["step"], "dropping the deleted subvolume 256", "{stats}");
    volume.umount();
    let sync = || ubtrfs(&["subvolume".as_ref(), "sync".as_ref(), volume.image.as_os_str()]);
    fails(&sync(), "of the deleted subvolumes 256, tree blocks can't be read");
    // Once the data can be read again, the next mount drops the subvolume.
    damaged.flip_all(leaf.plus(300));
    sync().ok();
    volume.check();
}

#[test]
fn ordinary_users_may_what_the_kernel_lets_them() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"));
    for (options, may_delete) in [("", false), ("user_subvol_rm_allowed", true)] {
        let volume = Volume::new();
        volume.mount(options);
        fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::set_permissions(&volume.point, PermissionsExt::from_mode(0o777)).unwrap();
        subvolume(&volume.point, &["create", "others"]).ok();
        let program = volume.dir.path().join("ubtrfs");
        fs::copy(env!("CARGO_BIN_EXE_ubtrfs"), &program).unwrap();
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        let mut line = command("setpriv", &[&ids[0], &ids[1], "--clear-groups", "sh", "-c", USER, "sh"]);
        let outcome = run(line.arg(&program).current_dir(&volume.point));
        assert!(outcome.stdout.contains("ro=false\n"), "{}", outcome.report());
        assert_eq!(outcome.success(), may_delete, "{}", outcome.report());
        assert_eq!(volume.point.join("mine").exists(), !may_delete);
        assert_eq!(volume.point.join("others").metadata().unwrap().uid(), 0);
        volume.umount();
        volume.check();
    }
}

#[test]
fn an_ordinary_user_does_everything_on_an_own_image() {
    require!(Need::Root, FUSE, Need::Tool("fusermount3"));
    let volume = Volume::without_image();
    ubtrfs(&[
        "mkfs".as_ref(),
        "--size".as_ref(),
        "256M".as_ref(),
        "--root-owner".as_ref(),
        format!("{NOBODY}:{NOBODY}").as_ref(),
        volume.image.as_os_str(),
    ])
    .ok();
    let mount = UsersMount::new(&volume, "");
    let listed = mount.as_user(OWN_IMAGE, &volume).ok().stdout;
    assert!(listed.contains(" path tree\n") && listed.contains(" path before\n"), "{listed}");
    mount.as_user(r#""$1" umount "$2""#, &volume).ok();
    mount.server.ended();
    volume.check();
    let list =
        ubtrfs(&["subvolume".as_ref(), "list".as_ref(), "--json".as_ref(), volume.image.as_os_str()]).ok().stdout;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list[0]["path"], &list[0]["read_only"], &list[1]), (&"before".into(), &true.into(), &Value::Null));
}

/// The operations of btrfs(8) that do not check the type of the mount first.
#[test]
fn the_other_tools_work_as_far_as_they_do_not_look_at_the_type() {
    require!(Need::Root, FUSE, Need::Tool("btrfs"));
    let volume = Volume::new();
    volume.mount("");
    subvolume(&volume.point, &["create", "a"]).ok();
    let btrfs = |arguments: &[&str]| run(command("btrfs", arguments).current_dir(&volume.point));
    btrfs(&["subvolume", "set-default", "256", "."]).ok();
    assert!(subvolume(&volume.point, &["get-default", "."]).ok().stdout.starts_with("ID 256 "));
    btrfs(&["filesystem", "sync", "."]).ok();
    for refused in [&["create", "b"][..], &["list", "."], &["snapshot", "a", "b"], &["delete", "a"], &["show", "a"]] {
        let outcome = btrfs(&[&["subvolume"], refused].concat());
        assert!(!outcome.success() && outcome.stderr.to_lowercase().contains("not a btrfs"), "{}", outcome.report());
    }
    volume.umount();
    volume.check();
}

/// All subvolumes are made, deleted and committed, and failures count, if the output is closed.
#[test]
fn a_closed_output_ends_no_work_on_a_mount() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("commit=300");
    let closed = |words: &[&str]| {
        let (_, writer) = std::io::pipe().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        command.arg("subvolume").args(words).current_dir(&volume.point).stdout(writer).output().unwrap().status.code()
    };
    assert_eq!(closed(&["create", "a", "b", "c", "kept"]), Some(0));
    run(Command::new("sync").arg("-f").arg(&volume.point)).ok();
    assert_eq!(closed(&["delete", "-C", "none", "a", "b", "c"]), Some(1));
    let server = volume.server();
    server.signal("KILL");
    server.ended();
    run(Command::new("umount").arg("-l").arg(&volume.point)).ok();
    let listed = ubtrfs(&["ls".as_ref(), volume.image.as_os_str(), "/".as_ref()]).ok().stdout;
    assert_eq!(listed, "kept\n");
}

/// Other programs get the same results from the ioctls as from the kernel's btrfs.
#[test]
fn ioctls_answer_as_the_kernels() {
    let tour = |point: &Path| -> Vec<String> {
        let outcome = run(command("python3", &["-c", IOCTLS]).arg(point)).ok();
        outcome.stdout.lines().map(str::to_owned).collect()
    };
    require!(Need::Kernel, FUSE, Need::Tool("python3"));
    for options in ["", "user_subvol_rm_allowed"] {
        let volume = Volume::new();
        // The tour continues as an ordinary user, who must be able to enter the directory.
        fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        volume.mount(options);
        let ours = tour(&volume.point);
        volume.umount();
        volume.check();
        assert_same(&ours, &volume.tour_of_kernels(options, |_| (), tour));
    }
}
