//! The negotiated form of requests, and why bytes can't be parsed.

/// The result of the negotiation as far as it changes the form of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Form {
    /// SETXATTR has its extended form.
    pub setxattr_ext: bool,
}

/// Why bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The message is shorter than a header, or its header has another length.
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
    /// A field has a value without meaning.
    #[error("request {name} has a value that means nothing", name = crate::abi::opcode::name(*.0))]
    Value(u32),
}
