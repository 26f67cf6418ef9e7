//! The names of extended attributes that have a meaning for btrfs or the kernel's VFS. Those of
//! ACLs are in [`acl`](crate::acl).

/// The capabilities of a program.
pub const CAPABILITY: &[u8] = b"security.capability";
/// The label of a file for `SELinux`, with a zero byte at its end.
pub const SELINUX: &[u8] = b"security.selinux";

/// The namespace of properties.
pub const PROPERTIES: &[u8] = b"btrfs.";
/// How a file is to be compressed. It is the only property that exists.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// The namespace of attributes that only files and directories have.
pub const USER: &[u8] = b"user.";
/// Namespaces whose attributes are stored as they are.
const PLAIN: [&[u8]; 3] = [USER, b"trusted.", b"security."];

/// Returns the name within its namespace of an attribute that is stored as it is, or `None` for any
/// other attribute. An empty result means that the name is only a namespace.
pub fn in_plain_namespace(name: &[u8]) -> Option<&[u8]> {
    PLAIN.iter().find_map(|namespace| name.strip_prefix(*namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_namespace_and_more() {
        assert_eq!(in_plain_namespace(b"user.x"), Some(&b"x"[..]));
        assert_eq!(in_plain_namespace(b"security."), Some(&b""[..]));
        for other in [&b"user"[..], b"system.x", COMPRESSION, b""] {
            assert_eq!(in_plain_namespace(other), None);
        }
    }
}
