//! Units of sizes, in bytes.

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;
