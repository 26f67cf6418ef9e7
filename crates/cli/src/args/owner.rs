//! Users and groups by their numbers.

/// User and group as `UID:GID`. `-1` means nobody in the system's calls.
pub fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let id = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    let owner = text.split_once(':').and_then(|(user, group)| Some((id(user)?, id(group)?)));
    owner.ok_or_else(|| format!("'{text}' is not the numbers of a user and a group, as in 1000:1000"))
}

/// A new owner, a new group, or both.
#[derive(Clone, Copy, Debug)]
pub struct Owners {
    pub user: Option<u32>,
    pub group: Option<u32>,
}

/// An owner, a group, or both: `UID:GID`, `UID` or `:GID`.
pub fn parse_owners(text: &str) -> Result<Owners, String> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let id = |text: &str| match text {
        "" => Some(None),
        text => text.parse().ok().filter(|id| *id != u32::MAX).map(Some),
    };
    match (id(user), id(group)) {
        (Some(user), Some(group)) if user.is_some() || group.is_some() => Ok(Owners { user, group }),
        _ => Err(format!("'{text}' are no numbers of a user and a group, as in 1000:1000, 1000 or :1000")),
    }
}
