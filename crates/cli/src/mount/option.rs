//! The types of the [table](super::option_table) of mount options.

use ubtrfs::CompressionMode;
use ubtrfs_fuse::mount::MountFlags;

use super::request::MountRequest;
use crate::size::parse_size;

/// The algorithms that completions offer.
const ALGORITHMS: [&str; 4] = ["zlib", "lzo", "zstd", "no"];

/// The effect of an option without an argument; the flag is false for its opposite.
type Switch = fn(&mut MountRequest, bool);

/// The argument of an option, after its `=`, and its effect.
pub enum Argument {
    /// No argument is allowed.
    None(Switch),
    /// Any text. The function gets the whole option first, and the text second.
    Text(&'static str, fn(&mut MountRequest, &str, &str)),
    /// A number within these bounds. The sentence is the error about other values.
    Number(&'static str, u64, u64, &'static str, fn(&mut MountRequest, u64)),
    /// A size of at least so many bytes. The sentence is the error about smaller ones.
    Size(u64, &'static str, fn(&mut MountRequest, u64)),
    /// An octal number up to this one. The sentence is the error about other values.
    Octal(u32, &'static str, fn(&mut MountRequest, u32)),
    /// One of several words. The sentence is the error about other words.
    Word(&'static [Word], &'static str),
    /// One or more words, separated by `:`.
    Words(&'static [Word], &'static str),
    /// An algorithm, optionally with a level. The flag says whether compression is forced.
    Compression(bool),
    /// Any argument, or none. The option is ignored, and the sentence is a warning.
    Remarked(&'static str),
    /// Any argument, or none. The option is refused, and the sentence is the reason.
    Refused(&'static str),
}

/// A value of an argument, its other names, and its effect.
pub struct Word(pub &'static str, pub &'static [&'static str], pub fn(&mut MountRequest));

/// Which program or document an option comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This program.
    Ours,
    /// btrfs(5).
    Btrfs,
    /// The kernel's VFS, FUSE and security modules.
    Vfs,
    /// mount(8), fstab(5), systemd.mount(5).
    Fstab,
}

/// Who may give an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Anyone,
    /// The option has no effect for other users.
    Root,
}

/// The effect of an option in a remount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remount {
    /// No change is possible: the option may be given if it is in force, and its opposite if it is
    /// not.
    Stays,
    /// The option may be given unless one of these is in force.
    Unless(&'static [&'static str]),
    /// The kernel sets this flag of the mount.
    Flag(MountFlags),
    /// The kernel clears this flag of the mount.
    Unset(MountFlags),
    /// The server changes the number of threads that compress.
    Threads,
    /// The server changes the compression of data.
    Compression,
    /// The server changes the flags of new files.
    NewFiles,
    /// The option may be given, and has no effect.
    Nothing,
}

/// What an option applies to, if a volume has several mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each mount has its own value.
    Mount,
    /// The option selects the volume.
    Part,
    /// The value of the first mount applies to all.
    Volume,
}

/// A mount option.
pub struct MountOption {
    /// The name of the option, and its synonyms.
    pub names: &'static [&'static str],
    /// The names of its opposite.
    pub opposites: &'static [&'static str],
    pub argument: Argument,
    /// The effect without the argument, if the argument is optional.
    pub bare: Option<fn(&mut MountRequest)>,
    pub origin: Origin,
    pub who: Who,
    pub remount: Remount,
    pub scope: Scope,
    /// The option is accepted, and has no effect.
    pub is_ignored: bool,
    /// The description for `--help`.
    pub help: &'static str,
}

impl MountOption {
    pub const fn new(names: &'static [&'static str], argument: Argument, origin: Origin, help: &'static str) -> Self {
        Self {
            names,
            opposites: &[],
            argument,
            bare: None,
            origin,
            who: Who::Anyone,
            remount: Remount::Stays,
            scope: Scope::Volume,
            is_ignored: false,
            help,
        }
    }

    pub const fn opposed_by(self, opposites: &'static [&'static str]) -> Self {
        Self { opposites, ..self }
    }

    pub const fn or_bare(self, bare: fn(&mut MountRequest)) -> Self {
        Self { bare: Some(bare), ..self }
    }

    pub const fn for_root(self) -> Self {
        Self { who: Who::Root, ..self }
    }

    pub const fn at_remount(self, remount: Remount) -> Self {
        Self { remount, ..self }
    }

    pub const fn about(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }
}

/// An option as the user gave it, with its row of the table.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub row: &'static MountOption,
    /// The whole option.
    pub option: &'a str,
    /// The text after its `=`.
    pub value: Option<&'a str>,
    /// Whether it is the opposite of the row's option.
    pub is_opposite: bool,
}

