//! A three-way merge takes what changed on one side only, and finds every conflict; if there is
//! one, it changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use ubtrfs::{ConflictKind, Errno, Filesystem, InodeId, MergeSides, Merged, NewInode, Options, Prefer, WriteAt};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_random::Rng;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::seeds;

use crate::common::filling::{Content, fill};
use crate::common::image;
use crate::common::script::{Facets, Found, Tree, run, tree, walk};

fn open(path: &Path) -> Arc<Filesystem> {
    image::open(path, Options { no_atime: true, ..Options::default() })
}

/// The script that makes the base of both sides.
const BASE: &str = "mkdir d; mkdir d/e; mkdir z; mkdir empty; make a; write a 1 0 30000; make b; write b 2 0 500; \
                    make d/x; write d/x 3 0 9000; make d/e/y; write d/e/y 4 0 9000; make l; write l 5 0 20000; \
                    ln l z/l2; sym target s; xattr a user.k v";

/// Three subvolumes of one origin.
struct Three {
    fs: Arc<Filesystem>,
    ids: MergeSides,
    number: u64,
}

impl Three {
    /// Makes three subvolumes; the script makes the content of the base.
    fn new(fs: &Arc<Filesystem>, number: u64, script: &str) -> Self {
        let name = format!("base{number}");
        let base = fs.subvolumes().create_subvolume(fs.root(), name.as_bytes(), 0o755, (0, 0)).unwrap();
        run(fs, base, script);
        let mut sides = Self { fs: fs.clone(), ids: MergeSides { base, changed: base, target: base }, number };
        (sides.ids.changed, sides.ids.target) = (sides.snapshot("changed", base), sides.snapshot("target", base));
        sides
    }

    fn snapshot(&self, name: &str, of: TreeId) -> TreeId {
        let name = format!("{name}{}", self.number);
        self.fs.subvolumes().snapshot(of, self.fs.root(), name.as_bytes(), false).unwrap()
    }

    fn merge(&self, prefer: Prefer, dry_run: bool) -> Merged {
        ubtrfs::merge(&self.fs, self.ids, prefer, dry_run, &mut |_| ()).unwrap()
    }

    fn target(&self) -> Tree {
        tree(&walk(&self.fs, self.ids.target))
    }
}

/// A row of the table: what it shows; the changes of the changed subvolume, and those of the
/// target; the conflicts; scripts that turn the base into the expected target, with preference for
/// the target and for the other side.
type Row = (&'static str, &'static str, &'static str, &'static [ConflictKind], &'static str, &'static str);

use ConflictKind as K;

