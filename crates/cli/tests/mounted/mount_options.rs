//! Tests of the mount options in the manual page btrfs(5): an option is accepted if the kernel
//! accepts it, and refused if the kernel refuses it, except for the listed differences, each with
//! its reason.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;

use crate::harness::{Volume, ubtrfs};

/// The options, each of which is tested with a new volume. `{id}` is the number of the subvolume at
/// `/@`.
const OPTIONS: &[&str] = &[
    "acl",
    "noacl",
    "autodefrag",
    "noautodefrag",
    "barrier",
    "nobarrier",
    "check_int",
    "check_int_data",
    "check_int_print_mask=1",
    "clear_cache",
    "commit=7",
    "commit=0",
    "commit=-1",
    "compress",
    "compress=zlib",
    "compress=zlib:9",
    "compress=lzo",
    "compress=zstd:15",
    "compress=no",
    "compress=none",
    "compress=gzip",
    "compress-force",
    "compress-force=zstd",
    "datacow",
    "nodatacow",
    "datasum",
    "nodatasum",
    "degraded",
    "discard",
    "discard=sync",
    "discard=async",
    "nodiscard",
    "discard=sometimes",
    "enospc_debug",
    "noenospc_debug",
    "fatal_errors=bug",
    "fatal_errors=panic",
    "fatal_errors=ignore",
    "flushoncommit",
    "noflushoncommit",
    "fragment=data",
    "inode_cache",
    "max_inline=1k",
    "max_inline=0",
    "metadata_ratio=3",
    "nologreplay",
    "ro,nologreplay",
    "norecovery",
    "ro,norecovery",
    "recovery",
    "rescan_uuid_tree",
    "ro,rescue=usebackuproot",
    "rescue=usebackuproot",
    "rescue=nologreplay",
    "ro,rescue=nologreplay",
    "rescue=ignorebadroots",
    "ro,rescue=ignorebadroots",
    "ro,rescue=ibadroots",
    "rescue=ignoredatacsums",
    "ro,rescue=ignoredatacsums",
    "ro,rescue=idatacsums",
    "rescue=ignoremetacsums",
    "ro,rescue=ignoremetacsums",
    "ro,rescue=imetacsums",
    "rescue=ignoresuperflags",
    "ro,rescue=ignoresuperflags",
    "ro,rescue=isuperflags",
    "ro,rescue=all",
    "ro,rescue=nologreplay:ibadroots:idatacsums:imetacsums:isuperflags",
    "rescue=all",
    "ro,rescue=nothing",
    "skip_balance",
    "space_cache",
    "space_cache=v1",
    "space_cache=v2",
    "nospace_cache",
    "ssd",
    "ssd_spread",
    "nossd",
    "nossd_spread",
    "subvol=/@",
    "subvol=@",
    "subvol=/none",
    "subvol=/@/dir",
    "subvolid={id}",
    "subvolid=0",
    "subvolid=5",
    "subvolid=99999",
    "subvolid={id},subvol=/@",
    "subvol=/@,subvolid={id}",
    "subvolid=5,subvol=/",
    "subvolid=5,subvol=/@",
    "subvolid={id},subvol=/none",
    "subvolid=0,subvol=/@",
    "subvolrootid=5",
    "thread_pool=3",
    "thread_pool=0",
    "treelog",
    "notreelog",
    "usebackuproot",
    "user_subvol_rm_allowed",
    "alloc_start=1",
    // Options of the VFS.
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "lazytime",
    "sync",
    "dirsync",
    "context=system_u:object_r:tmp_t:s0",
    "fscontext=system_u:object_r:tmp_t:s0",
    "defcontext=system_u:object_r:tmp_t:s0",
    "rootcontext=system_u:object_r:tmp_t:s0",
    "nonsense",
    "nonsense=1",
];

