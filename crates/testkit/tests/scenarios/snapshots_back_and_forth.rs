//! ubtrfs and the kernel use a volume of subvolumes, snapshots of snapshots and reflinks in turn:
//! each changes originals and snapshots, each finds the other's state in all of them, and read-only
//! ones stay unchanged.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::ioctl_ficlone;
use rustix::io::Errno;
use ubtrfs_random::Rng;
use ubtrfs_testkit::content::Content;
use ubtrfs_testkit::diff::{Options, assert_same};
use ubtrfs_testkit::fixture;
use ubtrfs_testkit::model::{Model, Mtime, NodeId, join};
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_testkit::subject::Subject;
use ubtrfs_testkit::walk::{Tree, walk};
use ubtrfs_testkit::workload::{Limits, Workload};

const SIZE: u64 = 1 << 30;

/// The directory of the workload in a subvolume.
const PLACE: &str = "work";

/// The directory of many small files in a subvolume, which give it leaves to share.
const CROWD: &str = "crowd";

/// An option of all mounts: with access times, each reader of a crowd would write to every leaf,
/// and nothing would stay shared for long.
const READING_CHANGES_NOTHING: &str = "noatime";

/// Files of a crowd.
const CROWD_SIZE: u64 = 900;

/// How often each file of a crowd was written.
#[derive(Clone)]
struct Crowd(Vec<u64>);

impl Crowd {
    fn begin(dir: &Path) -> Self {
        std::fs::create_dir(dir).expect("mkdir");
        let crowd = Self(vec![0; CROWD_SIZE as usize]);
        (0..CROWD_SIZE).for_each(|number| crowd.write(dir, number));
        crowd
    }

    fn content(number: u64, version: u64) -> String {
        format!("file {number}, version {version}; ").repeat(12)
    }

    fn write(&self, dir: &Path, number: u64) {
        let content = Self::content(number, self.0[number as usize]);
        std::fs::write(dir.join(number.to_string()), content).expect("write");
    }

    /// Rewrites some adjacent files, a few of them under a new inode, so that other leaves stay
    /// shared.
    fn stir(&mut self, dir: &Path, rng: &mut Rng) {
        let first = rng.below(CROWD_SIZE);
        for number in first..(first + 20).min(CROWD_SIZE) {
            if rng.one_in(6) {
                std::fs::remove_file(dir.join(number.to_string())).expect("unlink");
            }
            self.0[number as usize] += 1;
            self.write(dir, number);
        }
    }

    #[track_caller]
    fn assert_in(&self, what: &str, dir: &Path) {
        for (number, version) in (0..).zip(&self.0) {
            let found = std::fs::read_to_string(dir.join(number.to_string())).expect("read");
            assert_eq!(found, Self::content(number, *version), "{what}");
        }
    }
}

/// A subvolume or snapshot, and what its `work` and its `crowd` must hold.
struct Subvolume {
    name: String,
    read_only: bool,
    model: Model,
    crowd: Crowd,
}

fn btrfs(words: &[&str], path: &Path) {
    run(command("btrfs", &["-q"]).args(words).arg(path)).ok();
}

/// The volume as the test knows it.
struct Volume {
    rng: Rng,
    nodesize: u64,
    subvolumes: Vec<Subvolume>,
    made: u64,
}

impl Volume {
    /// Makes two subvolumes, one of them with another one inside.
    fn begin(top: &Path, seed: u64, nodesize: u64) -> Self {
        let mut subvolumes = Vec::new();
        for name in ["first", "second"] {
            btrfs(&["subvolume", "create"], &top.join(name));
            let place = top.join(name).join(PLACE);
            std::fs::create_dir(&place).expect("mkdir");
            let model = Model::of_empty(&place);
            let crowd = Crowd::begin(&top.join(name).join(CROWD));
            subvolumes.push(Subvolume { name: name.into(), read_only: false, model, crowd });
        }
        let inner = top.join("first/inner");
        btrfs(&["subvolume", "create"], &inner);
        std::fs::write(inner.join("file"), "inside").expect("write");
        Self { rng: Rng::new(seed), nodesize, subvolumes, made: 0 }
    }