/// Without conflicts, all preferences give the same result.
const TABLE: &[Row] = &[
    ("content", "write a 9 5000 100", "", &[], "write a 9 5000 100", ""),
    ("the target's content stays", "", "write a 9 5000 100", &[], "write a 9 5000 100", ""),
    ("inline content", "write b 9 0 700", "chmod b 600", &[], "write b 9 0 700; chmod b 600", ""),
    ("inline content that becomes an extent", "write b 9 0 9000", "", &[], "write b 9 0 9000", ""),
    ("an extent that becomes inline", "truncate a 0; write a 9 0 30", "", &[], "truncate a 0; write a 9 0 30", ""),
    ("shorter", "truncate a 5001", "", &[], "truncate a 5001", ""),
    ("longer", "write a 9 50001 10000", "", &[], "write a 9 50001 10000", ""),
    ("a hole", "punch a 8192 8192", "", &[], "punch a 8192 8192", ""),
    ("reserved space reads as it did", "reserve a 65536 65536", "", &[], "", ""),
    (
        "attributes of each side",
        "chmod a 600; xattr a user.n 1",
        "chown a 7; unxattr a user.k; nodump a",
        &[],
        "chmod a 600; xattr a user.n 1; chown a 7; unxattr a user.k; nodump a",
        "",
    ),
    ("flags", "nodump a", "chmod a 640", &[], "nodump a; chmod a 640", ""),
    (
        "made",
        "mkdir n; make n/f; write n/f 9 0 9000; sym t n/s; node n/c; xattr n user.d 1; ln n/f d/n",
        "",
        &[],
        "mkdir n; make n/f; write n/f 9 0 9000; sym t n/s; node n/c; xattr n user.d 1; ln n/f d/n",
        "",
    ),
    (
        "made with a capability, for another's set-id program",
        "make n; chown n 7; chmod n 4755; xattr n security.capability some",
        "",
        &[],
        "make n; chown n 7; chmod n 4755; xattr n security.capability some",
        "",
    ),
    (
        "a set-id program's content",
        "chown b 7; chmod b 4755; write b 9 0 10",
        "",
        &[],
        "write b 9 0 10; chown b 7; chmod b 4755",
        "",
    ),
    (
        "a set-id program of another does not get the content of this one",
        "write b 9 0 10",
        "chown b 7; chmod b 6755; xattr b security.capability some; xattr b user.k some",
        &[],
        "write b 9 0 10; chown b 7; chmod b 755; xattr b user.k some",
        "",
    ),
    ("removed", "rm a; rm d/e/y; rmdir d/e", "", &[], "rm a; rm d/e/y; rmdir d/e", ""),
    ("renamed, and changed there", "mv a n", "write a 9 0 9", &[], "write a 9 0 9; mv a n", ""),
    ("renamed there, and changed", "write a 9 0 9", "mv a n", &[], "write a 9 0 9; mv a n", ""),
    ("a directory renamed, and filled there", "mv d n", "make d/f; rm d/x", &[], "make d/f; rm d/x; mv d n", ""),
    (
        "filled, and renamed there",
        "make d/f; write d/e/y 9 0 9",
        "mv d n",
        &[],
        "make d/f; write d/e/y 9 0 9; mv d n",
        "",
    ),
    ("swapped", "swap a b; swap d z", "write a 9 0 9", &[], "write a 9 0 9; swap a b; swap d z", ""),
    ("moved up and down", "mv d/e e; mv d e/d", "write d/x 9 0 9", &[], "write d/x 9 0 9; mv d/e e; mv d e/d", ""),
    ("a name made free and taken", "rm a; mv b a", "", &[], "rm a; mv b a", ""),
    ("hard links", "ln a z/a; rm z/l2", "ln a d/a; chmod l 600", &[], "ln a z/a; rm z/l2; ln a d/a; chmod l 600", ""),
    ("one of two names renamed, the other removed", "mv l m", "rm z/l2", &[], "mv l m; rm z/l2", ""),
    ("removed on both sides", "rm a; rmdir empty", "rm a; rmdir empty", &[], "rm a; rmdir empty", ""),
    ("renamed alike", "mv a n; mv d/e z/e", "mv a n; mv d/e z/e", &[], "mv a n; mv d/e z/e", ""),
    (
        "made alike",
        "mkdir n; make n/f; write n/f 9 0 9; make n/o",
        "mkdir n; make n/f; write n/f 9 0 9; make n/t",
        &[],
        "mkdir n; make n/f; write n/f 9 0 9; make n/o; make n/t",
        "",
    ),
    (
        "changed alike",
        "write a 9 0 9; chmod a 600; xattr a user.k w",
        "write a 9 0 9; chmod a 600; xattr a user.k w",
        &[],
        "write a 9 0 9; chmod a 600; xattr a user.k w",
        "",
    ),
    ("replaced by another type", "rm a; sym t a", "", &[], "rm a; sym t a", ""),
    ("two contents", "write a 8 0 9", "write a 9 9000 9", &[K::Content], "write a 9 9000 9", "write a 8 0 9"),
    (
        "two modes",
        "chmod a 600",
        "chmod a 640; write a 9 0 9",
        &[K::Mode],
        "chmod a 640; write a 9 0 9",
        "chmod a 600; write a 9 0 9",
    ),
    ("two owners", "chown a 7", "chown a 8", &[K::Owner], "chown a 8", "chown a 7"),
    ("two values", "xattr a user.k 1", "unxattr a user.k", &[K::Xattr], "unxattr a user.k", "xattr a user.k 1"),
    ("removed there", "write a 9 0 9", "rm a", &[K::RemovedByTarget], "rm a", "write a 9 0 9"),
    ("removed here", "rm a", "write a 9 0 9", &[K::RemovedByChanged], "write a 9 0 9", "rm a"),
    ("two names", "mv a n", "mv a m", &[K::Renamed], "mv a m", "mv a n"),
    ("two places", "mv d/e e", "mv d/e z/e", &[K::Renamed], "mv d/e z/e", "mv d/e e"),
    (
        "two files of one name",
        "make n; write n 8 0 9",
        "make n; write n 9 0 9",
        &[K::Name],
        "make n; write n 9 0 9",
        "make n; write n 8 0 9",
    ),
    ("a file and a directory of one name", "mkdir n; make n/f", "make n", &[K::Name], "make n", "mkdir n; make n/f"),
    ("filled, and removed there", "make empty/f", "rmdir empty", &[K::Directory], "rmdir empty", "make empty/f"),
    ("removed, and filled there", "rmdir empty", "make empty/f", &[K::Directory], "make empty/f", "rmdir empty"),
    ("each below the other", "mv d z/d", "mv z d/z", &[K::Loop], "mv z d/z", "mv d z/d"),
    ("both names lost", "rm l", "rm z/l2", &[K::Renamed], "rm z/l2", "rm l"),
    ("removed and replaced", "rm a", "rm a; make a", &[K::Name], "rm a; make a", "rm a"),
    (
        "directories of one name with two modes",
        "mkdir n; chmod n 700",
        "mkdir n",
        &[K::Mode],
        "mkdir n",
        "mkdir n; chmod n 700",
    ),
    (
        "directories of one name with two flags",
        "mkdir n; nodump n; make n/f",
        "mkdir n",
        &[K::Flags],
        "mkdir n; make n/f",
        "mkdir n; nodump n; make n/f",
    ),
    (
        "files of one name with two flags",
        "make n; write n 9 0 9; nodump n",
        "make n; write n 9 0 9",
        &[K::Name],
        "make n; write n 9 0 9",
        "make n; write n 9 0 9; nodump n",
    ),
    (
        "made alike, flags and all",
        "mkdir n; nodump n; make n/f; nodump n/f",
        "mkdir n; nodump n; make n/f; nodump n/f",
        &[],
        "mkdir n; nodump n; make n/f; nodump n/f",
        "",
    ),
    ("two flags", "nodump a", "noatime a", &[K::Flags], "noatime a", "nodump a"),
];

