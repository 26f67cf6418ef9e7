//! Tests that volumes are made from whole OCI images, whose layouts are checked against their
//! contents.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::slice::from_ref;

use serde_json::json;
use tar::EntryType;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::{archive, import_layers, run};
use crate::editing::{is_clean, listing, quiet};
use crate::oci_layouts::{CONFIGURATION, INDEX, LAYER, Layout, MANIFEST, for_platform, named, plain_digests};
use crate::{fails, new_volume, success, ubtrfs};

const FILE: EntryType = EntryType::Regular;
const DIR: EntryType = EntryType::Directory;

/// An entry of a layer: its name, its type, the target of a link, and content.
type Entry = (&'static str, EntryType, &'static str, &'static [u8]);

fn layers() -> Vec<Vec<u8>> {
    let large: Vec<u8> = (0..40_000_u32).flat_map(u32::to_le_bytes).collect();
    vec![
        archive(&[("usr/", DIR, "", b""), ("usr/lib/old", FILE, "", b"1"), ("usr/large", FILE, "", &large)]),
        archive(&[("lib", EntryType::Symlink, "usr/lib", b""), ("usr/lib/.wh.old", FILE, "", b"")]),
        archive(&[("lib/new", FILE, "", b"2"), ("etc/motd", FILE, "", b"hello")]),
    ]
}

/// Makes a layout with one image, whose layers are compressed by all supported methods.
fn layout_of(path: &Path, archives: &[Vec<u8>]) -> Layout {
    let layout = Layout::new(path);
    let programs = ["gzip", "zstd", ""];
    let layers: Vec<_> =
        archives.iter().zip(programs.iter().cycle()).map(|(archive, program)| layout.layer(archive, program)).collect();
    layout.index(&[layout.image("amd64", &layers, &plain_digests(archives))]);
    layout
}

#[test]
fn an_image_is_its_layers_in_order() {
    require!(Need::Tool("gzip"), Need::Tool("zstd"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let layout = layout_of(&dir.path().join("layout"), &layers());
    quiet(&["import", &format!("{image}:whole"), &layout.word("")]);
    import_layers(dir.path(), &format!("{image}:layers"), &layers());
    let shown = |path: &str| success(&ubtrfs(&["ls", "-l", "-a", "-R", &image, path])).replace(path, "");
    let without_times = |path: &str| -> Vec<String> {
        shown(path).lines().map(|line| line.split_whitespace().filter(|word| !word.contains(':')).collect()).collect()
    };
    assert_eq!(without_times("/whole"), without_times("/layers"));
    assert_eq!(success(&ubtrfs(&["cat", &image, "whole/usr/lib/new"])), "2");
    is_clean(&image);
}

#[test]
fn a_volume_of_an_image_is_the_same_each_time() {
    require!(Need::Tool("gzip"), Need::Tool("zstd"));
    let dir = scratch_dir();
    let layout = layout_of(&dir.path().join("layout"), &layers());
    let make = |name: &str, more: &[&str]| {
        let image = dir.path().join(name).to_str().unwrap().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        command.env("SOURCE_DATE_EPOCH", "1700000000").args(["mkfs", "--rootdir", &layout.word("")]).args(more);
        success(&command.arg(&image).output().unwrap());
        is_clean(&image);
        assert_eq!(success(&ubtrfs(&["cat", &image, "etc/motd"])), "hello");
        fs::read(&image).unwrap()
    };
    let shrunk = ["--shrink", "--compress", "zstd", "--subvol", "ro:usr"];
    let first = make("first", &shrunk);
    assert!(first == make("second", &shrunk));
    assert!(first.len() < 100 << 20, "{}", first.len());
    // The size of the volume is that of the uncompressed layers, and more.
    let most = archive(&[("large", FILE, "", &vec![0; 40 << 20])]);
    let layout = Layout::new(&dir.path().join("large"));
    layout.index(&[layout.image("amd64", &[layout.layer(&most, "gzip")], &plain_digests(&[most]))]);
    let image = dir.path().join("large.img").to_str().unwrap().to_owned();
    success(&ubtrfs(&["mkfs", "--rootdir", &layout.word(""), &image]));
    let size = fs::metadata(&image).unwrap().len();
    assert!((800 << 20..1_200 << 20).contains(&size), "{size}");
}

#[test]
fn an_image_is_chosen_by_its_name_and_its_platform() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let layout = Layout::new(&dir.path().join("layout"));
    let of = |content: &str, architecture: &str| {
        let archives = [archive(&[("is", FILE, "", content.as_bytes())])];
        layout.image(architecture, &[layout.layer(&archives[0], "")], &plain_digests(&archives))
    };
    let several = [
        for_platform(&of("amd64", "amd64"), "amd64", None),
        for_platform(&of("arm64", "arm64"), "arm64", Some("v8")),
        for_platform(&of("arm v6", "arm"), "arm", Some("v6")),
        for_platform(&of("riscv64", "riscv64"), "riscv64", None),
        // Build tools add such an entry, which is no image.
        for_platform(&layout.document(MANIFEST, &json!({})), "unknown", None),
    ];
    let inner = layout.document(INDEX, &json!({ "schemaVersion": 2, "manifests": several }));
    layout.index(&[named(&inner, "x/all:1"), named(&of("one", "s390x"), "one")]);
    let at = format!("{image}:/");
    let is = |more: &[&str], name: &str| {
        quiet(&[&["import"], more, &[&at, &layout.word(name)]].concat());
        success(&ubtrfs(&["cat", &image, "is"]))
    };
    let own = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    assert_eq!(is(&[], "x/all:1"), own);
    assert_eq!(is(&["--platform", "linux/arm64"], "x/all:1"), "arm64");
    assert_eq!(is(&["--platform", "linux/arm/v6"], "x/all:1"), "arm v6");
    // If there is only one image, it is used for any platform.
    assert_eq!(is(&[], "one"), "one");
    let not = |more: &[&str], name: &str, words: &str| {
        fails(&ubtrfs(&[&["import"], more, &[&at, &layout.word(name)]].concat()), 1, words);
    };
    not(
        &["--platform", "linux/arm/v7"],
        "x/all:1",
        "--platform chooses one of linux/amd64, linux/arm/v6, linux/arm64/v8",
    );
    not(&["--platform", "linux/amd64"], "one", "the image is for linux/s390x, not for linux/amd64");
    not(&[], "", "add the name of one, of one, x/all:1");
    not(&[], "two", "no image has the name 'two': there are one, x/all:1");
    let wrong = ubtrfs(&["import", "--platform", "linux", &at, &layout.word("one")]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("'linux' is not OS/ARCHITECTURE"));
}

/// Each false statement in a layout is refused with its name, and the image stays as it was.
#[test]
fn hostile_layouts_change_nothing() {
    require!(Need::Tool("gzip"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let before = listing(&image);
    let path = dir.path().join("layout");
    let good = archive(&[("good", FILE, "", &[b'x'; 10_000])]);
    let refused = |words: &str, make: &dyn Fn(&Layout)| {
        let _ = fs::remove_dir_all(&path);
        let layout = Layout::new(&path);
        layout.index(&[layout.image_of(from_ref(&good))]);
        make(&layout);
        fails(&ubtrfs(&["import", &image, &layout.word("")]), 1, words);
        let made = dir.path().join("made.img");
        fails(&ubtrfs(&["mkfs", "--rootdir", &layout.word(""), made.to_str().unwrap()]), 1, words);
        assert!(!made.exists(), "{words}");
        assert_eq!(listing(&image), before, "{words}");
    };
    let with = |layout: &Layout, change: &dyn Fn(&mut serde_json::Value)| {
        let mut layer = layout.layer(&good, "");
        change(&mut layer);
        layout.index(&[layout.image("amd64", &[layer], &plain_digests(from_ref(&good)))]);
    };
    for digest in ["sha256:../../../../../etc/passwd", "sha512:aa", "sha256:", "../x", "sha256:AB"] {
        refused("which is not sha256: and 64 digits", &|layout| with(layout, &|layer| layer["digest"] = json!(digest)));
    }
    refused("bytes instead of 17", &|layout| with(layout, &|layer| layer["size"] = json!(17)));
    refused("can't be understood", &|layout| with(layout, &|layer| layer["size"] = json!(-1)));
    for media_type in [
        "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "text/\u{1b}[31mplain",
    ] {
        refused("is no layer that can be read", &|layout| {
            with(layout, &|layer| layer["mediaType"] = json!(media_type));
        });
    }
    refused("it is damaged", &|layout| {
        with(layout, &|layer| {
            fs::write(layout.file_of(layer), vec![0; layer["size"].as_u64().unwrap() as usize]).unwrap();
        });
    });
    refused("it is damaged", &|layout| {
        // The data is after the end of the archive, which readers of the archive ignore.
        let long = [&good[..], &[0; 4096]].concat();
        let layer = layout.layer(&long, "");
        let digests = plain_digests(from_ref(&long));
        layout.index(&[layout.image("amd64", from_ref(&layer), &digests)]);
        let mut bytes = long;
        *bytes.last_mut().unwrap() = 1;
        fs::write(layout.file_of(&layer), bytes).unwrap();
    });
    refused("is not what the configuration says it is", &|layout| {
        let other = archive(&[("other", FILE, "", b"x")]);
        layout.index(&[layout.image("amd64", &[layout.layer(&good, "gzip")], &plain_digests(&[other]))]);
    });
    refused("has 1 layers, and its configuration says 0", &|layout| {
        layout.index(&[layout.image("amd64", &[layout.layer(&good, "")], &[])]);
    });
    refused("has the malformed digest '/'", &|layout| {
        layout.index(&[layout.image("amd64", &[layout.layer(&good, "")], &["/".into()])]);
    });
    refused("No such file", &|layout| with(layout, &|layer| fs::remove_file(layout.file_of(layer)).unwrap()));
    refused("is a symbolic link", &|layout| {
        with(layout, &|layer| {
            let (file, moved) = (layout.file_of(layer), dir.path().join("moved"));
            fs::rename(&file, &moved).unwrap();
            std::os::unix::fs::symlink(&moved, &file).unwrap();
        });
    });
    refused("is no regular file", &|layout| {
        with(layout, &|layer| {
            fs::remove_file(layout.file_of(layer)).unwrap();
            run("mkfifo", &[layout.file_of(layer).to_str().unwrap()]);
        });
    });
    refused("is not the configuration of an image", &|layout| {
        let config = layout.document("application/vnd.example+json", &json!({}));
        layout.index(&[layout.document(MANIFEST, &json!({ "schemaVersion": 2, "config": config, "layers": [] }))]);
    });
    refused("is no image", &|layout| layout.index(&[layout.blob(LAYER, &good)]));
    refused("there is no image", &|layout| layout.index(&[]));
    refused("can't be understood", &|layout| fs::write(layout.path.join("index.json"), "{").unwrap());
    refused("can't be understood", &|layout| {
        fs::write(layout.path.join("index.json"), "[".repeat(100_000)).unwrap();
    });
    refused("more than 4194304 bytes", &|layout| {
        fs::File::create(layout.path.join("index.json")).unwrap().set_len(10 << 30).unwrap();
    });
    refused("more than 4194304 bytes", &|layout| {
        let config = layout.blob(CONFIGURATION, &vec![b' '; (4 << 20) + 1]);
        layout.index(&[layout.document(MANIFEST, &json!({ "schemaVersion": 2, "config": config, "layers": [] }))]);
    });
    refused("indexes within each other", &|layout| {
        let mut inner = layout.image_of(from_ref(&good));
        for _ in 0..6 {
            inner = layout.document(INDEX, &json!({ "schemaVersion": 2, "manifests": [inner] }));
        }
        layout.index(&[inner]);
    });
    refused("a layout of the version '2.0'", &|layout| {
        fs::write(layout.path.join("oci-layout"), r#"{"imageLayoutVersion":"2.0"}"#).unwrap();
    });
    refused("is no OCI layout", &|layout| fs::remove_file(layout.path.join("oci-layout")).unwrap());
    refused("has '..' in its path", &|layout| {
        layout.index(&[layout.image_of(&[archive(&[("../x", FILE, "", b"x")])])]);
    });
}

#[test]
fn a_directory_that_is_a_layout_says_how_its_image_is_taken() {
    let dir = scratch_dir();
    let layout = Layout::new(&dir.path().join("layout"));
    layout.index(&[layout.image_of(&layers())]);
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    let made = ubtrfs(&["mkfs", "--rootdir", layout.path.to_str().unwrap(), &image]);
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success() && said.contains(&format!("--rootdir {}", layout.word(""))), "{said}");
    assert!(success(&ubtrfs(&["ls", &image, "/"])).contains("oci-layout"));
    fails(
        &ubtrfs(&["mkfs", "-f", "--platform", "a/b", "--rootdir", layout.path.to_str().unwrap(), &image]),
        2,
        "--platform is",
    );
}

/// Layouts that umoci and skopeo write can be read.
#[test]
fn layouts_of_umoci_and_skopeo_are_read() {
    require!(Need::Root, Need::Tool("umoci"), Need::Tool("skopeo"));
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (layout, bundle) = (path("umoci"), path("bundle"));
    let reference = format!("{layout}:made");
    run("umoci", &["init", "--layout", &layout]);
    run("umoci", &["new", "--image", &reference]);
    run("umoci", &["unpack", "--image", &reference, &bundle]);
    fs::create_dir_all(dir.path().join("bundle/rootfs/etc")).unwrap();
    fs::write(dir.path().join("bundle/rootfs/etc/motd"), "hello").unwrap();
    run("umoci", &["repack", "--image", &reference, &bundle]);
    let copied = format!("oci:{}:copied", path("skopeo"));
    run("skopeo", &["copy", "--insecure-policy", "-q", &format!("oci:{reference}"), &copied]);
    let archived = format!("oci-archive:{}:archived", path("x.tar"));
    run("skopeo", &["copy", "--insecure-policy", "-q", &format!("oci:{reference}"), &archived]);
    let (made, whole) = (format!("oci:{reference}"), format!("oci:{layout}"));
    for (to, word) in [("umoci", made), ("skopeo", copied), ("whole", whole), ("archive", archived)] {
        quiet(&["import", &format!("{image}:{to}"), &word]);
        assert_eq!(success(&ubtrfs(&["cat", &image, &format!("{to}/etc/motd")])), "hello");
    }
    is_clean(&image);
    let docker = format!("docker-archive:{}:x:1", path("docker.tar"));
    run("skopeo", &["copy", "--insecure-policy", "-q", &format!("oci:{reference}"), &docker]);
    let word = format!("oci-archive:{}", path("docker.tar"));
    fails(&ubtrfs(&["import", &image, &word]), 1, "'skopeo copy docker-archive:FILE oci:DIR' makes one of it");
    let whole = fs::read(path("x.tar")).unwrap();
    for len in [0, 100, 700, whole.len() / 2] {
        fs::write(path("cut.tar"), &whole[..len]).unwrap();
        let output = ubtrfs(&["import", &image, &format!("oci-archive:{}", path("cut.tar"))]);
        assert_eq!(output.status.code(), Some(1), "{len}");
    }
}

#[test]
fn nothing_takes_the_place_of_a_subvolume() {
    let dir = scratch_dir();
    let layout = Layout::new(&dir.path().join("layout"));
    let made = dir.path().join("made.img");
    let fill = |entries: &[&[Entry]]| {
        let archives: Vec<_> = entries.iter().map(|entries| archive(entries)).collect();
        layout.index(&[layout.image_of(&archives)]);
        ubtrfs(&["mkfs", "--rootdir", &layout.word(""), "--subvol", "d", made.to_str().unwrap()])
    };
    fails(&fill(&[&[("d", FILE, "", b"x")]]), 1, "d would replace a subvolume");
    fails(&fill(&[&[("d/f", FILE, "", b"x")], &[("d", FILE, "", b"x")]]), 1, "d would replace a subvolume");
    let image = made.to_str().unwrap();
    // A directory that is hidden loses its entries.
    let below: &[Entry] = &[("d/f", FILE, "", b"x"), ("d/e/f", FILE, "", b"x")];
    let layers: [(&[Entry], &str); 5] = [
        (&[(".wh.d", FILE, "", b"")], ""),
        (&[(".wh..wh..opq", FILE, "", b"")], ""),
        (&[(".wh.d", FILE, "", b""), ("d/g", FILE, "", b"y")], "g\n"),
        (&[("d/g", FILE, "", b"y"), (".wh.d", FILE, "", b"")], "g\n"),
        (&[("d/g", FILE, "", b"y"), (".wh..wh..opq", FILE, "", b"")], "g\n"),
    ];
    for (layer, left) in layers {
        let _ = fs::remove_file(image);
        success(&fill(&[below, layer]));
        assert_eq!(success(&ubtrfs(&["ls", image, "/d"])), left);
        assert_eq!(success(&ubtrfs(&["ls", image, "/"])), "d\n");
        is_clean(image);
    }
}

#[test]
fn what_is_left_out_of_an_image_is_not_in_the_volume() {
    require!(Need::Tool("gzip"), Need::Tool("zstd"));
    let dir = scratch_dir();
    let layout = layout_of(&dir.path().join("layout"), &layers());
    let image = dir.path().join("image").display().to_string();
    let arguments = ["mkfs", "-q", "--size", "200M", "--rootdir", &layout.word(""), "--exclude", "new", &image];
    success(&ubtrfs(&[&arguments[..], &["--owner-map", "0:5"]].concat()));
    let listed = success(&ubtrfs(&["ls", "-R", &image, "/"]));
    assert!(listed.contains("motd") && !listed.contains("new"), "{listed}");
    assert!(success(&ubtrfs(&["ls", "-l", &image, "/etc"])).contains(" 5 "), "the owner");
}

#[test]
fn no_volume_is_made_on_what_it_is_to_be_made_of() {
    require!(Need::Tool("gzip"), Need::Tool("zstd"));
    let dir = scratch_dir();
    let path = dir.path().join("layout");
    let layout = layout_of(&path, &layers());
    let (blobs, archive) = (path.join("blobs/sha256"), dir.path().join("layout.tar"));
    let packed = Command::new("tar").arg("-C").arg(&path).arg("-cf").arg(&archive).arg(".").status();
    assert!(packed.unwrap().success());
    let blob = fs::read_dir(&blobs).unwrap().next().unwrap().unwrap().path();
    let (before, archived) = (fs::read(&blob).unwrap(), fs::read(&archive).unwrap());
    let linked = dir.path().join("linked");
    fs::hard_link(&blob, &linked).unwrap();
    for target in [&blob, &linked] {
        let arguments = ["mkfs", "-f", "--size", "200M", "--rootdir", &layout.word(""), target.to_str().unwrap()];
        fails(&ubtrfs(&arguments), 1, "it is the image itself");
    }
    let word = format!("oci-archive:{}", archive.display());
    fails(&ubtrfs(&["mkfs", "-f", "--rootdir", &word, archive.to_str().unwrap()]), 1, "it is the image itself");
    let within = path.join("new").display().to_string();
    fails(&ubtrfs(&["mkfs", "--size", "200M", "--rootdir", &layout.word(""), &within]), 1, "make it elsewhere");
    assert!(fs::read(&blob).unwrap() == before && fs::read(&archive).unwrap() == archived);
}
