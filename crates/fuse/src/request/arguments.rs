//! Takes arguments off a message, one after the other.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::form::ParseError;

/// The fixed argument and the rest of one message.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a> {
    opcode: u32,
    fixed: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub fn new(opcode: u32, fixed: &'a [u8], rest: &'a [u8]) -> Self {
        Self { opcode, fixed, rest }
    }

    /// The argument of fixed size.
    pub fn fixed<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<T, ParseError> {
        T::read_from_prefix(self.fixed).map(|(value, _)| value).map_err(|_| ParseError::Short(self.opcode))
    }

    /// The next string, without its NUL; may be empty.
    pub fn string(&mut self) -> Result<&'a [u8], ParseError> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(ParseError::Name(self.opcode))?;
        let (string, after) = self.rest.split_at(end);
        self.rest = after.get(1..).unwrap_or_default();
        Ok(string)
    }

    /// The next name, which isn't empty.
    pub fn name(&mut self) -> Result<&'a [u8], ParseError> {
        match self.string()? {
            [] => Err(ParseError::Name(self.opcode)),
            name => Ok(name),
        }
    }

    /// The next `length` bytes.
    pub fn data(&mut self, length: u32) -> Result<&'a [u8], ParseError> {
        let (data, after) = self.rest.split_at_checked(length as usize).ok_or(ParseError::Short(self.opcode))?;
        self.rest = after;
        Ok(data)
    }
}
