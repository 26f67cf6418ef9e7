//! Names that are hard on a file system.

use ubtrfs_random::Rng;

/// Pairs of names whose hashes collide in a directory: btrfs keys a directory item by the CRC-32C
/// of the name, with the seed `!1` and without the final inversion.
pub const COLLIDING: [(&str, &str); 6] = [
    ("c7ae2a", "c801807"),
    ("c7ae2b", "c801804"),
    ("c7ae2c", "c801805"),
    ("c7ae2d", "c801802"),
    ("c7ae2e", "c801803"),
    ("c7ae2f", "c801800"),
];

/// Pairs of names of extended attributes whose hashes collide.
pub const COLLIDING_XATTRS: [(&str, &str); 3] =
    [("user.100220", "user.e989f"), ("user.100222", "user.e989d"), ("user.100223", "user.e989e")];

/// Returns the hash by which btrfs files a name.
pub fn name_hash(name: &[u8]) -> u32 {
    seeded_hash(NAME_SEED, name)
}

/// The seed of hashes of entries and xattrs. That of extended references is the directory's inode
/// number.
pub const NAME_SEED: u32 = !1;

/// Returns the hash of a name with this seed.
pub fn seeded_hash(seed: u32, name: &[u8]) -> u32 {
    name.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 })
    })
}

/// Returns a name of `len` bytes that begins with `prefix` and has this hash, by choosing letters
/// at its end. Each choice flips the same bits of the hash whatever the other choices are, so the
/// choices are the solution of linear equations.
///
/// # Panics
///
/// If there are fewer than 48 bytes behind the prefix.
pub fn name_of_hash(seed: u32, prefix: &str, len: usize, hash: u32) -> Vec<u8> {
    // Each letter is `a` or `c`. They differ in one bit: a difference in an odd number of bits is
    // necessary, since the polynomial makes each difference in an even number flip an even number
    // of bits.
    const CHOICES: usize = 48;
    let mut name = prefix.as_bytes().to_vec();
    assert!(name.len() + CHOICES <= len, "{len} bytes are too few behind {prefix}");
    name.resize(len, b'a');
    let plain = seeded_hash(seed, &name);
    // Each row has the bits that are flipped, and the letters that flip them; no two rows begin
    // with the same bit.
    let mut rows: Vec<(u32, u64)> = Vec::new();
    let reduced = |rows: &[(u32, u64)], mut bits: u32| {
        let mut letters = 0;
        for (row, chosen) in rows {
            if bits & (1 << (31 - row.leading_zeros())) != 0 {
                bits ^= row;
                letters ^= chosen;
            }
        }
        (bits, letters)
    };
    for choice in 0..CHOICES {
        let mut other = name.clone();
        other[len - CHOICES + choice] = b'c';
        let (bits, letters) = reduced(&rows, plain ^ seeded_hash(seed, &other));
        if bits != 0 {
            rows.push((bits, letters ^ 1 << choice));
        }
    }
    let (left, letters) = reduced(&rows, plain ^ hash);
    assert_eq!(left, 0, "so few letters reach not every hash");
    for choice in (0..CHOICES).filter(|choice| letters & 1 << choice != 0) {
        name[len - CHOICES + choice] = b'c';
    }
    name
}

/// Returns a name for a new file: mostly short, but at times 255 bytes long, with bytes that are
/// not UTF-8, or colliding.
pub fn random_name(rng: &mut Rng) -> Vec<u8> {
    match rng.below(12) {
        0 => {
            let mut name = format!("{:016x}-", rng.next_u64()).into_bytes();
            name.resize(255, b'n');
            name
        }
        1 => {
            let len = 1 + rng.index(40);
            let mut name = rng.noise(len);
            for byte in &mut name {
                if matches!(*byte, 0 | b'/' | b'.') {
                    *byte = 0xfe;
                }
            }
            name
        }
        2 => format!("with space\n\"quotes\" and é {:x}", rng.below(1 << 16)).into_bytes(),
        3 | 4 => {
            let &(a, b) = rng.pick(&COLLIDING);
            let name = if rng.one_in(2) { a } else { b };
            name.as_bytes().to_vec()
        }
        _ => format!("f{:x}", rng.below(1 << 24)).into_bytes(),
    }
}

/// Returns the name of an extended attribute; for root also in namespaces that only root may write.
pub fn random_xattr(rng: &mut Rng, root: bool) -> Vec<u8> {
    let spaces: &[&str] = if root { &["user", "user", "trusted", "security"] } else { &["user"] };
    let space = rng.pick(spaces);
    match rng.below(10) {
        0 | 1 => {
            let &(a, b) = rng.pick(&COLLIDING_XATTRS);
            let name = if rng.one_in(2) { a } else { b };
            name.as_bytes().to_vec()
        }
        2 => {
            let mut name = format!("{space}.{:x}-", rng.below(4)).into_bytes();
            name.resize(255, b'x');
            name
        }
        // There are few names, so that values get replaced and attributes removed.
        _ => format!("{space}.test{:x}", rng.below(12)).into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_colliding_names_collide() {
        for (a, b) in COLLIDING.into_iter().chain(COLLIDING_XATTRS) {
            assert_eq!(name_hash(a.as_bytes()), name_hash(b.as_bytes()), "{a} {b}");
        }
        assert_ne!(name_hash(b"c7ae2a"), name_hash(b"c7ae2b"));
    }

    #[test]
    fn names_get_the_hash_that_is_asked_for() {
        for number in 0..100_u32 {
            let hash = number.wrapping_mul(0x9e37_79b9);
            let name = name_of_hash(number, &format!("{number}-"), 60 + number as usize, hash);
            assert_eq!((seeded_hash(number, &name), name.len()), (hash, 60 + number as usize));
        }
    }

    #[test]
    fn names_are_legal() {
        let mut rng = Rng::new(3);
        for _ in 0..2000 {
            let name = random_name(&mut rng);
            assert!((1..=255).contains(&name.len()));
            assert!(!name.contains(&0) && !name.contains(&b'/') && name != b"." && name != b"..");
            assert!(random_xattr(&mut rng, true).len() <= 255);
        }
    }
}
