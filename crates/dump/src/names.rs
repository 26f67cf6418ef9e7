//! Other names with the same length and the same hash.
//!
//! Keys of directory items and of xattrs have the CRC-32C of the name. A name is replaced by random
//! characters, of which the last four follow from the hash: the CRC of a message is a bijection of
//! its last four bytes. So a name of up to four bytes is the only one with its hash.

use std::hash::{BuildHasher, RandomState};

use ubtrfs_format::{ChecksumType, name_hash};

/// The polynomial of CRC-32C, with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The bytes of a name that follow from the hash.
const SOLVED: usize = 4;
const PLAIN: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// How many random beginnings are tried with plain characters, each with all of these as its last.
/// One in 256 gives a name.
const MAX_PLAIN_TRIES: usize = 64;
/// How many are tried with any characters that can be printed. One in 50 gives a name.
const MAX_PRINTABLE_TRIES: usize = 32;
/// How many are tried with any bytes that a name may have. Nearly each gives a name.
const MAX_TRIES: usize = 4;
/// How many names are tried if the hash may change within limits.
const MAX_NEAR_TRIES: usize = 20_000;

/// The beginnings of names of xattrs that are kept, since they decide who may read the xattr. What
/// has another beginning has a meaning for the kernel, and no names of users.
const FREE_XATTRS: [&[u8]; 2] = [b"user.", b"trusted."];
/// The longest part of a name that may have no other with its hash.
const MAX_SHORT: usize = SOLVED + 1;

/// Returns how many bytes at the beginning of an xattr's name are kept, or `None` if all of it is.
pub(crate) fn free_start(name: &[u8]) -> Option<usize> {
    FREE_XATTRS.iter().find(|start| name.starts_with(start)).map(|start| start.len())
}

/// Replaces names. The same name always becomes the same other one.
pub(crate) struct Names {
    secret: [u8; 16],
}

impl Names {
    /// Returns replacements that nobody can foretell.
    pub(crate) fn new() -> Self {
        let random = || RandomState::new().hash_one(0_u8);
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random().to_le_bytes());
        secret[8..].copy_from_slice(&random().to_le_bytes());
        Self { secret }
    }

    fn numbers(&self, name: &[u8]) -> Numbers {
        let seed = ChecksumType::Sha256.compute(&[&self.secret[..], name].concat());
        let word = |at: usize| seed.0[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Numbers { state: word(0), step: word(8) | 1 }
    }

    /// Returns another name of the same length and hash, or `None` if no name was found. The first
    /// `kept` bytes stay as they are.
    pub(crate) fn other(&self, name: &[u8], kept: usize) -> Option<Vec<u8>> {
        let end = name.len().checked_sub(SOLVED).filter(|end| *end > kept)?;
        let solved = before_last_bytes(name_hash(name) as u32);
        let mut numbers = self.numbers(name);
        let mut other = name.to_vec();
        let printable: Vec<u8> = (b'!'..=b'~').filter(|byte| *byte != b'/').collect();
        let any: Vec<u8> = (1..=u8::MAX).filter(|byte| *byte != b'/').collect();
        for (alphabet, tries) in [(PLAIN, MAX_PLAIN_TRIES), (&printable, MAX_PRINTABLE_TRIES), (&any, MAX_TRIES)] {
            let mut allowed = [false; 256];
            for byte in alphabet {
                allowed[usize::from(*byte)] = true;
            }
            for _ in 0..tries {
                other[kept..end].fill_with(|| alphabet[numbers.below(alphabet.len())]);
                let first = numbers.below(alphabet.len());
                for number in first..first + alphabet.len() {
                    other[end - 1] = alphabet[number % alphabet.len()];
                    let last = (solved ^ name_hash(&other[..end]) as u32).to_le_bytes();
                    if last.iter().all(|byte| allowed[usize::from(*byte)]) && other[..end] != name[..end] {
                        other[end..].copy_from_slice(&last);
                        return Some(other);
                    }
                }
            }
        }
        None
    }

    /// Returns whether there is no other name with the same hash. The first `kept` bytes stay as
    /// they are.
    pub(crate) fn is_short(&self, name: &[u8], kept: usize) -> bool {
        let len = name.len().saturating_sub(kept);
        (1..=MAX_SHORT).contains(&len) && name != b".." && self.other(name, kept).is_none()
    }

    /// Returns another name of the same length that is acceptable, whatever its hash is, or `None`
    /// if none was found. The first `kept` bytes stay as they are.
    pub(crate) fn near(&self, name: &[u8], kept: usize, accept: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let mut numbers = self.numbers(name);
        let any: Vec<u8> = (1..=u8::MAX).filter(|byte| *byte != b'/').collect();
        for (alphabet, tries) in [(PLAIN, MAX_NEAR_TRIES), (&any, MAX_NEAR_TRIES)] {
            for _ in 0..tries {
                let mut other = name[..kept.min(name.len())].to_vec();
                other.resize_with(name.len(), || alphabet[numbers.below(alphabet.len())]);
                if other != b"." && other != b".." && other != name && accept(&other) {
                    return Some(other);
                }
            }
        }
        None
    }

    /// Fills the target of a symbolic link, or the value of an xattr, with letters.
    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        let mut numbers = self.numbers(bytes);
        bytes.fill_with(|| PLAIN[numbers.below(PLAIN.len())]);
    }
}

