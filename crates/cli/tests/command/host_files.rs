//! Tests of files that commands write on the host: the destination is treated as by cp(1), and
//! nothing is lost (invariant 41).

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::FlockOperation;
use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::{NOBODY, without_fuse};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::archive;
use crate::editing::{quiet, with_input};
use crate::{copy_program, fails, new_volume, success, ubtrfs};

const NOTES: &[u8] = b"some notes\n";

/// Makes an image with `/notes`, and with `/deep/image`, whose name may refer to the image itself
/// on the host.
fn volume_of_notes(dir: &Path) -> String {
    let image = new_volume(dir);
    quiet(&["mkdir", &format!("{image}:deep")]);
    success(&with_input(&["put", &format!("{image}:notes")], NOTES));
    success(&with_input(&["put", &format!("{image}:deep/image")], NOTES));
    image
}

/// Returns the names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Invariant 41: an image that is copied from is not replaced, by whatever name it is reached.
#[test]
fn an_image_is_never_replaced_by_what_is_in_it() {
    let dir = scratch_dir();
    let image = volume_of_notes(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    let (link, hard) = (text(&dir.path().join("link")), text(&dir.path().join("hard")));
    symlink("image", &link).unwrap();
    fs::hard_link(&image, &hard).unwrap();
    let before = fs::read(&image).unwrap();
    let host = text(dir.path());
    let descriptor = fs::File::open(&image).unwrap();
    let by_descriptor = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    for to in [&image, &link, &hard, &by_descriptor] {
        for how in [&["cp"][..], &["cp", "-a"]] {
            fails(&ubtrfs(&[how, &[&at("notes"), to]].concat()), 1, "it is the image itself");
        }
    }
    for (from, to) in [("deep/image", &host), ("deep/.", &host), ("deep/image", &image)] {
        fails(&ubtrfs(&["cp", "-a", &at(from), to]), 1, "it is the image itself");
    }
    // Output that is redirected into the image, and input of the image from itself.
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("U", env!("CARGO_BIN_EXE_ubtrfs")).env("I", &image);
        command.stdin(Stdio::null()).output().unwrap()
    };
    for script in [
        "\"$U\" export \"$I\" >> \"$I\"",
        "\"$U\" export --format composefs \"$I\" >> \"$I\"",
        "\"$U\" cat \"$I\" notes >> \"$I\"",
        "\"$U\" ls -lR \"$I\" / 1<> \"$I\"",
        "\"$U\" info \"$I\" >> \"$I\"",
    ] {
        fails(&shell(script), 1, "the standard output is the image");
    }
    for script in
        ["\"$U\" put \"$I\":x < \"$I\"", "\"$U\" import \"$I\" < \"$I\"", "\"$U\" mkfs -f --rootdir - \"$I\" < \"$I\""]
    {
        fails(&shell(script), 1, "the standard input is the image");
    }
    fails(&ubtrfs(&["import", &image, &image]), 1, "it is the image itself");
    fails(&ubtrfs(&["cp", &image, &at("copy")]), 1, "it is the image itself");
    fails(&ubtrfs(&["mkfs", "-f", "--rootdir", &image, &hard]), 1, "it is the image itself");
    assert!(fs::read(&image).unwrap() == before);
    assert_eq!(names(dir.path()), ["hard", "image", "link"]);
}

