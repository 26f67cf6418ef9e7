//! The intended differences, each with its reason.
//!
//! Each entry describes its calls and answers as narrowly as it can, so that another difference of
//! the same call is still found.

use super::answers::{differing_words, is_error};
use super::call::{Actor, Bytes, Call, CallStep, Features, Hex, On, View};
use crate::walk::{Kind, Tree};

/// An intended difference.
#[derive(Debug)]
pub struct Known {
    /// The reason why ubtrfs does not do as the kernel does.
    pub reason: &'static str,
    speaks_of: fn(&Case<'_>) -> bool,
}

/// A call and its answers.
struct Case<'a> {
    /// The calls before this one.
    before: &'a [CallStep],
    step: &'a CallStep,
    ours: &'a str,
    theirs: &'a str,
    /// Whether the kernel asks ubtrfs about each open(2).
    checks_opens: bool,
}

impl Case<'_> {
    /// Returns whether the call may have gone through such a mount: by its own path, or by an open
    /// file.
    fn goes_through(&self, view: View) -> bool {
        self.step.view == view || self.before.iter().any(|step| step.view == view)
    }

    fn is_after(&self, is_it: fn(&Call) -> bool) -> bool {
        self.before.iter().any(|step| is_it(&step.call))
    }

    /// Returns whether a directory or a subvolume was made at a path.
    fn is_made_as_directory(&self, wanted: &str) -> bool {
        self.before.iter().any(|step| match &step.call {
            Call::MakeDirectory { path, .. } => path == wanted,
            Call::MakeSubvolume { name, .. } | Call::MakeSnapshot { name, .. } => wanted.ends_with(name.as_str()),
            _ => false,
        })
    }

    /// Returns whether ubtrfs allows what the kernel refuses because of a file's flags or a
    /// read-only subvolume.
    fn lets_pass(&self) -> bool {
        !is_error(self.ours)
            && match self.theirs {
                "EROFS" => self.is_after(makes_read_only),
                "EPERM" | "EACCES" => self.is_after(protects),
                _ => false,
            }
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
        speaks_of: |case| is_error(case.ours) && case.theirs == "EROFS" && case.is_after(makes_read_only),
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
        reason: "FUSE sends the same for truncate(2) to nothing and for O_TRUNC, which changes the times",
        speaks_of: |case| {
            let words = differing_words(case.ours, case.theirs);
            matches!(case.step.call, Call::Stat { .. })
                && !words.is_empty()
                && words.iter().all(|(what, ours)| matches!(*what, "m" | "c") && *ours == "new")
                && case.is_after(|call| matches!(call, Call::Truncate { length: 0, .. }))
        },
    },
    Known {
        reason: "that a subvolume was renamed changes its ctime only in the kernel's memory, not on disk",
        speaks_of: |case| {
            let words = differing_words(case.ours, case.theirs);
            matches!(case.step.call, Call::Stat { .. })
                && words == [("c", "same")]
                && case.is_after(|call| matches!(call, Call::Rename { .. }))
                && case.is_after(|call| matches!(call, Call::MakeSubvolume { .. } | Call::MakeSnapshot { .. }))
        },
    },
    Known {
        reason: HOLES,
        speaks_of: |case| {
            let words = differing_words(case.ours, case.theirs);
            matches!(case.step.call, Call::Stat { .. })
                && !words.is_empty()
                && words.iter().all(|(what, ours)| matches!(*what, "m" | "c") && *ours != "new")
                && (case.is_after(punches_across_sectors) || case.is_after(punches_in_a_sector))
        },
    },
    Known {
        reason: "the kernel gives a subvolume that is deleted another device number",
        speaks_of: |case| {
            let numbers = (case.ours.split_once(' '), case.theirs.split_once(' '));
            let words = differing_words(case.ours, case.theirs);
            matches!(case.step.call, Call::Stat { .. })
                && matches!(numbers, (Some((ours, _)), Some((theirs, _))) if ours != theirs)
                && words.iter().all(|(what, _)| matches!(*what, "m" | "c"))
                && case.is_after(destroys)
        },
    },
    Known {
        reason: "FUSE in the kernel opens a handle of what is in its cache without a question, and checks flags then",
        speaks_of: |case| {
            matches!(case.step.call, Call::OpenHandle { .. }) && case.theirs == "ESTALE" && case.is_after(destroys)
        },
    },
    Known {
        reason: "FUSE keeps the inode of an unlinked file until the server has answered its RELEASE, which close(2) does not wait for",
        speaks_of: |case| {
            matches!(case.step.call, Call::OpenHandle { .. })
                && !is_error(case.ours)
                && case.theirs == "ESTALE"
                && case.checks_opens
                && case.is_after(leaves_unlinked)
        },
    },
    Known {
        reason: "a removed inode is in the tree until the FORGET of it arrives, which FUSE sends later",
        speaks_of: |case| {
            matches!(case.step.call, Call::SearchTree { .. })
                && case.is_after(removes)
                && has_more_inodes(case.ours, case.theirs)
        },
    },
    Known {
        reason: "to defragment, the kernel compares the ids on disk with the caller's, whatever the mount shows",
        speaks_of: |case| {
            let is_refused = case.ours == "EPERM" && !is_error(case.theirs);
            let passes = !is_error(case.ours) && case.theirs == "EPERM";
            matches!(case.step.call, Call::Defragment { .. } | Call::DefragmentRange { .. })
                && (is_refused || passes)
                && case.goes_through(View::Idmapped)
        },
    },
    Known {
        reason: "a store to a mapping asks nothing: that the subvolume is read-only is found when it is written back",
        speaks_of: |case| {
            matches!(case.step.call, Call::Store { .. })
                && !is_error(case.ours)
                && case.theirs == "EFAULT"
                && case.is_after(makes_read_only)
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
        speaks_of: |case| case.theirs == "EPERM" && is_error(case.ours) && case.is_after(protects),
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
                matches!(&step.call, Call::Open { slot: opened, flags, path, .. }
                    if *opened == slot && (flags.0 & libc::O_DIRECTORY != 0 || case.is_made_as_directory(path)))
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
        speaks_of: |case| {
            let is_place = |answer: &str| !is_error(answer) || answer == "ENXIO";
            matches!(case.step.call, Call::Seek { whence: libc::SEEK_DATA | libc::SEEK_HOLE, .. })
                && is_place(case.ours)
                && is_place(case.theirs)
        },
    },
    Known {
        reason: "a read-only subvolume does not change through files that were opened before either",
        speaks_of: |case| {
            case.ours == "EROFS"
                && !is_error(case.theirs)
                && case.is_after(|call| matches!(call, Call::SetSubvolumeFlags { flags, .. } if flags.0 == READ_ONLY))
        },
    },
    Known {
        reason: "the kernel asks about no open(2) without check_open=always, which makes it many times faster",
        speaks_of: |case| {
            let opens =
                matches!(case.step.call, Call::Open { .. } | Call::OpenResolving { .. } | Call::OpenHandle { .. });
            opens && !case.checks_opens && case.lets_pass()
        },
    },
    Known {
        reason: "FUSE in the kernel asks about no access(2), and knows neither flags of files nor read-only subvolumes",
        speaks_of: |case| {
            matches!(case.step.call, Call::Access { mode, .. } if mode & libc::W_OK != 0) && case.lets_pass()
        },
    },
    Known {
        reason: "FUSE in the kernel asks about no mmap(2) and fcntl(2), and does not know which files are append-only",
        speaks_of: |case| {
            matches!(case.step.call, Call::Map { shared: true, .. } | Call::SetFileFlags { .. }) && case.lets_pass()
        },
    },
    Known {
        reason: "FUSE in the kernel has nothing to ask where nothing is copied or removed, whatever the file's flags",
        speaks_of: |case| {
            let removes_nothing = match &case.step.call {
                Call::RemoveXattr { name, .. } => name == DEFAULT_ACL,
                Call::SetXattr { name, value, .. } => name == DEFAULT_ACL && value.0.is_empty(),
                Call::CopyRange { .. } => case.ours == "ok",
                _ => false,
            };
            removes_nothing && case.lets_pass()
        },
    },
    Known {
        reason: "FUSE in the kernel does not pass on that a write is to ignore O_APPEND",
        speaks_of: |case| {
            const NO_APPEND: u64 = 0x20;
            matches!(case.step.call, Call::WriteFlagged { flags, .. } if flags.0 & NO_APPEND != 0) && case.lets_pass()
        },
    },
    Known {
        reason: "immutable and append-only files do not change through files that were opened before either",
        speaks_of: |case| {
            let writes = matches!(
                case.step.call,
                Call::Write { .. }
                    | Call::WriteFlagged { .. }
                    | Call::WriteOn { .. }
                    | Call::CopyRange { .. }
                    | Call::SendFile { .. }
                    | Call::Allocate { .. }
                    | Call::Truncate { on: On::Slot(_), .. }
            );
            writes && case.ours == "EPERM" && !is_error(case.theirs) && case.is_after(protects)
        },
    },
    Known {
        reason: "a subvolume that was deleted, and of which something is open, has no properties any more",
        speaks_of: |case| {
            let is_it = matches!(
                case.step.call,
                Call::SetReceived { on: On::Slot(_), .. }
                    | Call::SetSubvolumeFlags { on: On::Slot(_), .. }
                    | Call::GetSubvolumeFlags { on: On::Slot(_) }
            );
            is_it && case.ours == "ENOENT" && !is_error(case.theirs) && case.is_after(destroys)
        },
    },
    Known {
        reason: "positions in directories are numbers of ours, and at the end the kernel's is the largest of all",
        speaks_of: |case| {
            let slot = match case.step.call {
                Call::Seek { slot, whence: libc::SEEK_CUR, .. } if !is_error(case.ours) => slot,
                Call::ReadOn { slot, .. } if (case.ours, case.theirs) == ("EISDIR", "EINVAL") => slot,
                _ => return false,
            };
            let lists = |step: &CallStep| matches!(step.call, Call::List { on: On::Slot(listed) } if listed == slot);
            (!is_error(case.theirs) || case.theirs == "EINVAL") && case.before.iter().any(lists)
        },
    },
    Known {
        reason: "the kernel's btrfs lets ACLs of read-only subvolumes change",
        speaks_of: |case| {
            let is_acl = matches!(&case.step.call, Call::SetXattr { name, .. } | Call::RemoveXattr { name, .. }
                if name.starts_with("system.posix_acl_"));
            is_acl && case.ours == "EROFS" && !is_error(case.theirs) && case.is_after(makes_read_only)
        },
    },
    Known {
        reason: "to clear set-id bits at a chown(2), the VFS asks for CAP_FOWNER; with FUSE the server clears them",
        speaks_of: |case| {
            const CHOWN: u8 = 0;
            let is_it = matches!(case.step.call, Call::Chown { .. }) && case.step.actor == Actor::Capable(CHOWN);
            is_it && (case.ours, case.theirs) == ("ok", "EPERM")
        },
    },
    Known {
        reason: "that who links may not write is found in a read-only subvolume, too, before that the link crosses subvolumes",
        speaks_of: |case| {
            matches!(case.step.call, Call::LinkSlot { .. })
                && (case.ours, case.theirs) == ("EXDEV", "EPERM")
                && case.is_after(makes_read_only)
        },
    },
    Known {
        reason: "set-id bits that a write has cleared still count for FUSE in the kernel when a link is made",
        speaks_of: |case| {
            let writes = |call: &Call| {
                matches!(
                    call,
                    Call::Write { .. } | Call::WriteOn { .. } | Call::WriteFlagged { .. } | Call::SendFile { .. }
                )
            };
            matches!(case.step.call, Call::LinkSlot { .. }) && case.ours == "EPERM" && case.is_after(writes)
        },
    },
    Known {
        reason: REMOVED_BY_FUSE,
        speaks_of: |case| {
            // Set-id files of other users can't be linked.
            matches!(case.step.call, Call::LinkSlot { .. })
                && (case.ours, case.theirs) == ("ok", "EPERM")
                && case.is_after(|call| matches!(call, Call::Allocate { .. }))
        },
    },
    Known {
        reason: "the kernel removes an unlinked inode's INODE_REF later, if it is open",
        speaks_of: |case| {
            matches!(case.step.call, Call::LookUpInode { .. })
                && case.ours == "ENOENT"
                && !is_error(case.theirs)
                && case.is_after(removes)
        },
    },
    Known {
        reason: "an unlinked inode is freed when the kernel forgets it, which it says later",
        speaks_of: |case| {
            let is_in_tree = |words: &str| words.split(' ').all(|item| case.ours.split(' ').any(|ours| ours == item));
            matches!(case.step.call, Call::SearchTree { .. })
                && !is_error(case.ours)
                && (case.theirs.is_empty() || is_in_tree(case.theirs))
                && case.is_after(|call| matches!(call, Call::Unlink { .. } | Call::Rename { .. }))
        },
    },
    Known {
        reason: REMOVED_BY_FUSE,
        speaks_of: |case| {
            let differing = differing_words(case.ours, case.theirs);
            let at = case.ours.split(' ').zip(case.theirs.split(' ')).nth(1);
            matches!(case.step.call, Call::Stat { .. })
                // Removing the bits changes the ctime.
                && differing.iter().skip(1).all(|(what, ours)| *what == "a" || (*what, *ours) == ("c", "new"))
                && at.is_some_and(|(ours, theirs)| lacks_set_id(case.before, ours, theirs))
        },
    },
    Known {
        reason: REMOVED_BY_FUSE,
        speaks_of: |case| {
            const NAME: &str = "security.capability";
            let others = |answer: &str| -> Vec<String> {
                answer.split(' ').skip(2).filter(|name| *name != NAME).map(str::to_owned).collect()
            };
            let is_it = match &case.step.call {
                Call::ListXattrs { .. } => others(case.ours) == others(case.theirs),
                Call::GetXattr { name, .. } => name == NAME && case.ours == "ENODATA",
                _ => false,
            };
            is_it
                && !is_error(case.theirs)
                && !case.ours.contains(NAME)
                && case.is_after(|call| matches!(call, Call::SetXattr { name, .. } if name == NAME))
                && case.is_after(|call| matches!(call, Call::Allocate { .. }))
        },
    },
    Known {
        reason: "through an idmapped mount the server can't know whose a chown(2) of nobody is",
        speaks_of: |case| {
            let differing = differing_words(case.ours, case.theirs);
            let at = case.ours.split(' ').zip(case.theirs.split(' ')).nth(1);
            matches!(case.step.call, Call::Stat { .. })
                && differing.iter().skip(1).all(|(what, _)| *what == "a")
                && at.is_some_and(|(ours, theirs)| keeps_set_id(case.before, ours, theirs))
        },
    },
];

