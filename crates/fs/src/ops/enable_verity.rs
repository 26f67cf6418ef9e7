//! A file comes under the protection of fs-verity (invariant 57).
//!
//! Its descriptor, its tree of hashes and the flag that says so are one change of one transaction,
//! so a crash leaves all of them or a file like others. No log is written of it.

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
/// The part of the mount's memory that a tree of hashes may take.
const PART: usize = 16;

impl FileOperations {
    /// Puts a file under the protection of fs-verity, for good: when this returns, it is durable
    /// that its content is what it is now, and that nobody writes to it. A crash before leaves a
    /// file like others.
    ///
    /// `EEXIST` if it is protected already, `EISDIR` and `EINVAL` if it is no regular file,
    /// `EINVAL` for parameters that fs-verity does not have, `ETXTBSY` if the file is being written
    /// to, and `EFBIG` if its tree of hashes takes more than a sixteenth of the mount's memory.
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
