//! What of a tree comes into a volume, and whom it belongs to there.

use ubtrfs::acl::{self, Acl, AclEntry, AclTag};
use ubtrfs::xattr_names::CAPABILITY;

use crate::path_pattern::{Matched, NamePattern, PathPattern};
use crate::source::Description;

/// Offsets in the value of `security.capability`: of the byte with its version, behind the flags,
/// and of the user id that version 3 has.
const VERSION_BYTE: usize = 3;
const THIRD: u8 = 3;
const ROOT_ID: std::ops::Range<usize> = 20..24;

/// Shell patterns of paths that are left out, with all that is below them.
#[derive(Clone, Debug, Default)]
pub struct Excluded {
    /// Patterns of names, wherever they are.
    names: Vec<NamePattern>,
    /// Patterns of paths from the top.
    paths: Vec<PathPattern>,
}

/// How much of each pattern of paths a directory's path has matched.
#[derive(Clone, Debug, Default)]
pub(crate) struct MatchedPaths(Vec<Matched>);

impl Excluded {
    /// Adds a pattern. One with a slash matches paths from the top, one without a slash matches
    /// names. An error says what is wrong with it.
    pub fn add(&mut self, pattern: &str) -> Result<(), String> {
        let wrong = |why: &str| format!("'{pattern}' is no pattern: {why}");
        let path = pattern.trim_start_matches("./").trim_start_matches('/');
        if path.split('/').any(|name| matches!(name, "" | "." | "..")) {
            return Err(wrong("it has an empty name, . or .. in it, or ends with a slash"));
        }
        if pattern.contains('/') {
            self.paths.push(PathPattern::new(path).map_err(|error| wrong(error.msg))?);
        } else {
            self.names.push(NamePattern::new(path).map_err(|error| wrong(error.msg))?);
        }
        Ok(())
    }

    /// Returns whether the path of a directory has to be known to decide about files in it.
    pub(crate) fn asks_for_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// The state at the top of the tree.
    pub(crate) fn top(&self) -> MatchedPaths {
        MatchedPaths(self.paths.iter().map(PathPattern::begin).collect())
    }

    /// The state for a name in a directory, and whether it is left out.
    pub(crate) fn step(&self, above: &MatchedPaths, name: &[u8]) -> (MatchedPaths, bool) {
        let mut is_left_out = self.names.iter().any(|pattern| pattern.matches(name));
        let matched = self.paths.iter().zip(&above.0).map(|(pattern, above)| {
            let (matched, is_whole) = pattern.step(above, name);
            is_left_out |= is_whole;
            matched
        });
        (MatchedPaths(matched.collect()), is_left_out)
    }

    /// Returns whether a path from the top, or a directory above it, is left out.
    pub fn has_above(&self, names: &[&[u8]]) -> bool {
        if self.names.is_empty() && self.paths.is_empty() {
            return false;
        }
        let mut at = self.top();
        names.iter().any(|name| {
            let is_left_out;
            (at, is_left_out) = self.step(&at, name);
            is_left_out
        })
    }
}

/// A range of numbers of users or groups, and the numbers that replace them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first number.
    pub from: u32,
    /// The number that replaces the first one.
    pub to: u32,
    /// The length of the range.
    pub count: u32,
}

impl IdRange {
    fn map(&self, id: u32) -> Option<u32> {
        let inside = id.checked_sub(self.from).filter(|inside| *inside < self.count)?;
        self.to.checked_add(inside)
    }
}

/// The owners that files get in the volume.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// Whether all files belong to root.
    pub all_root: bool,
    /// Otherwise the first range with a user's number replaces it; other numbers stay.
    pub users: Vec<IdRange>,
    /// The same for groups.
    pub groups: Vec<IdRange>,
}

impl Owners {
    fn changes_nothing(&self) -> bool {
        !self.all_root && self.users.is_empty() && self.groups.is_empty()
    }

    fn user(&self, id: u32) -> u32 {
        mapped(&self.users, id)
    }

    fn group(&self, id: u32) -> u32 {
        mapped(&self.groups, id)
    }

    /// The owner and the group in the volume in place of these.
    pub fn owner(&self, (user, group): (u32, u32)) -> (u32, u32) {
        if self.all_root { (0, 0) } else { (self.user(user), self.group(group)) }
    }

    /// Changes the numbers in ACLs and capabilities. Values that can't be parsed stay as they are,
    /// and are refused when they are set. An error says which ACL would have a user or a group
    /// twice, of which only one would apply.
    pub fn change_xattrs(&self, xattrs: &mut [(Vec<u8>, Vec<u8>)]) -> Result<(), String> {
        if self.users.is_empty() && self.groups.is_empty() {
            return Ok(());
        }
        for (name, value) in xattrs {
            if name == acl::ACCESS || name == acl::DEFAULT {
                self.change_acl(value).map_err(|()| {
                    let name = String::from_utf8_lossy(name);
                    format!("two users or groups of its {name} would become one")
                })?;
            } else if name == CAPABILITY {
                self.change_capabilities(value);
            }
        }
        Ok(())
    }

    fn change_acl(&self, value: &mut Vec<u8>) -> Result<(), ()> {
        let Ok(Some(list)) = Acl::parse(value) else { return Ok(()) };
        let changed = |entry: &AclEntry| AclEntry {
            id: entry.id.map(|id| if entry.tag == AclTag::User { self.user(id) } else { self.group(id) }),
            ..*entry
        };
        let changed = Acl::of(list.entries().iter().map(changed).collect()).ok_or(())?;
        if changed.entries().windows(2).any(|pair| (pair[0].tag, pair[0].id) == (pair[1].tag, pair[1].id)) {
            return Err(());
        }
        *value = changed.to_bytes();
        Ok(())
    }

