//! The seeds that a test runs: a few in `make test`, many in `make soak`.

/// Returns whether the long form of each test is requested, as by `make soak`.
pub fn soaks() -> bool {
    std::env::var_os("UBTRFS_SOAK").is_some()
}

/// Returns the seeds in `UBTRFS_SEEDS`, which is a list such as `3,17,100-120`; if it is not set,
/// the whole numbers from 1 to `usual`.
pub fn seeds(usual: u64) -> Vec<u64> {
    match std::env::var("UBTRFS_SEEDS") {
        Ok(text) => parse(&text).unwrap_or_else(|| panic!("UBTRFS_SEEDS={text}: not a list of seeds")),
        Err(_) => (1..=usual).collect(),
    }
}

/// Returns the seeds of a test that has many short runs. It is like [`seeds`], but in `make soak`
/// each seed stands for `each` runs. The number of one of these, given alone and without
/// `UBTRFS_SOAK`, repeats that run.
pub fn many_seeds(usual: u64, each: u64) -> Vec<u64> {
    if !soaks() {
        return seeds(usual);
    }
    let seeds = seeds(100);
    (0..each).flat_map(|run| seeds.iter().map(move |seed| seed + (run << 20))).collect()
}

fn parse(text: &str) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => found.extend(first.parse::<u64>().ok()?..=last.parse().ok()?),
            None => found.push(part.parse().ok()?),
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(parse("3,7-9"), Some(vec![3, 7, 8, 9]));
        assert_eq!(parse("3,x"), None);
        assert_eq!(parse(""), None);
    }
}
