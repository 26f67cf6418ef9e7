//! Changes of permissions as chmod(1) takes them, octal or symbolic.

use std::str::FromStr;
use ubtrfs::format::posix::SET_ID;

/// A change of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange {
    clauses: Vec<Clause>,
    /// Permissions that clauses without a `who` don't change.
    umask: u32,
}

/// A clause such as `u+x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clause {
    /// The bits that it may change, if it names a `who`.
    who: Option<u32>,
    how: char,
    bits: u32,
    /// Whether it has `X`: execution of directories, and of files that somebody may execute
    /// already.
    executes_if: bool,
    /// Whether it is a number of more than four digits, which also changes the set-id bits of
    /// directories.
    is_about_all: bool,
}

impl ModeChange {
    /// Returns the change for a process with this umask. As by chmod(1), a clause without a `who`,
    /// such as `+w`, does not change bits of the umask.
    #[must_use]
    pub fn under(mut self, umask: u32) -> Self {
        self.umask = umask & 0o777;
        self
    }

    /// The bits that the change sets or clears, whatever the permissions are.
    pub(crate) fn said(&self, is_dir: bool) -> u32 {
        0o7777 & !(self.apply(0, is_dir) ^ self.apply(0o7777, is_dir))
    }

    /// Applies the change to permissions. As by chmod(1), the set-user-id and set-group-id bits of
    /// directories are set by any number and by `=`, but cleared only by `-`, or by a number of
    /// more than four digits.
    #[must_use]
    pub fn apply(&self, mode: u32, is_dir: bool) -> u32 {
        self.clauses.iter().fold(mode & 0o7777, |mode, clause| {
            let execute = if clause.executes_if && (is_dir || mode & 0o111 != 0) { 0o111 } else { 0 };
            let bits = (clause.bits | execute) & clause.who.unwrap_or(!self.umask);
            let who = clause.who.unwrap_or(0o7777);
            match clause.how {
                '+' => mode | bits,
                '-' => mode & !bits,
                _ if is_dir && !clause.is_about_all => mode & (!who | SET_ID) | bits,
                _ => mode & !who | bits,
            }
        })
    }
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' are no permissions: write them as 0755 or as u=rwx,go=rx");
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777).ok_or_else(wrong)?;
            let is_about_all = text.len() > 4;
            let clause = Clause { who: Some(0o7777), how: '=', bits, executes_if: false, is_about_all };
            return Ok(Self { clauses: vec![clause], umask: 0 });
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            let split = part.find(['+', '-', '=']).ok_or_else(wrong)?;
            let who = part[..split].chars().try_fold(0, |who, class| match class {
                'u' => Some(who | 0o4700),
                'g' => Some(who | 0o2070),
                'o' => Some(who | 0o1007),
                'a' => Some(0o7777),
                _ => None,
            });
            let who = Some(who.ok_or_else(wrong)?).filter(|who| *who != 0);
            let mut rest = part[split..].chars();
            let how = rest.next().ok_or_else(wrong)?;
            let mut clause = Clause { who, how, bits: 0, executes_if: false, is_about_all: false };
            for letter in rest {
                clause.bits |= match letter {
                    'r' => 0o444,
                    'w' => 0o222,
                    'x' => 0o111,
                    's' => 0o6000,
                    't' => 0o1000,
                    'X' => {
                        clause.executes_if = true;
                        0
                    }
                    _ => return Err(wrong()),
                };
            }
            clauses.push(clause);
        }
        Ok(Self { clauses, umask: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks changes under a umask: the change, the permissions before, and those after.
    fn assert_changes(umask: u32, is_dir: bool, changes: &[(&str, u32, u32)]) {
        for (change, before, after) in changes {
            let changed = change.parse::<ModeChange>().unwrap().under(umask).apply(*before, is_dir);
            assert_eq!(changed, *after, "{change} of {before:o}");
        }
    }

    #[test]
    fn permissions_change_as_chmod_changes_them() {
        let changes = [
            ("644", 0o7777, 0o644),
            ("u+s", 0o755, 0o4755),
            ("g+s,o-rx", 0o755, 0o2750),
            ("+t", 0o777, 0o1777),
            ("a=rX", 0o700, 0o555),
            ("a=rX", 0o600, 0o444),
            ("go=", 0o777, 0o700),
            ("u=rwx,go=rx", 0, 0o755),
        ];
        assert_changes(0, false, &changes);
        assert_eq!("u+X".parse::<ModeChange>().unwrap().apply(0o600, true), 0o700);
        for wrong in ["", "999", "77777", "x", "u", "u?x", "q+x", "u+q", "u+x,"] {
            assert!(wrong.parse::<ModeChange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_umask_counts_where_nobody_is_named() {
        let changes = [
            ("+w", 0o444, 0o644),
            ("-w", 0o777, 0o577),
            ("=rw", 0o777, 0o644),
            ("a+w", 0o444, 0o666),
            ("+s", 0o755, 0o6755),
            ("0666", 0, 0o666),
        ];
        assert_changes(0o022, false, &changes);
        let said = |change: &str| change.parse::<ModeChange>().unwrap().under(0o022).said(false);
        assert_eq!([said("u-w"), said("+w"), said("700")], [0o200, 0o200, 0o7777]);
    }

    #[test]
    fn set_id_bits_of_directories_stay_unless_they_are_named() {
        let changes = [
            ("700", 0o6755, 0o6700),
            ("0755", 0o7777, 0o6755),
            ("2755", 0o4700, 0o6755),
            ("00755", 0o7755, 0o755),
            ("04755", 0o7755, 0o4755),
            ("u=rwx,go=rx", 0o7755, 0o6755),
            ("g=rx", 0o2777, 0o2757),
            ("ug=s", 0o7755, 0o7005),
            ("a=s", 0o7755, 0o6000),
            ("u-s", 0o7755, 0o3755),
            ("ug-s", 0o7755, 0o1755),
        ];
        assert_changes(0, true, &changes);
        assert_eq!("00755".parse::<ModeChange>().unwrap().apply(0o6755, false), 0o755);
    }
}
