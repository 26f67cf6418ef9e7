//! Tests that volumes that the kernel made are clean.

use ubtrfs_check::{FaultKind, Options, check};
use ubtrfs_damage::Image;
use ubtrfs_format::{Logical, TreeId};

use crate::common::{checked, names, open, shown, unpack};

#[test]
fn every_fixture_is_clean() {
    for name in names().into_iter().chain(["dropping".to_owned(), "shared".to_owned()]) {
        let dir = tempfile::tempdir().unwrap();
        let report = checked(&unpack(&name, dir.path()));
        assert!(report.is_clean(), "{name}:\n{}", shown(&report));
        assert!(report.not_compared.is_empty(), "{name}: {:?}", report.not_compared);
        assert_eq!(report.stats.has_log, name.starts_with("log-"), "{name}");
        assert!(report.stats.blocks > 0 && report.stats.inodes > 0, "{name}: nothing was checked");
        // mkfs.btrfs 6.2 leaves free-space items of its temporary block groups behind.
        let old = ["old-mkfs", "dropping", "shared"].contains(&name.as_str());
        assert_eq!(report.warning_count > 0, old, "{name}:\n{}", shown(&report));
        assert!(report.warnings.iter().all(|warning| warning.kind == FaultKind::FreeSpaceStale), "{name}");
    }
}

#[test]
fn a_check_that_reads_data_beside_the_trees_finds_the_same() {
    for name in ["prof-dup", "prof-raid5", "snapshots", "log-append"] {
        let dir = tempfile::tempdir().unwrap();
        let images = unpack(name, dir.path());
        if images.len() == 1 {
            let image = Image::open(&images[0]);
            image.flip(Logical(image.items(TreeId::CSUM)[0].0.offset), &[0]);
        }
        let beside = check(&open(&images), &Options { threads: true, ..Options::default() }).unwrap();
        assert_eq!(beside, checked(&images), "{name}");
        assert_eq!(beside.fault_count, u64::from(images.len() == 1), "{name}: {}", shown(&beside));
    }
}
