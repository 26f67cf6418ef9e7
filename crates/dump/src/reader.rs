//! Reading dumps, wherever they are.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use flate2::read::ZlibDecoder;

use crate::cluster::{CLUSTER_HEADER, Cluster, MAX_ITEM, Place};
use crate::error::{Error, Result};

/// The bytes of a dump.
pub trait Source: Sync {
    /// Returns how many there are.
    fn size(&self) -> io::Result<u64>;
    /// Fills `buf` from byte `at` on.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()>;
}

impl Source for std::fs::File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buf, at)
    }
}

impl Source for &[u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = from.checked_add(buf.len()).and_then(|end| self.get(from..end));
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A dump that is read.
pub(crate) struct Reader<'a> {
    source: &'a dyn Source,
    size: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a dyn Source) -> Result<Self> {
        let size = source.size().map_err(|source| Error::Input { at: 0, source })?;
        Ok(Self { source, size })
    }

    /// Returns how many bytes the dump has.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the cluster at `at`, or `None` at the end.
    pub(crate) fn cluster(&self, at: u64) -> Result<Option<Cluster>> {
        if at >= self.size && at > 0 {
            return Ok(None);
        }
        if self.size.saturating_sub(at) < CLUSTER_HEADER as u64 {
            return Err(if at == 0 { Error::NotDump } else { Error::Truncated { cluster: at } });
        }
        let mut header = [0; CLUSTER_HEADER];
        self.source.read_at(at, &mut header).map_err(|source| Error::Input { at, source })?;
        let cluster = Cluster::parse(&header, at)?;
        let end = cluster.places.last().map_or(at, |place| place.at + u64::from(place.len));
        if end > self.size {
            return Err(Error::Truncated { cluster: at });
        }
        Ok(Some(cluster))
    }

    /// Returns the content of an item, decompressed.
    pub(crate) fn content(&self, place: &Place) -> Result<Vec<u8>> {
        let mut stored = vec![0; place.len as usize];
        self.source.read_at(place.at, &mut stored).map_err(|source| Error::Input { at: place.at, source })?;
        if !place.compressed {
            return Ok(stored);
        }
        let mut content = Vec::new();
        let mut limited = ZlibDecoder::new(&stored[..]).take(MAX_ITEM as u64 + 1);
        match limited.read_to_end(&mut content) {
            Ok(len) if len > 0 && len <= MAX_ITEM => Ok(content),
            _ => Err(Error::Compressed { at: place.logical }),
        }
    }

    /// Returns the contents of all items of a cluster, decompressed by up to `threads` threads.
    pub(crate) fn contents(&self, cluster: &Cluster, threads: usize) -> Result<Vec<Vec<u8>>> {
        let threads = if cluster.places.iter().any(|place| place.compressed) { threads } else { 1 };
        crate::threads::each(&cluster.places, threads, |place| self.content(place)).into_iter().collect()
    }
}
