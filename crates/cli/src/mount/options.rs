//! The options of `ubtrfs mount -o`.

use std::path::PathBuf;
use std::time::Duration;

use ubtrfs::{Compression, CompressionMode};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_fuse::Transport;
use ubtrfs_server::{CheckOpen, OwnershipOverride};

use super::ignored::{is_ignored, refusal, remark};
use super::near::nearest;
use crate::args::Window;
use crate::failure::{Failure, Result};
use crate::size::{MIN_MEMORY, parse_size};

/// The settings of the options; `None` where the command decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "mount options are independent switches")]
pub struct MountRequest {
    pub read_only: bool,
    pub allow_other: Option<bool>,
    pub no_atime: bool,
    /// Each access that the server hears of changes the time of access.
    pub strict_atime: bool,
    /// Flags of new files.
    pub new_files: NewFiles,
    /// Options of the kernel's security modules, as they were given.
    pub security: Vec<String>,
    /// A balance that an earlier mount left stays paused.
    pub skip_balance: bool,
    pub dev: bool,
    pub suid: bool,
    pub no_exec: bool,
    pub name: Option<String>,
    pub subvolume: Option<String>,
    pub subvolume_id: Option<u64>,
    pub commit: Option<Duration>,
    /// How long requests wait for a server of the device that is away.
    pub timeout: Option<Duration>,
    pub memory: Option<usize>,
    pub no_log_replay: bool,
    pub no_tree_log: bool,
    pub discard: bool,
    pub max_inline: Option<u64>,
    pub compression: Option<CompressionMode>,
    pub compression_threads: Option<usize>,
    pub threads: Option<usize>,
    pub transport: Transport,
    /// More devices of the volume.
    pub devices: Vec<PathBuf>,
    /// Devices of which nothing counts, by their numbers or paths. No option says so: in an fstab
    /// it would be done again and again.
    pub given_up: Vec<String>,
    /// Where on its device the volume begins.
    pub offset: u64,
    /// Bytes of it, if less than all that follows.
    pub size_limit: Option<u64>,
    /// The partition that it is in instead.
    pub partition: Option<u32>,
    /// The commit that is shown.
    pub generation: Option<u64>,
    pub rescue: Rescue,
    /// Devices may be missing.
    pub degraded: bool,
    pub ownership: OwnershipOverride,
    /// The mount is for one user, without permission checks.
    pub single_user: bool,
    /// Ordinary users may delete subvolumes that they could empty.
    pub user_subvol_rm_allowed: bool,
    pub check_open: CheckOpen,
}

/// What the options nodatacow and nodatasum give new regular files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewFiles {
    pub no_copy_on_write: bool,
    pub no_checksums: bool,
}

impl NewFiles {
    /// As flags of inodes.
    pub fn flags(self) -> u64 {
        let flags = [(self.no_copy_on_write, InodeFlags::NODATACOW), (self.no_checksums, InodeFlags::NODATASUM)];
        flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, flag)| flag).sum()
    }
}

/// How to mount a volume that is damaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "ways that are chosen one by one")]
pub struct Rescue {
    /// By any superblock or backup root that leads anywhere.
    pub use_backup_root: bool,
    /// What can't be read of trees is left out.
    pub ignore_bad_roots: bool,
    /// Data is shown whatever its checksums say.
    pub ignore_data_checksums: bool,
    /// Tree blocks are, too.
    pub ignore_metadata_checksums: bool,
    /// Flags of the superblock don't count: they never do for a volume that is only read.
    pub ignore_superblock_flags: bool,
}

impl Rescue {
    fn is_wanted(self) -> bool {
        self != Self::default()
    }
}

const MAX_THREADS: usize = 1024;
/// The longest time that a server may be away: a day.
const MAX_SECONDS: u64 = 24 * 60 * 60;
/// The values of the options for compression.
pub const COMPRESSIONS: &str = "it is zlib[:1..9], lzo, zstd[:-15..15], or no";