/// Invariant 41: an image that another process of ubtrfs, or the kernel, uses is not replaced.
#[test]
fn an_image_in_use_by_others_is_never_replaced() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = volume_of_notes(dir.path());
    let used = text(&dir.path().join("used"));
    success(&ubtrfs(&["mkfs", "--size", "120M", &used]));
    let from = format!("{image}:notes");
    let mut writer = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    let mut writer = writer.args(["put", &format!("{used}:x")]).stdin(Stdio::piped()).spawn().unwrap();
    // Once it accepts more than fits into a pipe, it has opened the image.
    writer.stdin.as_mut().unwrap().write_all(&vec![1; 4 << 20]).unwrap();
    let before = fs::metadata(&used).unwrap().ino();
    fails(&ubtrfs(&["cp", &from, &used]), 1, "it is in use by another program");
    writer.kill().unwrap();
    writer.wait().unwrap();
    let mount = KernelMount::new(&[Path::new(&used)], "");
    fails(&ubtrfs(&["cp", &from, &used]), 1, "it is mounted by the kernel");
    mount.unmount();
    assert_eq!(fs::metadata(&used).unwrap().ino(), before);
    success(&ubtrfs(&["check", &used]));
    // The same applies to a device of the image, and to a file whose device is used.
    let device = LoopDevice::attach(Path::new(&used), false);
    let device_path = text(device.path());
    let mount = KernelMount::new(&[Path::new(&used)], "");
    let refused = ubtrfs(&["cp", &from, &device_path]);
    assert_eq!(refused.status.code(), Some(1));
    mount.unmount();
    fails(&ubtrfs(&["cp", "-a", &format!("{device_path}:"), &used]), 1, "Not a directory");
    drop(device);
    success(&ubtrfs(&["check", &used]));
    // An image that nobody uses is a file like others.
    quiet(&["cp", &from, &used]);
    assert_eq!(fs::read(&used).unwrap(), NOTES);
}

/// Invariant 41: an image of which a part is used counts as used.
#[test]
fn an_image_in_use_in_part_is_never_replaced() {
    require!(Need::Fuse);
    let dir = scratch_dir();
    let from = format!("{}:notes", volume_of_notes(dir.path()));
    let (used, point) = (text(&dir.path().join("used")), text(&dir.path().join("point")));
    fs::create_dir(&point).unwrap();
    success(&ubtrfs(&["mkfs", "--size", "120M", &format!("{used}.whole")]));
    // A volume after 1 MiB of zeros, without a partition table.
    let bytes = fs::read(format!("{used}.whole")).unwrap();
    fs::File::create(&used).unwrap().write_all_at(&bytes, 1 << 20).unwrap();
    let before = fs::metadata(&used).unwrap().ino();
    for options in ["offset=1048576", "offset=1048576,ro"] {
        success(&ubtrfs(&["mount", "-o", options, &used, &point]));
        fails(&ubtrfs(&["cp", &from, &used]), 1, "it is in use by another program");
        success(&ubtrfs(&["umount", &point]));
    }
    assert_eq!(fs::metadata(&used).unwrap().ino(), before);
    quiet(&["cp", &from, &used]);
}

/// Invariant 41: an image counts as used while it is being made, though its contents don't show yet
/// what it will be.
#[test]
fn an_image_that_is_being_filled_is_never_replaced() {
    let dir = scratch_dir();
    let from = format!("{}:notes", volume_of_notes(dir.path()));
    let made = text(&dir.path().join("made"));
    let mut filling = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    filling.args(["mkfs", "--size", "120M", "--rootdir", "-", &made]).stdout(Stdio::null());
    let mut filling = filling.stdin(Stdio::piped()).spawn().unwrap();
    let archive = archive(&[("file", tar::EntryType::Regular, "", &vec![1; 4 << 20])]);
    let (first, second) = archive.split_at(3 << 20);
    // Once it accepts more than fits into a pipe, it has opened the image.
    filling.stdin.as_mut().unwrap().write_all(first).unwrap();
    for how in [&["cp"][..], &["cp", "-a"]] {
        fails(&ubtrfs(&[how, &[&from, &made]].concat()), 1, "it is in use by another program");
    }
    filling.stdin.as_mut().unwrap().write_all(second).unwrap();
    drop(filling.stdin.take());
    assert!(filling.wait().unwrap().success());
    success(&ubtrfs(&["check", &made]));
}

/// A user who may only read a file can lock it, which does not keep others from replacing it.
#[test]
fn a_file_that_is_no_image_is_replaced_though_it_is_locked() {
    let dir = scratch_dir();
    let from = format!("{}:notes", volume_of_notes(dir.path()));
    let to = text(&dir.path().join("to"));
    for content in [b"old".to_vec(), vec![0; 3 << 20], vec![7; 100_000]] {
        for how in [&["cp"][..], &["cp", "-a"]] {
            for operation in [FlockOperation::LockShared, FlockOperation::LockExclusive] {
                fs::write(&to, &content).unwrap();
                let holder = fs::File::open(&to).unwrap();
                rustix::fs::flock(&holder, operation).unwrap();
                quiet(&[how, &[&from, &to]].concat());
                assert_eq!(fs::read(&to).unwrap(), NOTES);
            }
        }
    }
}

