//! Compares with the kernel's btrfs what happens to subvolumes besides its ioctls: rmdir(2), what a
//! new subvolume inherits from its directory, and the records of one that was received.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, assert_same};

/// Works in the directory `argv[1]`, as root and as an ordinary user, and prints the results.
const TOUR: &str = r"
import errno, fcntl, os, stat, struct, sys
os.chdir(sys.argv[1])
def say(what, act):
    try: print(what, 'ok', act())
    except OSError as e: print(what, errno.errorcode[e.errno])
def ioctl(path, number, argument):
    fd = os.open(path, os.O_RDONLY)
    a = bytearray(argument)
    try: fcntl.ioctl(fd, number, a)
    finally: os.close(fd)
    return a
def create(path): ioctl(os.path.dirname(path) or '.', 0x5000940e, struct.pack('<q', -1) + os.path.basename(path).encode().ljust(4088, b'\0'))
def snapshot(source, name, flags=0):
    fd = os.open(source, os.O_RDONLY)
    try: ioctl('.', 0x50009417, struct.pack('<q6Q', fd, 0, flags, 0, 0, 0, 0) + name.encode().ljust(4040, b'\0'))
    finally: os.close(fd)
def set_flags(path, flags): ioctl(path, 0x4008941a, struct.pack('<Q', flags))
def default(id): ioctl('.', 0x40089413, struct.pack('<Q', id))
def tree(path): return struct.unpack_from('<Q', ioctl(path, 0xd0009412, struct.pack('<2Q', 0, 256).ljust(4096, b'\0')))[0]
def info(path):
    a = ioctl(path, 0x81f8943c, bytes(504))
    transids, times = struct.unpack_from('<4Q', a, 344), struct.unpack_from('<8Q', a, 376)
    return a[328:344].hex(), transids[2], transids[3] > 0, times[4:6], times[6] > 0
def received(path, byte, stransid=77):
    a = ioctl(path, 0xc0c89425, struct.pack('<16s2Q2Q', bytes([byte]) * 16, stransid, 0, 5, 6).ljust(200, b'\0'))
    return a[:16].hex(), struct.unpack_from('<Q', a, 16), struct.unpack_from('<Q', a, 24)[0] > 0, struct.unpack_from('<2Q', a, 32), struct.unpack_from('<Q', a, 48)[0] > 0
def looks(path):
    s = os.stat(path)
    flags = struct.unpack_from('<I', ioctl(path, 0x80086601, bytes(8)))[0]
    return oct(s.st_mode), s.st_uid, s.st_gid, hex(flags), {n: os.getxattr(path, n).hex() for n in sorted(os.listxattr(path))}
nobody = 0xffffffff
def acl(*entries): return struct.pack('<I', 2) + b''.join(struct.pack('<2HI', *entry) for entry in entries)
def removals(who):
    for name in ['empty', 'fixed', 'full', 'outer', 'below']: create(name)
    create('outer/inner'); open('full/file', 'w').close(); os.mkdir('below/dir'); os.mkdir('plain')
    set_flags('fixed', 2)
    gone = os.open('empty', os.O_RDONLY)
    for name in ['empty', 'empty', 'fixed', 'full', 'outer', 'outer/inner', 'outer', 'below', 'others', 'closed/theirs', 'sticky/theirs']:
        say(f'{who} rmdir {name}', lambda: os.rmdir(name))
    say('unlink', lambda: os.unlink('full'))
    say('rename over', lambda: (create('over'), os.rename('plain', 'over')))
    os.close(gone)
    os.unlink('full/file'); say('rmdir full', lambda: os.rmdir('full'))
    snapshot('over', 'copy', 2); say('snapshot', lambda: os.rmdir('copy'))
    print(sorted(os.listdir('.')))