#[test]
fn each_kind_of_change_is_merged() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 512 << 20, |_| {});
    let fs = open(&path);
    for (number, (what, changed, target, conflicts, ours, theirs)) in (0..).zip(TABLE) {
        println!("{what}");
        let sides = Three::new(&fs, number, BASE);
        run(&fs, sides.ids.changed, changed);
        run(&fs, sides.ids.target, target);
        let before = sides.target();
        let planned = sides.merge(Prefer::Neither, true);
        assert_eq!(sides.target(), before, "{what}: a dry run changed something");
        let merged = sides.merge(Prefer::Neither, false);
        assert_eq!(merged, planned, "{what}");
        let kinds: BTreeSet<_> = merged.conflicts.iter().map(|conflict| conflict.kind).collect();
        for kind in *conflicts {
            assert!(kinds.contains(kind), "{what}: {merged:?}");
        }
        assert_eq!(kinds.is_empty(), conflicts.is_empty(), "{what}: {merged:?}");
        let becomes = |name: &str, script: &str| {
            let expected = sides.snapshot(name, sides.ids.base);
            run(&fs, expected, script);
            tree(&walk(&fs, expected))
        };
        if conflicts.is_empty() {
            assert_eq!(sides.target(), becomes("expected", ours), "{what}");
            let again = sides.merge(Prefer::Neither, false);
            assert_eq!(again, Merged::default(), "{what}, merged again");
            continue;
        }
        assert_eq!(sides.target(), before, "{what}: changed in spite of a conflict");
        assert!(merged.steps.is_empty());
        let other = Three {
            fs: fs.clone(),
            ids: MergeSides { target: sides.snapshot("other", sides.ids.target), ..sides.ids },
            number,
        };
        assert_eq!(sides.merge(Prefer::Ours, false).conflicts, merged.conflicts);
        assert_eq!(sides.target(), becomes("ours", ours), "{what}, with the target's");
        other.merge(Prefer::Theirs, false);
        assert_eq!(other.target(), becomes("theirs", theirs), "{what}, with the other side's");
    }
    fs.close().unwrap();
    assert_btrfs_check_clean(&path);
}

/// The identity of an inode: one of the base, or one that a side has made (the target's if both
/// have made the same).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Base(Ino),
    Made(Ino, bool),
}

