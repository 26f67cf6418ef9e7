//! Tests that random layers of OCI images are imported as umoci and buildah unpack them, where
//! these follow the image specification.

use std::path::{Path, PathBuf};
use std::process::Command;

use ubtrfs_random::Rng;
use ubtrfs_testkit::diff::{Options, diff};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{many_seeds, soaks};
use ubtrfs_testkit::walk::{Kind, Tree, walk};

use crate::archive_forms::{Entry, Style, archive_of};
use crate::editing::is_clean;
use crate::oci_layouts::{Layout, named};
use crate::{success, ubtrfs};

const NAMES: [&str; 9] = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/b", "d/e/f"];

/// Returns an entry of a layer. `files` are the names of files that lower layers may have.
fn entry(rng: &mut Rng, files: &mut Vec<String>) -> Entry {
    let name = *rng.pick(&NAMES);
    let style = Style::Pax;
    let (above, last) = name.rsplit_once('/').map_or(("", name), |(above, last)| (above, last));
    let beside = |last: &str| if above.is_empty() { last.to_owned() } else { format!("{above}/{last}") };
    let mut entry = match rng.below(12) {
        0..=3 => {
            files.push(name.to_owned());
            let len = rng.below(2000) as usize;
            Entry::file(style, name, &rng.noise(len))
        }
        4 | 5 => Entry::new(style, name, b'5'),
        6 => Entry::link(style, name, b'2', "no/where"),
        7 if !files.is_empty() => {
            let target = rng.pick(files).clone();
            // umoci refuses a link to itself, about which the specification says nothing.
            Entry::link(style, name, if target == name { b'2' } else { b'1' }, &target)
        }
        8 => Entry::file(style, &beside(".wh..wh..opq"), b""),
        9 => Entry::new(style, name, b'6'),
        _ => Entry::file(style, &beside(&format!(".wh.{last}")), b""),
    };
    entry.owner = (rng.below(5), rng.below(5));
    entry.mode = 0o700 + rng.below(0o77) as u32;
    if rng.one_in(4) && matches!(entry.kind, b'0' | b'5') {
        entry = entry.with("SCHILY.xattr.user.note", &rng.noise(9));
    }
    entry
}

fn image(seed: u64) -> Vec<Vec<Entry>> {
    let mut rng = Rng::new(seed);
    let mut files = Vec::new();
    (0..2 + rng.below(3)).map(|_| (0..=rng.below(7)).map(|_| entry(&mut rng, &mut files)).collect()).collect()
}

fn shown(layers: &[Vec<Entry>]) -> String {
    let word = |entry: &Entry| {
        let [name, target] = [&entry.name, &entry.target].map(|text| String::from_utf8_lossy(text));
        let target = if target.is_empty() { String::new() } else { format!(">{target}") };
        format!("{}{name}{target}", char::from(entry.kind))
    };
    let layers: Vec<String> = layers.iter().map(|layer| layer.iter().map(word).collect::<Vec<_>>().join(" ")).collect();
    layers.join(" | ")
}

/// Returns the contents of a directory, without the times of directories: the specification leaves
/// the times of those open for which a layer has no entry.
fn seen(path: &Path) -> Tree {
    let mut tree = walk(path);
    for entry in tree.entries.values_mut().filter(|entry| entry.kind == Kind::Dir) {
        entry.mtime = None;
    }
    tree
}

/// Whether buildah follows the specification for these layers. It applies a whiteout also to
/// entries before it in the same layer, makes the directory that contains an opaque whiteout, and
/// gives a file the attributes in the header of its link.
fn buildah_follows(layers: &[Vec<Entry>]) -> bool {
    let name_of = |entry: &Entry| String::from_utf8_lossy(&entry.name).into_owned();
    layers.iter().all(|layer| {
        layer.iter().enumerate().all(|(at, entry)| {
            let name = name_of(entry);
            if let Some(dir) = name.strip_suffix(".wh..wh..opq") {
                let is_dir = |other: &Entry| other.kind == b'5' && name_of(other) == dir.trim_end_matches('/');
                return at == 0 && (dir.is_empty() || layer.iter().any(is_dir));
            }
            let hidden = name.replacen(".wh.", "", 1);
            let is_hidden = |other: &Entry| {
                let other = name_of(other);
                other == hidden || other.starts_with(&format!("{hidden}/"))
            };
            entry.kind != b'1' && (hidden == name || !layer.iter().any(is_hidden))
        })
    })
}

