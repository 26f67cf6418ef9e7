//! Compares the permissions, ACLs and groups of copied and new files with those of cp(1), mkdir(1),
//! mknod(1) and chmod(1).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::{NOBODY, without_fuse};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::editing::{is_clean, quiet};
use crate::{copy_program, new_volume, success, ubtrfs};

/// A directory with a default ACL, one with the set-group-id bit, and one with neither.
const PLACES: &str =
    "mkdir acl group plain; setfacl -d -m u:1234:rwx,g::rx,o::- acl; chgrp 777 group; chmod 2775 group";

/// The tree that is copied.
const TREE: &str = "mkdir -p tree/sub tree/open tree/tmp tree/closed tree/ids
    echo 1 > tree/sub/file; echo 2 > tree/open/program; mkfifo tree/sub/pipe tree/open/pipe
    chmod 660 tree/sub/file; chmod 6777 tree/open/program; chmod 2666 tree/sub/pipe; chmod 1620 tree/open/pipe
    chmod 770 tree/sub; chmod 777 tree/open; chmod 1777 tree/tmp; chmod 500 tree/closed; chmod 6755 tree/ids
    setfacl -m u:7:rx,d:u:8:rx tree/ids; ln -s file tree/sub/link";

/// Runs a script, with `ubtrfs` as `$U`.
#[track_caller]
fn shell(dir: &Path, script: &str) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-euc", script]).current_dir(dir).env("U", env!("CARGO_BIN_EXE_ubtrfs"));
    success(&shell.output().unwrap())
}

/// Runs a copy of `ubtrfs` in a directory as an ordinary user.
fn as_nobody(dir: &Path, words: &[&str]) -> Output {
    without_fuse(dir).arg(dir.join("ubtrfs")).args(words).current_dir(dir).output().unwrap()
}

/// Lists the permissions, owners and ACLs of all files in a directory.
#[track_caller]
fn rights(dir: &Path) -> String {
    shell(
        dir,
        "find . -mindepth 1 -printf '%p %M %U %G\n' | sort; find . -mindepth 1 ! -type l | sort | xargs -r getfacl -n",
    )
}

/// Asserts that the files in two directories have the same permissions and ACLs.
#[track_caller]
fn assert_same(ours: &str, theirs: &str, when: &str) {
    let blocks =
        |text: &str| text.split('\n').filter(|line| line.starts_with("./")).map(str::to_owned).collect::<Vec<_>>();
    let (modes, their_modes) = (blocks(ours), blocks(theirs));
    let differing: Vec<_> = modes.iter().zip(&their_modes).filter(|(one, other)| one != other).collect();
    assert!(differing.is_empty() && modes.len() == their_modes.len(), "{when}: {differing:#?}");
    let of_files = ours.split("\n\n").zip(theirs.split("\n\n"));
    let differing: Vec<_> = of_files.filter(|(one, other)| one != other).collect();
    assert!(differing.is_empty() && ours == theirs, "{when}: {differing:#?}");
}

