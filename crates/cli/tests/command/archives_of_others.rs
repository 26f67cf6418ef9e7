//! Tests with archives that other programs write.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use tar::EntryType;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::{archive, import_layers, run};
use crate::editing::{difference, is_clean, listing, quiet, with_input};
use crate::{fails, new_volume, success, ubtrfs};

/// Makes a sparse file of this size, with some pieces of data.
fn sparse_file(path: &Path, size: u64, pieces: u64) {
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    for piece in 0..pieces {
        let at = (size / pieces) * piece + 8192;
        file.write_all_at(&[piece as u8 + 1; 5000], at).unwrap();
    }
}

/// Tests GNU tar's old format, with so many ranges that the map continues in further blocks, and
/// the three variants of its pax format.
#[test]
fn sparse_files_of_gnu_tar_are_read_in_every_form() {
    require!(Need::Tool("tar"), Need::Tool("rsync"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let words = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    sparse_file(&tree.join("many"), 8 << 20, 60);
    sparse_file(&tree.join("few"), 1 << 20, 2);
    sparse_file(&tree.join("large"), 10 << 30, 3);
    sparse_file(&tree.join("hole"), 3 << 20, 0);
    sparse_file(&tree.join(format!("{}-long", "n".repeat(150))), 1 << 20, 1);
    fs::write(tree.join("dense"), vec![3; 70_000]).unwrap();
    let forms: [&[&str]; 4] = [
        &["--format=gnu"],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ];
    for (number, form) in forms.iter().enumerate() {
        run("tar", &[form, &["-S", "-C", &words("tree"), "-cf", &words("x.tar"), "."][..]].concat());
        let place = format!("{image}:{number}");
        quiet(&["import", &place, &words("x.tar")]);
        let back = dir.path().join(number.to_string());
        quiet(&["cp", "-a", &place, back.to_str().unwrap()]);
        // Compared without rsync, which would read the holes of the large file.
        for name in ["many", "few", "hole", "dense"] {
            assert!(fs::read(back.join(name)).unwrap() == fs::read(tree.join(name)).unwrap(), "{form:?}: {name}");
        }
        let large = fs::File::open(back.join("large")).unwrap();
        assert_eq!(large.metadata().unwrap().len(), 10 << 30, "{form:?}");
        for piece in 0..3 {
            let mut data = [0; 5000];
            large.read_exact_at(&mut data, (10 << 30) / 3 * piece + 8192).unwrap();
            assert_eq!(data, [piece as u8 + 1; 5000], "{form:?}");
        }
        fs::remove_file(back.join("large")).unwrap();
        fs::rename(tree.join("large"), dir.path().join("kept")).unwrap();
        assert_eq!(difference(&tree, &back), "", "{form:?}");
        fs::rename(dir.path().join("kept"), tree.join("large")).unwrap();
    }
    is_clean(&image);
    // An export keeps holes, too.
    let exported = ubtrfs(&["export", &format!("{image}:0")]);
    assert!(exported.stdout.len() < 2 << 20, "{}", exported.stdout.len());
}

#[test]
fn names_have_at_most_255_bytes() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let longest = "x".repeat(255);
    fs::write(tree.join(&longest), "x").unwrap();
    let path = dir.path().join("x.tar").to_str().unwrap().to_owned();
    run("tar", &["-C", tree.to_str().unwrap(), "-cf", &path, "."]);
    quiet(&["import", &image, &path]);
    assert_eq!(success(&ubtrfs(&["cat", &image, &longest])), "x");
    let before = listing(&image);
    let longer = format!("s,x$,yy,;s,^./{longest}$,./{longest}y,");
    run("tar", &["-C", tree.to_str().unwrap(), "--transform", &longer, "-cf", &path, "."]);
    fails(&ubtrfs(&["import", &image, &path]), 1, "File name too long");
    assert_eq!(listing(&image), before);
    is_clean(&image);
}

#[test]
fn an_archive_that_does_not_fit_changes_nothing() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    success(&with_input(&["put", &format!("{image}:file")], b"old"));
    let before = listing(&image);
    let large = vec![5; 200 << 20];
    let bytes = archive(&[("file", EntryType::Regular, "", b"new"), ("large", EntryType::Regular, "", &large)]);
    let path = dir.path().join("x.tar");
    fs::write(&path, bytes).unwrap();
    fails(&ubtrfs(&["import", &image, path.to_str().unwrap()]), 1, "No space left on device; the image is as it was");
    assert_eq!(listing(&image), before);
    assert_eq!(success(&ubtrfs(&["cat", &image, "file"])), "old");
    is_clean(&image);
}

#[test]
fn layers_go_through_links_of_layers_below_and_never_out_of_the_directory() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let (file, directory, symlink, link) =
        (EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link);
    let layers = [
        archive(&[
            ("usr/lib/old", file, "", b"1"),
            ("lib", symlink, "usr/lib", b""),
            ("lib64", symlink, "/usr/lib", b""),
            ("up", symlink, "../../../..", b""),
            ("new", symlink, "var/made", b""),
            ("turned", symlink, "usr", b""),
        ]),
        archive(&[
            ("lib/one", file, "", b"2"),
            ("lib64/two", file, "", b"3"),
            ("lib/.wh.old", file, "", b""),
            ("up/etc/passwd", file, "", b"4"),
            ("new/x", file, "", b"5"),
            ("three", link, "lib64/two", b""),
            ("turned", directory, "", b""),
        ]),
    ];
    quiet(&["mkdir", &format!("{image}:outside")]);
    import_layers(dir.path(), &format!("{image}:root"), &layers);
    let shown = success(&ubtrfs(&["ls", "-R", &image, "/"]));
    let expected = "/:\noutside\nroot\n\n/outside:\n\n/root:\nusr\nlib\nlib64\nup\nnew\netc\nvar\nthree\nturned\n\n\
                    /root/usr:\nlib\n\n/root/usr/lib:\none\ntwo\n\n/root/etc:\npasswd\n\n/root/var:\nmade\n\n\
                    /root/var/made:\nx\n\n/root/turned:\n";
    assert_eq!(shown, expected);
    is_clean(&image);
    let looped = archive(&[("a", symlink, "b", b""), ("b", symlink, "a", b""), ("a/x", file, "", b"")]);
    fails(&with_input(&["import", "--oci-layer", &image], &looped), 1, "Too many levels of symbolic links");
}

#[test]
fn one_file_is_exported_by_its_name() {
    require!(Need::Tool("tar"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    quiet(&["mkdir", &format!("{image}:etc")]);
    success(&with_input(&["put", &format!("{image}:etc/motd")], b"hello"));
    let path = dir.path().join("x.tar");
    fs::write(&path, ubtrfs(&["export", &format!("{image}:etc/motd")]).stdout).unwrap();
    let listed = Command::new("tar").arg("-tf").arg(&path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "./motd\n");
}

#[test]
fn a_record_without_a_value_leaves_what_the_header_says() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let (records, file, symlink) = (EntryType::XHeader, EntryType::Regular, EntryType::Symlink);
    let bytes = archive(&[
        ("records", records, "", b"8 path=\n"),
        ("file", file, "", b"content"),
        ("records", records, "", b"13 linkpath=\n"),
        ("link", symlink, "file", b""),
    ]);
    success(&with_input(&["import", &image], &bytes));
    assert_eq!(success(&ubtrfs(&["cat", &image, "link"])), "content");
    is_clean(&image);
}