/// The options that behave differently, and why.
const DIFFERENT: &[(&str, &str)] = &[
    ("noacl", "ACLs always count"),
    ("clear_cache", "check --repair rebuilds the free-space tree"),
    ("commit=0", "the kernel takes its default for it"),
    ("space_cache", "it asks for the old cache on a volume with a free-space tree"),
    ("fatal_errors=panic", "the server does not end the machine"),
    ("recovery", "the old name of usebackuproot, which older kernels take"),
    ("nologreplay", "without a log there is nothing to pass over"),
    ("norecovery", "without a log there is nothing to pass over"),
    ("rescue=nologreplay", "without a log there is nothing to pass over"),
    ("alloc_start=1", "fstab of old systems has it"),
    ("ro,nologreplay", "kernels before 6.17 take it, too"),
    ("ro,rescue=nologreplay:ibadroots:idatacsums:imetacsums:isuperflags", "kernels before 6.8 take lists, too"),
    ("context=system_u:object_r:tmp_t:s0", "mount(8) leaves it out where SELinux is off; the kernel would refuse it"),
    ("fscontext=system_u:object_r:tmp_t:s0", "likewise"),
    ("defcontext=system_u:object_r:tmp_t:s0", "likewise"),
    ("rootcontext=system_u:object_r:tmp_t:s0", "likewise"),
    ("sync", "use commit= and fsync(2)"),
    ("dirsync", "use commit= and fsync(2)"),
];

fn volume() -> (Volume, u64) {
    let volume = Volume::new();
    volume.mount("");
    let at = volume.point.join("@");
    ubtrfs(&["subvolume".as_ref(), "create".as_ref(), at.as_os_str()]).ok();
    fs::create_dir(at.join("dir")).unwrap();
    fs::write(at.join("file"), "content").unwrap();
    fs::write(volume.point.join("top"), "content").unwrap();
    let shown = ubtrfs(&["subvolume".as_ref(), "list".as_ref(), volume.point.as_os_str()]).ok().stdout;
    let id = shown.split_whitespace().nth(1).unwrap().parse().unwrap();
    volume.umount();
    (volume, id)
}

