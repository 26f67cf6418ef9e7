//! Makes sequences from seeds.
//!
//! Many calls use few names, so that calls find what others have left. Most sequences begin with
//! some files, directories and a subvolume.

mod attributes;
mod data;
mod volume;

use super::actors::CAPABILITIES;
use super::call::{Actor, Call, CallStep, Hex, Octal, On, OpenFlags, View};
use ubtrfs_random::Rng;

const FILES: &[&str] = &["f0", "f1", "f2", "d0/f0", "d0/f1", "d1/f0", "s0/f0", "s0/f1", "s1/f0", "d0/d2/f0", "s2/f0"];
const DIRS: &[&str] = &["d0", "d1", "d0/d2", "s0/d0", "d3", "s0", "."];
const SUBVOLUMES: &[&str] = &["s0", "s1", "s2", "d0/s0", "s0/s1"];
const OTHERS: &[&str] = &["l0", "d0/l1", "p0", "c0", "l2", "s0/l0"];
const ODD: &[&str] = &[
    "",
    ".",
    "d0/..",
    "d0/.",
    "f0/",
    "f0/x",
    "d0/",
    "l0/",
    "nothing",
    "nothing/f0",
    "l0/f0",
    "d0/../f1",
    "s0/..",
    "s0/.",
    "s1/s1/f0",
];

/// The maximum length of a sequence.
const LENGTH: u64 = 40;

/// Returns the sequence of a seed.
pub fn sequence(seed: u64) -> Vec<CallStep> {
    let mut generator = Generator { rng: Rng::new(seed ^ 0xd1ff), has_space: false, views: 1 };
    // Rare actors and mounts take part in some sequences only; otherwise each would have them, and
    // few sequences would consist of usual calls.
    generator.has_space = generator.rng.one_in(6);
    generator.views = if generator.rng.one_in(2) { 1 } else { 3 };
    let many_actors = generator.rng.one_in(2);
    let mut steps = if generator.rng.one_in(5) { Vec::new() } else { generator.beginning() };
    let length = 4 + generator.rng.below(LENGTH - 4);
    for _ in 0..length {
        let actor = if many_actors { generator.actor() } else { Actor::Root };
        let view = generator.view();
        let call = generator.call();
        steps.push(CallStep { actor, view, call });
    }
    // The kernel defragments a file of exabytes for minutes, though all of it is a hole.
    if steps.iter().any(|step| matches!(step.call, Call::Defragment { .. } | Call::DefragmentRange { .. })) {
        steps.retain(|step| !makes_huge(&step.call));
    }
    steps
}

/// Returns whether a call may make a file very large.
fn makes_huge(call: &Call) -> bool {
    const HUGE: i64 = 1 << 40;
    match *call {
        Call::Write { offset, .. } | Call::WriteFlagged { offset, .. } => offset > HUGE,
        Call::Truncate { length, .. } => length > HUGE,
        Call::Allocate { offset, length, .. } => offset > HUGE || length > HUGE,
        Call::CopyRange { to_offset, .. } => to_offset > HUGE,
        _ => false,
    }
}

struct Generator {
    rng: Rng,
    has_space: bool,
    views: u64,
}

impl Generator {
    /// Returns calls that make some files and directories to work with.
    fn beginning(&mut self) -> Vec<CallStep> {
        let dir = |path: &str, mode| Call::MakeDirectory { path: path.into(), mode: Octal(mode) };
        let flags = OpenFlags(libc::O_RDWR | libc::O_CREAT);
        let file = |slot, path: &str, mode| Call::Open { slot, path: path.into(), flags, mode: Octal(mode) };
        let mut calls = vec![
            Call::Umask { mask: Octal(0) },
            dir("d0", 0o777),
            dir("d1", if self.rng.one_in(2) { 0o1777 } else { 0o755 }),
            file(0, "f0", 0o666),
            Call::Write { slot: 0, offset: 0, length: 1 + self.length(), seed: 6 },
            Call::MakeSubvolume { on: On::Path(".".into()), name: "s0".into(), old: self.rng.one_in(2), flags: Hex(0) },
            Call::Chmod { on: On::Path("s0".into()), mode: Octal(0o777) },
            file(1, "s0/f0", 0o644),
            Call::Write { slot: 1, offset: 0, length: 1 + self.length(), seed: 7 },
            Call::Symlink { target: "f0".into(), path: "l0".into() },
        ];
        if self.rng.one_in(2) {
            calls.push(Call::Chown { on: On::Path("f0".into()), user: Some(1000), group: Some(1000) });
            calls.push(Call::Chown { on: On::Path("d0".into()), user: Some(1000), group: Some(1000) });
            calls.push(Call::Chown { on: On::Path("s0".into()), user: Some(1000), group: Some(1000) });
        }
        if self.rng.one_in(2) {
            calls.push(Call::Umask { mask: Octal(0o022) });
        }
        calls.into_iter().map(|call| CallStep { actor: Actor::Root, view: View::Plain, call }).collect()
    }