/// Pseudorandom numbers.
struct Numbers {
    state: u64,
    step: u64,
}

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_add(self.step);
        let mut mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit.max(1) as u64) as usize
    }
}

/// Returns the sum of the state of the CRC before its last four bytes and these bytes, as a
/// little-endian number, by the state after them.
fn before_last_bytes(after: u32) -> u32 {
    // A step shifts a bit out, and adds the polynomial, with its top bit, if the bit was set.
    let back = |state: u32, _| if state >> 31 == 1 { (state ^ POLYNOMIAL) << 1 | 1 } else { state << 1 };
    (0..8 * SOLVED).fold(after, back)
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::{Ino, extref_hash};

    use super::*;

    #[test]
    fn another_name_has_the_length_and_both_hashes() {
        let names = Names::new();
        for name in ["a.txt", "notes", "letter-to-the-bank.odt", "é è ü", &"n".repeat(255)] {
            let name = name.as_bytes();
            let other = names.other(name, 0).unwrap();
            assert_ne!(other, name);
            assert_eq!(other.len(), name.len());
            assert_eq!(name_hash(&other), name_hash(name));
            assert_eq!(extref_hash(Ino(257), &other), extref_hash(Ino(257), name));
            assert!(!other.contains(&b'/') && !other.contains(&0));
            assert_eq!(names.other(name, 0), Some(other), "the same each time");
        }
    }

    #[test]
    fn long_names_become_plain_characters() {
        let names = Names::new();
        for number in 0..200 {
            let name = format!("file number {number}");
            let other = names.other(name.as_bytes(), 0).unwrap();
            assert!(other.iter().all(|byte| PLAIN.contains(byte)), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn the_beginning_is_kept_when_asked() {
        let other = Names::new().other(b"user.colour", 5).unwrap();
        assert!(other.starts_with(b"user.") && other != b"user.colour");
        assert_eq!(name_hash(&other), name_hash(b"user.colour"));
    }

    #[test]
    fn short_names_have_no_other() {
        let names = Names::new();
        for name in ["a", "ab", "abc", "abcd"] {
            assert_eq!(names.other(name.as_bytes(), 0), None);
        }
        assert_eq!(names.other(b"user.abcd", 5), None);
    }

    #[test]
    fn names_differ_from_dump_to_dump() {
        let one = Names::new().other(b"a rather long name", 0);
        assert_ne!(one, Names::new().other(b"a rather long name", 0));
    }
}
