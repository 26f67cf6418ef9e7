//! `ubtrfs filesystem du` shows the numbers of `btrfs filesystem du`, for files that share extents
//! in every way: in images, on mounts of ours and on mounts of the kernel.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use ubtrfs_random::Rng;
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_testkit::subject::Subject;

const SIZE: u64 = 512 << 20;
const BLOCK: u64 = 4096;
const NOATIME: &str = "noatime";

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn write(path: &Path, rng: &mut Rng, block: u64, blocks: u64) {
    let file = open(path);
    file.write_all_at(&rng.noise((blocks * BLOCK) as usize), block * BLOCK).unwrap();
    // The next write makes an extent of its own.
    file.sync_data().unwrap();
}

/// Makes blocks of a file share the extents of another one, or of other blocks of the same file;
/// both drivers share them.
fn share(from: &Path, block: u64, blocks: u64, to: &Path, to_block: u64) {
    let (from, to) = (open(from), open(to));
    let (mut at, mut to_at, mut left) = (block * BLOCK, to_block * BLOCK, blocks * BLOCK);
    while left > 0 {
        let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left as usize).unwrap();
        assert_ne!(copied, 0, "the source ends");
        left -= copied as u64;
    }
}

/// Runs `ubtrfs subvolume`, which works on mounts of either driver.
fn subvolume(words: &[&str], paths: &[&Path]) {
    let own = ubtrfs_binary().unwrap();
    run(command(own.to_str().unwrap(), &["subvolume"]).args(words).args(paths)).ok();
}

/// Makes a subvolume with files of every kind, and files that share their extents inside and
/// outside of it.
fn fill(top: &Path) {
    let mut rng = Rng::new(1);
    let first = top.join("first");
    subvolume(&["create"], &[&first]);
    let at = |name: &str| first.join(name);
    write(&at("plain"), &mut rng, 0, 64);
    fs::write(at("inline"), "a few bytes").unwrap();
    fs::write(at("empty"), "").unwrap();
    write(&at("sparse"), &mut rng, 100, 1);
    open(&at("sparse")).set_len(1 << 20).unwrap();
    rustix::fs::fallocate(open(&at("reserved")), FallocateFlags::KEEP_SIZE, 0, 32 * BLOCK).unwrap();
    write(&at("reserved"), &mut rng, 3, 2);
    // Two ranges of one file share an extent.
    write(&at("self"), &mut rng, 0, 16);
    share(&at("self"), 0, 16, &at("self"), 16);
    // An extent whose middle was overwritten, and one that was truncated.
    write(&at("middle"), &mut rng, 0, 32);
    write(&at("middle"), &mut rng, 7, 1);
    write(&at("short"), &mut rng, 0, 32);
    open(&at("short")).set_len(5 * BLOCK).unwrap();
    fs::create_dir_all(at("dir/below")).unwrap();
    fs::create_dir(at("dir/empty")).unwrap();
    share(&at("plain"), 8, 8, &at("dir/below/part"), 0);
    share(&at("plain"), 0, 64, &at("dir/whole"), 0);
    fs::hard_link(at("plain"), at("dir/again")).unwrap();
    write(&at("dir/linked"), &mut rng, 0, 3);
    fs::hard_link(at("dir/linked"), at("dir/below/linked")).unwrap();
    std::os::unix::fs::symlink("dir/whole", at("link")).unwrap();
    // Subvolumes inside, which a snapshot does not have.
    subvolume(&["create"], &[&at("nested")]);
    write(&at("nested/own"), &mut rng, 0, 5);
    share(&at("middle"), 0, 4, &at("nested/part"), 0);
    // Files in leaves of their own.
    fs::create_dir(at("crowd")).unwrap();
    for number in 0..200 {
        fs::write(at(&format!("crowd/{number}")), rng.noise(5000)).unwrap();
    }
    fs::write(top.join("compressible"), vec![b'a'; 1 << 20]).unwrap();
    run(command("sync", &["-f"]).arg(top)).ok();
    fs::create_dir(top.join("copies")).unwrap();
    share(&top.join("compressible"), 0, 40, &top.join("copies/of-compressible"), 3);

    subvolume(&["snapshot", "-r"], &[&first, &top.join("frozen")]);
    subvolume(&["snapshot"], &[&first, &top.join("second")]);
    let at = |name: &str| top.join("second").join(name);
    write(&at("middle"), &mut rng, 20, 2);
    write(&at("new"), &mut rng, 0, 2);
    (0..30).for_each(|number| write(&at(&format!("crowd/{}", number * 3)), &mut rng, 0, 1));
    rustix::fs::fallocate(open(&at("self")), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4 * BLOCK)
        .unwrap();
    // A subvolume is deleted that has a snapshot: from then on leaves refer to extents by their
    // address.
    subvolume(&["create"], &[&top.join("gone")]);
    write(&top.join("gone/file"), &mut rng, 0, 9);
    write(&top.join("gone/file"), &mut rng, 4, 1);
    (0..100).for_each(|number| fs::write(top.join(format!("gone/{number}")), rng.noise(5000)).unwrap());
    run(command("sync", &["-f"]).arg(top)).ok();
    subvolume(&["snapshot"], &[&top.join("gone"), &top.join("heir")]);
    subvolume(&["delete", "-c"], &[&top.join("gone")]);
    // Pieces of one extent are referred to from the first and the last leaf, one of which a
    // snapshot does not share any more.
    subvolume(&["create"], &[&top.join("spread")]);
    let file = top.join("spread/file");
    write(&file, &mut rng, 0, 400);
    let is_again = |block: &u64| block.is_multiple_of(2) || (20..380).contains(block);
    (0..400).filter(is_again).for_each(|block| write(&file, &mut rng, block, 1));
    run(command("sync", &["-f"]).arg(top)).ok();
    subvolume(&["snapshot"], &[&top.join("spread"), &top.join("half-spread")]);
    write(&file, &mut rng, 6, 1);
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(open(&top.join("half-spread/file")), how, 0, 30 * BLOCK).unwrap();
    subvolume(&["sync"], &[top]);
}

