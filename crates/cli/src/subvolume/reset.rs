//! `ubtrfs subvolume reset`: a subvolume becomes what a snapshot is.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;

use super::table::{entry_on_mount, in_it};
use crate::args::subvolume::Reset;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount, check_subvolume};
use crate::output::say_line;
use crate::place::{Image, Place, is_same, split};

/// `ubtrfs subvolume reset`
pub fn run(arguments: &Reset) -> Result<()> {
    let Reset { target, source, image: how } = arguments;
    match (Place::parse(target), Place::parse(source)) {
        (Place::Mounted(target), Place::Mounted(source)) => on_mount(&target, &source)?,
        (Place::Image { image, path }, Place::Image { image: other, path: source }) if is_same(&image, &other) => {
            let opened = Image::open(&image, how, true, false)?;
            opened.subvolume(&path)?;
            let source = opened.subvolume(&source)?;
            let (dir, name) = split(Path::new(OsStr::from_bytes(&path)))?;
            let dir = opened.find(dir.as_os_str().as_bytes())?;
            let done = opened.fs.subvolumes().reset_subvolume(dir, name.as_bytes(), source);
            done.map_err(|error| refused(target.display(), error.errno()).unwrap_or_else(|| opened.failed(&error)))?;
            opened.close()?;
        }
        _ => return Err(Failure::new("a subvolume is reset to one of its volume")),
    }
    say_line(&format!("Reset subvolume '{}' to '{}'", target.display(), source.display()))
}

fn on_mount(target: &Path, source: &Path) -> Result<()> {
    let opened = Mounted::open(source)?;
    check_subvolume(&opened, source)?;
    let (dir, name) = entry_on_mount(target)?;
    opened.write_back().map_err(|errno| about_mount(source.display(), errno))?;
    dir.reset(&name, &opened).map_err(|errno| match errno {
        Errno::NOTTY => Failure::new(format!("{} is not on a volume that ubtrfs has mounted", target.display())),
        Errno::XDEV => Failure::new(format!("{} is not on the volume of {}", target.display(), source.display())),
        Errno::PERM => Failure::new(format!(
            "{}: not permitted: it takes what deleting a subvolume takes, and SOURCE must be one's own",
            target.display()
        )),
        errno => refused(target.display(), errno).unwrap_or_else(|| about_mount(target.display(), errno)),
    })
}

/// Why the subvolume can't be reset.
fn refused(target: impl Display, errno: Errno) -> Option<Failure> {
    let why = match errno {
        Errno::NOTEMPTY => return Some(in_it(target)),
        Errno::INVAL => "it is SOURCE itself, or no subvolume",
        Errno::ROFS => "it is read-only, or the directory that it is in",
        Errno::BUSY => "it is mounted, or being reset",
        _ => return None,
    };
    Some(Failure::new(format!("{target}: {why}")))
}
