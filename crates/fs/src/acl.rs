//! POSIX ACLs as the values of `system.posix_acl_access` and `system.posix_acl_default`: the rules
//! of acl(5) and the form of `linux/posix_acl_xattr.h`. The kernel checks permissions by them; a
//! file system has to keep them consistent with the mode and let new files inherit them.

use crate::error::Errno;

/// The attribute that holds an inode's own ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds the ACL that a directory's new entries inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// The id in entries that name no user or group.
const NO_ID: u32 = u32::MAX;

/// The subject of an entry, in the order that a list must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AclTag {
    /// The inode's owner.
    Owner = 0x01,
    /// Another user.
    User = 0x02,
    /// The inode's group.
    OwningGroup = 0x04,
    /// Another group.
    Group = 0x08,
    /// The most that all but the owner and others may have.
    Mask = 0x10,
    /// All others.
    Other = 0x20,
}

impl AclTag {
    fn from_raw(raw: u16) -> Option<Self> {
        [Self::Owner, Self::User, Self::OwningGroup, Self::Group, Self::Mask, Self::Other]
            .into_iter()
            .find(|tag| *tag as u16 == raw)
    }

    fn is_named(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// The subject.
    pub tag: AclTag,
    /// The bits `rwx`.
    pub permissions: u16,
    /// The id of a named user or group; `None` for other subjects.
    pub id: Option<u32>,
}

/// A valid list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

/// The mode and the ACL that a new inode gets from its directory's default ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Type and permissions.
    pub mode: u32,
    /// Its access ACL, unless the mode expresses all of it.
    pub access: Option<Vec<u8>>,
}

impl Acl {
    /// Creates a list of these entries, which may be in any order; entries of one kind are sorted
    /// by id. `None` if they are not a valid list.
    pub fn of(mut entries: Vec<AclEntry>) -> Option<Self> {
        entries.sort_by_key(|entry| (entry.tag, entry.id));
        let acl = Self { entries };
        acl.is_valid().then_some(acl)
    }

