//! Tests that permissions and other attributes in archives are applied, in every format, or refused
//! with their names.

use std::fs;
use std::path::Path;
use std::process::Command;

use tar::{EntryType, Header};
use ubtrfs::{Dir, Filesystem, Options};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archive_forms::record;
use crate::archives::run;
use crate::editing::{is_clean, listing, quiet, with_input};
use crate::{fails, new_volume, success, ubtrfs};

const ACCESS: &[u8] = b"system.posix_acl_access";

/// Returns an entry with its data.
fn entry(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o664);
    header.set_uid(1);
    header.set_gid(2);
    header.set_mtime(1_700_000_000);
    header.set_size(content.len() as u64);
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_cksum();
    let mut bytes = [&header.as_bytes()[..], content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// Returns a file with records.
fn file_with(name: &str, records: &[(&str, &[u8])]) -> Vec<u8> {
    let records: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
    [entry("pax", b'x', &records), entry(name, b'0', b"content")].concat()
}

fn open(image: &str) -> std::sync::Arc<Filesystem> {
    Filesystem::open_path(image, Options { read_only: true, ..Options::default() }).unwrap()
}

/// Returns the value of an attribute in an image, if it exists.
fn attribute(image: &str, path: &str, name: &[u8]) -> Option<Vec<u8>> {
    let fs = open(image);
    let file = ubtrfs::OpenOptions::new().read(true).open(&Dir::root(&fs), path).unwrap();
    fs.inodes().get_xattr(file.id(), name).ok()
}

#[test]
fn lists_of_rights_are_taken_in_every_form() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let text = &b"user::rw-,user:77:r--,group::---,mask::rw-,other::r--"[..];
    let archive = [
        file_with("numbers", &[("SCHILY.acl.access", text)]),
        file_with(
            "star",
            &[("SCHILY.acl.access", b"user::rw-,user:somebody else:r--:77,group::---,mask::rw-,other::r--")],
        ),
        file_with("lines", &[("SCHILY.acl.access", b"user::rw-\nuser:77:r--\ngroup::---\nmask::rw-\nother::r--\n")]),
    ]
    .concat();
    success(&with_input(&["import", &image], &archive));
    let list = attribute(&image, "numbers", ACCESS).unwrap();
    assert_eq!(list.len(), 4 + 5 * 8);
    for other in ["star", "lines"] {
        assert_eq!(attribute(&image, other, ACCESS).as_ref(), Some(&list), "{other}");
    }
    let fs = open(&image);
    assert_eq!(Dir::root(&fs).metadata("numbers").unwrap().mode & 0o777, 0o664);
    is_clean(&image);
}

#[test]
fn labels_attributes_and_times_of_others_are_taken() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let archive = [
        entry("global", b'g', &record("RHT.security.selinux", b"system_u:object_r:all_t:s0")),
        file_with(
            "file",
            &[
                ("LIBARCHIVE.xattr.user.both", b"AQI="),
                ("LIBARCHIVE.xattr.user.a%2Fb", b"AQIDBA"),
                ("SCHILY.xattr.user.both", b"star's"),
                ("SCHILY.xattr.user.x%3Dy%25z", b"1"),
                ("LIBARCHIVE.creationtime", b"1000000000.5"),
            ],
        ),
        file_with("own", &[("RHT.security.selinux", b"system_u:object_r:own_t:s0")]),
        file_with("none", &[("RHT.security.selinux", b"")]),
    ]
    .concat();
    success(&with_input(&["import", &image], &archive));
    let label = |path: &str| attribute(&image, path, b"security.selinux").map(|it| String::from_utf8(it).unwrap());
    assert_eq!(label("file").as_deref(), Some("system_u:object_r:all_t:s0\0"));
    assert_eq!(label("own").as_deref(), Some("system_u:object_r:own_t:s0\0"));
    assert_eq!(label("none"), None);
    assert_eq!(attribute(&image, "file", b"user.both").unwrap(), b"star's");
    assert_eq!(attribute(&image, "file", b"user.a/b").unwrap(), [1, 2, 3, 4]);
    assert_eq!(attribute(&image, "file", b"user.x=y%z").unwrap(), b"1");
    let fs = open(&image);
    let file = ubtrfs::OpenOptions::new().read(true).open(&Dir::root(&fs), "file").unwrap();
    let made = fs.inodes().attributes(file.id()).unwrap().btime;
    assert_eq!((made.sec, made.nsec), (1_000_000_000, 500_000_000));
    drop((file, fs));
    // An export encodes the names as GNU tar does, and can be imported again unchanged.
    let exported = ubtrfs(&["export", &image]).stdout;
    assert!(exported.windows(26).any(|part| part == b"SCHILY.xattr.user.x%3Dy%25"));
    let other = dir.path().join("other").to_str().unwrap().to_owned();
    success(&ubtrfs(&["mkfs", "--size", "128M", &other]));
    success(&with_input(&["import", &other], &exported));
    assert_eq!(attribute(&other, "file", b"user.x=y%z").unwrap(), b"1");
}