/// A subvolume as a naive merge sees it.
#[derive(Clone, Default)]
struct Seen {
    files: BTreeMap<Who, Facets>,
    entries: BTreeMap<(Who, String), Who>,
}

impl Seen {
    fn new(walked: &BTreeMap<Ino, Found>, base: &BTreeMap<Ino, Found>, is_target: bool) -> Self {
        let who = |ino: Ino| {
            let is_old = base.get(&ino).is_some_and(|old| old.born == walked[&ino].born);
            if is_old { Who::Base(ino) } else { Who::Made(ino, is_target) }
        };
        let entries = walked
            .iter()
            .flat_map(|(ino, found)| found.names.iter().map(move |(dir, name)| ((who(*dir), name.clone()), who(*ino))));
        let files = walked.iter().map(|(ino, found)| (who(*ino), found.facets.clone()));
        Self { entries: entries.collect(), files: files.collect() }
    }

    fn names(&self, who: Who) -> BTreeSet<&(Who, String)> {
        self.entries.iter().filter(|(_, other)| **other == who).map(|(entry, _)| entry).collect()
    }

    /// Replaces one identity by another.
    fn rename(&mut self, from: Who, to: Who) {
        let put = |who: Who| if who == from { to } else { who };
        let entries = std::mem::take(&mut self.entries).into_iter();
        self.entries = entries.map(|((dir, name), who)| ((put(dir), name), put(who))).collect();
        if let Some(facets) = self.files.remove(&from) {
            self.files.insert(to, facets);
        }
    }
}

/// Returns the value that the merge has of a value in all three, or `None` for a conflict.
fn three_way<T: PartialEq + Clone>(base: &T, theirs: &T, ours: &T) -> Option<T> {
    if ours == base || theirs == ours {
        Some(theirs.clone())
    } else if theirs == base {
        Some(ours.clone())
    } else {
        None
    }
}

fn merged_facets(base: &Facets, theirs: &Facets, ours: &Facets) -> Option<Facets> {
    let keys: BTreeSet<_> = [base, theirs, ours].iter().flat_map(|facets| facets.xattrs.keys().cloned()).collect();
    let mut xattrs = BTreeMap::new();
    for key in keys {
        let of = |facets: &Facets| facets.xattrs.get(&key).cloned();
        if let Some(value) = three_way(&of(base), &of(theirs), &of(ours))? {
            xattrs.insert(key, value);
        }
    }
    Some(Facets {
        mode: three_way(&base.mode, &theirs.mode, &ours.mode)?,
        owner: three_way(&base.owner, &theirs.owner, &ours.owner)?,
        flags: three_way(&base.flags, &theirs.flags, &ours.flags)?,
        content: three_way(&base.content, &theirs.content, &ours.content)?,
        xattrs,
    })
}

/// Returns the expected target, from walks of all three alone, or `None` if there is a conflict.
fn expected(base: &Seen, mut theirs: Seen, ours: &Seen) -> Option<Tree> {
    let is_dir = |facets: &Facets| facets.mode & 0o170_000 == 0o040_000;
    // If both sides have made the same inode, it becomes one.
    while let Some((from, to)) = theirs.entries.iter().find_map(|(entry, who)| {
        let other = *ours.entries.get(entry)?;
        let (Who::Made(_, false), Who::Made(..)) = (*who, other) else { return None };
        let (one, two) = (&theirs.files[who], &ours.files[&other]);
        (one == two || is_dir(one) && is_dir(two)).then_some((*who, other))
    }) {
        if theirs.files[&from] != ours.files[&to] {
            return None;
        }
        theirs.rename(from, to);
    }
    let keys: BTreeSet<_> = [base, &theirs, ours].iter().flat_map(|seen| seen.entries.keys()).collect();
    let mut result = Seen::default();
    for key in keys {
        let of = |seen: &Seen| seen.entries.get(key).copied();
        if let Some(who) = three_way(&of(base), &of(&theirs), &of(ours))? {
            result.entries.insert(key.clone(), who);
        }
    }
    for (who, old) in &base.files {
        let added = |seen: &Seen| -> BTreeSet<(Who, String)> {
            seen.names(*who).difference(&base.names(*who)).map(|entry| (*entry).clone()).collect()
        };
        let lost = |seen: &Seen| -> BTreeSet<(Who, String)> {
            base.names(*who).difference(&seen.names(*who)).map(|entry| (*entry).clone()).collect()
        };
        match (theirs.files.get(who), ours.files.get(who)) {
            (Some(theirs_is), Some(ours_is)) => {
                let (one, other) = (added(&theirs), added(ours));
                let is_renamed_twice = !one.is_subset(&other) && !other.is_subset(&one);
                let is_root = *who == Who::Base(Ino::ROOT_DIR);
                if is_renamed_twice && !lost(&theirs).is_disjoint(&lost(ours))
                    || !is_root && result.names(*who).is_empty()
                {
                    return None;
                }
                result.files.insert(*who, merged_facets(old, theirs_is, ours_is)?);
            }
            (Some(is), None) if is != old || !added(&theirs).is_empty() => return None,
            (None, Some(is)) if is != old || !added(ours).is_empty() => return None,
            _ => {}
        }
    }
    for (who, facets) in theirs.files.iter().chain(&ours.files) {
        if matches!(who, Who::Made(..)) {
            result.files.insert(*who, facets.clone());
        }
    }
    result.as_tree()
}

