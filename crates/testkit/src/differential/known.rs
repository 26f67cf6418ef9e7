//! The differences that are meant, each with its reason.
//!
//! Each entry says of which calls and answers it speaks, as narrowly as it can: another difference
//! of the same call is found.

use super::answers::{differing_words, is_error};
use super::call::{Bytes, Call, Features, On, Step, View};
use crate::walk::{Kind, Tree};

/// A difference that is meant.
#[derive(Debug)]
pub struct Known {
    /// Why ubtrfs does not do as the kernel does.
    pub reason: &'static str,
    speaks_of: fn(&Case<'_>) -> bool,
}

/// A call and its answers.
struct Case<'a> {
    /// The calls before it.
    before: &'a [Step],
    step: &'a Step,
    ours: &'a str,
    theirs: &'a str,
}

impl Case<'_> {
    /// Whether the call may have gone through such a mount: itself, or by an open file.
    fn goes_through(&self, view: View) -> bool {
        self.step.view == view || self.before.iter().any(|step| step.view == view)
    }

    fn is_after(&self, is_it: fn(&Call) -> bool) -> bool {
        self.before.iter().any(|step| is_it(&step.call))
    }
}

const KNOWN: &[Known] = &[
    Known {
        reason: "FUSE in the kernel has no FICLONE, FICLONERANGE, FIDEDUPERANGE and FIEMAP",
        speaks_of: |case| {
            matches!(
                case.step.call,
                Call::Clone { .. } | Call::CloneRange { .. } | Call::Deduplicate { .. } | Call::MapExtents { .. }
            ) && case.ours == "EOPNOTSUPP"
        },
    },
    Known {
        reason: "permissions and arguments are checked, by FUSE in the kernel, before the server says that a subvolume is read-only",
        speaks_of: |case| is_error(case.ours) && case.theirs == "EROFS",
    },
    Known {
        reason: "trees are not defragmented, only files",
        speaks_of: |case| {
            matches!(case.step.call, Call::Defragment { .. } | Call::DefragmentRange { .. })
                && case.ours == "EOPNOTSUPP"
        },
    },
    Known {
        reason: "BTRFS_IOC_GET_SUPPORTED_FEATURES is about the kernel's driver",
        speaks_of: |case| {
            matches!(case.step.call, Call::Features { which: Features::Supported, .. }) && case.ours == "ENOTTY"
        },
    },
    Known {
        reason: ACCESSES,
        speaks_of: |case| {
            let words = differing_words(case.ours, case.theirs);
            matches!(case.step.call, Call::Stat { .. }) && matches!(words[..], [("a", _)])
        },
    },
    Known {
        reason: STORES,
        speaks_of: |case| {
            let words = differing_words(case.ours, case.theirs);
            matches!(case.step.call, Call::Stat { .. })
                && words.iter().all(|(what, _)| matches!(*what, "m" | "c"))
                && case.is_after(|call| matches!(call, Call::Store { .. }))
        },
    },
    Known {
        reason: "the empty directories in place of subvolumes are one inode in each snapshot, and root's",
        speaks_of: |case| {
            let words = differing_words(case.ours, case.theirs);
            matches!(case.step.call, Call::Stat { .. })
                && matches!(words[..], [("x1", "0:0")])
                && case.is_after(|call| matches!(call, Call::MakeSnapshot { .. }))
        },
    },
    Known {
        reason: "which of several errors of an ioctl's argument, file and caller is reported",
        speaks_of: |case| {
            let is_it = is_ioctl(&case.step.call) || sets_flags(&case.step.call);
            is_it && is_error(case.ours) && is_error(case.theirs)
        },
    },
    Known {
        reason: "a chown(2) of nobody to nobody does not reach the server",
        speaks_of: |case| matches!(case.step.call, Call::Chown { user: None, group: None, .. }) && case.ours == "ok",
    },
    Known {
        reason: "arguments of an ioctl are checked for an empty file, too",
        speaks_of: |case| {
            matches!(case.step.call, Call::DefragmentRange { compression: 4.., .. }) && case.ours == "EINVAL"
        },
    },
    Known {
        reason: "FUSE in the kernel does not know which files are immutable or append-only: other errors come first",
        speaks_of: |case| case.theirs == "EPERM" && is_error(case.ours) && case.is_after(sets_flags),
    },
    Known {
        reason: "names that were made after a directory was opened may be listed or not",
        speaks_of: |case| {
            let has = |names: &str, name: &str| names.split(' ').any(|other| other == name);
            matches!(case.step.call, Call::List { on: On::Slot(_) })
                && !is_error(case.ours)
                && case.theirs.split(' ').all(|name| has(case.ours, name))
        },
    },
    Known {
        reason: "FUSE in the kernel has the size of a directory as it was last looked at",
        speaks_of: |case| {
            let Call::Seek { slot, whence: libc::SEEK_END, .. } = case.step.call else { return false };
            case.before.iter().any(|step| {
                matches!(step.call, Call::Open { slot: opened, flags, .. }
                    if opened == slot && flags.0 & libc::O_DIRECTORY != 0)
            })
        },
    },
    Known {
        reason: "an empty security.capability, which the kernel lets every user set, would take a program's away",
        speaks_of: |case| {
            let is_it = |name: &str, value: &Bytes| name == "security.capability" && value.0.is_empty();
            matches!(&case.step.call, Call::SetXattr { name, value, .. } if is_it(name, value)) && case.ours == "EINVAL"
        },
    },
    Known {
        reason: ZEROS,
        speaks_of: |case| matches!(case.step.call, Call::Seek { whence: libc::SEEK_DATA | libc::SEEK_HOLE, .. }),
    },
    Known {
        reason: "a read-only subvolume does not change through files that were opened before either",
        speaks_of: |case| {
            case.ours == "EROFS"
                && !is_error(case.theirs)
                && case.is_after(|call| matches!(call, Call::SetSubvolumeFlags { .. } | Call::MakeSnapshot { .. }))
        },
    },
];

