//! `ubtrfs image`: dumps of a volume's metadata, and volumes from such dumps.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use ubtrfs_dump::{DumpOptions, Dumped, Problems, RestoreOptions, RestorePlan, Restored, Target};

use crate::args;
use crate::device::open_for_reading;
use crate::failure::{Failure, Result};
use crate::host::replacement::Replacement;
use crate::host::sources::Sources;
use crate::json;
use crate::output::{note, say};
use crate::report::Progress;
use crate::size::show_size;

/// The permissions of dumps and images: names of files, which others may not be allowed to see, are
/// in both.
const MODE: u32 = 0o600;
/// How many problems the text shows.
const MAX_SHOWN: usize = 20;
/// How often the display changes.
const INTERVAL: Duration = Duration::from_millis(100);

/// `ubtrfs image`
pub fn run(arguments: &args::Image) -> Result<()> {
    match &arguments.what {
        args::ImageCommand::Dump(arguments) => dump(arguments),
        args::ImageCommand::Restore(arguments) => restore(arguments),
    }
}

fn dump(arguments: &args::ImageDump) -> Result<()> {
    let Some((file, devices)) = arguments.places.split_last() else { return Ok(()) };
    let place = HostPlace::of(file)?;
    let opened = open_for_reading(devices, arguments.window)?;
    let failed = |error: &std::io::Error| Failure::about(file.display(), error);
    let mut new = place.replacement(arguments.force, &opened.sources)?;
    let out = new.make_file(MODE).map_err(|error| failed(&error))?;
    let display = Display::new();
    let options = DumpOptions {
        sanitise: arguments.sanitize,
        level: arguments.compress,
        threads: threads(arguments.threads),
        progress: &|blocks| display.say(|| format!("{blocks} blocks")),
    };
    let mut buffered = BufWriter::new(&out);
    let dumped = ubtrfs_dump::dump(&opened.devices, &mut buffered, &options);
    drop(buffered);
    drop(display);
    let dumped = dumped.map_err(|error| match error {
        ubtrfs_dump::Error::Output(error) => failed(&error),
        error => Failure::about(shown(devices), &error),
    })?;
    new.finish(Some(&out), true).map_err(|error| failed(&error))?;
    if arguments.json {
        return json::print(&dumped);
    }
    say(&dump_as_text(&dumped, file, arguments.sanitize));
    Ok(())
}

fn dump_as_text(dumped: &Dumped, file: &Path, sanitized: bool) -> String {
    let Dumped { blocks, bad_blocks, bytes, file_bytes, replaced, kept, problems } = dumped;
    list(problems);
    let mut text = format!(
        "{}: {blocks} tree blocks, {} of metadata, in {}\n",
        file.display(),
        show_size(*bytes),
        show_size(*file_bytes)
    );
    if *bad_blocks > 0 {
        let _ = writeln!(text, "{bad_blocks} tree blocks are damaged; they are in the dump as far as they can be read");
    }
    if sanitized {
        let _ = writeln!(text, "{replaced} names were replaced");
        if *kept > 0 {
            let _ = writeln!(text, "{kept} short names were kept, since no others fit into their places");
        }
    }
    text
}