/// Returns what `du` prints in the top directory of a mount; without a `program`, that of
/// btrfs-progs.
fn du(program: Option<&Path>, top: &Path, words: &[&str]) -> String {
    let program = program.map_or(Path::new("btrfs"), |program| program).to_str().unwrap();
    let shown = run(command(program, &["filesystem", "du"]).args(words).current_dir(top));
    shown.ok().stdout
}

/// Asserts that every way to ask gives what btrfs-progs show on the kernel's mount.
#[track_caller]
fn assert_same_everywhere(image: &Path, questions: &[Vec<&str>]) {
    let own = ubtrfs_binary().unwrap();
    let ask = |subject: &Subject, program: Option<&Path>| -> Vec<String> {
        let mount = subject.mount(&[image], "ro,noatime");
        let answers = questions.iter().map(|words| du(program, mount.path(), words)).collect();
        mount.unmount();
        answers
    };
    let wanted = ask(&Subject::Kernel, None);
    let prefix = format!("{}:", image.display());
    let in_image: Vec<_> = questions
        .iter()
        .map(|words| {
            let is_option = |word: &str| word.starts_with('-');
            let words: Vec<_> = words
                .iter()
                .map(|word| if is_option(word) { (*word).into() } else { format!("{prefix}{word}") })
                .collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            du(Some(&own), Path::new("/"), &words).replace(&prefix, "")
        })
        .collect();
    let answers = [
        ("in the image", in_image),
        ("on our mount", ask(&Subject::ubtrfs(), Some(&own))),
        ("on the kernel's mount", ask(&Subject::Kernel, Some(&own))),
    ];
    for (place, answers) in answers {
        for ((question, wanted), found) in questions.iter().zip(&wanted).zip(&answers) {
            let differ: Vec<_> = wanted.lines().zip(found.lines()).filter(|(wanted, found)| wanted != found).collect();
            assert!(wanted == found, "{question:?} {place}, wanted and found: {differ:#?}\n{wanted}\n{found}");
        }
    }
}

fn questions() -> Vec<Vec<&'static str>> {
    vec![
        vec!["--raw", "first"],
        vec!["--raw", "second/"],
        vec!["--raw", "frozen", "heir"],
        vec!["--raw", "-s", "first", "second", "frozen", "copies", "first/dir"],
        vec!["--raw", "first/self", "first/link", "first/plain", "second/self", "first/inline", "compressible"],
        vec!["first/nested", "copies"],
        vec!["-s", "--si", "first"],
        vec!["--kbytes", "heir"],
        vec!["--raw", "spread", "half-spread"],
    ]
}

#[test]
fn the_kernels_files_use_what_btrfs_progs_show() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for options in [&["-n", "4k"][..], &["-O", "^no-holes"]] {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        mkfs_btrfs(&image, SIZE, options);
        let mount = Subject::Kernel.mount(&[&image], "noatime,compress=zstd");
        fill(mount.path());
        mount.unmount();
        assert_same_everywhere(&image, &questions());
    }
}

#[test]
fn our_files_use_what_btrfs_progs_show() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, SIZE, &["-n", "4k"]);
    let mount = Subject::ubtrfs().mount(&[&image], "noatime,compress=zstd");
    fill(mount.path());
    mount.unmount();
    assert_btrfs_check_clean(&image);
    assert_same_everywhere(&image, &questions());
}

