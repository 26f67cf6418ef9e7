//! The memory of entries, and the ownership of it.
//!
//! The kernel writes a request into an entry's memory, the server its answer. At any time the
//! memory belongs to one of them. [`Held`] is the server's ownership of an entry, which is unique:
//! it can't be copied, its methods borrow it, and submitting the entry to the kernel consumes it.
//! Then there is only [`Away`], which gives no access.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::messages::OutHeader;
use crate::abi::ring::{AREAS, COMMIT_AND_FETCH, Command, Headers, REGISTER};
use crate::abi::{IN_HEADER, OUT_HEADER, messages::InHeader};

/// Distance between the headers of two entries.
const STRIDE: usize = 512;
/// The offset within that distance of the vectors, by which the kernel finds the areas.
const VECTORS_AT: usize = STRIDE - size_of::<Vectors>();
/// The offset in a submission of the number of vectors.
const LENGTH_AT: usize = 24;

/// The addresses and lengths of the two areas of an entry, in the form of readv(2).
type Vectors = [usize; 4];

/// The memory of some entries of a queue, mapped in one piece. Pages that no request has used take
/// no memory.
struct Area {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the area is memory without ties to a thread. Nothing is reached through it but by `Held`.
unsafe impl Send for Area {}
// SAFETY: as above; a shared reference gives access to nothing.
unsafe impl Sync for Area {}

impl Area {
    fn map(length: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping wherever there is room.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        // A huge page would take the memory of two whole payloads for the first small request.
        // SAFETY: advice on memory that was mapped just now; it changes no content.
        let _ = unsafe { rustix::mm::madvise(base, length, Advice::LinuxNoHugepage) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area was mapped with this length, and each `Held` or `Away` would have kept
        // it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// An entry that belongs to the server.
pub struct Held {
    area: Arc<Area>,
    index: u16,
    headers: NonNull<u8>,
    payload: NonNull<u8>,
    room: usize,
}

// SAFETY: the pointers lead into `area`, to parts that only this value may touch.
unsafe impl Send for Held {}
// SAFETY: a shared reference allows reading only.
unsafe impl Sync for Held {}

/// An entry that belongs to the kernel.
pub struct Away(Held);

/// Maps the `count` entries from number `first` on, with `room` bytes of payload each.
pub fn entries(first: u16, count: u16, room: usize) -> io::Result<Vec<Held>> {
    let page = rustix::param::page_size();
    let (headers, room) = ((usize::from(count) * STRIDE).next_multiple_of(page), room.next_multiple_of(page));
    let area = Arc::new(Area::map(headers + usize::from(count) * room)?);
    let entry = |index: u16| {
        let (header, payload) = (usize::from(index) * STRIDE, headers + usize::from(index) * room);
        // SAFETY: both are within the area: `count` times STRIDE is at most `headers`, and `count`
        // payloads follow.
        let (headers, payload) = unsafe { (area.base.add(header), area.base.add(payload)) };
        Held { area: Arc::clone(&area), index: first + index, headers, payload, room }
    };
    Ok((0..count).map(entry).collect())
}

impl Held {
    /// Its number in its queue.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// The opcode of the request in it.
    pub fn opcode(&self) -> u32 {
        InHeader::read_from_prefix(self.headers()).map_or(0, |(header, _)| header.opcode)
    }

    /// Returns the entry with a request that has only an opcode.
    #[cfg(test)]
    pub fn with(mut self, opcode: u32) -> Self {
        let header = InHeader { opcode, ..InHeader::default() };
        self.headers_mut()[..IN_HEADER].copy_from_slice(header.as_bytes());
        self
    }

    fn headers(&self) -> &[u8] {
        // SAFETY: STRIDE bytes of mapped memory that belong to this value alone.
        unsafe { std::slice::from_raw_parts(self.headers.as_ptr(), STRIDE) }
    }

    fn headers_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the value is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.headers.as_ptr(), STRIDE) }
    }

    fn read(&self) -> Headers {
        Headers::read_from_prefix(self.headers()).map_or_else(|_| unreachable!("there is room"), |(headers, _)| headers)
    }

