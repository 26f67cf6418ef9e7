//! The form of requests, and why bytes have none.

/// What was negotiated that changes the form of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Form {
    /// SETXATTR is extended.
    pub setxattr_ext: bool,
}

/// Why bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Less than a header, or a length that is not the message's.
    #[error("the message's length is wrong")]
    Length,
    /// The message ends before its arguments do.
    #[error("request {name} is truncated", name = crate::abi::opcode::name(*.0))]
    Short(u32),
    /// A name is empty or doesn't end.
    #[error("request {name} has a bad name", name = crate::abi::opcode::name(*.0))]
    Name(u32),
    /// The extensions don't fit into the message or each other.
    #[error("request {name} has bad extensions", name = crate::abi::opcode::name(*.0))]
    Extension(u32),
    /// A field has a value that means nothing.
    #[error("request {name} has a value that means nothing", name = crate::abi::opcode::name(*.0))]
    Value(u32),
}