impl Seen {
    /// Returns the files by their paths, or `None` if something can't be reached.
    fn as_tree(&self) -> Option<Tree> {
        let root = Who::Base(Ino::ROOT_DIR);
        let mut paths: BTreeMap<Who, BTreeSet<String>> = BTreeMap::from([(root, BTreeSet::from([String::new()]))]);
        let mut waiting = vec![(root, String::new())];
        let mut reached = 0;
        while let Some((dir, path)) = waiting.pop() {
            for ((_, name), who) in self.entries.iter().filter(|((parent, _), _)| *parent == dir) {
                reached += 1;
                let separator = if path.is_empty() { "" } else { "/" };
                let path = format!("{path}{separator}{name}");
                if paths.entry(*who).or_default().insert(path.clone()) {
                    waiting.push((*who, path));
                }
            }
        }
        let tree = paths.iter().map(|(who, paths)| (paths.clone(), self.files[who].clone())).collect();
        (reached == self.entries.len()).then_some(tree)
    }
}

/// Returns a step that is possible in a subvolume as it is.
fn random_step(rng: &mut Rng, walked: &BTreeMap<Ino, Found>, side: &str) -> Option<String> {
    let pick = |rng: &mut Rng, fits: &dyn Fn(&Found) -> bool| -> Option<String> {
        let all: Vec<_> = walked.values().filter(|found| fits(found)).flat_map(|found| &found.paths).collect();
        (!all.is_empty()).then(|| (*rng.pick(&all)).clone())
    };
    let is_free = |path: &str| !walked.values().any(|found| found.paths.contains(path));
    let any = |rng: &mut Rng| pick(rng, &|found| !found.paths.contains(""));
    let file = |rng: &mut Rng| pick(rng, &Found::is_file);
    let new = |rng: &mut Rng| {
        let dir = pick(rng, &Found::is_dir)?;
        // Some names are also used by the other side.
        let name = if rng.one_in(6) { format!("n{}", rng.below(3)) } else { format!("{side}{}", rng.below(9)) };
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        is_free(&path).then_some(path)
    };
    let (offset, len, seed) = (rng.below(12) * 3000, 1 + rng.below(20_000), rng.below(1 << 40));
    Some(match rng.below(16) {
        0 | 1 => {
            let path = new(rng)?;
            format!("make {path}; write {path} {} 0 {}", if rng.one_in(2) { 7 } else { seed }, 1 + rng.below(6000))
        }
        2 => format!("mkdir {}", new(rng)?),
        3 => format!("sym {} {}", rng.below(3), new(rng)?),
        4 | 5 => {
            let (from, to) = (any(rng)?, new(rng)?);
            // A directory can't move below itself.
            (!format!("{to}/").starts_with(&format!("{from}/"))).then_some(format!("mv {from} {to}"))?
        }
        6 => {
            let (from, to) = (file(rng)?, file(rng)?);
            (from != to).then_some(format!("swap {from} {to}"))?
        }
        7 => format!("ln {} {}", file(rng)?, new(rng)?),
        8 | 9 => {
            let path = any(rng)?;
            let found = walked.values().find(|found| found.paths.contains(&path))?;
            let is_empty = !walked.values().flat_map(|other| &other.names).any(|(dir, _)| *dir == found.id.ino);
            if found.is_dir() { is_empty.then_some(format!("rmdir {path}"))? } else { format!("rm {path}") }
        }
        10 => format!("chmod {} 6{}4", pick(rng, &|found| found.is_file() || found.is_dir())?, rng.below(3)),
        11 => format!("xattr {} user.{} {}", file(rng)?, rng.below(2), rng.below(3)),
        12 => format!("punch {} {offset} {len}", file(rng)?),
        13 => format!("truncate {} {offset}", file(rng)?),
        _ => format!("write {} {seed} {offset} {len}", file(rng)?),
    })
}

