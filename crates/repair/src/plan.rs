//! The rounds of a repair. Each checks the volume, derives what is damaged, and commits that to
//! memory; the next one finds what could not be seen before. The devices are only read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ubtrfs_check::{Fault, FaultKind, Location, Mending, Options as CheckOptions, Progress, Report, check};
use ubtrfs_format::items::{FileType, InodeItem, InodeRef, encode_inode_ref};
use ubtrfs_format::{DirIndex, Generation, Ino, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::EditBatch;
use ubtrfs_volume::{Device, StagedDevice, Volume};

use crate::change::{Change, Level};
use crate::checksums::kept_sums;
use crate::commit::{Edits, commit};
use crate::describe::{describe, unreadable};
use crate::error::{Error, Result};
use crate::lost_extents::{self, LostExtents};
use crate::lost_roots;
use crate::quotas::stale_quotas;
use crate::roots::{Link, repair_links, uuid_tree};
use crate::session::{Session, next_generation};
use crate::space::Ranges;
use crate::subvolume::Subvolume;
use crate::supported::require_writable;
use crate::survey::Survey;

/// The most rounds. Each mends at least one fault, or is the last one.
const MAX_ROUNDS: usize = 12;
/// How many faults a round looks at together.
const MAX_FAULTS: usize = 100_000;

/// The options of a repair.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Whether the checks before and after compare all data with its checksums.
    pub data_checksums: bool,
    /// Whether data without a checksum gets one, of what it is now.
    pub recompute_checksums: bool,
    /// Gets the progress of the checks.
    pub progress: Option<&'a dyn Progress>,
}

/// A repair that is ready to be written.
#[derive(Debug)]
pub struct RepairPlan {
    pub(crate) devices: Vec<Arc<StagedDevice>>,
    /// The addresses that the trees of the volume and those of each round use or name. None of them
    /// is written to (invariant 57).
    reserved: Ranges,
    /// What was found before.
    pub before: Report,
    /// What will be found after it.
    pub after: Report,
    /// What it changes.
    pub changes: Vec<Change>,
}

impl RepairPlan {
    /// Finds out how the volume on these devices, which must be all of its devices, can be
    /// repaired. The devices are not changed.
    pub fn of(devices: Vec<Arc<dyn Device>>, options: &Options<'_>) -> Result<Self> {
        let devices: Vec<_> = devices.into_iter().map(|device| Arc::new(StagedDevice::new(device))).collect();
        let mut plan = Self {
            devices,
            reserved: Ranges::default(),
            before: Report::default(),
            after: Report::default(),
            changes: Vec::new(),
        };
        plan.restore_superblocks()?;
        plan.before = plan.check(options, options.data_checksums)?;
        plan.after = plan.before.clone();
        if plan.before.stats.has_log {
            return Err(Error::HasLog);
        }
        let mut seen: BTreeSet<String> = BTreeSet::new();
        for _ in 0..MAX_ROUNDS {
            let faults = repairable(&plan.after, plan.devices.len(), options);
            let state = fingerprint(&faults);
            if faults.is_empty() || !seen.insert(state) {
                break;
            }
            plan.round(&faults, options)?;
            plan.after = plan.check(options, false)?;
        }
        if !plan.changes.is_empty() && options.data_checksums {
            plan.after = plan.check(options, true)?;
        }
        Ok(plan)
    }

    /// Whether the repair writes nothing.
    pub fn is_empty(&self) -> bool {
        self.devices.iter().all(|device| device.staged_bytes() == 0)
    }

    /// Whether the repair gives up content or files.
    pub fn loses_content(&self) -> bool {
        self.changes.iter().any(|change| change.level == Level::Content)
    }

    /// Whether the volume has fewer faults after it. Checksums that are missing don't count, since
    /// a check notices them only once it can read the tree.
    pub fn helps(&self) -> bool {
        let count = |report: &Report| {
            let missing = |fault: &&Fault| matches!(fault.kind, FaultKind::MissingChecksum { .. });
            report.fault_count - report.faults.iter().filter(missing).count() as u64
        };
        self.after.is_clean() || count(&self.after) < count(&self.before)
    }

    fn views(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
    }

