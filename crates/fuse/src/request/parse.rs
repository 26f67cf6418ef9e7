//! Parses operations from bytes.

use rustix::fs::{FallocateFlags, OFlags, RenameFlags, StatxFlags, XattrFlags};
use zerocopy::FromBytes;

use super::arguments::Arguments;
use super::form::{Form, ParseError};
use super::operation::{
    CopyFileRange, Create, Fallocate, Forgets, Init, Ioctl, Lseek, MkNod, Open, Operation, Read, Release, Rename, Seek,
    SetAttr, SetTime, SetXattr, Write,
};
use crate::abi::flags::{self, Capabilities, IoctlFlags, SetAttrValid, WriteFlags};
use crate::abi::messages as m;
use crate::abi::{EXT_GROUPS, opcode as op, record_align};
use crate::attributes::Timestamp;

const LOCKOWNER: u32 = WriteFlags::LOCKOWNER.bits();

/// How many bytes of a request's arguments have a fixed layout.
pub fn fixed_size(opcode: u32, form: Form) -> usize {
    match opcode {
        op::FORGET => size_of::<m::ForgetIn>(),
        op::BATCH_FORGET => size_of::<m::BatchForgetIn>(),
        op::GETATTR => size_of::<m::GetattrIn>(),
        op::SETATTR => size_of::<m::SetattrIn>(),
        op::MKNOD => size_of::<m::MknodIn>(),
        op::MKDIR => size_of::<m::MkdirIn>(),
        op::RENAME => size_of::<m::RenameIn>(),
        op::RENAME2 => size_of::<m::Rename2In>(),
        op::LINK => size_of::<m::LinkIn>(),
        op::OPEN | op::OPENDIR => size_of::<m::OpenIn>(),
        op::READ | op::READDIR | op::READDIRPLUS => size_of::<m::ReadIn>(),
        op::WRITE => size_of::<m::WriteIn>(),
        op::RELEASE | op::RELEASEDIR => size_of::<m::ReleaseIn>(),
        op::FSYNC | op::FSYNCDIR => size_of::<m::FsyncIn>(),
        op::SETXATTR if form.setxattr_ext => size_of::<m::SetxattrIn>(),
        op::SETXATTR => size_of::<m::SetxattrInShort>(),
        op::GETXATTR | op::LISTXATTR => size_of::<m::GetxattrIn>(),
        op::FLUSH => size_of::<m::FlushIn>(),
        op::INIT => size_of::<m::InitIn>(),
        op::ACCESS => size_of::<m::AccessIn>(),
        op::CREATE | op::TMPFILE => size_of::<m::CreateIn>(),
        op::INTERRUPT => size_of::<m::InterruptIn>(),
        op::IOCTL => size_of::<m::IoctlIn>(),
        op::FALLOCATE => size_of::<m::FallocateIn>(),
        op::LSEEK => size_of::<m::LseekIn>(),
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => size_of::<m::CopyFileRangeIn>(),
        op::SYNCFS => size_of::<m::SyncfsIn>(),
        op::STATX => size_of::<m::StatxIn>(),
        _ => 0,
    }
}