/// Data that was just written counts, too.
#[test]
fn what_is_not_durable_yet_counts_on_a_mount() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, SIZE, &[]);
    let own = ubtrfs_binary().unwrap();
    for subject in [Subject::ubtrfs(), Subject::Kernel] {
        let mount = subject.mount(&[&image], NOATIME);
        let path = mount.path().join("file");
        fs::write(&path, Rng::new(1).noise(100_000)).unwrap();
        let shown = du(Some(&own), mount.path(), &["--raw", "-s", "file"]);
        assert_eq!(
            shown.lines().last().unwrap().split_whitespace().collect::<Vec<_>>(),
            ["102400", "102400", "0", "file"]
        );
        fs::remove_file(path).unwrap();
        mount.unmount();
    }
}

#[test]
fn each_path_that_is_missing_or_elsewhere_is_named() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, SIZE, &[]);
    let own = ubtrfs_binary().unwrap();
    let mount = Subject::ubtrfs().mount(&[&image], NOATIME);
    fs::write(mount.path().join("file"), Rng::new(1).noise(8192)).unwrap();
    let mut asked = command(own.to_str().unwrap(), &["filesystem", "du", "--json", "none", "file", "/proc"]);
    let shown = run(asked.current_dir(mount.path()));
    assert_eq!(shown.code(), Some(1));
    let rows: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    let row = serde_json::json!([
        { "path": "file", "total_bytes": 8192, "exclusive_bytes": 8192, "set_shared_bytes": 0 }
    ]);
    assert_eq!(rows, row);
    let said = ["none: No such file or directory", "/proc is not on a btrfs volume"];
    assert!(said.iter().all(|sentence| shown.stderr.contains(sentence)), "{}", shown.report());
    mount.unmount();
}

/// Makes random writes, reflinks and holes in subvolumes, and makes and deletes snapshots of them.
struct Churn {
    rng: Rng,
    subvolumes: Vec<String>,
    made: u64,
}

impl Churn {
    const FILES: u64 = 40;
    const BLOCKS: u64 = 24;

    fn new(top: &Path, seed: u64) -> Self {
        subvolume(&["create"], &[&top.join("s0")]);
        Self { rng: Rng::new(seed), subvolumes: vec!["s0".into()], made: 0 }
    }

    fn file(&mut self, top: &Path) -> PathBuf {
        top.join(self.rng.pick(&self.subvolumes)).join(self.rng.below(Self::FILES).to_string())
    }

    fn range(&mut self) -> (u64, u64) {
        (self.rng.below(Self::BLOCKS), 1 + self.rng.below(8))
    }

    fn step(&mut self, top: &Path) {
        let file = self.file(top);
        let (block, blocks) = self.range();
        match self.rng.below(20) {
            0..8 => write(&file, &mut self.rng, block, blocks),
            8..13 => {
                let (from, (to_block, _)) = (self.file(top), self.range());
                let size = open(&from).metadata().unwrap().len() / BLOCK;
                if block + blocks <= size && (from != file || block.abs_diff(to_block) >= blocks) {
                    share(&from, block, blocks, &file, to_block);
                }
            }
            13..15 => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(open(&file), how, block * BLOCK, blocks * BLOCK).unwrap();
            }
            15 => {
                let how = FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(open(&file), how, block * BLOCK, blocks * BLOCK).unwrap();
            }
            16 => open(&file).set_len(block * BLOCK).unwrap(),
            17 => drop(fs::remove_file(&file)),
            _ if self.subvolumes.len() < 5 => {
                self.made += 1;
                let name = format!("s{}", self.made);
                let source = top.join(self.rng.pick(&self.subvolumes));
                subvolume(&["snapshot"], &[&source, &top.join(&name)]);
                self.subvolumes.push(name);
            }
            _ => {
                let gone = self.subvolumes.remove(self.rng.index(self.subvolumes.len()));
                subvolume(&["delete"], &[&top.join(gone)]);
            }
        }
    }
}

#[test]
fn random_files_use_what_btrfs_progs_show() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for seed in seeds(2) {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        mkfs_btrfs(&image, SIZE, &["-n", "4k"]);
        let mount = Subject::Kernel.mount(&[&image], NOATIME);
        let mut churn = Churn::new(mount.path(), seed);
        mount.unmount();
        for round in 0..if soaks() { 8 } else { 2 } {
            eprintln!("seed {seed}, round {round}");
            let subject = if round % 2 == 0 { Subject::Kernel } else { Subject::ubtrfs() };
            let mount = subject.mount(&[&image], NOATIME);
            (0..250).for_each(|_| churn.step(mount.path()));
            subvolume(&["sync"], &[mount.path()]);
            if round % 4 > 1 {
                // Relocation makes blocks that are referred to by address.
                let own = ubtrfs_binary().unwrap();
                run(command(own.to_str().unwrap(), &["balance", "start"]).arg(mount.path())).ok();
            }
            mount.unmount();
            let all = churn.subvolumes.iter().map(String::as_str);
            let words =
                [["--raw"].into_iter().chain(all.clone()).collect(), ["--raw", "-s"].into_iter().chain(all).collect()];
            assert_same_everywhere(&image, &words);
        }
    }
}
