//! The part of a device that a volume is in.

use clap::Args;

use crate::size::{exact_size, parse_size};

/// The location of a volume on its device, or in its image.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Window {
    /// The volume begins so many bytes into each device or image (a multiple of 4096).
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0", hide_default_value = true)]
    pub offset: u64,
    /// The volume takes no more than so many bytes of it.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub sizelimit: Option<u64>,
}

impl Window {
    /// The options that say the same, with a space before each: nothing if it is all of the device.
    pub fn as_options(self) -> String {
        let offset = if self.offset == 0 { String::new() } else { format!(" --offset {}", exact_size(self.offset)) };
        let limit = self.sizelimit.map(|limit| format!(" --sizelimit {}", exact_size(limit)));
        offset + &limit.unwrap_or_default()
    }
}
