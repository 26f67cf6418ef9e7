//! Extended attributes.

use std::collections::BTreeSet;

use ubtrfs_format::items::{self, DIR_ENTRY_HEADER, MAX_NAME_LEN};
use ubtrfs_format::{ItemType, Key, name_hash};

use super::checks::check_real;
use super::flags::check_unrestricted;
use super::operations::Operations;
use crate::clock::now;
use crate::error::{Errno, Result};
use crate::inode::{InodeId, InodeState};
use crate::space::{Demand, UseOfKept};

/// What setting an xattr may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Make it or replace it.
    #[default]
    Set,
    /// Only make it.
    Create,
    /// Only replace it.
    Replace,
}

impl Operations {
    /// The value of an xattr. `ENODATA` if there is none.
    pub(crate) fn get_xattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        self.find_xattr(id, &state, name)?.ok_or_else(|| Errno::NODATA.into())
    }

    /// The names of all xattrs.
    pub(crate) fn list_xattrs(&self, id: InodeId) -> Result<Vec<Vec<u8>>> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        let mut names = BTreeSet::new();
        if state.no_xattrs {
            return Ok(Vec::new());
        }
        if state.committed {
            let all = Key::new(id.ino.0, ItemType::XATTR_ITEM, 0)..=Key::new(id.ino.0, ItemType::XATTR_ITEM, u64::MAX);
            for item in self.info.committed().tree(id.subvolume)?.range(all) {
                for entry in items::dir_entries(&item?) {
                    names.insert(entry?.name.to_vec());
                }
            }
        }
        let layers = [state.frozen.as_ref().map(|frozen| &frozen.batch), Some(&state.pending)];
        for batch in layers.into_iter().flatten() {
            for (name, value) in batch.xattrs.iter() {
                if value.is_some() {
                    names.insert(name.to_vec());
                } else {
                    names.remove(&**name);
                }
            }
        }
        Ok(names.into_iter().collect())
    }

    /// An xattr of an inode whose lock the caller holds.
    pub(crate) fn find_xattr(&self, id: InodeId, state: &InodeState, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if state.no_xattrs {
            return Ok(None);
        }
        let layers = [Some(&state.pending), state.frozen.as_ref().map(|frozen| &frozen.batch)];
        for batch in layers.into_iter().flatten() {
            if let Some(value) = batch.xattrs.get(name) {
                return Ok(value.as_ref().map(|value| value.to_vec()));
            }
        }
        if !state.committed {
            return Ok(None);
        }
        let key = Key::new(id.ino.0, ItemType::XATTR_ITEM, name_hash(name));
        let Some(item) = self.info.committed().tree(id.subvolume)?.get(&key)? else { return Ok(None) };
        for entry in items::dir_entries(&item) {
            let entry = entry?;
            if entry.name == name {
                return Ok(Some(entry.value.to_vec()));
            }
        }
        Ok(None)
    }

    /// Sets an xattr.
    pub(crate) fn set_xattr(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(Errno::RANGE.into());
        }
        self.check_first_xattrs_fit(&[(name.to_vec(), value.to_vec())])?;
        check_unrestricted(&self.info.inode(id)?.read())?;
        self.change_xattr(id, name, Some(value), |exists| match mode {
            XattrMode::Create if exists => Err(Errno::EXIST.into()),
            XattrMode::Replace if !exists => Err(Errno::NODATA.into()),
            _ => Ok(()),
        })
    }

    /// Removes an xattr. `ENODATA` if there is none.
    pub(crate) fn remove_xattr(&self, id: InodeId, name: &[u8]) -> Result<()> {
        check_unrestricted(&self.info.inode(id)?.read())?;
        self.change_xattr(id, name, None, |exists| if exists { Ok(()) } else { Err(Errno::NODATA.into()) })
    }

    fn change_xattr(
        &self,
        id: InodeId,
        name: &[u8],
        value: Option<&[u8]>,
        check: impl FnOnce(bool) -> Result<()>,
    ) -> Result<()> {
        self.info.check_writable(id.subvolume)?;
        check_real(id)?;
        let bytes = value.map_or(0, |value| DIR_ENTRY_HEADER + 25 + name.len() + value.len());
        let demand = Demand {
            edits: 2,
            item_bytes: (185 + bytes) as u64,
            kept: if value.is_none() { UseOfKept::All } else { UseOfKept::None },
            ..Demand::default()
        };
        self.reserver.with_reserved(demand, || self.change_xattr_reserved(id, name, value, check))
    }

    fn change_xattr_reserved(
        &self,
        id: InodeId,
        name: &[u8],
        value: Option<&[u8]>,
        check: impl FnOnce(bool) -> Result<()>,
    ) -> Result<()> {
        let inode = self.info.inode(id)?;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        check(self.find_xattr(id, &state, name)?.is_some())?;
        if let Some(value) = value {
            self.check_xattr_fits(id, &state, name, value)?;
        }
        let transaction = self.info.gate.enter();
        state.join(&inode, &transaction);
        state.attributes_changed(now());
        if value.is_some() {
            state.no_xattrs = false;
        }
        state.pending.set_xattr(name.into(), value.map(Into::into));
        Ok(())
    }
}