    fn pick_writable(&mut self) -> usize {
        let writable: Vec<usize> = (0..self.subvolumes.len()).filter(|at| !self.subvolumes[*at].read_only).collect();
        *self.rng.pick(&writable)
    }

    /// Does random operations in every writable subvolume.
    fn work(&mut self, top: &Path, operations: usize) {
        let limits = Limits { names: 150, bytes: 6 << 20, ..Limits::default() }.in_nodes_of(self.nodesize);
        for subvolume in self.subvolumes.iter_mut().filter(|subvolume| !subvolume.read_only) {
            let place = top.join(&subvolume.name).join(PLACE);
            let mut workload = Workload::resume(&place, subvolume.model.clone(), self.rng.next_u64()).limited(limits);
            workload.run_or_panic(operations);
            subvolume.model = workload.finish();
            subvolume.crowd.stir(&top.join(&subvolume.name).join(CROWD), &mut self.rng);
        }
    }

    /// Makes snapshots of any subvolume, read-only or not, and deletes some; only the kernel does
    /// this.
    fn take_snapshots(&mut self, top: &Path) {
        const MAX: usize = 9;
        for _ in 0..2 {
            let source = self.rng.index(self.subvolumes.len());
            let read_only = self.rng.one_in(3);
            let name = format!("snapshot-{}", self.made);
            self.made += 1;
            let from = top.join(&self.subvolumes[source].name);
            let words = if read_only { vec!["subvolume", "snapshot", "-r"] } else { vec!["subvolume", "snapshot"] };
            run(command("btrfs", &["-q"]).args(&words).arg(from).arg(top.join(&name))).ok();
            let Subvolume { model, crowd, .. } = &self.subvolumes[source];
            let (model, crowd) = (model.clone(), crowd.clone());
            self.subvolumes.push(Subvolume { name, read_only, model, crowd });
        }
        while self.subvolumes.len() > MAX {
            // The first subvolume stays, since the kernel can't delete one with another inside.
            let gone = self.subvolumes.remove(1 + self.rng.index(self.subvolumes.len() - 1));
            btrfs(&["subvolume", "delete"], &top.join(&gone.name));
        }
    }

    /// Renames some subvolumes, also read-only ones.
    fn rename_subvolumes(&mut self, top: &Path) {
        for _ in 0..2 {
            let at = self.rng.index(self.subvolumes.len());
            self.made += 1;
            let name = format!("renamed-{}", self.made);
            std::fs::rename(top.join(&self.subvolumes[at].name), top.join(&name)).expect("rename a subvolume");
            self.subvolumes[at].name = name;
        }
    }

    /// Makes files of any subvolume reflinks of files of others.
    fn take_reflinks(&mut self, top: &Path) {
        for _ in 0..6 {
            let (from, to) = (self.rng.index(self.subvolumes.len()), self.pick_writable());
            let source = self.random_file(from, |size| size > 4096);
            let target = self.random_file(to, |_| true);
            let (Some((source, source_path)), Some((target, target_path))) = (source, target) else { continue };
            if from == to && source == target {
                continue;
            }
            let content = self.subvolumes[from].model.node(source).content().expect("a file").clone();
            let path =
                |subvolume: usize, path: &Path| top.join(&self.subvolumes[subvolume].name).join(PLACE).join(path);
            let source = std::fs::File::open(path(from, &source_path)).expect("open the source of a reflink");
            let file = std::fs::File::create(path(to, &target_path)).expect("open the target of a reflink");
            let content = match ioctl_ficlone(&file, &source) {
                Ok(()) => content,
                // One file has checksums and the other has none. The target was truncated when it
                // was opened.
                Err(Errno::INVAL) => Content::default(),
                Err(error) => panic!("reflink: {error}"),
            };
            let model = &mut self.subvolumes[to].model;
            *model.content_mut(target) = content;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
            model.node_mut(target).mtime = Mtime::Since((now.as_secs() as i64 - 1, 0));
        }
    }

