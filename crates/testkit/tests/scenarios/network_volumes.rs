//! Volumes on NBD servers that are killed, are paused, refuse requests, and come back with other
//! properties.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use ubtrfs_random::Rng;
use ubtrfs_testkit::lossy_server::LossyServer;
use ubtrfs_testkit::nbd_server::NbdServer;
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image, ubtrfs_check};
use ubtrfs_testkit::promises::{Promises, Writer};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{many_seeds, soaks};
use ubtrfs_testkit::subject::{Mount, Subject};

const SIZE: u64 = 512 << 20;
const WRITERS: u64 = 3;
/// Operations of each writer.
const OPERATIONS: u64 = 250;
/// The timeout is so long that no request fails while a server is away for a short time.
const OPTIONS: &str = "timeout=3600,commit=1";

fn ubtrfs(arguments: &[&str]) -> Outcome {
    run(Command::new(ubtrfs_binary().expect("the ubtrfs binary")).args(arguments))
}

fn mount(uri: &str, options: &str) -> Mount {
    Subject::ubtrfs().mount(&[Path::new(uri)], options)
}

/// Kills our server, and ends its mount.
fn kill(mounted: Mount) {
    let Mount::Ubtrfs(serving) = &mounted else { unreachable!("a mount of ubtrfs") };
    serving.kill_server();
    mounted.unmount();
}

/// Runs writers that record what is durable, and makes `trouble` until they have finished.
fn write_through(place: &Path, promises: &mut [Promises], seed: u64, mut trouble: impl FnMut()) {
    let never = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for (promises, number) in promises.iter_mut().zip(0..) {
            // syncfs(2) does nothing on mounts of the type `fuse`, which are those of users who are
            // not root.
            let writer = Writer::new(place, number, promises, seed * WRITERS + number).only_logs(true);
            let never = &never;
            writers.push(scope.spawn(move || writer.run(never, OPERATIONS)));
        }
        while writers.iter().any(|writer| !writer.is_finished()) {
            trouble();
        }
        for writer in writers {
            writer.join().expect("a writer").expect("no operation fails");
        }
    });
}

/// Asserts that the image has what was promised, for ubtrfs and for the kernel, and that no check
/// finds a fault.
fn assert_promises(image: &Path, promises: &[Promises]) {
    let copy = image.with_extension("copy");
    run(command("cp", &["--sparse=always"]).arg(image).arg(&copy)).ok();
    for (subject, image) in [(Subject::Kernel, &*copy), (Subject::ubtrfs(), image)] {
        let mount = subject.mount(&[image], "");
        for (promises, number) in promises.iter().zip(0..) {
            let faults = promises.faults(mount.path(), &Writer::prefix(number));
            assert!(faults.is_empty(), "{}: {}\n{}", subject.name(), faults.join("\n"), promises.recent());
        }
        mount.unmount();
        ubtrfs_check(image).ok();
        assert_btrfs_check_clean(image);
    }
}

/// Converts an image to a raw one.
fn raw(image: &Path, format: &str) -> PathBuf {
    if format == "raw" {
        return image.to_owned();
    }
    let raw = image.with_extension("raw");
    run(command("qemu-img", &["convert", "-O", "raw"]).arg(image).arg(&raw)).ok();
    raw
}

#[test]
fn what_was_fsynced_survives_servers_that_are_killed() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("qemu-nbd"), Need::Tool("nbdkit"));
    for (seed, format, is_qemu) in [(1, "qcow2", true), (2, "raw", true), (3, "raw", false)] {
        let dir = scratch_dir();
        let (image, socket) = (dir.path().join("image"), dir.path().join("socket"));
        run(command("qemu-img", &["create", "-q", "-f", format]).arg(&image).arg(SIZE.to_string())).ok();
        let mut server = if is_qemu {
            NbdServer::qemu(&socket, &image, format, &[])
        } else {
            NbdServer::nbdkit(&socket, &["file", &image.display().to_string()])
        };
        let uri = server.uri("");
        ubtrfs(&["mkfs", &uri]).ok();
        let mounted = mount(&uri, OPTIONS);
        assert!(std::fs::read_to_string("/proc/mounts").unwrap().contains(&uri), "the source of the mount is the URI");
        Writer::prepare(mounted.path());
        let mut promises = vec![Promises::default(); WRITERS as usize];
        let mut rng = Rng::new(seed);
        let mut kills = if soaks() { 100 } else { 6 };
        write_through(mounted.path(), &mut promises, seed, || {
            std::thread::sleep(std::time::Duration::from_millis(rng.below(150)));
            if kills > 0 {
                kills -= 1;
                server.kill();
                server.restart();
            }
        });
        // The data in the server's memory is lost, too.
        server.kill();
        kill(mounted);
        assert_promises(&raw(&image, format), &promises);
    }
}