impl MountRequest {
    /// Reads lists of options.
    pub fn parse(lists: &[String]) -> Result<Self> {
        let mut request = Self::default();
        for option in each(lists) {
            request.apply(option)?;
        }
        if request.partition.is_some() && (request.offset > 0 || request.size_limit.is_some()) {
            return Err(Failure::new("the option partition= excludes offset= and sizelimit="));
        }
        if request.generation.is_some() && !request.read_only {
            return Err(Failure::new("an old commit is only mounted with ro: generation= needs it"));
        }
        if !request.read_only {
            // The kernel's btrfs goes on from an older root, over whatever came after it. Here the
            // newest is mounted, or nothing.
            request.rescue.use_backup_root = false;
        }
        if request.rescue.is_wanted() && !request.read_only {
            return Err(Failure::new("a damaged volume is only mounted with ro: rescue= needs it"));
        }
        if !request.checks_permissions() && request.allow_other == Some(true) {
            return Err(Failure::new(
                "with fakeroot and single_user nobody checks permissions: they exclude allow_other",
            ));
        }
        Ok(request)
    }

    /// The part of the devices that the volume is in.
    pub fn window(&self) -> Window {
        let Self { offset, size_limit: sizelimit, partition, .. } = *self;
        Window { partition, offset, sizelimit, of_mount: true }
    }

    /// Whether the kernel is to check permissions. Without that only names that it has not cached
    /// would cause a check of directories, so every process that reaches the mount may do
    /// everything.
    pub fn checks_permissions(&self) -> bool {
        !(self.ownership.fakeroot || self.single_user)
    }

    /// Whether an option means something, whatever its value.
    pub fn knows(option: &str) -> bool {
        let unknown = format!("unknown mount option '{option}'");
        match Self::default().apply(option) {
            Err(Failure::Sentence(sentence, _)) => !sentence.starts_with(&unknown),
            _ => true,
        }
    }

