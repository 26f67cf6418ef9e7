//! The table of mount options. It has for each option its names and argument, who may give it, its
//! meaning in a remount and in a further mount, its effect on a
//! [`MountRequest`](super::request::MountRequest), and the description for `--help`. Parsing,
//! remounts, further mounts, advice, completions and help use only this table. The manual lists the
//! same options, which a test compares.

use std::path::PathBuf;
use std::time::Duration;

use ubtrfs::{Compression, CompressionMode};
use ubtrfs_fuse::Transport;
use ubtrfs_fuse::mount::MountFlags;
use ubtrfs_server::CheckOpen;

use super::option::Argument::{self, Number, Octal, Remarked, Size, Text};
use super::option::Origin::{self, Btrfs, Fstab, Ours, Vfs};
use super::option::{Given, MountOption, Remount, Scope, Word};
use super::request::{NewFiles, Rescue};
use crate::size::MIN_MEMORY;

const MAX_THREADS: u64 = 1024;
/// The longest time that a server may be away: a day.
const MAX_TIMEOUT_SECONDS: u64 = 24 * 60 * 60;

/// Returns the row of an option that has no effect.
const fn ignored(names: &'static [&'static str], origin: Origin, help: &'static str) -> MountOption {
    ignored_with(names, Argument::None(|_, _| {}), origin, help)
}

/// Returns the row of an option with this argument that has no effect.
const fn ignored_with(
    names: &'static [&'static str],
    argument: Argument,
    origin: Origin,
    help: &'static str,
) -> MountOption {
    let option = MountOption::new(names, argument, origin, help);
    MountOption { is_ignored: true, remount: Remount::Nothing, scope: Scope::Mount, ..option }
}

const fn refused(names: &'static [&'static str], origin: Origin, why: &'static str) -> MountOption {
    MountOption::new(names, Argument::Refused(why), origin, why)
}

const ANY: Argument = Argument::Text("TEXT", |_, _, _| {});
const SECURITY: Argument = Argument::Text("LABEL", |request, option, _| request.security.push(option.into()));

const fn row(names: &'static [&'static str], origin: Origin, argument: Argument, help: &'static str) -> MountOption {
    MountOption::new(names, argument, origin, help)
}

