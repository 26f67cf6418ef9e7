//! Tests that read, without a mount, volumes that a kernel made.

use std::os::unix::ffi::OsStrExt;

use ubtrfs_testkit::content::{Digest, Digester};
use ubtrfs_testkit::fixture::{Fixture, names, ordinary};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{changed, success, ubtrfs};

/// How many files of each fixture are compared by content.
const FILES: usize = 4;

#[test]
fn every_volume_is_described_and_dumped() {
    for name in names() {
        let dir = scratch_dir();
        let images = Fixture::load(&name).unpack(dir.path());
        let before: Vec<_> = images.iter().map(changed).collect();
        let run = |command: &str| {
            let devices = images.iter().map(|image| image.as_os_str());
            success(&ubtrfs(&std::iter::once(command.as_ref()).chain(devices).collect::<Vec<_>>()))
        };
        assert!(run("info").contains("generation"), "{name}");
        let dump = run("tree");
        assert!(dump.contains("root tree: root at") && !dump.contains("malformed"), "{name}");
        for (image, before) in images.iter().zip(before) {
            assert_eq!(changed(image), before, "{name} was written to");
        }
    }
}

#[test]
fn files_read_back_as_the_manifests_say() {
    for fixture in ordinary() {
        let name = &fixture.manifest.name;
        let dir = scratch_dir();
        let images = fixture.unpack(dir.path());
        let before = changed(&images[0]);
        let subvolume = fixture.manifest.subvol.to_string();
        let run = |command: &[&str], path: &[u8]| {
            let mut arguments: Vec<&std::ffi::OsStr> = command.iter().map(AsRef::as_ref).collect();
            arguments.extend(["--subvolid".as_ref(), subvolume.as_ref(), images[0].as_os_str()]);
            arguments.push(std::ffi::OsStr::from_bytes(path));
            ubtrfs(&arguments)
        };
        let listing = success(&run(&["ls", "-l", "-a", "-R"], b"/"));
        assert!(listing.starts_with("/:\n"), "{name}: {listing}");
        let files = fixture.manifest.entries.iter().filter(|entry| {
            entry.sha256.is_some() && entry.path_hex.is_none() && entry.size.is_some_and(|size| size < 16 << 20)
        });
        for file in files.take(FILES) {
            let output = run(&["cat"], file.path.as_bytes());
            assert!(output.status.success(), "{name}: {}: {}", file.path, String::from_utf8_lossy(&output.stderr));
            assert_eq!(output.stdout.len() as u64, file.size.unwrap(), "{name}: {}", file.path);
            assert_eq!(Some(sha256(&output.stdout)), file.sha256, "{name}: {}", file.path);
            let shown = success(&run(&["stat"], file.path.as_bytes()));
            assert!(shown.contains(&format!("size       {}\n", file.size.unwrap())), "{name}: {shown}");
        }
        assert_eq!(changed(&images[0]), before, "{name} was written to");
    }
}

/// Returns the digest of some bytes in hexadecimal digits.
pub fn sha256(data: &[u8]) -> String {
    let mut digester = Digester::new(data.len() as u64);
    digester.add(0, data);
    match digester.finish() {
        Digest::Whole(digest) | Digest::Blocks(digest) => digest,
    }
}