    /// The request's header, its arguments of fixed size (and what is left of their room), and the
    /// length of the rest.
    pub fn request(&self) -> (InHeader, [u8; 128], usize) {
        let Headers { header, arguments, transfer } = self.read();
        let header = InHeader::read_from_bytes(&header[..IN_HEADER]).unwrap_or_default();
        (header, arguments, (transfer.payload_size as usize).min(self.room))
    }

    /// The rest of the request.
    pub fn payload(&self, length: usize) -> &[u8] {
        // SAFETY: at most `room` bytes of mapped memory that belong to this value alone.
        unsafe { std::slice::from_raw_parts(self.payload.as_ptr(), length.min(self.room)) }
    }

    /// Room for the answer, with old content.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the value is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.payload.as_ptr(), self.room) }
    }

    /// Writes the header of the answer: `length` bytes of payload, or an error.
    pub fn answer(&mut self, unique: u64, error: i32, length: usize) {
        let len = (OUT_HEADER + length) as u32;
        let out = OutHeader { len, error, unique };
        let mut headers = self.read();
        headers.header[..OUT_HEADER].copy_from_slice(out.as_bytes());
        headers.transfer.payload_size = length as u32;
        let bytes = headers.as_bytes();
        self.headers_mut()[..bytes.len()].copy_from_slice(bytes);
    }

    /// Copies `parts` into the payload, and returns their length; `None` if there is no room.
    pub fn put<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
        let (room, mut at) = (self.payload_mut(), 0);
        for part in parts {
            room.get_mut(at..at + part.len())?.copy_from_slice(part);
            at += part.len();
        }
        Some(at)
    }

    /// Returns the submission that gives the entry to the kernel for the first time.
    pub fn register(mut self, device: Fd, queue: u16) -> (squeue::Entry128, Away) {
        // The kernel reads the vectors from the entry's own memory, behind the headers.
        let header = self.headers.as_ptr().expose_provenance();
        let vectors: Vectors = [header, size_of::<Headers>(), self.payload.as_ptr().expose_provenance(), self.room];
        self.headers_mut()[VECTORS_AT..].copy_from_slice(vectors.as_bytes());
        let at = header + VECTORS_AT;
        let command = Command { queue, ..Command::default() };
        (submission(device, REGISTER, command, self.index, at as u64), Away(self))
    }

    /// Returns the submission that gives the kernel the answer, and the entry with it.
    pub fn commit(self, device: Fd, queue: u16) -> (squeue::Entry128, Away) {
        let command = Command { queue, commit_id: self.read().transfer.commit_id, ..Command::default() };
        (submission(device, COMMIT_AND_FETCH, command, self.index, 0), Away(self))
    }

    /// Keeps the memory for as long as the process lives: the kernel may have some of these
    /// entries.
    pub fn keep_forever(&self) {
        std::mem::forget(Arc::clone(&self.area));
    }
}

impl Away {
    /// Returns the entry to the server.
    ///
    /// # Safety
    /// The kernel has completed the submission that gave it the entry, or never got that
    /// submission.
    pub unsafe fn back(self) -> Held {
        self.0
    }

    /// As [`Held::keep_forever`].
    pub fn keep_forever(&self) {
        self.0.keep_forever();
    }
}

fn submission(device: Fd, operation: u32, command: Command, index: u16, vectors: u64) -> squeue::Entry128 {
    let mut bytes = [0; 80];
    bytes[..size_of::<Command>()].copy_from_slice(command.as_bytes());
    let mut entry =
        opcode::UringCmd80::new(device, operation).cmd(bytes).addr(Some(vectors)).build().user_data(u64::from(index));
    // SAFETY: a submission is 128 bytes laid out as the kernel's interface has it; the field is a
    // number. The library has no method for it.
    unsafe { ptr::from_mut(&mut entry).byte_add(LENGTH_AT).cast::<u32>().write(AREAS) };
    entry
}

const _: () = assert!(size_of::<squeue::Entry128>() == 128);
const _: () = assert!(size_of::<Headers>() + size_of::<Vectors>() <= STRIDE);