#[test]
fn content_goes_into_what_the_destination_is() {
    let dir = scratch_dir();
    let image = volume_of_notes(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    let place = |name: &str| dir.path().join(name);
    let host = |name: &str| text(&place(name));
    fs::create_dir(place("dir")).unwrap();
    fs::write(place("target"), "old").unwrap();
    symlink("target", place("link")).unwrap();
    symlink("dir", place("to-dir")).unwrap();
    symlink("nothing", place("dangling")).unwrap();
    for how in ["-a", "--json"] {
        for to in ["target", "link", "dir", "to-dir", "new", "dir/new"] {
            assert!(ubtrfs(&["cp", how, &at("notes"), &host(to)]).status.success(), "{to}");
        }
        for file in ["target", "dir/notes", "new", "dir/new"] {
            assert_eq!(fs::read(place(file)).unwrap(), NOTES, "{file}");
            fs::write(place(file), "old").unwrap();
        }
        assert!(place("link").is_symlink() && place("to-dir").is_symlink() && place("dangling").is_symlink());
    }
    fails(&ubtrfs(&["cp", &at("notes"), &host("dangling")]), 1, "not written through");
    fails(&ubtrfs(&["cp", &at("notes"), &host("none/")]), 1, "is not a directory");
    fails(&ubtrfs(&["cp", &at("notes"), &host("none/x")]), 1, "No such file or directory");
    fails(&ubtrfs(&["cp", &at("notes"), &host("target/x")]), 1, "Not a directory");
    fs::create_dir(place("dir/deep")).unwrap();
    fs::create_dir(place("dir/deep/image")).unwrap();
    fails(&ubtrfs(&["cp", "-r", &at("deep"), &host("dir")]), 1, "it is a directory, which no file replaces");
    // Devices, FIFOs and sockets.
    let null = fs::metadata("/dev/null").unwrap();
    for how in ["-a", "--json"] {
        assert!(ubtrfs(&["cp", how, &at("notes"), "/dev/null"]).status.success());
        fails(&ubtrfs(&["cp", how, &at("notes"), "/dev/full"]), 1, "No space left on device");
    }
    let now = fs::metadata("/dev/null").unwrap();
    assert!(
        now.file_type().is_char_device() && (now.ino(), now.mode(), now.uid()) == (null.ino(), null.mode(), null.uid())
    );
    assert_eq!(ubtrfs(&["cp", &at("notes"), "/dev/stdout"]).stdout, NOTES);
    let fifo = place("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    quiet(&["truncate", "-s", "3M", &at("hole")]);
    success(&with_input(&["put", &at("sparse")], b"x"));
    quiet(&["truncate", "-s", "3M", &at("sparse")]);
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || {
            let mut content = Vec::new();
            fs::File::open(fifo).unwrap().read_to_end(&mut content).unwrap();
            content
        }
    });
    quiet(&["cp", &at("sparse"), fifo.to_str().unwrap()]);
    let content = reader.join().unwrap();
    assert!(content.len() == 3 << 20 && content[0] == b'x' && content[1..].iter().all(|byte| *byte == 0));
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    let _socket = std::os::unix::net::UnixListener::bind(place("socket")).unwrap();
    fails(&ubtrfs(&["cp", &at("notes"), &host("socket")]), 1, "it is a socket, and can't be written to");
    // Within a tree no link is followed, and a file does not replace a device.
    fs::create_dir(place("tree")).unwrap();
    symlink("../target", place("tree/image")).unwrap();
    quiet(&["cp", "-r", &at("deep/."), &host("tree")]);
    assert_eq!(fs::read(place("target")).unwrap(), b"old");
    assert!(fs::symlink_metadata(place("tree/image")).unwrap().is_file());
    fs::remove_file(place("tree/image")).unwrap();
    fs::rename(&fifo, place("tree/image")).unwrap();
    fails(&ubtrfs(&["cp", "-r", &at("deep/."), &host("tree")]), 1, "it is a FIFO, which no other file replaces");
    // The command does not write through a link that it has made itself.
    quiet(&["ln", "-s", "target", &at("deep/notes")]);
    fails(&ubtrfs(&["cp", "-a", &at("deep/notes"), &at("notes"), &host("dir")]), 1, "would have this name");
    assert_eq!(fs::read_link(place("dir/notes")).unwrap(), Path::new("target"));
    assert!(!names(dir.path()).iter().any(|name| name.starts_with(".ubtrfs")));
}

