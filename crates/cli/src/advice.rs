//! Says what to do about an error of the libraries, which know no commands and no options. The
//! advice is the end of a sentence.

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::sync::Arc;

use ubtrfs::Refusal;
use ubtrfs_fuse::NoRing;
use ubtrfs_image::Obstacle;
use ubtrfs_volume::{PartitionFault, User};

/// Returns what to do about an error, by the kind of the error or of one of its causes.
pub fn about(error: &(dyn Error + 'static)) -> Option<Cow<'static, str>> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let advice = about_one(error);
        if advice.is_some() {
            return advice;
        }
        cause = error.source();
    }
    None
}

/// Returns the advice for this error alone, or for the error that it only wraps: a wrapped error is
/// not among the causes ([`Error::source`]).
fn about_one(error: &(dyn Error + 'static)) -> Option<Cow<'static, str>> {
    if let Some(error) = error.downcast_ref() {
        return about_engine(error);
    }
    if let Some(error) = error.downcast_ref::<Box<ubtrfs::Error>>() {
        return about_engine(error);
    }
    if let Some(error) = error.downcast_ref::<Arc<ubtrfs::Error>>() {
        return about_engine(error);
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return error.get_ref().and_then(|error| about_one(error));
    }
    if let Some(error) = error.downcast_ref() {
        return about_volume(error);
    }
    match error.downcast_ref() {
        Some(ubtrfs_image::Error::Volume(error)) => return about_engine(error),
        Some(ubtrfs_image::Error::Blocked { obstacle, .. }) => return about_obstacle(obstacle),
        _ => {}
    }
    if let Some(PartitionFault::Misaligned { .. }) = error.downcast_ref() {
        return Some("'losetup -P' makes a device of it".into());
    }
    if let Some(NoRing::Switch { file }) = error.downcast_ref() {
        return Some(format!("as root run `echo Y > {file}`, then mount again").into());
    }
    None
}

fn about_engine(error: &ubtrfs::Error) -> Option<Cow<'static, str>> {
    match error {
        ubtrfs::Error::Refused(refusal) => about_refusal(refusal).map(Into::into),
        ubtrfs::Error::Volume(error) => about_volume(error),
        ubtrfs::Error::Shared(error) => about_engine(error),
        _ => None,
    }
}

fn about_refusal(refusal: &Refusal) -> Option<&'static str> {
    Some(match refusal {
        Refusal::ReadOnlyFeatures(_) | Refusal::ReadOnlyState(_) => "mount it with -o ro",
        Refusal::BadLog(_) => {
            "mount it with -o ro,nologreplay (or give ls, stat and cat --nologreplay) to see its last commit, or give \
             the log up with 'ubtrfs rescue zero-log'"
        }
        Refusal::LogOfUnknownFeatures(_) => {
            "mount it with -o ro,nologreplay (or give ls, stat and cat --nologreplay) to see its last commit"
        }
        Refusal::LogPassedOver => "nologreplay takes ro beside it",
        Refusal::RescueOfWriters => "rescue= takes ro beside it",
        Refusal::RootIsNoDirectory(_) => {
            "'ubtrfs check' shows the damage, 'ubtrfs restore' copies what can be found, and -o subvolid=ID mounts \
             another subvolume"
        }
        _ => return None,
    })
}

fn about_volume(error: &ubtrfs_volume::Error) -> Option<Cow<'static, str>> {
    match error {
        ubtrfs_volume::Error::OthersLag { behind, .. } => {
            Some(format!("to go back, mount device {behind} without it first, with -o degraded").into())
        }
        ubtrfs_volume::Error::Attached { by: User::Unknown(_), .. } => {
            let is_root = rustix::process::geteuid().is_root();
            Some(if is_root { "detach it (losetup -d)" } else { "detach it (losetup -d), or let root do this" }.into())
        }
        ubtrfs_volume::Error::Attached { by: User::Hidden(by), .. } => Some(
            format!(
                "let root detach that (losetup -d {}), or do this; or work on a copy of another size (truncate -s +1M \
                 COPY)",
                by.display()
            )
            .into(),
        ),
        _ => None,
    }
}

