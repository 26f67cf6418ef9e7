//! Parses ACLs as archives have them: the text of `acl_to_text(3)`, in long or short form, with
//! commas or newlines. star and bsdtar add the number of a named user or group as a fourth field.

use ubtrfs::acl::{Acl, AclEntry, AclTag};

/// Parses an ACL; `None` if the text has no entries. An error says which part of it is malformed,
/// or which user or group is unknown.
pub fn parse(text: &[u8]) -> Result<Option<Acl>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is no text".to_owned())?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']) {
        let part = line.split('#').next().unwrap_or_default().trim();
        if !part.is_empty() {
            entries.push(entry(part)?);
        }
    }
    if entries.is_empty() {
        return Ok(None);
    }
    Acl::of(entries).map(Some).ok_or_else(|| "it is no list of permissions".to_owned())
}

fn entry(part: &str) -> Result<AclEntry, String> {
    let wrong = || format!("'{part}' is no entry");
    let mut fields = part.split(':');
    let (tag, name) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default().trim());
    let is_named = !name.is_empty();
    let (tag, permissions) = match tag.trim() {
        "user" | "u" if is_named => (AclTag::User, fields.next()),
        "group" | "g" if is_named => (AclTag::Group, fields.next()),
        "user" | "u" => (AclTag::Owner, fields.next()),
        "group" | "g" => (AclTag::OwningGroup, fields.next()),
        // Some programs write `mask:rwx` for `mask::rwx`.
        "mask" | "m" => (AclTag::Mask, if is_named { Some(name) } else { fields.next() }),
        "other" | "o" => (AclTag::Other, if is_named { Some(name) } else { fields.next() }),
        _ => return Err(wrong()),
    };
    let permissions = permissions.and_then(permissions_of).ok_or_else(wrong)?;
    let id = match tag {
        AclTag::User | AclTag::Group => {
            let number = fields.next().map(str::trim).filter(|number| !number.is_empty()).unwrap_or(name);
            Some(number.parse().ok().or_else(|| id_of(tag, name)).ok_or_else(|| {
                let kind = if tag == AclTag::User { "user" } else { "group" };
                format!("it names the {kind} '{name}', whom this system does not know")
            })?)
        }
        _ => None,
    };
    if fields.next().is_some() { Err(wrong()) } else { Ok(AclEntry { tag, permissions, id }) }
}

/// Parses `rwx` in any order, with minus signs for missing permissions.
fn permissions_of(text: &str) -> Option<u16> {
    text.trim().chars().try_fold(0, |all, one| {
        Some(
            all | match one {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return None,
            },
        )
    })
}

/// Looks up the number of a name on this system, as tar(1) does.
fn id_of(tag: AclTag, name: &str) -> Option<u32> {
    match tag {
        AclTag::User => uzers::get_user_by_name(name).map(|user| user.uid()),
        _ => uzers::get_group_by_name(name).map(|group| group.gid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        parse(text.as_bytes()).unwrap().unwrap().to_bytes()
    }

    #[test]
    fn all_forms_of_a_list_are_one() {
        let expected = bytes("user::rw-,user:1000:rwx,group::r--,mask::rwx,other::---");
        for text in [
            "user::rw-\nuser:1000:rwx\ngroup::r--\nmask::rwx\nother::---\n",
            "u::rw,u:1000:rwx,g::r,m::rwx,o::-",
            "user::rw-,user:nobody knows him:rwx:1000,group::r--,mask::rwx,other::---",
            "other::---,mask::rwx,group::r--,user:1000:rwx\t#effective:rwx\nuser::rw-",
            "user::rw-,user:1000:rwx,group::r--,mask:rwx,other:---",
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
        assert_eq!(bytes("u::rw,u:root:rwx,g::r,m::rwx,o::-"), bytes("u::rw,u:0:rwx,g::r,m::rwx,o::-"));
        assert!(parse(b"").unwrap().is_none());
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for text in [
            "user::rw-",
            "user::rw-,group::r--,other::r--,owner::r--",
            "user::rwX,group::r--,other::r--",
            "user::rw-,user:1000:rwx,group::r--,other::r--",
            "user::rw-,user:no such user is here:rwx,group::r--,mask::rwx,other::r--",
            "user::rw-,user:1:rwx:2:3,group::r--,mask::rwx,other::r--",
            "user::rw-,group::r--,other::r--,user",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse(b"user::rw-\xff").is_err());
    }
}