/// The operation with its arguments.
pub fn operation<'a>(header: &m::InHeader, mut rest: Arguments<'a>, form: Form) -> Result<Operation<'a>, ParseError> {
    let (opcode, node) = (header.opcode, header.nodeid);
    Ok(match opcode {
        op::LOOKUP => Operation::Lookup { name: rest.name()? },
        op::FORGET => {
            let arg: m::ForgetIn = rest.fixed()?;
            Operation::Forget(Forgets::One { node, lookups: arg.nlookup })
        }
        op::BATCH_FORGET => Operation::Forget(batch(opcode, rest)?),
        op::GETATTR => {
            let arg: m::GetattrIn = rest.fixed()?;
            Operation::GetAttr { handle: handle_if(arg.flags, arg.fh) }
        }
        op::SETATTR => Operation::SetAttr(set_attr(&rest.fixed()?)),
        op::READLINK => Operation::ReadLink,
        op::SYMLINK => Operation::SymLink { name: rest.name()?, target: rest.string()? },
        op::MKNOD => {
            let arg: m::MknodIn = rest.fixed()?;
            Operation::MkNod(MkNod { name: rest.name()?, mode: arg.mode, umask: arg.umask, rdev: arg.rdev })
        }
        op::MKDIR => {
            let arg: m::MkdirIn = rest.fixed()?;
            Operation::MkDir { name: rest.name()?, mode: arg.mode, umask: arg.umask }
        }
        op::UNLINK => Operation::Unlink { name: rest.name()? },
        op::RMDIR => Operation::RmDir { name: rest.name()? },
        op::RENAME | op::RENAME2 => Operation::Rename(rename(opcode, rest)?),
        op::LINK => {
            let arg: m::LinkIn = rest.fixed()?;
            Operation::Link { node: arg.oldnodeid, name: rest.name()? }
        }
        op::OPEN => Operation::Open(open(rest.fixed()?)),
        op::OPENDIR => Operation::OpenDir(open(rest.fixed()?)),
        op::READ => Operation::Read(read(&rest.fixed()?)),
        op::READDIR => Operation::ReadDir(read(&rest.fixed()?)),
        op::READDIRPLUS => Operation::ReadDirPlus(read(&rest.fixed()?)),
        op::WRITE => Operation::Write(write(rest)?),
        op::STATFS => Operation::StatFs,
        op::RELEASE => Operation::Release(release(&rest.fixed()?)),
        op::RELEASEDIR => Operation::ReleaseDir(release(&rest.fixed()?)),
        op::FSYNC => {
            let (handle, data_only) = fsync(&rest.fixed()?);
            Operation::Fsync { handle, data_only }
        }
        op::FSYNCDIR => {
            let (handle, data_only) = fsync(&rest.fixed()?);
            Operation::FsyncDir { handle, data_only }
        }
        op::SETXATTR => Operation::SetXattr(set_xattr(rest, form)?),
        op::GETXATTR => {
            let arg: m::GetxattrIn = rest.fixed()?;
            Operation::GetXattr { name: rest.name()?, size: arg.size }
        }
        op::LISTXATTR => Operation::ListXattr { size: rest.fixed::<m::GetxattrIn>()?.size },
        op::REMOVEXATTR => Operation::RemoveXattr { name: rest.name()? },
        op::FLUSH => {
            let arg: m::FlushIn = rest.fixed()?;
            Operation::Flush { handle: arg.fh, lock_owner: arg.lock_owner }
        }
        op::INIT => Operation::Init(init(rest)?),
        op::ACCESS => Operation::Access { mask: rest.fixed::<m::AccessIn>()?.mask },
        op::CREATE => Operation::Create(create(rest)?),
        op::TMPFILE => Operation::TmpFile(create(rest)?),
        op::INTERRUPT => Operation::Interrupt { unique: rest.fixed::<m::InterruptIn>()?.unique },
        op::DESTROY => Operation::Destroy,
        op::IOCTL => Operation::Ioctl(ioctl(rest)?),
        op::FALLOCATE => {
            let arg: m::FallocateIn = rest.fixed()?;
            let mode = FallocateFlags::from_bits_retain(arg.mode);
            Operation::Fallocate(Fallocate { handle: arg.fh, offset: arg.offset, length: arg.length, mode })
        }
        op::LSEEK => Operation::Lseek(lseek(opcode, &rest.fixed()?)?),
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
            Operation::CopyFileRange(copy(&rest.fixed()?, opcode == op::COPY_FILE_RANGE_64))
        }
        op::SYNCFS => Operation::SyncFs,
        op::STATX => {
            let arg: m::StatxIn = rest.fixed()?;
            Operation::Statx {
                handle: handle_if(arg.getattr_flags, arg.fh),
                flags: arg.sx_flags,
                mask: StatxFlags::from_bits_retain(arg.sx_mask),
            }
        }
        op::NOTIFY_REPLY => Operation::NotifyReply,
        opcode => Operation::Unknown { opcode },
    })
}

