//! Tests that man(1) accepts the manual pages that `make install` installs.

use std::fs;
use std::path::PathBuf;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{success, ubtrfs};

#[test]
fn pages_are_formatted_without_a_warning() {
    require!(Need::Tool("groff"));
    let share = scratch_dir();
    success(&ubtrfs(&["generate", share.path().to_str().unwrap()]));
    let mut pages: Vec<PathBuf> = Vec::new();
    for section in ["man5", "man7", "man8"] {
        let directory = share.path().join("man").join(section);
        pages.extend(fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()));
    }
    assert!(pages.len() > 40, "{pages:?}");
    for page in pages {
        let outcome = run(command("groff", &["-man", "-Tutf8", "-ww", "-z"]).arg("-Kutf8").arg(&page));
        assert!(outcome.success() && outcome.stderr.is_empty(), "{}", outcome.report());
    }
}
