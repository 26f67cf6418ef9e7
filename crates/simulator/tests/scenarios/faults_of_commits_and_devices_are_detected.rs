//! The simulator proves something only if it notices devices that break the rules, and logs that
//! lack something.

use std::sync::{Arc, Mutex};

use crate::kernel_mounts_full_volumes::{fsyncs_of_orphans, metadata_missing_to_the_kernel};
use ubtrfs::Options;
use ubtrfs::testing::{LogFault, ResilverFault};
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_simulator::enumerate::Start;
use ubtrfs_simulator::words::{append, clone, directory, file, fsync, link, rename, reserve, set_xattr, unlink, write};
use ubtrfs_simulator::{Body, DeviceHabits, History, Lie, LyingDevice, Model, Operation, Profiles, Random, Stage};
use ubtrfs_volume::{Device, RecordingDevice, SuperblockFault, with_fault};

/// Runs histories on lying devices. Returns how many of them lied, and in how many of these it was
/// noticed.
fn found_out(seeds: std::ops::Range<u64>, lie: fn(u64) -> Lie) -> (usize, usize) {
    found_out_in(seeds.map(History::new), 40, lie)
}

fn found_out_in(histories: impl Iterator<Item = History>, length: usize, lie: fn(u64) -> Lie) -> (usize, usize) {
    let (mut lied, mut noticed) = (0, 0);
    for history in histories {
        let seed = history.seed;
        let device = Mutex::new(None);
        let wrap = |recording: Arc<RecordingDevice>| -> Arc<dyn Device> {
            let lying = Arc::new(LyingDevice::new(recording, lie(seed)));
            *device.lock().unwrap() = Some(lying.clone());
            lying
        };
        let failure = history.run_on(length, &wrap).and_then(|recorded| recorded.survey(150)).err();
        if device.lock().unwrap().as_ref().is_some_and(|device| device.has_lied()) {
            lied += 1;
            noticed += usize::from(failure.is_some());
            match failure {
                Some(failure) => eprintln!("seed {seed}: {}", failure.what.lines().next().unwrap_or_default()),
                None => eprintln!("seed {seed}: not noticed"),
            }
        } else if let Some(failure) = failure {
            panic!("{failure}");
        }
    }
    eprintln!("{noticed} of {lied}");
    (lied, noticed)
}

/// Without the first flush of a commit, the superblock may come before the blocks that it refers to
/// (invariant 1).
#[test]
fn barriers_that_do_nothing_are_noticed() {
    let (lied, noticed) = found_out(1..6, |_| Lie::NoBarriers);
    assert!(lied == 5 && noticed == lied);
}

/// This is invariant 1, too.
#[test]
fn a_superblock_before_its_blocks_is_noticed() {
    let (lied, noticed) = found_out(1..6, |_| Lie::SuperblockFirst);
    assert!(lied == 5 && noticed == lied);
}

#[test]
fn a_torn_superblock_is_noticed() {
    let (lied, noticed) = found_out(1..9, |seed| Lie::TornSuperblock(seed as usize % 3));
    assert!(lied >= 4 && noticed == lied);
}

#[test]
fn a_lost_write_is_noticed() {
    // A lost write that a later commit replaced before the power cut may not be noticed.
    let (lied, noticed) = found_out(1..12, |seed| Lie::LostWrite(seed as usize * 3));
    assert!(lied >= 6 && noticed * 3 >= lied * 2);
}

/// Returns in how many histories on several devices one of them lied, and in how many of these that
/// was noticed; the other devices don't lie.
fn found_out_of_several(lie: Lie) -> (usize, usize) {
    let (mut lied, mut noticed) = (0, 0);
    for profiles in Profiles::ALL.into_iter().filter(Profiles::are_redundant) {
        let seed = profiles.devices + 10;
        let device = Mutex::new(None);
        let wrap = |recording: Arc<RecordingDevice>| -> Arc<dyn Device> {
            if recording.number() != 1 {
                return recording;
            }
            let lying = Arc::new(LyingDevice::new(recording, lie));
            *device.lock().unwrap() = Some(lying.clone());
            lying
        };
        let history = History::on_devices(seed, profiles);
        let failure =
            history.run_on(40, &wrap).and_then(|it| it.survey_devices(profiles, 60, DeviceHabits::default())).err();
        lied += usize::from(device.lock().unwrap().as_ref().is_some_and(|device| device.has_lied()));
        noticed += usize::from(failure.is_some());
        let what = failure.map_or("not noticed".into(), |failure| failure.what);
        eprintln!("{profiles:?}, {lie:?}: {}", what.lines().take(2).collect::<Vec<_>>().join(" "));
    }
    (lied, noticed)
}

