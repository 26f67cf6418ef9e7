//! Paths of a walk through a tree. Each has one name and a reference to the path of its directory,
//! so that the paths of a tree of depth n do not take n² bytes. A whole path is composed where it
//! is needed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;

/// The path of a file.
#[derive(Clone, Debug)]
pub struct LinkedPath(Rc<Step>);

#[derive(Debug)]
struct Step {
    above: Option<LinkedPath>,
    /// The name, or the path of the file where the walk begins.
    name: Vec<u8>,
}

impl Drop for Step {
    fn drop(&mut self) {
        // The steps above are dropped in a loop, since recursion in a deep tree would exceed the
        // stack.
        let mut above = self.above.take();
        while let Some(mut step) = above.and_then(|LinkedPath(step)| Rc::into_inner(step)) {
            above = step.above.take();
        }
    }
}

impl LinkedPath {
    /// The path of the file where a walk begins.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(Rc::new(Step { above: None, name: path.into().into_os_string().into_vec() }))
    }

    /// The path of a name in this directory.
    #[must_use]
    pub fn join(&self, name: impl Into<Vec<u8>>) -> Self {
        Self(Rc::new(Step { above: Some(self.clone()), name: name.into() }))
    }

    /// The path of its directory, if that is part of the walk.
    pub fn above(&self) -> Option<&Self> {
        self.0.above.as_ref()
    }

    /// The last name, or the path of the file where the walk begins.
    pub fn name(&self) -> &[u8] {
        &self.0.name
    }

    /// The names below the file where the walk begins, in order.
    pub fn names(&self) -> Vec<&[u8]> {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(above) = at.above() {
            names.push(at.name());
            at = above;
        }
        names.reverse();
        names
    }

    /// The path with `top` in place of the path where the walk begins.
    pub fn below(&self, top: &[u8]) -> Vec<u8> {
        let mut path = top.to_vec();
        self.names().into_iter().for_each(|name| add_name(&mut path, name));
        path
    }

    /// The whole path.
    pub fn path(&self) -> PathBuf {
        let mut first = self;
        while let Some(above) = first.above() {
            first = above;
        }
        let path = if first.name().is_empty() { self.names().join(&b'/') } else { self.below(first.name()) };
        OsString::from_vec(path).into()
    }
}

/// Adds the name of an entry to the path of its directory.
pub fn add_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_path_is_what_was_joined() {
        for (first, expected) in [("", "a/b"), ("/", "/a/b"), ("x/y", "x/y/a/b"), ("/x/", "/x/a/b")] {
            let path = LinkedPath::new(first).join(*b"a").join(*b"b");
            assert_eq!(path.path(), Path::new(expected));
            assert_eq!(path.names(), [b"a", b"b"]);
            assert_eq!(path.below(b"/"), b"/a/b");
        }
    }

    #[test]
    fn a_path_that_is_deeper_than_the_stack_is_let_go() {
        let drop_it = || {
            let path = (0..500_000).fold(LinkedPath::new("/"), |above, _| above.join(*b"d"));
            assert_eq!(path.path().as_os_str().len(), 1_000_000);
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(drop_it).unwrap().join().unwrap();
    }
}