/// The group numbers among the extensions at a message's end; `None` if the extensions are
/// malformed.
pub fn groups(mut extensions: &[u8]) -> Option<&[u8]> {
    let mut groups: &[u8] = &[];
    while !extensions.is_empty() {
        let (header, body) = m::ExtHeader::read_from_prefix(extensions).ok()?;
        let size = header.size as usize;
        let body = body.get(..size.checked_sub(size_of::<m::ExtHeader>())?)?;
        if header.kind == EXT_GROUPS {
            let (count, numbers) = u32::read_from_prefix(body).ok()?;
            groups = numbers.get(..(count as usize).checked_mul(size_of::<u32>())?)?;
        }
        extensions = extensions.get(record_align(size)..)?;
    }
    Some(groups)
}

fn handle_if(flags: u32, handle: u64) -> Option<u64> {
    (flags & flags::GETATTR_FH != 0).then_some(handle)
}

fn batch(opcode: u32, mut rest: Arguments<'_>) -> Result<Forgets<'_>, ParseError> {
    let arg: m::BatchForgetIn = rest.fixed()?;
    let length = arg.count.checked_mul(size_of::<m::ForgetOne>() as u32).ok_or(ParseError::Value(opcode))?;
    Ok(Forgets::Many(rest.data(length)?))
}

fn set_attr(arg: &m::SetattrIn) -> SetAttr {
    let valid = SetAttrValid::from_bits_retain(arg.valid);
    let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    let time = |set, now, value| {
        valid.contains(set).then_some(if valid.contains(now) { SetTime::Now } else { SetTime::At(value) })
    };
    SetAttr {
        mode: valid.contains(SetAttrValid::MODE).then_some(arg.mode),
        uid: valid.contains(SetAttrValid::UID).then_some(arg.uid),
        gid: valid.contains(SetAttrValid::GID).then_some(arg.gid),
        size: valid.contains(SetAttrValid::SIZE).then_some(arg.size),
        atime: time(SetAttrValid::ATIME, SetAttrValid::ATIME_NOW, at(arg.atime, arg.atimensec)),
        mtime: time(SetAttrValid::MTIME, SetAttrValid::MTIME_NOW, at(arg.mtime, arg.mtimensec)),
        ctime: valid.contains(SetAttrValid::CTIME).then_some(at(arg.ctime, arg.ctimensec)),
        handle: valid.contains(SetAttrValid::FH).then_some(arg.fh),
        kill_suidgid: valid.contains(SetAttrValid::KILL_SUIDGID),
    }
}

fn rename(opcode: u32, mut rest: Arguments<'_>) -> Result<Rename<'_>, ParseError> {
    let (new_parent, flags) = if opcode == op::RENAME2 {
        let arg: m::Rename2In = rest.fixed()?;
        (arg.newdir, arg.flags)
    } else {
        (rest.fixed::<m::RenameIn>()?.newdir, 0)
    };
    let flags = RenameFlags::from_bits_retain(flags);
    Ok(Rename { name: rest.name()?, new_parent, new_name: rest.name()?, flags })
}

fn open(arg: m::OpenIn) -> Open {
    Open { flags: OFlags::from_bits_retain(arg.flags), kill_suidgid: arg.open_flags & flags::OPEN_KILL_SUIDGID != 0 }
}

fn read(arg: &m::ReadIn) -> Read {
    Read {
        handle: arg.fh,
        offset: arg.offset,
        size: arg.size,
        flags: OFlags::from_bits_retain(arg.flags),
        lock_owner: (arg.read_flags & LOCKOWNER != 0).then_some(arg.lock_owner),
    }
}

fn write(mut rest: Arguments<'_>) -> Result<Write<'_>, ParseError> {
    let arg: m::WriteIn = rest.fixed()?;
    let write_flags = WriteFlags::from_bits_retain(arg.write_flags);
    Ok(Write {
        handle: arg.fh,
        offset: arg.offset,
        data: rest.data(arg.size)?,
        flags: OFlags::from_bits_retain(arg.flags),
        write_flags,
        lock_owner: write_flags.contains(WriteFlags::LOCKOWNER).then_some(arg.lock_owner),
    })
}

fn release(arg: &m::ReleaseIn) -> Release {
    Release {
        handle: arg.fh,
        flags: OFlags::from_bits_retain(arg.flags),
        flush: arg.release_flags & flags::RELEASE_FLUSH != 0,
        lock_owner: arg.lock_owner,
    }
}

fn fsync(arg: &m::FsyncIn) -> (u64, bool) {
    (arg.fh, arg.fsync_flags & flags::FSYNC_DATA_ONLY != 0)
}

fn set_xattr(mut rest: Arguments<'_>, form: Form) -> Result<SetXattr<'_>, ParseError> {
    let arg = if form.setxattr_ext {
        rest.fixed()?
    } else {
        let m::SetxattrInShort { size, flags } = rest.fixed()?;
        m::SetxattrIn { size, flags, ..Default::default() }
    };
    Ok(SetXattr {
        name: rest.name()?,
        value: rest.data(arg.size)?,
        flags: XattrFlags::from_bits_retain(arg.flags),
        kill_sgid: arg.setxattr_flags & flags::SETXATTR_ACL_KILL_SGID != 0,
    })
}

fn init(rest: Arguments<'_>) -> Result<Init, ParseError> {
    let short: m::InitInShort = rest.fixed()?;
    let low = u64::from(short.flags);
    let extended = low & Capabilities::INIT_EXT.bits() != 0;
    let high = if extended { u64::from(rest.fixed::<m::InitIn>()?.flags2) } else { 0 };
    Ok(Init {
        major: short.major,
        minor: short.minor,
        max_readahead: short.max_readahead,
        capabilities: Capabilities::from_bits_retain(low | high << 32),
    })
}

fn create(mut rest: Arguments<'_>) -> Result<Create<'_>, ParseError> {
    let arg: m::CreateIn = rest.fixed()?;
    Ok(Create {
        name: rest.name()?,
        flags: OFlags::from_bits_retain(arg.flags),
        mode: arg.mode,
        umask: arg.umask,
        kill_suidgid: arg.open_flags & flags::OPEN_KILL_SUIDGID != 0,
    })
}

fn ioctl(mut rest: Arguments<'_>) -> Result<Ioctl<'_>, ParseError> {
    let arg: m::IoctlIn = rest.fixed()?;
    Ok(Ioctl {
        handle: arg.fh,
        flags: IoctlFlags::from_bits_retain(arg.flags),
        command: arg.cmd,
        argument: arg.arg,
        data: rest.data(arg.in_size)?,
        reply_size: arg.out_size,
    })
}

fn lseek(opcode: u32, arg: &m::LseekIn) -> Result<Lseek, ParseError> {
    let whence = match arg.whence {
        3 => Seek::Data,
        4 => Seek::Hole,
        _ => return Err(ParseError::Value(opcode)),
    };
    Ok(Lseek { handle: arg.fh, offset: arg.offset, whence })
}

fn copy(arg: &m::CopyFileRangeIn, wide: bool) -> CopyFileRange {
    CopyFileRange {
        handle_in: arg.fh_in,
        offset_in: arg.off_in,
        node_out: arg.nodeid_out,
        handle_out: arg.fh_out,
        offset_out: arg.off_out,
        length: arg.len,
        wide,
    }
}
