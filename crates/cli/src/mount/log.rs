//! The server's log: on the terminal that it runs in, or in the system's log.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::log_limit::LogLimit;

/// The environment variable with the log level: error, warn, info, debug or trace.
const VARIABLE: &str = "UBTRFS_LOG";
const SYSTEM_LOG: &str = "/dev/log";
/// The facility of servers, as syslog(3) counts.
const DAEMON: u8 = 3 << 3;

/// Set once the terminal is no longer used.
static DETACHED: AtomicBool = AtomicBool::new(false);

fn level(usual: LevelFilter) -> LevelFilter {
    std::env::var(VARIABLE).ok().and_then(|level| level.parse().ok()).unwrap_or(usual)
}

/// Sets up the log of a server in the foreground.
pub fn to_standard_error() {
    let lines = fmt::layer().with_writer(io::stderr).with_target(false).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(LogLimit).with(level(LevelFilter::INFO)).init();
}

/// Sets up the log of a server in the background: on the terminal until the mount is ready, then in
/// the system's log.
pub fn to_system_log() {
    let lines = fmt::layer().with_writer(SystemLog).with_target(false).with_ansi(false).without_time();
    let lines = lines.with_level(false);
    tracing_subscriber::registry().with(lines).with(LogLimit).with(level(LevelFilter::WARN)).init();
}

/// Logs something that was requested: on the terminal of a server in the foreground, otherwise in
/// the system's log.
pub fn note(text: &str) {
    drop(Message { severity: 6, text: text.as_bytes().to_vec() });
}

/// Stops the use of the terminal from now on.
pub fn leave_terminal() {
    DETACHED.store(true, Ordering::Release);
}

struct SystemLog;

/// One message.
struct Message {
    severity: u8,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = Message;

    fn make_writer(&'a self) -> Message {
        Message { severity: 6, text: Vec::new() }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Message {
        let severity = match *about.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        Message { severity, text: Vec::new() }
    }
}

impl Write for Message {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let text = self.text.trim_ascii();
        if text.is_empty() {
            return;
        }
        if !DETACHED.load(Ordering::Acquire) {
            let line = [b"ubtrfs: ", text, b"\n"].concat();
            let _ = io::stderr().write_all(&line);
            return;
        }
        // If this machine has no log, only `ubtrfs stats` shows the most important events.
        if let Ok(socket) = UnixDatagram::unbound() {
            let mut message = format!("<{}>ubtrfs[{}]: ", DAEMON | self.severity, std::process::id()).into_bytes();
            message.extend_from_slice(text);
            let _ = socket.set_nonblocking(true);
            let _ = socket.send_to(&message, SYSTEM_LOG);
        }
    }
}
