//! `ubtrfs check --repair`: decides which faults can be repaired, and repairs them.
//!
//! A repair writes only records that can be derived from others: counters, the free-space tree,
//! sizes of directories, link counts, missing orphan items. An ordinary commit writes all of them,
//! and needs intact trees for that; so if the trees have any other fault, the repair changes
//! nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use ubtrfs::{Filesystem, InodeFix, InodeId};
use ubtrfs_check::{Fault, FaultKind, Report};
use ubtrfs_format::TreeId;
use ubtrfs_volume::{OpenOptions, Volume};

use crate::args;
use crate::confirm::confirm;
use crate::device::{about_volume_within, open_for_writing};
use crate::failure::{Failure, Result};

/// Lines of each kind that are shown.
const SHOWN: usize = 20;

/// What a repair does about a fault.
enum Remedy {
    /// Space is counted again.
    Recount,
    /// The attributes of an inode are corrected.
    Inode(InodeFix),
    /// Nothing is done, since nothing needs to be.
    Leave(&'static str),
    /// Nothing can be done, and no other fault may be repaired while this one exists.
    Refuse(&'static str),
}

/// The changes that a repair would make.
pub struct RepairPlan {
    recount: Vec<String>,
    inodes: BTreeMap<InodeId, InodeFix>,
    inode_lines: Vec<String>,
    left: Vec<(String, &'static str)>,
    refused: Vec<(String, &'static str)>,
}

impl RepairPlan {
    /// Returns the plan for all faults.
    pub fn of(report: &Report) -> Self {
        let mut plan = Self {
            recount: Vec::new(),
            inodes: BTreeMap::new(),
            inode_lines: Vec::new(),
            left: Vec::new(),
            refused: Vec::new(),
        };
        for fault in report.faults.iter().chain(&report.warnings) {
            match remedy(fault) {
                Remedy::Recount => plan.recount.push(fault.to_string()),
                Remedy::Inode(fix) => {
                    plan.inode_lines.push(fault.to_string());
                    plan.fix(fix);
                }
                Remedy::Leave(why) => plan.left.push((fault.to_string(), why)),
                Remedy::Refuse(why) => plan.refused.push((fault.to_string(), why)),
            }
        }
        // An inode whose link count is corrected has names, so it is no orphan.
        for fix in plan.inodes.values_mut() {
            fix.orphan &= fix.nlink.is_none();
        }
        if report.fault_count > report.faults.len() as u64 {
            plan.refused.push(("the volume".into(), "has more faults than can be looked at together"));
        }
        if report.stats.has_log {
            let why = "holds a log: mount it, which replays the log, or give the log up with 'ubtrfs rescue zero-log'";
            plan.refused.push(("the volume".into(), why));
        }
        plan
    }

    fn fix(&mut self, fix: InodeFix) {
        let InodeFix { inode, nlink, size, orphan } = fix;
        let all = self.inodes.entry(inode).or_insert(InodeFix { inode, nlink: None, size: None, orphan: false });
        all.nlink = nlink.or(all.nlink);
        all.size = size.or(all.size);
        all.orphan |= orphan;
    }

    fn is_empty(&self) -> bool {
        self.recount.is_empty() && self.inodes.is_empty()
    }

    /// Describes what will be done, what will not, and why.
    pub fn as_text(&self) -> String {
        let mut text = String::new();
        let mut part = |title: &str, lines: &mut dyn Iterator<Item = String>| {
            let lines: Vec<_> = lines.collect();
            if lines.is_empty() {
                return;
            }
            let _ = writeln!(text, "{title}:");
            for line in lines.iter().take(SHOWN) {
                let _ = writeln!(text, "  {line}");
            }
            if lines.len() > SHOWN {
                let _ = writeln!(text, "  … and {} more", lines.len() - SHOWN);
            }
        };
        part(
            "to be recounted and written: use of block groups and devices, the superblock's totals, the free-space tree",
            &mut self.recount.iter().cloned(),
        );
        part("to be put right in inodes", &mut self.inode_lines.iter().cloned());
        part("left as it is", &mut self.left.iter().map(|(fault, why)| format!("{fault} ({why})")));
        part("can't be put right", &mut self.refused.iter().map(|(fault, why)| format!("{fault} ({why})")));
        text
    }

    /// Carries out the plan, after a confirmation.
    pub fn carry_out(&self, arguments: &args::Check) -> Result<()> {
        if !self.refused.is_empty() {
            return Err(Failure::new(
                "nothing was changed: writing needs sound trees; 'ubtrfs restore' copies what can be read",
            ));
        }
        if self.is_empty() {
            return Ok(());
        }
        let paths = &arguments.devices;
        if !arguments.yes {
            confirm("Write this?", "ubtrfs check --repair --yes", paths, arguments.window)?;
        }
        let writing = open_for_writing(paths, arguments.window)?;
        let volume = Volume::open(writing.devices, OpenOptions { read_only: false });
        let volume = volume.map_err(|error| about_volume_within(paths, arguments.window, &error))?;
        let fixes: Vec<_> = self.inodes.values().copied().collect();
        Filesystem::mend(Arc::new(volume), !self.recount.is_empty(), &fixes).map_err(|error| {
            let device = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
            Failure::about(device, &error)
        })
    }
}

fn remedy(fault: &Fault) -> Remedy {
    use FaultKind as Kind;
    let inode = fault.place.tree.zip(fault.place.inode).map(|(tree, ino)| InodeId::new(tree, ino));
    let fix = |nlink: Option<u64>, size: Option<u64>, orphan: bool| match (inode, nlink.map(u32::try_from)) {
        (Some(inode), None) => Remedy::Inode(InodeFix { inode, nlink: None, size, orphan }),
        (Some(inode), Some(Ok(nlink))) => Remedy::Inode(InodeFix { inode, nlink: Some(nlink), size, orphan }),
        _ => Remedy::Refuse("no inode can have that"),
    };
    match &fault.kind {
        Kind::BlockGroupUsed { .. }
        | Kind::ChunkWithoutBlockGroup
        | Kind::BlockGroupDiffersFromChunk { field: "flags", .. }
        | Kind::DeviceBytesUsed { .. }
        | Kind::SuperblockField {
            field: "bytes_used" | "dev_item.bytes_used" | "dev_item.total_bytes" | "num_devices",
            ..
        }
        | Kind::SuperblockCopyDiffers { .. }
        | Kind::SuperblockCopyStale { .. }
        | Kind::FreeSpaceInfoMissing
        | Kind::FreeSpaceStale
        | Kind::FreeSpaceCount { .. }
        | Kind::UsedListedFree { .. }
        | Kind::FreeNotListed { .. }
        | Kind::FreeSpaceNotMerged
        | Kind::FreeSpaceWrongKind
        | Kind::FreeSpaceOutside => Remedy::Recount,
        // Each commit writes all copies but the first. The first one must be good for anything to
        // be written.
        Kind::SuperblockCopyBad { copy, .. } if *copy > 0 => Remedy::Recount,
        Kind::DirectorySize { expected, .. } => fix(None, Some(*expected), false),
        Kind::LinkCount { expected: 0, .. } => {
            Remedy::Refuse("its location is unknown; 'ubtrfs restore' copies it to lost+found")
        }
        Kind::LinkCount { expected, .. } => fix(Some(*expected), None, false),
        Kind::NoOrphanItem => fix(None, None, true),
        Kind::BadCopy { .. } => Remedy::Leave("a mount puts it right when it reads the block, from the other copy"),
        Kind::BadData { .. } | Kind::UnreadableData { .. } => {
            Remedy::Leave("data can't be derived from anything but another copy, which a mount uses when it reads")
        }
        Kind::BadParity { .. } => Remedy::Leave("nothing is written to volumes with parity; data is read without it"),
        Kind::OddChecksum { .. } | Kind::UuidSurplus { .. } => Remedy::Leave("it does no harm"),
        // The free-space tree is rebuilt as a whole, without reading the old one.
        _ if fault.place.tree == Some(TreeId::FREE_SPACE) => Remedy::Recount,
        _ => Remedy::Refuse("it does not follow from anything else what is right"),
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_check::Location;
    use ubtrfs_format::Ino;

    use super::*;

    fn report(kinds: Vec<FaultKind>) -> Report {
        let place = Location { tree: Some(TreeId::FS), inode: Some(Ino(300)), ..Location::default() };
        let faults: Vec<_> = kinds.into_iter().map(|kind| Fault { kind, place: place.clone() }).collect();
        Report { fault_count: faults.len() as u64, faults, ..Report::default() }
    }

    #[test]
    fn all_faults_of_one_inode_are_corrected_together() {
        let kinds = vec![
            FaultKind::LinkCount { found: 0, expected: 2 },
            FaultKind::NoOrphanItem,
            FaultKind::DirectorySize { found: 7, expected: 12 },
        ];
        let plan = RepairPlan::of(&report(kinds));
        let inode = InodeId::new(TreeId::FS, Ino(300));
        let fix = InodeFix { inode, nlink: Some(2), size: Some(12), orphan: false };
        assert_eq!(plan.inodes.into_values().collect::<Vec<_>>(), [fix]);
        let plan = RepairPlan::of(&report(vec![FaultKind::NoOrphanItem]));
        assert!(plan.inodes[&inode].orphan && plan.refused.is_empty());
    }

    #[test]
    fn one_fault_that_cannot_be_mended_stops_all() {
        let plan = RepairPlan::of(&report(vec![FaultKind::FreeSpaceInfoMissing, FaultKind::ExtentsOverlap]));
        assert_eq!((plan.recount.len(), plan.refused.len()), (1, 1));
        let mut with_log = report(vec![FaultKind::FreeSpaceInfoMissing]);
        with_log.stats.has_log = true;
        assert_eq!(RepairPlan::of(&with_log).refused.len(), 1);
        let mut too_many = report(vec![FaultKind::FreeSpaceInfoMissing]);
        too_many.fault_count = 2;
        assert_eq!(RepairPlan::of(&too_many).refused.len(), 1);
    }
}