fn change_at_random(fs: &Filesystem, subvolume: TreeId, rng: &mut Rng, side: &str, steps: u64) -> String {
    let mut script = String::new();
    for _ in 0..steps {
        if let Some(step) = random_step(rng, &walk(fs, subvolume), side) {
            script += &step;
            script += "; ";
            run(fs, subvolume, &step);
        }
    }
    script
}

#[test]
fn random_changes_are_merged_as_a_naive_merge_of_walks_says() {
    require!(Need::Kernel);
    for seed in seeds(3) {
        println!("seed {seed}");
        let dir = scratch_dir();
        let path = dir.path().join("image");
        image::make(&path, 1 << 30, |_| {});
        let fs = open(&path);
        let mut rng = Rng::new(seed);
        let (mut clean, mut conflicts) = (0, 0);
        let mut last = None;
        for number in 0..60 {
            let sides = Three::new(&fs, number, BASE);
            let MergeSides { base, changed, target } = sides.ids;
            let steps = rng.below(18);
            let theirs = change_at_random(&fs, changed, &mut rng, "c", steps);
            let steps = rng.below(18);
            let ours = change_at_random(&fs, target, &mut rng, "t", steps);
            println!("{number}: {theirs}| {ours}");
            let walked = [base, changed, target].map(|id| walk(&fs, id));
            let seen = |at: usize| Seen::new(&walked[at], &walked[0], at == 2);
            let expected = expected(&seen(0), seen(1), &seen(2));
            let merged = sides.merge(Prefer::Neither, false);
            assert_eq!(merged.conflicts.is_empty(), expected.is_some(), "{merged:?}");
            if let Some(expected) = expected {
                clean += 1;
                assert_eq!(sides.target(), expected, "{merged:?}");
                assert_eq!(sides.merge(Prefer::Neither, false), Merged::default());
                last = Some((format!("target{number}"), expected));
                continue;
            }
            conflicts += 1;
            assert_eq!(sides.target(), tree(&walked[2]), "changed in spite of {merged:?}");
            // With a preference there is something to merge, and it succeeds.
            let prefer = if rng.one_in(2) { Prefer::Ours } else { Prefer::Theirs };
            let done = sides.merge(prefer, false);
            if prefer == Prefer::Ours {
                assert_eq!(sides.merge(prefer, false).steps, [], "merged again after {done:?}");
            }
            assert_no_staging(&sides.target());
        }
        assert!(clean > 15 && conflicts > 10, "{clean} without conflicts, {conflicts} with some");
        fs.close().unwrap();
        drop(fs);
        assert_btrfs_check_clean(&path);
        let kernel = KernelMount::new(&[&path], "");
        let (name, expected) = last.unwrap();
        for (paths, facets) in expected {
            for path in paths.iter().filter(|_| facets.mode & 0o170_000 == 0o100_000) {
                let read = std::fs::read(kernel.path().join(&name).join(path)).unwrap();
                assert!(read == facets.content, "{path}");
            }
        }
    }
}

fn assert_no_staging(tree: &Tree) {
    let paths = tree.keys().flatten();
    assert_eq!(paths.filter(|path| path.contains(".ubtrfs-merge")).count(), 0);
}

