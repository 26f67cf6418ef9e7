//! Tests of the server's log.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume};

/// Makes a file of one sector, whose content on the device differs from what was written.
fn with_damage(volume: &Volume) {
    let content = b"QZ".repeat(2048);
    volume.mount("");
    fs::write(volume.point.join("file"), &content).unwrap();
    volume.umount();
    let image = fs::read(&volume.image).unwrap();
    let at = image.chunks(4096).position(|sector| sector == content).unwrap() as u64 * 4096;
    File::options().write(true).open(&volume.image).unwrap().write_all_at(b"!", at).unwrap();
}

#[test]
fn errors_that_users_cause_do_not_fill_it() {
    const READS: u64 = 1000;
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    with_damage(&volume);
    let log = volume.dir.path().join("log");
    let mut server = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    server.args(["mount", "-f"]).args([&volume.image, &volume.point]);
    let mut server = server.stderr(Stdio::from(File::create(&log).unwrap())).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !volume.is_mounted() {
        assert!(Instant::now() < deadline && server.try_wait().unwrap().is_none(), "it does not mount");
        thread::sleep(Duration::from_millis(20));
    }
    let (began, file) = (Instant::now(), File::open(volume.point.join("file")).unwrap());
    assert!((0..READS).all(|_| file.read_at(&mut [0; 100], 0).is_err()));
    let windows = began.elapsed().as_secs() / 5 + 1;
    drop(file);
    volume.umount();
    assert!(server.wait().unwrap().success());
    let log = fs::read_to_string(log).unwrap();
    let (counts, lines): (Vec<_>, Vec<_>) =
        log.lines().filter(|line| line.contains("checksum")).partition(|line| line.contains("more were left out: "));
    assert!(!lines.is_empty() && lines.len() as u64 <= 10 * windows, "{log}");
    let count = |line: &&str| {
        line.split_once(" more were").and_then(|(before, _)| before.rsplit(' ').next()?.parse::<u64>().ok()).unwrap()
    };
    assert!(lines.len() as u64 + counts.iter().map(count).sum::<u64>() >= READS, "{log}");
    // Other messages are still logged.
    for words in ["is mounted on", "is unmounted"] {
        assert!(log.contains(words), "{log}");
    }
}
