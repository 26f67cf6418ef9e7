//! Tests of the space of a mount: the figures of `df`, trimming and discarding, and the ioctls of
//! btrfs.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::run;

use crate::harness::{FUSE, Volume, ubtrfs};

const MIB: u64 = 1 << 20;

/// Returns how many bytes the image takes on its file system.
fn image_bytes(volume: &Volume) -> u64 {
    fs::metadata(&volume.image).unwrap().blocks() * 512
}

/// Writes so many MiB of noise, which can't be compressed.
fn write(volume: &Volume, name: &str, mib: u64) {
    let noise: Vec<u8> =
        (0..MIB as u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).take(1 << 20).collect();
    let mut file = File::create(volume.point.join(name)).unwrap();
    for _ in 0..mib {
        file.write_all(&noise).unwrap();
    }
    file.sync_all().unwrap();
}

fn sync(volume: &Volume) {
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
}

#[test]
fn fstrim_punches_holes_for_removed_files() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    write(&volume, "kept", 5);
    write(&volume, "removed", 60);
    let full = image_bytes(&volume);
    fs::remove_file(volume.point.join("removed")).unwrap();
    sync(&volume);
    sync(&volume);
    let trimmed = run(Command::new("fstrim").arg("-v").arg(&volume.point)).ok();
    assert!(trimmed.stdout.contains("trimmed"), "{}", trimmed.report());
    let left = image_bytes(&volume);
    assert!(left + 55 * MIB < full, "{full} bytes before, {left} after");
    volume.umount();
    assert_btrfs_check_clean(&volume.image);
    volume.check();
}

#[test]
fn only_root_may_trim() {
    require!(Need::Kernel, FUSE, Need::Root);
    let volume = Volume::new();
    volume.mount("allow_other");
    fs::set_permissions(volume.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut trim = Command::new("setpriv");
    trim.args(["--reuid=65534", "--regid=65534", "--clear-groups", "fstrim"]).arg(&volume.point);
    let outcome = run(&mut trim);
    assert!(outcome.stderr.contains("not permitted"), "{}", outcome.report());
}

#[test]
fn a_mount_with_discard_punches_holes_for_removed_files() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("discard,commit=1");
    write(&volume, "removed", 60);
    let full = image_bytes(&volume);
    fs::remove_file(volume.point.join("removed")).unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    let mut number = 0;
    while image_bytes(&volume) + 50 * MIB > full {
        assert!(Instant::now() < limit, "{full} bytes before, {} after", image_bytes(&volume));
        number += 1;
        fs::write(volume.point.join("other"), number.to_string()).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(volume.stats()["bytes_discarded"].as_u64().unwrap() > 50 * MIB);
    volume.umount();
    assert_btrfs_check_clean(&volume.image);
    volume.check();
}

/// Returns the results of trimming ranges, the first of them on a new volume: the returned numbers,
/// or the error.
fn trims(dir: &Path) -> Vec<String> {
    const MAX: u64 = u64::MAX;
    const RANGES: [(u64, u64, u64); 12] = [
        (24 * MIB, 8 * MIB, 0),
        (0, 0, 0),
        (0, 4095, 0),
        (MAX, MAX, 0),
        (MAX, 4096, 0),
        (MAX - 1, MAX, 1 << 40),
        (MAX - 4096, 4096, 1 << 40),
        (MAX - 4096, 4097, 0),
        (1 << 40, MAX - 1, 0),
        (1 << 40, MAX, 1 << 40),
        (1 << 40, 4096, 1 << 40),
        (0, 4096, 1 << 40),
    ];
    let script = "
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
argument = bytearray(struct.pack('<3Q', *map(int, sys.argv[2:])))
try: fcntl.ioctl(fd, 0xc0185879, argument); print(*struct.unpack('<3Q', argument))
except OSError as error: print('error', error.errno)
";
    let ask = |(start, len, least): &(u64, u64, u64)| {
        let mut line = Command::new("python3");
        line.arg("-c").arg(script).arg(dir);
        run(line.args([start, len, least].map(u64::to_string))).ok().stdout
    };
    // The kernel trims unallocated space only once. All requests but the first use a minimum size
    // of pieces that no free range has.
    RANGES.iter().map(ask).collect()
}

#[test]
fn ranges_are_trimmed_and_refused_as_by_the_kernel() {
    require!(Need::Kernel, FUSE);
    // The kernel's first mount changes a volume in the background, and its FITRIM skips the free
    // space that it has set aside to allocate from. The second mount changes nothing.
    let mounted_once = |image: &Path| {
        mkfs_btrfs(image, 256 * MIB, &[]);
        assert_eq!(KernelMount::new(&[image], "nodiscard").unmount(), Vec::<String>::new());
    };
    let volume = Volume::without_image();
    mounted_once(&volume.image);
    volume.mount("");
    let ours = trims(&volume.point);
    volume.umount();
    volume.check();
    let other = volume.dir.path().join("kernels");
    mounted_once(&other);
    let kernel = KernelMount::new(&[&other], "nodiscard");
    assert_eq!(ours, trims(kernel.path()));
}

/// Calls the ioctl by a short program, as other programs do.
fn ask(volume: &Volume, script: &str) -> String {
    let prelude = "import sys,fcntl,os,struct\nfd=os.open(sys.argv[1],os.O_RDONLY)\n";
    let outcome = run(Command::new("python3").arg("-c").arg(format!("{prelude}{script}")).arg(&volume.point)).ok();
    outcome.stdout.trim().to_owned()
}

#[test]
fn ioctls_describe_the_volume_its_devices_and_its_trees() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    fs::write(volume.point.join("a name to be found"), "x").unwrap();
    sync(&volume);
    let reported = ask(
        &volume,
        "a=bytearray(1024)\nfcntl.ioctl(fd,0x8400941f,a)\nprint(struct.unpack_from('<QQ',a), struct.unpack_from('<II',a,32), a[16:32].hex())",
    );
    assert!(reported.starts_with("(1, 1) (16384, 4096) "), "{reported}");
    let fsid = reported.rsplit(' ').next().unwrap().to_owned();
    let shown = run(Command::new("btrfs").args(["filesystem", "show"]).arg(&volume.image)).ok().stdout;
    assert!(shown.replace('-', "").contains(&fsid), "{fsid}: {shown}");
    let device = ask(
        &volume,
        "a=bytearray(4096)\nstruct.pack_into('<Q',a,0,1)\nfcntl.ioctl(fd,0xd000941e,a)\nprint(struct.unpack_from('<Q',a,32)[0], a[3072:].rstrip(b'\\0').decode())",
    );
    assert_eq!(device, format!("{} {}", 256 * MIB, volume.image.display()));
    let no_device = "a=bytearray(4096)\nstruct.pack_into('<Q',a,0,7)\ntry: fcntl.ioctl(fd,0xd000941e,a)\nexcept OSError as e: print(e.errno)";
    assert_eq!(ask(&volume, no_device), "19");
    // The entries by number (type 96) of the root directory of the mounted subvolume.
    let names = ask(
        &volume,
        "a=bytearray(4096)\nM=2**64-1\nstruct.pack_into('<7Q3I',a,0,0,256,256,0,M,0,M,96,96,99)\nfcntl.ioctl(fd,0xd0009411,a)\n\
         n=struct.unpack_from('<I',a,64)[0]\nl=struct.unpack_from('<I',a,104+28)[0]\nprint(n, bytes(a[136+30:136+l]).decode())",
    );
    assert_eq!(names, "1 a name to be found");
}
