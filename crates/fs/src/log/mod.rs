//! The log: what of the open transaction a crash must not lose.

pub(crate) mod replay;