#[test]
fn subvolumes_have_what_the_kernel_takes_from_a_default_acl() {
    require!(Need::Kernel, Need::Tool("setfacl"), Need::Tool("getfacl"), Need::Tool("btrfs"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let prepare = |side: &str| format!("mkdir {side}; cd {side}; {PLACES}");
    shell(dir.path(), &format!("{}; cd ..; $U cp -a ours image:/", prepare("ours")));
    for place in ["acl", "group", "plain"] {
        let at = |path: &str| format!("{image}:/ours/{place}/{path}");
        success(&ubtrfs(&["subvolume", "create", &at("made")]));
        success(&ubtrfs(&["subvolume", "create", "-p", &at("one/two/made"), &at("one/other")]));
    }
    success(&ubtrfs(&["subvolume", "create", "-p", &format!("{image}:top")]));
    let mount = KernelMount::new(&[Path::new(&image)], "");
    shell(mount.path(), &prepare("theirs"));
    let script = "umask 022; for place in acl group plain; do mkdir -p $place/one/two
        for made in made one/two/made one/other; do btrfs -q subvolume create $place/$made; done; done";
    shell(&mount.path().join("theirs"), script);
    let sides = ["ours", "theirs"].map(|side| rights(&mount.path().join(side)));
    assert_same(&sides[0], &sides[1], "");
    assert_eq!(mount.unmount(), Vec::<String>::new());
    is_clean(&image);
}

#[test]
fn permissions_change_under_the_umask_as_by_chmod() {
    let dir = scratch_dir();
    new_volume(dir.path());
    let changes = ["+w", "+x", "=rw", "+X", "=", "+s", "+t", "a+w", "u=rwx,+w", "g+w", "0666"];
    for umask in ["022", "077", "000"] {
        for change in changes {
            let script = format!(
                "rm -rf tree; mkdir -p tree/dir; echo > tree/file; chmod 644 tree/file; chmod 2750 tree/dir
                $U rm -rf image:/tree; $U cp -a tree image:/; umask {umask}
                chmod {change} tree/file tree/dir; $U chmod {change} image:/tree/file image:/tree/dir
                rm -rf out; $U cp -a image:/tree out; cd tree; stat -c '%a %n' *; cd ../out; stat -c '%a %n' *"
            );
            let modes = shell(dir.path(), &script);
            let lines: Vec<_> = modes.lines().collect();
            assert_eq!(lines[2..], lines[..2], "{change} under {umask}");
        }
    }
}

/// Asserts that the files which one script makes in an image equal those which the other one makes
/// on a mount.
#[track_caller]
fn assert_made_alike(dir: &Path, ours: &str, theirs: &str) {
    let image = new_volume(dir);
    let prepare = |side: &str| format!("mkdir {side}; cd {side}; {PLACES}; for place in *; do mkdir $place/old; done");
    shell(dir, &format!("{}; cd ..; $U cp -a ours image:/", prepare("ours")));
    shell(dir, ours);
    let mount = KernelMount::new(&[Path::new(&image)], "");
    shell(mount.path(), &prepare("theirs"));
    shell(&mount.path().join("theirs"), theirs);
    let sides = ["ours", "theirs"].map(|side| rights(&mount.path().join(side)));
    assert_same(&sides[0], &sides[1], "");
    assert_eq!(mount.unmount(), Vec::<String>::new());
    is_clean(&image);
}

#[test]
fn what_is_made_in_an_image_is_as_mkdir_and_mknod_make_it() {
    require!(Need::Kernel, Need::Tool("setfacl"), Need::Tool("getfacl"));
    let dir = scratch_dir();
    // Without -m edits use a umask of 022, whatever that of the process is.
    let script = |program: &str, to: &str| {
        format!(
            "for umask in 022 077; do for place in acl group plain; do umask $umask; to={to}$place
            for mode in 0666 0600 u+x g-w =rw +w ug=r; do {program}mknod -m $mode $to/node$umask$mode c 1 3; done
            for mode in 0777 700 u-w =rx +w o= 1777; do {program}mkdir -m $mode $to/dir$umask$mode; done
            [ -n '{program}' ] || umask 022
            {program}mkdir -p -m 700 $to/old; {program}mkdir -p -m 700 $to/one$umask/two
            {program}mknod $to/null$umask c 1 3; {program}mknod $to/pipe$umask p; {program}mkdir $to/made$umask
            done; done"
        )
    };
    assert_made_alike(dir.path(), &script("$U ", "image:/ours/"), &script("", ""));
    // The requested group is set, even in a directory with the set-group-id bit.
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    quiet(&["mknod", "--owner", "3:4", &format!("{image}:/ours/group/asked"), "p"]);
    assert!(success(&ubtrfs(&["stat", &image, "/ours/group/asked"])).contains("3:4"));
}

#[test]
fn plain_copies_into_an_image_have_permissions_as_cp_gives_them() {
    require!(Need::Kernel, Need::Tool("setfacl"), Need::Tool("getfacl"));
    let dir = scratch_dir();
    shell(dir.path(), TREE);
    let tree = dir.path().join("tree");
    let script = |program: &str, to: &str| {
        format!(
            "for umask in 002 022 027 077; do for place in acl group plain; do umask $umask
            {program}cp -r {} {to}$place/tree$umask; done; done",
            tree.display()
        )
    };
    assert_made_alike(dir.path(), &script("$U ", "image:/ours/"), &script("", ""));
}

#[test]
fn plain_copies_to_the_host_have_permissions_as_cp_gives_them() {
    require!(Need::Root, Need::Tool("setfacl"), Need::Tool("getfacl"));
    let dir = scratch_dir();
    new_volume(dir.path());
    shell(dir.path(), TREE);
    shell(dir.path(), &format!("$U cp -a tree image:/; mkdir ours theirs; cd ours; {PLACES}; cd ../theirs; {PLACES}"));
    for umask in ["002", "022", "027", "077"] {
        for (program, side, from) in [("$U cp", "ours", "image:/tree"), ("cp", "theirs", "tree")] {
            let script = format!(
                "umask {umask}; for place in acl group plain; do to={side}/$place
                {program} -r {from} $to/tree; {program} {from}/sub/file {from}/open/program $to; done"
            );
            shell(dir.path(), &script);
        }
        let sides = ["ours", "theirs"].map(|side| rights(&dir.path().join(side)));
        assert!(sides[0].contains("user:1234:rwx"), "{}", sides[0]);
        assert_same(&sides[0], &sides[1], umask);
        shell(dir.path(), "rm -r ours/*/* theirs/*/*");
    }
}

#[test]
fn exact_copies_have_no_acl_of_the_directory_that_they_come_to() {
    require!(Need::Root, Need::Tool("setfacl"), Need::Tool("getfacl"));
    let dir = scratch_dir();
    new_volume(dir.path());
    shell(dir.path(), TREE);
    // The existing files have ACLs, too.
    let prepare = "setfacl -d -m u:1234:rwx,g::rx,o::- .
        mkdir -p again/tree/sub restored single; echo old > again/tree/sub/file; setfacl -R -m u:9:rwx again/tree";
    shell(
        dir.path(),
        &format!("$U cp -a tree image:/; mkdir ours theirs; cd ours; {prepare}; cd ../theirs; {prepare}"),
    );
    shell(
        dir.path(),
        "$U cp -a image:/tree ours; $U cp -a image:/tree ours/again; $U cp -a image:/tree/sub/file ours/single
        cp -a tree theirs; cp -a tree theirs/again; cp -a tree/sub/file theirs/single",
    );
    let sides = ["ours", "theirs"].map(|side| rights(&dir.path().join(side)));
    assert_same(&sides[0], &sides[1], "");
    let tree = rights(&dir.path().join("tree"));
    assert!(tree.contains("user:7:r-x") && tree.contains("default:user:8:r-x") && !tree.contains("1234"), "{tree}");
    for copy in ["ours/tree", "ours/again/tree"] {
        assert_eq!(rights(&dir.path().join(copy)), tree, "{copy}");
    }
    let restore = |path: &Path| ubtrfs(&["restore".as_ref(), dir.path().join("image").as_os_str(), path.as_os_str()]);
    assert!(restore(&dir.path().join("ours/restored")).status.success());
    assert_eq!(rights(&dir.path().join("ours/restored/tree")), tree);
    // The directory itself is the copy of the top level.
    assert!(!shell(dir.path(), "getfacl -n ours/restored").contains("1234"));
}

/// The replaced file has no ACL, so the users in the default ACL of its directory get no rights.
#[test]
fn a_new_content_gives_nobody_rights_by_an_acl_of_the_directory() {
    require!(Need::Root, Need::Tool("setfacl"), Need::Tool("getfacl"));
    let dir = scratch_dir();
    new_volume(dir.path());
    let script = "echo new > file; $U cp file image:/; mkdir to; echo old > to/file; chmod 660 to/file
        setfacl -d -m u:1234:rwx to";
    shell(dir.path(), script);
    let before = rights(&dir.path().join("to"));
    shell(dir.path(), "$U cp image:/file to");
    assert_eq!(fs::read(dir.path().join("to/file")).unwrap(), b"new\n");
    assert_eq!(rights(&dir.path().join("to")), before);
}

/// The owner can write to the copies, though the default ACL of the directory lets nobody write.
#[test]
fn copies_are_whole_where_an_acl_lets_nobody_write() {
    require!(Need::Root, Need::Tool("setfacl"), Need::Tool("setpriv"));
    let dir = scratch_dir();
    new_volume(dir.path());
    let script =
        "mkdir -p tree/sub to; echo content > tree/sub/file; chown -R 65534:65534 tree; $U cp -a tree/. image:/
        setfacl -d -m u::r-x,g::-,o::- to; chown -R 65534:65534 . ; chmod 755 .";
    shell(dir.path(), script);
    let program = dir.path().join("ubtrfs");
    copy_program(&program);
    for words in [["cp", "-a", "image:/", "to/exact"], ["cp", "-r", "image:/", "to/plain"]] {
        as_nobody(dir.path(), &words);
    }
    as_nobody(dir.path(), &["restore", "image", "to/restored"]);
    for copy in ["exact", "plain", "restored"] {
        assert_eq!(fs::read_to_string(dir.path().join("to").join(copy).join("sub/file")).unwrap(), "content\n");
    }
    let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!(["exact", "plain", "restored"].map(|copy| mode(&format!("to/{copy}/sub"))), [0o755, 0o500, 0o755]);
}

/// The first name of a file may be in a directory that its owner can't enter any more.
#[test]
fn what_can_not_be_linked_to_is_copied_again() {
    require!(Need::Root, Need::Tool("setpriv"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let script =
        "mkdir -p tree/a tree/b; echo content > tree/a/file; echo other > tree/b/after; ln tree/a/file tree/b/name
        ln tree/a/file tree/b/third; chmod 0 tree/a; chown -R 65534:65534 tree; $U cp -a tree/. image:/; chmod 755 .";
    shell(dir.path(), script);
    let program = dir.path().join("ubtrfs");
    copy_program(&program);
    for path in [dir.path(), Path::new(&image)] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (copied, restored) = (dir.path().join("copied"), dir.path().join("restored"));
    let outputs = [
        as_nobody(dir.path(), &["cp", "-a", &format!("{image}:/"), copied.to_str().unwrap()]),
        as_nobody(dir.path(), &["restore", &image, restored.to_str().unwrap()]),
    ];
    for (output, to) in outputs.iter().zip([&copied, &restored]) {
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert_eq!(error.matches("b/name: it is a file of its own").count(), 1, "{error}");
        assert_eq!(error.matches("of its own").count(), 1, "{error}");
        let read = |name: &str| fs::read_to_string(to.join("b").join(name)).unwrap();
        assert_eq!((read("name"), read("after")), ("content\n".into(), "other\n".into()));
        let found = ["a/file", "b/name", "b/third"].map(|name| fs::metadata(to.join(name)).unwrap());
        assert_eq!(found.each_ref().map(MetadataExt::nlink), [1, 2, 2]);
        assert_eq!(found[1].ino(), found[2].ino(), "those that can be linked are");
        assert_eq!(fs::metadata(to.join("a")).unwrap().permissions().mode() & 0o7777, 0);
    }
}
