//! Tests that files of read-only subvolumes are not changed. If the kernel sends a request, open(2)
//! for writing fails as in the kernel's btrfs; otherwise write(2) fails.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, ubtrfs};

/// Makes the subvolume `a`.
fn with_a_subvolume(image: &Path) {
    let kernel = KernelMount::new(&[image], "");
    run(command("btrfs", &["-q", "subvolume", "create"]).arg(kernel.path().join("a"))).ok();
    assert_eq!(kernel.unmount(), Vec::<String>::new());
}

/// Returns the output of a program that works at a path.
fn python(program: &str, path: &Path) -> String {
    run(command("python3", &["-c", program]).arg(path)).ok().stdout
}

/// Makes a mounted volume with the subvolume `a`, and returns it with the output of a program that
/// works in it.
fn mounted_with_a_subvolume(options: &str, program: &str) -> (Volume, String) {
    let volume = Volume::new();
    with_a_subvolume(&volume.image);
    volume.mount(options);
    let printed = python(program, &volume.point);
    (volume, printed)
}

/// Opens files in the subvolume `a` of the directory `argv[1]`, which becomes read-only.
const OPENS: &str = r"
import errno, fcntl, os, struct, sys
os.chdir(sys.argv[1])
def say(what, act):
    try: act(); print(what, 'ok')
    except OSError as e: print(what, errno.errorcode[e.errno])
open('first', 'w').close()
os.mkdir('a/dir')
for path in ['a/file', 'a/dir/file']: open(path, 'w').write('content')
held, dir = os.open('a/file', os.O_RDONLY), os.open('a/dir', os.O_RDONLY)
def set_flags(flags):
    fd = os.open('a', os.O_RDONLY)
    fcntl.ioctl(fd, 0x4008941a, struct.pack('<Q', flags))
    os.close(fd)
def opens(when):
    print(when)
    for how in ['O_RDONLY', 'O_WRONLY', 'O_RDWR', 'O_WRONLY|O_APPEND', 'O_RDONLY|O_TRUNC', 'O_WRONLY|O_CREAT']:
        flags = sum(getattr(os, flag) for flag in how.split('|'))
        say(f'{how} by path', lambda: os.close(os.open('a/dir/file', flags)))
        say(f'{how} by a directory', lambda: os.close(os.open('file', flags, dir_fd=dir)))
        say(f'{how} by an open file', lambda: os.close(os.open(f'/proc/self/fd/{held}', flags)))
    for path in ['a/file', 'a/dir/file']: print(os.path.getsize(path))
opens('writable')
for path in ['a/file', 'a/dir/file']: open(path, 'w').write('content')
set_flags(2); opens('read-only')
set_flags(0); opens('writable again')
";

#[test]
fn are_not_opened_for_writing_where_opens_are_checked() {
    require!(Need::Kernel, FUSE, Need::Tool("python3"), Need::Tool("btrfs"));
    let (volume, ours) = mounted_with_a_subvolume("check_open=always", OPENS);
    volume.umount();
    volume.check();
    let theirs = volume.tour_of_kernels("", with_a_subvolume, |point| python(OPENS, point));
    assert!(theirs.contains("O_WRONLY by an open file EROFS"), "{theirs}");
    assert_eq!(ours, theirs);
}

/// Writes to a file in the subvolume `a` of the directory `argv[1]`, which becomes read-only.
const WRITES: &str = r"
import errno, fcntl, mmap, os, struct, sys
os.chdir(sys.argv[1])
def say(what, act):
    try: act(); print(what, 'ok')
    except OSError as e: print(what, errno.errorcode[e.errno])
def write(flags):
    fd = os.open('a/file', flags)
    try: os.write(fd, b'changed')
    finally: os.close(fd)
def truncate(): os.truncate('a/file', 1)
def writes(when):
    print(when)
    for how in ['O_WRONLY', 'O_RDWR', 'O_WRONLY|O_APPEND', 'O_RDWR|O_DSYNC', 'O_RDWR|O_TRUNC']:
        flags = sum(getattr(os, flag) for flag in how.split('|'))
        say(how, lambda: write(flags))
    say('truncate', truncate)
    say('getxattr', lambda: os.getxattr('a/file', 'security.capability'))
    print(os.listxattr('a/file'), open('a/file').read())
def set_flags(flags):
    fd = os.open('a', os.O_RDONLY)
    fcntl.ioctl(fd, 0x4008941a, struct.pack('<Q', flags))
    os.close(fd)
open('first', 'w').close()
open('a/file', 'w').write('content')
writes('writable')
set_flags(2); writes('read-only')
set_flags(0); writes('writable again')
";

/// Stores to a shared mapping of a file of a read-only subvolume.
const STORES: &str = r"
import errno, mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
pages = mmap.mmap(fd, 0)
pages[0:1] = b'M'
try: pages.flush()
except OSError as e: print(errno.errorcode[e.errno])
";

