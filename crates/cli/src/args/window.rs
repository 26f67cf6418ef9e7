//! The part of a device that a volume is in.

use clap::Args;

use crate::size::{exact_size, parse_size};

/// The location of a volume on its device, or in its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct Window {
    /// The volume is in the partition with this number of each device or image.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["offset", "sizelimit"])]
    pub partition: Option<u32>,
    /// The volume begins this many bytes into each device or image, a multiple of 4096 [default:
    /// 0].
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0", hide_default_value = true)]
    pub offset: u64,
    /// The volume takes at most this many bytes of each device or image.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub sizelimit: Option<u64>,
    /// It was given as options of a mount.
    #[arg(skip)]
    pub of_mount: bool,
}

impl Window {
    /// The options of a command that say the same, with a space before each: nothing if it is all
    /// of the device.
    pub fn as_options(self) -> String {
        self.each().fold(String::new(), |all, (name, value)| all + &format!(" --{name} {value}"))
    }

    /// The options of a mount that say the same, with a comma before each.
    pub fn as_mount_options(self) -> String {
        self.each().fold(String::new(), |all, (name, value)| all + &format!(",{name}={value}"))
    }

    /// Whether it is all of the device.
    pub fn is_whole(self) -> bool {
        self.each().next().is_none()
    }

    fn each(self) -> impl Iterator<Item = (&'static str, String)> {
        let offset = Some(self.offset).filter(|offset| *offset > 0);
        let given = [
            ("partition", self.partition.map(|number| number.to_string())),
            ("offset", offset.map(exact_size)),
            ("sizelimit", self.sizelimit.map(exact_size)),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}
