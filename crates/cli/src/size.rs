//! Parses and formats sizes as people write them.

/// The least memory in bytes for caches and for data that is not written yet.
pub const MIN_MEMORY: u64 = 16 << 20;

/// Returns the bytes of a size such as `8G`, `100M`, `512k` or `4096`: units of 1024, in either
/// case, and `iB` or `B` may follow.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let wrong = || format!("'{text}' is not a size: write a number and perhaps k, M, G, T, P or E");
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "e" => 60,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))
}

/// Returns a size as [`parse_size`] takes it, in the largest unit of which it is a multiple.
pub fn exact_size(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "k")];
    let fitting = units.iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    fitting.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Returns a size for people, rounded down to hundredths of its unit.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    if unit == 0 {
        return format!("{bytes} B");
    }
    let name = UNITS.get(unit).copied().unwrap_or("B");
    let hundredths = (u128::from(bytes) * 100) >> (10 * unit);
    format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
}

/// The unit in which sizes are shown, as btrfs-progs do: with two digits after the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Whether units are powers of 1000; otherwise they are powers of 1024.
    pub is_decimal: bool,
    /// Which power; 0 means plain bytes. `None` means the power that fits the size.
    pub power: Option<u32>,
}

impl Unit {
    const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    const DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

    /// Returns a size in this unit.
    pub fn show(self, bytes: u64) -> String {
        let (base, names) = if self.is_decimal { (1000_u64, Self::DECIMAL) } else { (1024, Self::BINARY) };
        let power = match self.power {
            Some(0) => return bytes.to_string(),
            Some(power) => power,
            None => bytes.max(1).ilog(base),
        };
        #[allow(clippy::cast_precision_loss, reason = "more digits than two behind the point are not shown")]
        let shown = bytes as f64 / base.pow(power) as f64;
        format!("{shown:.2}{}", names.get(power as usize).copied().unwrap_or("B"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512k", 512 << 10),
            ("512K", 512 << 10),
            ("100M", 100 << 20),
            ("100MiB", 100 << 20),
            ("8G", 8 << 30),
            ("8gb", 8 << 30),
            ("3t", 3 << 40),
            ("15E", 15 << 60),
            ("7B", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_that_are_shown_exactly_are_parsed_again() {
        let shown = [(0, "0"), (4096, "4k"), (300 << 20, "300M"), (3 << 30, "3G"), (4097, "4097")];
        for (bytes, text) in shown {
            assert_eq!((exact_size(bytes).as_str(), parse_size(text)), (text, Ok(bytes)));
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["", "G", "-1", "1.5G", "8X", "8GG", "16E", "99999999999999999999", "8 G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_units_as_btrfs_progs_show_them() {
        let shown = |is_decimal, power, bytes| Unit { is_decimal, power }.show(bytes);
        for (is_decimal, power, bytes, text) in [
            (false, None, 0, "0.00B"),
            (false, None, 1_134_592, "1.08MiB"),
            (false, None, 77_824, "76.00KiB"),
            (true, None, 1_134_592, "1.13MB"),
            (true, None, 8192, "8.19kB"),
            (false, Some(0), 1_134_592, "1134592"),
            (false, Some(1), 1_134_592, "1108.00KiB"),
            (true, Some(1), 1_134_592, "1134.59kB"),
            (false, Some(2), 131_072, "0.12MiB"),
            (false, Some(4), 131_072, "0.00TiB"),
            (false, None, u64::MAX, "16.00EiB"),
        ] {
            assert_eq!(shown(is_decimal, power, bytes), text);
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show_size(0), "0 B");
        assert_eq!(show_size(1023), "1023 B");
        assert_eq!(show_size(1536), "1.50 KiB");
        assert_eq!(show_size(8 << 30), "8.00 GiB");
        assert_eq!(show_size(u64::MAX), "15.99 EiB");
    }
}