impl Given<'_> {
    /// Applies the option to a request. Returns an error if its argument is wrong, or the option is
    /// refused.
    pub fn apply(&self, request: &mut MountRequest) -> Result<(), Wrong> {
        let Some(value) = self.value else {
            match (&self.row.argument, self.row.bare) {
                (Argument::None(switch), _) => switch(request, !self.is_opposite),
                (Argument::Refused(why), _) => return Err(Wrong::Option(why)),
                (_, Some(bare)) => bare(request),
                _ => {}
            }
            return Ok(());
        };
        let wrong = |why: &str| Err(Wrong::Argument(why.to_owned()));
        match &self.row.argument {
            Argument::Text(_, set) => set(request, self.option, value),
            Argument::Number(_, least, most, why, set) => match value.parse::<u64>() {
                Ok(number) if (*least..=*most).contains(&number) => set(request, number),
                Ok(_) => return wrong(why),
                Err(_) => return wrong(&format!("'{value}' is not a number")),
            },
            Argument::Size(least, why, set) => match parse_size(value).map_err(Wrong::Argument)? {
                bytes if bytes < *least => return wrong(why),
                bytes => set(request, bytes),
            },
            Argument::Octal(most, why, set) => match u32::from_str_radix(value, 8) {
                Ok(number) if number <= *most => set(request, number),
                _ => return wrong(why),
            },
            Argument::Word(words, why) => match words.iter().find(|word| word.is(value)) {
                Some(Word(_, _, set)) => set(request),
                None => return wrong(why),
            },
            Argument::Words(words, why) => {
                for one in value.split(':') {
                    match words.iter().find(|word| word.is(one)) {
                        Some(Word(_, _, set)) => set(request),
                        None => return wrong(why),
                    }
                }
            }
            Argument::Compression(force) => match CompressionMode::parse(value, *force) {
                Some(mode) => request.compress(mode),
                None => return wrong("it is zlib[:1..9], lzo, zstd[:-15..15], or no"),
            },
            Argument::Refused(why) => return Err(Wrong::Option(why)),
            Argument::None(_) | Argument::Remarked(_) => {}
        }
        Ok(())
    }

    /// Returns the warning about an option that is ignored, or that has an effect for root only.
    pub fn remark(&self, is_root: bool) -> Option<&'static str> {
        match self.row.argument {
            Argument::Remarked(remark) if !self.row.is_ignored => Some(remark),
            _ if self.row.who == Who::Root && !is_root => Some("only root's mounts can have it"),
            _ => None,
        }
    }
}

/// What is wrong with an option.
#[derive(Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Its argument is wrong.
    Argument(String),
    /// The option is refused.
    Option(&'static str),
}

impl Word {
    fn is(&self, word: &str) -> bool {
        self.0 == word || self.1.contains(&word)
    }
}

impl MountOption {
    /// Whether the option may be given with this argument, or with none.
    pub fn takes(&self, value: Option<&str>) -> bool {
        match (&self.argument, value) {
            (Argument::Refused(_) | Argument::Remarked(_), _) => true,
            (Argument::None(_), value) => value.is_none(),
            (_, None) => self.bare.is_some(),
            (_, Some(_)) => true,
        }
    }

    /// Whether the option has an effect here.
    pub fn counts(&self) -> bool {
        !self.is_ignored && !matches!(self.argument, Argument::Refused(_) | Argument::Remarked(_))
    }

    /// Whether the option is accepted, with an effect or not.
    pub fn is_taken(&self) -> bool {
        !matches!(self.argument, Argument::Refused(_))
    }

    /// Returns the name of the argument, if the option takes one.
    pub fn argument_name(&self) -> Option<&'static str> {
        Some(match &self.argument {
            Argument::Text(name, _) | Argument::Number(name, ..) => name,
            Argument::Size(..) => "SIZE",
            Argument::Octal(..) => "OCTAL",
            Argument::Word(..) | Argument::Words(..) | Argument::Compression(_) => "HOW",
            Argument::None(_) | Argument::Remarked(_) | Argument::Refused(_) => return None,
        })
    }

    /// Returns the words that the argument may be, if they can be listed.
    pub fn words(&self) -> Vec<&'static str> {
        match &self.argument {
            Argument::Word(words, _) | Argument::Words(words, _) => words.iter().map(|word| word.0).collect(),
            Argument::Compression(_) => ALGORITHMS.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Returns all names of the option and its opposite, in each form that may be given: alone, and
    /// with the name of an argument.
    pub fn forms(&self) -> Vec<String> {
        let (names, opposites) = (self.names.iter(), self.opposites.iter().map(|name| (*name).to_owned()));
        let is_alone = self.argument_name().is_none() || self.bare.is_some();
        let of = |name: &&str| {
            let alone = is_alone.then(|| (*name).to_owned());
            alone.into_iter().chain(self.argument_name().map(|argument| format!("{name}={argument}")))
        };
        names.flat_map(of).chain(opposites).collect()
    }
}