/// Intended differences of states: a line of the comparison has all of these words.
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
const HOLES: &str =
    "the kernel looks at too few sectors to see that an unaligned range is a hole already, and changes the times";
const ZEROS: &str = "which of a file's zeros are a hole: the kernel writes those of a block in part, ubtrfs need not";

const DEFAULT_ACL: &str = "system.posix_acl_default";
const READ_ONLY: u64 = 2;

/// Returns whether a call may make a subvolume read-only.
fn makes_read_only(call: &Call) -> bool {
    matches!(call, Call::SetSubvolumeFlags { flags, .. } | Call::MakeSnapshot { flags, .. } if flags.0 & READ_ONLY != 0)
}

/// Returns whether a call may make a file immutable or append-only.
fn protects(call: &Call) -> bool {
    match call {
        Call::SetFlags { flags, .. } => flags.0 & 0x30 != 0,
        Call::SetFsx { flags, .. } | Call::SetFileAttributes { flags, .. } => flags.0 & 0x18 != 0,
        _ => false,
    }
}

/// Returns whether a call deletes a subvolume, possibly by rmdir(2). The names of subvolumes begin
/// with this letter.
fn destroys(call: &Call) -> bool {
    let is_subvolume = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with('s'));
    match call {
        Call::DestroySubvolume { .. } => true,
        Call::RemoveDirectory { path } => is_subvolume(path),
        _ => false,
    }
}