    /// Returns a file without attributes that a write clears.
    fn random_file(&mut self, subvolume: usize, wanted: impl Fn(u64) -> bool) -> Option<(NodeId, PathBuf)> {
        let model = &self.subvolumes[subvolume].model;
        let files: Vec<(NodeId, Vec<u8>)> = model
            .names()
            .into_iter()
            .filter(|name| {
                let node = model.node(name.node);
                node.content().is_some_and(|content| wanted(content.size()))
                    && !node.xattrs.keys().any(|name| name.starts_with(b"security."))
            })
            .map(|name| (name.node, join(&model.dir_path(name.dir), &name.name)))
            .collect();
        let (node, path) = (!files.is_empty()).then(|| self.rng.pick(&files).clone())?;
        Some((node, PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(path))))
    }

    #[track_caller]
    fn assert_in(&self, what: &str, top: &Path) {
        for subvolume in &self.subvolumes {
            let (what, dir) = (format!("{what}, {}", subvolume.name), top.join(&subvolume.name));
            subvolume.model.assert_in(&what, &dir.join(PLACE));
            subvolume.crowd.assert_in(&what, &dir.join(CROWD));
        }
    }
}

/// Returns whether the kernel was interrupted while it dropped a deleted subvolume. The lowmem mode
/// of `btrfs check` follows pointers of such a subvolume to freed blocks.
fn has_half_dropped(image: &Path) -> bool {
    let roots = run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "root"]).arg(image)).ok().stdout;
    roots.lines().any(|line| line.ends_with(" refs 0"))
}

#[track_caller]
fn assert_clean(image: &Path, lowmem: bool) {
    assert_btrfs_check_clean(image);
    if lowmem && !has_half_dropped(image) {
        let outcome = run(command("btrfs", &["check", "--readonly", "--mode=lowmem"]).arg(image));
        // In this mode it counts an error, without a message about it, for a file with names in
        // INODE_EXTREF items, whichever driver made them; and it reports checksums in files with
        // `chattr +C` that only the kernel has ever written.
        let excused = ["errors found in fs roots", "nodatasum shouldn't have datasum"];
        let is_error = |line: &&str| line.contains("ERROR") && !excused.iter().any(|excused| line.contains(excused));
        let reported = outcome.stderr.lines().find(is_error);
        assert!(reported.is_none() && outcome.stderr.contains("checking fs roots"), "{}", outcome.report());
    }
    assert_ubtrfs_check_clean(image);
}

/// Returns how many nodes ubtrfs has unshared in the mount at `top`.
fn unshared(top: &Path) -> u64 {
    let own = ubtrfs_binary().expect("the ubtrfs binary");
    run(std::process::Command::new(&own).arg("sync").arg(top)).ok();
    let reported = run(std::process::Command::new(&own).args(["stats", "--json"]).arg(top)).ok().stdout;
    let report: serde_json::Value = serde_json::from_str(&reported).expect("a report as JSON");
    report["nodes_unshared"].as_u64().expect("a number")
}

#[track_caller]
fn assert_shows(subject: &Subject, image: &Path, wanted: &Tree, what: &str) {
    let mount = subject.mount(&[image], READING_CHANGES_NOTHING);
    let seen = walk(mount.path());
    mount.unmount();
    let what = format!("{what} (left: before, right: as {} sees it)", subject.name());
    assert_same(&what, wanted, &seen, Options::SAME_VOLUME);
}

/// Returns the number of rounds, which is greater in a soak.
fn rounds(usual: u64) -> u64 {
    if soaks() { usual + 2 } else { usual }
}

