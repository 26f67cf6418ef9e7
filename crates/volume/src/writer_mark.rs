//! The mark that a writer of an export leaves there for others: who it is, and that it lives.
//!
//! The mark is in the 4096 bytes behind the first superblock. No chunk may be below 1 MiB, so btrfs
//! never uses them. Some boot loaders do; then there is no mark.

use std::fmt::Write;
use std::fs;

use ubtrfs_format::{ChecksumType, Uuid};

/// Bytes of a mark.
pub(crate) const MARK_SIZE: usize = 4096;

const MAGIC: [u8; 8] = *b"ubtrfsMM";
/// The offset of the checksum of all bytes before it.
const CHECKSUM: usize = MARK_SIZE - 4;
/// The longest name of a host that is kept.
const HOST: usize = 64;

/// A writer, and how often it has shown that it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriterMark {
    /// Distinguishes this opening of the export from all others.
    pub writer: Uuid,
    /// Grows with every sign of life.
    pub sequence: u64,
    /// The process.
    pub process: Process,
    /// The name of its machine, for messages.
    pub host: String,
}

/// A process on some machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// The boot id of the running kernel, which changes with each boot.
    pub boot: Uuid,
    /// The namespace of process numbers, 0 if not known.
    pub namespace: u64,
    pub pid: u32,
    /// Its start time, as in /proc/PID/stat; 0 if not known.
    pub began: u64,
}

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Alive,
    Ended,
    /// It is on another machine, or in another container.
    Unknown,
}

impl WriterMark {
    /// A mark of this process.
    pub(crate) fn new() -> Self {
        let host = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = printable(&host);
        Self { writer: Uuid(uuid::Uuid::new_v4().into_bytes()), sequence: 1, process: Process::this(), host }
    }

    /// A mark of a process that can't be seen from here.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn elsewhere() -> Self {
        let mark = Self::new();
        let boot = Uuid(uuid::Uuid::new_v4().into_bytes());
        Self { process: Process { boot, ..mark.process }, host: "elsewhere".into(), ..mark }
    }

    /// Returns the mark in these bytes, if there is one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MARK_SIZE] = bytes.try_into().ok()?;
        let checksum = ChecksumType::Crc32c.compute(&bytes[..CHECKSUM]);
        if bytes[..8] != MAGIC || bytes[CHECKSUM..] != checksum.0[..4] {
            return None;
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let uuid = |at: usize| Uuid(std::array::from_fn(|byte| bytes[at + byte]));
        let process =
            Process { boot: uuid(32), namespace: number(48), pid: number(56).try_into().ok()?, began: number(64) };
        Some(Self { writer: uuid(8), sequence: number(24), process, host: printable(&bytes[72..72 + HOST]) })
    }

    /// Returns the bytes of the mark.
    pub(crate) fn to_bytes(&self) -> [u8; MARK_SIZE] {
        let mut bytes = [0; MARK_SIZE];
        let Process { boot, namespace, pid, began } = self.process;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.writer.0);
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..48].copy_from_slice(&boot.0);
        bytes[48..56].copy_from_slice(&namespace.to_le_bytes());
        bytes[56..64].copy_from_slice(&u64::from(pid).to_le_bytes());
        bytes[64..72].copy_from_slice(&began.to_le_bytes());
        let host = self.host.as_bytes();
        let len = host.len().min(HOST);
        bytes[72..72 + len].copy_from_slice(&host[..len]);
        let checksum = ChecksumType::Crc32c.compute(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&checksum.0[..4]);
        bytes
    }

    /// Returns a description of the writer.
    pub(crate) fn who(&self) -> String {
        let Self { process, host, .. } = self;
        format!("process {} on {}", process.pid, if host.is_empty() { "a machine without a name" } else { host })
    }
}

impl Process {
    fn this() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = uuid::Uuid::parse_str(boot.trim()).map_or(Uuid::NIL, |boot| Uuid(boot.into_bytes()));
        let pid = std::process::id();
        Self { boot, namespace: namespace().unwrap_or(0), pid, began: began(pid).unwrap_or(0) }
    }

    /// Returns whether the process lives, as far as that can be seen from here.
    pub(crate) fn life(&self) -> Life {
        let here = Self::this();
        if self.boot == Uuid::NIL || self.namespace == 0 || self.began == 0 {
            return Life::Unknown;
        }
        if (self.boot, self.namespace) != (here.boot, here.namespace) {
            return Life::Unknown;
        }
        match began(self.pid) {
            Some(began) if began == self.began => Life::Alive,
            Some(_) => Life::Ended,
            None if here.began == 0 => Life::Unknown,
            None => {
                // Other users' processes may be hidden in /proc.
                let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
                let found = pid.map(rustix::process::test_kill_process);
                if found == Some(Err(rustix::io::Errno::SRCH)) { Life::Ended } else { Life::Unknown }
            }
        }
    }
}

/// Returns the PID namespace of this process, if /proc belongs to the same one.
fn namespace() -> Option<u64> {
    if fs::read_link("/proc/self").ok()?.to_str()? != std::process::id().to_string() {
        return None;
    }
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns the start time of a process: the twenty-second field of its line, by `proc_pid_stat(5)`.
/// The second field may have spaces and ends with the last parenthesis. The third field shows
/// whether the process has ended and is only not waited for yet; then this returns 0.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let began = fields.clone().nth(19)?.parse().ok()?;
    // No process that could have left a mark has the start time 0.
    Some(if matches!(fields.next(), Some("Z" | "X")) { 0 } else { began })
}

/// Returns a name up to its first zero byte, fit for a terminal.
fn printable(name: &[u8]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    name.trim_ascii().iter().take(HOST).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{}", if byte.is_ascii_graphic() { char::from(*byte) } else { '?' });
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let mark = WriterMark::new();
        assert_eq!(WriterMark::parse(&mark.to_bytes()), Some(mark.clone()));
        for at in (0..MARK_SIZE).step_by(37) {
            let mut bytes = mark.to_bytes();
            bytes[at] ^= 1;
            assert_eq!(WriterMark::parse(&bytes), None, "byte {at}");
        }
        assert_eq!(WriterMark::parse(&[0; MARK_SIZE]), None);
        assert_eq!(WriterMark::parse(&mark.to_bytes()[1..]), None);
    }

    #[test]
    fn hosts_are_shown_without_what_a_terminal_obeys() {
        let mark = WriterMark { host: "a\x1b[2Jb".repeat(40), ..WriterMark::new() };
        let shown = WriterMark::parse(&mark.to_bytes()).unwrap().host;
        assert!(shown.len() == HOST && shown.starts_with("a?[2Jb"), "{shown}");
    }

    #[test]
    fn processes_of_this_machine_are_known_to_live_or_to_have_ended() {
        let this = Process::this();
        assert_eq!(this.life(), Life::Alive);
        assert_eq!(Process { began: this.began + 1, ..this }.life(), Life::Ended, "its number has another one now");
        // The child ends when its input does.
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let began = began(pid).unwrap();
        drop(child.stdin.take());
        // The child has ended, but was not waited for.
        while super::began(pid) == Some(began) {
            std::thread::yield_now();
        }
        assert_eq!(Process { pid, began: began.max(1), ..this }.life(), Life::Ended);
        child.wait().unwrap();
        assert_eq!(Process { pid, ..this }.life(), Life::Ended);
        for other in [
            Process { boot: Uuid([7; 16]), ..this },
            Process { namespace: this.namespace + 1, ..this },
            Process { began: 0, ..this },
        ] {
            assert_eq!(other.life(), Life::Unknown);
        }
    }
}
