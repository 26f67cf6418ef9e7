//! Tests of editing images without a mount.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{fails, new_volume, success, ubtrfs};

/// Runs a command that prints nothing.
#[track_caller]
pub fn quiet(arguments: &[&str]) {
    assert_eq!(success(&ubtrfs(arguments)), "");
}

/// Runs `ubtrfs` with a standard input.
pub fn with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// Lists all files of an image with their attributes.
pub fn listing(image: &str) -> String {
    success(&ubtrfs(&["ls", "-l", "-a", "-R", image, "/"]))
}

#[track_caller]
pub fn is_clean(image: &str) {
    assert!(success(&ubtrfs(&["check", image])).contains("no fault found"));
}

#[test]
fn files_of_an_image_are_made_changed_and_removed() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    quiet(&["mkdir", "-p", "--owner", "0:0", "-m", "1777", &at("a/b/c")]);
    success(&with_input(&["put", "--owner", "7:8", "-m", "u+s,go=x", &at("a/tool")], b"some content"));
    quiet(&["ln", &at("a/tool"), &at("a/b")]);
    quiet(&["ln", "-s", "--owner", "0:0", "../tool", &at("a/b/link")]);
    quiet(&["mknod", "-m", "666", "--owner", "0:0", &at("a/null"), "c", "1", "3"]);
    quiet(&["mknod", "--owner", "3:4", &at("a/pipe"), "p"]);
    quiet(&[
        "setfattr",
        "-n",
        "security.capability",
        "-v",
        "0x0100000200040000000000000000000000000000",
        &at("a/tool"),
    ]);
    quiet(&["chown", "7:8", &at("a/tool")]);
    let name = b"security.capability=";
    let exported = ubtrfs(&["export", &image]).stdout;
    assert!(exported.windows(name.len()).any(|bytes| bytes == name), "another owner leaves capabilities alone");
    quiet(&["setfattr", "-n", "user.note", "-v", "words", &at("a/b/link")]);
    quiet(&["truncate", "-s", "1M", &at("a/hole")]);
    quiet(&["chown", "5:6", &at("a/hole")]);
    quiet(&["mv", &at("a/pipe"), &at("a/hole"), &at("a/b/c")]);
    quiet(&["chmod", "-R", "g+s", &at("a/b")]);
    let shown = listing(&image);
    for part in [
        "drwxrwsrwt   1     0     0",
        "-rwS--s--x   2     7     8           12",
        "-rw-r-Sr--   1     5     6      1048576",
        "prw-r-Sr--   1     3     4",
        "crw-rw-rw-   1     0     0         1, 3",
        "link -> ../tool",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(success(&ubtrfs(&["cat", &image, "a/b/link"])), "some content");
    for (mode, shown) in [("700", "drwx--S---"), ("00701", "drwx-----x")] {
        quiet(&["chmod", mode, &at("a/b/c")]);
        assert!(listing(&image).contains(shown), "{mode}");
    }
    quiet(&["setfattr", "-x", "user.note", &at("a/tool")]);
    quiet(&["rm", "-r", &at("a/b"), &at("a/null")]);
    // The size of this file is unknown before it is read.
    quiet(&["cp", "/proc/self/status", &at("status")]);
    assert!(success(&ubtrfs(&["cat", &image, "status"])).contains("Pid:"));
    quiet(&["rm", "-f", &at("a/none"), &at("none/none")]);
    assert!(!listing(&image).contains("hole"));
    is_clean(&image);
}