/// All options. The first row counts that has an option's name and accepts its argument, or the
/// lack of one.
pub static TABLE: &[MountOption] = &[
    row(&["ro"], Vfs, Argument::None(|request, on| request.read_only = on), "read-only: nothing is written")
        .opposed_by(&["rw"])
        .at_remount(Remount::Flag(MountFlags::RDONLY))
        .about(Scope::Mount),
    row(
        &["subvol"],
        Btrfs,
        Text("PATH", |request, _, path| request.subvolume = Some(path.into())),
        "the subvolume to mount, by its path from the top level",
    )
    .about(Scope::Mount),
    row(
        &["subvolid"],
        Btrfs,
        Number("ID", 0, u64::MAX, "", |request, id| request.subvolume_id = Some(id)),
        "the subvolume to mount, by its number",
    )
    .about(Scope::Mount),
    row(
        &["commit"],
        Btrfs,
        Number("SECONDS", 1, u64::MAX, "the interval must be at least one second", |request, seconds| {
            request.commit = Some(Duration::from_secs(seconds));
        }),
        "longest time until a change becomes durable without fsync(2) or sync(2) (default: 5)",
    ),
    row(
        &["timeout"],
        Ours,
        Number("SECONDS", 1, MAX_TIMEOUT_SECONDS, "it is a number of seconds, from 1 to 86400", |request, seconds| {
            request.timeout = Some(Duration::from_secs(seconds));
        }),
        "how long operations wait for the server of an NBD export that is away (default: 120)",
    ),
    row(
        &["memory"],
        Ours,
        Size(MIN_MEMORY, "at least 16M are needed", |request, bytes| {
            request.memory = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
        }),
        "memory for caches and for changes that are not yet committed (default: 256M)",
    ),
    row(
        &["nologreplay", "norecovery"],
        Btrfs,
        Argument::None(|request, on| request.no_log_replay = on),
        "with ro: ignore the log, and show the last commit",
    ),
    row(&["degraded"], Btrfs, Argument::None(|request, on| request.degraded = on), "mount without missing devices"),
    row(
        &["generation"],
        Ours,
        Number("NUMBER", 0, u64::MAX, "", |request, number| request.generation = Some(number)),
        "with ro: show the volume as of this commit",
    ),
    row(
        &["rescue"],
        Btrfs,
        Argument::Words(
            &RESCUE,
            "it is usebackuproot, nologreplay, ignorebadroots, ignoredatacsums, ignoremetacsums, ignoresuperflags, \
             several of them with ':' between, or all",
        ),
        "with ro: how to mount a damaged volume",
    ),
    row(
        &["usebackuproot", "recovery"],
        Btrfs,
        Argument::None(|request, on| request.rescue.use_backup_root = on),
        "the same as rescue=usebackuproot",
    ),
    row(
        &["partition"],
        Ours,
        Number("NUMBER", 1, u32::MAX as u64, "partitions have numbers from 1 to 4294967295", |request, number| {
            request.partition = u32::try_from(number).ok();
        }),
        "the volume is in the partition with this number of its device or image",
    )
    .about(Scope::Part),
    row(
        &["offset"],
        Fstab,
        Size(0, "", |request, bytes| request.offset = bytes),
        "the volume begins this many bytes into its device or image, a multiple of 4096",
    )
    .about(Scope::Part),
    row(
        &["sizelimit"],
        Fstab,
        Size(0, "", |request, bytes| request.size_limit = Some(bytes).filter(|limit| *limit > 0)),
        "the volume takes at most this many bytes of its device or image",
    )
    .about(Scope::Part),
    row(
        &["device"],
        Btrfs,
        Text("PATH", |request, _, path| request.devices.push(PathBuf::from(path))),
        "another device of the volume; may be given several times",
    )
    .about(Scope::Mount),
    row(
        &["uid"],
        Ours,
        // In system calls -1 means "unchanged".
        Number("ID", 0, u32::MAX as u64 - 1, "it is a user's number", |request, id| {
            request.ownership.uid = u32::try_from(id).ok();
        }),
        "show all files as owned by this user",
    ),
    row(
        &["gid"],
        Ours,
        Number("ID", 0, u32::MAX as u64 - 1, "it is a group's number", |request, id| {
            request.ownership.gid = u32::try_from(id).ok();
        }),
        "show all files as owned by this group",
    ),
    row(
        &["umask"],
        Ours,
        Octal(0o777, "it is an octal number up to 777", |request, umask| request.ownership.umask = umask),
        "show all files without these permissions",
    ),
    row(
        &["fakeroot"],
        Ours,
        Argument::None(|request, on| request.ownership.fakeroot = on),
        "the mounting user acts as root on the volume",
    ),
    row(
        &["single_user"],
        Ours,
        Argument::None(|request, on| request.single_user = on),
        "only the mounting user may use the mount: permissions are not checked",
    ),
    row(
        &["check_open"],
        Ours,
        Argument::Word(
            &[
                Word("auto", &[], |request| request.check_open = CheckOpen::Auto),
                Word("always", &[], |request| request.check_open = CheckOpen::Always),
                Word("never", &[], |request| request.check_open = CheckOpen::Never),
            ],
            "it is auto, always or never",
        ),
        "whether the kernel asks the server about each open(2) of a file (default: auto)",
    ),
    row(
        &["user_subvol_rm_allowed"],
        Btrfs,
        Argument::None(|request, on| request.user_subvol_rm_allowed = on),
        "ordinary users may delete subvolumes",
    )
    .opposed_by(&["nouser_subvol_rm_allowed"]),
    row(
        &["notreelog"],
        Btrfs,
        Argument::None(|request, on| request.no_tree_log = on),
        "make each fsync a commit instead of writing it to the log",
    )
    .opposed_by(&["treelog"]),
    row(
        &["max_inline"],
        Btrfs,
        Size(0, "", |request, bytes| request.max_inline = Some(bytes)),
        "largest size of files that are kept within metadata",
    ),
    row(&["compress"], Btrfs, Argument::Compression(false), "compress data as it is written")
        .or_bare(|request| request.compress(Some(DEFAULT_COMPRESSION)))
        .at_remount(Remount::Compression),
    row(
        &["compress-force"],
        Btrfs,
        Argument::Compression(true),
        "compress data as it is written, also if it looks like noise",
    )
    .or_bare(|request| request.compress(Some(CompressionMode { force: true, ..DEFAULT_COMPRESSION })))
    .at_remount(Remount::Compression),
    row(
        &["thread_pool"],
        Btrfs,
        Number("N", 1, MAX_THREADS, "from 1 to 1024 threads are possible", |request, threads| {
            request.compression_threads = usize::try_from(threads).ok();
        }),
        "number of threads that compress data of one file at a time (default: that of CPUs)",
    )
    .at_remount(Remount::Threads),
    // As with the kernel, the last one of these and of compression counts.
    row(
        &["nodatacow"],
        Btrfs,
        Argument::None(|request, on| {
            if on {
                request.new_files = NewFiles { no_copy_on_write: true, no_checksums: true };
                request.compression = None;
            } else {
                request.new_files.no_copy_on_write = false;
            }
        }),
        "new regular files are overwritten in place and have no checksums",
    )
    .opposed_by(&["datacow"])
    .at_remount(Remount::NewFiles),
    row(
        &["nodatasum"],
        Btrfs,
        Argument::None(|request, on| {
            if on {
                request.new_files.no_checksums = true;
            } else {
                request.new_files = NewFiles::default();
            }
        }),
        "new regular files have no checksums",
    )
    .opposed_by(&["datasum"])
    .at_remount(Remount::NewFiles),
    row(
        &["discard"],
        Btrfs,
        Argument::Word(
            &[
                Word("async", &[], |request| request.discard = true),
                Word("sync", &[], |request| request.discard = true),
            ],
            "it is discard, discard=sync, discard=async or nodiscard",
        ),
        "discard the space that a commit has freed, some seconds after the commit",
    )
    .or_bare(|request| request.discard = true),
    row(
        &["nodiscard"],
        Btrfs,
        Argument::None(|request, _| request.discard = false),
        "discard nothing, which is the default",
    )
    .at_remount(Remount::Unless(&["discard", "discard=async", "discard=sync"])),
    row(
        &["threads"],
        Ours,
        Number("N", 1, MAX_THREADS, "from 1 to 1024 threads are possible", |request, threads| {
            request.threads = usize::try_from(threads).ok();
        }),
        "number of threads that serve requests",
    ),
    row(
        &["transport"],
        Ours,
        Argument::Word(
            &[
                Word("auto", &[], |request| request.transport = Transport::Auto),
                Word("ring", &[], |request| request.transport = Transport::Ring),
                Word("dev", &[], |request| request.transport = Transport::Device),
            ],
            "it is auto, ring or dev",
        ),
        "how the kernel's requests arrive (default: auto)",
    ),
    row(
        &["noatime"],
        Vfs,
        Argument::None(|request, on| {
            request.no_atime = on;
            request.strict_atime &= !on;
        }),
        "reading does not change the time of access",
    )
    .about(Scope::Mount),
    row(&["atime"], Vfs, Argument::None(|request, _| request.no_atime = false), "the opposite of noatime")
        .at_remount(Remount::Unless(&["noatime"]))
        .about(Scope::Mount),
    row(
        &["strictatime"],
        Vfs,
        Argument::None(|request, on| {
            request.strict_atime = on;
            request.no_atime &= !on;
        }),
        "each read(2) changes the time of access",
    )
    .opposed_by(&["nostrictatime"]),
    row(
        &["relatime"],
        Vfs,
        Argument::None(|request, _| request.strict_atime = false),
        "the first access after a change changes the time of access, which is the default",
    )
    .at_remount(Remount::Unless(&["noatime", "strictatime"]))
    .about(Scope::Mount),
    row(
        &["nodev"],
        Vfs,
        Argument::None(|request, on| request.dev = !on),
        "device nodes do not work, which is the default",
    )
    .at_remount(Remount::Flag(MountFlags::NODEV))
    .about(Scope::Mount),
    row(&["dev"], Vfs, Argument::None(|request, on| request.dev = on), "device nodes work")
        .for_root()
        .at_remount(Remount::Unset(MountFlags::NODEV))
        .about(Scope::Mount),
    row(
        &["nosuid"],
        Vfs,
        Argument::None(|request, on| request.suid = !on),
        "set-id programs do not work, which is the default",
    )
    .at_remount(Remount::Flag(MountFlags::NOSUID))
    .about(Scope::Mount),
    row(&["suid"], Vfs, Argument::None(|request, on| request.suid = on), "set-id programs work")
        .for_root()
        .at_remount(Remount::Unset(MountFlags::NOSUID))
        .about(Scope::Mount),
    row(&["noexec"], Vfs, Argument::None(|request, on| request.no_exec = on), "no program can be run")
        .opposed_by(&["exec"])
        .at_remount(Remount::Flag(MountFlags::NOEXEC))
        .about(Scope::Mount),
    row(
        &["skip_balance"],
        Btrfs,
        Argument::None(|request, on| request.skip_balance = on),
        "a balance that was interrupted stays paused",
    ),
    row(
        &["allow_other"],
        Vfs,
        Argument::None(|request, on| request.allow_other = Some(on)),
        "other users may use the mount, which is the default if root mounts",
    )
    .opposed_by(&["noallow_other"]),
    row(
        &["fsname"],
        Vfs,
        Text("NAME", |request, _, name| request.name = Some(name.into())),
        "the source that the mount table shows, except for mounts of the type fuseblk",
    ),
    row(&["context"], Vfs, SECURITY, "the SELinux label of all files"),
    row(&["fscontext"], Vfs, SECURITY, "the SELinux label of the file system"),
    row(&["defcontext"], Vfs, SECURITY, "the SELinux label of files without one"),
    row(&["rootcontext"], Vfs, SECURITY, "the SELinux label of the root directory"),
    row(&["remount"], Fstab, Argument::None(|_, _| {}), "change a mount instead of making one")
        .for_root()
        .at_remount(Remount::Nothing),
    // Options that are accepted, and have no effect.
    ignored(
        &[
            "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "group", "nofail", "_netdev",
            "loud", "silent",
        ],
        Fstab,
        "mount(8) and systemd deal with it",
    ),
    ignored_with(&["comment", "user", "uhelper"], ANY, Fstab, "mount(8) and systemd deal with it"),
    ignored_with(&["x-*", "X-*"], Remarked(""), Fstab, "mount(8) and systemd deal with it"),
    ignored(&["async", "nomand", "iversion", "noiversion"], Vfs, "as always"),
    ignored(
        &["diratime", "nodiratime", "norelatime", "lazytime", "nolazytime"],
        Vfs,
        "times of access are as with relatime",
    ),
    ignored(&["default_permissions"], Vfs, "see single_user"),
    ignored(&["seclabel"], Vfs, "the mount table shows it where SELinux is on"),
    ignored(
        &[
            "autodefrag",
            "noautodefrag",
            "enospc_debug",
            "noenospc_debug",
            "noinode_cache",
            "rescan_uuid_tree",
            "ssd",
            "nossd",
            "ssd_spread",
            "nossd_spread",
        ],
        Btrfs,
        "a hint to the kernel",
    ),
    ignored_with(&["metadata_ratio", "alloc_start"], ANY, Btrfs, "a hint to the kernel"),
    ignored(&["acl"], Btrfs, "ACLs always count"),
    ignored(&["barrier", "nobarrier"], Btrfs, "barriers stay"),
    ignored(&["flushoncommit", "noflushoncommit"], Btrfs, "data is always part of a commit"),
    ignored_with(&["space_cache"], Argument::Word(&[Word("v2", &[], |_| {})], FREE_SPACE_TREE), Btrfs, FREE_SPACE_TREE)
        .or_bare(|_| {}),
    ignored_with(
        &["errors"],
        Argument::Word(
            &[Word("remount-ro", &[], |_| {})],
            "after an error the mount turns read-only: only errors=remount-ro is possible",
        ),
        Vfs,
        "after an error the mount turns read-only",
    ),
    ignored_with(
        &["fatal_errors"],
        Argument::Word(&[Word("bug", &[], |_| {})], "after an error the mount turns read-only"),
        Btrfs,
        "after an error the mount turns read-only",
    ),
    // Options in a line of fstab that is shared with the kernel's driver: the volume is mounted all
    // the same.
    row(&["loop"], Fstab, Remarked("images are mounted without it"), "images are mounted without it"),
    // Options whose effect is not implemented here.
    refused(&["noacl"], Btrfs, "ACLs always count"),
    refused(&["sync", "dirsync"], Vfs, "use commit= and fsync(2)"),
    refused(&["mand"], Vfs, "there are no mandatory locks"),
    refused(&["nosymfollow"], Vfs, "'mount -i -o remount,bind,nosymfollow' gives it to a mount"),
    refused(&["nospace_cache"], Btrfs, FREE_SPACE_TREE),
    refused(&["clear_cache"], Btrfs, "'ubtrfs check --repair' rebuilds the free-space tree"),
    refused(&["inode_cache"], Btrfs, "no kernel knows that any more"),
    refused(&["check_int", "check_int_data"], Btrfs, "use 'ubtrfs check'"),
    refused(&["bind", "rbind"], Fstab, "mount(8) does that without a helper"),
];

