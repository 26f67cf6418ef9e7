//! The arithmetic of RAID5 and RAID6, by which a stripe is computed from the others of its row.
//!
//! P is the sum of the data stripes. Q is the sum of the data stripes, each times a power of 2,
//! which is 2^0 for the first. Both are over the Galois field of 2^8 elements with the polynomial
//! 0x11d, in which addition is XOR. So each stripe is a linear combination of others. A combination
//! is a list with a factor for each stripe of the row: first the data stripes, then P, then Q.
//! Stripes with the factor 0 need not be read.

/// The most stripes of a chunk with parity: there are as many different powers of 2.
pub const MAX_STRIPES: usize = 255;

/// The powers of 2, the order of which is 255.
const POWERS: [u8; 255] = {
    let mut powers = [1; 255];
    let mut exponent = 1;
    while exponent < powers.len() {
        let last = powers[exponent - 1];
        powers[exponent] = (last << 1) ^ (if last & 0x80 == 0 { 0 } else { 0x1d });
        exponent += 1;
    }
    powers
};

/// The exponents of the powers of 2. The entry for 0 has no meaning.
const LOGARITHMS: [u8; 256] = {
    let mut logarithms = [0; 256];
    let mut exponent = 0;
    while exponent < POWERS.len() {
        logarithms[POWERS[exponent] as usize] = exponent as u8;
        exponent += 1;
    }
    logarithms
};

fn power(exponent: usize) -> u8 {
    POWERS[exponent % POWERS.len()]
}

fn product(one: u8, other: u8) -> u8 {
    if one == 0 || other == 0 {
        return 0;
    }
    power(usize::from(LOGARITHMS[usize::from(one)]) + usize::from(LOGARITHMS[usize::from(other)]))
}

/// Returns the multiplicative inverse of a number that is not 0.
fn inverse(of: u8) -> u8 {
    power(POWERS.len() - usize::from(LOGARITHMS[usize::from(of)]))
}

/// Adds a stripe times a factor to a sum.
pub fn add(sum: &mut [u8], stripe: &[u8], factor: u8) {
    match factor {
        0 => {}
        1 => sum.iter_mut().zip(stripe).for_each(|(sum, byte)| *sum ^= byte),
        _ => {
            let mut products = [0; 256];
            for (product_of, byte) in products.iter_mut().zip(0..=u8::MAX) {
                *product_of = product(byte, factor);
            }
            sum.iter_mut().zip(stripe).for_each(|(sum, byte)| *sum ^= products[usize::from(*byte)]);
        }
    }
}

/// Returns how many combinations give a data stripe.
pub fn count(data: usize, parities: usize) -> usize {
    match parities {
        0 => 0,
        1 => 1,
        // With P; with Q; and with both, without one of the other data stripes.
        _ => 1 + data,
    }
}

/// Returns the `number`-th combination that gives data stripe `wanted` of `data`. The first
/// combinations leave out the fewest stripes.
pub fn combination(data: usize, parities: usize, wanted: usize, number: usize) -> Vec<u8> {
    let mut factors = vec![0; data + parities];
    match number {
        0 => {
            factors[..=data].fill(1);
            factors[wanted] = 0;
        }
        1 => {
            let scale = inverse(power(wanted));
            for (stripe, factor) in factors[..data].iter_mut().enumerate() {
                *factor = product(scale, power(stripe));
            }
            factors[wanted] = 0;
            factors[data + 1] = scale;
        }
        _ => {
            // D is the wanted stripe and E the one left out. Subtracting the other stripes leaves D
            // + E of P, and d D + e E of Q.
            let without = number - 2 + usize::from(number - 2 >= wanted);
            let (d, e) = (power(wanted), power(without));
            let scale = inverse(d ^ e);
            for (stripe, factor) in factors[..data].iter_mut().enumerate() {
                *factor = product(scale, power(stripe) ^ e);
            }
            factors[wanted] = 0;
            factors[data] = product(scale, e);
            factors[data + 1] = scale;
        }
    }
    factors
}

/// Returns the combination that gives P (0) or Q (1).
pub fn parity(data: usize, parities: usize, which: usize) -> Vec<u8> {
    let mut factors = vec![0; data + parities];
    for (stripe, factor) in factors[..data].iter_mut().enumerate() {
        *factor = if which == 0 { 1 } else { power(stripe) };
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(stripes: &[Vec<u8>], factors: &[u8]) -> Vec<u8> {
        let mut sum = vec![0; stripes[0].len()];
        stripes.iter().zip(factors).for_each(|(stripe, factor)| add(&mut sum, stripe, *factor));
        sum
    }

    /// Products by long multiplication, without tables.
    #[test]
    fn products_are_those_of_polynomials_modulo_0x11d() {
        for one in 0..=u8::MAX {
            for other in 0..=u8::MAX {
                let mut long =
                    (0..8).fold(0_u16, |sum, bit| sum ^ ((u16::from(other) >> bit & 1) * (u16::from(one) << bit)));
                for bit in (8..16).rev() {
                    long ^= (long >> bit & 1) * (0x11d << (bit - 8));
                }
                assert_eq!(u16::from(product(one, other)), long, "{one} * {other}");
            }
            assert!(one == 0 || product(one, inverse(one)) == 1);
        }
    }

    #[test]
    fn every_combination_gives_the_stripe_and_does_without_what_it_says() {
        for (data, parities) in [(1, 1), (2, 1), (7, 1), (1, 2), (2, 2), (5, 2), (253, 2)] {
            let content = |stripe: usize| (0..8).map(|at| (stripe * 97 + at * 31 + stripe * at) as u8).collect();
            let mut stripes: Vec<Vec<u8>> = (0..data).map(content).collect();
            stripes.resize(data + parities, vec![0; 8]);
            for which in 0..parities {
                stripes[data + which] = sum(&stripes, &parity(data, parities, which));
            }
            for wanted in [0, data / 2, data - 1] {
                let all = (0..count(data, parities)).map(|number| combination(data, parities, wanted, number));
                let mut unused = std::collections::BTreeSet::new();
                for factors in all {
                    assert_eq!(sum(&stripes, &factors), stripes[wanted], "{data}+{parities}, {wanted}: {factors:?}");
                    assert_eq!(factors[wanted], 0);
                    let zeros = (0..data + parities).filter(|at| factors[*at] == 0 && *at != wanted);
                    unused.extend(zeros);
                }
                // If two stripes are lost, some combination leaves out each possible second one.
                assert_eq!(unused.len(), if parities == 2 { data + 1 } else { 0 });
            }
        }
    }
}
