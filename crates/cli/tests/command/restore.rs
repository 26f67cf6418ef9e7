//! Tests that `ubtrfs restore` copies everything that can be read, and writes only into the
//! directory.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ubtrfs_format::{Ino, ItemType, Key, TreeId};
use ubtrfs_testkit::diff::{Options, assert_same, diff};
use ubtrfs_testkit::fixture::{Fixture, ordinary};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::walk::{Tree, walk};

use crate::{changed, fails, new_volume, success, ubtrfs};
use ubtrfs_damage::Image;

/// A volume to restore, and a directory to restore to.
struct Case {
    dir: tempfile::TempDir,
    fixture: Fixture,
    image: PathBuf,
}

impl Case {
    fn new(name: &str) -> Self {
        let dir = scratch_dir();
        let fixture = Fixture::load(name);
        let image = fixture.unpack(dir.path()).remove(0);
        Self { dir, fixture, image }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn restore(&self, options: &[&str]) -> Output {
        let subvolume = self.fixture.manifest.subvol.to_string();
        let mut arguments = vec!["restore".as_ref(), "--subvolid".as_ref(), subvolume.as_ref()];
        arguments.extend(options.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
        let out = self.out();
        arguments.extend([self.image.as_os_str(), out.as_os_str()]);
        ubtrfs(&arguments)
    }

    /// Returns the differences of the copy.
    fn differences(&self) -> Vec<String> {
        diff(&within_range(self.fixture.tree()), &within_range(walk(&self.out())), Options::COPY)
    }
}

/// Returns the tree without files whose times other file systems can't store, and without the
/// report of the restore.
fn within_range(mut tree: Tree) -> Tree {
    tree.entries.retain(|path, _| !path.starts_with(b"time/") && !path.starts_with(b"ubtrfs-restore-report"));
    tree
}

/// Returns the paths of files that were found though no directory refers to them, by the report.
fn found(out: &Path) -> Vec<String> {
    let text = fs::read_to_string(out.join("ubtrfs-restore-report.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let found = lines.filter(|line| line["state"] == "found" && line["why"] == "no directory refers to it any more");
    found.map(|line| line["path"].as_str().unwrap().to_owned()).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn sound_volumes_are_copied_as_they_are() {
    require!(Need::Root);
    for fixture in ordinary()
        .into_iter()
        .filter(|fixture| fixture.manifest.subvolumes.iter().all(|subvolume| subvolume.parent_uuid.is_none()))
    {
        let name = fixture.manifest.name.clone();
        let case = Case::new(&name);
        let before = changed(&case.image);
        let output = case.restore(&[]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", said(&output));
        let what = format!("{name} (left: its manifest, right: the copy)");
        assert_same(&what, &within_range(case.fixture.tree()), &within_range(walk(&case.out())), Options::COPY);
        assert_eq!(changed(&case.image), before, "{name} was written to");
        // A second restore into the same directory is refused.
        fails(&case.restore(&[]), 1, "is not empty");
    }
}

#[test]
fn a_log_is_taken_along_unless_it_is_not_wanted() {
    require!(Need::Root);
    let case = Case::new("log-new-file");
    assert_eq!(case.restore(&[]).status.code(), Some(0));
    assert_eq!(case.differences(), Vec::<String>::new());
    let with_log = walk(&case.out()).entries.len();
    fs::remove_dir_all(case.out()).unwrap();
    assert_eq!(case.restore(&["--nologreplay"]).status.code(), Some(0));
    assert!(walk(&case.out()).entries.len() < with_log);
}

#[test]
fn holes_stay_holes() {
    require!(Need::Root);
    let case = Case::new("holes");
    assert_eq!(case.restore(&[]).status.code(), Some(0));
    let data: u64 = case.fixture.manifest.entries.iter().filter_map(|entry| entry.size).sum();
    let taken: u64 = walk(&case.out())
        .entries
        .keys()
        .map(|path| fs::symlink_metadata(case.out().join(std::ffi::OsStr::from_bytes(path))).unwrap().blocks() * 512)
        .sum();
    assert!(taken < data / 4, "{taken} bytes for {data}");
}

#[test]
fn any_superblock_and_any_older_root_will_do() {
    require!(Need::Root);
    let case = Case::new("plain");
    let zeroes = vec![0; 4096];
    let write = |at: u64| File::options().write(true).open(&case.image).unwrap().write_all_at(&zeroes, at).unwrap();
    let image = Image::open(&case.image);
    write(64 << 10);
    let output = case.restore(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("superblock at 67108864"), "{}", said(&output));
    assert_eq!(case.differences(), Vec::<String>::new());

    // The newest commit is unusable, and an earlier one is usable.
    fs::remove_dir_all(case.out()).unwrap();
    image.flip_all(image.superblock.root);
    let output = case.restore(&[]);
    assert!(said(&output).contains("backup root"), "{}", said(&output));
    assert!(walk(&case.out()).entries.len() > 10, "{}", said(&output));
    let listed = ubtrfs(&["restore".as_ref(), "--list-commits".as_ref(), case.image.as_os_str()]);
    assert!(String::from_utf8_lossy(&listed.stdout).lines().count() > 2);
    fails(&case.restore(&["--commit", "99999"]), 1, "is not empty");
    fs::remove_dir_all(case.out()).unwrap();
    fails(&case.restore(&["--commit", "99999"]), 1, "no superblock refers to commit 99999");

    write(64 << 20);
    fails(&case.restore(&[]), 1, "no btrfs found");
}

#[test]
fn lost_leaves_take_only_their_own_items_along() {
    require!(Need::Root);
    let all = Case::new("plain").fixture.tree().entries.len();
    let leaves = Image::open(&Case::new("plain").image).leaves(TreeId::FS).len();
    // The first leaf holds the root directory's names; all other leaves are similar to each other.
    for number in [0, 1, leaves / 2, leaves - 1] {
        let case = Case::new("plain");
        let image = Image::open(&case.image);
        let leaf = image.leaves(TreeId::FS)[number];
        image.flip_all(leaf);
        let before = changed(&case.image);
        let output = case.restore(&[]);
        let reported = said(&output);
        if number == 0 {
            // A volume can't be opened if its root directory has no attributes; an older commit may
            // have another leaf there.
            assert!(!reported.contains("panicked"), "{reported}");
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "leaf {number}: {reported}");
        assert!(reported.contains("unreadable: "), "leaf {number}: {reported}");
        let left = walk(&case.out()).entries.len();
        assert!(left + all / 2 > all, "leaf {number}: {left} of {all} are left: {reported}");
        assert_eq!(changed(&case.image), before, "the image was written to");
        fs::remove_dir_all(case.out()).unwrap();
        assert_eq!(case.restore(&["--dry-run"]).status.code(), Some(1), "leaf {number}");
        assert!(!case.out().exists());
    }
}

#[test]
fn data_is_copied_around_a_bad_sector_and_without_checksums() {
    require!(Need::Root);
    let case = Case::new("plain");
    let image = Image::open(&case.image);
    let is_data = |key: &Key, data: &[u8]| {
        use ubtrfs_format::items::{ExtentFlags, ExtentItem};
        key.item_type == ItemType::EXTENT_ITEM
            && ExtentItem::parse(key, data).is_ok_and(|item| item.flags & ExtentFlags::DATA != 0)
    };
    let extents: Vec<_> = image.items(TreeId::EXTENT).into_iter().filter(|(key, data)| is_data(key, data)).collect();
    let (key, _) = extents.iter().max_by_key(|(key, _)| key.offset).unwrap();
    image.flip(ubtrfs_format::Logical(key.objectid + 4096), &[0]);
    let output = case.restore(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("4096 bytes of ") && said(&output).contains("checksum"), "{}", said(&output));
    assert!(!case.differences().is_empty());
    fs::remove_dir_all(case.out()).unwrap();
    assert_eq!(case.restore(&["--ignore-checksums"]).status.code(), Some(0));

    // Without the checksum tree all files exist, but can't be verified.
    let case = Case::new("plain");
    let image = Image::open(&case.image);
    for leaf in image.leaves(TreeId::CSUM) {
        image.flip_all(leaf);
    }
    let output = case.restore(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("checksums of some data are lost"));
    assert_eq!(case.differences(), Vec::<String>::new());
}

#[test]
fn hostile_names_stay_inside_and_loops_end() {
    require!(Need::Root);
    let case = Case::new("plain");
    let image = Image::open(&case.image);
    let names: [&[u8]; 6] = [b"..", b"../../evil", b"/evil", b"a/../../evil", b".", b"x\0y"];
    for (number, name) in names.iter().enumerate() {
        let mut left = number;
        image.edit_leaf(TreeId::FS, |items| {
            let entries = items.iter_mut().filter(|(key, _)| key.item_type == ItemType::DIR_INDEX);
            for (_, data) in entries {
                if left == 0 {
                    // The length of the name is the 16-bit number at offset 27, and the name is at
                    // 30.
                    data[27..29].copy_from_slice(&(name.len() as u16).to_le_bytes());
                    data.truncate(30);
                    data.extend_from_slice(name);
                    return true;
                }
                left -= 1;
            }
            false
        });
    }
    // Directories that refer to the root again.
    let mut loops = 0;
    image.edit_leaf(TreeId::FS, |items| {
        for (key, data) in items.iter_mut() {
            if key.item_type == ItemType::DIR_INDEX && data[29] == 2 && key.objectid != Ino::ROOT_DIR.0 && loops < 3 {
                data[..8].copy_from_slice(&Ino::ROOT_DIR.0.to_le_bytes());
                loops += 1;
            }
        }
        loops > 0
    });
    let deep = case.dir.path().join("x/y/z");
    fs::create_dir_all(&deep).unwrap();
    let arguments = ["restore".as_ref(), case.image.as_os_str(), deep.as_os_str()];
    let output = ubtrfs(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let reported = said(&output);
    assert!(reported.contains("nothing can have this name") && reported.contains("is elsewhere, too"), "{reported}");
    assert!(!reported.contains("panicked"), "{reported}");
    for outside in ["", "x", "x/y"] {
        let entries: Vec<_> = fs::read_dir(case.dir.path().join(outside)).unwrap().flatten().collect();
        assert!(entries.len() <= if outside.is_empty() { 2 } else { 1 }, "{outside}: {entries:?}");
    }
    assert!(!Path::new("/evil").exists());
}

/// A tree with correct checksums may have wrong contents; then nothing is unreadable.
#[test]
fn files_that_no_directory_refers_to_are_found_though_all_can_be_read() {
    let dir = scratch_dir();
    let path = crate::new_volume(dir.path());
    for directory in ["deep", "deep/er"] {
        crate::success(&ubtrfs(&["mkdir", &format!("{path}:{directory}")]));
    }
    for number in 0..40 {
        crate::success(&ubtrfs(&["truncate", "-s", "5", &format!("{path}:deep/er/file{number}")]));
    }
    let image = Image::open(Path::new(&path));
    // The entry of the directory says that it is a file, and the directory above has lost an entry.
    let is_er = |key: &Key, data: &[u8]| key.item_type == ItemType::DIR_INDEX && data.ends_with(b"er");
    let (_, entry) = image.items(TreeId::FS).into_iter().find(|(key, data)| is_er(key, data)).unwrap();
    let er = u64::from_le_bytes(entry[..8].try_into().unwrap());
    let is_inode = |key: &Key, _: &[u8]| key.item_type == ItemType::INODE_ITEM && key.objectid == er;
    // The mode is the 32-bit number at offset 52.
    image.edit(TreeId::FS, is_inode, |_, data| data[52..56].copy_from_slice(&0o100_644_u32.to_le_bytes()));
    let out = dir.path().join("out");
    let output = ubtrfs(&["restore".as_ref(), Path::new(&path).as_os_str(), out.as_os_str()]);
    let reported = said(&output);
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("no directory refers to them any more: 40"), "{output:?}");
    let listed = found(&out);
    assert!(listed.len() == 40 && listed.iter().all(|path| path.starts_with("/lost+found/")), "{listed:?}");
    // What was saved is no problem.
    assert!(!reported.contains("/lost+found/"), "{reported}");
    let found = fs::read_dir(out.join("lost+found")).unwrap().count();
    assert_eq!(found, 40, "{reported}");
}

#[test]
fn a_user_gets_what_a_user_may_have() {
    require!(Need::Root, Need::Tool("setpriv"));
    let case = Case::new("plain");
    fs::set_permissions(case.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    fs::set_permissions(&case.image, PermissionsExt::from_mode(0o644)).unwrap();
    let binary = case.dir.path().join("ubtrfs");
    crate::copy_program(&binary);
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut line = command("setpriv", &user);
    line.arg(&binary).arg("restore").arg(&case.image).arg(case.out());
    let outcome = run(&mut line);
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    assert!(outcome.stdout.contains("only root can"), "{}", outcome.report());
    let copied = walk(&case.out());
    assert!(copied.entries.len() > 2000, "{}", outcome.report());
    for path in copied.entries.keys().take(100) {
        let path = case.out().join(std::ffi::OsStr::from_bytes(path));
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.mode() & 0o6000), (65534, 0), "{}", path.display());
    }
}

/// The name in a lost directory's own item may be that of a symbolic link in the copy.
#[test]
fn lost_directories_are_not_searched_through_links() {
    require!(Need::Root);
    let case = Case::new("plain");
    let image = Image::open(&case.image);
    let outside = case.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let items = image.items(TreeId::FS);
    // An entry has the inode number at its start, its type at offset 29, and its name at 30.
    let number = |data: &[u8]| u64::from_le_bytes(data[..8].try_into().unwrap());
    let entries = || items.iter().filter(|(key, _)| key.item_type == ItemType::DIR_INDEX);
    let (link_key, link) = entries().find(|(_, data)| data[29] == 7).unwrap();
    // A directory with one file.
    let (lost_key, lost) = entries()
        .filter(|(_, data)| data[29] == 2 && number(data) != link_key.objectid)
        .find(|(_, data)| entries().any(|(key, below)| key.objectid == number(data) && below[29] == 1))
        .unwrap();
    let (link_name, directory) = (link[30..].to_vec(), number(lost));
    let inside: Vec<_> = entries().filter(|(key, _)| key.objectid == directory).collect();
    let file_name = &inside.iter().find(|(_, data)| data[29] == 1).unwrap().1[30..];
    image.edit(
        TreeId::FS,
        |key, data| key.item_type == ItemType::EXTENT_DATA && key.objectid == number(link) && data.len() > 21,
        |_, data| {
            data.truncate(21);
            data.extend_from_slice(outside.as_os_str().as_bytes());
            let length = (data.len() as u64 - 21).to_le_bytes();
            data[8..16].copy_from_slice(&length);
        },
    );
    for item_type in [ItemType::DIR_INDEX, ItemType::DIR_ITEM] {
        image.remove(TreeId::FS, |key, data| {
            key.objectid == lost_key.objectid && key.item_type == item_type && number(data) == directory
        });
    }
    image.edit(
        TreeId::FS,
        |key, _| key.item_type == ItemType::INODE_REF && key.objectid == directory,
        |key, data| {
            key.offset = link_key.objectid;
            data.truncate(8);
            data.extend_from_slice(&(link_name.len() as u16).to_le_bytes());
            data.extend_from_slice(&link_name);
        },
    );
    let some_file = entries().find(|(_, data)| data[29] == 1 && number(data) != directory).unwrap();
    image.remove(TreeId::FS, |key, _| key.item_type == ItemType::INODE_ITEM && key.objectid == number(&some_file.1));
    let output = case.restore(&[]);
    assert_eq!(output.status.code(), Some(1));
    let reported = said(&output);
    let place = case.out().join(format!("lost+found/inode-{directory}"));
    let lost = format!("/lost+found/inode-{directory}");
    assert!(found(&case.out()).contains(&lost), "{reported}");
    assert!(place.is_dir() && place.join(std::ffi::OsStr::from_bytes(file_name)).exists(), "{reported}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{reported}");
}

/// A volume that contains an earlier restore may have the names of lost files itself.
#[test]
fn a_lost_file_is_copied_though_its_names_are_taken() {
    let dir = scratch_dir();
    let image = crate::new_volume(dir.path());
    for (path, content) in [("/file", "lost"), ("/other", "other")] {
        crate::success(&crate::editing::with_input(&["put", &format!("{image}:{path}")], content.as_bytes()));
    }
    let items = Image::open(Path::new(&image)).items(TreeId::FS);
    // An entry has the inode number at its start, and its name at offset 30.
    let entry =
        |name: &[u8]| items.iter().find(|(key, data)| key.item_type == ItemType::DIR_INDEX && data[30..] == *name);
    let number = |name: &[u8]| u64::from_le_bytes(entry(name).unwrap().1[..8].try_into().unwrap());
    let (lost, other) = (number(b"file"), number(b"other"));
    crate::success(&ubtrfs(&["mkdir", &format!("{image}:/lost+found")]));
    for taken in ["", ".1"] {
        let place = format!("{image}:/lost+found/inode-{lost}{taken}");
        crate::success(&crate::editing::with_input(&["put", &place], b"taken"));
    }
    for item_type in [ItemType::DIR_ITEM, ItemType::DIR_INDEX] {
        Image::open(Path::new(&image)).edit(
            TreeId::FS,
            |key, data| key.item_type == item_type && data[..8] == lost.to_le_bytes(),
            |_, data| data[..8].copy_from_slice(&other.to_le_bytes()),
        );
    }
    let out = dir.path().join("out");
    let output = ubtrfs(&["restore", &image, out.to_str().unwrap()]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let read = |name: String| fs::read_to_string(out.join("lost+found").join(name)).unwrap();
    assert_eq!(read(format!("inode-{lost}.2")), "lost", "{said}");
    assert_eq!([read(format!("inode-{lost}")), read(format!("inode-{lost}.1"))], ["taken", "taken"]);
    assert!(found(&out).contains(&format!("/lost+found/inode-{lost}.2")), "{said}");
}

/// A user who copies a volume before it is destroyed must know what is not copied.
#[test]
fn subvolumes_elsewhere_are_named() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 256 << 20, &[]);
    let kernel = KernelMount::new(&[&image], "");
    let at = |name: &str| kernel.path().join(name);
    for name in ["root", "home", "root/inside"] {
        run(command("btrfs", &["subvolume", "create"]).arg(at(name))).ok();
    }
    run(command("btrfs", &["subvolume", "snapshot"]).args([at("root"), at("before")])).ok();
    fs::write(at("home/file"), "content").unwrap();
    run(command("btrfs", &["subvolume", "set-default"]).arg(at("root"))).ok();
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    let out = dir.path().join("out");
    let restore = |options: &[&str]| {
        let mut arguments = vec!["restore", "-n"];
        arguments.extend(options);
        arguments.push(image.to_str().unwrap());
        let output = ubtrfs(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = restore(&[]);
    let home = text.lines().find(|line| line.contains("the subvolume /home ")).unwrap_or_else(|| panic!("{text}"));
    assert!(home.starts_with("left out: ") && text.contains("the subvolume / (--subvolid 5"), "{text}");
    assert!(!text.contains("/root/inside") && text.contains("snapshots elsewhere, 1 of them"), "{text}");
    let id = home.split("--subvolid ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(restore(&["--subvolid", id]).contains("1 files"));
    assert!(restore(&["--snapshots"]).contains("the subvolume /before "));
    assert!(!restore(&["--subvolid", "5"]).contains("the subvolume"));
    assert!(!out.exists());
}

/// A file with an attribute in the user namespace may lack the permission to write.
#[test]
fn attributes_of_what_may_not_be_written_to_are_copied() {
    require!(Need::Kernel, Need::Tool("setpriv"), Need::Tool("setfattr"), Need::Tool("setfacl"));
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 256 << 20, &[]);
    let kernel = KernelMount::new(&[&image], "");
    let (file, directory) = (kernel.path().join("file"), kernel.path().join("directory"));
    fs::write(&file, "content").unwrap();
    fs::create_dir(&directory).unwrap();
    for path in [&file, &directory] {
        run(command("setfattr", &["-n", "user.foo", "-v", "bar"]).arg(path)).ok();
        fs::set_permissions(path, PermissionsExt::from_mode(0o555)).unwrap();
    }
    run(command("setfacl", &["-m", "u:12345:rwx"]).arg(&file)).ok();
    let nobody = ubtrfs_testkit::ordinary_user::NOBODY;
    for path in [kernel.path(), &file, &directory] {
        std::os::unix::fs::chown(path, Some(nobody), Some(nobody)).unwrap();
    }
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    std::os::unix::fs::chown(dir.path(), Some(nobody), Some(nobody)).unwrap();
    std::os::unix::fs::chown(&image, Some(nobody), Some(nobody)).unwrap();
    let binary = dir.path().join("ubtrfs");
    crate::copy_program(&binary);
    fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    let out = dir.path().join("out");
    let mut line = command("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let outcome = run(line.arg(&binary).arg("restore").args([&image, &out])).ok();
    assert!(!outcome.stdout.contains("left out"), "{}", outcome.report());
    for name in ["file", "directory"] {
        let mut getfattr = command("getfattr", &["--only-values", "-n", "user.foo"]);
        assert_eq!(run(getfattr.arg(out.join(name))).ok().stdout, "bar", "{name}");
    }
    assert_eq!(fs::metadata(out.join("file")).unwrap().permissions().mode(), mode);
    assert!(run(command("getfacl", &["-n"]).arg(out.join("file"))).ok().stdout.contains("user:12345:rwx"));
}

#[test]
fn a_copy_of_nothing_leaves_no_directory() {
    let dir = scratch_dir();
    let (image, out) = (dir.path().join("image"), dir.path().join("out"));
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let restore = || ubtrfs(&["restore".as_ref(), image.as_os_str(), out.as_os_str()]);
    fails(&restore(), 1, "no btrfs found");
    assert!(!out.exists());
    // A directory that existed stays.
    fs::create_dir(&out).unwrap();
    fails(&restore(), 1, "no btrfs found");
    assert!(out.exists());
}

/// Such as in a small system for rescues.
#[test]
fn directories_are_restored_without_proc() {
    require!(Need::Root);
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    for words in
        [&["mkdir", "-p", &format!("{image}:/d/deep")][..], &["cp", "/etc/passwd", &format!("{image}:/d/deep/file")]]
    {
        success(&ubtrfs(words));
    }
    let out = dir.path().join("out").display().to_string();
    let script = r#"mount -t tmpfs none /proc && exec "$0" restore "$1" "$2""#;
    let words = ["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_ubtrfs"), &image, &out];
    assert!(Command::new("unshare").args(words).output().unwrap().status.success());
    assert_eq!(fs::read(dir.path().join("out/d/deep/file")).unwrap(), fs::read("/etc/passwd").unwrap());
}

/// The newest leaf of the chunk tree is lost, and an older one is left.
#[test]
fn a_volume_is_copied_by_older_leaves_of_its_chunk_tree() {
    require!(Need::Root);
    let case = Case::new("plain");
    let image = Image::open(&case.image);
    image.flip_all(image.superblock.chunk_root);
    let before = changed(&case.image);
    let output = case.restore(&[]);
    let reported = said(&output);
    assert!(reported.contains("with the chunks that were found though the chunk tree can't be read"), "{reported}");
    // A chunk that the older leaf does not have yet is lost, and the files in it are listed.
    let lines = reported.lines().filter(|line| line.contains("no chunk holds")).count();
    let differences = case.differences();
    assert!(differences.len() == lines && lines < 5, "{differences:?}: {reported}");
    assert_eq!(output.status.code(), Some(i32::from(lines > 0)), "{reported}");
    let subvolume = case.fixture.manifest.subvol.to_string();
    let listed =
        ubtrfs(&["ls".as_ref(), "--subvolid".as_ref(), subvolume.as_ref(), case.image.as_os_str(), "/".as_ref()]);
    assert_eq!(listed.status.code(), Some(0), "{}", said(&listed));
    assert!(said(&listed).contains("the chunk tree can't be read") && !listed.stdout.is_empty(), "{listed:?}");
    assert_eq!(changed(&case.image), before, "the image was written to");
}

#[test]
fn a_bad_leaf_is_one_line_and_what_was_saved_is_none() {
    require!(Need::Root);
    let case = Case::new("plain");
    let image = Image::open(&case.image);
    let leaves = image.leaves(TreeId::FS);
    let leaf = leaves[leaves.len() / 2];
    image.flip_all(leaf);
    let output = case.restore(&[]);
    assert_eq!(output.status.code(), Some(1));
    let reported = said(&output);
    assert_eq!(reported.lines().filter(|line| line.contains("unreadable: ")).count(), 1, "{reported}");
    let text = fs::read_to_string(case.out().join("ubtrfs-restore-report.jsonl")).unwrap();
    let mut listed = 0;
    for line in text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
        let Some(path) = line["path"].as_str() else { continue };
        let there = case.out().join(path.trim_start_matches('/')).symlink_metadata().is_ok();
        assert_eq!(there, line["state"] != "lost", "{line}");
        listed += u32::from(line["state"] == "lost");
    }
    assert!(listed > 0, "{text}");
    // Each line names the leaf, or a file that is not whole.
    for line in reported.lines().filter(|line| line.starts_with("ubtrfs: /")) {
        let path = line["ubtrfs: /".len()..].split(": ").next().unwrap();
        let is_whole = case.out().join(path).symlink_metadata().is_ok_and(|found| found.is_file())
            && !line.contains("are lost")
            && !line.contains("can't be read");
        assert!(!is_whole, "{line}");
    }
    // The commands that read on say so, too.
    let subvolume = case.fixture.manifest.subvol.to_string();
    let list = |words: &[&str]| {
        let mut line: Vec<&std::ffi::OsStr> = words.iter().map(AsRef::as_ref).collect();
        line.extend(["--subvolid".as_ref(), subvolume.as_ref(), case.image.as_os_str(), "/".as_ref()]);
        ubtrfs(&line)
    };
    let listed = list(&["ls", "-lR"]);
    assert_eq!(listed.status.code(), Some(1), "{}", said(&listed));
    assert!(said(&listed).starts_with("ubtrfs: unreadable: "), "{}", said(&listed));
    assert_eq!(said(&listed).lines().count(), 1, "{}", said(&listed));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("??????????   ?"), "{}", said(&listed));
    assert!(String::from_utf8_lossy(&listed.stdout).lines().count() > 1000, "{}", said(&listed));
}
