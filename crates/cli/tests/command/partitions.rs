//! Tests with volumes in partitions of disk images: they are found, named in advice, and used
//! without a change of other partitions.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ubtrfs_testkit::partitions::{Pieces, gpt, mbr, mbr_with_logical};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{fails, success, ubtrfs};

const SIZE: u64 = 400 << 20;

fn disk(dir: &Path, pieces: &Pieces) -> PathBuf {
    let path = dir.join("disk");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    for (at, piece) in pieces {
        file.write_all_at(piece, *at).unwrap();
    }
    path
}

/// Returns a table with partition 1 of 1 MiB, and partitions 2 and 3 of 128 MiB.
fn usual(sector: u64) -> Pieces {
    let place = |from: u64, size: u64| ((from << 20) / sector, ((from + size) << 20) / sector - 1);
    gpt(SIZE, sector, &[place(1, 1), place(2, 128), place(200, 128)])
}

#[test]
fn every_command_takes_a_partition_and_advises_it() {
    let dir = scratch_dir();
    let tables = [
        (usual(512), 2, 3),
        (usual(4096), 2, 3),
        (vec![(0, mbr(&[(0x83, 4096, 128 << 11), (0x83, 200 << 11, 128 << 11)]))], 1, 2),
        (mbr_with_logical(400 << 11, (2048, 2048), 4 << 11, &[(5 << 11, 128 << 11), (200 << 11, 128 << 11)]), 5, 6),
    ];
    for (pieces, first, second) in tables {
        let path = disk(dir.path(), &pieces);
        let (image, point) = (path.to_str().unwrap(), dir.path().to_str().unwrap());
        let readers: [&[&str]; 6] = [
            &["ls", image, "/"],
            &["stat", image, "/"],
            &["tree", image],
            &["label", image],
            &["restore", "-n", image],
            &["subvolume", "list", image],
        ];
        for reader in readers {
            fails(&ubtrfs(reader), 1, "none of the partitions is btrfs: 'ubtrfs info' lists them");
        }
        let (first, second) = (first.to_string(), second.to_string());
        success(&ubtrfs(&["mkfs", "--partition", &first, "-L", "one", image]));
        for reader in readers {
            fails(
                &ubtrfs(reader),
                1,
                &format!("it holds a partition table ({}); --partition {first} is btrfs", kind(&pieces)),
            );
        }
        let mount = ["mount", image, point];
        fails(&ubtrfs(&mount), 1, &format!("-o partition={first} is btrfs"));
        fails(&ubtrfs(&["check", image]), 2, &format!("--partition {first} is btrfs"));
        success(&ubtrfs(&["mkfs", "--partition", &second, "-L", "two", "--size", "110M", image]));
        fails(&ubtrfs(&["ls", image, "/"]), 1, &format!("--partition {first} and --partition {second} are btrfs"));

        let listed = success(&ubtrfs(&["info", image]));
        assert!(listed.contains(&format!("partition {second}")) && listed.contains(": btrfs 'two'"), "{listed}");
        let json: serde_json::Value = serde_json::from_str(&success(&ubtrfs(&["info", "--json", image]))).unwrap();
        assert_eq!(json["partition_table"], kind(&pieces));
        let labels: Vec<_> =
            json["partitions"].as_array().unwrap().iter().filter_map(|one| one["label"].as_str()).collect();
        assert_eq!(labels, ["one", "two"]);

        for (number, label) in [(&first, "one"), (&second, "two")] {
            let with = |arguments: &[&str]| success(&ubtrfs(&[arguments, &["--partition", number]].concat()));
            assert_eq!(with(&["label", image]).trim(), label);
            with(&["label", image, &format!("new {label}")]);
            with(&["subvolume", "create", &format!("{image}:/{label}")]);
            assert_eq!(with(&["ls", image, "/"]), format!("{label}\n"));
            assert!(with(&["info", image]).contains(&format!("new {label}")));
            with(&["check", image]);
        }
        // Nothing has been written outside of the partitions.
        let file = File::open(&path).unwrap();
        for (at, piece) in &pieces {
            let mut found = vec![0; piece.len()];
            file.read_exact_at(&mut found, *at).unwrap();
            assert!(found == *piece, "{at}");
        }
    }
}

fn kind(pieces: &Pieces) -> &'static str {
    if pieces.len() == 5 { "GPT" } else { "MBR" }
}

#[test]
fn what_is_no_usable_partition_is_said() {
    let dir = scratch_dir();
    let overlapping = gpt(SIZE, 512, &[(2048, 300_000), (4096, 400_000), (700_000, 5_000_000), (600_001, 650_000)]);
    let path = disk(dir.path(), &overlapping);
    let image = path.to_str().unwrap();
    for (partition, words) in [
        ("1", "partition 1: it overlaps partition 2"),
        ("3", "beyond the end of the device"),
        ("4", "no multiple of 4096; 'losetup -P' makes a device of it"),
        ("9", "there is no partition 9; there are: 1, 2, 3, 4"),
    ] {
        fails(&ubtrfs(&["ls", "--partition", partition, image, "/"]), 1, words);
        fails(&ubtrfs(&["mkfs", "-f", "--partition", partition, image]), 1, words);
        let mount = ["mount", "-o", &format!("partition={partition}"), image, dir.path().to_str().unwrap()];
        fails(&ubtrfs(&mount), 1, words);
    }
    assert!(success(&ubtrfs(&["info", image])).contains("it can't be used: it overlaps"));
    let both = ubtrfs(&["ls", "--partition", "1", "--offset", "1M", image, "/"]);
    assert_eq!(both.status.code(), Some(2));
    let plain = disk(dir.path(), &vec![]);
    fails(&ubtrfs(&["ls", "--partition", "1", plain.to_str().unwrap(), "/"]), 1, "there is no partition table");
    let damaged = disk(dir.path(), &vec![(0, mbr(&[(0xee, 1, 1000)]))]);
    fails(&ubtrfs(&["info", damaged.to_str().unwrap()]), 1, "the partition table is damaged");
}