    /// Parses an attribute's value. `None` for a list without entries, which means that there is no
    /// ACL. `EOPNOTSUPP` for another version of the format, `EINVAL` for an invalid list.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, Errno> {
        let (header, body) = value.split_first_chunk::<HEADER>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*header) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let (records, []) = body.as_chunks::<ENTRY>() else { return Err(Errno::INVAL) };
        let entries: Vec<AclEntry> =
            records.iter().map(|record| read_entry(*record)).collect::<Option<_>>().ok_or(Errno::INVAL)?;
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Errno::INVAL) }
    }

    /// Its entries, in their order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Returns the attribute's value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            value.extend((entry.tag as u16).to_le_bytes());
            value.extend(entry.permissions.to_le_bytes());
            value.extend(entry.id.unwrap_or(NO_ID).to_le_bytes());
        }
        value
    }

    /// Whether the nine permission bits of a mode express all of it.
    pub fn is_trivial(&self) -> bool {
        self.entries.len() == 3
    }

    /// Returns the permission bits of the mode of an inode that has this list: those of the owner,
    /// of the mask (without one, of the owning group) and of others.
    pub fn mode_bits(&self) -> u32 {
        let group = self.permissions(AclTag::Mask).or(self.permissions(AclTag::OwningGroup));
        let of = |permissions: Option<u16>| u32::from(permissions.unwrap_or(0));
        of(self.permissions(AclTag::Owner)) << 6 | of(group) << 3 | of(self.permissions(AclTag::Other))
    }

    /// Whether a process that is not the owner may do all of `wanted` (bits as in a mode).
    /// `is_user` and `is_in` tell whether it is this user and in this group, `owning` whether it is
    /// in the owning group. If it is in groups of the list, one of them has to allow everything.
    pub fn allows(
        &self,
        wanted: u16,
        is_user: impl Fn(u32) -> bool,
        owning: bool,
        is_in: impl Fn(u32) -> bool,
    ) -> bool {
        let mask = self.permissions(AclTag::Mask).unwrap_or(7);
        if let Some(entry) =
            self.entries.iter().find(|entry| entry.tag == AclTag::User && entry.id.is_some_and(&is_user))
        {
            return entry.permissions & mask & wanted == wanted;
        }
        let is_mine = |entry: &&AclEntry| match entry.tag {
            AclTag::OwningGroup => owning,
            AclTag::Group => entry.id.is_some_and(&is_in),
            _ => false,
        };
        let mut groups = self.entries.iter().filter(is_mine).peekable();
        if groups.peek().is_some() {
            return groups.any(|entry| entry.permissions & mask & wanted == wanted);
        }
        self.permissions(AclTag::Other).unwrap_or(0) & wanted == wanted
    }

    /// Changes the list as chmod(2) with this mode does.
    pub fn chmod(&mut self, mode: u32) {
        self.change_bits(|_, new| new, mode);
    }

    /// Returns what an inode created with `mode` inherits if this is the directory's default ACL:
    /// each of the three sets of permissions is what both the list and the mode allow. The umask
    /// does not apply.
    pub fn inherit(mut self, mode: u32) -> Inherited {
        self.change_bits(|old, new| old & new, mode);
        let mode = mode & !0o777 | self.mode_bits();
        Inherited { mode, access: (!self.is_trivial()).then(|| self.to_bytes()) }
    }

    /// Changes the entries that correspond to the mode's bits.
    fn change_bits(&mut self, change: impl Fn(u16, u16) -> u16, mode: u32) {
        let group = if self.permissions(AclTag::Mask).is_some() { AclTag::Mask } else { AclTag::OwningGroup };
        for (tag, shift) in [(AclTag::Owner, 6), (group, 3), (AclTag::Other, 0)] {
            for entry in self.entries.iter_mut().filter(|entry| entry.tag == tag) {
                entry.permissions = change(entry.permissions, (mode >> shift & 7) as u16);
            }
        }
    }

    fn permissions(&self, tag: AclTag) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions)
    }

    fn is_valid(&self) -> bool {
        let count = |tag: AclTag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let named = self.entries.iter().any(|entry| entry.tag.is_named());
        [AclTag::Owner, AclTag::OwningGroup, AclTag::Other].into_iter().all(|tag| count(tag) == 1)
            && (count(AclTag::Mask) == 1 || count(AclTag::Mask) == 0 && !named)
            && self.entries.is_sorted_by_key(|entry| entry.tag)
            && self
                .entries
                .iter()
                .all(|entry| entry.permissions <= 7 && (entry.tag.is_named() == entry.id.is_some_and(|id| id != NO_ID)))
    }
}