/// This is invariant 32 for a whole volume.
#[test]
fn what_was_fsynced_survives_a_server_that_loses_what_it_can() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for seed in many_seeds(2, 2) {
        let dir = scratch_dir();
        // Superblocks are made durable by FUA, or by a flush.
        let start = if seed % 2 == 0 { LossyServer::start } else { LossyServer::start_with_fua };
        let server = start(&dir.path().join("socket"), vec![0; SIZE as usize]);
        ubtrfs(&["mkfs", &server.uri()]).ok();
        let mounted = mount(&server.uri(), OPTIONS);
        Writer::prepare(mounted.path());
        let mut promises = vec![Promises::default(); WRITERS as usize];
        let mut rng = Rng::new(seed);
        let mut next = server.writes() + rng.below(20);
        write_through(mounted.path(), &mut promises, seed, || {
            if server.writes() >= next {
                server.crash(&mut rng);
                next = server.writes() + rng.below(200);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        });
        let Mount::Ubtrfs(serving) = &mounted else { unreachable!("a mount of ubtrfs") };
        serving.kill_server();
        server.crash(&mut rng);
        mounted.unmount();
        let image = dir.path().join("image");
        std::fs::write(&image, server.durable()).unwrap();
        drop(server);
        assert_promises(&image, &promises);
    }
}

#[test]
fn a_server_that_is_paused_is_waited_for() {
    require!(Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    let dir = scratch_dir();
    let server = NbdServer::nbdkit(&dir.path().join("socket"), &["memory", "512M"]);
    ubtrfs(&["mkfs", &server.uri("")]).ok();
    let mounted = mount(&server.uri(""), OPTIONS);
    std::fs::write(mounted.path().join("before"), "before").unwrap();
    server.pause();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let place = mounted.path();
        let writer = scope.spawn(move || {
            let mut file = File::create(place.join("after"))?;
            sender.send(()).unwrap();
            file.write_all(b"after")?;
            file.sync_all()
        });
        receiver.recv().unwrap();
        assert_eq!(std::fs::read(place.join("before")).unwrap(), b"before", "what is in the cache can be read");
        server.resume();
        writer.join().unwrap().unwrap();
    });
    mounted.unmount();
    let shown = ubtrfs(&["cat", &server.uri(""), "/after"]).ok();
    assert_eq!(shown.stdout, "after");
}

#[test]
fn a_server_that_comes_back_as_another_is_left_alone() {
    require!(Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    for is_empty in [false, true] {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        blank_image(&image, SIZE);
        let mut server = NbdServer::nbdkit(&dir.path().join("socket"), &["file", &image.display().to_string()]);
        ubtrfs(&["mkfs", &server.uri("")]).ok();
        let older = dir.path().join("older");
        run(command("cp", &["--sparse=always"]).arg(&image).arg(&older)).ok();
        let mounted = mount(&server.uri(""), OPTIONS);
        std::fs::write(mounted.path().join("a"), "a").unwrap();
        File::open(mounted.path().join("a")).unwrap().sync_all().unwrap();
        server.kill();
        if is_empty {
            blank_image(&image, SIZE);
        } else {
            std::fs::copy(&older, &image).unwrap();
        }
        let before = std::fs::read(&image).unwrap();
        std::fs::write(mounted.path().join("b"), "b").unwrap();
        server.restart();
        let failed = File::open(mounted.path().join("b")).and_then(|file| file.sync_all());
        assert!(failed.is_err(), "nothing is durable on another export");
        let mount_ends = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| mounted.unmount()));
        assert!(mount_ends.is_err(), "umount says what is lost");
        assert!(std::fs::read(&image).unwrap() == before, "nothing is written to it");
    }
}

