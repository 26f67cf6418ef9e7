//! Places in a volume on the command line: `IMAGE:PATH` or `IMAGE PATH`.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

/// A place in a volume: a path on a mount, or `IMAGE:PATH`. Of an argument of this type the command
/// line may have `IMAGE PATH`, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InVolume(OsString);

/// The same, where a regular file on a mount may be meant itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInVolume(OsString);

impl From<OsString> for InVolume {
    fn from(word: OsString) -> Self {
        Self(word)
    }
}

impl From<OsString> for FileInVolume {
    fn from(word: OsString) -> Self {
        Self(word)
    }
}

impl Deref for InVolume {
    type Target = OsStr;

    fn deref(&self) -> &OsStr {
        &self.0
    }
}

impl AsRef<OsStr> for InVolume {
    fn as_ref(&self) -> &OsStr {
        self
    }
}

impl Deref for FileInVolume {
    type Target = OsStr;

    fn deref(&self) -> &OsStr {
        &self.0
    }
}

/// What a word is that may begin a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// An image or a device alone.
    Image,
    /// A place in an image: `IMAGE:PATH`.
    InImage,
    Other,
}

/// The words of the command line in which each `IMAGE PATH` is `IMAGE:PATH`. `classify` says what a
/// word is; its second argument is whether a file on a mount is that file.
pub fn with_images_joined(
    command: &mut Command,
    mut words: Vec<OsString>,
    classify: impl Fn(&OsStr, bool) -> Word,
) -> Vec<OsString> {
    command.build();
    let (mut leaf, mut begin): (&Command, usize) = (command, 1);
    while let Some(next) = words.get(begin).and_then(|word| leaf.find_subcommand(word)) {
        (leaf, begin) = (next, begin + 1);
    }
    let slots = Slots::of(leaf, &words[begin.min(words.len())..]);
    if slots.has_several {
        words = with_options_first(leaf, words, begin);
    }
    let at: Vec<usize> = positionals(leaf, &words, begin);
    let image = at.iter().enumerate().find(|(position, index)| {
        let Some(kind) = slots.place(*position) else { return false };
        classify(&words[**index], kind == PlaceKind::File) == Word::Image
    });
    let Some((image, index)) = image.map(|(position, index)| (position, *index)) else { return words };
    let Some(next) = at.get(image + 1).map(|index| &words[*index]) else { return words };
    let is_whole = at.len() <= slots.most && slots.takes(image + 1, next);
    if at.len() <= slots.least || is_whole || classify(next, false) == Word::InImage {
        return words;
    }
    let image_word = words[index].clone();
    for (position, index) in at.iter().enumerate().skip(image + 1) {
        let word = &mut words[*index];
        if slots.place(position - 1).is_some() && classify(word, false) != Word::InImage {
            let separator = if word.as_bytes().starts_with(b"/") { ":" } else { ":/" };
            let mut joined = image_word.clone();
            joined.push(separator);
            joined.push(&*word);
            *word = joined;
        }
    }
    words.remove(index);
    words
}

/// The kind of place that an argument names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlaceKind {
    Path,
    File,
}

/// The arguments of a command that are no options.
struct Slots<'a> {
    all: Vec<(&'a Arg, Option<PlaceKind>)>,
    /// How many words they take.
    least: usize,
    most: usize,
    /// One takes at least two words.
    has_several: bool,
}

impl<'a> Slots<'a> {
    fn of(command: &'a Command, words: &[OsString]) -> Self {
        // The target of a symbolic link is text, and no place.
        let is_text = command.get_name() == "ln" && words.iter().any(|word| word == "-s" || word == "--symbolic");
        let place = |arg: &Arg| {
            let id = arg.get_value_parser().type_id();
            match () {
                () if is_text && arg.get_id() == "target" => None,
                () if id == TypeId::of::<InVolume>() => Some(PlaceKind::Path),
                () if id == TypeId::of::<FileInVolume>() => Some(PlaceKind::File),
                () => None,
            }
        };
        let all: Vec<_> = command.get_positionals().map(|arg| (arg, place(arg))).collect();
        let has_several = all.iter().any(|(arg, _)| arg.get_num_args().is_some_and(|many| many.min_values() > 1));
        let required = all.iter().filter(|(arg, _)| arg.is_required_set());
        let least = required.map(|(arg, _)| arg.get_num_args().map_or(1, |many| many.min_values())).sum();
        let most = all.iter().map(|(arg, _)| arg.get_num_args().map_or(1, |many| many.max_values()));
        Self { least, most: most.fold(0, usize::saturating_add), has_several, all }
    }

    fn at(&self, position: usize) -> Option<&(&'a Arg, Option<PlaceKind>)> {
        self.all.get(position).or_else(|| self.all.last().filter(|_| self.most == usize::MAX || position < self.most))
    }

    /// Whether the word in this position is a place.
    fn place(&self, position: usize) -> Option<PlaceKind> {
        self.at(position).and_then(|(_, place)| *place)
    }

    /// Whether the argument in this position takes few words, of which this is one.
    fn takes(&self, position: usize, word: &OsStr) -> bool {
        self.at(position).is_some_and(|(arg, _)| arg.get_possible_values().iter().any(|value| value.get_name() == word))
    }
}

