//! The options of `ubtrfs mount -o`.

use std::time::Duration;

use ubtrfs_fuse::Transport;

use crate::failure::{Failure, Result};
use crate::size::parse_size;

/// What the options ask for; `None` where they leave it to the command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "mount options are independent switches")]
pub struct MountRequest {
    pub read_only: bool,
    pub allow_other: Option<bool>,
    pub no_atime: bool,
    pub dev: bool,
    pub suid: bool,
    pub no_exec: bool,
    pub name: Option<String>,
    pub subvolume: Option<String>,
    pub subvolume_id: Option<u64>,
    pub commit: Option<Duration>,
    pub memory: Option<usize>,
    pub no_log_replay: bool,
    pub no_tree_log: bool,
    pub discard: bool,
    pub max_inline: Option<u64>,
    pub threads: Option<usize>,
    pub transport: Transport,
}

/// Options that mount(8) and fstab(5) use, which mean nothing here.
const WITHOUT_MEANING: [&str; 14] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "async",
    "relatime",
    "default_permissions",
];

/// The least memory that caches and dirty data get.
const LEAST_MEMORY: u64 = 16 << 20;
const MOST_THREADS: usize = 1024;

impl MountRequest {
    /// Reads lists of options.
    pub fn parse(lists: &[String]) -> Result<Self> {
        let mut request = Self::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            request.apply(option)?;
        }
        if request.subvolume.is_some() && request.subvolume_id.is_some() {
            return Err(Failure::new("the options subvol= and subvolid= exclude each other"));
        }
        Ok(request)
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
            "noatime" => self.no_atime = true,
            "atime" => self.no_atime = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.no_exec = false,
            "noexec" => self.no_exec = true,
            "nologreplay" => self.no_log_replay = true,
            "treelog" => self.no_tree_log = false,
            "notreelog" => self.no_tree_log = true,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            _ if WITHOUT_MEANING.contains(&option) || option.starts_with("x-") => {}
            _ => return Err(Failure::new(format!("unknown mount option '{option}'"))),
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
            "memory" => match size()? {
                bytes if bytes < LEAST_MEMORY => return Err(wrong("at least 16M are needed".into())),
                bytes => self.memory = Some(usize::try_from(bytes).map_err(|_| wrong("too much".into()))?),
            },
            "max_inline" => self.max_inline = Some(size()?),
            "threads" => match usize::try_from(number()?) {
                Ok(threads @ 1..=MOST_THREADS) => self.threads = Some(threads),
                _ => return Err(wrong(format!("from 1 to {MOST_THREADS} threads are possible"))),
            },
            "transport" => {
                self.transport = match value {
                    "auto" => Transport::Auto,
                    "ring" => Transport::Ring,
                    "dev" => Transport::Device,
                    _ => return Err(wrong("it is auto, ring or dev".into())),
                }
            }
            "rescue" if value == "nologreplay" => self.no_log_replay = true,
            "discard" if value == "async" => self.discard = true,
            "comment" => {}
            _ if name.starts_with("x-") => {}
            _ => return Err(Failure::new(format!("unknown mount option '{option}'"))),
        }
        Ok(())
    }
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
        assert_eq!(parse("defaults,rw,,nofail,x-systemd.automount"), Ok(MountRequest::default()));
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
        assert_eq!(parse("transport=ring").unwrap().transport, Transport::Ring);
        assert_eq!(parse("transport=dev").unwrap().transport, Transport::Device);
        assert_eq!(parse("transport=auto"), Ok(MountRequest::default()));
        assert_eq!(parse("rescue=nologreplay"), parse("nologreplay"));
        assert_eq!(parse("discard=async"), parse("discard"));
        assert!(parse("discard").unwrap().discard && !parse("discard,nodiscard").unwrap().discard);
        assert_eq!(parse("ro,rw,dev,nodev,suid,nosuid,noexec,exec,noatime,atime"), Ok(MountRequest::default()));
        assert_eq!(parse("allow_other").unwrap().allow_other, Some(true));
        assert_eq!(parse("subvolid=257,fsname=x=y").unwrap().name.as_deref(), Some("x=y"));
    }

    #[test]
    fn what_is_unknown_is_named() {
        for bad in ["compress", "foo", "foo=1", "rescue=all", "ro=1"] {
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
        ] {
            assert!(parse(bad).unwrap_err().contains(bad), "{bad}");
        }
        assert!(parse("subvol=a,subvolid=5").is_err());
    }
}
