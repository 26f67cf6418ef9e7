//! How a file is opened.

/// How a file is opened, like [`std::fs::OpenOptions`].
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) mode: Option<u32>,
}

impl OpenOptions {
    /// Returns options that allow nothing yet. A new file would get the permissions 0644.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allow reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Allow writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Allow writing only at the end of the file, wherever that is at the time of each write.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Make the file empty. Needs [`write`](Self::write).
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Make the file if it does not exist. Needs [`write`](Self::write) or
    /// [`append`](Self::append).
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Make the file, or fail with `EEXIST` if the name exists.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Set the exact permissions of a new file: no umask applies, but a default ACL of its
    /// directory does. By default they are 0666 with a umask of 022.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    pub(crate) fn may_write(&self) -> bool {
        self.write || self.append
    }

    /// Returns whether the combination makes sense, by the rules of [`std::fs::OpenOptions`].
    pub(crate) fn is_sound(&self) -> bool {
        let changes = self.create || self.create_new;
        (self.read || self.may_write())
            && (!changes || self.may_write())
            && (!self.truncate || (self.write && !self.append))
    }
}
