//! Tests of importing and exporting tar archives.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tar::{EntryType, Header};
use ubtrfs_format::{ItemType, Key, TreeId};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::editing::{difference, is_clean, listing, make_tree, quiet, with_input};
use crate::{fails, new_volume, success, ubtrfs};

/// Returns an archive of these entries: a name, a type, the target of a link, and content.
pub fn archive(entries: &[(&str, EntryType, &str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind, target, content) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        header.set_uid(1);
        header.set_gid(2);
        header.set_mtime(1_700_000_000);
        header.set_size(content.len() as u64);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Imports layers of an OCI image, the lowest first. Their archives are stored in `dir`.
pub fn import_layers(dir: &Path, place: &str, layers: &[Vec<u8>]) {
    let path = |number: usize| dir.join(format!("{number}.tar")).to_str().unwrap().to_owned();
    let paths: Vec<String> = (0..layers.len()).map(path).collect();
    for (path, layer) in paths.iter().zip(layers) {
        fs::write(path, layer).unwrap();
    }
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    quiet(&[&["import", "--oci-layer", place], &paths[..]].concat());
}

/// Runs a program, which must succeed.
#[track_caller]
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Such names would let a reader of the archive make files elsewhere.
#[test]
fn names_that_no_file_can_have_are_not_exported() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    success(&ubtrfs(&["mkdir", &format!("{image}:dir")]));
    success(&ubtrfs(&["truncate", "-s", "1", &format!("{image}:dir/sixteen-letters-")]));
    let damaged = ubtrfs_damage::Image::open(Path::new(&image));
    let has_name = |key: &Key, data: &[u8]| key.item_type == ItemType::DIR_INDEX && data.ends_with(b"sixteen-letters-");
    damaged.edit(TreeId::FS, has_name, |_, data| {
        let at = data.len() - 16;
        data[at..].copy_from_slice(b"../../../escaped");
    });
    for format in ["tar", "composefs"] {
        let refused = ubtrfs(&["export", "--format", format, &image]);
        fails(&refused, 1, "dir has the name '../../../escaped' in it, which no file can have");
        assert!(!String::from_utf8_lossy(&refused.stdout).contains("escaped"), "{format}");
    }
}

#[test]
fn a_tree_is_the_same_after_tar_import_export_and_tar() {
    require!(Need::Kernel, Need::Tool("rsync"), Need::Tool("setfattr"), Need::Tool("setfacl"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let words = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    run("mknod", &[&words("tree/device"), "b", "259", "300"]);
    run("mkfifo", &[&words("tree/fifo")]);
    run("chown", &["3000000000:5", &words("tree/small")]);
    run("setfattr", &["-n", "user.odd", "-v", "0x0001ff0a3d", &words("tree/small")]);
    run("setfattr", &["-n", "trusted.one", "-v", "x", &words("tree/sub")]);
    run("setfacl", &["-m", "u:77:rw", &words("tree/sub/file")]);
    run("touch", &["-h", "-d", "1969-12-31T23:59:58.25Z", &words("tree/link")]);
    fs::write(tree.join(format!("sub/{}", "n".repeat(255))), "long").unwrap();
    let all = ["--xattrs", "--xattrs-include=*", "--acls", "--format=pax", "-S"];
    run("tar", &[&all[..], &["-C", &words("tree"), "-cf", &words("in.tar"), "."]].concat());
    quiet(&["import", &format!("{image}:a/tree"), &words("in.tar")]);
    let exported = ubtrfs(&["export", &format!("{image}:a/tree")]);
    assert!(exported.status.success() && exported.stderr.is_empty());
    fs::write(dir.path().join("out.tar"), &exported.stdout).unwrap();
    fs::create_dir(dir.path().join("back")).unwrap();
    run("tar", &["--xattrs", "--xattrs-include=*", "-C", &words("back"), "-xpf", &words("out.tar")]);
    assert_eq!(difference(&tree, &dir.path().join("back")), "");
    // An archive that one image has exported is exported by another one byte for byte.
    let other = words("other");
    success(&ubtrfs(&["mkfs", "--size", "128M", &other]));
    success(&with_input(&["import", &other], &exported.stdout));
    assert!(ubtrfs(&["export", &other]).stdout == exported.stdout);
    is_clean(&image);
    let mount = KernelMount::new(&[Path::new(&image)], "");
    assert_eq!(difference(&tree, &mount.path().join("a/tree")), "");
    assert_eq!(mount.unmount(), Vec::<String>::new());
}

#[test]
fn hostile_archives_change_nothing() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    quiet(&["mkdir", "-p", &at("in/dir/full"), &at("out")]);
    success(&with_input(&["put", &at("in/file")], b"old"));
    let before = listing(&image);
    let (file, link, symlink) = (EntryType::Regular, EntryType::Link, EntryType::Symlink);
    let good = ("good", file, "", &b"good"[..]);
    let attempts = [
        (archive(&[good, ("../out/x", file, "", b"x")]), "'..'"),
        (archive(&[good, ("a/../../out/x", file, "", b"x")]), "'..'"),
        (archive(&[good, ("x", link, "../out", b"")]), "'..'"),
        (archive(&[good, ("up", symlink, "../out", b""), ("up/x", file, "", b"x")]), "through a symbolic link"),
        (archive(&[good, ("up", symlink, "..", b""), ("x", link, "up/in/file", b"")]), "link to no file"),
        (archive(&[good, ("x", link, "none", b"")]), "link to no file"),
        (archive(&[good, ("x", link, "dir", b"")]), "link to no file"),
        (archive(&[good, ("dir", file, "", b"x")]), "would replace a directory that is not empty"),
        (archive(&[good, ("file/x", file, "", b"x")]), "Not a directory"),
        (archive(&[good, ("x", symlink, "", b"")]), "No such file"),
        (archive(&[good, (".", file, "", b"x")]), "would take the place of the directory"),
        (archive(&[good, ("/", symlink, "dir", b"")]), "would take the place of the directory"),
        (b"no archive at all, but some text".repeat(100), "archive"),
        (Vec::new(), "no archive"),
        (b"short".to_vec(), "no tar archive"),
    ];
    for (bytes, words) in attempts {
        fails(&with_input(&["import", &at("in")], &bytes), 1, words);
    }
    let whole = archive(&[good, ("large", file, "", &vec![7; 70_000]), ("last", file, "", b"")]);
    for len in [1, 511, 512, 700, 1025, 2000, 70_000, whole.len() - 1025, whole.len() - 1023] {
        fails(&with_input(&["import", &at("in")], &whole[..len]), 1, "ubtrfs: standard input");
    }
    assert_eq!(listing(&image), before);
    is_clean(&image);
    // The last one of several entries with a name counts, and a slash means the directory that the
    // archive is extracted to.
    let bytes = archive(&[
        good,
        ("/good", file, "", b"better"),
        ("new/below", file, "", b""),
        ("./", EntryType::Directory, "", b""),
    ]);
    success(&with_input(&["import", &at("in")], &bytes));
    assert_eq!(success(&ubtrfs(&["cat", &image, "in/good"])), "better");
    is_clean(&image);
}

#[test]
fn layers_remove_what_is_below_them() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let (file, directory) = (EntryType::Regular, EntryType::Directory);
    let layers = [
        archive(&[
            ("a/one", file, "", b"1"),
            ("a/two", file, "", b"2"),
            ("b/x/y", file, "", b"3"),
            ("c/d/e", file, "", b"4"),
        ]),
        archive(&[
            ("a/.wh.one", file, "", b""),
            ("a/.wh.never", file, "", b""),
            ("b", directory, "", b""),
            ("b/x/new", file, "", b"5"),
            ("b/.wh..wh..opq", file, "", b""),
            ("c", file, "", b"6"),
        ]),
    ];
    import_layers(dir.path(), &image, &layers);
    let shown = success(&ubtrfs(&["ls", "-R", &image, "/"]));
    assert_eq!(shown, "/:\na\nb\nc\n\n/a:\ntwo\n\n/b:\nx\n\n/b/x:\nnew\n");
    is_clean(&image);
}

#[test]
fn an_ordinary_user_makes_an_image_of_roots_files() {
    require!(Need::Root, Need::Tool("setpriv"));
    let dir = scratch_dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // All users can run the program there.
    let program = dir.path().join("ubtrfs");
    crate::copy_program(&program);
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    let ordinary = |arguments: &[&str]| {
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", program.to_str().unwrap()];
        run("setpriv", &[&user, arguments].concat());
    };
    ordinary(&["mkfs", "--size", "128M", "--root-owner", "0:0", &image]);
    ordinary(&["mkdir", "--owner", "0:0", &format!("{image}:bin")]);
    ordinary(&["cp", "--owner", "0:0", "/bin/true", &format!("{image}:bin/tool")]);
    ordinary(&["chmod", "4755", &format!("{image}:bin/tool")]);
    ordinary(&["mknod", "--owner", "0:0", &format!("{image}:bin/null"), "c", "1", "3"]);
    ordinary(&["cp", "-a", &format!("{image}:bin/tool"), dir.path().join("tool").to_str().unwrap()]);
    let shown = success(&ubtrfs(&["ls", "-l", &image, "bin"]));
    assert!(shown.contains("-rwsr-xr-x   1     0     0") && shown.contains("1, 3"), "{shown}");
    let mode = fs::metadata(dir.path().join("tool")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "set-id bits do not follow to another owner");
    is_clean(&image);
}