/// Differences of states that are meant: a line of the comparison has all of these words.
const KNOWN_STATES: &[(&[&str], &str)] = &[
    (&["atime: left", "right (1000000000, 0)"], ACCESSES),
    (&["data ranges: left"], ZEROS),
    (&["xattr security.capability: left None, right Some"], REMOVED_BY_FUSE),
];

const REMOVED_BY_FUSE: &str =
    "FUSE in the kernel removes privileges before it asks the server to change a file, even if nothing changes then";
const STORES: &str =
    "the server learns of stores to mappings when pages are written back, and sets the time of modification then";
const ACCESSES: &str =
    "the server does not see reads of cached pages, reads behind the end and mmap(2), but sees faults of mapped pages";
const ZEROS: &str = "which of a file's zeros are a hole: the kernel writes those of a block in part, ubtrfs need not";

/// Differences that are faults, until they are mended.
const FAULTS: &[Known] = &[
    Known {
        reason: "FAULT: ioctls through read-only mounts",
        speaks_of: |case| case.goes_through(View::ReadOnly) && case.theirs == "EROFS" && is_ioctl(&case.step.call),
    },
    Known {
        reason: "FAULT: ids of ioctls through idmapped mounts",
        speaks_of: |case| case.goes_through(View::Idmapped) && is_ioctl(&case.step.call),
    },
    Known {
        reason: "FAULT: paths of inodes that are not committed yet",
        speaks_of: |case| matches!(case.step.call, Call::LookUpInode { .. } | Call::LookUpAsUser { .. }),
    },
    Known {
        reason: "FAULT: opening files of read-only subvolumes for writing, and access(2)",
        speaks_of: |case| {
            case.theirs == "EROFS"
                && !is_error(case.ours)
                && matches!(
                    case.step.call,
                    Call::Open { .. } | Call::OpenResolving { .. } | Call::OpenHandle { .. } | Call::Access { .. }
                )
        },
    },
    Known {
        reason: "FAULT: append-only and immutable files, which are checked when they are written",
        speaks_of: |case| {
            let is_checked_late = case.ours == "EPERM" && !is_error(case.theirs);
            let is_for_kernel = matches!(
                case.step.call,
                Call::Open { .. }
                    | Call::OpenResolving { .. }
                    | Call::OpenHandle { .. }
                    | Call::Map { .. }
                    | Call::SetFileFlags { .. }
                    | Call::CopyRange { .. }
                    | Call::WriteFlagged { .. }
                    | Call::Access { .. }
                    | Call::RemoveXattr { .. }
            );
            let is_not_checked = is_for_kernel && matches!(case.theirs, "EPERM" | "EACCES") && !is_error(case.ours);
            (is_checked_late || is_not_checked) && case.is_after(sets_flags)
        },
    },
];

fn sets_flags(call: &Call) -> bool {
    matches!(call, Call::SetFlags { .. } | Call::SetFsx { .. } | Call::SetFileAttributes { .. })
}