#[test]
fn what_no_file_here_can_have_is_refused_by_name() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let before = listing(&image);
    for (records, words) in [
        (&[("SCHILY.acl.ace", &b"owner@:rwx:allow"[..])][..], "NFSv4"),
        (
            &[("SCHILY.acl.access", b"user::rw-,user:no such user is here:r--,group::r--,mask::r--,other::r--")],
            "no such user",
        ),
        (&[("SCHILY.acl.access", b"user::rw-")], "an ACL that can't be set"),
        (&[("SCHILY.xattr.system.posix_acl_access", b"garbage")], "system.posix_acl_access"),
        (&[("SCHILY.xattr.security.capability", b"garbage")], "security.capability"),
        (&[("SCHILY.xattr.strange.name", b"1")], "strange.name"),
        (&[("SCHILY.xattr.user.\0", b"1")], "user.\\0"),
        (&[("SCHILY.xattr.btrfs.compression", b"garbage")], "btrfs.compression"),
        (&[("uid", b"4294967295")], "uid"),
    ] {
        fails(&with_input(&["import", &image], &file_with("file", records)), 1, words);
    }
    for (kind, words) in [(b'A', "Solaris"), (b'M', "another part")] {
        fails(&with_input(&["import", &image], &entry("file", kind, b"")), 1, words);
    }
    assert_eq!(listing(&image), before);
}

#[test]
fn what_holds_for_all_entries_has_bounds() {
    const MAX: usize = 64 << 10;
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let global = |key: &str, bytes: usize| entry("global", b'g', &record(key, &vec![b'x'; bytes]));
    let file = || entry("file", b'0', b"content");
    // A record that replaces one of the same name does not count in addition.
    let mut archive: Vec<u8> = (0..8).flat_map(|_| global("comment", MAX - 100)).collect();
    archive.extend(file());
    let path = dir.path().join("x.tar").to_str().unwrap().to_owned();
    fs::write(&path, archive).unwrap();
    quiet(&["import", &image, &path]);
    let before = listing(&image);
    let words = "more than 65536 bytes of records that hold for all entries";
    for archive in [
        [global("comment", MAX), file()].concat(),
        [global("SCHILY.xattr.user.one", MAX / 2), global("SCHILY.xattr.user.two", MAX / 2), file()].concat(),
        (0..4000).flat_map(|number| global(&format!("key {number}"), 20)).chain(file()).collect(),
    ] {
        fs::write(&path, archive).unwrap();
        fails(&ubtrfs(&["import", &image, &path]), 1, words);
    }
    assert_eq!(listing(&image), before);
}

#[test]
fn files_are_compressed_as_their_attribute_says() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let directory = [entry("pax", b'x', &record("SCHILY.xattr.btrfs.compression", b"zstd")), entry("d/", b'5', b"")];
    let content: Vec<u8> = (0..60_000).flat_map(|number| format!("{number:06}\n").into_bytes()).collect();
    let archive = [directory.concat(), entry("d/file", b'0', &content), entry("plain", b'0', &content)].concat();
    success(&with_input(&["import", &image], &archive));
    let fs = open(&image);
    let of = |path: &str| {
        let file = ubtrfs::OpenOptions::new().read(true).open(&Dir::root(&fs), path).unwrap();
        (fs.inodes().attributes(file.id()).unwrap().blocks, fs.inodes().get_xattr(file.id(), b"btrfs.compression").ok())
    };
    let (packed, plain) = (of("d/file"), of("plain"));
    assert_eq!((packed.1.as_deref(), plain.1), (Some(&b"zstd"[..]), None));
    assert!(
        fs.inodes().flags(ubtrfs::OpenOptions::new().read(true).open(&Dir::root(&fs), "d/file").unwrap().id()).unwrap()
            != 0
    );
    drop(fs);
    let bytes = fs::read(&image).unwrap();
    let is_there = |content: &[u8]| bytes.chunks(4096).filter(|block| *block == &content[..4096]).count();
    assert_eq!(is_there(&content), 1, "one of the two files is not compressed");
    is_clean(&image);
}

