//! `ubtrfs rescue zero-log` gives a log up, when somebody says so.

use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{fails, success, ubtrfs};

#[test]
fn a_log_is_given_up_only_when_that_is_confirmed() {
    let dir = scratch_dir();
    let fixture = Fixture::load("log-new-file");
    let path = fixture.unpack(dir.path()).remove(0);
    let image = path.to_str().unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(success(&ubtrfs(&["info", image])).contains("log                yes"));
    let listed = success(&ubtrfs(&["ls", image, "/"]));

    let asked = ubtrfs(&["rescue", "zero-log", image]);
    fails(&asked, 1, "nothing was changed");
    assert!(String::from_utf8_lossy(&asked.stdout).contains("is lost"), "{asked:?}");
    assert!(before == std::fs::read(&path).unwrap(), "an image was changed without a yes");

    let said = success(&ubtrfs(&["rescue", "zero-log", "--yes", image]));
    for entry in fixture.manifest.entries.iter().filter(|entry| entry.kind == "file") {
        assert!(said.contains(&entry.path), "{}: {said}", entry.path);
    }
    assert!(success(&ubtrfs(&["info", image])).contains("log                no"));
    assert_ne!(success(&ubtrfs(&["ls", image, "/"])), listed);
    assert!(success(&ubtrfs(&["check", image])).contains("no fault found"));
    let again = success(&ubtrfs(&["rescue", "zero-log", image]));
    assert!(again.contains("there is no log"), "{again}");
}