fn removes(call: &Call) -> bool {
    matches!(call, Call::Unlink { .. } | Call::RemoveDirectory { .. } | Call::Rename { .. })
}

/// Returns whether the items of a tree differ only by those of inodes that the kernel's tree lacks.
fn has_more_inodes(ours: &str, theirs: &str) -> bool {
    let inode = |item: &str| item.split('.').next().map(str::to_owned);
    let theirs: Vec<&str> = theirs.split(' ').collect();
    let is_of_theirs = |item: &&str| theirs.iter().any(|other| inode(other) == inode(item));
    let of_theirs: Vec<&str> = ours.split(' ').filter(is_of_theirs).collect();
    !is_error(ours) && of_theirs == theirs
}

/// Returns whether a call may leave an open file without a name.
fn leaves_unlinked(call: &Call) -> bool {
    match call {
        Call::Unlink { .. } | Call::Rename { .. } => true,
        Call::Open { flags, .. } | Call::OpenResolving { flags, .. } => flags.0 & libc::O_TMPFILE == libc::O_TMPFILE,
        _ => false,
    }
}

/// Returns whether a call punches a hole that reaches one sector further than a hole of the same
/// length would that begins where its first sector does. The kernel searches only the latter range
/// for data, and punches nothing if there is none.
fn punches_across_sectors(call: &Call) -> bool {
    const PUNCH: u64 = 3;
    const SECTOR: i64 = 4096;
    let Call::Allocate { mode: Hex(PUNCH), offset, length, .. } = *call else { return false };
    offset % SECTOR + length > length.saturating_add(SECTOR - 1) / SECTOR * SECTOR
}

