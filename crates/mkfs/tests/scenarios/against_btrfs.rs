//! What we lay out, judged by btrfs-progs and by the kernel.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use ubtrfs_format::ChecksumType;
use ubtrfs_mkfs::{MkfsOptions, Profile, existing_signature, layout};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

const MIB: u64 = 1 << 20;

/// Makes the volume in a file full of old bytes where it matters, so that what should be zeroed
/// shows.
fn make(image: &Path, options: &MkfsOptions) {
    blank_image(image, options.total_bytes);
    let mut file = OpenOptions::new().write(true).open(image).unwrap();
    let old = vec![0xa5; MIB as usize];
    for at in [0, MIB, 5 * MIB, options.total_bytes - MIB] {
        file.write_all_at(&old, at).unwrap();
    }
    layout(options).unwrap().write(&mut [&mut file]).unwrap();
}

/// The options under test, by name.
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
        ("label", MkfsOptions { label: b"a label \xc3\xa4".to_vec(), ..of(128) }),
    ]
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn inspect(arguments: &[&str], image: &Path) -> String {
    output(Command::new("btrfs").arg("inspect-internal").args(arguments).arg(image))
}

#[test]
fn btrfs_check_finds_nothing() {
    require!(Need::Tool("btrfs"));
    let dir = scratch_dir();
    for (name, options) in matrix() {
        eprintln!("{name}");
        let image = dir.path().join("image");
        make(&image, &options);
        assert_btrfs_check_clean(&image);
    }
}

/// Unmounts; what the kernel said of the volume. That it has said much in a short time is no
/// complaint.
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
        assert_btrfs_check_clean(&image);
        let mount = KernelMount::new(&[&image], "");
        assert_eq!(std::fs::read(mount.path().join("directory/file")).unwrap(), content);
        assert_eq!(complaints(mount), Vec::<String>::new(), "{name}");
    }
}

/// The lines of a tree dump, each item as one line: what differs between any two volumes, and what
/// our volumes differ in by intent (addresses of blocks and generations), is left out.
fn items(image: &Path) -> BTreeSet<String> {
    let dump = inspect(&["dump-tree"], image);
    let groups: BTreeSet<&str> = dump
        .lines()
        .filter(|line| line.contains(" BLOCK_GROUP_ITEM "))
        .filter_map(|line| key(line)?.split(' ').next())
        .collect();
    let mut found: BTreeSet<String> = BTreeSet::new();
    let (mut owner, mut item) = ("", String::new());
    for line in dump.lines().chain(["leaf owner none"]) {
        let is_item = line.trim_start().starts_with("item ");
        if is_item || !line.starts_with('\t') {
            if !item.is_empty() {
                found.insert(format!("{owner}: {item}"));
            }
            item.clear();
        }
        if let Some((_, of)) = line.split_once(" owner ").filter(|_| line.starts_with("leaf ")) {
            owner = of;
        }
        if let Some(key) = key(line).filter(|_| is_item) {
            item = shown_key(key, &groups);
        } else if line.starts_with('\t') && !item.is_empty() {
            item.push_str(&shown_value(line));
        }
    }
    found
}

fn key(line: &str) -> Option<&str> {
    Some(line.split_once("key (")?.1.split_once(')')?.0)
}

fn shown_key(key: &str, groups: &BTreeSet<&str>) -> String {
    let parts: Vec<&str> = key.split(' ').collect();
    match parts[1] {
        "METADATA_ITEM" => "block".to_owned(),
        "UUID_KEY_SUBVOL" => "uuid".to_owned(),
        // The locations of blocks determine the free space; and mkfs.btrfs leaves items of deleted
        // groups.
        "FREE_SPACE_EXTENT" => String::new(),
        "FREE_SPACE_INFO" if !groups.contains(parts[0]) => String::new(),
        "FREE_SPACE_INFO" => format!("{} info", parts[0]),
        _ => key.to_owned(),
    }
}

