//! Extended attributes: which namespaces there are, and how ACLs and the mode depend on each other.

use ubtrfs::{Attributes, InodeId, ModeAndXattr, Plan, SetAttributes, XattrMode};
use ubtrfs_fuse::request::SetXattr;
use ubtrfs_fuse::{Errno, XattrFlags};

use crate::acl::{self, Acl};
use crate::control;
use crate::properties;
use crate::shared::{Shared, errno};

const S_ISGID: u32 = 0o2000;
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// Namespaces whose attributes are kept as they are; the kernel checks who may use them.
const PLAIN: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The capabilities that a program is to have.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// Whether the attribute is kept as it is; a namespace alone is no name.
fn is_plain(name: &[u8]) -> Result<bool, Errno> {
    match PLAIN.iter().find(|prefix| name.starts_with(prefix)) {
        Some(prefix) if name.len() == prefix.len() => Err(Errno::INVAL),
        found => Ok(found.is_some()),
    }
}

/// `EOPNOTSUPP` for the placeholder of a subvolume, which can have none.
fn check_takes_xattrs(id: InodeId) -> Result<(), Errno> {
    if id.is_placeholder() { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

impl Shared {
    pub(crate) fn get_xattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if name.starts_with(control::NAMESPACE) {
            return Err(Errno::NODATA);
        }
        if name == properties::NAMESPACE {
            return Err(Errno::INVAL);
        }
        let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
        let known = is_plain(name)? || is_acl || name.starts_with(properties::NAMESPACE);
        if !known {
            return Err(Errno::OPNOTSUPP);
        }
        self.xattr(id, name)?.ok_or(Errno::NODATA)
    }

    /// Names, each with a NUL at its end.
    pub(crate) fn list_xattrs(&self, id: InodeId) -> Result<Vec<u8>, Errno> {
        let names = self.engine.list_xattrs(id).map_err(|error| errno(&error))?;
        let mut list = Vec::new();
        for name in names {
            list.extend(name);
            list.push(0);
        }
        Ok(list)
    }

    pub(crate) fn set_xattr(&self, id: InodeId, what: &SetXattr<'_>) -> Result<(), Errno> {
        check_takes_xattrs(id)?;
        let mode = if what.flags.contains(XattrFlags::CREATE | XattrFlags::REPLACE) {
            // It may neither be there nor not be there: one of the two modes fails.
            if self.xattr(id, what.name)?.is_some() { XattrMode::Create } else { XattrMode::Replace }
        } else if what.flags.contains(XattrFlags::CREATE) {
            XattrMode::Create
        } else if what.flags.contains(XattrFlags::REPLACE) {
            XattrMode::Replace
        } else {
            XattrMode::Set
        };
        match what.name {
            acl::ACCESS => self.set_access_acl(id, what.value, what.kill_sgid),
            acl::DEFAULT => self.set_default_acl(id, what.value),
            name if name.starts_with(properties::NAMESPACE) => self.set_property(id, name, what.value, mode),
            // The kernel allows every user to set it to an empty value on any file, which would
            // clear the capabilities of a program.
            CAPABILITY if what.value.is_empty() => Err(Errno::INVAL),
            name if is_plain(name)? => self.engine.set_xattr(id, name, what.value, mode).map_err(|error| errno(&error)),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    pub(crate) fn remove_xattr(&self, id: InodeId, name: &[u8]) -> Result<(), Errno> {
        check_takes_xattrs(id)?;
        match name {
            acl::ACCESS | acl::DEFAULT => self.remove_acl(id, name),
            name if name.starts_with(properties::NAMESPACE) => self.set_property(id, name, b"", XattrMode::Replace),
            name if is_plain(name)? => match self.engine.remove_xattr(id, name).map_err(|error| errno(&error)) {
                // Before a write the kernel removes them if there are any, as it was answered.
                Err(Errno::NODATA) if name == CAPABILITY && self.engine.has_verity(id) => Err(Errno::PERM),
                removed => removed,
            },
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Sets an inode's own ACL, and its mode accordingly. A list that says no more than a mode is
    /// not kept.
    fn set_access_acl(&self, id: InodeId, value: &[u8], kill_sgid: bool) -> Result<(), Errno> {
        let Some(list) = Acl::parse(value)? else { return self.remove_acl(id, acl::ACCESS) };
        let kept = (!list.is_trivial()).then(|| list.to_bytes());
        let plan = |mode: u32, _: Option<&[u8]>| {
            let mode = if kill_sgid { mode & !S_ISGID } else { mode };
            Ok((mode & !0o777 | list.mode_bits(), kept.clone()))
        };
        self.with_acl(id, acl::ACCESS, &SetAttributes::default(), &plan).map(drop).map_err(|error| errno(&error))
    }

    fn set_default_acl(&self, id: InodeId, value: &[u8]) -> Result<(), Errno> {
        let Some(list) = Acl::parse(value)? else { return self.remove_acl(id, acl::DEFAULT) };
        let mode = self.engine.attributes(id).map_err(|error| errno(&error))?.mode;
        if mode & S_IFMT != S_IFDIR {
            return Err(Errno::ACCESS);
        }
        self.put(id, acl::DEFAULT, &list)
    }

    /// Changes attributes, the mode among them; the inode's ACL, if it has one, follows the mode.
    pub(crate) fn chmod(&self, id: InodeId, mode: u32, changes: &SetAttributes) -> ubtrfs::Result<Attributes> {
        let plan = |_: u32, value: Option<&[u8]>| {
            let Some(value) = value else { return Ok((mode, None)) };
            let list = Acl::parse(value).map_err(|_| ubtrfs::Error::from(Errno::IO))?;
            let followed = list.map(|mut list| {
                list.chmod(mode);
                list.to_bytes()
            });
            Ok((mode, Some(followed.unwrap_or_else(|| value.to_vec()))))
        };
        self.with_acl(id, acl::ACCESS, changes, &plan)
    }

    fn with_acl(
        &self,
        id: InodeId,
        name: &[u8],
        changes: &SetAttributes,
        plan: &Plan<'_>,
    ) -> ubtrfs::Result<Attributes> {
        self.engine.set_attributes_with(id, changes, &ModeAndXattr { name, plan })
    }

    fn put(&self, id: InodeId, name: &[u8], list: &Acl) -> Result<(), Errno> {
        self.engine.set_xattr(id, name, &list.to_bytes(), XattrMode::Set).map_err(|error| errno(&error))
    }

    /// Removes an ACL; that there is none is success.
    fn remove_acl(&self, id: InodeId, name: &[u8]) -> Result<(), Errno> {
        let plan = |mode: u32, _: Option<&[u8]>| Ok((mode, None));
        self.with_acl(id, name, &SetAttributes::default(), &plan).map(drop).map_err(|error| errno(&error))
    }
}