/// Returns whether a call punches a hole within one sector, which may be the last one, behind the
/// end.
fn punches_in_a_sector(call: &Call) -> bool {
    const PUNCH: u64 = 3;
    const SECTOR: i64 = 4096;
    let Call::Allocate { mode: Hex(PUNCH), offset, length, .. } = *call else { return false };
    length > 0 && offset / SECTOR == offset.saturating_add(length - 1) / SECTOR
}

fn sets_flags(call: &Call) -> bool {
    matches!(call, Call::SetFlags { .. } | Call::SetFsx { .. } | Call::SetFileAttributes { .. })
}

/// Returns whether a call makes an open file use direct reads and writes.
fn opens_directly(call: &Call) -> bool {
    matches!(call, Call::Open { flags, .. } | Call::SetFileFlags { flags, .. } if flags.0 & libc::O_DIRECT != 0)
}

fn reads(call: &Call) -> bool {
    matches!(call, Call::Read { .. } | Call::ReadOn { .. })
}

/// Returns whether a call is one of the ioctls that FUSE passes on without a check.
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

/// Returns the entry for a difference.
pub(super) fn of(
    before: &[CallStep],
    step: &CallStep,
    (ours, theirs): (&str, &str),
    checks_opens: bool,
) -> Option<&'static Known> {
    let case = Case { before, step, ours, theirs, checks_opens };
    KNOWN.iter().find(|known| (known.speaks_of)(&case))
}

