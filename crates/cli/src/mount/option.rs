//! Mount options: what the [table](super::option_table) says of each.

use ubtrfs::CompressionMode;
use ubtrfs_fuse::mount::MountFlags;

use super::request::MountRequest;
use crate::size::parse_size;

/// The algorithms that completions offer.
const ALGORITHMS: [&str; 4] = ["zlib", "lzo", "zstd", "no"];

/// What an option without an argument does, or its opposite where the flag is false.
type Switch = fn(&mut MountRequest, bool);

/// What follows the `=` of an option, and what it does.
pub enum Argument {
    /// Nothing may follow.
    None(Switch),
    /// Any text; the whole option is given first, the text second.
    Text(&'static str, fn(&mut MountRequest, &str, &str)),
    /// A number from the first to the second; the sentence is about others.
    Number(&'static str, u64, u64, &'static str, fn(&mut MountRequest, u64)),
    /// A size of at least so many bytes; the sentence is about smaller ones.
    Size(u64, &'static str, fn(&mut MountRequest, u64)),
    /// An octal number up to this one; the sentence is about others.
    Octal(u32, &'static str, fn(&mut MountRequest, u32)),
    /// One of several words; the sentence is about others.
    Word(&'static [Word], &'static str),
    /// One or more words with `:` between.
    Words(&'static [Word], &'static str),
    /// An algorithm, perhaps with a level; forced or not.
    Compression(bool),
    /// Any, or none: the option is passed over, and the sentence is a warning.
    Remarked(&'static str),
    /// Any, or none: the option is refused for this reason.
    Refused(&'static str),
}

/// A value of an argument, its other names, and what it does.
pub struct Word(pub &'static str, pub &'static [&'static str], pub fn(&mut MountRequest));

/// Where an option comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This program's.
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
    /// For others it has no effect.
    Root,
}

/// What a remount makes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remount {
    /// It stays as it is: it may be given where it is in force, its opposite where it is not.
    Stays,
    /// It may be given unless one of these is in force.
    Unless(&'static [&'static str]),
    /// The kernel changes this flag of the mount.
    Flag(MountFlags),
    /// The kernel takes this flag of the mount away.
    Unset(MountFlags),
    /// The server changes how many threads compress.
    Threads,
    /// The server changes how data is compressed.
    Compression,
    /// The server changes what new files are like.
    NewFiles,
    /// It may be given, and means nothing.
    Nothing,
}

/// What an option is about, where a volume has several mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each mount has its own.
    Mount,
    /// It says which volume is meant.
    Part,
    /// That of the first mount counts for all.
    Volume,
}

/// A mount option.
pub struct MountOption {
    /// Its name, and others that mean the same.
    pub names: &'static [&'static str],
    /// The names of its opposite.
    pub opposites: &'static [&'static str],
    pub argument: Argument,
    /// What it does without its argument, where it may lack that.
    pub bare: Option<fn(&mut MountRequest)>,
    pub origin: Origin,
    pub who: Who,
    pub remount: Remount,
    pub scope: Scope,
    /// It is taken, and changes nothing.
    pub is_ignored: bool,
    /// What it does, for `--help`.
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

/// An option as it was given, with its row of the table.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub row: &'static MountOption,
    /// The whole of it.
    pub option: &'a str,
    /// What follows its `=`.
    pub value: Option<&'a str>,
    /// It is the opposite of what the row is about.
    pub is_opposite: bool,
}

impl Given<'_> {
    /// Does to a request what the option says; else why its argument, or the option, is none.
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

    /// The warning about an option that is passed over, or that is only root's.
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
    /// Its argument.
    Argument(String),
    /// All of it.
    Option(&'static str),
}

impl Word {
    fn is(&self, word: &str) -> bool {
        self.0 == word || self.1.contains(&word)
    }
}

impl MountOption {
    /// Whether it may be given with this argument, or with none.
    pub fn takes(&self, value: Option<&str>) -> bool {
        match (&self.argument, value) {
            (Argument::Refused(_) | Argument::Remarked(_), _) => true,
            (Argument::None(_), value) => value.is_none(),
            (_, None) => self.bare.is_some(),
            (_, Some(_)) => true,
        }
    }

    /// Whether it means something here.
    pub fn counts(&self) -> bool {
        !self.is_ignored && !matches!(self.argument, Argument::Refused(_) | Argument::Remarked(_))
    }

    /// Whether it may be given, whether it means something or not.
    pub fn is_taken(&self) -> bool {
        !matches!(self.argument, Argument::Refused(_))
    }

    /// What its argument is called, if it takes one.
    pub fn argument_name(&self) -> Option<&'static str> {
        Some(match &self.argument {
            Argument::Text(name, _) | Argument::Number(name, ..) => name,
            Argument::Size(..) => "SIZE",
            Argument::Octal(..) => "OCTAL",
            Argument::Word(..) | Argument::Words(..) | Argument::Compression(_) => "HOW",
            Argument::None(_) | Argument::Remarked(_) | Argument::Refused(_) => return None,
        })
    }

    /// The words that its argument is one of, if there are so few.
    pub fn words(&self) -> Vec<&'static str> {
        match &self.argument {
            Argument::Word(words, _) | Argument::Words(words, _) => words.iter().map(|word| word.0).collect(),
            Argument::Compression(_) => ALGORITHMS.to_vec(),
            _ => Vec::new(),
        }
    }

    /// All of its names and those of its opposite, each as it may be given: alone, and with the
    /// name of an argument.
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
