//! The effect of each editing command on an open image.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ubtrfs_format::posix;
use ubtrfs_image::{CopyOptions, Editor, Error, Existing, HostFile, HostFiles, Job, ModeChange, Reflink};

use super::locate::{Locate, Where};
use super::session::{Edited, about};
use crate::args::edit::{Cp, EditCommand, Mknod, Setfattr, When};
use crate::args::in_volume::InVolume;
use crate::failure::{Failure, Result};
use crate::host::destination::is_content;
use crate::host::sources::Sources;
use crate::output::note;
use crate::show;

/// Carries out a command.
pub fn perform(edited: &Edited<'_>, command: &EditCommand, locate: &Locate<'_>, job: &mut Job<'_>) -> Result<()> {
    let inside = |word: &OsStr| locate(word).inside();
    let editor = Editor::new(edited.session.fs(), owner(command));
    let umask = crate::host::umask();
    let under = |mode: &Option<ModeChange>| mode.clone().map(|mode| mode.under(umask));
    let each = |places: &[InVolume], act: &dyn Fn(&Path) -> ubtrfs_image::Result<()>| {
        places.iter().try_for_each(|word| act(&inside(word)?).map_err(|error| about(&error)))
    };
    match command {
        EditCommand::Cp(arguments) => copy(&editor, arguments, edited.image, owner(command), locate, job),
        EditCommand::Mkdir(arguments) => {
            let mode = under(&arguments.mode);
            each(&arguments.places, &|path| editor.make_directory(path, arguments.parents, mode.as_ref()))
        }
        EditCommand::Rm(arguments) => {
            each(&arguments.places, &|path| editor.remove(path, arguments.recursive, arguments.force))
        }
        EditCommand::Mv(arguments) => {
            let (to, from) = split_last(&arguments.places)?;
            let to = inside(to)?;
            needs_directory(&editor, from, &to)?;
            each(from, &|path| editor.rename(path, &to))
        }
        EditCommand::Ln(arguments) => {
            let existing = if arguments.force { Existing::Replace } else { Existing::Refuse };
            let at = inside(&arguments.place)?;
            if arguments.symbolic {
                editor.symlink(Path::new(&arguments.target), &at, existing)
            } else {
                editor.link(&inside(&arguments.target)?, &at, existing)
            }
            .map_err(|error| about(&error))
        }
        EditCommand::Mknod(arguments) => {
            make_node(&editor, arguments, &inside(&arguments.place)?, under(&arguments.mode).as_ref())
        }
        EditCommand::Chmod(arguments) => {
            let mode = arguments.mode.clone().under(umask);
            each(&arguments.places, &|path| editor.change_mode(path, &mode, arguments.recursive))
        }
        EditCommand::Chown(arguments) => {
            let owner = (arguments.owner.user, arguments.owner.group);
            // As with chown -R, a link into another tree is not followed.
            let follow = !arguments.no_dereference && !arguments.recursive;
            each(&arguments.places, &|path| editor.change_owner(path, owner, arguments.recursive, follow))
        }
        EditCommand::Setfattr(arguments) => {
            let (name, value) = attribute(arguments)?;
            let follow = !arguments.no_dereference;
            each(&arguments.places, &|path| editor.set_xattr(path, name.as_bytes(), value.as_deref(), follow))
        }
        EditCommand::Truncate(arguments) => each(&arguments.places, &|path| editor.truncate(path, arguments.size)),
        EditCommand::Put(arguments) => {
            let path = inside(&arguments.place)?;
            editor.put(&path, std::io::stdin().lock(), under(&arguments.mode).as_ref()).map_err(|error| about(&error))
        }
    }
}

/// Returns the owner and the group of the files that a command makes.
fn owner(command: &EditCommand) -> (u32, u32) {
    let given = match command {
        EditCommand::Cp(arguments) => arguments.owner,
        EditCommand::Mkdir(arguments) => arguments.owner,
        EditCommand::Ln(arguments) => arguments.owner,
        EditCommand::Mknod(arguments) => arguments.owner,
        EditCommand::Put(arguments) => arguments.owner,
        _ => None,
    };
    given.unwrap_or_else(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()))
}

fn split_last<T>(places: &[T]) -> Result<(&T, &[T])> {
    places.split_last().ok_or_else(|| Failure::new("a destination is needed").with_status(2))
}