/// Makes the owners of placeholders equal: a snapshot has an empty directory in place of each
/// subvolume in its source. In the kernel these are several inodes with the same number, and each
/// belongs to the owner of its directory; with FUSE a number is one inode, which belongs to root.
pub(super) fn even_placeholders(ours: &mut Tree, theirs: &mut Tree) {
    const PLACEHOLDER: Option<u64> = Some(2);
    for (path, entry) in &mut theirs.entries {
        if let Some(our) = ours.entries.get_mut(path).filter(|our| our.kind == Kind::Dir && entry.ino == PLACEHOLDER) {
            (entry.uid, entry.gid) = (our.uid, our.gid);
        }
    }
}

/// Returns whether a line of a comparison of states describes an intended difference.
pub(super) fn is_known_state(steps: &[CallStep], line: &str) -> bool {
    let is_after = |is_it: fn(&Call) -> bool| steps.iter().any(|step| is_it(&step.call));
    KNOWN_STATES.iter().any(|(words, _)| words.iter().all(|word| line.contains(word)))
        || differs_in_set_id(steps, line)
        // See [`STORES`].
        || line.contains(": mtime: left ") && is_after(|call| matches!(call, Call::Store { .. }))
        || line.contains(": mtime: left ")
            && line.contains("right (1000000000, 0)")
            && (is_after(punches_across_sectors) || is_after(punches_in_a_sector))
        // See [`ACCESSES`].
        || line.contains(": atime: left (1000000000, 0)")
            && is_after(|call| matches!(call, Call::Store { .. } | Call::Load { .. } | Call::Advise { .. }))
        // Direct reads are accesses, as in most file systems, but not in the kernel's btrfs.
        || line.contains(": atime: left (1000000000, 0)") && is_after(opens_directly) && is_after(reads)
        // The server knows that a mount is read-only when it is asked; a read does not ask.
        || line.contains(": atime: left (1000000000, 0)") && steps.iter().any(|step| step.view == View::ReadOnly)
        // For truncate(2) to size zero, FUSE sends the same request as for O_TRUNC, which changes
        // the times.
        || line.contains(": mtime: left (1000000000, 0)")
            && is_after(|call| matches!(call, Call::Truncate { length: 0, .. }))
        // The whiteout of RENAME_WHITEOUT does not inherit a default ACL.
        || line.contains("left None, right Some([2, 0, 0, 0")
            && is_after(|call| matches!(call, Call::Rename { flags: Hex(flags), .. } if flags & 4 != 0))
        // The kernel sets the flag on files in which compression has not saved a block.
        || line.contains(": attribute flags: left 0, right 1024")
            && is_after(|call| matches!(call, Call::DefragmentRange { flags: Hex(flags), .. } if flags & 1 != 0))
        // Stores are refused at writeback: see [`KNOWN`] about open(2) and mmap(2).
        || line.contains(": content: left ") && is_after(protects) && is_after(|call| matches!(call, Call::Store { .. }))
}

