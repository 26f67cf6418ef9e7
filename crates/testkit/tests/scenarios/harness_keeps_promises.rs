//! Tests the harness: writers that record what is durable agree with the kernel's btrfs, and notice
//! when promised data is missing.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::promises::{Promises, TOPS, Writer};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::seeds;

const WRITERS: u64 = 2;

/// Lets writers work to the end, and returns their promises.
fn work(place: &Path, seed: u64, promises: Vec<Promises>, operations: u64) -> Vec<Promises> {
    let alive = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads = promises.into_iter().zip(0..).map(|(mut promises, number)| {
            let alive = &alive;
            scope.spawn(move || {
                let writer = Writer::new(place, number, &mut promises, seed << 8 | number);
                writer.run(alive, operations).unwrap_or_else(|fault| panic!("writer {number}: {fault}"));
                promises
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("a writer")).collect()
    })
}

fn faults(place: &Path, promises: &[Promises]) -> Vec<String> {
    let each = promises.iter().zip(0..).map(|(promises, number)| promises.faults(place, &Writer::prefix(number)));
    each.flatten().collect()
}

#[test]
fn true_states_are_allowed_and_false_ones_detected() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, 1 << 30, &[]);
    for seed in seeds(1) {
        let mount = KernelMount::new(&[&image], "");
        let place = mount.path().join(seed.to_string());
        Writer::prepare(&place);
        let mut promises = vec![Promises::default(); WRITERS as usize];
        for session in 0..3 {
            promises = work(&place, seed << 4 | session, promises, 700);
            assert_eq!(faults(&place, &promises), [""; 0], "seed {seed}");
            if session < 2 {
                for (promises, number) in promises.iter_mut().zip(0..) {
                    promises.adopt(&place, &Writer::prefix(number));
                }
                assert_eq!(faults(&place, &promises), [""; 0], "seed {seed}, adopted");
            }
        }
        tamper(&place, &promises);
        mount.unmount();
    }
}

/// Damages files in several ways, each of which must be detected.
#[track_caller]
fn tamper(place: &Path, promises: &[Promises]) {
    let adopted: Vec<Promises> = promises
        .iter()
        .zip(0..)
        .map(|(promises, number)| {
            let mut promises = promises.clone();
            promises.adopt(place, &Writer::prefix(number));
            promises
        })
        .collect();
    let file = largest_file(place);
    let notices = |what: &str| assert_ne!(faults(place, &adopted), [""; 0], "{what} is not noticed");
    let whole = std::fs::read(&file).expect("read a file");

    let mut bytes = whole.clone();
    bytes[5000] ^= 1;
    std::fs::write(&file, &bytes).expect("write");
    notices("a wrong byte");
    std::fs::write(&file, &whole[..8192]).expect("write");
    notices("a short file");
    bytes[..4096].copy_from_slice(&whole[4096..8192]);
    bytes[5000] ^= 1;
    std::fs::write(&file, &bytes).expect("write");
    notices("a block in another's place");
    bytes[..4096].fill(0);
    std::fs::write(&file, &bytes).expect("write");
    notices("a hole");
    std::fs::write(&file, &whole).expect("write");
    assert_eq!(faults(place, &adopted), [""; 0]);

    let other = file.with_file_name("w0.other");
    std::fs::rename(&file, &other).expect("rename");
    notices("a wrong name");
    std::fs::hard_link(&other, &file).expect("link");
    notices("both names");
    std::fs::remove_file(&file).expect("unlink");
    std::fs::remove_file(&other).expect("unlink");
    notices("a lost file");
    std::fs::write(&file, &whole).expect("write");
    notices("another file of the same content");
}

/// Returns the largest file of writer 0 in one of the shared directories, among those that begin
/// with two blocks of content: a block that is a hole does not show its place.
fn largest_file(place: &Path) -> std::path::PathBuf {
    let has_content = |entry: &std::fs::DirEntry| {
        let bytes = std::fs::read(entry.path()).expect("read a file");
        bytes.chunks(4096).take(2).all(|block| block.iter().any(|byte| *byte != 0))
    };
    let entries = TOPS.iter().flat_map(|top| std::fs::read_dir(place.join(top)).expect("a directory"));
    let entries = entries.map(|entry| entry.expect("an entry"));
    let own = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("w0.f"));
    let largest =
        own.filter(has_content).max_by_key(|entry| entry.metadata().expect("metadata").len()).expect("a file");
    assert!(largest.metadata().expect("metadata").len() > 12288, "no file is large enough");
    largest.path()
}