fn needs_directory<T>(editor: &Editor, from: &[T], to: &Path) -> Result<()> {
    match editor.find(to, true) {
        Ok((_, ubtrfs_format::items::FileType::Directory)) => Ok(()),
        _ if from.len() == 1 => Ok(()),
        _ => Err(Failure::new(format!("{} is not a directory", to.display()))),
    }
}

fn copy(
    editor: &Editor,
    arguments: &Cp,
    image: &Sources,
    owner: (u32, u32),
    locate: &Locate<'_>,
    job: &mut Job<'_>,
) -> Result<()> {
    let (to, from) = split_last(&arguments.places)?;
    let to = locate(to).inside()?;
    let recursive = arguments.recursive || arguments.archive;
    let reflink = match arguments.reflink {
        When::Auto => Reflink::Auto,
        When::Always => Reflink::Always,
        When::Never => Reflink::Never,
    };
    let Cp { archive, dedupe, .. } = *arguments;
    let options = CopyOptions { archive, recursive, reflink, dedupe, owner, umask: crate::host::umask() };
    let (mut within, mut outside) = (Vec::new(), Vec::new());
    for word in from {
        match locate(word) {
            Where::Inside(path) => within.push(path),
            Where::Host(path) => outside.push(path),
        }
    }
    if !within.is_empty() && !outside.is_empty() {
        return Err(Failure::new("files of the host and of the image can't be copied by one command: use two"));
    }
    let done = if outside.is_empty() {
        editor.copy_within(&within, &to, options, job)
    } else {
        let without = image.files().to_vec();
        let source = HostFiles { without_xattrs: !arguments.archive, without, ..HostFiles::default() };
        let file = |path: PathBuf| {
            image.refuse(&path)?;
            Ok(host_file(path, recursive))
        };
        let files = outside.into_iter().map(file).collect::<Result<_>>()?;
        let copied = editor.copy(&source, files, &to, options, job);
        for path in source.left_out.take() {
            note!("ubtrfs: {}: it is the image itself, and left out", show::bytes(path.as_os_str().as_bytes()));
        }
        copied
    };
    done.map_err(|error| about(&error))
}

/// Returns a file to copy, with the name that it gets in a directory. If the path itself is a
/// symbolic link, it is followed, unless directories are copied, as with cp(1). `DIR/.` has no
/// name.
fn host_file(path: PathBuf, recursive: bool) -> (HostFile, Option<OsString>) {
    let name = if is_content(&path) { None } else { path.file_name().map(OsStr::to_owned) };
    (HostFile::named(path, !recursive), name)
}

fn make_node(editor: &Editor, arguments: &Mknod, path: &Path, mode: Option<&ModeChange>) -> Result<()> {
    let kind = match arguments.kind.as_str() {
        "b" => posix::S_IFBLK,
        "c" => posix::S_IFCHR,
        _ => posix::S_IFIFO,
    };
    let rdev = match (arguments.kind.as_str(), arguments.major, arguments.minor) {
        ("p", None, None) => 0,
        ("b" | "c", Some(major), Some(minor)) => major << 20 | minor,
        ("p", ..) => return Err(Failure::new("a FIFO has no numbers").with_status(2)),
        _ => return Err(Failure::new("a device needs its MAJOR and MINOR number").with_status(2)),
    };
    let group = arguments.owner.map(|(_, gid)| gid);
    editor.make_node(path, kind, mode, rdev, group).map_err(|error| about(&error))
}

/// Returns the name of an attribute, and its value; `None` if the attribute is removed.
fn attribute(arguments: &Setfattr) -> Result<(&OsStr, Option<Vec<u8>>)> {
    let (Some(name), value) = (&arguments.name, &arguments.value) else {
        return Ok((arguments.remove.as_deref().unwrap_or_default(), None));
    };
    let value = value.as_deref().unwrap_or_default().as_bytes();
    let Some(digits) = value.strip_prefix(b"0x").or(value.strip_prefix(b"0X")) else {
        return Ok((name, Some(value.to_vec())));
    };
    let byte = |pair: &[u8]| {
        let text =
            std::str::from_utf8(pair).ok().filter(|_| pair.iter().all(u8::is_ascii_hexdigit) && pair.len() == 2)?;
        u8::from_str_radix(text, 16).ok()
    };
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let wrong = || Error::Refused("after 0x a value consists of pairs of hexadecimal digits".into());
    Ok((name, Some(bytes.ok_or_else(|| about(&wrong()))?)))
}