/// This is invariant 1 for one of several devices.
#[test]
fn a_device_among_others_whose_barriers_do_nothing() {
    assert_eq!(found_out_of_several(Lie::NoBarriers), (4, 4));
}

/// This is invariant 1 for one of several devices, too.
#[test]
fn a_device_among_others_whose_superblock_comes_first() {
    assert_eq!(found_out_of_several(Lie::SuperblockFirst), (4, 4));
}

/// Reads of a scrub must not come from memory that is kept for distant devices (invariant 33).
#[test]
fn scrubs_that_read_what_is_kept_of_distant_devices_are_noticed() {
    let profiles = Profiles::ALL[0];
    let is_noticed = |seed: &u64| {
        let mut history = History::on_devices(*seed, profiles);
        history.options.faults.resilver = Some(ResilverFault::CompareKept);
        let surveyed = history.run(40).and_then(|it| it.survey_devices(profiles, 24, DeviceHabits::default()));
        surveyed.is_err_and(|failure| {
            failure.what.contains("a scrub does not mend") || failure.what.contains("check found")
        })
    };
    assert!((1..=12).any(|seed| is_noticed(&seed)));
}

/// A log that only one device has is mistaken for one of both (invariant 34).
#[test]
fn superblocks_that_count_as_one_despite_other_logs_are_noticed() {
    let is_noticed = |seed: &u64| {
        let profiles = Profiles::ALL[0];
        let history = History::on_devices(*seed, profiles);
        let recorded = history.run(history.length()).unwrap_or_else(|failure| panic!("{failure}"));
        let survey = || recorded.survey_devices(profiles, 24, DeviceHabits::default());
        with_fault(SuperblockFault::ForgetLogs, survey).is_err()
    };
    assert!((1..=24).any(|seed| is_noticed(&seed)));
}

/// A block that keeps its old content is noticed, and so would be a write over a block that a
/// durable superblock refers to, since that block has other content then, too (invariant 3).
#[test]
fn old_content_that_reappears_is_noticed() {
    // The nodes are large and the commits many, so that space is soon used again.
    let histories = (1..9).map(|seed| {
        let mut history = History::new(seed);
        let mut options = MkfsOptions::new(46 << 20);
        options.metadata_profile = Some(Profile::Single);
        options.node_size = Some(65536);
        history.plan.options = options;
        history.habits.eager = true;
        history
    });
    let (lied, noticed) = found_out_in(histories, 250, |seed| Lie::StaleBlock(seed as usize * 3));
    assert!(lied >= 6 && noticed * 3 >= lied * 2);
}

#[test]
fn one_barrier_of_an_fsync_that_does_nothing() {
    let operations = [append("foo", 5000), fsync("foo")];
    let stage = Stage::new(&[file("foo")]).unwrap();
    assert!(stage.run(&operations, 1, STATES).is_ok());
    // The first barrier is that of the mount.
    let stage = stage.with_device(&|device| Arc::new(LyingDevice::new(device, Lie::DroppedBarrier(1))));
    eprintln!("before the superblock: {}", stage.run(&operations, 1, STATES).unwrap_err().what);
    let stage = stage.with_device(&|device| Arc::new(LyingDevice::new(device, Lie::DroppedBarrier(2))));
    eprintln!("behind it: {}", stage.run(&operations, 1, STATES).unwrap_err().what);
}

/// Crash states of a sequence that shows a fault.
const STATES: usize = 200;

/// Returns whether a fault of the log is noticed in a sequence that shows it, and in how many of
/// some random ones.
fn found_out_in_log(fault: LogFault, committed: &[Operation], operations: &[Operation]) -> (bool, usize) {
    let wrong = |committed: &[Operation]| {
        Stage::new(committed).unwrap().with_options(|options| options.faults.log = Some(fault))
    };
    Stage::new(committed).unwrap().run(operations, 1, STATES).unwrap_or_else(|failure| panic!("{failure}"));
    let failure = wrong(committed).run(operations, 1, STATES).err();
    if let Some(failure) = &failure {
        eprintln!("{fault:?}: {}", failure.what);
    }
    let starts = Start::all();
    let stages: Vec<Stage> = starts.iter().map(|start| wrong(&start.committed)).collect();
    let fails = |seed: &u64| {
        let mut random = Random::new(*seed);
        let number = random.below(starts.len() as u64) as usize;
        let operations = stages[number].wander(&starts[number].open, &mut random, 8).unwrap();
        stages[number].run(&operations, *seed, 8).is_err()
    };
    let noticed = (1..=400).filter(fails).count();
    eprintln!("{fault:?}: noticed in {noticed} of 400 random sequences");
    (failure.is_some(), noticed)
}