#[test]
fn content_goes_into_a_block_device_that_nobody_uses() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = volume_of_notes(dir.path());
    let backing = dir.path().join("backing");
    fs::write(&backing, vec![7; 1 << 20]).unwrap();
    let device = LoopDevice::attach(&backing, false);
    let device_path = text(device.path());
    quiet(&["cp", &format!("{image}:notes"), &device_path]);
    assert!(fs::metadata(device.path()).unwrap().file_type().is_block_device());
    assert!(fs::read(device.path()).unwrap().starts_with(NOTES));
    let own = LoopDevice::attach(Path::new(&image), true);
    fails(
        &ubtrfs(&["cp", &format!("{}:notes", text(own.path())), &text(own.path())]),
        1,
        "it is a device of the volume",
    );
    fails(&ubtrfs(&["cp", &format!("{}:notes", text(own.path())), &image]), 1, "it is the image itself");
}

/// Invariant 41: an image that is used gets nothing through a loop device, either.
#[test]
fn nothing_goes_into_an_image_in_use_by_its_loop_device() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = volume_of_notes(dir.path());
    let before = fs::read(&image).unwrap();
    let (first, second) = (LoopDevice::attach(Path::new(&image), false), LoopDevice::attach(Path::new(&image), false));
    let [first, second] = [&first, &second].map(|device| text(device.path()));
    for (from, to) in [(&image, &first), (&first, &first), (&first, &second)] {
        let notes = format!("{from}:notes");
        fails(&ubtrfs(&["cp", &notes, to]), 1, "it is a device of the volume");
        for command in [&["cat", &notes][..], &["export", from]] {
            let out = fs::File::options().write(true).open(to).unwrap();
            let output = Command::new(env!("CARGO_BIN_EXE_ubtrfs")).args(command).stdout(out).output().unwrap();
            fails(&output, 1, "the standard output is the image");
        }
    }
    fs::create_dir(dir.path().join("other")).unwrap();
    let other = volume_of_notes(&dir.path().join("other"));
    let user = fs::File::open(&image).unwrap();
    rustix::fs::flock(&user, FlockOperation::LockShared).unwrap();
    fails(&ubtrfs(&["cp", &format!("{other}:notes"), &first]), 1, "is in use by another program");
    assert!(fs::read(&image).unwrap() == before);
    drop(user);
    quiet(&["cp", &format!("{other}:notes"), &first]);
    assert!(fs::read(&image).unwrap().starts_with(NOTES));
}

