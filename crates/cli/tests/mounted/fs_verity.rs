//! Tests with files that Linux 6.12 has protected by fs-verity: they are read and verified, and
//! nobody can write to them (invariant 42). `verity.txt` has the kernel's measurements and
//! contents.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};
use ubtrfs_testkit::fixture;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume, ubtrfs};

/// What the kernel reported about a file.
struct Known {
    algorithm: u16,
    digest: String,
    content: String,
}

fn known(volume: &str) -> BTreeMap<String, Known> {
    let text = fs::read_to_string(fixture::directory().join("verity.txt")).unwrap();
    let part = text.split("# ").find(|part| part.starts_with(&format!("{volume}.img"))).unwrap();
    part.lines()
        .skip(1)
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let algorithm = words[1].parse().unwrap_or(0);
            (words[0].into(), Known { algorithm, digest: words[2].into(), content: words[3].into() })
        })
        .collect()
}

fn unpack(name: &str) -> Volume {
    let volume = Volume::without_image();
    let packed = fixture::directory().join(format!("{name}.img.zst"));
    let status = Command::new("zstd").args(["-q", "-d"]).arg(packed).arg("-o").arg(&volume.image).status();
    assert!(status.unwrap().success());
    volume
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Calls `FS_IOC_MEASURE_VERITY`, with room for a digest of so many bytes.
fn measure(path: &Path, room: u16) -> Result<(u16, String), std::io::Error> {
    const MEASURE: libc::c_ulong = 0xc004_6686;
    let file = File::open(path)?;
    let mut argument = [0_u8; 68];
    argument[2..4].copy_from_slice(&room.to_le_bytes());
    // SAFETY: the request reads four bytes, and writes these and as many more as they say.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), MEASURE as _, argument.as_mut_ptr()) };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let number = |at: usize| u16::from_le_bytes([argument[at], argument[at + 1]]);
    Ok((number(0), hex(&argument[4..4 + usize::from(number(2))])))
}

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap()
}

#[track_caller]
fn assert_is_as_the_kernel_said(at: &Path, name: &str, known: &Known) {
    assert_eq!(hex(&Sha256::digest(fs::read(at.join(name)).unwrap())), known.content, "{name}");
    let measured = measure(&at.join(name), 64);
    if known.algorithm == 0 {
        assert_eq!(errno(&measured.unwrap_err()), libc::ENODATA, "{name}");
    } else {
        assert_eq!(measured.unwrap(), (known.algorithm, known.digest.clone()), "{name}");
    }
}

