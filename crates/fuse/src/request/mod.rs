//! A request of the kernel, typed.

mod arguments;
mod form;
mod operation;
mod parse;

pub use form::{Form, ParseError};
pub use operation::{
    CopyFileRange, Create, Fallocate, Forgets, Init, Ioctl, Lseek, MkNod, Open, Operation, Read, Release, Rename, Seek,
    SetAttr, SetTime, SetXattr, Write,
};

use zerocopy::FromBytes;

use crate::abi::{IN_HEADER, UNKNOWN_ID, messages::InHeader};
use arguments::Arguments;

/// The caller.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The request's number; INTERRUPT names it.
    pub unique: u64,
    /// The file-system user. With `ALLOW_IDMAP` granted, [`UNKNOWN_ID`] in requests that create
    /// nothing.
    pub uid: u32,
    /// The file-system group, or [`UNKNOWN_ID`] like the user.
    pub gid: u32,
    /// The process; zero if it is outside the server's pid namespace, or if the kernel itself sends
    /// the request.
    pub pid: u32,
    groups: &'a [u8],
}

impl Caller<'_> {
    /// The supplementary groups that the kernel sent. With `CREATE_SUPP_GROUP` granted, this is the
    /// parent's group in requests that create, if it is one of the caller's groups.
    pub fn groups(&self) -> impl Iterator<Item = u32> {
        let (groups, _) = self.groups.as_chunks();
        groups.iter().map(|group| u32::from_ne_bytes(*group))
    }

    /// Returns whether the caller is known to be in `group`.
    pub fn is_in_group(&self, group: u32) -> bool {
        self.gid != UNKNOWN_ID && self.gid == group || self.groups().any(|reported| reported == group)
    }
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its number, which the reply repeats.
    pub unique: u64,
    /// The inode that the request is about: the parent where a name follows, the new name's parent
    /// for LINK; zero for requests that are about none.
    pub nodeid: u64,
    /// The caller's file-system user (see [`Caller::uid`]).
    pub uid: u32,
    /// The caller's file-system group.
    pub gid: u32,
    /// The calling process.
    pub pid: u32,
    /// The operation.
    pub op: Operation<'a>,
    groups: &'a [u8],
}

impl<'a> Request<'a> {
    /// The request in `message`, which begins with its header, as `/dev/fuse` delivers it.
    pub fn parse(message: &'a [u8], form: Form) -> Result<Self, ParseError> {
        let (header, body) = InHeader::read_from_prefix(message).map_err(|_| ParseError::Length)?;
        if header.len as usize != message.len() {
            return Err(ParseError::Length);
        }
        let fixed = parse::fixed_size(header.opcode, form).min(body.len());
        let (fixed, rest) = body.split_at(fixed);
        Self::assemble(&header, fixed, rest, form)
    }

    /// The request whose header, fixed arguments and rest (names, data, extensions) arrived apart,
    /// as rings deliver them. `fixed` may be longer than the arguments are.
    pub fn assemble(header: &InHeader, fixed: &'a [u8], rest: &'a [u8], form: Form) -> Result<Self, ParseError> {
        let extensions = usize::from(header.extension_words) * 8;
        let end = rest.len().checked_sub(extensions).ok_or(ParseError::Extension(header.opcode))?;
        let (rest, extensions) = rest.split_at(end);
        let groups = parse::groups(extensions).ok_or(ParseError::Extension(header.opcode))?;
        let arguments = Arguments::new(header.opcode, fixed, rest);
        Ok(Self {
            unique: header.unique,
            nodeid: header.nodeid,
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            op: parse::operation(header, arguments, form)?,
            groups,
        })
    }

    /// The caller.
    pub fn caller(&self) -> Caller<'a> {
        Caller { unique: self.unique, uid: self.uid, gid: self.gid, pid: self.pid, groups: self.groups }
    }
}

/// The header of a message, if the message has a whole one. With it, a message that can't be parsed
/// can be answered.
pub(crate) fn header(message: &[u8]) -> Option<InHeader> {
    InHeader::read_from_bytes(message.get(..IN_HEADER)?).ok()
}

#[cfg(test)]
mod tests;