/// Makes an image with a file of 40 MiB that can't be read to its end.
fn volume_with_damage(dir: &Path) -> String {
    let image = volume_of_notes(dir);
    let content: Vec<u8> = (0..10_u32 << 20).flat_map(|number| (number | 0x5a00_0000).to_le_bytes()).collect();
    success(&with_input(&["put", &format!("{image}:big")], &content));
    let file = fs::File::options().read(true).write(true).open(&image).unwrap();
    let mut bytes = vec![0; 128 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let wanted = &content[30 << 20..(30 << 20) + 4096];
    let at = bytes.chunks(4096).position(|block| block == wanted).unwrap();
    file.write_all_at(&[0; 4096], at as u64 * 4096).unwrap();
    image
}

/// Invariant 41: a command that fails or is killed leaves the old file, and nothing else.
#[test]
fn a_copy_that_fails_or_is_killed_leaves_the_old_file() {
    let dir = scratch_dir();
    let image = volume_with_damage(dir.path());
    let big = format!("{image}:big");
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("big"), "old").unwrap();
    let old = fs::metadata(out.join("big")).unwrap();
    let unchanged = || {
        let now = fs::metadata(out.join("big")).unwrap();
        assert_eq!((now.ino(), now.mtime_nsec(), now.size()), (old.ino(), old.mtime_nsec(), 3));
        assert_eq!(names(&out), ["big"]);
    };
    for words in [&["cp"][..], &["cp", "-a"], &["cp", "-r"]] {
        for to in [text(&out), text(&out.join("big")), text(&out.join("new"))] {
            let output = ubtrfs(&[words, &[&big, &to]].concat());
            assert_eq!(output.status.code(), Some(1), "{words:?} {to}");
            unchanged();
        }
    }
    // The limit of the file size is 10 MiB: it causes an error, or a signal.
    for ignore in ["trap '' XFSZ;", ""] {
        let script = format!("{ignore} ulimit -f 10240; exec \"$0\" \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_ubtrfs"), "cp", &big, &text(&out)]);
        let status = command.stderr(Stdio::null()).status().unwrap();
        assert!(status.code() == Some(1) || status.signal() == Some(25), "{status:?}");
        unchanged();
    }
    // The command is killed at some point.
    for signal in ["INT", "KILL"] {
        let mut command = Command::new("sh");
        let script = "\"$0\" \"$@\" & sleep 0.05; kill -$S $!; wait $! || true";
        command.args(["-c", script, env!("CARGO_BIN_EXE_ubtrfs"), "cp", &big, &text(&out)]).env("S", signal);
        command.stderr(Stdio::null()).status().unwrap();
        unchanged();
    }
}

#[test]
fn what_replaces_a_file_gets_its_owner_and_rights() {
    require!(Need::Root, Need::Tool("setfacl"), Need::Tool("getfacl"), Need::Tool("setpriv"));
    let dir = scratch_dir();
    let image = volume_of_notes(dir.path());
    let file = dir.path().join("file");
    let other_name = dir.path().join("other-name");
    fs::write(&file, "old").unwrap();
    fs::hard_link(&file, &other_name).unwrap();
    chown(&file, Some(12), Some(34)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4641)).unwrap();
    let run = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run("setfacl", &["-m", "u:77:rw,g:88:-", file.to_str().unwrap()]);
    run("setfattr", &["-n", "user.note", "-v", "kept", file.to_str().unwrap()]);
    let state = || {
        let found = fs::metadata(&file).unwrap();
        (found.uid(), found.gid(), found.mode(), run("getfacl", &["-pn", file.to_str().unwrap()]))
    };
    let before = state();
    quiet(&["cp", &format!("{image}:notes"), file.to_str().unwrap()]);
    assert_eq!(fs::read(&file).unwrap(), NOTES);
    assert_eq!(state(), before);
    assert!(run("getfattr", &["-d", file.to_str().unwrap()]).contains("user.note=\"kept\""));
    assert_eq!(fs::read(&other_name).unwrap(), b"old", "another name of the old file keeps it");
    // With -a all attributes are those of the image.
    quiet(&["chown", "5:6", &format!("{image}:notes")]);
    quiet(&["cp", "-a", &format!("{image}:notes"), file.to_str().unwrap()]);
    let found = fs::metadata(&file).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (5, 6, 0o644));
    assert!(!run("getfacl", &["-pn", file.to_str().unwrap()]).contains("user:77"));
    // An ordinary user may replace a file that they may write to, and nobody gets rights by that.
    let program = dir.path().join("ubtrfs");
    copy_program(&program);
    for path in [dir.path(), Path::new(&image)] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let as_nobody = |to: &Path| {
        let mut command = without_fuse(dir.path());
        command.args([&program, &PathBuf::from("cp"), &format!("{image}:notes").into(), &to.to_owned()]);
        command.output().unwrap()
    };
    let theirs = dir.path().join("theirs");
    fs::write(&theirs, "old").unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o400)).unwrap();
    fails(&as_nobody(&theirs), 1, "Permission denied");
    assert_eq!(fs::read(&theirs).unwrap(), b"old");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(success(&as_nobody(&theirs)), "");
    assert_eq!(fs::metadata(&theirs).unwrap().mode() & 0o7777, 0o755);
    chown(&theirs, Some(99), Some(98)).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o676)).unwrap();
    assert_eq!(success(&as_nobody(&theirs)), "");
    let found = fs::metadata(&theirs).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (NOBODY, 0o666));
    for name in ["theirs", "file", "other-name"] {
        assert!(names(dir.path()).contains(&name.to_owned()));
    }
    assert!(!names(dir.path()).iter().any(|name| name.starts_with(".ubtrfs")));
}

