//! Entries of tar archives, byte by byte, in the forms that programs have written over the years.

/// The format of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    V7,
    Ustar,
    Gnu,
    Pax,
    /// star before it wrote pax: ustar with times and its own mark at the end.
    Star,
}

/// An entry that is to be written.
#[derive(Clone, Debug)]
pub struct Entry {
    pub style: Style,
    pub name: Vec<u8>,
    pub kind: u8,
    pub target: Vec<u8>,
    pub content: Vec<u8>,
    pub mode: u32,
    pub owner: (u64, u64),
    pub mtime: i64,
    pub device: (u32, u32),
    /// Numbers are binary.
    pub is_binary: bool,
    /// Records of pax.
    pub records: Vec<(String, Vec<u8>)>,
}

impl Entry {
    pub fn new(style: Style, name: &str, kind: u8) -> Self {
        Self {
            style,
            name: name.into(),
            kind,
            target: Vec::new(),
            content: Vec::new(),
            mode: if kind == b'5' { 0o755 } else { 0o644 },
            owner: (1, 2),
            mtime: 1_700_000_000,
            device: (0, 0),
            is_binary: false,
            records: Vec::new(),
        }
    }

    pub fn file(style: Style, name: &str, content: &[u8]) -> Self {
        Self { content: content.into(), ..Self::new(style, name, b'0') }
    }

    /// Returns a hard link or a symbolic link.
    pub fn link(style: Style, name: &str, kind: u8, target: &str) -> Self {
        Self { target: target.into(), ..Self::new(style, name, kind) }
    }

    pub fn with(mut self, key: &str, value: &[u8]) -> Self {
        self.records.push((key.into(), value.into()));
        self
    }

    /// Returns the bytes of the entry: the records before its header, the header, and its data.
    pub fn bytes(&self) -> Vec<u8> {
        let mut records = self.records.clone();
        let mut before = Vec::new();
        if self.style == Style::Gnu {
            for (kind, name, most) in [(b'L', &self.name, 100), (b'K', &self.target, 100)] {
                if name.len() > most {
                    let long = Self {
                        kind,
                        name: b"././@LongLink".to_vec(),
                        target: Vec::new(),
                        content: [name, &b"\0"[..]].concat(),
                        ..self.clone()
                    };
                    before.extend(long.block());
                }
            }
        }
        if self.style == Style::Pax {
            for (key, name) in [("path", &self.name), ("linkpath", &self.target)] {
                if name.len() > 100 {
                    records.push((key.into(), name.clone()));
                }
            }
        }
        if !records.is_empty() {
            let content = records.iter().flat_map(|(key, value)| record(key, value)).collect();
            before.extend(Self { content, ..Self::new(Style::Ustar, "pax", b'x') }.block());
        }
        before.extend(self.block());
        before
    }

    fn block(&self) -> Vec<u8> {
        let mut header = [0; 512];
        let mut prefix = &b""[..];
        let mut name = &self.name[..];
        if matches!(self.style, Style::Ustar | Style::Star) && name.len() > 100 {
            let slash = name[..156].iter().rposition(|byte| *byte == b'/').unwrap();
            (prefix, name) = (&name[..slash], &name[slash + 1..]);
        }
        let put = |header: &mut [u8; 512], at: usize, bytes: &[u8], most: usize| {
            let bytes = &bytes[..bytes.len().min(most)];
            header[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(&mut header, 0, name, 100);
        put(&mut header, 157, &self.target, 100);
        self.number(&mut header[100..108], i64::from(self.mode));
        self.number(&mut header[108..116], self.owner.0 as i64);
        self.number(&mut header[116..124], self.owner.1 as i64);
        self.number(&mut header[124..136], self.content.len() as i64);
        self.number(&mut header[136..148], self.mtime);
        header[156] = self.kind;
        match self.style {
            Style::V7 => {}
            Style::Gnu => put(&mut header, 257, b"ustar  \0", 8),
            Style::Ustar | Style::Pax | Style::Star => put(&mut header, 257, b"ustar\x0000", 8),
        }
        if self.style != Style::V7 {
            self.number(&mut header[329..337], i64::from(self.device.0));
            self.number(&mut header[337..345], i64::from(self.device.1));
            // The names of the owners, which --numeric-owner ignores.
            put(&mut header, 265, b"nobody", 32);
            put(&mut header, 297, b"nogroup", 32);
        }
        put(&mut header, 345, prefix, 155);
        if self.style == Style::Star {
            for at in [476, 488] {
                self.number(&mut header[at..at + 12], 1_600_000_000);
            }
            put(&mut header, 508, b"tar\0", 4);
        }
        sum_up(&mut header);
        let mut bytes = [&header[..], &self.content].concat();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn number(&self, field: &mut [u8], value: i64) {
        let digits = field.len() - 1;
        if self.is_binary || value < 0 || value >= 1 << (3 * digits) {
            let bytes = value.to_be_bytes();
            field.fill(if value < 0 { 0xff } else { 0 });
            let from = bytes.len().saturating_sub(field.len());
            let at = field.len() - (bytes.len() - from);
            field[at..].copy_from_slice(&bytes[from..]);
            field[0] |= 0x80;
        } else {
            field[..digits].copy_from_slice(format!("{value:0digits$o}").as_bytes());
        }
    }
}

/// Returns a record of pax.
pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let len = (1..8).map(|digits| rest + digits).find(|len| len.to_string().len() + rest == *len).unwrap();
    [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
}

/// Sets the checksum of a header.
pub fn sum_up(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header[..512].iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Returns an archive of these entries.
pub fn archive_of(entries: &[Entry]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(Entry::bytes).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}