def newcomers(who):
    os.mkdir('acl'); os.setxattr('acl', 'system.posix_acl_default', acl((1, 7, nobody), (2, 7, 65534), (4, 5, nobody), (16, 7, nobody), (32, 0, nobody)))
    os.mkdir('small'); os.setxattr('small', 'system.posix_acl_default', acl((1, 6, nobody), (4, 4, nobody), (32, 4, nobody)))
    os.mkdir('setgid'); os.chmod('setgid', 0o2777)
    for mask in [0, 0o022, 0o077]:
        os.umask(mask)
        for dir in ['.', 'acl', 'small', 'setgid', '../packed', '../inside', '../inside/dir']:
            path = f'{dir}/{who}{mask}'
            create(path)
            say(f'{who} {path}', lambda: looks(path))
    os.umask(0o022)
def receipts(who):
    for name in ['got', 'again', 'ro']: create(name)
    os.mkdir('got/dir'); set_flags('ro', 2)
    for path, byte in [('got', 1), ('got', 2), ('got', 2), ('again', 2), ('got/dir', 3), ('ro', 3), ('others', 3), ('file', 3), ('again', 0)]:
        say(f'{who} received {path} {byte}', lambda: received(path, byte))
        if os.path.isdir(path): say('info', lambda: info(path))
    set_flags('got', 2)
    snapshot('got', 'got-ro', 2); snapshot('got', 'got-rw')
    for path in ['got', 'got-ro', 'got-rw']: say(path, lambda: info(path))
def prepare(place, user):
    os.mkdir(place); os.chdir(place); open('file', 'w').close()
    for dir, mode in [('closed', 0o755), ('sticky', 0o1777)]:
        os.mkdir(dir); os.chmod(dir, mode); create(f'{dir}/theirs')
    create('others')
    if user: os.chown('.', 65534, 65534)
    os.chdir('..')
def all(place):
    os.chdir(place); removals(place); newcomers(place); receipts(place); os.chdir('..')
os.umask(0o022); os.chmod('.', 0o755)
prepare('root', False); prepare('user', True)
create('chosen'); default(tree('chosen')); say('the default', lambda: os.rmdir('chosen')); default(5); say('no more', lambda: os.rmdir('chosen'))
all('root')
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
all('user')
";

/// Has the kernel make a directory and a subvolume whose files it compresses.
const PACKED: &str = r#"
    cd "$1"
    mkdir packed
    btrfs -q subvolume create inside
    mkdir inside/dir
    btrfs property set packed compression lzo
    btrfs property set inside compression zstd
    chmod 777 packed inside inside/dir
"#;

fn new_volume(image: &Path) {
    let kernel = KernelMount::new(&[image], "");
    run(command("sh", &["-ec", PACKED, "sh"]).arg(kernel.path())).ok();
    assert_eq!(kernel.unmount(), Vec::<String>::new());
}

/// Returns the subvolumes by the ids from which they were received, according to the UUID tree.
fn received(image: &Path) -> Vec<String> {
    let dump = run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "uuid"]).arg(image)).ok().stdout;
    let mut lists = Vec::new();
    let mut is_one = false;
    for line in dump.lines() {
        if let Some((_, key)) = line.split_once(" key ") {
            is_one = line.contains("RECEIVED");
            if is_one {
                lists.push(key.split(" itemoff").next().unwrap().to_owned());
            }
        } else if is_one && line.contains("subvol_id") {
            lists.push(line.trim().to_owned());
        }
    }
    lists
}

#[test]
fn as_with_the_kernels_driver() {
    require!(Need::Kernel, FUSE, Need::Tool("python3"), Need::Tool("btrfs"));
    let tour = |point: &Path| -> Vec<String> {
        let outcome = run(command("python3", &["-c", TOUR]).arg(point)).ok();
        outcome.stdout.lines().map(str::to_owned).collect()
    };
    let volume = Volume::new();
    fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    new_volume(&volume.image);
    volume.mount("");
    let ours = tour(&volume.point);
    volume.umount();
    volume.check();
    assert_same(&ours, &volume.tour_of_kernels("", new_volume, tour));
    let noted = received(&volume.image);
    assert!(noted.len() > 3, "{noted:?}");
    assert_eq!(noted, received(&volume.dir.path().join("kernels")));
}
