//! Pages of a device.

use std::sync::Arc;

use crate::buffer::ALIGNMENT;

/// 4 KiB of a device, the unit that is written entirely or not at all.
pub(crate) type Page = [u8; ALIGNMENT];

/// Splits bytes into pages. Their length is a multiple of a page's.
pub(crate) fn pages_of(bytes: &[u8]) -> impl Iterator<Item = Arc<Page>> {
    bytes.chunks_exact(ALIGNMENT).map(|chunk| {
        let mut page = [0; ALIGNMENT];
        page.copy_from_slice(chunk);
        Arc::new(page)
    })
}