    fn change_capabilities(&self, value: &mut [u8]) {
        if value.get(VERSION_BYTE) == Some(&THIRD)
            && let Some(bytes) = value.get_mut(ROOT_ID)
            && let Ok(root) = <[u8; 4]>::try_from(&*bytes)
        {
            bytes.copy_from_slice(&self.user(u32::from_le_bytes(root)).to_le_bytes());
        }
    }

    /// Changes the description of a file.
    pub(crate) fn change(&self, of: &mut Description) -> Result<(), String> {
        if self.changes_nothing() {
            return Ok(());
        }
        (of.uid, of.gid) = self.owner((of.uid, of.gid));
        self.change_xattrs(&mut of.xattrs)
    }
}

fn mapped(ranges: &[IdRange], id: u32) -> u32 {
    ranges.iter().find_map(|range| range.map(id)).unwrap_or(id)
}

/// What of a tree comes into a volume, and whom it belongs to there.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The files that are left out.
    pub excluded: Excluded,
    /// The owners of the rest.
    pub owners: Owners,
    /// Whether directories of the host on which other file systems are mounted are taken as empty.
    pub one_file_system: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded(patterns: &[&str]) -> Excluded {
        let mut excluded = Excluded::default();
        for pattern in patterns {
            excluded.add(pattern).unwrap();
        }
        excluded
    }

    #[test]
    fn patterns_are_of_names_or_of_paths_from_the_top() {
        let has = |patterns: &[&str], path: &str| {
            let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
            excluded(patterns).has_above(&names)
        };
        assert!(has(&["*.o"], "a/b/c.o") && has(&["*.o"], ".o"));
        assert!(has(&["b"], "a/b/c"), "with all that is below");
        assert!(!has(&["*.o"], "a/b.oo"));
        assert!(has(&["/proc/*"], "proc/1") && !has(&["/proc/*"], "proc") && !has(&["/proc/*"], "a/proc/1"));
        assert!(has(&["a/*/c"], "a/b/c/d") && !has(&["a/*/c"], "a/b/b/c"));
        assert!(has(&["a/**/c"], "a/b/b/c"));
        assert!(has(&["/tmp"], "tmp/x") && !has(&["/tmp"], "a/tmp"));
        assert!(!has(&[], "a"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        assert!(excluded(&["./a"]).has_above(&[b"a", b"b"]) && !excluded(&["./a"]).has_above(&[b"b", b"a"]));
        for wrong in ["", "/", "a/", "a[", "***", "a//b", "../a", "a/./b", "a/..", "."] {
            assert!(Excluded::default().add(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_become_those_of_the_first_range_that_has_them() {
        let range = |from, to, count| IdRange { from, to, count };
        let users = vec![range(1000, 0, 1), range(1000, 5, 10), range(u32::MAX - 5, u32::MAX - 2, 9)];
        let owners = Owners { users, ..Owners::default() };
        assert_eq!(owners.owner((1000, 1000)), (0, 1000));
        assert_eq!(owners.owner((1009, 7)), (14, 7));
        assert_eq!(owners.owner((u32::MAX - 1, 0)).0, u32::MAX - 1, "no number beyond the last one");
        let all = Owners { all_root: true, ..Owners::default() };
        assert_eq!(all.owner((5, 6)), (0, 0));
    }

    #[test]
    fn acls_and_capabilities_have_the_same_numbers() {
        let entry = |tag, id| AclEntry { tag, permissions: 7, id };
        let own = [AclTag::Owner, AclTag::OwningGroup, AclTag::Mask, AclTag::Other].map(|tag| entry(tag, None));
        let with = |user, group| {
            let named = [entry(AclTag::User, Some(user)), entry(AclTag::Group, Some(group))];
            Acl::of(own.into_iter().chain(named).collect()).unwrap().to_bytes()
        };
        let capabilities = |root: u32| [vec![1, 0, 0, 3], vec![0; 16], root.to_le_bytes().to_vec()].concat();
        let range = IdRange { from: 100, to: 200, count: 50 };
        let owners = Owners { users: vec![range], groups: vec![range], ..Owners::default() };
        let mut xattrs = vec![
            (acl::ACCESS.to_vec(), with(120, 149)),
            (CAPABILITY.to_vec(), capabilities(101)),
            (b"user.x".to_vec(), vec![1, 0, 0, 3]),
        ];
        owners.change_xattrs(&mut xattrs).unwrap();
        assert_eq!(xattrs[0].1, with(220, 249));
        assert_eq!(xattrs[1].1, capabilities(201));
        assert_eq!(xattrs[2].1, [1, 0, 0, 3]);
    }

    #[test]
    fn a_list_that_would_have_a_user_twice_is_refused() {
        let entry = |tag, id| AclEntry { tag, permissions: 7, id };
        let own = [AclTag::Owner, AclTag::OwningGroup, AclTag::Mask, AclTag::Other].map(|tag| entry(tag, None));
        let named = [1000, 1001].map(|user| entry(AclTag::User, Some(user)));
        let list = Acl::of(own.into_iter().chain(named).collect()).unwrap().to_bytes();
        let users = [1000, 1001].map(|from| IdRange { from, to: 7, count: 1 }).to_vec();
        let mut xattrs = vec![(acl::DEFAULT.to_vec(), list)];
        let refused = Owners { users, ..Owners::default() }.change_xattrs(&mut xattrs);
        assert!(refused.unwrap_err().contains("system.posix_acl_default"));
    }
}
