//! Edits volumes that are not mounted, as cp(1), rm(1) and the like do.
//!
//! Edits don't go through a VFS, so owners, device nodes, set-id bits and capabilities need no
//! privileges, and none are checked. A [`Session`] is atomic, however much it changes: until
//! [`Session::publish`] the volume on the devices stays as it was.

mod acl_text;
mod archive;
mod archive_entry;
mod archive_header;
mod archive_records;
mod attributes;
mod composefs;
mod content;
mod copy;
mod decompress;
mod dedupe;
mod edit;
mod error;
mod export;
mod fingerprint;
mod footprint;
mod host;
mod host_tree;
mod import;
mod inside;
mod job;
mod linked_path;
mod measure;
mod mode_change;
mod oci;
mod oci_layout;
mod path_flags;
mod path_pattern;
mod preloaded;
mod remove;
mod selection;
mod session;
mod source;
mod sparse;
mod subvolumes;
mod verity;
mod whiteouts;

pub use composefs::dump;
pub use copy::{CopyOptions, Destination, Reflink, copy_into};
pub use edit::{Editor, Existing};
pub use error::{Error, Obstacle, Result, harmless, misleads};
pub use export::export;
pub use fingerprint::fingerprint;
pub use host::HostFiles;
pub use host_tree::{HostDirectory, HostFile, HostTree, OpenFile};
pub use import::{ImportOptions, Layer, import};
pub use inside::{VolumeFile, VolumeFiles, is_name};
pub use job::{AfterFile, Counts, Job};
pub use linked_path::{LinkedPath, add_name};
pub use measure::{Measured, check_beginning, measure_compressed};
pub use mode_change::ModeChange;
pub use oci::{OciImage, OciReference, Platform};
pub use path_flags::{PathFlags, path_from_top};
pub use selection::{Excluded, IdRange, Owners, Selection};
pub use session::Session;
pub use source::{Description, Source};
pub use subvolumes::{MadeSubvolumes, NewSubvolume};