    fn check(&self, options: &Options<'_>, data_checksums: bool) -> Result<Report> {
        let options =
            CheckOptions { data_checksums, keep: MAX_FAULTS, progress: options.progress, ..CheckOptions::default() };
        match check(&self.views(), &options) {
            Err(ubtrfs_check::Error::RootTree(reason)) => Ok(without_root_tree(reason)),
            checked => Ok(checked?),
        }
    }

    /// Puts primary superblocks back from their copies.
    fn restore_superblocks(&mut self) -> Result<()> {
        for device in &self.devices {
            if Volume::has_primary_superblock(&**device) {
                continue;
            }
            if let Some(copy) = Volume::superblock_of(&**device) {
                Volume::restore_primary(&**device, &copy)?;
                let what = format!("the primary superblock of device {} is put back from a copy", copy.dev_item.devid);
                self.changes.push(Change::of_space(what));
            }
        }
        Ok(())
    }

    fn round(&mut self, faults: &[Fault], options: &Options<'_>) -> Result<()> {
        let mut session = Session::open(&self.devices)?;
        require_writable(&session)?;
        let mut changes = lost_roots::find(&mut session);
        if session.found_root_tree.is_some() {
            let what = "the root tree can't be read as a whole: it is rebuilt from all of its blocks that can be found";
            changes.push(Change { level: Level::Content, tree: None, inode: None, path: None, what: what.into() });
        }
        let survey = Survey::of(&session);
        let generation = next_generation(&session, survey.newest);
        let mut edits = Edits::default();
        if session.root_of(TreeId::DATA_RELOC).is_none() {
            edits.trees.insert(TreeId::DATA_RELOC, empty_relocation_tree(generation));
            changes.push(Change::of_space("the tree that balances use, which is empty, is rebuilt".into()));
        }
        // What can't be read is left out first; only then it is seen what that has damaged.
        if survey.is_incomplete() {
            changes.extend(survey.unreadable.values().map(unreadable));
            if survey.is_unreadable(TreeId::UUID) {
                edits.rebuild(TreeId::UUID, uuid_tree(&session));
            }
            edits.dropped.extend(survey.is_unreadable(TreeId::QUOTA).then_some(TreeId::QUOTA));
        } else {
            let lost = lost_extents::find(&session, &survey);
            derive(&session, (generation, &lost), faults, &mut edits, &mut changes)?;
        }
        let is_of_sums = |fault: &Fault| {
            matches!(fault.kind, FaultKind::ChecksumsOverlap | FaultKind::ChecksumWithoutExtent { .. })
                || fault.place.tree == Some(TreeId::CSUM)
        };
        let missing: Vec<_> = faults.iter().filter_map(missing_sums).filter(|_| options.recompute_checksums).collect();
        if !missing.is_empty() && !survey.is_incomplete() {
            edits.rebuild(TreeId::CSUM, kept_sums(&session, &survey, &missing)?);
            let bytes: u64 = missing.iter().map(|(_, length)| length).sum();
            let what = format!("{bytes} bytes without checksums get those of what they are now");
            changes.push(Change { level: Level::Content, tree: None, inode: None, path: None, what });
        } else if faults.iter().any(is_of_sums) {
            edits.rebuild(TreeId::CSUM, kept_sums(&session, &survey, &[])?);
            changes.push(Change::of_space("the checksum tree is rebuilt from the checksums that can be read".into()));
        }
        let space = commit(&session, edits, &mut self.reserved)?;
        describe(&space, faults, &mut changes);
        for change in changes {
            if !self.changes.contains(&change) {
                self.changes.push(change);
            }
        }
        Ok(())
    }
}

