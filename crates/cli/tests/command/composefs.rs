//! Tests the export of trees as text of composefs-dump(5).

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use ubtrfs_testkit::scratch::scratch_dir;

use crate::editing::{make_tree, quiet};
use crate::rootdir::text;
use crate::{fails, new_volume, success, ubtrfs};

#[test]
fn a_dump_describes_each_file_by_the_fields_of_composefs() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let tree = dir.path().join("tree");
    make_tree(&tree);
    fs::write(tree.join("sixty four"), [b'='; 64]).unwrap();
    fs::write(tree.join("sixty-five"), [b'x'; 65]).unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::write(tree.join("-"), "-").unwrap();
    quiet(&["cp", "-a", &format!("{}/.", text(&tree)), &format!("{image}:/")]);
    quiet(&["mknod", "--owner", "0:0", &format!("{image}:node"), "c", "1", "3"]);
    quiet(&["setfattr", "-n", "user.a=b", "-v", "x y", &format!("{image}:empty")]);
    let dump = |more: &[&str]| success(&ubtrfs(&[&["export", "--format", "composefs", &image], more].concat()));
    let plain = dump(&[]);
    let lines: Vec<Vec<&str>> = plain.lines().map(|line| line.split(' ').collect()).collect();
    assert!(lines.iter().all(|fields| fields.len() >= 11));
    let by_path: HashMap<&str, &Vec<&str>> = lines.iter().map(|fields| (fields[0], fields)).collect();
    assert_eq!(lines[0][0], "/");
    let mut files = 0;
    for (place, fields) in lines.iter().enumerate() {
        // A directory comes before its entries.
        let above = fields[0].rsplit_once('/').map_or("", |(above, _)| above);
        let is_before = lines[..place].iter().any(|before| before[0] == if above.is_empty() { "/" } else { above });
        assert!(place == 0 || is_before, "{fields:?}");
        let Ok(found) = fs::symlink_metadata(tree.join(fields[0].trim_start_matches('/'))) else { continue };
        files += 1;
        let mode = fields[2].trim_start_matches('@');
        assert_eq!(u32::from_str_radix(mode, 8), Ok(found.mode()), "{fields:?}");
        assert_eq!([fields[4], fields[5]], [found.uid().to_string(), found.gid().to_string()]);
        // The node was added to the root directory later.
        if fields[0] != "/" {
            assert_eq!(fields[7], format!("{}.{}", found.mtime(), found.mtime_nsec()));
        }
        if !found.is_dir() {
            assert_eq!([fields[1], fields[3]], [found.size().to_string(), found.nlink().to_string()], "{fields:?}");
        }
    }
    assert!(files > 8, "{files}");
    let content = |path: &str| by_path[path][8..11].to_vec();
    assert_eq!(content("/sixty\\x20four"), ["-", "=".repeat(64).as_str(), "-"]);
    assert_eq!(content("/sixty-five"), ["-"; 3]);
    assert_eq!(content("/empty"), ["-"; 3]);
    assert_eq!(content("/-"), ["-", "\\x2d", "-"]);
    assert_eq!(content("/link"), ["sub/../small", "-", "-"]);
    assert_eq!(by_path["/node"][6], rustix::fs::makedev(1, 3).to_string());
    assert_eq!(by_path["/empty"][11..], ["user.a\\x3db=x\\x20y"]);
    assert!(by_path.contains_key("/sub/\\xc3\\xbcmlaut\\x20\\x0a\\x20line"), "{plain}");
    let links = [by_path["/sub/deep/second"], by_path["/sub/file"]];
    assert_eq!(links.map(|fields| fields[2].starts_with('@')), [false, true]);
    assert_eq!(links[1][8], "/sub/deep/second");
    // With digests, a file whose content is not in the text has a path in a store.
    let digests = dump(&["--digests"]);
    let line = digests.lines().find(|line| line.starts_with("/sixty-five ")).unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    assert_eq!((fields[10].len(), fields[8].replace('/', "")), (64, fields[10].to_owned()));
    let sparse = digests.lines().find(|line| line.starts_with("/sparse ")).unwrap();
    assert_eq!(sparse.split(' ').nth(10).unwrap().len(), 64);
    assert_eq!(digests.lines().count(), plain.lines().count());
    // In the dump of a directory the paths begin there. A file that is no directory has no tree.
    let below = success(&ubtrfs(&["export", "--format", "composefs", &format!("{image}:sub")]));
    assert!(below.starts_with("/ ") && below.contains("\n/deep/second "), "{below}");
    fails(&ubtrfs(&["export", "--format", "composefs", &format!("{image}:small")]), 1, "not a directory");
    fails(&ubtrfs(&["export", "--digests", &image]), 2, "--format composefs");
}
