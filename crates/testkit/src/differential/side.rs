//! One of the two sides: a volume of its own, mounted, and the processes that make calls on it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::actors::{SPACE_GROUPS, SPACE_USERS};
use super::call::{Actor, Call, CallStep, On, View};
use super::process::{Lost, Process};
use super::views::Views;
use crate::subject::{Mount, Subject};
use crate::walk::{Tree, show, walk};

/// The kernel logs this when it refuses a call.
const REFUSAL: &str = "deleting default subvolume";

/// The result of a sequence.
#[derive(Debug, Clone)]
pub struct Record {
    /// The answer of each call.
    pub answers: Vec<String>,
    /// The tree afterwards.
    pub tree: Tree,
}

/// A side of the comparison.
///
/// Fields drop in order: the processes use the mounts, and these use the volume.
#[derive(Debug)]
pub struct Side {
    mounted: Option<Mounted>,
    subject: Subject,
    options: String,
    image: PathBuf,
    program: PathBuf,
}

#[derive(Debug)]
struct Mounted {
    process: Process,
    in_space: Process,
    views: Views,
    mount: Mount,
}

impl Side {
    /// Mounts the volume of `image` with these options. `program` is that of [`Process`].
    pub fn new(subject: Subject, options: &str, image: PathBuf, program: &Path) -> Self {
        let (options, program) = (options.to_owned(), program.to_owned());
        let mut side = Self { mounted: None, subject, options, image, program };
        side.mount();
        side
    }

    fn mount(&mut self) {
        let mount = self.subject.mount(&[&self.image], &self.options);
        let views = Views::new(&self.program, mount.path());
        let process = Process::start(&self.program, views.tops());
        let in_space = Process::start_in_space(&self.program, views.tops(), SPACE_USERS, SPACE_GROUPS);
        self.mounted = Some(Mounted { process, in_space, views, mount });
    }

    /// Unmounts. Fails the test if that fails, or if the kernel complained.
    pub fn unmount(&mut self) {
        if let Some(Mounted { process, in_space, views, mount }) = self.mounted.take() {
            drop((process, in_space, views));
            match mount {
                Mount::Kernel(mount) => {
                    let mut complaints = mount.unmount();
                    // The log also has lines about other processes.
                    complaints.retain(|line| line.contains("(device ") && !line.contains(REFUSAL));
                    assert!(complaints.is_empty(), "the kernel complained:\n{}", complaints.join("\n"));
                }
                mount @ Mount::Ubtrfs(_) => mount.unmount(),
            }
        }
    }

    /// Unmounts and mounts again.
    pub fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    fn mounted(&mut self) -> &mut Mounted {
        self.mounted.as_mut().expect("a mounted side")
    }

    /// Returns the mount point.
    pub fn top(&mut self) -> PathBuf {
        self.mounted().mount.path().to_owned()
    }

    /// Returns the image of its volume.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Runs a sequence in a new directory of this name.
    pub fn run(&mut self, name: &Path, steps: &[CallStep]) -> Result<Record, Lost> {
        let dir = self.top().join(name);
        std::fs::create_dir(&dir)
            .and_then(|()| std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)))
            .unwrap_or_else(|error| panic!("make {}: {error}", dir.display()));
        let has_space = steps.iter().any(|step| step.actor.is_in_space());
        let mounted = self.mounted();
        mounted.process.begin(name)?;
        if has_space {
            mounted.in_space.begin(name)?;
        }
        let common = common_state(steps);
        mounted.process.make(&common)?;
        let mut answers = Vec::with_capacity(steps.len());
        for part in steps.chunk_by(|a, b| a.actor.is_in_space() == b.actor.is_in_space()) {
            let process = if part[0].actor.is_in_space() { &mut mounted.in_space } else { &mut mounted.process };
            answers.extend(process.make(part)?);
        }
        mounted.process.make(&common)?;
        mounted.process.end()?;
        if has_space {
            mounted.in_space.end()?;
        }
        Ok(Record { answers, tree: look_at(&dir) })
    }

    /// Returns what is in the directory of a sequence now.
    pub fn look(&mut self, name: &Path) -> Tree {
        look_at(&self.top().join(name))
    }
}

/// Returns the tree below a directory. Data in a hole is an anomaly.
fn look_at(dir: &Path) -> Tree {
    /// How many bytes of the holes of a file are read.
    const MAX: u64 = 1 << 20;
    let mut tree = walk(dir);
    let mut found = Vec::new();
    for (path, entry) in &tree.entries {
        let (Some(ranges), Some(size)) = (&entry.data, entry.size) else { continue };
        let ends = ranges.iter().map(|(start, _)| *start).chain([size]);
        let starts = [0].into_iter().chain(ranges.iter().map(|(start, length)| start + length));
        let mut left = MAX;
        for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
            let mut bytes = vec![0; (end - start).min(left) as usize];
            left -= bytes.len() as u64;
            let read = File::options().read(true).custom_flags(libc::O_NOATIME).open(dir.join(OsStr::from_bytes(path)));
            let read = read.and_then(|file| file.read_exact_at(&mut bytes, start));
            if read.is_err() || bytes.iter().any(|byte| *byte != 0) {
                found.push(format!("{}: the hole at {start}: {read:?}, or there is something in it", show(path)));
            }
        }
    }
    tree.anomalies.append(&mut found);
    tree
}

/// Returns calls that reset the state that sequences share. They run before and after a sequence
/// that uses it.
fn common_state(steps: &[CallStep]) -> Vec<CallStep> {
    let mut calls = Vec::new();
    let on = || On::Path("..".into());
    if steps.iter().any(|step| matches!(step.call, Call::SetLabel { .. } | Call::GetLabel { .. })) {
        calls.push(Call::SetLabel { on: on(), label: "before".into() });
    }
    if steps.iter().any(|step| matches!(step.call, Call::SetDefault { .. })) {
        calls.push(Call::SetDefault { on: on(), target: "..".into() });
    }
    if steps.iter().any(|step| matches!(step.call, Call::DeviceErrors { .. })) {
        calls.push(Call::DeviceErrors { on: on(), device: 1, reset: true });
    }
    calls.into_iter().map(|call| CallStep { actor: Actor::Root, view: View::Plain, call }).collect()
}
