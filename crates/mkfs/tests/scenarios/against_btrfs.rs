//! The volumes that we lay out are checked by btrfs-progs and by the kernel.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ubtrfs_format::ChecksumType;
use ubtrfs_mkfs::{MkfsOptions, Profile, Quotas, existing_signature, layout};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image, btrfs_check};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

const MIB: u64 = 1 << 20;

/// Makes the volume in a file that has old bytes in the places that matter, so that missing zeros
/// are found.
fn make(image: &Path, options: &MkfsOptions) {
    blank_image(image, options.total_bytes);
    let mut file = OpenOptions::new().write(true).open(image).unwrap();
    let old = vec![0xa5; MIB as usize];
    for at in [0, MIB, 5 * MIB, options.total_bytes - MIB] {
        file.write_all_at(&old, at).unwrap();
    }
    layout(options).unwrap().write(&mut [&mut file]).unwrap();
}

/// Returns the options under test, by name.
fn matrix() -> Vec<(&'static str, MkfsOptions)> {
    use Profile::{Dup, Single};
    let of = |mib: u64| MkfsOptions::new(mib * MIB);
    let nodes = |mib, node_size| MkfsOptions { node_size: Some(node_size), ..of(mib) };
    let sums = |checksum| MkfsOptions { checksum, ..of(128) };
    let profiles =
        |mib, metadata, data| MkfsOptions { metadata_profile: Some(metadata), data_profile: Some(data), ..of(mib) };
    let grouped = |options: MkfsOptions| MkfsOptions { block_group_tree: true, ..options };
    vec![
        ("least size", of(109)),
        ("odd size", MkfsOptions::new(777 * MIB + 4096 + 17)),
        ("1 GiB", of(1024)),
        ("8 GiB", of(8192)),
        ("100 GiB", of(102_400)),
        ("300 GiB, three superblocks", of(307_200)),
        ("nodes of 4 KiB", nodes(128, 4096)),
        ("nodes of 8 KiB", nodes(128, 8192)),
        ("nodes of 32 KiB", nodes(128, 32768)),
        ("nodes of 64 KiB", nodes(128, 65536)),
        ("xxhash", sums(ChecksumType::XxHash64)),
        ("sha256", sums(ChecksumType::Sha256)),
        ("blake2", sums(ChecksumType::Blake2b)),
        ("single metadata", profiles(45, Single, Single)),
        ("DUP data", profiles(229, Dup, Dup)),
        ("DUP data, single metadata", profiles(700, Single, Dup)),
        ("mixed", MkfsOptions { mixed: true, ..of(16) }),
        ("mixed DUP", MkfsOptions { mixed: true, data_profile: Some(Dup), ..of(160) }),
        ("block-group tree", grouped(of(256))),
        ("block-group tree, nodes of 4 KiB", grouped(nodes(256, 4096))),
        ("no free-space tree", MkfsOptions { free_space_tree: false, ..of(128) }),
        ("explicit holes", MkfsOptions { no_holes: false, ..of(128) }),
        ("few names of an inode", MkfsOptions { extended_iref: false, ..of(128) }),
        ("extent items with keys", MkfsOptions { skinny_metadata: false, ..of(128) }),
        ("keys, nodes of 4 KiB", MkfsOptions { skinny_metadata: false, ..nodes(128, 4096) }),
        ("qgroups", MkfsOptions { quotas: Some(Quotas::Qgroups), ..of(128) }),
        ("simple quotas", MkfsOptions { quotas: Some(Quotas::Simple), ..of(128) }),
        ("flags of profiles", MkfsOptions { raid56: true, raid1c34: true, ..of(128) }),
        ("label", MkfsOptions { label: b"a label \xc3\xa4".to_vec(), ..of(128) }),
    ]
}

#[test]
fn btrfs_check_finds_nothing() {
    require!(Need::Tool("btrfs"));
    let dir = scratch_dir();
    for (name, options) in matrix() {
        eprintln!("{name}");
        let image = dir.path().join("image");
        make(&image, &options);
        check(&image, &options);
    }
}

/// Checks the image, if btrfs check knows its features: before 6.7 it does not know simple quotas.
fn check(image: &Path, options: &MkfsOptions) {
    if options.quotas == Some(Quotas::Simple) && btrfs_check(image).stderr.contains("unsupported option features") {
        return;
    }
    assert_btrfs_check_clean(image);
}

/// Unmounts, and returns the kernel's messages about the volume, except those about suppressed
/// messages.
fn complaints(mount: KernelMount) -> Vec<String> {
    mount.unmount().into_iter().filter(|line| !line.contains("callbacks suppressed")).collect()
}

#[test]
fn the_kernel_mounts_and_writes_every_kind() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    for (name, options) in matrix() {
        eprintln!("{name}");
        let image = dir.path().join("image");
        make(&image, &options);
        let content = vec![7; 300_000];
        let mount = KernelMount::new(&[&image], "");
        std::fs::create_dir(mount.path().join("directory")).unwrap();
        std::fs::write(mount.path().join("directory/file"), &content).unwrap();
        assert_eq!(complaints(mount), Vec::<String>::new(), "{name}");
        check(&image, &options);
        let mount = KernelMount::new(&[&image], "");
        assert_eq!(std::fs::read(mount.path().join("directory/file")).unwrap(), content);
        assert_eq!(complaints(mount), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn an_existing_volume_is_noticed() {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let signature = || {
        let file = File::open(&image).unwrap();
        existing_signature(file.metadata().unwrap().len(), &mut |at, buffer| file.read_exact_at(buffer, at)).unwrap()
    };
    blank_image(&image, 128 * MIB);
    assert_eq!(signature(), None);
    make(&image, &MkfsOptions::new(128 * MIB));
    assert_eq!(signature().as_deref(), Some("btrfs"));
}

#[test]
fn old_contents_of_the_device_are_wiped() {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let options = MkfsOptions::new(128 * MIB);
    make(&image, &options);
    let file = File::open(&image).unwrap();
    let mut start = vec![1; 65536];
    file.read_exact_at(&mut start, 0).unwrap();
    assert!(start.iter().all(|byte| *byte == 0));
    let mut end = vec![1; MIB as usize];
    file.read_exact_at(&mut end, 127 * MIB).unwrap();
    assert!(end.iter().all(|byte| *byte == 0));
}
