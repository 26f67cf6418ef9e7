//! The crash simulator: one seed drives a random history on a recording device, then every state
//! that a crash could have left is opened, checked and compared with a model of the promises.
//!
//! * [`History`] makes a small volume, performs random [operations](Operation) by the engine,
//!   compares their results with a [`Model`], and keeps a [`Trace`]: the versions of the volume,
//!   its commits, and a [`Promise`] for each fsync.
//! * [`Crashes`] enumerates states of the device: any prefix of its events, with any subset of the
//!   writes that no barrier had made durable, torn at 4 KiB.
//! * [`examine`] judges one: it must be clean by `ubtrfs_check`. Without a log it must be exactly
//!   the last commit, data included; with a log, each inode and each name must be as it was at some
//!   time since it was last promised.
//! * Each of several devices has a queue of its own. [`DeviceSurvey`] counts the states that were
//!   examined, also with a [`DeviceFault`], which redundancy hides, and after which it is restored.
//! * [`Stage`] tries given sequences of operations, and [`enumerate`] makes every short one over a
//!   few names.
//! * [`overlap`] does the same while several threads work, each for itself or all on the same
//!   files.
//! * [`LyingDevice`] breaks the rules of devices, which the simulator must notice.

mod apart;
mod compare;
mod content;
mod crash;
mod device_fault;
mod device_survey;
pub mod enumerate;
mod examine;
mod failure;
mod generate;
mod history;
pub mod interrupted;
mod look;
mod lying_device;
mod model;
mod mounting;
mod names;
mod operation;
pub mod overlap;
mod perform;
mod random;
mod redundancy;
mod replay;
mod session;
mod shrink;
mod stage;
mod survey;
pub mod takeover;
mod timeline;
mod trace;
mod version;
mod volume;
mod window;
pub mod words;

pub use compare::{Compare, compare};
pub use content::Content;
pub use crash::{CrashPoint, Crashes, Fates, window_at};
pub use device_fault::DeviceFault;
pub use device_survey::{DeviceHabits, DeviceSurvey};
pub use examine::{Found, Judge, check, examine, examine_devices};
pub use failure::Failure;
pub use generate::{Generator, Habits};
pub use history::{History, Recorded, Wrap};
pub use look::look;
pub use lying_device::{Lie, LyingDevice};
pub use model::{Body, Dentry, Model, Node, Times};
pub use mounting::{has_superblock, members, mount, open, open_volume, superblock};
pub use operation::{DeviceChange, Name, Operation, Path, What};
pub use perform::{Tolerance, Worker};
pub use random::Random;
pub use replay::crash_in_replay;
pub use session::Session;
pub use shrink::shrink;
pub use stage::{Examined, Stage};
pub use survey::Survey;
pub use trace::{Commit, Covered, Promise, Trace};
pub use version::Version;
pub use volume::{Profiles, VolumePlan, make_devices, make_volume};
