//! Tests that volumes that the kernel made are clean.

use ubtrfs_check::FaultKind;

use crate::common::{checked, names, shown, unpack};

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