/// Returns the names at the top of a mount; none if the mount is refused.
fn shown(at: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn options_are_taken_and_refused_as_by_the_kernel() {
    require!(Need::Kernel);
    let (volume, id) = volume();
    let mut wrong = Vec::new();
    for option in OPTIONS {
        let options = option.replace("{id}", &id.to_string());
        let ours = volume.try_mount(&options);
        let ours = ours.success().then(|| {
            let names = shown(&volume.point);
            volume.umount();
            names
        });
        let theirs = KernelMount::try_new(&[&volume.image], &options).ok().map(|mount| {
            let names = shown(mount.path());
            mount.unmount();
            names
        });
        let is_listed = DIFFERENT.iter().any(|(listed, _)| listed == option);
        if (ours == theirs) == is_listed {
            wrong.push(format!("{option}: ours {ours:?}, the kernel's {theirs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_path_and_an_id_of_different_subvolumes_are_named() {
    let (volume, id) = volume();
    let said = volume.try_mount(&format!("subvolid={},subvol=/@", id + 1)).stderr;
    assert!(said.contains(&format!("the subvolume at '/@' has the id {id}, and not {}", id + 1)), "{said}");
}

/// Returns the flags that the options give a file: NODATASUM and NODATACOW.
fn flags(image: &Path, name: &str) -> u64 {
    let shown = ubtrfs(&["stat".as_ref(), image.as_os_str(), name.as_ref()]).ok().stdout;
    let flags = shown.lines().find_map(|line| line.strip_prefix("flags")).unwrap().trim();
    u64::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap() & 3
}

#[test]
fn files_that_are_made_without_checksums_and_copies_are_as_the_kernels() {
    require!(Need::Kernel);
    let (volume, _) = volume();
    for options in ["nodatacow", "nodatasum", "nodatacow,compress=zstd", "compress=zstd,nodatacow", "nodatasum,datasum"]
    {
        let make = |at: &Path, who: &str| {
            fs::write(at.join(who), vec![7; 100_000]).unwrap();
            fs::create_dir(at.join(format!("{who}-dir"))).unwrap();
            fs::write(at.join(format!("{who}-dir/in")), "x").unwrap();
        };
        volume.mount(options);
        make(&volume.point, "ours");
        volume.umount();
        let mount = KernelMount::new(&[&volume.image], options);
        make(mount.path(), "theirs");
        mount.unmount();
        for name in ["", "-dir", "-dir/in"] {
            let of = |who: &str| flags(&volume.image, &format!("/{who}{name}"));
            assert_eq!(of("ours"), of("theirs"), "{options} {name}");
        }
        assert_btrfs_check_clean(&volume.image);
        let mount = KernelMount::new(&[&volume.image], "");
        assert!(fs::read(mount.path().join("ours")).unwrap() == vec![7; 100_000]);
        for who in ["ours", "theirs"] {
            fs::remove_file(mount.path().join(who)).unwrap();
            fs::remove_dir_all(mount.path().join(format!("{who}-dir"))).unwrap();
        }
        mount.unmount();
    }
}

/// Each remount starts from the state that the previous one has left.
#[test]
fn remounts_change_what_new_files_are_like_as_the_kernels() {
    const REMOUNTS: [&str; 12] = [
        "nodatasum",
        "nodatacow",
        "datacow",
        "datasum",
        "nodatacow",
        "compress=zstd",
        "nodatacow",
        "compress=no",
        "datasum",
        "compress-force=lzo,nodatasum",
        "datacow,datasum",
        "nodatacow,ro",
    ];
    require!(Need::Kernel, Need::Root);
    let (volume, _) = volume();
    let tour = |at: &Path, who: &str, remount: &dyn Fn(&str)| {
        for (number, options) in REMOUNTS.into_iter().enumerate() {
            remount(&format!("remount,rw,{options}"));
            let made = fs::write(at.join(format!("{who}{number}")), vec![7; 100_000]);
            assert_eq!(made.is_ok(), !options.ends_with("ro"), "{who} {options}: {made:?}");
        }
    };
    volume.mount("");
    tour(&volume.point, "ours", &|options| {
        ubtrfs(&["mount".as_ref(), "-o".as_ref(), options.as_ref(), volume.point.as_os_str()]).ok();
    });
    let options = volume.stats()["options"].to_string();
    assert!(options.contains("\"nodatacow\"") && !options.contains("compress"), "{options}");
    volume.umount();
    let mount = KernelMount::new(&[&volume.image], "");
    tour(mount.path(), "theirs", &|options| {
        assert!(Command::new("mount").args(["-o", options]).arg(mount.path()).status().unwrap().success());
    });
    mount.unmount();
    for (number, options) in REMOUNTS.into_iter().enumerate().filter(|(_, options)| !options.ends_with("ro")) {
        let of = |who: &str| flags(&volume.image, &format!("/{who}{number}"));
        assert_eq!(of("ours"), of("theirs"), "{number}: {options}");
    }
    assert_btrfs_check_clean(&volume.image);
}

#[test]
fn with_strictatime_each_reader_changes_the_time_of_access() {
    let (volume, _) = volume();
    volume.mount("strictatime");
    let file = volume.point.join("top");
    let read = || {
        std::thread::sleep(Duration::from_millis(20));
        assert!(Command::new("cat").arg(&file).output().unwrap().status.success());
        let found = fs::metadata(&file).unwrap();
        (found.atime(), found.atime_nsec())
    };
    let times: Vec<_> = (0..4).map(|_| read()).collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
    volume.umount();
    volume.mount("");
    let (first, second) = (read(), read());
    assert_eq!(first, second);
    volume.umount();
}

#[test]
fn the_threads_that_compress_are_changed_by_a_remount() {
    require!(Need::Root);
    let (volume, _) = volume();
    volume.mount("compress=zstd");
    let remount =
        |options: &str| ubtrfs(&["mount".as_ref(), "-o".as_ref(), options.as_ref(), volume.point.as_os_str()]);
    let options = || volume.stats()["options"].to_string();
    assert!(!options().contains("thread_pool"));
    for threads in [1, 9, 3] {
        remount(&format!("remount,thread_pool={threads}")).ok();
        assert!(options().contains(&format!("\"thread_pool={threads}\"")), "{}", options());
        fs::write(volume.point.join(format!("file{threads}")), vec![7; 10 << 20]).unwrap();
    }
    assert!(!remount("remount,thread_pool=0").success());
    volume.umount();
    assert_btrfs_check_clean(&volume.image);
}

#[test]
fn a_seed_is_mounted_for_reading_unasked() {
    require!(Need::Tool("btrfstune"));
    let (volume, _) = volume();
    assert!(Command::new("btrfstune").args(["-f", "-S", "1"]).arg(&volume.image).status().unwrap().success());
    let before = fs::read(&volume.image).unwrap();
    let mounted = volume.try_mount("").ok();
    assert!(mounted.stderr.contains("is a seed, which is only read"), "{}", mounted.stderr);
    assert_eq!(fs::read(volume.point.join("top")).unwrap(), b"content");
    let refused = fs::write(volume.point.join("new"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    volume.umount();
    assert!(fs::read(&volume.image).unwrap() == before);
}

/// A volume that btrfs-image restores from a dump can be written by the kernel, and by ubtrfs.
#[test]
fn a_volume_that_was_restored_from_a_dump_is_written_and_repaired() {
    require!(Need::Kernel, Need::Tool("btrfs-image"));
    let (volume, _) = volume();
    let dump = volume.dir.path().join("dump");
    let run = |words: &[&Path]| assert!(Command::new("btrfs-image").args(words).status().unwrap().success());
    run(&[&volume.image, &dump]);
    fs::remove_file(&volume.image).unwrap();
    run(&["-r".as_ref(), &dump, &volume.image]);
    fs::File::options().write(true).open(&volume.image).unwrap().set_len(256 << 20).unwrap();
    let info = ubtrfs(&["info".as_ref(), volume.image.as_os_str()]).ok().stdout;
    volume.mount("");
    fs::write(volume.point.join("new"), vec![3; 1 << 20]).unwrap();
    volume.umount();
    let mount = KernelMount::new(&[&volume.image], "");
    assert!(fs::read(mount.path().join("new")).unwrap() == vec![3; 1 << 20], "{info}");
    fs::write(mount.path().join("theirs"), "x").unwrap();
    mount.unmount();
    let repaired = ubtrfs(&["check".as_ref(), "--repair".as_ref(), "-y".as_ref(), volume.image.as_os_str()]);
    assert!(!repaired.stderr.contains("only read"), "{}", repaired.report());
}

/// Only the checksum of the first copy of a block is wrong, and then also that of the second.
#[test]
fn blocks_with_wrong_checksums_are_read_on_request() {
    let (volume, _) = volume();
    let bytes = fs::read(&volume.image).unwrap();
    let mut damaged = bytes.clone();
    // The leaves of the top-level subvolume: owner 5, level 0.
    let blocks = bytes.chunks_exact(16384).enumerate().filter(|(_, block)| {
        block[88..96] == 5_u64.to_le_bytes()
            && block[100] == 0
            && block[96..100] != [0; 4]
            && block[32..48] == bytes[65536 + 32..65536 + 48]
    });
    for (number, _) in blocks {
        damaged[number * 16384] ^= 1;
    }
    fs::write(&volume.image, &damaged).unwrap();
    assert!(
        !volume.try_mount("ro").success()
            || fs::read_dir(&volume.point).is_err()
            || fs::read(volume.point.join("top")).is_err()
    );
    let _ = volume.try_umount();
    volume.mount("ro,rescue=imetacsums");
    assert_eq!(fs::read(volume.point.join("top")).unwrap(), b"content");
    volume.umount();
    assert!(fs::read(&volume.image).unwrap() == damaged);
}