fn about_obstacle(obstacle: &Obstacle) -> Option<Cow<'static, str>> {
    Some(match obstacle {
        Obstacle::Damage => "'ubtrfs check' shows the damage".into(),
        Obstacle::CopyOfDirectory => "-r copies those".into(),
        Obstacle::RemovalOfDirectory => "-r removes those".into(),
        Obstacle::DefaultSubvolume => "'ubtrfs subvolume set-default' takes another default subvolume".into(),
        Obstacle::OtherSubvolume => "copy it there with cp -a, and remove it".into(),
        Obstacle::Unshareable => "--reflink=auto copies then".into(),
        Obstacle::Platform { there } => format!("--platform chooses one of {}", there.join(", ")).into(),
        Obstacle::DockerArchive => "'skopeo copy docker-archive:FILE oci:DIR' makes one of it".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::DeviceId;

    use super::*;
    use crate::failure::Failure;

    #[test]
    fn advice_follows_what_an_error_says_wherever_it_is_in_the_chain() {
        let refused = || ubtrfs::Error::Refused(Refusal::ReadOnlyState("odd".into()));
        let whole = "odd; ubtrfs can only read such a volume; mount it with -o ro";
        assert_eq!(Failure::of(&refused()).sentence(), whole);
        assert_eq!(Failure::about("x", &refused()).sentence(), format!("x: {whole}"));
        assert_eq!(Failure::of(&ubtrfs_image::Error::Volume(refused())).sentence(), whole);
        assert_eq!(Failure::of(&ubtrfs::Error::Shared(Arc::new(refused()))).sentence(), whole);
        assert_eq!(Failure::of(&io::Error::other(refused())).sentence(), whole);
        let boxed = ubtrfs::Error::Step { step: ubtrfs::Step::WriteTreeBlocks, source: Box::new(refused()) };
        assert!(Failure::of(&boxed).sentence().ends_with(whole));
        let shared = ubtrfs::Error::NotDurable(Arc::new(refused()));
        assert!(Failure::of(&shared).sentence().ends_with(whole));
        let inside = ubtrfs_image::Error::Inside { path: "x".into(), source: refused().into() };
        assert_eq!(Failure::of(&inside).sentence(), format!("x: {whole}"));
        assert_eq!(about(&io::Error::from_raw_os_error(5)), None);
    }

    #[test]
    fn errors_of_each_crate_have_their_advice() {
        let (ahead, behind) = (DeviceId(1), DeviceId(2));
        let lag = || ubtrfs_volume::Error::OthersLag { ahead, behind };
        let partition =
            || ubtrfs_volume::Error::BadPartition { number: 4, fault: PartitionFault::Misaligned { start: 512 } };
        let blocked = ubtrfs_image::Error::Blocked { what: "x".into(), obstacle: Obstacle::RemovalOfDirectory };
        let refused = ubtrfs::Error::Refused;
        let errors: [(&(dyn Error + 'static), &str); 7] = [
            (
                &refused(Refusal::BadLog("odd".into())),
                "odd; mount it with -o ro,nologreplay (or give ls, stat and cat --nologreplay) to see its last commit, \
                 or give the log up with 'ubtrfs rescue zero-log'",
            ),
            (&refused(Refusal::LogPassedOver), "; nologreplay takes ro beside it"),
            (&lag(), "; to go back, mount device 2 without it first, with -o degraded"),
            (&ubtrfs::Error::Volume(lag()), "; to go back, mount device 2 without it first, with -o degraded"),
            (&partition(), "no multiple of 4096; 'losetup -P' makes a device of it"),
            (&blocked, "x; -r removes those"),
            (&ubtrfs_fuse::SessionError::NoRing(NoRing::Switch { file: "/sys/x" }), "/sys/x`, then mount again"),
        ];
        for (error, end) in errors {
            let failure = Failure::of(error);
            assert!(failure.sentence().ends_with(end), "{failure:?}");
        }
    }
}