fn read_entry(record: [u8; ENTRY]) -> Option<AclEntry> {
    let [t0, t1, p0, p1, id @ ..] = record;
    let tag = AclTag::from_raw(u16::from_le_bytes([t0, t1]))?;
    let id = tag.is_named().then(|| u32::from_le_bytes(id));
    Some(AclEntry { tag, permissions: u16::from_le_bytes([p0, p1]), id })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::parse(&value(entries)).unwrap().unwrap()
    }

    const NONE: u32 = u32::MAX;
    /// `u::rwx,u:1000:rw-,g::r-x,m::rwx,o::r--`
    const NAMED: [(u16, u16, u32); 5] = [(1, 7, NONE), (2, 6, 1000), (4, 5, NONE), (16, 7, NONE), (32, 4, NONE)];
    const PLAIN: [(u16, u16, u32); 3] = [(1, 7, NONE), (4, 5, NONE), (32, 4, NONE)];

    #[test]
    fn named_users_groups_and_others_are_allowed_what_the_mask_leaves() {
        let list = acl(&[(1, 7, NONE), (2, 7, 1000), (4, 1, NONE), (8, 6, 50), (16, 3, NONE), (32, 4, NONE)]);
        let may = |wanted, user: u32, owning, groups: &[u32]| {
            list.allows(wanted, |id| id == user, owning, |id| groups.contains(&id))
        };
        assert!(may(3, 1000, false, &[]) && !may(4, 1000, false, &[]), "a named user within the mask");
        assert!(may(1, 7, true, &[]) && may(2, 7, false, &[50]), "groups");
        assert!(!may(3, 7, true, &[50]), "no group allows both");
        assert!(!may(4, 7, true, &[]), "who is in a group is none of the others");
        assert!(may(4, 7, false, &[]) && !may(1, 7, false, &[]), "others, whatever the mask");
    }

    #[test]
    fn modes_and_lists_say_the_same() {
        assert_eq!(acl(&PLAIN).mode_bits(), 0o754);
        assert!(acl(&PLAIN).is_trivial());
        assert_eq!(acl(&NAMED).mode_bits(), 0o774);
        assert!(!acl(&NAMED).is_trivial());
    }

    #[test]
    fn chmod_changes_the_mask_where_there_is_one() {
        let mut list = acl(&NAMED);
        list.chmod(0o640);
        assert_eq!(list.to_bytes(), value(&[(1, 6, NONE), (2, 6, 1000), (4, 5, NONE), (16, 4, NONE), (32, 0, NONE)]));
        let mut list = acl(&PLAIN);
        list.chmod(0o640);
        assert_eq!(list.to_bytes(), value(&[(1, 6, NONE), (4, 4, NONE), (32, 0, NONE)]));
    }

    #[test]
    fn new_files_get_what_both_allow() {
        let inherited = acl(&NAMED).inherit(0o100_640);
        assert_eq!(inherited.mode, 0o100_640);
        assert_eq!(
            inherited.access,
            Some(value(&[(1, 6, NONE), (2, 6, 1000), (4, 5, NONE), (16, 4, NONE), (32, 0, NONE)]))
        );
        let inherited = acl(&PLAIN).inherit(0o041_777);
        assert_eq!(inherited, Inherited { mode: 0o041_754, access: None });
    }

    #[test]
    fn no_entries_mean_no_list() {
        assert_eq!(Acl::parse(&value(&[])), Ok(None));
    }

    #[test]
    fn invalid_lists_are_refused() {
        let bad: [&[(u16, u16, u32)]; 8] = [
            &PLAIN[..2],
            &[(1, 7, NONE), (1, 7, NONE), (4, 5, NONE), (32, 4, NONE)],
            &[(4, 5, NONE), (1, 7, NONE), (32, 4, NONE)],
            &[(1, 8, NONE), (4, 5, NONE), (32, 4, NONE)],
            // A named user without a mask.
            &[(1, 7, NONE), (2, 6, 1000), (4, 5, NONE), (32, 4, NONE)],
            &[(1, 7, NONE), (2, 6, NONE), (4, 5, NONE), (16, 7, NONE), (32, 4, NONE)],
            &[(1, 7, NONE), (4, 5, NONE), (16, 7, NONE), (16, 7, NONE), (32, 4, NONE)],
            &[(1, 7, NONE), (4, 5, NONE), (32, 4, NONE), (64, 4, NONE)],
        ];
        for entries in bad {
            assert_eq!(Acl::parse(&value(entries)), Err(Errno::INVAL), "{entries:?}");
        }
        let whole = value(&NAMED);
        assert_eq!(Acl::parse(&whole[..whole.len() - 1]), Err(Errno::INVAL));
        assert_eq!(Acl::parse(&[]), Err(Errno::INVAL));
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::OPNOTSUPP));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_list_that_reads_the_same_again_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some(list)) = Acl::parse(&bytes) {
                prop_assert_eq!(Acl::parse(&list.to_bytes()), Ok(Some(list)));
            }
        }

        #[test]
        fn a_chmod_shows_in_the_mode(mode in 0_u32..0o1000, named in any::<bool>()) {
            let mut list = if named { acl(&NAMED) } else { acl(&PLAIN) };
            list.chmod(mode);
            prop_assert_eq!(list.mode_bits(), mode);
        }
    }
}