fn shown_value(line: &str) -> String {
    let line = line.trim();
    let mut words = line.split(' ');
    let mut shown = String::new();
    if ["uuid ", "dev_uuid ", "chunk_tree_uuid ", "fsid ", "atime ", "ctime ", "mtime ", "free space info"]
        .iter()
        .any(|start| line.starts_with(start))
    {
        return shown;
    }
    while let Some(word) = words.next() {
        shown.push(' ');
        shown.push_str(word);
        if ["generation", "generation_v2", "gen", "bytenr", "otime"].contains(&word) {
            let value = words.next();
            // A time that is not set is no matter of chance.
            shown.push_str(if value == Some("0.0") { " none" } else { " some" });
            if word == "otime" {
                break;
            }
        }
    }
    shown
}

/// The superblock's lines but for those that differ by chance or intent.
fn superblock(image: &Path) -> Vec<String> {
    let differs = [
        "superblock",
        "csum\t",
        "fsid",
        "metadata_uuid",
        "generation",
        "root\t",
        "chunk_root",
        "dev_item.uuid",
        "dev_item.fsid",
        "dev_uuid",
    ];
    let dump = inspect(&["dump-super"], image);
    dump.lines().filter(|line| !differs.iter().any(|start| line.starts_with(start))).map(str::to_owned).collect()
}

#[test]
fn items_and_superblock_equal_those_of_mkfs_btrfs() {
    require!(Need::Tool("mkfs.btrfs"), Need::Tool("btrfs"));
    if !output(Command::new("mkfs.btrfs").arg("--version")).contains("v6.2") {
        eprintln!("skipped: only mkfs.btrfs 6.2 is compared with");
        return;
    }
    let of = |mib: u64| MkfsOptions::new(mib * MIB);
    let dup = Some(Profile::Dup);
    let cases: Vec<(&[&str], MkfsOptions)> = vec![
        (&[], of(109)),
        (&[], of(1024)),
        (&[], of(8192)),
        (&[], of(102_400)),
        (&["-n", "4k"], MkfsOptions { node_size: Some(4096), ..of(256) }),
        (&["-n", "64k"], MkfsOptions { node_size: Some(65536), ..of(256) }),
        (&["--csum", "xxhash"], MkfsOptions { checksum: ChecksumType::XxHash64, ..of(256) }),
        (&["--csum", "blake2"], MkfsOptions { checksum: ChecksumType::Blake2b, ..of(256) }),
        (&["-d", "dup"], MkfsOptions { data_profile: dup, ..of(300) }),
        (&["-M", "-m", "dup", "-d", "dup"], MkfsOptions { mixed: true, data_profile: dup, ..of(300) }),
        (&["-O", "^no-holes"], MkfsOptions { no_holes: false, ..of(256) }),
        (&["-R", "^free-space-tree"], MkfsOptions { free_space_tree: false, ..of(256) }),
        (&["-L", "label"], MkfsOptions { label: b"label".to_vec(), ..of(256) }),
    ];
    let dir = scratch_dir();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for (arguments, options) in cases {
        make(&ours, &options);
        mkfs_btrfs(&theirs, options.total_bytes, arguments);
        let (our_items, their_items) = (items(&ours), items(&theirs));
        assert!(our_items.len() > 30, "the dump was not understood: {our_items:?}");
        let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
        assert_eq!(only(&our_items, &their_items), only(&their_items, &our_items), "{arguments:?}");
        assert_eq!(superblock(&ours), superblock(&theirs), "{arguments:?}");
    }
}

#[test]
fn single_metadata_has_the_chunks_of_mkfs_btrfs() {
    require!(Need::Tool("mkfs.btrfs"), Need::Tool("btrfs"));
    let dir = scratch_dir();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let options = MkfsOptions { metadata_profile: Some(Profile::Single), ..MkfsOptions::new(300 * MIB) };
    make(&ours, &options);
    mkfs_btrfs(&theirs, options.total_bytes, &["-m", "single"]);
    // Of its first system chunk mkfs.btrfs says other alignments and sub-stripes; readers use
    // neither.
    let keys = |image: &Path| -> Vec<String> {
        let dump = inspect(&["dump-tree", "-t", "chunk"], image);
        dump.lines().filter_map(key).map(str::to_owned).collect()
    };
    assert_eq!(keys(&ours), keys(&theirs));
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
