//! A directory that a restore copies to.

use std::rc::Rc;

use ubtrfs_image::{HostDirectory, LinkedPath};

/// A directory that is copied to. It has no descriptor if nothing is to be made.
#[derive(Clone)]
pub struct Way {
    pub path: LinkedPath,
    pub at: Option<Rc<HostDirectory>>,
}