/// The same words with all options before the others: the parser counts the words of an argument
/// that takes several from one option to the next.
fn with_options_first(command: &Command, words: Vec<OsString>, begin: usize) -> Vec<OsString> {
    let at = positionals(command, &words, begin);
    let (behind, first): (Vec<_>, Vec<_>) =
        words.into_iter().enumerate().partition(|(index, _)| at.binary_search(index).is_ok());
    first.into_iter().chain(behind).map(|(_, word)| word).collect()
}

/// Where the words are that are neither options nor values of these.
fn positionals(command: &Command, words: &[OsString], begin: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = begin;
    while let Some(word) = words.get(at) {
        let bytes = word.as_bytes();
        let takes_next = match bytes {
            b"--" => {
                found.extend(at + 1..words.len());
                break;
            }
            [b'-', b'-', name @ ..] => long_takes_next(command, name),
            [b'-', first, ..] if short(command, *first).is_some() => short_takes_next(command, &bytes[1..]),
            _ => {
                found.push(at);
                false
            }
        };
        at += 1 + usize::from(takes_next);
    }
    found
}

fn takes_next(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

fn long_takes_next(command: &Command, name: &[u8]) -> bool {
    let is_it = |arg: &&Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases).any(|long| long.as_bytes() == name)
    };
    command.get_opts().find(is_it).is_some_and(takes_next)
}

fn short(command: &Command, letter: u8) -> Option<&Arg> {
    let is_it = |arg: &&Arg| {
        let aliases = arg.get_all_short_aliases().unwrap_or_default();
        arg.get_short().into_iter().chain(aliases).any(|short| short == char::from(letter))
    };
    command.get_arguments().find(is_it)
}

/// The same of options of one letter each: the first that takes a value takes the rest.
fn short_takes_next(command: &Command, letters: &[u8]) -> bool {
    for (index, letter) in letters.iter().enumerate() {
        match short(command, *letter) {
            Some(arg) if arg.get_action().takes_values() => return takes_next(arg) && index + 1 == letters.len(),
            Some(_) => {}
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    fn joined(line: &str) -> String {
        let classify = |word: &OsStr, _: bool| match word.as_bytes() {
            b"IMG" => Word::Image,
            [b'I', b'M', b'G', b':', ..] => Word::InImage,
            _ => Word::Other,
        };
        let words = line.split(' ').map(OsString::from).collect();
        let words = with_images_joined(&mut Arguments::command(), words, classify);
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn an_image_and_a_path_are_one_place() {
        for (given, wanted) in [
            ("ubtrfs subvolume create IMG a /b", "ubtrfs subvolume create IMG:/a IMG:/b"),
            ("ubtrfs subvolume snapshot IMG a b -r", "ubtrfs subvolume snapshot IMG:/a IMG:/b -r"),
            ("ubtrfs diff --device IMG IMG a b", "ubtrfs diff --device IMG IMG:/a IMG:/b"),
            ("ubtrfs diff --since 5 IMG a", "ubtrfs diff --since 5 IMG:/a"),
            ("ubtrfs fi du -s IMG -- -a", "ubtrfs fi du -s -- IMG:/-a"),
            ("ubtrfs chmod -R -w IMG a b", "ubtrfs chmod -R -w IMG:/a IMG:/b"),
            ("ubtrfs mknod IMG dev/null c 1 3", "ubtrfs mknod IMG:/dev/null c 1 3"),
            ("ubtrfs property set IMG a ro true", "ubtrfs property set IMG:/a ro true"),
            ("ubtrfs property get IMG ro ro", "ubtrfs property get IMG:/ro ro"),
            ("ubtrfs setfattr -n IMG -v IMG IMG a", "ubtrfs setfattr -n IMG -v IMG IMG:/a"),
            ("ubtrfs ln IMG a b", "ubtrfs ln IMG:/a IMG:/b"),
            ("ubtrfs ln -s IMG IMG b", "ubtrfs ln -s IMG IMG:/b"),
            ("ubtrfs mv IMG a b c", "ubtrfs mv IMG:/a IMG:/b IMG:/c"),
            ("ubtrfs cp a -r b --owner 1:2 c", "ubtrfs cp -r --owner 1:2 a b c"),
            ("ubtrfs mv a --offset 0 -- -b", "ubtrfs mv --offset 0 -- a -b"),
        ] {
            assert_eq!(joined(given), wanted);
        }
    }

    #[test]
    fn what_is_whole_stays_as_it_is() {
        for line in [
            "ubtrfs subvolume list IMG",
            "ubtrfs subvolume create IMG:a IMG:b",
            "ubtrfs subvolume snapshot IMG:a IMG:b",
            "ubtrfs property get IMG ro",
            "ubtrfs property set IMG ro true",
            "ubtrfs subvolume find-new IMG 5",
            "ubtrfs mv IMG IMG:a",
            "ubtrfs cp IMG a IMG:b",
            "ubtrfs import IMG a.tar",
            "ubtrfs ls IMG /",
            "ubtrfs check IMG IMG",
            "ubtrfs",
        ] {
            assert_eq!(joined(line), line);
        }
    }
}
