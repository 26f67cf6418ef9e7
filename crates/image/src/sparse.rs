//! Parses the records of sparse files of GNU tar in the pax format. GNU tar has written three
//! forms: 0.0 and 0.1 have the map in records, 1.0 before the data.

/// The prefix of the keys of records about sparse files.
const PREFIX: &[u8] = b"GNU.sparse.";

/// The contents of an entry's records about holes.
#[derive(Debug, Default)]
pub struct SparseRecords {
    major: Option<u64>,
    minor: Option<u64>,
    size: Option<u64>,
    /// The map of the forms before 1.0: offsets and lengths in turn.
    map: Option<Vec<u64>>,
}

/// The map of the data of a sparse file.
#[derive(Debug, PartialEq, Eq)]
pub enum SparseMap {
    /// The ranges of the data: offset and length in bytes.
    Ranges(Vec<(u64, u64)>),
    /// The map precedes the data.
    BeforeData,
}

/// The result of taking a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// The record is not about sparse files.
    Other,
    /// The record is the name of the file.
    Name,
    /// The record has been taken.
    Done,
    /// The record's value makes no sense.
    Wrong,
}

impl SparseRecords {
    /// Takes a record, if it is about sparse files.
    pub fn take(&mut self, key: &[u8], value: &[u8]) -> Taken {
        let Some(key) = key.strip_prefix(PREFIX) else { return Taken::Other };
        let number = |value: &[u8]| std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
        let slot = match key {
            b"name" => return Taken::Name,
            b"major" => &mut self.major,
            b"minor" => &mut self.minor,
            b"size" | b"realsize" => &mut self.size,
            b"numblocks" => {
                self.map.get_or_insert_default();
                return Taken::Done;
            }
            b"offset" | b"numbytes" => {
                let map = self.map.get_or_insert_default();
                let is_turn = map.len().is_multiple_of(2) == (key == b"offset");
                map.extend(number(value));
                return if is_turn && number(value).is_some() { Taken::Done } else { Taken::Wrong };
            }
            b"map" => {
                let parts = value.split(|byte| *byte == b',').filter(|part| !part.is_empty());
                self.map = parts.map(number).collect();
                return if self.map.is_some() { Taken::Done } else { Taken::Wrong };
            }
            _ => return Taken::Other,
        };
        *slot = number(value);
        if slot.is_some() { Taken::Done } else { Taken::Wrong }
    }

    /// Returns the size of the file in bytes and its map, or `None` if it is no sparse file. An
    /// error if the records contradict each other or have an unknown form.
    pub fn finish(self) -> Result<Option<(u64, SparseMap)>, ()> {
        match (self.major, self.minor, self.size, self.map) {
            (None, None, None, None) => Ok(None),
            (Some(1), Some(0), Some(size), None) => Ok(Some((size, SparseMap::BeforeData))),
            (None | Some(0), _, Some(size), Some(map)) if map.len().is_multiple_of(2) => {
                let ranges = map.chunks(2).map(|range| (range[0], range[1])).collect();
                Ok(Some((size, SparseMap::Ranges(ranges))))
            }
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(records: &[(&str, &str)]) -> Result<Option<(u64, SparseMap)>, ()> {
        let mut sparse = SparseRecords::default();
        for (key, value) in records {
            if sparse.take(key.as_bytes(), value.as_bytes()) == Taken::Wrong {
                return Err(());
            }
        }
        sparse.finish()
    }

    #[test]
    fn the_three_forms_are_read() {
        assert_eq!(read(&[("mtime", "1")]), Ok(None));
        let expected = Ok(Some((100, SparseMap::Ranges(vec![(5, 2), (50, 7)]))));
        let size = ("GNU.sparse.size", "100");
        let blocks = ("GNU.sparse.numblocks", "2");
        let (offset, bytes) = ("GNU.sparse.offset", "GNU.sparse.numbytes");
        assert_eq!(read(&[size, blocks, (offset, "5"), (bytes, "2"), (offset, "50"), (bytes, "7")]), expected);
        assert_eq!(read(&[size, blocks, ("GNU.sparse.map", "5,2,50,7")]), expected);
        let one = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9")];
        assert_eq!(read(&one), Ok(Some((9, SparseMap::BeforeData))));
        for wrong in [
            &[size][..],
            &[blocks],
            &[size, (offset, "1"), (offset, "2")],
            &[size, (offset, "1")],
            &[size, (bytes, "1")],
            &[size, ("GNU.sparse.map", "1,x")],
            &[size, ("GNU.sparse.map", "1,2,3")],
            &[("GNU.sparse.size", "-1")],
            &[("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0"), size],
        ] {
            assert_eq!(read(wrong), Err(()), "{wrong:?}");
        }
    }
}