#[test]
fn are_not_written_where_opens_are_not_checked() {
    require!(Need::Kernel, FUSE, Need::Tool("python3"), Need::Tool("btrfs"));
    let (volume, ours) = mounted_with_a_subvolume("", WRITES);
    let subvolume = volume.point.join("a");
    ubtrfs(&["property".as_ref(), "set".as_ref(), subvolume.as_os_str(), "ro".as_ref(), "true".as_ref()]).ok();
    let file = subvolume.join("file");
    let before = fs::read(&file).unwrap();
    let stored = python(STORES, &file);
    assert_eq!(stored, "EROFS\n");
    let deadline = Instant::now() + Duration::from_secs(30);
    while fs::read(&file).unwrap() != before {
        assert!(Instant::now() < deadline, "what was stored is still shown");
        sleep(Duration::from_millis(20));
    }
    volume.umount();
    volume.check();
    let theirs = volume.tour_of_kernels("", with_a_subvolume, |point| python(WRITES, point));
    assert!(theirs.contains("O_WRONLY EROFS"), "{theirs}");
    assert_eq!(ours, theirs);
}

/// Checks what may be written to in the subvolume `a` of `argv[1]`, which becomes read-only.
const ACCESSES: &str = r"
import ctypes, errno, fcntl, os, socket, struct, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
open('first', 'w').close()
open('a/file', 'w').close()
os.mkdir('a/dir')
os.mkfifo('a/fifo')
os.mknod('a/null', 0o20666, os.makedev(1, 3))
os.symlink('file', 'a/link')
os.symlink('fifo', 'a/to fifo')
AT_SYMLINK_NOFOLLOW, AT_EACCESS = 0x100, 0x200
def asks(when):
    print(when)
    for path in ['first', 'a', 'a/file', 'a/dir', 'a/fifo', 'a/null', 'a/link', 'a/to fifo']:
        for mode in [os.F_OK, os.R_OK, os.W_OK]:
            # About a link itself FUSE in the kernel never asks.
            for flags in [0, AT_EACCESS] if os.path.islink(path) else [0, AT_SYMLINK_NOFOLLOW, AT_EACCESS]:
                done = libc.faccessat(-100, path.encode(), mode, flags)
                print(path, mode, flags, errno.errorcode[ctypes.get_errno()] if done else 'ok')
    os.chdir('a/dir'); os.chdir('../..')
def set_flags(flags):
    fd = os.open('a', os.O_RDONLY)
    fcntl.ioctl(fd, 0x4008941a, struct.pack('<Q', flags))
    os.close(fd)
asks('writable')
set_flags(2); asks('read-only')
set_flags(0); asks('writable again')
";

/// If the kernel checks permissions, it answers access(2) without a request.
#[test]
fn are_not_accessible_for_writing_where_the_kernel_asks_about_that() {
    require!(Need::Kernel, FUSE, Need::Root, Need::Tool("python3"), Need::Tool("btrfs"));
    let (volume, ours) = mounted_with_a_subvolume("single_user,check_open=always", ACCESSES);
    volume.umount();
    volume.check();
    let theirs = volume.tour_of_kernels("", with_a_subvolume, |point| python(ACCESSES, point));
    assert!(theirs.contains("a/file 2 0 EROFS") && theirs.contains("a/fifo 2 0 ok"), "{theirs}");
    assert_eq!(ours, theirs);
}

/// Makes the subvolume `argv[1]` read-only and writable again while a file in it is being written.
const BESIDE_A_WRITER: &str = r"
import errno, fcntl, os, signal, struct, sys
os.chdir(sys.argv[1])
fd = os.open('file', os.O_RDWR | os.O_CREAT)
dir = os.open('.', os.O_RDONLY)
writer = os.fork()
if writer == 0:
    while True:
        try: os.pwrite(fd, b'x', 0)
        except OSError as e:
            if e.errno != errno.EROFS: print('a write failed with', errno.errorcode[e.errno], flush=True)
try:
    for number in range(100):
        fcntl.ioctl(dir, 0x4008941a, struct.pack('<Q', 2))
        try: os.pwrite(fd, b'y', 0); print('written', number)
        except OSError as e: assert e.errno == errno.EROFS
        fcntl.ioctl(dir, 0x4008941a, struct.pack('<Q', 0))
finally:
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
";

#[test]
fn are_not_written_by_who_wrote_them_before() {
    require!(FUSE, Need::Root, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let subvolume = volume.point.join("a");
    ubtrfs(&["subvolume".as_ref(), "create".as_ref(), subvolume.as_os_str()]).ok();
    assert_eq!(python(BESIDE_A_WRITER, &subvolume), "");
    volume.umount();
    volume.check();
}