/// Invariant 42.
#[test]
fn protected_files_are_read_measured_and_not_written() {
    require!(FUSE, Need::Tool("zstd"));
    let known = known("verity");
    let volume = unpack("verity");
    volume.mount("");
    let at = |name: &str| volume.point.join(name);
    for (name, known) in &known {
        assert_is_as_the_kernel_said(&volume.point, name, known);
        if name != "plain" {
            assert_is_as_the_kernel_said(&at("snap"), name, known);
        }
    }
    assert_eq!(errno(&measure(&at("two"), 31).unwrap_err()), libc::EOVERFLOW);
    // Any part of a file can be verified alone.
    let whole = fs::read(at("two")).unwrap();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(at("two")).unwrap();
    for (from, len) in [(0, 4096), (8192, 4096), (524_288, 65_536), (696_320, 4096)] {
        let mut buffer = vec![0; len + 4096];
        let skip = buffer.as_ptr().align_offset(4096);
        let read = file.read_at(&mut buffer[skip..skip + len], from).unwrap();
        assert!(buffer[skip..skip + read] == whole[from as usize..from as usize + read]);
    }
    let tail = File::open(at("two")).unwrap();
    let mut last = [0; 3];
    assert_eq!(tail.read_at(&mut last, 700_000).unwrap(), 3);
    assert_eq!(last, whole[700_000..]);
    drop((file, tail));

    // Nobody can write to it, by open(2), truncate(2), a reflink, or copy_file_range(2).
    let refused = |done: std::io::Result<()>| assert_eq!(done.unwrap_err().kind(), ErrorKind::PermissionDenied);
    for name in ["empty", "inline", "two", "link"] {
        for how in [
            OpenOptions::new().write(true),
            OpenOptions::new().append(true),
            OpenOptions::new().write(true).truncate(true),
        ] {
            refused(how.open(at(name)).map(drop));
        }
        let size = fs::metadata(at(name)).unwrap().len();
        for to in [0, size + 1] {
            let path = std::ffi::CString::new(at(name).to_str().unwrap()).unwrap();
            // SAFETY: the path is NUL-terminated.
            let done = unsafe { libc::truncate(path.as_ptr(), to as _) };
            assert_eq!((done, errno(&std::io::Error::last_os_error())), (-1, libc::EPERM), "{name}");
        }
    }
    let (from, to) = (File::open(at("two")).unwrap(), File::open(at("leaf")).unwrap());
    assert!(rustix::fs::copy_file_range(from, None, to, None, 4096).is_err());
    // Its names and attributes can change, and its content can be shared.
    fs::rename(at("leaf"), at("renamed")).unwrap();
    fs::set_permissions(at("renamed"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(at("renamed"), at("second")).unwrap();
    rustix::fs::setxattr(at("renamed"), "user.x", b"y", rustix::fs::XattrFlags::empty()).unwrap();
    // copy_file_range(2) shares extents with a file that is writable afterwards.
    assert_eq!(fs::copy(at("two"), at("copy")).unwrap(), 700_003);
    fs::write(at("copy"), "may be written").unwrap();
    File::open(at("renamed")).unwrap().sync_all().unwrap();
    fs::remove_file(at("sha512")).unwrap();
    fs::remove_file(at("keyed")).unwrap();
    ubtrfs(&["subvolume".as_ref(), "snapshot".as_ref(), volume.point.as_os_str(), at("again").as_os_str()]).ok();
    volume.umount();
    assert_ubtrfs_check_clean(&volume.image);
    assert_btrfs_check_clean(&volume.image);
    let left = ubtrfs(&["tree".as_ref(), volume.image.as_os_str(), "--tree".as_ref(), "fs".as_ref()]).ok().stdout;
    assert!(left.contains("VERITY_DESC"), "{left}");
    volume.mount("");
    assert_is_as_the_kernel_said(&volume.point, "renamed", &known["leaf"]);
    assert_is_as_the_kernel_said(&at("again"), "renamed", &known["leaf"]);
    assert_is_as_the_kernel_said(&at("snap"), "sha512", &known["sha512"]);
    refused(OpenOptions::new().write(true).open(at("again/renamed")).map(drop));
    volume.umount();
}

/// Invariant 42: the volume's checksums are right, and those of the file are not.
#[test]
fn content_that_its_tree_does_not_prove_is_an_error() {
    require!(FUSE, Need::Tool("zstd"), Need::Tool("btrfs"));
    let volume = unpack("verity");
    let image = fs::read(&volume.image).unwrap();
    let content = success_of_cat(&volume, "two");
    // A hash in the Merkle tree of the file is changed in both copies of the metadata, and the
    // checksums of these are ignored.
    let hash = Sha256::digest(&content[4096 * 150..4096 * 151]);
    let places: Vec<usize> =
        image.windows(32).enumerate().filter(|(_, bytes)| **bytes == *hash).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    let mut damaged = image.clone();
    for place in places {
        damaged[place] ^= 1;
    }
    fs::write(&volume.image, &damaged).unwrap();
    volume.mount("ro,rescue=imetacsums");
    let file = File::open(volume.point.join("two")).unwrap();
    let mut buffer = vec![0; 4096];
    assert_eq!(errno(&file.read_at(&mut buffer, 4096 * 150).unwrap_err()), libc::EIO);
    drop(file);
    volume.umount();
    // A mount that reads whatever it can ignores the verification.
    volume.mount("ro,rescue=imetacsums:idatacsums");
    assert!(fs::read(volume.point.join("two")).unwrap() == content);
    volume.umount();
}

fn success_of_cat(volume: &Volume, name: &str) -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_ubtrfs")).arg("cat").arg(&volume.image).arg(name).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// The kernel's replay leaves a file without a descriptor, so that nobody can open it. The log
/// contains the Merkle tree, and here it is replayed.
#[test]
fn a_log_brings_what_protects_a_file_along() {
    require!(FUSE, Need::Tool("zstd"));
    let known = known("verity-log");
    let volume = unpack("verity-log");
    for options in ["ro", ""] {
        volume.mount(options);
        for (name, known) in known.iter().filter(|(name, known)| *name != "kept" && known.content != "-") {
            assert_is_as_the_kernel_said(&volume.point, name, known);
        }
        assert_is_as_the_kernel_said(&volume.point, "moved", &known["kept"]);
        let fresh = volume.point.join("fresh");
        assert_eq!(fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(measure(&fresh, 64).unwrap().1, known["fresh"].digest);
        assert_eq!(fs::read(&fresh).unwrap().len(), 9000);
        volume.umount();
    }
    assert_ubtrfs_check_clean(&volume.image);
    assert_btrfs_check_clean(&volume.image);
}

/// Calls `FS_IOC_ENABLE_VERITY`, with blocks of so many bytes.
fn enable(path: &Path, algorithm: u32, block: u32, salt: &[u8]) -> Result<(), std::io::Error> {
    const ENABLE: libc::c_ulong = 0x4080_6685;
    let file = File::open(path)?;
    let mut argument = [0_u8; 128];
    for (at, number) in [(0, 1), (4, algorithm), (8, block), (12, salt.len() as u32)] {
        argument[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    argument[16..24].copy_from_slice(&(salt.as_ptr() as u64).to_le_bytes());
    // SAFETY: the request reads `struct fsverity_enable_arg`, and the salt that this points to.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), ENABLE as _, argument.as_mut_ptr()) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Invariant 42: the result for a file that a program has protected equals the kernel's, is durable
/// when the call returns, and nobody can write to the file.
#[test]
fn files_are_protected_as_by_the_kernel() {
    require!(FUSE, Need::Tool("zstd"));
    let known = known("verity");
    let kernels = unpack("verity");
    kernels.mount("ro");
    let volume = Volume::new();
    volume.mount("commit=300");
    let at = |name: &str| volume.point.join(name);
    let salt = |name: &str| match name {
        "keyed" => &b"saltsalt"[..],
        "sha512" => b"salt",
        _ => b"",
    };
    for (name, known) in &known {
        fs::write(at(name), fs::read(kernels.point.join(name)).unwrap()).unwrap();
        if known.algorithm > 0 {
            enable(&at(name), known.algorithm.into(), 4096, salt(name)).unwrap();
        }
    }
    kernels.umount();
    // The state that a crash would leave now.
    let copy = Volume::without_image();
    fs::copy(&volume.image, &copy.image).unwrap();
    for (name, known) in &known {
        assert_is_as_the_kernel_said(&volume.point, name, known);
    }
    assert_eq!(errno(&enable(&at("two"), 1, 4096, b"").unwrap_err()), libc::EEXIST);
    assert_eq!(errno(&enable(&volume.point, 1, 4096, b"").unwrap_err()), libc::EISDIR);
    for (algorithm, block, salt) in
        [(3, 4096, &b""[..]), (1, 512, b""), (1, 8192, b""), (1, 4095, b""), (1, 4096, &[7; 33])]
    {
        assert_eq!(errno(&enable(&at("plain"), algorithm, block, salt).unwrap_err()), libc::EINVAL);
    }
    for block in [1024, 2048] {
        let name = format!("small-{block}");
        fs::write(at(&name), vec![5; 300_001]).unwrap();
        enable(&at(&name), 2, block, b"x").unwrap();
        assert_eq!(fs::read(at(&name)).unwrap(), vec![5; 300_001]);
    }
    // The file was open for writing before, and the kernel may not check that.
    fs::write(at("opened"), "content").unwrap();
    let mut opened = OpenOptions::new().write(true).open(at("opened")).unwrap();
    enable(&at("opened"), 1, 4096, b"").unwrap();
    let written = std::io::Write::write(&mut opened, b"x").and_then(|_| opened.sync_all());
    assert_eq!(errno(&written.unwrap_err()), libc::EPERM);
    drop(opened);
    assert_eq!(fs::read(at("opened")).unwrap(), b"content");
    fs::set_permissions(at("two"), fs::Permissions::from_mode(0o600)).unwrap();
    File::open(at("two")).unwrap().sync_all().unwrap();
    fs::remove_file(at("leaf")).unwrap();
    volume.umount();
    for (image, names) in
        [(&volume, &["two", "sha512", "keyed", "empty", "packed"][..]), (&copy, &["two", "leaf", "one"])]
    {
        assert_ubtrfs_check_clean(&image.image);
        image.mount("");
        for name in names {
            assert_is_as_the_kernel_said(&image.point, name, &known[*name]);
            assert!(OpenOptions::new().write(true).open(image.point.join(name)).is_err());
        }
        image.umount();
        assert_ubtrfs_check_clean(&image.image);
        assert_btrfs_check_clean(&image.image);
    }
    // The items equal the kernel's, byte for byte.
    for image in [&volume, &kernels] {
        image.mount("ro");
    }
    for name in ["two", "sha512", "one", "empty"] {
        let (ours, theirs) = (items(&volume.point, name), items(&kernels.point, name));
        assert!(!theirs.is_empty() && ours == theirs, "{name}");
    }
    for image in [&volume, &kernels] {
        image.umount();
    }
}

/// Returns the fs-verity items of a file in the top-level subvolume: types, offsets, and bytes.
fn items(point: &Path, name: &str) -> Vec<(u32, u64, Vec<u8>)> {
    const TREE_SEARCH: libc::c_ulong = 0xd000_9411;
    const TYPES: [u32; 2] = [36, 37];
    /// The offset of the items in the argument, and the length of the header of each item.
    const ITEMS: usize = 104;
    const HEAD: usize = 32;
    let dir = File::open(point).unwrap();
    let ino = fs::metadata(point.join(name)).unwrap().ino();
    let mut all: Vec<(u32, u64, Vec<u8>)> = Vec::new();
    loop {
        let (least_type, least) = all.last().map_or((TYPES[0], 0), |(kind, offset, _)| (*kind, offset + 1));
        let mut argument = vec![0_u8; 4096];
        let mut put = |at: usize, bytes: &[u8]| argument[at..at + bytes.len()].copy_from_slice(bytes);
        for (at, number) in [5, ino, ino, least, u64::MAX, 0, u64::MAX].into_iter().enumerate() {
            put(8 * at, &number.to_le_bytes());
        }
        for (at, number) in [least_type, TYPES[1], u32::MAX].into_iter().enumerate() {
            put(56 + 4 * at, &number.to_le_bytes());
        }
        // SAFETY: the request reads and writes a structure of this size.
        let result = unsafe { libc::ioctl(dir.as_raw_fd(), TREE_SEARCH as _, argument.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        let u32_at = |at: usize| u32::from_le_bytes(argument[at..at + 4].try_into().unwrap());
        let found = u32_at(64);
        if found == 0 {
            return all;
        }
        let mut at = ITEMS;
        for _ in 0..found {
            let offset = u64::from_le_bytes(argument[at + 16..at + 24].try_into().unwrap());
            let (kind, len) = (u32_at(at + 24), u32_at(at + 28) as usize);
            all.push((kind, offset, argument[at + HEAD..at + HEAD + len].to_vec()));
            at += HEAD + len;
        }
    }
}
