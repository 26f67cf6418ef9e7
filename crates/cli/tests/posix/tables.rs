//! Tests each operation on each kind of object, as root, as the owner and as another user.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::actors::Actor;
use crate::harness::FUSE;
use crate::objects::{Object, Place};
use crate::operations;
use crate::run::{Exceptions, Outcomes, compare, share, short, traces};

const EXCEPTIONS: Exceptions = &[
    // The kernel sends no request for a file that it knows to be empty.
    ("EmptyFile / read of", "an access time stays"),
    ("EmptyFile / truncate 0", "it comes as O_TRUNC does, which changes times"),
    ("Fifo / write of RDWR", "the kernel keeps to itself what goes through a FIFO"),
];

fn table(root: &Path) -> Outcomes {
    let operations = operations::all();
    let mut outcomes = Outcomes::new();
    let dir = root.join("case");
    // Permissions of users other than root have their own table, so only a share of the cases is
    // run for them here, unless there is time for all.
    let (share, mut number) = (share(), 0);
    for actor in [Actor::Root, Actor::Owner, Actor::Other] {
        for object in Object::ALL {
            for operation in &operations {
                number += 1;
                if actor != Actor::Root && number % share != 0 {
                    continue;
                }
                let case = format!("{actor:?} / {object:?} / {}", operation.name);
                let place = Place::new(&dir, object);
                let seen = [
                    dir.join("o"),
                    dir.clone(),
                    dir.join("file"),
                    dir.join("dir"),
                    dir.join("other"),
                    dir.join("other_dir"),
                ];
                let before: Vec<_> = seen.iter().map(|path| fs::symlink_metadata(path).ok()).collect();
                let outcome = actor.does(|| (operation.act)(&place));
                let mut reported = outcome.unwrap_or_else(|error| short(Err::<(), _>(error)));
                for (path, before) in seen.iter().zip(&before) {
                    let (now, unchanged) =
                        (traces(path, before.as_ref()), before.as_ref().map_or("nothing".into(), untouched));
                    if now != unchanged {
                        let name = path.strip_prefix(&dir).unwrap().display().to_string();
                        let _ = write!(reported, " | {name}: {now}");
                    }
                }
                let _ = write!(reported, " | new: {}", traces(&dir.join("new"), None));
                assert_eq!(outcomes.insert(case, reported), None);
                fs::remove_dir_all(&dir).unwrap();
            }
        }
    }
    outcomes
}

/// Returns the result of `traces` for an untouched path.
fn untouched(of: &fs::Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    format!("{:o} n{} {}:{} s{}", of.mode(), of.nlink(), of.uid(), of.gid(), of.size())
}

#[test]
fn each_operation_on_each_object_ends_as_the_kernels_does() {
    require!(Need::Kernel, FUSE);
    compare(("dev,suid", ""), table, EXCEPTIONS);
}
