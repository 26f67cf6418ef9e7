//! Tests with image builders that call mkfs.btrfs, with ubtrfs in its place: those of Debian are
//! run as they are, and others are represented by their command lines.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::{success, ubtrfs};

/// A directory with a tree, and a directory with mkfs.btrfs, which is first in the path.
struct Builder(tempfile::TempDir);

impl Builder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["bin", "tree/usr/bin", "tree/var/log", "tree/home"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_ubtrfs"), path("bin/mkfs.btrfs")).unwrap();
        std::fs::write(path("tree/usr/bin/tool"), "tool").unwrap();
        std::fs::write(path("tree/var/log/messages"), "messages").unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn sized(&self, name: &str, bytes: u64) -> String {
        std::fs::File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
        self.path(name).display().to_string()
    }

    /// Runs a script in the directory.
    fn run(&self, script: &str) -> Output {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let mut path = self.path("bin").into_os_string();
        path.push(":");
        path.push(inherited);
        let mut command = Command::new("sh");
        command.args(["-ec", script]).env("PATH", path).current_dir(self.0.path()).stdin(Stdio::null());
        command.output().unwrap()
    }

    #[track_caller]
    fn built(&self, script: &str) {
        let output = self.run(script);
        let said = [&output.stdout[..], &output.stderr].concat();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&said));
    }
}

fn content(image: &str, path: &str) -> String {
    success(&ubtrfs(&["cat", image, path]))
}

#[test]
fn systemd_repart_formats_and_fills_a_partition() {
    require!(Need::Kernel, Need::Tool("systemd-repart"));
    let builder = Builder::new();
    std::fs::create_dir(builder.path("definitions")).unwrap();
    let tree = builder.path("tree");
    let definition =
        format!("[Partition]\nType=root\nFormat=btrfs\nCopyFiles={}:/\nSizeMinBytes=300M\n", tree.display());
    std::fs::write(builder.path("definitions/10-root.conf"), definition).unwrap();
    builder.built("systemd-repart --empty=create --size=400M --definitions=definitions --dry-run=no disk.img");
    let disk = builder.path("disk.img").display().to_string();
    assert!(success(&ubtrfs(&["check", "--partition", "1", &disk])).contains("no fault found"));
    assert_eq!(success(&ubtrfs(&["cat", "--partition", "1", &disk, "/usr/bin/tool"])), "tool");
}

/// The command line of systemd-repart 262 with `Subvolumes=`, `DefaultSubvolume=` and `Minimize=`:
/// it passes an empty temporary file, and options after that.
#[test]
fn newer_systemd_repart_fills_and_shrinks_a_temporary_file() {
    let builder = Builder::new();
    let image = builder.sized("temporary", 0);
    builder.built(
        "mkfs.btrfs -L root-x86-64 -U 22dc134f-b9fd-45c4-a35c-a07dbc5bc692 -r tree --sectorsize=4096 temporary \
         --subvol default:/var --subvol /home --shrink",
    );
    success(&ubtrfs(&["check", &image]));
    // Paths begin at the default subvolume.
    assert_eq!(content(&image, "/log/messages"), "messages");
    let listed = success(&ubtrfs(&["subvolume", "list", &image]));
    assert!(listed.contains("path var") && listed.contains("path home"), "{listed}");
    assert!(success(&ubtrfs(&["subvolume", "get-default", &image])).contains("path var"));
    assert!(std::fs::metadata(&image).unwrap().len() < 150 << 20);
}

/// The command line of genimage 20, which passes a file of the configured size.
#[test]
fn genimage_fills_a_file_of_a_size() {
    let builder = Builder::new();
    let image = builder.sized("root.btrfs", 300 << 20);
    builder.built("mkfs.btrfs -L name -r 'tree'  'root.btrfs'");
    success(&ubtrfs(&["check", &image]));
    assert_eq!(
        (content(&image, "/usr/bin/tool"), std::fs::metadata(&image).unwrap().len()),
        ("tool".into(), 300 << 20)
    );
}

/// The command line of make-btrfs-fs of NixOS. The owners, devices and capabilities that fakeroot
/// shows are those of the volume, whatever user builds it.
#[test]
fn what_fakeroot_shows_comes_into_the_volume() {
    require!(Need::Tool("fakeroot"));
    let builder = Builder::new();
    builder.built(
        "touch image; fakeroot sh -ec '
            chown 12:34 tree/usr/bin/tool; chmod 4755 tree/usr/bin/tool; mknod tree/null c 1 3
            setcap cap_net_raw+ep tree/var/log/messages
            mkfs.btrfs -L nixos -U 44444444-4444-4444-8888-888888888888 -r ./tree --shrink image'",
    );
    let image = builder.path("image").display().to_string();
    success(&ubtrfs(&["check", &image]));
    let tar = builder.path("image.tar");
    std::fs::write(&tar, &ubtrfs(&["export", &image]).stdout).unwrap();
    let listed = Command::new("tar").args(["--numeric-owner", "-tvf"]).arg(&tar).output().unwrap();
    let listed = success(&listed);
    let line = |name: &str| listed.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("{listed}"));
    assert!(line("usr/bin/tool").starts_with("-rwsr-xr-x 12/34"), "{listed}");
    assert!(line("./null").starts_with("crw") && line("./null").contains("1,3"), "{listed}");
    assert!(line("./home/").contains("0/0"), "others belong to root: {listed}");
    assert!(capabilities(&tar), "the capabilities are there");
}

/// Whether an archive has the capabilities of a file.
fn capabilities(tar: &Path) -> bool {
    let bytes = std::fs::read(tar).unwrap();
    bytes.windows(19).any(|window| window == b"security.capability")
}

/// The steps of the action, with inputs as a workflow passes them; everything except the build.
#[test]
fn the_action_makes_an_image() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/action/action.yml");
    let action = std::fs::read_to_string(page).unwrap();
    let (_, script) = action.split_once("run: |\n").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("ubtrfs/bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ubtrfs"), bin.join("ubtrfs")).unwrap();
    let inputs = [
        ("ROOTDIR", "tree"),
        ("IMAGE", "root.img"),
        ("OPTIONS", "--all-root --shrink"),
        ("SOURCE_DATE_EPOCH", ""),
        ("RUNNER_TEMP", dir.path().to_str().unwrap()),
    ];
    for (name, _) in inputs.iter().take(4) {
        assert!(action.contains(&format!("{name}: ${{{{ inputs.")), "{name}");
    }
    let output = Command::new("bash").args(["-e", "-c", script]).envs(inputs).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