const FREE_SPACE_TREE: &str = "a free-space tree is kept if the volume has one";

/// The meaning of `compress` without a value.
const DEFAULT_COMPRESSION: CompressionMode = CompressionMode { algorithm: Compression::Zlib, level: 0, force: false };

const RESCUE: [Word; 7] = [
    Word("usebackuproot", &[], |request| request.rescue.use_backup_root = true),
    Word("nologreplay", &[], |request| request.no_log_replay = true),
    Word("ignorebadroots", &["ibadroots"], |request| request.rescue.ignore_bad_roots = true),
    Word("ignoredatacsums", &["idatacsums"], |request| request.rescue.ignore_data_checksums = true),
    Word("ignoremetacsums", &["imetacsums"], |request| request.rescue.ignore_metadata_checksums = true),
    Word("ignoresuperflags", &["isuperflags"], |request| request.rescue.ignore_superblock_flags = true),
    Word("all", &[], |request| {
        request.no_log_replay = true;
        request.rescue = Rescue {
            use_backup_root: true,
            ignore_bad_roots: true,
            ignore_data_checksums: true,
            ignore_metadata_checksums: true,
            ignore_superblock_flags: true,
        };
    }),
];

/// Returns the row of an option. `None` if no option has this name, or it has an argument that the
/// option does not take, or lacks one that it requires.
pub fn find(option: &str) -> Option<Given<'_>> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    TABLE.iter().find_map(|row| {
        let is_listed = |names: &[&str]| names.iter().any(|listed| is_name(listed, name));
        let is_opposite = is_listed(row.opposites);
        ((is_opposite || is_listed(row.names)) && row.takes(value)).then_some(Given { row, option, value, is_opposite })
    })
}

/// Whether a name matches one of the table, in which a final `*` stands for any rest.
fn is_name(listed: &str, name: &str) -> bool {
    listed.strip_suffix('*').map_or(listed == name, |start| name.starts_with(start))
}
