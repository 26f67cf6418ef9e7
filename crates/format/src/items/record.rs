//! One declaration for a structure of fixed size: its value, its bytes, and the conversion between
//! them.

use zerocopy::byteorder::little_endian::{U16, U32, U64};

use crate::{DeviceId, Generation, Ino, Logical, Physical, TreeId, Uuid};

/// A field that has a form in memory and one on disk.
pub trait Field: Copy {
    /// The form on disk.
    type Disk: Copy;
    /// Converts it to the form on disk.
    fn to_disk(self) -> Self::Disk;
    /// Converts it from the form on disk.
    fn from_disk(disk: Self::Disk) -> Self;
}

macro_rules! plain {
    ($($type:ty),+) => {$(
        impl Field for $type {
            type Disk = $type;
            fn to_disk(self) -> Self { self }
            fn from_disk(disk: Self) -> Self { disk }
        }
    )+};
}
plain!(u8, Uuid, [u8; 16]);

macro_rules! little_endian {
    ($($type:ty => $disk:ty),+) => {$(
        impl Field for $type {
            type Disk = $disk;
            fn to_disk(self) -> $disk { self.into() }
            fn from_disk(disk: $disk) -> Self { disk.get() }
        }
    )+};
}
little_endian!(u16 => U16, u32 => U32, u64 => U64);

macro_rules! newtype {
    ($($type:ident),+) => {$(
        impl Field for $type {
            type Disk = U64;
            fn to_disk(self) -> U64 { self.0.into() }
            fn from_disk(disk: U64) -> Self { Self(disk.get()) }
        }
    )+};
}
newtype!(DeviceId, Generation, Ino, Logical, Physical, TreeId);

/// Declares a structure of fixed size, its form on disk and the conversions.
macro_rules! record {
    (
        $(#[$doc:meta])*
        $name:ident / $bytes:ident [$size:literal] $what:literal {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)+
        }

        #[doc = concat!("A ", $what, " as it stands on disk (", stringify!($size), " bytes).")]
        #[derive(
            Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $bytes {
            $($field: <$type as $crate::items::record::Field>::Disk,)+
        }

        const _: () = assert!(size_of::<$bytes>() == $size);

        impl From<$name> for $bytes {
            fn from(value: $name) -> Self {
                Self { $($field: $crate::items::record::Field::to_disk(value.$field),)+ }
            }
        }

        impl From<$bytes> for $name {
            fn from(bytes: $bytes) -> Self {
                Self { $($field: $crate::items::record::Field::from_disk(bytes.$field),)+ }
            }
        }

        impl $name {
            /// Bytes on disk.
            #[allow(dead_code, reason = "not every part of a larger item needs it")]
            pub const SIZE: usize = $size;

            /// Reads the structure from the start of `bytes`; more bytes may follow.
            pub fn parse_prefix(bytes: &[u8]) -> $crate::Result<Self> {
                <$bytes as zerocopy::FromBytes>::read_from_prefix(bytes)
                    .map(|(value, _)| value.into())
                    .map_err(|_| $crate::Error::TooShort { what: $what, need: $size, have: bytes.len() })
            }

            /// Reads the structure from an item of exactly its size.
            #[allow(dead_code, reason = "parts of larger items are read as prefixes only")]
            pub fn parse(bytes: &[u8]) -> $crate::Result<Self> {
                if bytes.len() > $size {
                    return Err($crate::Error::WrongLength { what: $what, need: $size, have: bytes.len() });
                }
                Self::parse_prefix(bytes)
            }

            /// Returns the structure's bytes.
            pub fn to_bytes(self) -> [u8; $size] {
                zerocopy::transmute!($bytes::from(self))
            }
        }
    };
}
pub(crate) use record;
