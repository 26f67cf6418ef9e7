//! Extended attributes.

use ubtrfs_format::items::MAX_NAME_LEN;

use super::checks::{check_real, check_unrestricted};
use super::operations::InodeOperations;
use crate::error::{Errno, Result};
use crate::inode::InodeId;
use crate::item_sizes::{INODE_ITEM, xattr_item};
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// What setting an xattr may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace it.
    #[default]
    Set,
    /// Create it. Fails with `EEXIST` if it exists.
    Create,
    /// Replace it. Fails with `ENODATA` if it does not exist.
    Replace,
}

impl InodeOperations {
    /// Returns the value of an xattr. `ENODATA` if there is none.
    pub fn get_xattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        self.info.view(id, &state).xattr(name)?.ok_or_else(|| Errno::NODATA.into())
    }

    /// Returns the names of all xattrs.
    pub fn list_xattrs(&self, id: InodeId) -> Result<Vec<Vec<u8>>> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        Ok(self.info.view(id, &state).xattr_names()?.into_iter().collect())
    }

    /// Sets an xattr without regard to its meaning: the mode and the flags stay as they are.
    pub fn set_xattr(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(Errno::RANGE.into());
        }
        self.room.check_first_xattrs_fit(&[(name.to_vec(), value.to_vec())])?;
        check_unrestricted(&self.info.inode(id)?.read())?;
        self.change_xattr(id, name, Some(value), |exists| match mode {
            XattrMode::Create if exists => Err(Errno::EXIST.into()),
            XattrMode::Replace if !exists => Err(Errno::NODATA.into()),
            _ => Ok(()),
        })
    }

    /// Removes an xattr. `ENODATA` if there is none.
    pub fn remove_xattr(&self, id: InodeId, name: &[u8]) -> Result<()> {
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
        let bytes = value.map_or(0, |value| xattr_item(name, value.len()));
        let demand = Demand {
            edits: 2,
            item_bytes: INODE_ITEM + bytes,
            global_reserve: if value.is_none() { UseOfGlobalReserve::All } else { UseOfGlobalReserve::None },
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
        check(self.info.view(id, &state).xattr(name)?.is_some())?;
        if let Some(value) = value {
            self.room.check_xattr_fits(id, &state, name, value)?;
        }
        let transaction = self.info.gate.enter();
        state.join(&inode, &transaction);
        state.attributes_changed(self.info.now());
        if value.is_some() {
            state.no_xattrs = false;
        }
        state.pending.set_xattr(name.into(), value.map(Into::into));
        Ok(())
    }
}
