//! Writing dumps.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::cluster::{CLUSTER_ALIGNMENT, CLUSTER_HEADER, Cluster, MAX_ITEMS, MAX_WRITTEN_ITEM};
use crate::error::{Error, Result};
use crate::threads::each;

/// Writes a dump, cluster by cluster. A cluster is kept in memory until it is full, which is at
/// most `MAX_ITEMS * MAX_WRITTEN_ITEM` bytes, and as much again while it is compressed.
pub(crate) struct Writer<'a> {
    out: &'a mut dyn Write,
    level: u32,
    threads: usize,
    /// Where the cluster that is gathered begins in the file.
    at: u64,
    items: Vec<(u64, Vec<u8>)>,
    /// Whether the last item may be continued.
    open: bool,
}

impl<'a> Writer<'a> {
    /// Begins a dump. `level` is that of zlib, 0 for none.
    pub(crate) fn new(out: &'a mut dyn Write, level: u32, threads: usize) -> Self {
        Self { out, level: level.min(9), threads, at: 0, items: Vec::new(), open: false }
    }

    /// Adds the superblock, which must come first.
    pub(crate) fn superblock(&mut self, at: u64, bytes: &[u8]) {
        self.items.push((at, bytes.to_vec()));
        self.open = false;
    }

    /// Adds what is at an address. Neighbours become one item.
    pub(crate) fn push(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        if self.open
            && let Some((start, content)) = self.items.last_mut()
            && *start + content.len() as u64 == at
            && content.len() + bytes.len() <= MAX_WRITTEN_ITEM
        {
            content.extend_from_slice(bytes);
            return Ok(());
        }
        if self.items.len() == MAX_ITEMS {
            self.write_cluster()?;
        }
        self.items.push((at, bytes.to_vec()));
        self.open = true;
        Ok(())
    }

    /// Writes what is left, and returns how many bytes the dump has.
    pub(crate) fn finish(mut self) -> Result<u64> {
        self.write_cluster()?;
        self.out.flush().map_err(Error::Output)?;
        Ok(self.at)
    }

    fn write_cluster(&mut self) -> Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        let items = std::mem::take(&mut self.items);
        let stored = if self.level == 0 {
            Vec::new()
        } else {
            let packed = each(&items, self.threads, |(_, content)| compress(content, self.level));
            packed.into_iter().collect::<io::Result<Vec<_>>>().map_err(Error::Output)?
        };
        let content = |index: usize| stored.get(index).unwrap_or(&items[index].1);
        let places: Vec<(u64, u32)> =
            items.iter().enumerate().map(|(index, (at, _))| (*at, content(index).len() as u32)).collect();
        self.out.write_all(&Cluster::header(self.at, &places, self.level > 0)).map_err(Error::Output)?;
        let mut len = CLUSTER_HEADER as u64;
        for index in 0..items.len() {
            self.out.write_all(content(index)).map_err(Error::Output)?;
            len += content(index).len() as u64;
        }
        let whole = len.next_multiple_of(CLUSTER_ALIGNMENT);
        self.out.write_all(&[0; CLUSTER_ALIGNMENT as usize][..(whole - len) as usize]).map_err(Error::Output)?;
        self.at += whole;
        Ok(())
    }
}

fn compress(content: &[u8], level: u32) -> io::Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(content)?;
    encoder.finish()
}