/// Returns whether a fault of the log is noticed in one of so many histories of files that share
/// extents.
fn is_found_out_in_sharing(fault: LogFault, seeds: u64) -> bool {
    let fails = |seed: &u64| {
        let mut history = History::new(*seed);
        (history.habits.shares, history.habits.fsyncs, history.options.faults.log) = (true, true, Some(fault));
        history.run(60).and_then(|recorded| recorded.survey(60)).is_err()
    };
    let first = (1..=seeds).find(fails);
    eprintln!("{fault:?}: noticed in history {first:?} of files that share extents");
    first.is_some()
}

#[test]
fn a_new_directory_that_is_not_logged() {
    let new = [directory("D"), file("D/foo"), append("D/foo", 5000), fsync("D/foo")];
    // Few of the random sequences make a new directory with a file that is synced.
    let (made, _) = found_out_in_log(LogFault::ForgetParent, &[], &new);
    assert!(made);
}

/// The log has the new name, and does not say that the old one is gone (invariant 15).
#[test]
fn a_lost_name_that_the_log_forgets() {
    let committed = [directory("A"), directory("B"), file("A/foo")];
    let (made, random) =
        found_out_in_log(LogFault::ForgetRemovedName, &committed, &[rename("A/foo", "B/foo"), fsync("B/foo")]);
    assert!(made && random > 0);
}

#[test]
fn another_name_that_the_log_forgets_is_noticed() {
    let committed = [directory("A"), file("A/foo"), link("A/foo", "A/bar")];
    let (made, random) =
        found_out_in_log(LogFault::ForgetSiblingName, &committed, &[link("A/foo", "A/more"), fsync("A/foo")]);
    assert!(made && random > 0);
}

#[test]
fn an_xattr_that_the_log_forgets() {
    let committed = [file("foo"), set_xattr("foo", "user.one", 1)];
    let (made, random) = found_out_in_log(LogFault::ForgetXattr, &committed, &[append("foo", 10), fsync("foo")]);
    assert!(made && random > 0);
}

/// An ACL that is meant for later content would expose earlier content.
#[test]
fn an_xattr_that_comes_without_the_content_before_it() {
    let committed = [directory("A"), file("foo")];
    let operations = [append("foo", 10), set_xattr("foo", "user.one", 1), link("foo", "A/bar"), fsync("A")];
    let (made, _) = found_out_in_log(LogFault::AnticipateXattr, &committed, &operations);
    assert!(made);
}

#[test]
fn checksums_of_data_in_reserved_space_that_the_log_forgets() {
    let committed = [directory("A"), file("A/foo"), reserve("A/foo", 0, 40_000)];
    let (made, random) =
        found_out_in_log(LogFault::ForgetPlacedSums, &committed, &[write("A/foo", 0, 9000), fsync("A/foo")]);
    assert!(made && random > 0);
}

/// A volume whose log has two lengths of one extent can't be mounted any more (invariant 21).
#[test]
fn an_extent_that_has_grown_since_another_file_was_logged_with_it() {
    let operations = [append("foo", 65_536), fsync("foo"), append("foo", 65_536)];
    let shared = [&operations[..], &[file("bar"), clone("foo", "bar"), fsync("bar")]].concat();
    let (made, random) = found_out_in_log(LogFault::ForgetGrownExtent, &[file("foo")], &shared);
    eprintln!("{random} of the sequences that any operations make up");
    assert!(made && is_found_out_in_sharing(LogFault::ForgetGrownExtent, 40));
}

#[test]
fn an_fsync_that_leaves_an_orphan_to_the_log_is_noticed() {
    assert_eq!(fsyncs_of_orphans(|_| ()), (1, 0), "a commit, no log");
    let wrong = |options: &mut Options| options.faults.log = Some(LogFault::KeepOrphan);
    assert_eq!(fsyncs_of_orphans(wrong), (0, 1));
}

/// The kernel finds less free metadata than it reserves (invariant 25).
#[test]
fn metadata_without_the_kernels_reserve_is_noticed() {
    assert_eq!(metadata_missing_to_the_kernel(|_| ()), 0);
    assert!(metadata_missing_to_the_kernel(|options| options.faults.forget_global_reserve = true) > 1 << 20);
}

/// Nodes of a log are pinned until the next commit (invariant 17).
#[test]
fn nodes_of_the_log_that_are_reused_too_early() {
    let many: Vec<Operation> = (0..8).flat_map(|_| [append("foo", 5000), fsync("foo")]).collect();
    let (made, random) = found_out_in_log(LogFault::ReusePinned, &[file("foo")], &many);
    assert!(made && random > 0);
}

/// Changes a good state as a log would that lacks something.
type Change = fn(&Model, &Model) -> Option<Model>;