#[test]
fn a_copy_that_is_made_again_is_the_same_again() {
    require!(Need::Tool("rsync"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    crate::editing::make_tree(&tree);
    quiet(&["cp", "-a", &text(&tree), &format!("{image}:")]);
    quiet(&["mknod", &format!("{image}:tree/fifo"), "p"]);
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for _ in 0..2 {
        quiet(&["cp", "-a", &format!("{image}:tree/."), &text(&copy)]);
        assert!(fs::metadata(copy.join("fifo")).unwrap().file_type().is_fifo());
        fs::remove_file(tree.join("fifo")).err();
        let without = copy.join("fifo");
        let difference = {
            let aside = dir.path().join("aside");
            fs::rename(&without, &aside).unwrap();
            let difference = crate::editing::difference(&tree, &copy);
            fs::rename(&aside, &without).unwrap();
            difference
        };
        // The directory's times are changed by the renames.
        assert!(difference.lines().all(|line| line.ends_with(" ./")), "{difference}");
        assert!(!names(&copy).iter().any(|name| name.starts_with(".ubtrfs")));
    }
}

#[test]
fn an_image_in_the_directory_that_is_copied_into_it_is_left_out() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    fs::write(dir.path().join("other"), "x").unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::hard_link(&image, dir.path().join("sub/hard")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    let output = command.args(["cp", "-a", ".", "image:/"]).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.lines().count() == 2 && said.lines().all(|line| line.ends_with("it is the image itself, and left out")),
        "{said}"
    );
    assert_eq!(success(&ubtrfs(&["ls", "-R", &image, "/"])).matches("hard").count(), 0);
    assert!(success(&ubtrfs(&["ls", &image, "/"])).contains("other"));
    success(&ubtrfs(&["check", &image]));
}

#[test]
fn a_new_volume_or_device_takes_no_file_that_holds_data() {
    let dir = scratch_dir();
    let place = dir.path().join("file");
    let file = text(&place);
    let filled = |start: &[u8], at: usize| {
        let mut content = vec![0; 200 << 20];
        content[at..at + start.len()].copy_from_slice(start);
        content
    };
    let volume = new_volume(dir.path());
    let tar = archive(&[("x", tar::EntryType::Regular, "", b"y")]);
    let cases: [(Vec<u8>, &str); 9] = [
        (b"a letter\n".to_vec(), "holds data"),
        (tar.clone(), "holds a tar archive"),
        (b"SQLite format 3\0".to_vec(), "holds an SQLite database"),
        (b"QFI\xfb".to_vec(), "holds a disk image in the format qcow2"),
        (b"\x1f\x8b\x08".to_vec(), "holds a file compressed by gzip"),
        (filled(b"x", 0), "holds data"),
        (filled(b"x", (200 << 20) - 1), "holds data"),
        (filled(b"x", 100 << 20), "holds data"),
        (filled(b"hsqs", 0), "holds a squashfs"),
    ];
    for (content, words) in cases {
        fs::write(&place, &content).unwrap();
        for command in [
            &["mkfs", "--size", "130M", &file][..],
            &["device", "add", &file, &volume],
            &["replace", "start", "1", &file, &volume],
        ] {
            fails(&ubtrfs(command), 1, words);
            assert!(fs::read(&place).unwrap() == content, "{command:?}");
        }
    }
    // With -f it is overwritten. An empty file, or one of zeros, is overwritten without -f.
    success(&ubtrfs(&["mkfs", "-f", &file]));
    for content in [vec![], vec![0; 150 << 20]] {
        fs::write(&place, content).unwrap();
        success(&ubtrfs(&["mkfs", "--size", "130M", &file]));
    }
    // Data outside the volume's part does not count.
    fs::write(&place, filled(b"x", 1000)).unwrap();
    success(&ubtrfs(&["mkfs", "--offset", "1M", &file]));
}