#[test]
fn errors_of_a_server_reach_the_program_and_harm_nothing() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    for operation in ["pwrite", "flush"] {
        let dir = scratch_dir();
        let (image, trigger) = (dir.path().join("image"), dir.path().join("trigger"));
        blank_image(&image, SIZE);
        let fails = [format!("error-{operation}=EIO"), format!("error-{operation}-rate=100%")];
        let file = [format!("error-file={}", trigger.display()), image.display().to_string()];
        // nbdkit has no option for errors of flushes alone.
        let fails = if operation == "flush" { ["error=EIO".into(), "error-rate=100%".into()] } else { fails };
        let server = NbdServer::nbdkit(
            &dir.path().join("socket"),
            &["--filter=error", "file", &file[1], &fails[0], &fails[1], &file[0]],
        );
        ubtrfs(&["mkfs", &server.uri("")]).ok();
        let mounted = mount(&server.uri(""), OPTIONS);
        std::fs::write(mounted.path().join("durable"), "durable").unwrap();
        File::open(mounted.path().join("durable")).unwrap().sync_all().unwrap();
        std::fs::write(&trigger, "").unwrap();
        let written = std::fs::write(mounted.path().join("lost"), "lost");
        let failed = written.and_then(|()| File::open(mounted.path().join("lost"))?.sync_all());
        assert!(failed.is_err(), "{operation}");
        std::fs::remove_file(&trigger).unwrap();
        let again = std::fs::write(mounted.path().join("again"), "again");
        assert!(again.is_err(), "it is read-only from then on");
        assert_eq!(std::fs::read(mounted.path().join("durable")).unwrap(), b"durable");
        drop(mounted);
        drop(server);
        ubtrfs_check(&image).ok();
        assert_btrfs_check_clean(&image);
        let kernels = Subject::Kernel.mount(&[&image], "");
        assert_eq!(std::fs::read(kernels.path().join("durable")).unwrap(), b"durable");
        kernels.unmount();
    }
}

#[test]
fn sync_of_the_system_makes_the_volume_of_a_server_durable() {
    require!(Need::Root, Need::Fuse, Need::Ubtrfs, Need::Kernel);
    let dir = scratch_dir();
    let server = LossyServer::start(&dir.path().join("socket"), vec![0; SIZE as usize]);
    ubtrfs(&["mkfs", &server.uri()]).ok();
    let mounted = mount(&server.uri(), "commit=1000");
    std::fs::write(mounted.path().join("file"), "content").unwrap();
    run(command("sync", &["-f"]).arg(mounted.path())).ok();
    server.crash(&mut Rng::new(1));
    kill(mounted);
    assert_eq!(ubtrfs(&["cat", &server.uri(), "/file"]).ok().stdout, "content");
    let image = dir.path().join("image");
    std::fs::write(&image, server.durable()).unwrap();
    assert_btrfs_check_clean(&image);
}