fn without_new_directory(found: &Model, base: &Model) -> Option<Model> {
    let (path, id) =
        found.paths().into_iter().find(|(_, id)| found.node(*id).is_dir() && !base.nodes.contains_key(id))?;
    let mut model = found.clone();
    let (dir, name) = model.place(&path)?;
    for gone in model.below(id).nodes.into_keys() {
        model.nodes.remove(&gone);
    }
    if let Body::Directory { entries, .. } = &mut model.node_mut(dir).body {
        entries.remove(name);
    }
    Some(model)
}

fn with_old_name(found: &Model, base: &Model) -> Option<Model> {
    let is_lost = |(path, id): &(ubtrfs_simulator::Path, ubtrfs::InodeId)| {
        found.resolve(path).is_none() && found.nodes.contains_key(id) && !base.node(*id).is_dir()
    };
    let (path, id) = base.paths().into_iter().find(is_lost)?;
    let mut model = found.clone();
    let (dir, name) = model.place(&path)?;
    model.add_entry(dir, name, id);
    model.node_mut(id).nlink += 1;
    Some(model)
}

fn without_sibling(found: &Model, _: &Model) -> Option<Model> {
    let (path, id) = found.paths().into_iter().find(|(_, id)| found.node(*id).nlink > 1)?;
    let mut model = found.clone();
    let (dir, name) = model.place(&path)?;
    model.node_mut(id).nlink -= 1;
    if let Body::Directory { entries, .. } = &mut model.node_mut(dir).body {
        entries.remove(name);
    }
    Some(model)
}

fn without_xattr(found: &Model, _: &Model) -> Option<Model> {
    let (id, _) = found.nodes.iter().find(|(_, node)| !node.xattrs.is_empty())?;
    let mut model = found.clone();
    model.node_mut(*id).xattrs.clear();
    Some(model)
}

fn with_foreign_content(found: &Model, _: &Model) -> Option<Model> {
    let (id, _) =
        found.nodes.iter().find(|(_, node)| matches!(&node.body, Body::File(content) if content.size() > 0))?;
    let mut model = found.clone();
    if let Body::File(content) = &mut model.node_mut(*id).body {
        content.write(0, b"what another file holds"[..content.size().min(23) as usize].as_ref());
    }
    Some(model)
}

fn without_anything_new(found: &Model, base: &Model) -> Option<Model> {
    found.difference(base).map(|_| base.clone())
}

/// The judge objects to any change in a state that an fsync promised.
#[test]
fn changed_states_are_judged_wrong() {
    let foo =
        [directory("A"), directory("B"), file("A/foo"), write("A/foo", 0, 9000), set_xattr("A/foo", "user.one", 1)];
    let new = [directory("D"), file("D/foo"), append("D/foo", 300), fsync("D/foo")];
    let moved = [rename("A/foo", "B/foo"), fsync("B/foo")];
    let linked = [link("A/foo", "A/bar"), unlink("A/foo"), link("A/bar", "A/more"), fsync("A/bar")];
    let tagged = [set_xattr("A/foo", "user.one", 7), append("A/foo", 10), fsync("A/foo")];
    let cases: [(&str, Change, &[Operation]); 8] = [
        ("a new directory", without_new_directory, &new),
        ("an old name of a moved file", with_old_name, &moved),
        ("an old name of a file with several", with_old_name, &linked),
        ("a name beside", without_sibling, &linked),
        ("an xattr", without_xattr, &tagged),
        ("content", with_foreign_content, &tagged),
        ("all of a write", without_anything_new, &tagged),
        ("all of a move", without_anything_new, &moved),
    ];
    let stage = Stage::new(&foo).unwrap();
    for (what, change, operations) in cases {
        let (mut objections, mut last) = (0, 0);
        stage
            .run_with(operations, 1, 30, &mut |state| {
                // Before the fsync has returned, nothing is promised.
                last = last.max(state.event);
                let Some(changed) = change(&state.found.model, &stage.model) else { return Ok(()) };
                let Err(objection) = state.judge.judge(&changed, state.found.base, state.event) else { return Ok(()) };
                eprintln!("{what}, after event {}: {objection}", state.event);
                objections += usize::from(state.event == last);
                Ok(())
            })
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert!(objections > 0, "{what}: nobody objects");
    }
}

/// Operations do not check whether items have space for additions.
#[test]
fn items_whose_size_is_not_checked_are_noticed() {
    for seed in 1..=12 {
        let failure = crate::items_fit_their_leaves::fill(seed, 4096, true).err();
        eprintln!("seed {seed}: {failure:?}");
        assert!(failure.is_some(), "seed {seed}: not noticed");
    }
}