    fn actor(&mut self) -> Actor {
        match self.rng.below(20) {
            0..=6 => Actor::Root,
            7..=10 => Actor::Owner,
            11..=12 => Actor::Member,
            13 => Actor::Supplementary,
            14 => Actor::Powerless,
            15 => Actor::Capable(*self.rng.pick(&CAPABILITIES)),
            16..=17 if self.has_space => Actor::SpaceRoot,
            18 if self.has_space => Actor::SpaceUser,
            _ => Actor::Other,
        }
    }

    fn view(&mut self) -> View {
        match self.rng.below(8) {
            0 if self.views > 1 => View::ReadOnly,
            1 | 2 if self.views > 1 => View::Idmapped,
            _ => View::Plain,
        }
    }

    // Parts of calls.

    fn path_of(&mut self, usual: &[&str]) -> String {
        let list = match self.rng.below(24) {
            0 => FILES,
            1 => DIRS,
            2 => SUBVOLUMES,
            3 => OTHERS,
            4 if self.rng.one_in(2) => ODD,
            5 if self.rng.one_in(6) => return "n".repeat(*self.rng.pick(&[254, 255, 256])),
            _ => usual,
        };
        // The first names of the list are chosen most often.
        let index = self.rng.index(list.len()).min(self.rng.index(list.len()));
        list[index].to_owned()
    }

    fn file(&mut self) -> String {
        self.path_of(FILES)
    }

    fn dir(&mut self) -> String {
        self.path_of(DIRS)
    }

    fn subvolume(&mut self) -> String {
        self.path_of(SUBVOLUMES)
    }

    fn any(&mut self) -> String {
        let list = *self.rng.pick(&[FILES, FILES, DIRS, SUBVOLUMES, OTHERS]);
        self.path_of(list)
    }

    fn slot(&mut self) -> u8 {
        // Few slots are used at a time.
        self.rng.below(4).min(self.rng.below(4)) as u8
    }

    /// Returns a path of one of these kinds, or an open file.
    fn on(&mut self, usual: &[&str]) -> On {
        if self.rng.one_in(3) { On::Slot(self.slot()) } else { On::Path(self.path_of(usual)) }
    }

    fn on_any(&mut self) -> On {
        if self.rng.one_in(3) { On::Slot(self.slot()) } else { On::Path(self.any()) }
    }

    fn mode(&mut self) -> Octal {
        let usual = [0o644, 0o755, 0o777, 0o700, 0o600, 0o666, 0o2775, 0o1777, 0o4755, 0o2755, 0, 0o6777, 0o070, 0o007];
        Octal(if self.rng.one_in(6) { self.rng.below(0o10000) as u32 } else { *self.rng.pick(&usual) })
    }

    fn length(&mut self) -> u32 {
        match self.rng.below(12) {
            0 => 0,
            1 => 4096,
            2 => 8192,
            3 => 2048,
            4 => 4095,
            5 => 65536,
            6 => self.rng.below(200_000) as u32,
            7..=8 => self.rng.below(20_000) as u32,
            _ => self.rng.below(3000) as u32,
        }
    }

    fn offset(&mut self) -> i64 {
        match self.rng.below(16) {
            0..=4 => 0,
            5..=7 => 4096 * self.rng.below(8) as i64,
            8..=9 => self.rng.below(4096) as i64,
            10..=12 => self.rng.below(40_000) as i64,
            13 => self.rng.below(1 << 20) as i64,
            14 => 1 << (20 + self.rng.below(24)),
            _ => *self.rng.pick(&[-1, i64::MAX, i64::MAX - 4095, 1 << 62, 131_072, 65536]),
        }
    }

    fn call(&mut self) -> Call {
        match self.rng.below(100) {
            0..=11 => self.open(),
            12..=37 => self.of_data(),
            38..=58 => self.of_names(),
            59..=74 => self.of_attributes(),
            75..=84 => self.look(),
            85..=98 => self.of_subvolumes(),
            _ => self.of_volume(),
        }
    }