    fn apply(&mut self, option: &str) -> Result<()> {
        if let Some((name, value)) = option.split_once('=') {
            return self.set(option, name, value);
        }
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = Some(true),
            "noallow_other" => self.allow_other = Some(false),
            "skip_balance" => self.skip_balance = true,
            "noatime" => (self.no_atime, self.strict_atime) = (true, false),
            "atime" => self.no_atime = false,
            "strictatime" => (self.no_atime, self.strict_atime) = (false, true),
            "relatime" | "nostrictatime" => self.strict_atime = false,
            // As for the kernel, of these and compression the last one counts.
            "nodatacow" => {
                self.new_files = NewFiles { no_copy_on_write: true, no_checksums: true };
                self.compression = None;
            }
            "nodatasum" => self.new_files.no_checksums = true,
            "datacow" => self.new_files.no_copy_on_write = false,
            "datasum" => self.new_files = NewFiles::default(),
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.no_exec = false,
            "noexec" => self.no_exec = true,
            "nologreplay" | "norecovery" => self.no_log_replay = true,
            "usebackuproot" | "recovery" => self.rescue.use_backup_root = true,
            "degraded" => self.degraded = true,
            "fakeroot" => self.ownership.fakeroot = true,
            "single_user" => self.single_user = true,
            "user_subvol_rm_allowed" => self.user_subvol_rm_allowed = true,
            "nouser_subvol_rm_allowed" => self.user_subvol_rm_allowed = false,
            "treelog" => self.no_tree_log = false,
            "notreelog" => self.no_tree_log = true,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "compress" => self.compress(Some(usual_compression(false))),
            "compress-force" => self.compress(Some(usual_compression(true))),
            _ => return without_effect(option),
        }
        Ok(())
    }

    fn compress(&mut self, mode: Option<CompressionMode>) {
        self.compression = mode;
        if mode.is_some() {
            self.new_files = NewFiles::default();
        }
    }

    fn rescue(&mut self, option: &str, ways: &str) -> Result<()> {
        for way in ways.split(':') {
            match way {
                "usebackuproot" => self.rescue.use_backup_root = true,
                "nologreplay" => self.no_log_replay = true,
                "ignorebadroots" | "ibadroots" => self.rescue.ignore_bad_roots = true,
                "ignoredatacsums" | "idatacsums" => self.rescue.ignore_data_checksums = true,
                "ignoremetacsums" | "imetacsums" => self.rescue.ignore_metadata_checksums = true,
                "ignoresuperflags" | "isuperflags" => self.rescue.ignore_superblock_flags = true,
                "all" => {
                    self.no_log_replay = true;
                    self.rescue = Rescue {
                        use_backup_root: true,
                        ignore_bad_roots: true,
                        ignore_data_checksums: true,
                        ignore_metadata_checksums: true,
                        ignore_superblock_flags: true,
                    };
                }
                _ => {
                    return Err(Failure::new(format!(
                        "mount option '{option}': it is usebackuproot, nologreplay, ignorebadroots, ignoredatacsums, \
                         ignoremetacsums, ignoresuperflags, several of them with ':' between, or all"
                    )));
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, option: &str, name: &str, value: &str) -> Result<()> {
        let wrong = |why: String| Failure::new(format!("mount option '{option}': {why}"));
        let number = || value.parse::<u64>().map_err(|_| wrong(format!("'{value}' is not a number")));
        let size = || parse_size(value).map_err(wrong);
        match name {
            "fsname" => self.name = Some(value.into()),
            "subvol" => self.subvolume = Some(value.into()),
            "subvolid" => self.subvolume_id = Some(number()?),
            "commit" => match number()? {
                0 => return Err(wrong("the interval must be at least one second".into())),
                seconds => self.commit = Some(Duration::from_secs(seconds)),
            },
            "timeout" => match number()? {
                seconds @ 1..=MAX_SECONDS => self.timeout = Some(Duration::from_secs(seconds)),
                _ => return Err(wrong(format!("it is a number of seconds, from 1 to {MAX_SECONDS}"))),
            },
            "memory" => match size()? {
                bytes if bytes < MIN_MEMORY => return Err(wrong("at least 16M are needed".into())),
                bytes => self.memory = Some(usize::try_from(bytes).map_err(|_| wrong("too much".into()))?),
            },
            "compress" | "compress-force" => {
                let mode = CompressionMode::parse(value, name == "compress-force");
                self.compress(mode.ok_or_else(|| wrong(COMPRESSIONS.into()))?);
            }
            "thread_pool" => match usize::try_from(number()?) {
                Ok(threads @ 1..=MAX_THREADS) => self.compression_threads = Some(threads),
                _ => return Err(wrong(format!("from 1 to {MAX_THREADS} threads are possible"))),
            },
            "max_inline" => self.max_inline = Some(size()?),
            "threads" => match usize::try_from(number()?) {
                Ok(threads @ 1..=MAX_THREADS) => self.threads = Some(threads),
                _ => return Err(wrong(format!("from 1 to {MAX_THREADS} threads are possible"))),
            },
            "transport" => {
                self.transport = match value {
                    "auto" => Transport::Auto,
                    "ring" => Transport::Ring,
                    "dev" => Transport::Device,
                    _ => return Err(wrong("it is auto, ring or dev".into())),
                }
            }
            "check_open" => {
                self.check_open = match value {
                    "auto" => CheckOpen::Auto,
                    "always" => CheckOpen::Always,
                    "never" => CheckOpen::Never,
                    _ => return Err(wrong("it is auto, always or never".into())),
                }
            }
            "discard" if matches!(value, "async" | "sync") => self.discard = true,
            "rescue" => self.rescue(option, value)?,
            "device" => self.devices.push(value.into()),
            "partition" => match u32::try_from(number()?) {
                Ok(number @ 1..) => self.partition = Some(number),
                _ => return Err(wrong("partitions are counted from 1".into())),
            },
            "generation" => self.generation = Some(number()?),
            "offset" => self.offset = size()?,
            "sizelimit" => self.size_limit = Some(size()?).filter(|limit| *limit > 0),
            "context" | "fscontext" | "defcontext" | "rootcontext" => self.security.push(option.into()),
            "uid" => self.ownership.uid = Some(id(value).ok_or_else(|| wrong("it is a user's number".into()))?),
            "gid" => self.ownership.gid = Some(id(value).ok_or_else(|| wrong("it is a group's number".into()))?),
            "umask" => match u32::from_str_radix(value, 8) {
                Ok(umask @ 0..=0o777) => self.ownership.umask = umask,
                _ => return Err(wrong("it is an octal number up to 777".into())),
            },
            _ => return without_effect(option),
        }
        Ok(())
    }
}

/// What `compress` and `compress-force` mean without a value.
fn usual_compression(force: bool) -> CompressionMode {
    CompressionMode { algorithm: Compression::Zlib, level: 0, force }
}

/// An owner: `-1` means "unchanged" in system calls.
fn id(value: &str) -> Option<u32> {
    value.parse().ok().filter(|id| *id != u32::MAX)
}

/// An option that is ignored, or the reason why it can't be.
fn without_effect(option: &str) -> Result<()> {
    if is_ignored(option) || remark(option).is_some() {
        return Ok(());
    }
    if let Some(why) = refusal(option) {
        return Err(Failure::new(format!("mount option '{option}' is not possible: {why}")));
    }
    let hint = nearest(option).map(|near| format!("; did you mean '{near}'?"));
    Err(Failure::new(format!("unknown mount option '{option}'{}", hint.unwrap_or_default())))
}

/// The options in lists of them. A comma within quotation marks is none, as in
/// `context="u:r:t:s0:c1,c2"`.
pub fn each(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| split(list)).filter(|option| !option.is_empty())
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    list.split(move |letter| {
        is_quoted ^= letter == '"';
        letter == ',' && !is_quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> std::result::Result<MountRequest, String> {
        MountRequest::parse(&[text.to_owned()]).map_err(|failure| match failure {
            Failure::Sentence(sentence, _) => sentence,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn options_are_read() {
        assert_eq!(parse(""), Ok(MountRequest::default()));
        assert_eq!(parse("defaults,rw,,nofail,x-systemd.automount,loop"), Ok(MountRequest::default()));
        let request =
            parse("ro,noatime,dev,suid,noexec,subvol=/a/b,commit=7,memory=64M,max_inline=1k,threads=3").unwrap();
        assert_eq!(
            request,
            MountRequest {
                read_only: true,
                no_atime: true,
                dev: true,
                suid: true,
                no_exec: true,
                subvolume: Some("/a/b".into()),
                commit: Some(Duration::from_secs(7)),
                memory: Some(64 << 20),
                max_inline: Some(1024),
                threads: Some(3),
                ..MountRequest::default()
            }
        );
        let mode = |algorithm, level, force| Some(CompressionMode { algorithm, level, force });
        for (options, compression) in [
            ("compress", mode(Compression::Zlib, 0, false)),
            ("compress-force", mode(Compression::Zlib, 0, true)),
            ("compress=zstd:3", mode(Compression::Zstd, 3, false)),
            ("compress=lzo,compress-force=zstd:-7", mode(Compression::Zstd, -7, true)),
            ("compress=zstd,compress=no", None),
            ("compress-force=lzo,compress-force=none", None),
        ] {
            assert_eq!(parse(options).unwrap().compression, compression, "{options}");
        }
        assert_eq!(parse("thread_pool=3").unwrap().compression_threads, Some(3));
        assert_eq!(parse("transport=ring").unwrap().transport, Transport::Ring);
        assert_eq!(parse("transport=dev").unwrap().transport, Transport::Device);
        assert_eq!(parse("transport=auto"), Ok(MountRequest::default()));
        assert_eq!(parse("rescue=nologreplay"), parse("nologreplay"));
        assert_eq!(parse("discard=async"), parse("discard"));
        assert!(parse("discard").unwrap().discard && !parse("discard,nodiscard").unwrap().discard);
        let all = parse("ro,rescue=all").unwrap();
        assert_eq!(parse("usebackuproot"), parse("rw"));
        let ways = "usebackuproot:ibadroots:ignoredatacsums:imetacsums:ignoresuperflags";
        assert_eq!(parse(&format!("ro,rescue={ways},nologreplay")), Ok(all));
        let nodatacow = parse("compress=lzo,nodatacow").unwrap();
        assert!(nodatacow.new_files.no_checksums && nodatacow.compression.is_none());
        assert_eq!(parse("nodatacow,compress=lzo"), parse("compress=lzo"));
        assert_eq!(parse("nodatacow,datasum,nodatasum,datasum,strictatime,relatime"), Ok(MountRequest::default()));
        assert!(
            parse("noatime,strictatime").unwrap().strict_atime && !parse("strictatime,noatime").unwrap().strict_atime
        );
        let both = parse("subvolid=256,subvol=/@").unwrap();
        assert_eq!((both.subvolume_id, both.subvolume.as_deref()), (Some(256), Some("/@")));
        let labelled = parse("context=\"u:r:t:s0:c1,c2\",ro").unwrap();
        assert_eq!((labelled.read_only, &*labelled.security), (true, &["context=\"u:r:t:s0:c1,c2\"".to_owned()][..]));
        let request = parse("offset=1M,sizelimit=0,device=/a,device=/b,uid=7,gid=8,umask=027").unwrap();
        assert_eq!(parse("ro,generation=7").unwrap().generation, Some(7));
        assert_eq!(parse("partition=2").unwrap().partition, Some(2));
        assert_eq!((request.offset, request.size_limit, request.devices.len()), (1 << 20, None, 2));
        assert_eq!(request.ownership, OwnershipOverride { uid: Some(7), gid: Some(8), umask: 0o27, fakeroot: false });
        assert_eq!(parse("ro,rw,dev,nodev,suid,nosuid,noexec,exec,noatime,atime"), Ok(MountRequest::default()));
        assert_eq!(parse("allow_other").unwrap().allow_other, Some(true));
        assert_eq!(parse("check_open=always").unwrap().check_open, CheckOpen::Always);
        assert!(parse("check_open=now").is_err());
        assert!(parse("user_subvol_rm_allowed").unwrap().user_subvol_rm_allowed);
        assert_eq!(parse("user_subvol_rm_allowed,nouser_subvol_rm_allowed"), Ok(MountRequest::default()));
        assert_eq!(parse("subvolid=257,fsname=x=y").unwrap().name.as_deref(), Some("x=y"));
    }

    #[test]
    fn unknown_workloads_are_named() {
        for bad in ["foo", "foo=1", "ro=1"] {
            assert_eq!(parse(&format!("ro,{bad}")), Err(format!("unknown mount option '{bad}'")));
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in [
            "commit=0",
            "transport=x",
            "commit=x",
            "memory=1k",
            "memory=lots",
            "threads=0",
            "threads=99999",
            "subvolid=a",
            "uid=4294967295",
            "gid=x",
            "umask=1000",
            "umask=9",
            "offset=x",
            "generation=x",
            "partition=0",
            "partition=4294967296",
            "rescue=nothing",
            "compress=zstd:x",
            "compress=lz4",
            "compress-force=",
            "thread_pool=0",
            "errors=panic",
        ] {
            assert!(parse(bad).unwrap_err().contains(bad), "{bad}");
        }
        for bad in [
            "rescue=all",
            "generation=7",
            "rescue=usebackuproot:ibadroots",
            "fakeroot,allow_other",
            "allow_other,single_user",
            "partition=1,offset=4k",
            "sizelimit=1M,partition=1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