/// Derives names, inodes and entries of subvolumes.
fn derive(
    session: &Session,
    (generation, lost): (Generation, &LostExtents),
    faults: &[Fault],
    edits: &mut Edits,
    changes: &mut Vec<Change>,
) -> Result<()> {
    let mut links = repair_links(session, faults)?;
    let mut by_tree: BTreeMap<TreeId, Vec<&Fault>> = BTreeMap::new();
    for fault in faults {
        let Some(tree) = fault.place.tree else { continue };
        if tree.is_subvolume()
            && (fault.place.inode.is_some() || fault.place.key.is_some() || fault.kind == FaultKind::EmptyTree)
        {
            by_tree.entry(tree).or_default().push(fault);
        }
    }
    let nameless = std::mem::take(&mut links.nameless);
    if !nameless.is_empty() {
        by_tree.entry(TreeId::FS).or_default();
    }
    for link in &links.missing_entries {
        by_tree.entry(link.parent).or_default();
    }
    for (tree, faults) in by_tree {
        let Some(root) = session.root_of(tree) else { continue };
        let mut subvolume = Subvolume::new(session, root, generation, lost)?;
        let mut put = Vec::new();
        let mut without_names: Vec<TreeId> = nameless.iter().copied().filter(|_| tree == TreeId::FS).collect();
        for link in links.missing_entries.iter().filter(|link| link.parent == tree) {
            if !subvolume.add_subvolume_entry(link)? {
                without_names.push(link.child);
            }
        }
        for child in without_names {
            let (directory, index, name) = subvolume.name_subvolume(child)?;
            put.push(Link { parent: tree, child, directory: Ino(directory), index, name });
        }
        for link in &put {
            links.put(link);
        }
        let (batch, more) = subvolume.repair(&faults)?;
        changes.extend(more);
        if !batch.is_empty() {
            edits.trees.insert(tree, batch);
        }
    }
    changes.append(&mut links.changes);
    edits.root_tree = links.batch;
    if let Some(batch) = stale_quotas(session)? {
        edits.trees.insert(TreeId::QUOTA, batch);
        changes.push(Change::of_space("the next mount counts quota groups again".into()));
    }
    let is_of_uuids =
        |fault: &Fault| matches!(fault.kind, FaultKind::UuidMissing { .. } | FaultKind::UuidSurplus { .. });
    if faults.iter().any(is_of_uuids) {
        edits.rebuild(TreeId::UUID, uuid_tree(session));
        changes.push(Change::of_space("the UUID tree is rebuilt from the subvolumes".into()));
    }
    Ok(())
}

/// The report on a volume of which nothing else can be checked.
fn without_root_tree(reason: String) -> Report {
    let place = Location { tree: Some(TreeId::ROOT), ..Location::default() };
    let fault = Fault { kind: FaultKind::BadBlock { reason }, place };
    Report { faults: vec![fault], fault_count: 1, ..Report::default() }
}

/// Returns the items of the data relocation tree, which has only an empty root directory.
fn empty_relocation_tree(generation: Generation) -> EditBatch {
    let root = Ino::ROOT_DIR.0;
    let item = InodeItem {
        generation,
        transid: generation,
        nlink: 1,
        mode: FileType::Directory.type_bits() | 0o755,
        ..InodeItem::default()
    };
    let mut name = Vec::new();
    encode_inode_ref(&mut name, InodeRef { index: DirIndex(0), name: b".." });
    let mut batch = EditBatch::new();
    batch.put(Key::new(root, ItemType::INODE_ITEM, 0), item.to_bytes());
    batch.put(Key::new(root, ItemType::INODE_REF, root), name);
    batch
}

/// Returns the faults and warnings that a commit may mend.
fn repairable(report: &Report, devices: usize, options: &Options<'_>) -> Vec<Fault> {
    // mkfs.btrfs leaves free-space items of no block group on sound volumes of several devices.
    let is_usual = |kind: &FaultKind| devices > 1 && matches!(kind, FaultKind::FreeSpaceStale);
    let all = report.faults.iter().chain(&report.warnings);
    let is_wanted = |fault: &&Fault| {
        let is_missing = options.recompute_checksums && missing_sums(fault).is_some();
        is_missing || !is_left(&fault.kind) && !is_usual(&fault.kind)
    };
    all.filter(is_wanted).cloned().collect()
}

/// Returns the address and the length of data without checksums, in bytes.
fn missing_sums(fault: &Fault) -> Option<(Logical, u64)> {
    match (&fault.kind, fault.place.address) {
        (FaultKind::MissingChecksum { length }, Some(address)) => Some((address, *length)),
        _ => None,
    }
}

/// Whether a fault is left as it is: it does no harm, or nothing of the volume tells what was
/// right.
fn is_left(kind: &FaultKind) -> bool {
    match kind.mended_by() {
        Mending::Nothing => !matches!(kind, FaultKind::FreeSpaceStale),
        Mending::Repair | Mending::SuperRecover | Mending::Mount => false,
        Mending::Scrub => matches!(kind, FaultKind::BadParity { .. }),
        _ => true,
    }
}

fn fingerprint(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
