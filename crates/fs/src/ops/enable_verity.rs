//! Protecting a file by fs-verity (invariant 42).
//!
//! The descriptor of the file, its Merkle tree and the inode flag are changed in one transaction,
//! so after a crash the file has all of them or none. No log of the file is written.

use ubtrfs_file::{VerityBuilder, VerityItems, VerityParameters};
use ubtrfs_format::items::{FileType, InodeFlags};

use super::checks::{check_real, has_verity};
use super::operations::FileOperations;
use crate::error::{Errno, Result};
use crate::inode::{InodeId, InodeState};
use crate::item_sizes::INODE_ITEM;
use ubtrfs_space::Demand;

/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// The Merkle tree may take one part in this many of the mount's memory.
const PART: usize = 16;

impl FileOperations {
    /// Protects a file by fs-verity, permanently. When this returns, it is durable that the content
    /// stays as it is and that nobody can write to it. After a crash before that, the file is not
    /// protected.
    ///
    /// `EEXIST` if it is protected already, `EISDIR` or `EINVAL` if it is not a regular file,
    /// `EINVAL` for parameters that fs-verity does not allow, `ETXTBSY` if the file is being
    /// written to, and `EFBIG` if its Merkle tree takes more than a sixteenth of the mount's
    /// memory.
    pub fn enable_verity(&self, id: InodeId, parameters: &VerityParameters) -> Result<()> {
        self.info.check_writable(id.subvolume)?;
        check_real(id)?;
        let size = {
            let inode = self.info.inode(id)?;
            let state = inode.read();
            check(&state)?;
            state.item.size
        };
        let sector = u64::from(self.info.volume.sector_size());
        let builder = VerityBuilder::new(parameters, size, sector).ok_or(Errno::INVAL)?;
        let bytes = builder.item_bytes();
        if bytes > (self.info.options.memory / PART) as u64 {
            return Err(Errno::FBIG.into());
        }
        let demand = Demand { edits: 4, item_bytes: INODE_ITEM + bytes, ..Demand::default() };
        self.reserver.with_reserved(demand, || self.protect(id, size, builder))?;
        self.durability.sync()
    }

    fn protect(&self, id: InodeId, size: u64, builder: VerityBuilder) -> Result<()> {
        let inode = self.info.inode(id)?;
        // Nobody writes while the content is hashed.
        let mut state = inode.write();
        check(&state)?;
        if state.item.size != size {
            return Err(Errno::TXTBSY.into());
        }
        let items = self.hash_content(id, &state, size, builder)?;
        let transaction = self.info.gate.enter();
        state.join(&inode, &transaction);
        state.item.flags |= InodeFlags::RO_VERITY;
        state.pending.verity = Some(Box::new(items));
        self.info.features.note_verity();
        Ok(())
    }

    fn hash_content(
        &self,
        id: InodeId,
        state: &InodeState,
        size: u64,
        mut builder: VerityBuilder,
    ) -> Result<VerityItems> {
        let sector = u64::from(self.info.volume.sector_size());
        let mut at = 0;
        while at < size {
            let len = (size - at).min(PIECE);
            let mut content = vec![0; len.next_multiple_of(sector) as usize];
            self.reader.read_sectors(id, state, at, &mut content)?;
            builder.add(&content[..len as usize]);
            at += len;
        }
        Ok(builder.finish())
    }
}

fn check(state: &InodeState) -> Result<()> {
    match state.file_type() {
        _ if state.dead => Err(Errno::NOENT.into()),
        FileType::Directory => Err(Errno::ISDIR.into()),
        FileType::Regular if has_verity(state) => Err(Errno::EXIST.into()),
        FileType::Regular if state.item.flags & (InodeFlags::APPEND | InodeFlags::IMMUTABLE) != 0 => {
            Err(Errno::PERM.into())
        }
        FileType::Regular => Ok(()),
        _ => Err(Errno::INVAL.into()),
    }
}
