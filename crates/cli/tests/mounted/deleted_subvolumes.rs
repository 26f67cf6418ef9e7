//! Tests that programs can use open files of a deleted subvolume, as with the kernel's driver.

use std::path::Path;
use std::time::{Duration, Instant};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume};

/// Opens a file, a mapping and directories of a subvolume in `argv[1]`, and then deletes the
/// subvolume.
const GOES_ON: &str = r"
import errno, fcntl, mmap, os, struct, sys
os.chdir(sys.argv[1])
def say(what, act):
    try: print(what, act())
    except OSError as e: print(what, errno.errorcode[e.errno])
def ioctl(dir, number, name):
    fd = os.open(dir, os.O_RDONLY)
    try: fcntl.ioctl(fd, number, bytearray(struct.pack('<q', 0) + name.ljust(4088, b'\0')))
    finally: os.close(fd)
ioctl('.', 0x5000940e, b'sub')
os.makedirs('sub/dir/inner')
for path in ['sub/file', 'sub/dir/file', 'sub/dir/other', 'sub/dir/cold', 'sub/removed']: open(path, 'w').write(path * 5000)
fd = os.open('sub/file', os.O_RDWR)
removed = os.open('sub/removed', os.O_RDWR)
os.unlink('sub/removed')
root = os.open('sub', os.O_RDONLY)
mapping = mmap.mmap(fd, 40000)
os.fsync(fd); os.sync()
cold = os.open('sub/dir/cold', os.O_RDONLY)
os.posix_fadvise(cold, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
top = os.open('.', os.O_RDONLY)
os.chdir('sub/dir')
ioctl(f'/proc/self/fd/{top}', 0x5000940f, b'sub')
def goes_on(when):
    print(when)
    say('name', lambda: os.stat('sub', dir_fd=top))
    say('read', lambda: os.pread(fd, 8, 16))
    say('cold', lambda: os.pread(cold, 8, 30000))
    say('mapped', lambda: bytes(mapping[30000:30008]))
    def store(): mapping[100:103] = b'new'; mapping.flush(); return os.pread(fd, 3, 100)
    say('store', store)
    say('write', lambda: os.pwrite(fd, b'written', 20000))
    say('read again', lambda: os.pread(fd, 7, 20000))
    say('append', lambda: os.pwrite(removed, b'more', 60000))
    say('truncate', lambda: os.ftruncate(removed, 9))
    say('sizes', lambda: (os.fstat(fd).st_size, os.fstat(removed).st_size, os.fstat(removed).st_nlink))
    say('fsync', lambda: os.fsync(fd))
    say('fdatasync', lambda: os.fdatasync(removed))
    say('chmod', lambda: os.fchmod(fd, 0o600))
    say('mode', lambda: oct(os.fstat(fd).st_mode))
    say('xattr', lambda: os.setxattr(fd, 'user.a', b'b'))
    say('xattr', lambda: os.getxattr(fd, 'user.a'))
    say('list', lambda: sorted(os.listdir('.')))
    say('open', lambda: open('file').read(8))
    say('make', lambda: open('made', 'w').write('made'))
    say('mkdir', lambda: os.mkdir('made dir'))
    say('rename', lambda: os.rename('made', 'inner/renamed'))
    say('link', lambda: os.link('inner/renamed', 'linked'))
    for path in ['linked', 'inner/renamed']: say('unlink', lambda: os.unlink(path))
    say('rmdir', lambda: os.rmdir('made dir'))
    say('in the root', lambda: os.close(os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=root)))
    say('directory in the root', lambda: os.mkdir('new', dir_fd=root))
    say('list of the root', lambda: sorted(os.listdir(root)))
    say('by the root', lambda: os.close(os.open('dir/other', os.O_RDONLY, dir_fd=root)))
    say('out', lambda: os.rename('other', 'other', dst_dir_fd=top))
goes_on('at once')
os.sync()
goes_on('after a commit')
";

/// Returns the output of a program that works at a path.
fn python(program: &str, path: &Path) -> String {
    run(command("python3", &["-c", program]).arg(path)).ok().stdout
}

#[test]
fn programs_go_on_with_what_they_have_open() {
    require!(Need::Kernel, FUSE, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let ours = python(GOES_ON, &volume.point);
    let deadline = Instant::now() + Duration::from_secs(60);
    while volume.stats()["subvolumes_deleted_left"] != 0 {
        assert!(Instant::now() < deadline, "its space never comes back");
        run(command("sync", &["-f"]).arg(&volume.point)).ok();
        std::thread::sleep(Duration::from_millis(50));
    }
    volume.umount();
    volume.check();
    let theirs = volume.tour_of_kernels("", |_| (), |point| python(GOES_ON, point));
    assert!(theirs.contains("in the root ENOENT"), "{theirs}");
    assert_eq!(ours, theirs);
}

/// Makes a subvolume with a large file.
const MAKES: &str = r"
import fcntl, os, struct, sys
os.chdir(sys.argv[1])
fd = os.open('.', os.O_RDONLY)
name = bytearray(struct.pack('<q', 0) + b'sub'.ljust(4088, b'\0'))
fcntl.ioctl(fd, 0x5000940e, name)
open('sub/file', 'w').write('x' * 3000000)
";

/// A process has the subvolume open when the server is killed, and never closes it.
#[test]
fn what_is_open_for_ever_is_dropped_by_the_next_mount() {
    require!(Need::Root, FUSE, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    python(MAKES, &volume.point);
    let open = std::fs::File::open(volume.point.join("sub/file")).unwrap();
    crate::harness::ubtrfs(&["subvolume".as_ref(), "delete".as_ref(), volume.point.join("sub").as_os_str()]).ok();
    run(command("sync", &["-f"]).arg(&volume.point)).ok();
    assert_eq!(volume.stats()["subvolumes_deleted_left"], 1);
    let server = volume.server();
    server.signal("KILL");
    server.ended();
    drop(open);
    run(command("umount", &["-l"]).arg(&volume.point)).ok();
    volume.check();
    volume.mount("");
    let deadline = Instant::now() + Duration::from_secs(60);
    while volume.stats()["subvolumes_deleted_left"] != 0 {
        assert!(Instant::now() < deadline, "its space never comes back");
        run(command("sync", &["-f"]).arg(&volume.point)).ok();
    }
    volume.umount();
    volume.check();
}