/// Containers of buildah, in a store of their own.
struct Store {
    options: Vec<String>,
}

impl Store {
    fn new(dir: &Path) -> Self {
        let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let options =
            ["--storage-driver".into(), "vfs".into(), "--root".into(), path("store"), "--runroot".into(), path("run")];
        Self { options: options.into() }
    }

    fn buildah(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("buildah").args(&self.options).args(arguments).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }

    /// Returns the root directory of an image, unless the image is refused.
    fn unpacked(&self, word: &str) -> Option<PathBuf> {
        let container = self.buildah(&["from", "-q", word])?;
        Some(self.buildah(&["mount", &container]).unwrap().into())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.buildah(&["umount", "--all"]);
        self.buildah(&["rm", "--all"]);
    }
}

#[test]
fn random_layers_are_what_umoci_and_buildah_make_of_them() {
    require!(Need::Kernel, Need::Tool("umoci"), Need::Tool("buildah"));
    for seeds in many_seeds(12, 5).chunks(100) {
        let dir = scratch_dir();
        let volume = dir.path().join("image").to_str().unwrap().to_owned();
        success(&ubtrfs(&["mkfs", "--size", "1G", &volume]));
        let layout = Layout::new(&dir.path().join("layout"));
        let images: Vec<_> = seeds.iter().map(|seed| (*seed, image(*seed))).collect();
        let manifests: Vec<_> = images
            .iter()
            .map(|(seed, layers)| {
                let archives: Vec<Vec<u8>> = layers.iter().map(|layer| archive_of(layer)).collect();
                named(&layout.image_of(&archives), &format!("s{seed}"))
            })
            .collect();
        layout.index(&manifests);
        let imported: Vec<_> = seeds
            .iter()
            .map(|seed| ubtrfs(&["import", &format!("{volume}:ubtrfs/{seed}"), &layout.word(&format!("s{seed}"))]))
            .collect();
        is_clean(&volume);
        let mount = KernelMount::new(&[Path::new(&volume)], "");
        let mut found = Vec::new();
        for ((seed, layers), ours) in images.iter().zip(imported) {
            let what = format!("seed {seed}: {}", shown(layers));
            let to = mount.path().join(format!("umoci-{seed}"));
            let reference = format!("{}:s{seed}", layout.path.display());
            let umoci = Command::new("umoci").args(["unpack", "--image", &reference]).arg(&to).output().unwrap();
            match (ours.status.success(), umoci.status.success()) {
                (true, true) => {
                    let (own, other) = (mount.path().join(format!("ubtrfs/{seed}")), to.join("rootfs"));
                    let unlike = diff(&seen(&own), &seen(&other), Options::COPY);
                    found.extend(unlike.iter().map(|unlike| format!("{what}: umoci: {unlike}")));
                }
                (false, false) => {}
                (true, false) => {
                    found.push(format!("{what}: only umoci refuses it: {}", String::from_utf8_lossy(&umoci.stderr)));
                }
                (false, true) => {
                    found.push(format!("{what}: umoci takes it: {}", String::from_utf8_lossy(&ours.stderr)));
                }
            }
        }
        let by_buildah = images.iter().filter(|(seed, layers)| buildah_follows(layers) && (soaks() || seed % 6 == 1));
        let store = Store::new(dir.path());
        for (seed, layers) in by_buildah {
            let own = mount.path().join(format!("ubtrfs/{seed}"));
            let Some(other) = store.unpacked(&layout.word(&format!("s{seed}"))) else { continue };
            if own.exists() {
                let (mut own, mut other) = (seen(&own), seen(&other));
                // buildah gives the root directory its own permissions.
                own.entries.remove(&b""[..]);
                other.entries.remove(&b""[..]);
                let unlike = diff(&own, &other, Options::COPY);
                let what = format!("seed {seed}: {}", shown(layers));
                found.extend(unlike.iter().map(|unlike| format!("{what}: buildah: {unlike}")));
            }
        }
        drop(store);
        assert_eq!(mount.unmount(), Vec::<String>::new());
        assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
    }
}
