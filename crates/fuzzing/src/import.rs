//! Archives of arbitrary bytes, imported into a volume.

use std::sync::{Arc, OnceLock};

use tar::{EntryType, Header};
use ubtrfs_check::check;
use ubtrfs_image::{ImportOptions, Job, Layer, Session};
use ubtrfs_volume::{Device, OverlayDevice};

use crate::whole_image::base::own;

/// The size of a block of an archive, and the offset of the checksum in a header.
const BLOCK: usize = 512;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const MAGIC: std::ops::Range<usize> = 257..262;

/// Imports an archive. The first byte of `data` has the options: bit 0 is for a layer of an OCI
/// image, bit 1 for sharing equal data. The rest is the archive, which is imported as it is, and
/// once more with corrected checksums of its headers. An import that succeeds leaves a volume
/// without a fault.
pub fn import(data: &[u8]) {
    let Some((kind, archive)) = data.split_first() else { return };
    let options = options(*kind);
    import_into_volume(archive, options.clone());
    let mut sealed = archive.to_vec();
    for header in sealed.chunks_exact_mut(BLOCK).filter(|block| block[MAGIC] == *b"ustar") {
        header[CHECKSUM].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    if sealed != archive {
        import_into_volume(&sealed, options);
    }
}

fn options(kind: u8) -> ImportOptions {
    let layer = if kind & 1 == 0 { Layer::Plain } else { Layer::Oci };
    ImportOptions { layer, dedupe: kind & 2 != 0, ..ImportOptions::default() }
}

/// Imports an archive, and returns whether it was accepted.
fn import_into_volume(archive: &[u8], options: ImportOptions) -> bool {
    static VOLUME: OnceLock<OverlayDevice> = OnceLock::new();
    let device = Arc::new(VOLUME.get_or_init(|| OverlayDevice::new(own().into())).fork());
    let session = Session::open(vec![Arc::clone(&device) as Arc<dyn Device>]);
    let session = session.unwrap_or_else(|error| panic!("a sound volume cannot be edited: {error:?}"));
    let root = session.fs().root();
    if ubtrfs_image::import(session.fs(), root, archive, options, &mut Job::default()).is_err() {
        return false;
    }
    session.publish().unwrap_or_else(|error| panic!("what was imported cannot be kept: {error:?}"));
    let report = check(&[device as Arc<dyn Device>], &ubtrfs_check::Options::default());
    let report = report.unwrap_or_else(|error| panic!("the volume can no longer be checked: {error:?}"));
    assert!(report.is_clean(), "an import has left faults: {:#?}", report.faults);
    true
}

/// Returns the corpus: archives with every kind of entry, and some that an import refuses.
pub fn inputs() -> Vec<(String, Vec<u8>)> {
    let (file, directory, link, symlink) =
        (EntryType::Regular, EntryType::Directory, EntryType::Link, EntryType::Symlink);
    let records = |text: &[(&str, &str)]| -> Vec<u8> {
        let record = |(key, value): &(&str, &str)| {
            let rest = key.len() + value.len() + 3;
            let len = (rest..rest + 20).find(|len| *len == rest + len.to_string().len()).unwrap_or_default();
            format!("{len} {key}={value}\n")
        };
        text.iter().map(record).collect::<String>().into_bytes()
    };
    let pax = |text: &[(&str, &str)]| ("pax", EntryType::XHeader, "", records(text));
    let sparse = "2\n512\n100\n4096\n50\n";
    let before_data = [sparse.as_bytes(), &vec![0; BLOCK - sparse.len()], &[7; 150]].concat();
    let one = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9000")];
    let inputs = [
        ("files", 0, vec![("a/b", file, "", vec![1; 5000]), ("a", directory, "", vec![]), ("a/b", file, "", vec![2])]),
        ("links", 0, vec![("x", file, "", vec![1]), ("y", link, "x", vec![]), ("z", symlink, "../../x", vec![])]),
        ("nodes", 0, vec![("c", EntryType::Char, "", vec![]), ("f", EntryType::Fifo, "", vec![])]),
        (
            "records",
            0,
            vec![
                pax(&[("mtime", "-1.5"), ("uid", "3000000000"), ("SCHILY.xattr.user.x", "v"), ("path", "n/m")]),
                ("x", file, "", vec![3; 100]),
            ],
        ),
        ("sparse-0.1", 0, {
            let map = [("GNU.sparse.size", "9000"), ("GNU.sparse.numblocks", "2"), ("GNU.sparse.map", "0,9,8000,9")];
            vec![pax(&map), ("x", file, "", vec![4; 18])]
        }),
        ("sparse-1.0", 0, vec![pax(&one), ("x", file, "", before_data)]),
        (
            "layer",
            1,
            vec![
                ("d/x", file, "", vec![1]),
                ("l", symlink, "/d", vec![]),
                ("l/y", file, "", vec![]),
                ("d/.wh.x", file, "", vec![]),
                ("d/.wh..wh..opq", file, "", vec![]),
            ],
        ),
        ("shared", 2, vec![("a", file, "", vec![5; 9000]), ("b", file, "", vec![5; 9000]), ("a", file, "", vec![])]),
        ("hostile", 0, vec![("u", symlink, "..", vec![]), ("u/../../x", file, "", vec![1])]),
    ];
    let input = |(name, kind, entries): (&str, u8, Vec<Entry>)| {
        let archive: Vec<u8> = entries.iter().flat_map(entry).chain([0; 2 * BLOCK]).collect();
        (name.to_owned(), [&[kind], archive.as_slice()].concat())
    };
    inputs.into_iter().map(input).collect()
}

/// Name, type, target and content.
type Entry = (&'static str, EntryType, &'static str, Vec<u8>);

fn entry((name, kind, target, content): &Entry) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(*kind);
    header.set_mode(0o4755);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_700_000_000);
    header.as_mut_bytes()[329..345].copy_from_slice(b"0000001\x000000003\0");
    header.set_size(content.len() as u64);
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    let mut bytes = [header.as_bytes(), content.as_slice()].concat();
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_accepted_but_for_what_is_hostile() {
        for (name, input) in inputs() {
            assert_eq!(import_into_volume(&input[1..], options(input[0])), name != "hostile", "{name}");
        }
    }
}
