//! A device in memory over an image that many share: each keeps only the pages that it changed.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, LazyLock};

use ubtrfs_format::Physical;
use ubtrfs_threads::{Rank, RwLock};

use crate::buffer::ALIGNMENT;
use crate::device::{CounterCells, Device, DeviceCounters, DeviceTicket, DeviceWrite, check_range, check_writes};
use crate::page::{Page, pages_of};

static ZERO_PAGE: LazyLock<Arc<Page>> = LazyLock::new(|| Arc::new([0; ALIGNMENT]));

/// A shared image and the pages that differ from it.
#[derive(Clone)]
pub(crate) struct Image {
    /// Everything behind its end is zeros.
    base: Arc<[u8]>,
    size: u64,
    pages: HashMap<u64, Arc<Page>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("size", &self.size)
            .field("changed_pages", &self.pages.len())
            .finish_non_exhaustive()
    }
}

impl Image {
    /// An image without changes. An incomplete last page is cut off.
    pub(crate) fn new(base: Arc<[u8]>) -> Self {
        let size = (base.len() - base.len() % ALIGNMENT) as u64;
        Self { base, size, pages: HashMap::new() }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Fills `buf` from `at`; the range is within the image.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) {
        let mut done = 0;
        while done < buf.len() {
            let from = at as usize + done;
            let within = from % ALIGNMENT;
            let len = (ALIGNMENT - within).min(buf.len() - done);
            let page = from / ALIGNMENT;
            let part = &mut buf[done..done + len];
            match (self.pages.get(&(page as u64)), self.base.get(from..from + len)) {
                (Some(page), _) => part.copy_from_slice(&page[within..within + len]),
                (None, Some(base)) => part.copy_from_slice(base),
                (None, None) => part.fill(0),
            }
            done += len;
        }
    }

    pub(crate) fn set(&mut self, page: u64, content: Arc<Page>) {
        self.pages.insert(page, content);
    }

    /// Makes all pages within the range zero.
    pub(crate) fn clear(&mut self, at: u64, len: u64) {
        let unit = ALIGNMENT as u64;
        for page in at.div_ceil(unit)..(at + len) / unit {
            self.pages.insert(page, Arc::clone(&ZERO_PAGE));
        }
    }
}

/// A device in memory over a shared image. Thousands of them over one image cost little.
#[derive(Debug)]
pub struct OverlayDevice {
    image: RwLock<Image>,
    size: u64,
    counters: CounterCells,
}

impl OverlayDevice {
    /// A device with the content of `base`; writes go to pages of its own.
    pub fn new(base: Arc<[u8]>) -> Self {
        Self::from_image(Image::new(base))
    }

    /// A device of zeros, which takes no memory. An incomplete last page is cut off.
    pub fn zeroed(size: u64) -> Self {
        let size = size - size % ALIGNMENT as u64;
        Self::from_image(Image { base: Arc::default(), size, pages: HashMap::new() })
    }

    pub(crate) fn from_image(image: Image) -> Self {
        let size = image.size();
        Self { image: RwLock::new(Rank::OverlayDevice, image), size, counters: CounterCells::default() }
    }

    /// Another device with the same content at this point in time, sharing all its pages.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::from_image(self.image())
    }

    /// Returns the content at this point in time.
    pub(crate) fn image(&self) -> Image {
        self.image.read().clone()
    }

    /// Returns a copy of all bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        self.image.read().read(0, &mut bytes);
        bytes
    }
}

impl Device for OverlayDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size)?;
        self.image.read().read(at.0, buf);
        self.counters.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size) {
            return DeviceTicket::done(Err(error));
        }
        let mut image = self.image.write();
        for write in &writes {
            for (page, content) in (write.at.0 / ALIGNMENT as u64..).zip(pages_of(&write.data)) {
                image.set(page, content);
            }
            self.counters.write(write.data.len());
        }
        DeviceTicket::done(Ok(()))
    }

    fn flush(&self) -> io::Result<()> {
        self.counters.flush();
        Ok(())
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        check_range(at, len as usize, self.size)?;
        self.image.write().clear(at.0, len);
        self.counters.discard();
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedBuffer;

    #[test]
    fn changes_stay_in_one_overlay_and_in_its_forks() {
        let base: Arc<[u8]> = vec![7; 5 * ALIGNMENT + 100].into();
        let one = OverlayDevice::new(Arc::clone(&base));
        let other = OverlayDevice::new(base);
        assert_eq!(one.size(), 5 * ALIGNMENT as u64);
        let data = SharedBuffer::from(vec![1; 2 * ALIGNMENT]);
        one.submit(vec![DeviceWrite { at: Physical(4096), data }]).wait().unwrap();
        let fork = one.fork();
        one.discard(Physical(4000), 4096 + 96).unwrap();
        let read = |device: &OverlayDevice| {
            let mut bytes = [0; 8];
            device.read_at(Physical(8188), &mut bytes).unwrap();
            let mut first = [0; 2];
            device.read_at(Physical(4095), &mut first).unwrap();
            (first, bytes)
        };
        assert_eq!(read(&one), ([7, 0], [0, 0, 0, 0, 1, 1, 1, 1]));
        assert_eq!(read(&fork), ([7, 1], [1; 8]));
        assert_eq!(read(&other), ([7, 7], [7; 8]));
        assert!(one.read_at(Physical(5 * 4096 - 1), &mut [0; 2]).is_err());
        let empty = OverlayDevice::zeroed(5 * 4096 + 100);
        assert_eq!((empty.size(), read(&empty), empty.to_bytes().len()), (5 * 4096, ([0; 2], [0; 8]), 5 * 4096));
    }
}
