//! The kernel's switch for FUSE over `io_uring`, which is off by default, and on while we measure.

use crate::machine::{RING_SWITCH, line};

/// The switch, which is restored when this is dropped.
#[derive(Debug)]
pub struct Switch {
    was_off: bool,
}

impl Switch {
    /// Turns the switch on if it is off and we may change it. A killed run leaves it on, which is
    /// harmless.
    pub fn turn_on() -> Self {
        let is_off = line(RING_SWITCH) == "N";
        let was_off = is_off && std::fs::write(RING_SWITCH, "Y").is_ok();
        if was_off {
            eprintln!("FUSE over io_uring was off: on for this run ({RING_SWITCH})");
        }
        Self { was_off }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.was_off
            && let Err(error) = std::fs::write(RING_SWITCH, "N")
        {
            eprintln!("ubtrfs-bench: {RING_SWITCH}: {error}");
        }
    }
}