    fn open(&mut self) -> Call {
        let slot = self.slot();
        let mut flags = *self.rng.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR, libc::O_RDWR]);
        if self.rng.one_in(40) {
            flags = 3;
        }
        let more = [
            libc::O_CREAT,
            libc::O_EXCL,
            libc::O_TRUNC,
            libc::O_APPEND,
            libc::O_DSYNC,
            libc::O_SYNC,
            libc::O_DIRECT,
            libc::O_PATH,
            libc::O_NOFOLLOW,
            libc::O_DIRECTORY,
            libc::O_NOATIME,
        ];
        if self.rng.one_in(2) {
            flags |= libc::O_CREAT;
        }
        for _ in 0..self.rng.below(3) {
            flags |= *self.rng.pick(&more);
        }
        match self.rng.below(12) {
            0 => Call::Open {
                slot,
                path: self.dir(),
                flags: OpenFlags(flags & !libc::O_CREAT | libc::O_TMPFILE),
                mode: self.mode(),
            },
            1 => {
                let path = self.any();
                let resolve = 1 << self.rng.below(5);
                Call::OpenResolving { slot, path, flags: OpenFlags(flags), resolve: Hex(resolve) }
            }
            2 => {
                let path = self.dir();
                let flags = if self.rng.one_in(4) { libc::O_PATH } else { libc::O_RDONLY };
                Call::Open { slot, path, flags: OpenFlags(flags | libc::O_DIRECTORY), mode: Octal(0) }
            }
            3 => Call::Close { slot },
            4 => Call::NameToHandle { handle: self.slot(), on: self.on_any() },
            5 => Call::OpenHandle { slot, handle: self.slot(), flags: OpenFlags(flags) },
            _ => Call::Open { slot, path: self.file(), flags: OpenFlags(flags), mode: self.mode() },
        }
    }

    fn of_names(&mut self) -> Call {
        match self.rng.below(24) {
            0..=3 => Call::MakeDirectory { path: self.dir(), mode: self.mode() },
            4 => {
                let kind = *self.rng.pick(&[
                    (libc::S_IFREG, (0, 0)),
                    (0, (0, 0)),
                    (libc::S_IFIFO, (0, 0)),
                    (libc::S_IFSOCK, (0, 0)),
                    (libc::S_IFCHR, (1, 3)),
                    (libc::S_IFCHR, (0, 0)),
                    (libc::S_IFBLK, (4095, 1_048_575)),
                    (libc::S_IFDIR, (0, 0)),
                    (libc::S_IFLNK, (0, 0)),
                ]);
                let mode = Octal(kind.0 | self.mode().0);
                Call::MakeNode { path: self.path_of(OTHERS), mode, device: kind.1 }
            }
            5..=6 => Call::RemoveDirectory { path: self.dir() },
            7..=10 => Call::Unlink { path: self.any() },
            11 => {
                let targets = ["f0", "d0", "nothing", "l0", "../f0", "s0/f0", ".", ""];
                let target = match self.rng.below(12) {
                    0 => "t".repeat(*self.rng.pick(&[4095, 4096, 3000])),
                    _ => (*self.rng.pick(&targets)).to_owned(),
                };
                Call::Symlink { target, path: self.path_of(OTHERS) }
            }
            12..=13 => Call::Link { from: self.any(), to: self.file(), follow: self.rng.one_in(3) },
            14..=15 => Call::LinkSlot { slot: self.slot(), to: self.file(), by_proc: self.rng.one_in(2) },
            16 => Call::Umask { mask: Octal(*self.rng.pick(&[0, 0o022, 0o077, 0o777, 0o027])) },
            _ => {
                let flags = match self.rng.below(10) {
                    0..=4 => 0,
                    5 => 1,
                    6..=7 => 2,
                    8 => 4,
                    _ => self.rng.below(16),
                };
                Call::Rename { from: self.any(), to: self.any(), flags: Hex(flags) }
            }
        }
    }

    fn look(&mut self) -> Call {
        match self.rng.below(16) {
            0..=5 => Call::Stat { on: self.on_any(), follow: self.rng.one_in(3) },
            6..=7 => {
                let flags = *self.rng.pick(&[0, libc::AT_EACCESS, libc::AT_SYMLINK_NOFOLLOW]);
                Call::Access { path: self.any(), mode: self.rng.below(8) as i32, flags }
            }
            8 => Call::StatVolume { on: self.on_any() },
            9 => Call::ReadLink { path: self.path_of(OTHERS) },
            10..=12 => Call::List { on: self.on(DIRS) },
            13 => Call::ListXattrs { on: self.on_any(), room: *self.rng.pick(&[4096, 4096, 0, 10]) },
            _ => Call::GetXattr {
                on: self.on_any(),
                name: self.xattr_name(),
                room: *self.rng.pick(&[4096, 4096, 4096, 0, 2]),
            },
        }
    }
}