/// Returns whether the modes of a line differ in set-id bits in an intended way.
fn differs_in_set_id(steps: &[CallStep], line: &str) -> bool {
    let Some((_, modes)) = line.split_once(": mode: left \"") else { return false };
    let Some((ours, theirs)) = modes.trim_end_matches('"').split_once("\", right \"") else { return false };
    lacks_set_id(steps, ours, theirs) || keeps_set_id(steps, ours, theirs)
}

const SET_ID: u32 = 0o6000;

/// Returns whether only our mode has set-id bits, after a chown(2) without a user or a group
/// through an idmapped mount, or on a file that was opened there: the server can't know the file's
/// owner as that mount shows it.
fn keeps_set_id(steps: &[CallStep], ours: &str, theirs: &str) -> bool {
    let (Ok(ours), Ok(theirs)) = (u32::from_str_radix(ours, 8), u32::from_str_radix(theirs, 8)) else { return false };
    let is_of_nobody = |step: &CallStep| matches!(step.call, Call::Chown { user: None, group: None, .. });
    ours & !SET_ID == theirs & !SET_ID
        && theirs & !ours == 0
        && steps.iter().any(is_of_nobody)
        && steps.iter().any(|step| step.view == View::Idmapped)
}

/// Returns whether our mode lacks set-id bits: see [`REMOVED_BY_FUSE`]. Before root writes a file
/// with capabilities, FUSE sends the request of a chown(2) without a user or a group, which clears
/// the bits. Also returns true if the modes differ in the set-group-ID bit of a file that its group
/// may not execute: the kernel clears the bit if the writer is not in the group, which FUSE does
/// not report.
fn lacks_set_id(steps: &[CallStep], ours: &str, theirs: &str) -> bool {
    const SET_GROUP: u32 = 0o2000;
    const GROUP_EXECUTES: u32 = 0o010;
    let (Ok(ours), Ok(theirs)) = (u32::from_str_radix(ours, 8), u32::from_str_radix(theirs, 8)) else { return false };
    let allocates = steps.iter().any(|step| matches!(step.call, Call::Allocate { .. }));
    let has_capability =
        steps.iter().any(|step| matches!(&step.call, Call::SetXattr { name, .. } if name == "security.capability"));
    let is_removed = (allocates || has_capability) && ours & !SET_ID == theirs & !SET_ID && ours & !theirs == 0;
    is_removed || (ours ^ theirs == SET_GROUP && ours & GROUP_EXECUTES == 0)
}
