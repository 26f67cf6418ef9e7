//! Runs the examples of the library.

use std::path::Path;

use ubtrfs::format::Generation;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::image;

#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/changed_since.rs"]
mod changed_since;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/crash_test.rs"]
mod crash_test;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/read_file.rs"]
mod read_file;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/write_and_fsync.rs"]
mod write_and_fsync;

fn read(image: &str, path: &str) -> String {
    let mut content = Vec::new();
    read_file::run(image, path, &mut content).unwrap();
    String::from_utf8(content).unwrap()
}

#[test]
fn files_are_written_read_and_found_to_have_changed() {
    let scratch = scratch_dir();
    let path = scratch.path().join("image");
    image::make(&path, 128 << 20, |_| {});
    let image = path.to_str().unwrap();
    write_and_fsync::run(image, "/one", "first").unwrap();
    write_and_fsync::run(image, "/two", "second").unwrap();
    assert_eq!((read(image, "/one"), read(image, "two")), ("first".into(), "second".into()));
    let generation = image::open(&path, ubtrfs::Options { read_only: true, ..Default::default() }).generation();
    assert!(changed_since::run(image, None).unwrap().is_empty());
    write_and_fsync::run(image, "/one", "third").unwrap();
    assert_eq!(read(image, "/one"), "third");
    let changed = changed_since::run(image, Some(generation)).unwrap();
    assert_eq!(changed, [Path::new("/"), Path::new("/one")]);
    let all = changed_since::run(image, Some(Generation(0))).unwrap();
    assert_eq!(all, [Path::new("/"), Path::new("/one"), Path::new("/two")]);
    assert!(read_file::run(image, "/none", &mut Vec::new()).is_err());
}

#[test]
fn no_crash_loses_what_was_fsynced() {
    assert!(crash_test::run().unwrap() > 100);
}
