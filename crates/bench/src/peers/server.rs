//! A volume on a server with delayed answers: nbdkit has the image. The kernel accesses it as a
//! file of nbdfuse.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::process::tool;

/// The time in which a server has to start, and to end.
const TIMEOUT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(5);

/// nbdkit, which ends with this program, or when it is dropped.
#[derive(Debug)]
pub struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    /// Serves `image`. Answers to reads and writes are delayed by so much, those to flushes are
    /// not.
    pub fn start(image: &Path, delay: Duration) -> Result<Self> {
        let socket = image.with_extension("socket");
        let _ = std::fs::remove_file(&socket);
        let mut nbdkit = tool("nbdkit")?;
        nbdkit.args(["--foreground", "--exit-with-parent", "--filter=delay", "--unix"]).arg(&socket);
        nbdkit.arg("file").arg(image);
        for operation in ["rdelay", "wdelay", "delay-zero", "delay-trim"] {
            nbdkit.arg(format!("{operation}={}ms", delay.as_millis()));
        }
        let mut server = Self { process: quietly(&mut nbdkit)?, socket };
        let socket = server.socket.clone();
        wait_for(&mut server.process, "nbdkit", || socket.exists())?;
        Ok(server)
    }

    /// Returns the URI of its export.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// nbdfuse, which shows an export as a file.
#[derive(Debug)]
pub struct ServedFile {
    process: Child,
    directory: PathBuf,
}

impl ServedFile {
    /// Shows the export of this URI in `directory`.
    pub fn new(uri: &str, directory: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&directory)?;
        let mut nbdfuse = tool("nbdfuse")?;
        nbdfuse.arg(directory.join("disk")).arg(uri);
        let mut served = Self { process: quietly(&mut nbdfuse)?, directory };
        let path = served.path();
        wait_for(&mut served.process, "nbdfuse", || path.exists())?;
        Ok(served)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.join("disk")
    }
}

impl Drop for ServedFile {
    fn drop(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        // A detached loop device keeps the file open a little longer.
        let unmount = || Command::new("umount").arg(&self.directory).stderr(Stdio::null()).status();
        while !unmount().is_ok_and(|status| status.success()) && Instant::now() < deadline {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(10 * INTERVAL);
        }
        if Instant::now() >= deadline {
            eprintln!("ubtrfs-bench: {} was not unmounted", self.directory.display());
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// Starts a program without output, which a signal for this one does not end.
fn quietly(command: &mut Command) -> Result<Child> {
    use std::os::unix::process::CommandExt;
    let line = format!("{command:?}");
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().map_err(|error| Failure::about(line, &error))
}

fn wait_for(process: &mut Child, name: &str, is_ready: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !is_ready() {
        cleanup::check()?;
        if let Some(status) = process.try_wait()? {
            return Err(Failure::new(format!("{name} ended at once: {status}")));
        }
        if Instant::now() >= deadline {
            return Err(Failure::new(format!("{name} does not start")));
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