/// Makes a tree with every kind of file that an ordinary user can make.
pub fn make_tree(at: &Path) {
    fs::create_dir_all(at.join("sub/deep")).unwrap();
    fs::write(at.join("sub/file"), vec![7; 300_000]).unwrap();
    fs::hard_link(at.join("sub/file"), at.join("sub/deep/second")).unwrap();
    fs::write(at.join("small"), "a few bytes").unwrap();
    fs::set_permissions(at.join("small"), fs::Permissions::from_mode(0o4750)).unwrap();
    symlink("sub/../small", at.join("link")).unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &[9; 5000], 5 << 20).unwrap();
    fs::create_dir(at.join("sub/\u{fc}mlaut \n line")).unwrap();
    if rustix::process::geteuid().is_root() {
        let (file, value) = (at.join("sub/file"), capability());
        rustix::fs::setxattr(&file, "security.capability", &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
}

/// Returns `cap_net_bind_service=p`, in the format of version 2.
fn capability() -> Vec<u8> {
    [0x0200_0000_u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns what rsync would still change, except for files that are mounts.
pub fn difference(from: &Path, to: &Path) -> String {
    let slash = |path: &Path| format!("{}/", path.display());
    let output = Command::new("rsync").args(["-aHAXcn", "--delete", "-i"]).args([slash(from), slash(to)]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_tree_is_the_same_after_a_copy_into_an_image_and_out_of_it() {
    require!(Need::Tool("rsync"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let (tree, back, again) = (dir.path().join("tree"), dir.path().join("back"), dir.path().join("again"));
    make_tree(&tree);
    let words = |path: &Path| path.to_str().unwrap().to_owned();
    quiet(&["cp", "-a", &words(&tree), &format!("{image}:")]);
    quiet(&["cp", "-a", &format!("{image}:tree"), &words(&back)]);
    assert_eq!(difference(&tree, &back), "");
    assert_eq!(
        fs::metadata(back.join("sparse")).unwrap().blocks(),
        fs::metadata(tree.join("sparse")).unwrap().blocks()
    );
    // A second copy changes what differs, and nothing else.
    fs::write(tree.join("small"), "others").unwrap();
    quiet(&["cp", "-a", &format!("{}/.", words(&tree)), &format!("{image}:tree")]);
    quiet(&["cp", "-a", "--reflink", &format!("{image}:tree"), &format!("{image}:shared")]);
    quiet(&["cp", "-a", "--reflink=never", &format!("{image}:tree"), &format!("{image}:copied")]);
    for name in ["shared", "copied"] {
        quiet(&["cp", "-a", &format!("{image}:{name}"), &words(&again)]);
        assert_eq!(difference(&tree, &again), "", "{name}");
        fs::remove_dir_all(&again).unwrap();
    }
    is_clean(&image);
}

#[test]
fn more_files_with_several_names_are_copied_out_than_may_be_open() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("one/deep")).unwrap();
    fs::create_dir(tree.join("two")).unwrap();
    for number in 0..200 {
        let (first, second) = (tree.join(format!("one/deep/{number}")), tree.join(format!("two/{number}")));
        fs::write(&first, number.to_string()).unwrap();
        fs::hard_link(first, second).unwrap();
    }
    let words = |path: &Path| path.to_str().unwrap().to_owned();
    quiet(&["cp", "-a", &words(&tree), &format!("{image}:")]);
    let back = dir.path().join("back");
    let copy = "ulimit -n 100 && exec \"$0\" cp -a \"$1\" \"$2\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", copy, env!("CARGO_BIN_EXE_ubtrfs"), &format!("{image}:tree"), &words(&back)]);
    success(&shell.output().unwrap());
    for number in 0..200 {
        let found = ["one/deep", "two"].map(|dir| fs::metadata(back.join(dir).join(number.to_string())).unwrap());
        assert_eq!((found[0].ino(), found[0].nlink()), (found[1].ino(), 2));
    }
}

#[test]
fn what_is_made_has_permissions_as_the_kernel_and_cp_give_them() {
    require!(Need::Kernel, Need::Tool("setfacl"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    let script = "mkdir -p tree/tmp with; chmod 1777 tree/tmp; touch tree/open; chmod 666 tree/open; chmod 6777 tree
        touch tree/program; chmod 4755 tree/program; setfacl -m u:5:rwx,o::- -d -m u:5:rwx,g::-,o::- with";
    let mut shell = Command::new("sh");
    success(&shell.args(["-ec", script]).current_dir(dir.path()).output().unwrap());
    let at = |path: &str| format!("{image}:{path}");
    quiet(&["cp", "-a", dir.path().join("with").to_str().unwrap(), &at("")]);
    quiet(&["mkdir", &at("plain"), &at("with/ours"), &at("plain/ours")]);
    for place in ["with/ours", "plain/ours"] {
        quiet(&["cp", "-r", tree.to_str().unwrap(), &at(place)]);
        success(&with_input(&["put", &at(&format!("{place}/put"))], b"content"));
        quiet(&["mkdir", &at(&format!("{place}/made"))]);
    }
    let mount = KernelMount::new(&[Path::new(&image)], "");
    let script = r#"
        for place in with plain; do
            mkdir "$place/theirs"; cp -r "$0" "$place/theirs"; echo content > "$place/theirs/put"; mkdir "$place/theirs/made"
            for side in ours theirs; do (cd "$place/$side"; find . | sort | xargs getfacl -np; find . -printf '%m %p
' | sort -k 2) > "$place-$side"; done
            diff "$place-ours" "$place-theirs"
        done"#;
    let mut shell = Command::new("sh");
    success(&shell.args(["-ec", script]).arg(&tree).current_dir(mount.path()).output().unwrap());
    assert_eq!(mount.unmount(), Vec::<String>::new());
}

#[test]
fn the_kernel_shows_the_tree_that_was_copied_into_an_image() {
    require!(Need::Kernel, Need::Tool("rsync"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    make_tree(&tree);
    quiet(&["cp", "-a", tree.to_str().unwrap(), &format!("{image}:")]);
    let mount = KernelMount::new(&[Path::new(&image)], "");
    assert_eq!(difference(&tree, &mount.path().join("tree")), "");
    assert_eq!(mount.unmount(), Vec::<String>::new());
}

#[test]
fn an_edit_that_fails_in_the_middle_leaves_the_image_as_it_was() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    success(&with_input(&["put", &at("file")], &vec![1; 20 << 20]));
    let before = (listing(&image), success(&ubtrfs(&["cat", &image, "file"])));
    let script = dir.path().join("script");
    let script = script.to_str().unwrap();
    fs::write(script, "mkdir :new\nmv :file :new/moved\n# a remark\ntruncate -s 1 :new/moved\nrm :none\n").unwrap();
    fails(&ubtrfs(&["apply", &image, script]), 1, "line 5 of");
    fails(&ubtrfs(&["rm", &at("file"), &at("none")]), 1, "none: No such file or directory");
    // The lack of space is found after much has been written.
    let big = dir.path().join("big");
    fs::write(&big, vec![2; 200 << 20]).unwrap();
    fails(&ubtrfs(&["cp", big.to_str().unwrap(), &at("file")]), 1, "No space left on device; the image is as it was");
    assert!((listing(&image), success(&ubtrfs(&["cat", &image, "file"]))) == before);
    is_clean(&image);
    fs::write(script, "mkdir ':a b'\ncp -r :file \":a b/copy\"\nchown 0:0 ':a b/copy'\n").unwrap();
    quiet(&["apply", &image, script]);
    assert_eq!(success(&ubtrfs(&["ls", &image, "a b"])), "copy\n");
    is_clean(&image);
}

#[test]
fn an_edit_that_is_killed_leaves_the_image_as_it_was() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    success(&with_input(&["put", &format!("{image}:file")], &vec![1; 8 << 20]));
    let before = listing(&image);
    // ^C, the signal that timeout(1) and service managers send, and one that can't be caught.
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        // In the background of a shell a test inherits that ^C is ignored.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_ubtrfs"), "put", &format!("{image}:file")]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // The command waits for more input.
        child.stdin.as_mut().unwrap().write_all(&vec![2; 16 << 20]).unwrap();
        fails(&ubtrfs(&["rm", &format!("{image}:file")]), 1, "image");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
        assert_eq!(listing(&image), before, "{signal:?}");
    }
    assert!(success(&ubtrfs(&["cat", &image, "file"])).bytes().all(|byte| byte == 1));
    is_clean(&image);
}

#[test]
fn what_can_not_be_edited_is_refused_in_a_sentence() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    quiet(&["mkdir", "-p", &at("a/b")]);
    success(&ubtrfs(&["subvolume", "create", &at("a/sub")]));
    success(&with_input(&["put", &at("file")], b"x"));
    let other = dir.path().join("other").to_str().unwrap().to_owned();
    success(&ubtrfs(&["mkfs", "--size", "128M", &other]));
    let host = dir.path().to_str().unwrap().to_owned();
    let long = "x".repeat(256);
    let script = format!("{host}/script");
    fs::write(&script, "chmod 644 :file\nput :file\n").unwrap();
    let before = (listing(&image), success(&ubtrfs(&["cat", &image, "file"])));
    let attempts: [(&[&str], &str); 18] = [
        (&["apply", &image, &script], "line 2 of"),
        (&["mkdir", &at("a")], "File exists"),
        (&["mkdir", &at("x/y")], "No such file or directory"),
        (&["mkdir", &at(&long)], "File name too long"),
        (&["mkdir", &at("file/x")], "Not a directory"),
        (&["rm", &at("a")], "-r removes those"),
        (&["mv", &at("a"), &at("a/b/c")], "can't be moved into itself, to"),
        (&["mv", &at("file"), &at("a/sub")], "cp -a"),
        (&["cp", &at("a"), &at("z")], "-r copies those"),
        (&["cp", "-r", &at("a"), &at("a/b")], "is in the directory"),
        (&["cp", &at("file"), &at("file")], "is the file that it would be copied from"),
        (&["cp", "-r", &at("a"), &at("file")], "no directory replaces it"),
        (&["cp", &at("file"), &format!("{other}:x")], "only one image"),
        (&["cp", "none", "nowhere"], "write IMAGE:PATH"),
        (&["cp", "--reflink", &script, &at("x")], "same volume"),
        (&["rm", &host], "write IMAGE:PATH"),
        (&["setfattr", "-n", "user.x", "-v", "0xabc", &at("file")], "hexadecimal"),
        (&["ln", &at("a"), &at("z")], "Operation not permitted"),
    ];
    for (attempt, words) in attempts {
        let output = ubtrfs(attempt);
        assert_eq!(output.status.code(), Some(1), "{attempt:?}");
        fails(&output, 1, words);
    }
    assert!((listing(&image), success(&ubtrfs(&["cat", &image, "file"]))) == before);
    // As with rm(1), an empty subvolume is removed like a directory.
    quiet(&["rm", "-r", &at("a")]);
    assert_eq!(success(&ubtrfs(&["subvolume", "list", &image])), "");
    is_clean(&image);
    for wrong in [&["chmod", "rwx", "x"][..], &["chown", "root", "x"], &["truncate", "x"], &["cp", "x"]] {
        assert_eq!(ubtrfs(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn an_edit_that_finds_no_room_leaves_an_image_file_as_it_was() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    success(&with_input(&["put", &at("file")], &vec![1; 5 << 20]));
    let content = listing(&image);
    let used = || fs::metadata(&image).unwrap().blocks();
    let before = used();
    let large = dir.path().join("large");
    fs::write(&large, vec![2; 300 << 20]).unwrap();
    fails(&ubtrfs(&["cp", large.to_str().unwrap(), &at("")]), 1, "the image is as it was");
    assert_eq!(used(), before);
    assert_eq!(listing(&image), content);
    is_clean(&image);
    // The parts that were committed remain, and nothing else.
    let parts = dir.path().join("parts");
    fs::create_dir(&parts).unwrap();
    for number in 0..300 {
        fs::write(parts.join(format!("{number:03}")), vec![3; 1 << 20]).unwrap();
    }
    let output = ubtrfs(&["cp", "-r", "--commit-every", "20M", parts.to_str().unwrap(), &at("")]);
    fails(&output, 1, "the image has what was committed before");
    is_clean(&image);
    assert!(success(&ubtrfs(&["ls", &image, "parts"])).lines().count() > 19);
}

#[test]
fn little_memory_does_for_many_files_and_says_what_is_too_little() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let files = dir.path().join("files");
    fs::create_dir(&files).unwrap();
    for number in 0..3000 {
        fs::write(files.join(format!("{number:04}")), format!("{number}").repeat(1 + number % 700)).unwrap();
    }
    let copy = |memory: &str| ubtrfs(&["cp", "-a", "--memory", memory, files.to_str().unwrap(), &format!("{image}:")]);
    success(&copy("16M"));
    is_clean(&image);
    assert_eq!(success(&ubtrfs(&["ls", &image, "files"])).lines().count(), 3000);
    let refused = copy("15M");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("at least 16M are needed"));
}

/// The kernel leaves such a volume when it crashes during a balance. A commit before the edit
/// removes the remains of the balance, and it has to be on the device before their space is used
/// again (invariant 3).
#[test]
fn an_edit_that_fails_leaves_a_volume_as_it_was_though_a_balance_was_interrupted() {
    require!(Need::Tool("zstd"));
    let dir = scratch_dir();
    let image = dir.path().join("image").display().to_string();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/reloc-trees.img.zst");
    let unpacked = Command::new("zstd").args(["-q", "-d", "--sparse", "-o", &image]).arg(&fixture).status();
    assert!(unpacked.unwrap().success());
    let before = success(&ubtrfs(&["ls", "-R", &image, "/d"]));
    // So many changes of metadata that several commits are needed.
    let changes = [0, 1, 2].map(|number| format!("chmod -R 0{number}00 :/d\nchown -R {number}:{number} :/d\n"));
    let script = changes.concat() + "rm :/no/such/file\n";
    let path = dir.path().join("script");
    fs::write(&path, script).unwrap();
    fails(&ubtrfs(&["apply", "--memory", "16M", &image, path.to_str().unwrap()]), 1, "no/such/file");
    success(&ubtrfs(&["check", &image]));
    assert!(success(&ubtrfs(&["ls", "-R", &image, "/d"])) == before);
}
