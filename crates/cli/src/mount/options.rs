//! Parses lists of mount options, as `-o` takes them.

use super::near::nearest;
use super::option::Wrong;
use super::option_table::find;
use super::request::MountRequest;
use crate::args::Window;
use crate::failure::{Failure, Result};

impl MountRequest {
    /// Reads lists of options.
    pub fn parse(lists: &[String]) -> Result<Self> {
        let mut request = Self::default();
        for option in each(lists) {
            apply(option, &mut request)?;
        }
        if request.partition.is_some() && (request.offset > 0 || request.size_limit.is_some()) {
            return Err(Failure::new("the option partition= excludes offset= and sizelimit="));
        }
        if request.generation.is_some() && !request.read_only {
            return Err(Failure::new("an old commit is only mounted with ro: generation= needs it"));
        }
        if !request.read_only {
            // The kernel's btrfs continues from an older root, and overwrites what came after it.
            // Here the newest root is mounted, or none.
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

    /// Returns the part of the devices that the volume is in.
    pub fn window(&self) -> Window {
        let Self { offset, size_limit: sizelimit, partition, .. } = *self;
        Window { partition, offset, sizelimit, of_mount: true }
    }
}

/// Applies an option to a request.
pub fn apply(option: &str, request: &mut MountRequest) -> Result<()> {
    let Some(given) = find(option) else {
        let hint = nearest(option).map(|near| format!("; did you mean '{near}'?"));
        return Err(Failure::new(format!("unknown mount option '{option}'{}", hint.unwrap_or_default())));
    };
    given.apply(request).map_err(|wrong| {
        Failure::new(match wrong {
            Wrong::Argument(why) => format!("mount option '{option}': {why}"),
            Wrong::Option(why) => format!("mount option '{option}' is not possible: {why}"),
        })
    })
}

/// Returns the options in these lists. A comma within quotation marks does not separate options, as
/// in `context="u:r:t:s0:c1,c2"`.
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
    use std::time::Duration;

    use ubtrfs::{Compression, CompressionMode};
    use ubtrfs_fuse::Transport;
    use ubtrfs_server::{CheckOpen, OwnershipOverride};

    use super::*;

    fn parse(text: &str) -> std::result::Result<MountRequest, String> {
        MountRequest::parse(&[text.to_owned()]).map_err(|failure| match failure {
            Failure::Sentence(sentence, _) => sentence,
            other @ Failure::Said(_) => panic!("{other:?}"),
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
    fn unknown_options_are_named() {
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