#[test]
fn the_mount_of_a_uri_is_known_by_it() {
    require!(Need::Root, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let server = LossyServer::start(&dir.path().join("socket"), vec![0; SIZE as usize]);
    let uri = server.uri();
    ubtrfs(&["mkfs", "-L", "far", &uri]).ok();
    let mounted = mount(&uri, "");
    let place = mounted.path().display().to_string();
    for program in ["findmnt -no SOURCE", "df --output=source"] {
        let words: Vec<_> = program.split(' ').chain([&*place]).collect();
        let shown = run(&mut command(words[0], &words[1..])).ok().stdout;
        assert_eq!(shown.lines().last(), Some(&*uri), "{program}");
    }
    assert!(ubtrfs(&["stats", &place]).ok().stdout.contains("fuseblk"));
    assert!(ubtrfs(&["info", &uri]).ok().stdout.contains("far"));
    let refused = ubtrfs(&["label", &uri, "near"]);
    assert!(
        !refused.success() && refused.stderr.contains(&format!("it is mounted on {place}")),
        "{}",
        refused.report()
    );
    ubtrfs(&["mount", "-o", "remount,ro", &place]).ok();
    assert!(std::fs::write(mounted.path().join("a"), "a").is_err());
    ubtrfs(&["mount", "-o", "remount,rw", &place]).ok();
    std::fs::write(mounted.path().join("a"), "a").unwrap();
    ubtrfs(&["umount", &place]).ok();
    assert_eq!(ubtrfs(&["cat", &uri, "/a"]).ok().stdout, "a");
    let left = run(&mut command("losetup", &["-l", "-n", "-O", "BACK-FILE"])).ok().stdout;
    assert!(!left.contains(&uri), "{left}");
}

/// The server process ends after its mount was removed by force.
#[test]
fn a_mount_ends_while_its_server_is_away() {
    require!(Need::Root, Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    let dir = scratch_dir();
    let mut server = NbdServer::nbdkit(&dir.path().join("socket"), &["memory", "512M"]);
    ubtrfs(&["mkfs", &server.uri("")]).ok();
    let mounted = mount(&server.uri(""), "timeout=1");
    std::fs::write(mounted.path().join("a"), "a").unwrap();
    server.kill();
    let failed = File::open(mounted.path().join("a")).and_then(|file| file.sync_all());
    assert!(failed.is_err(), "the wait has an end");
    run(command("umount", &["-f"]).arg(mounted.path())).ok();
}

#[test]
fn every_kind_of_command_takes_a_uri() {
    require!(Need::Ubtrfs, Need::Tool("nbdkit"));
    let server = NbdServer::nbdkit_on_tcp(&["memory", "512M"]);
    let uri = server.uri("");
    ubtrfs(&["mkfs", "-L", "far", &uri]).ok();
    let said = ubtrfs(&["mkfs", &uri]);
    assert!(
        !said.success() && said.stderr.contains(&uri) && said.stderr.contains("holds a btrfs"),
        "{}",
        said.report()
    );
    ubtrfs(&["mkdir", &format!("{uri}:/dir")]).ok();
    ubtrfs(&["cp", "/proc/version", &format!("{uri}:/dir/version")]).ok();
    let version = std::fs::read_to_string("/proc/version").unwrap();
    assert_eq!(ubtrfs(&["cat", &uri, "/dir/version"]).ok().stdout, version);
    assert!(ubtrfs(&["info", &uri]).ok().stdout.contains("far"));
    assert!(ubtrfs(&["ls", &uri, "/"]).ok().stdout.contains("dir"));
    ubtrfs(&["label", &uri, "near"]).ok();
    assert_eq!(ubtrfs(&["label", &uri]).ok().stdout.trim(), "near");
    ubtrfs(&["check", &uri]).ok();
    ubtrfs(&["tree", &uri]).ok();
    let dir = scratch_dir();
    ubtrfs(&["restore", &uri, &dir.path().join("out").display().to_string()]).ok();
    assert_eq!(std::fs::read_to_string(dir.path().join("out/dir/version")).unwrap(), version);
}

#[test]
fn errors_about_a_server_name_a_remedy() {
    require!(Need::Ubtrfs, Need::Tool("qemu-nbd"), Need::Tool("nbdkit"));
    let dir = scratch_dir();
    let image = dir.path().join("image");
    blank_image(&image, SIZE);
    let says = |uri: &str, command: &str, expected: &[&str]| {
        let outcome = ubtrfs(&[command, uri]);
        let is_right = !outcome.success() && expected.iter().all(|text| outcome.stderr.contains(text));
        assert!(is_right, "expected {expected:?}: {}", outcome.report());
    };
    let named = NbdServer::qemu(&dir.path().join("named"), &image, "raw", &["--export-name=one", "--read-only"]);
    says(&named.uri("two"), "info", &["no export 'two'", "it has: 'one'", "two?socket="]);
    says(&named.uri("one"), "mkfs", &["read-only", "-o ro"]);
    says(&format!("nbds{}", &named.uri("one")[3..]), "info", &["offers no TLS"]);
    says("nbd+unix:///?socket=/no/such", "info", &["/no/such", "start the server"]);
    says("nbd+unix:///", "info", &["socket=PATH"]);
    says("rbd://pool/image", "mkfs", &["'rbd://' is none of the schemes", "nbd+unix://"]);
    says("NBD://127.0.0.1:1/", "info", &["no server listens"]);
    says("nbd://me:secret@127.0.0.1:1/", "info", &["cannot open nbd://127.0.0.1:1/: NBD has no passwords"]);
    says("nbd://127.0.0.1:1/", "info", &["127.0.0.1:1", "no server listens"]);
    let file = image.display().to_string();
    let coarse = [
        "--filter=blocksize-policy",
        "file",
        &file,
        "blocksize-minimum=8192",
        "blocksize-preferred=8192",
        "blocksize-error-policy=error",
    ];
    let coarse = NbdServer::nbdkit(&dir.path().join("coarse"), &coarse);
    says(&coarse.uri(""), "info", &["blocks of 8192 bytes"]);
}

/// Makes an authority, and certificates for both sides, in a directory.
fn certificates(dir: &Path) {
    let openssl = |words: &str| run(command("openssl", &words.split(' ').collect::<Vec<_>>()).current_dir(dir)).ok();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca-key.pem -out ca-cert.pem -days 3650 -subj /CN=authority"));
    for (side, name) in [("server", "localhost"), ("client", "client")] {
        std::fs::write(dir.join("names"), format!("subjectAltName=DNS:{name}\n")).unwrap();
        openssl(&format!("req {key} -keyout {side}-key.pem -out {side}.csr -subj /CN={name}"));
        let sign = "-CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 3650 -extfile names";
        openssl(&format!("x509 -req -in {side}.csr {sign} -out {side}-cert.pem"));
    }
}

#[test]
fn connections_are_encrypted_and_both_sides_are_known() {
    require!(Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"), Need::Tool("openssl"));
    let dir = scratch_dir();
    let (keys, others) = (dir.path().join("keys"), dir.path().join("others"));
    for keys in [&keys, &others] {
        std::fs::create_dir(keys).unwrap();
        certificates(keys);
    }
    let tls = format!("--tls-certificates={}", keys.display());
    let server =
        NbdServer::nbdkit(&dir.path().join("socket"), &["--tls=require", &tls, "--tls-verify-peer", "memory", "512M"]);
    let with = |keys: &Path| format!("nbds{}&tls-certificates={}", &server.uri("")[3..], keys.display());
    let uri = with(&keys);
    ubtrfs(&["mkfs", &uri]).ok();
    let mounted = mount(&uri, OPTIONS);
    let content: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
    std::fs::write(mounted.path().join("a"), &content).unwrap();
    mounted.unmount();
    ubtrfs(&["check", &uri]).ok();
    let mounted = mount(&uri, "ro");
    assert!(std::fs::read(mounted.path().join("a")).unwrap() == content);
    mounted.unmount();
    let says = |uri: &str, text: &str| {
        let outcome = ubtrfs(&["info", uri]);
        assert!(!outcome.success() && outcome.stderr.contains(text), "{}", outcome.report());
    };
    says(&server.uri(""), "nbds+unix://");
    says(&with(&others), "tls-certificates=DIR");
    says(&format!("{uri}&tls-hostname=example.com"), "tls-hostname=NAME");
    std::fs::remove_file(keys.join("client-cert.pem")).unwrap();
    says(&uri, "cannot open");
}

/// qemu-nbd accepts one client by default: the mount makes one connection, and no other client can
/// connect.
#[test]
fn a_server_for_one_client_is_enough() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("qemu-nbd"));
    let dir = scratch_dir();
    let image = dir.path().join("image");
    blank_image(&image, SIZE);
    let server = NbdServer::qemu(&dir.path().join("socket"), &image, "raw", &["--shared=1"]);
    ubtrfs(&["mkfs", &server.uri("")]).ok();
    let mounted = mount(&server.uri(""), OPTIONS);
    std::fs::write(mounted.path().join("a"), "a").unwrap();
    File::open(mounted.path().join("a")).unwrap().sync_all().unwrap();
    let second = ubtrfs(&["info", &server.uri("")]);
    assert!(!second.success() && second.stderr.contains("may serve another client"), "{}", second.report());
    std::fs::write(mounted.path().join("b"), "b").unwrap();
    mounted.unmount();
    drop(server);
    assert_btrfs_check_clean(&image);
    let kernels = Subject::Kernel.mount(&[&image], "");
    assert_eq!(std::fs::read(kernels.path().join("b")).unwrap(), b"b");
    kernels.unmount();
}

#[test]
fn a_walk_over_small_files_takes_fewer_requests_than_there_are_files() {
    const FILES: u64 = 600;
    require!(Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let server = LossyServer::start(&dir.path().join("socket"), vec![0; SIZE as usize]);
    ubtrfs(&["mkfs", &server.uri()]).ok();
    let mounted = mount(&server.uri(), "");
    let content = |number: u64| vec![number as u8; 6000];
    for number in 0..FILES {
        std::fs::write(mounted.path().join(format!("file{number:04}")), content(number)).unwrap();
    }
    mounted.unmount();
    let mounted = mount(&server.uri(), "");
    let before = server.reads();
    for number in 0..FILES {
        assert!(std::fs::read(mounted.path().join(format!("file{number:04}"))).unwrap() == content(number));
    }
    let reads = server.reads() - before;
    assert!(reads < FILES / 4, "{reads} reads of {FILES} files");
    mounted.unmount();
}