/// Whether a call is one of the ioctls that FUSE passes on without a check.
fn is_ioctl(call: &Call) -> bool {
    matches!(
        call,
        Call::MakeSubvolume { .. }
            | Call::MakeSnapshot { .. }
            | Call::DestroySubvolume { .. }
            | Call::SetSubvolumeFlags { .. }
            | Call::SetReceived { .. }
            | Call::SetDefault { .. }
            | Call::SetLabel { .. }
            | Call::Defragment { .. }
            | Call::DefragmentRange { .. }
            | Call::LookUpAsUser { .. }
            | Call::Trim { .. }
    )
}

/// The entry for a difference.
pub(super) fn of(before: &[Step], step: &Step, ours: &str, theirs: &str) -> Option<&'static Known> {
    let case = Case { before, step, ours, theirs };
    KNOWN.iter().chain(FAULTS).find(|known| (known.speaks_of)(&case))
}

/// The entry that says that a call leaves different states though its answers are equal.
pub(super) fn parts_unseen(before: &[Step], step: &Step, answer: &str) -> Option<&'static Known> {
    let case = Case { before, step, ours: answer, theirs: answer };
    let makes = matches!(step.call, Call::MakeSubvolume { .. } | Call::MakeSnapshot { .. });
    (makes && case.goes_through(View::Idmapped) && !is_error(answer)).then_some(&FAULTS[2])
}

/// A snapshot has an empty directory in place of each subvolume in its source. To the kernel these
/// are several inodes of one number, which belong to the owner of the directory that each is in;
/// with FUSE a number is one inode, which is root's.
pub(super) fn even_placeholders(ours: &mut Tree, theirs: &mut Tree) {
    const PLACEHOLDER: Option<u64> = Some(2);
    for (path, entry) in &mut theirs.entries {
        if let Some(our) = ours.entries.get_mut(path).filter(|our| our.kind == Kind::Dir && entry.ino == PLACEHOLDER) {
            (entry.uid, entry.gid) = (our.uid, our.gid);
        }
    }
}

/// Whether a line of a comparison of states speaks of a difference that is meant.
pub(super) fn is_known_state(steps: &[Step], line: &str) -> bool {
    const WHITEOUT: u64 = 4;
    let changes_flags = steps.iter().filter(|step| sets_flags(&step.call)).count() > 1;
    let stores = steps.iter().any(|step| matches!(step.call, Call::Store { .. }));
    let whites_out =
        steps.iter().any(|step| matches!(step.call, Call::Rename { flags, .. } if flags.0 & WHITEOUT != 0));
    KNOWN_STATES.iter().any(|(words, _)| words.iter().all(|word| line.contains(word)))
        // See [`STORES`].
        || differs_in_set_id(steps, line)
        // FAULT: flags that end a protection and ask for compression leave the property as it was.
        || changes_flags && line.contains("xattr btrfs.compression: left None")
        // FAULT: a whiteout gets no ACL by the default one of its directory.
        || whites_out && line.contains("xattr system.posix_acl_access: left None")
        || stores && line.contains(": mtime: left ")
}

/// Whether the modes of a line differ in set-id bits that ours lacks: see [`REMOVED_BY_FUSE`]. Or
/// in that of the group where the group may not execute the file: the kernel clears it if the
/// writer is not in the group, which FUSE does not report.
fn differs_in_set_id(steps: &[Step], line: &str) -> bool {
    const SET_ID: u32 = 0o6000;
    const SET_GROUP: u32 = 0o2000;
    const GROUP_EXECUTES: u32 = 0o010;
    let Some((_, modes)) = line.split_once(": mode: left \"") else { return false };
    let Some((ours, theirs)) = modes.trim_end_matches('"').split_once("\", right \"") else { return false };
    let (Ok(ours), Ok(theirs)) = (u32::from_str_radix(ours, 8), u32::from_str_radix(theirs, 8)) else { return false };
    let allocates = steps.iter().any(|step| matches!(step.call, Call::Allocate { .. }));
    // FAULT: a write by root clears them, too, if the file has capabilities.
    let has_capability =
        steps.iter().any(|step| matches!(&step.call, Call::SetXattr { name, .. } if name == "security.capability"));
    let is_removed = (allocates || has_capability) && ours & !SET_ID == theirs & !SET_ID && ours & !theirs == 0;
    is_removed || (ours ^ theirs == SET_GROUP && ours & GROUP_EXECUTES == 0)
}