/// Archives of package registries have blank fields, and some programs write no zeros at the end.
#[test]
fn odd_archives_that_tar_reads_are_read() {
    require!(Need::Tool("tar"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let blank = |range: std::ops::Range<usize>, byte: u8| {
        let mut bytes = entry("file", b'0', b"content");
        bytes[range].fill(byte);
        bytes[148..156].fill(b' ');
        let sum: u32 = bytes[..512].iter().map(|byte| u32::from(*byte)).sum();
        bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes
    };
    let cases = [
        ("blank owners", blank(108..124, b' ')),
        ("owners of zeros", blank(108..124, 0)),
        ("blank time", blank(136..148, b' ')),
        ("no type", blank(156..157, 0)),
        ("a type that nobody knows", blank(156..157, b'Q')),
        ("a label", [entry("label", b'V', b""), entry("file", b'0', b"content")].concat()),
        ("a list of names", [entry("d/", b'D', b"Yfile\0\0"), entry("file", b'0', b"content")].concat()),
        ("a comment", [entry("g", b'g', &record("comment", b"x")), entry("file", b'0', b"content")].concat()),
    ];
    for (what, archive) in cases {
        let path = dir.path().join("x.tar");
        fs::write(&path, &archive).unwrap();
        let listed = Command::new("tar").arg("-tf").arg(&path).output().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains("file"), "{what}: {listed:?}");
        let place = format!("{image}:{what}");
        success(&with_input(&["import", &place], &archive));
        assert_eq!(success(&ubtrfs(&["cat", &image, &format!("{what}/file")])), "content", "{what}");
    }
    is_clean(&image);
}

#[test]
fn archives_may_be_compressed() {
    require!(Need::Tool("tar"), Need::Tool("zstd"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let archive = [entry("file", b'0', &b"content of it ".repeat(1000)), vec![0; 1024]].concat();
    let plain = dir.path().join("x.tar");
    fs::write(&plain, &archive).unwrap();
    for program in ["gzip", "zstd", "xz", "bzip2"] {
        let Ok(packed) = Command::new(program).arg("-c").arg(&plain).output() else { continue };
        let place = format!("{image}:{program}");
        success(&with_input(&["import", &place], &packed.stdout));
        let path = dir.path().join(program);
        fs::write(&path, &packed.stdout).unwrap();
        quiet(&["import", &place, path.to_str().unwrap()]);
        assert_eq!(success(&ubtrfs(&["cat", &image, &format!("{program}/file")])).len(), 14_000);
        let made = dir.path().join(format!("{program}.img"));
        success(&ubtrfs(&["mkfs", "--rootdir", path.to_str().unwrap(), made.to_str().unwrap()]));
        is_clean(made.to_str().unwrap());
        let half = &packed.stdout[..packed.stdout.len() / 2];
        assert_eq!(with_input(&["import", &place], half).status.code(), Some(1), "{program}, cut");
    }
}

/// Archives that GNU tar and bsdtar write of a file with special permissions can be imported.
#[test]
fn rights_come_through_tar_and_bsdtar() {
    require!(Need::Root, Need::Tool("setfacl"), Need::Tool("tar"));
    let dir = scratch_dir();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "secret").unwrap();
    let words = |path: &Path| path.to_str().unwrap().to_owned();
    run("setfacl", &["-m", "u:1:rw,u:77:r,g:2:-", &words(&tree.join("file"))]);
    run("setfacl", &["-d", "-m", "u:1:rwx", &words(&tree)]);
    let archive = dir.path().join("x.tar");
    for program in ["tar", "bsdtar"] {
        let made = Command::new(program)
            .args(["--acls", "--format=pax", "-C", &words(&tree), "-cf", &words(&archive), "."])
            .output();
        let Ok(made) = made else { continue };
        assert!(made.status.success(), "{program}");
        let image = dir.path().join(program).to_str().unwrap().to_owned();
        success(&ubtrfs(&["mkfs", "--size", "128M", &image]));
        quiet(&["import", &image, &words(&archive)]);
        let back = dir.path().join(format!("{program} back"));
        quiet(&["cp", "-a", &format!("{image}:/"), &words(&back)]);
        for name in ["", "file"] {
            let shown = |path: &Path| {
                let shown = Command::new("getfacl").args(["-n", "-c"]).arg(path).output().unwrap();
                String::from_utf8(shown.stdout).unwrap()
            };
            assert_eq!(shown(&back.join(name)), shown(&tree.join(name)), "{program}, {name}");
        }
    }
}