fn restore(arguments: &args::ImageRestore) -> Result<()> {
    let path = &arguments.file;
    let source = File::open(path).map_err(|error| Failure::about(path.display(), &error))?;
    let about = |error: &ubtrfs_dump::Error| Failure::about(path.display(), error);
    let plan = RestorePlan::read(&source).map_err(|error| about(&error))?;
    let numbers: Vec<u64> = plan.devices().iter().map(|device| device.devid.0).collect();
    let names = names_of(&arguments.targets, &numbers)?;
    let places = names.iter().map(|name| HostPlace::of(name)).collect::<Result<Vec<_>>>()?;
    let sources = Sources::of(std::slice::from_ref(path));
    let mut replacements = Vec::with_capacity(places.len());
    let mut files = Vec::with_capacity(places.len());
    for (place, name) in places.iter().zip(&names) {
        let mut new = place.replacement(arguments.force, &sources)?;
        files.push(new.make_file(MODE).map_err(|error| Failure::about(name.display(), &error))?);
        replacements.push(new);
    }
    let display = Display::new();
    let options = RestoreOptions {
        threads: threads(arguments.threads),
        progress: &|done, all| display.say(|| format!("{} of {}", show_size(done), show_size(all))),
    };
    let mut targets: Vec<&mut dyn Target> = files.iter_mut().map(|file| file as &mut dyn Target).collect();
    let restored = ubtrfs_dump::restore(&source, &plan, &mut targets, &options);
    drop(targets);
    drop(display);
    let restored = restored.map_err(|error| about(&error))?;
    for ((new, file), name) in replacements.into_iter().zip(&files).zip(&names) {
        new.finish(Some(file), true).map_err(|error| Failure::about(name.display(), &error))?;
    }
    if arguments.json {
        return json::print(&restored);
    }
    say(&restore_as_text(&restored, &names));
    Ok(())
}

fn restore_as_text(restored: &Restored, names: &[PathBuf]) -> String {
    list(&restored.problems);
    let mut text = format!("{}: {} of metadata\n", shown(names), show_size(restored.bytes));
    if restored.unmapped > 0 {
        let _ = writeln!(text, "{} of the dump are in no chunk, and were left out", show_size(restored.unmapped));
    }
    text
}

/// Returns the name of the image of each device.
fn names_of(targets: &[PathBuf], numbers: &[u64]) -> Result<Vec<PathBuf>> {
    match targets {
        [only] => {
            let others = numbers.iter().skip(1).map(|number| {
                let mut name = only.clone().into_os_string();
                name.push(format!(".{number}"));
                PathBuf::from(name)
            });
            Ok(std::iter::once(only.clone()).chain(others).collect())
        }
        targets if targets.len() == numbers.len() => Ok(targets.to_vec()),
        _ => {
            let (devices, targets) = (numbers.len(), targets.len());
            Err(Failure::of(&ubtrfs_dump::Error::Targets { devices, targets }))
        }
    }
}

fn threads(wanted: Option<u32>) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    wanted.map_or_else(all, |wanted| wanted as usize)
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Prints problems to the standard error stream.
fn list(problems: &Problems) {
    for problem in problems.first.iter().take(MAX_SHOWN) {
        note!("{problem}");
    }
    if problems.count > MAX_SHOWN as u64 {
        note!("… and {} more", problems.count - MAX_SHOWN as u64);
    }
}

/// A line that shows how far the work is, if there is a terminal.
struct Display {
    progress: Progress,
    last: Cell<Option<Instant>>,
}

impl Display {
    fn new() -> Self {
        Self { progress: Progress::new(), last: Cell::default() }
    }

    /// Shows a text, not too often. Returns true: the work goes on.
    fn say(&self, text: impl FnOnce() -> String) -> bool {
        if self.last.get().is_none_or(|last| last.elapsed() >= INTERVAL) {
            self.last.set(Some(Instant::now()));
            self.progress.say(&text());
        }
        true
    }
}

/// A name in an open directory of the host.
struct HostPlace<'a> {
    path: &'a Path,
    directory: OwnedFd,
    name: &'a [u8],
}

impl<'a> HostPlace<'a> {
    fn of(path: &'a Path) -> Result<Self> {
        let name = path.file_name().ok_or_else(|| Failure::new(format!("{} names no file", path.display())))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, parent, flags, Mode::empty())
            .map_err(|error| Failure::about(parent.display(), &std::io::Error::from(error)))?;
        Ok(Self { path, directory, name: name.as_bytes() })
    }

    /// Begins a new file with the name. Without `force`, no file may have it.
    fn replacement(&self, force: bool, sources: &Sources) -> Result<Replacement<'_>> {
        if !force && rustix::fs::statat(&self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(Failure::new(format!("{} exists: --force replaces it", self.path.display())));
        }
        Replacement::begin(&self.directory, self.name, FileType::RegularFile, sources)
            .map_err(|error| Failure::about(self.path.display(), &error))
    }
}