#[test]
fn what_can_not_be_merged_is_refused_and_nothing_is_changed() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 256 << 20, |_| {});
    let fs = open(&path);
    let sides = Three::new(&fs, 0, BASE);
    run(&fs, sides.ids.changed, "rm a; rmdir empty");
    let failed = |sides: MergeSides| ubtrfs::merge(&fs, sides, Prefer::Theirs, false, &mut |_| ()).unwrap_err().errno();
    let target = sides.ids.target;
    assert_eq!(failed(MergeSides { target: TreeId(9999), ..sides.ids }), Errno::NOENT);
    assert_eq!(failed(MergeSides { base: TreeId::FS, ..sides.ids }), Errno::INVAL);
    fs.subvolumes().set_subvolume_read_only(target, true).unwrap();
    assert_eq!(failed(sides.ids), Errno::ROFS);
    assert_eq!(sides.merge(Prefer::Neither, true).steps.len(), 2);
    fs.subvolumes().set_subvolume_read_only(target, false).unwrap();

    // A merge does not remove a subvolume inside a directory that it would have to remove.
    let root = InodeId::root_of(target);
    let empty = fs.directories().lookup(root, b"empty").unwrap();
    let inner = fs.subvolumes().create_subvolume(empty, b"inner", 0o755, (0, 0)).unwrap();
    let before =
        fs.directories().list(root, ubtrfs_format::DirIndex(0), ubtrfs_format::DirIndex(u64::MAX), 100).unwrap();
    let merged = sides.merge(Prefer::Neither, false);
    assert_eq!(merged.conflicts.iter().map(|conflict| conflict.kind).collect::<Vec<_>>(), [K::Directory]);
    assert_eq!(sides.merge(Prefer::Ours, true).steps.len(), 1);
    let after =
        fs.directories().list(root, ubtrfs_format::DirIndex(0), ubtrfs_format::DirIndex(u64::MAX), 100).unwrap();
    assert_eq!(after, before);
    fs.subvolumes().subvolume_info(inner).unwrap();
    fs.close().unwrap();
}

#[test]
fn obstacles_to_a_merge_are_found_before_it_begins() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 256 << 20, |_| {});
    let fs = open(&path);
    // Each of them alone is immutable: an inode that loses a name, a directory, and a file that
    // changes.
    for (number, immutable) in ["z", "d", "b"].into_iter().enumerate() {
        let sides = Three::new(&fs, number as u64, BASE);
        run(&fs, sides.ids.changed, "mv a n; mv z z2; write b 9 0 9; make d/new");
        let target = fs.directories().lookup(InodeId::root_of(sides.ids.target), immutable.as_bytes()).unwrap();
        fs.inodes().set_flags(target, InodeFlags::IMMUTABLE).unwrap();
        let before = sides.target();
        for prefer in [Prefer::Neither, Prefer::Theirs] {
            let refused = ubtrfs::merge(&fs, sides.ids, prefer, false, &mut |_| ()).unwrap_err();
            assert_eq!(refused.errno(), Errno::PERM, "{immutable}");
        }
        assert!(sides.target() == before, "{immutable}");
    }
    // The target has a subvolume at the name of a new directory.
    let sides = Three::new(&fs, 10, BASE);
    run(&fs, sides.ids.changed, "mkdir n; mv a n/a");
    let inner = fs.subvolumes().create_subvolume(InodeId::root_of(sides.ids.target), b"n", 0o755, (0, 0)).unwrap();
    let before = sides.target();
    let refused = ubtrfs::merge(&fs, sides.ids, Prefer::Theirs, false, &mut |_| ()).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOTEMPTY);
    assert!(sides.target() == before);
    fs.subvolumes().subvolume_info(inner).unwrap();
    fs.close().unwrap();
}

#[test]
fn a_side_that_changes_meanwhile_is_noticed() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 256 << 20, |_| {});
    let fs = open(&path);
    let sides = Three::new(&fs, 0, BASE);
    run(&fs, sides.ids.changed, "write a 9 0 10; write b 9 0 10; mv l n");
    let mut changed = 0;
    let mut grow = |_| {
        run(&fs, sides.ids.changed, "write b 8 500 100000");
        changed += 1;
    };
    let refused = ubtrfs::merge(&fs, sides.ids, Prefer::Neither, false, &mut grow).unwrap_err();
    assert_eq!(refused.errno(), Errno::BUSY);
    assert!(changed > 0);
    let target = sides.target();
    assert_no_staging(&target);
    assert!(target.keys().flatten().any(|path| path == "l"), "names changed, too");
    fs.close().unwrap();
}