fn back_and_forth(mkfs: &[&str], seed: u64, rounds: u64, operations: usize) {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    mkfs_btrfs(&image, SIZE, mkfs);
    let nodesize = if mkfs.contains(&"4k") { 4096 } else { 16384 };
    let mount = Subject::Kernel.mount(&[&image], READING_CHANGES_NOTHING);
    let mut volume = Volume::begin(mount.path(), seed, nodesize);
    volume.work(mount.path(), operations);
    mount.unmount();
    let mut nodes_unshared = 0;
    for round in 0..rounds {
        let what = format!("mkfs {mkfs:?}, seed {seed}, round {round}");
        eprintln!("{what}");
        // Unmounts at once, since the kernel shows a new ctime of a renamed subvolume, but does not
        // write it.
        let mount = Subject::Kernel.mount(&[&image], READING_CHANGES_NOTHING);
        volume.rename_subvolumes(mount.path());
        mount.unmount();
        let mount = Subject::Kernel.mount(&[&image], READING_CHANGES_NOTHING);
        let top = mount.path();
        volume.take_reflinks(top);
        volume.take_snapshots(top);
        volume.take_reflinks(top);
        volume.work(top, operations / 2);
        volume.assert_in(&format!("{what}, by the kernel"), top);
        if round % 3 == 2 {
            // Relocation makes blocks that are referred to by address.
            run(command("btrfs", &["balance", "start", "--full-balance"]).arg(top)).ok();
        }
        let left = walk(top);
        mount.unmount();
        assert_shows(&Subject::ubtrfs(), &image, &left, &what);

        let mount = Subject::ubtrfs().mount(&[&image], READING_CHANGES_NOTHING);
        volume.rename_subvolumes(mount.path());
        volume.work(mount.path(), operations);
        volume.assert_in(&format!("{what}, by ubtrfs"), mount.path());
        nodes_unshared += unshared(mount.path());
        let left = walk(mount.path());
        mount.unmount();
        assert_clean(&image, round + 1 == rounds);
        assert_shows(&Subject::Kernel, &image, &left, &what);
        assert_shows(&Subject::ubtrfs(), &image, &left, &what);
        assert_clean(&image, false);
    }
    assert!(nodes_unshared > 2 * rounds, "mkfs {mkfs:?}, seed {seed}: {nodes_unshared} nodes were shared and changed");
}

#[test]
fn snapshots_and_originals_are_changed_by_turns() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for seed in seeds(1) {
        back_and_forth(&["-n", "4k", "-m", "single"], seed, rounds(3), 120);
        back_and_forth(&[], seed + 50, rounds(1), 200);
    }
}

#[test]
fn snapshots_in_other_layouts_are_changed_by_turns() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let layouts: [&[&str]; 2] =
        [&["-n", "4k", "--csum", "xxhash", "-O", "^no-holes"], &["-O", "^extref,^skinny-metadata"]];
    for (layout, number) in layouts.into_iter().zip(100..) {
        for seed in seeds(1) {
            back_and_forth(layout, seed + number, rounds(1), 120);
        }
    }
}

/// The kernel has dropped a part of a deleted subvolume that has a snapshot. ubtrfs continues the
/// drop while the snapshot is written to, and the kernel finishes it.
#[test]
fn a_half_dropped_subvolume_is_dropped_by_either_side() {
    const FILES: usize = 24_000;
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let packed = fixture::directory().join("half-dropped.img.zst");
    run(command("zstd", &["-d", "-q", "--sparse"]).arg(packed).arg("-o").arg(&image)).ok();
    assert!(has_half_dropped(&image));
    let content = |number: usize, round: usize| {
        if number.is_multiple_of(7) {
            format!("written in round {round}; ").repeat(15)
        } else {
            format!("file {number}")
        }
    };

    let mount = Subject::ubtrfs().mount(&[&image], "");
    assert_eq!(std::fs::read_dir(mount.path()).expect("readdir").count(), 1);
    for round in 0..3 {
        for number in (0..FILES).step_by(7) {
            std::fs::write(mount.path().join(format!("s/{number}")), content(number, round)).expect("write");
        }
        let top = std::fs::File::open(mount.path()).expect("open");
        rustix::fs::syncfs(&top).expect("syncfs");
    }
    mount.unmount();
    assert_clean(&image, false);

    let mount = Subject::Kernel.mount(&[&image], "");
    btrfs(&["subvolume", "sync"], mount.path());
    for number in 0..FILES {
        let found = std::fs::read_to_string(mount.path().join(format!("s/{number}"))).expect("read");
        assert_eq!(found, content(number, 2));
    }
    mount.unmount();
    assert!(!has_half_dropped(&image));
    assert_clean(&image, true);
}
