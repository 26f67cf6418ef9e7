//! Tests with nbd-server, the reference implementation: it serves each client by a process of its
//! own, without structured replies.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

const SIZE: u64 = 512 << 20;

fn ubtrfs(arguments: &[&str]) -> Outcome {
    run(Command::new(ubtrfs_binary().expect("the ubtrfs binary")).args(arguments))
}

/// The server, a daemon, which is ended on drop.
struct Daemon {
    socket: PathBuf,
    pid: Pid,
}

impl Daemon {
    fn start(dir: &Path) -> Self {
        let (socket, config, pid) = (dir.join("socket"), dir.join("config"), dir.join("pid"));
        let mut text = format!("[generic]\nallowlist = true\nunixsock = {}\n", socket.display());
        for (name, flush) in [("safe", true), ("unsafe", false)] {
            let image = dir.join(name);
            blank_image(&image, SIZE);
            writeln!(text, "[{name}]\nexportname = {}\nflush = {flush}\nfua = {flush}", image.display()).unwrap();
        }
        std::fs::write(&config, text).expect("a configuration");
        run(command("nbd-server", &["-C"]).arg(&config).arg("-p").arg(&pid)).ok();
        let pid = std::iter::repeat_with(|| std::fs::read_to_string(&pid).unwrap_or_default())
            .find_map(|text| Pid::from_raw(text.trim().parse().ok()?));
        let server = Self { socket, pid: pid.expect("a process") };
        server.wait_until_it_listens();
        server
    }

    /// Waits until the server listens, since it writes the number of its process before it binds
    /// its socket.
    fn wait_until_it_listens(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = UnixStream::connect(&self.socket) {
            assert!(Instant::now() < deadline, "nbd-server: {error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::TERM);
    }
}

#[test]
fn volumes_on_nbd_server_are_the_kernels() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("nbd-server"));
    let dir = scratch_dir();
    let server = Daemon::start(dir.path());
    ubtrfs(&["mkfs", &server.uri("safe")]).ok();
    let mounted = Subject::ubtrfs().mount(&[Path::new(&server.uri("safe"))], "");
    let content: Vec<u8> = (0..20 << 20).map(|at: u32| (at / 7) as u8).collect();
    std::fs::write(mounted.path().join("a"), &content).unwrap();
    File::open(mounted.path().join("a")).unwrap().sync_all().unwrap();
    mounted.unmount();
    ubtrfs(&["check", &server.uri("safe")]).ok();
    drop(server);
    let image = dir.path().join("safe");
    assert_btrfs_check_clean(&image);
    let kernels = Subject::Kernel.mount(&[&image], "");
    assert!(std::fs::read(kernels.path().join("a")).unwrap() == content);
    kernels.unmount();
}

#[test]
fn what_nbd_server_exports_is_listed_and_what_is_unsafe_refused() {
    require!(Need::Ubtrfs, Need::Tool("nbd-server"));
    let dir = scratch_dir();
    let server = Daemon::start(dir.path());
    let listed = ubtrfs(&["info", &server.uri("")]);
    assert!(!listed.success() && listed.stderr.contains("it has: 'safe', 'unsafe'"), "{}", listed.report());
    let refused = ubtrfs(&["mkfs", &server.uri("unsafe")]);
    assert!(!refused.success() && refused.stderr.contains("offers no FLUSH"), "{}", refused.report());
}