#[test]
fn content_is_shared_and_a_merge_costs_what_changed() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 512 << 20, |_| {});
    let fs = open(&path);
    let sides = Three::new(&fs, 0, "make large; write large 1 0 50000000; mkdir many");
    let MergeSides { base, changed, target } = sides.ids;
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    let many = fs.directories().lookup(InodeId::root_of(changed), b"many").unwrap();
    for number in 0..10 {
        run(&fs, changed, &format!("write large {number} {} 4096", number * 4_096_000));
        fs.directories().create(many, format!("{number}").as_bytes(), &new).unwrap();
    }
    run(&fs, changed, "make new; write new 3 0 20000000; mv large moved");
    fs.durability().sync().unwrap();
    let before = fs.stats();
    let merged = sides.merge(Prefer::Neither, false);
    fs.durability().sync().unwrap();
    let after = fs.stats();
    assert_eq!(merged.steps.len(), 13, "{merged:?}");
    assert_eq!(tree(&walk(&fs, target)), tree(&walk(&fs, changed)));
    assert_ne!(tree(&walk(&fs, target)), tree(&walk(&fs, base)));
    let data = |stats: &ubtrfs::Stats| stats.bytes_placed;
    assert_eq!(data(&after) - data(&before), 0, "data was written");
    fs.close().unwrap();
    assert_btrfs_check_clean(&path);
}

#[test]
fn a_merge_for_which_there_is_no_room_leaves_the_target_as_it_was() {
    const FILES: usize = 4000;
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 160 << 20, |_| {});
    let fs = open(&path);
    let sides = Three::new(&fs, 0, BASE);
    let new = NewInode { mode: 0o100_644, ..NewInode::default() };
    let empty = fs.directories().lookup(InodeId::root_of(sides.ids.changed), b"empty").unwrap();
    for number in 0..FILES {
        let made = fs.directories().create(empty, format!("{number:0100}").as_bytes(), &new).unwrap();
        fs.files().write(made, WriteAt::Offset(0), &[1; 2000], false).unwrap();
        fs.references().forget(made, 1);
    }
    run(&fs, sides.ids.changed, "mv a n; rm b");
    let before = sides.target();
    fill(&fs, Content::Inline(2000));
    let failed = ubtrfs::merge(&fs, sides.ids, Prefer::Neither, false, &mut |_| ()).unwrap_err();
    assert_eq!(failed.errno(), Errno::NOSPC);
    assert_eq!(sides.target(), before);
    fs.close().unwrap();
    drop(fs);
    assert_btrfs_check_clean(&path);
}

/// A new file may get flags from the mount that exclude those of the merged file.
#[test]
fn new_files_have_their_flags_whatever_the_mount_gives_new_ones() {
    const OF_FILES: [u64; 5] = [
        0,
        InodeFlags::COMPRESS,
        InodeFlags::NOCOMPRESS,
        InodeFlags::NODATASUM,
        InodeFlags::NODATACOW | InodeFlags::NODATASUM,
    ];
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 512 << 20, |_| {});
    let fs = open(&path);
    let of_mounts = [0, InodeFlags::NODATASUM, InodeFlags::NODATACOW];
    for (number, of_mount) in (0..).zip(of_mounts) {
        let sides = Three::new(&fs, number, BASE);
        let MergeSides { changed, target, .. } = sides.ids;
        fs.set_new_file_flags(0);
        for flags in OF_FILES {
            let new = NewInode { mode: 0o100_644, flags: Some(flags), ..NewInode::default() };
            let made =
                fs.directories().create(InodeId::root_of(changed), format!("new {flags}").as_bytes(), &new).unwrap();
            fs.files().write(made, WriteAt::Offset(0), &[7; 9000], false).unwrap();
            fs.references().forget(made, 1);
        }
        fs.set_new_file_flags(of_mount);
        sides.merge(Prefer::Neither, false);
        assert_eq!(sides.target(), tree(&walk(&fs, changed)));
        for flags in OF_FILES {
            let made = fs.directories().lookup(InodeId::root_of(target), format!("new {flags}").as_bytes()).unwrap();
            assert_eq!(fs.inodes().attributes(made).unwrap().flags, flags, "with {of_mount:#x} of the mount");
            fs.references().forget(made, 1);
        }
    }
    fs.close().unwrap();
    drop(fs);
    assert_btrfs_check_clean(&path);
}
