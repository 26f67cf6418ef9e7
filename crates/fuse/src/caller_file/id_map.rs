//! The mapping of ids by an idmapped mount or a user namespace.

/// Ranges of ids: the first id of the filesystem, the first id that is shown in its place, and the
/// length of the range.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Ranges(Vec<(u32, u32, u32)>);

impl Ranges {
    /// Parses lines of three numbers, as `/proc/PID/uid_map` has them; `None` for anything else.
    fn parse<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Self> {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().map(str::parse);
            let range = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
            numbers.next().is_none().then_some(range)
        };
        lines.map(range).collect::<Option<_>>().map(Self)
    }

    fn map(&self, id: u32, backwards: bool) -> Option<u32> {
        self.0.iter().find_map(|&(first, second, count)| {
            let (from, to) = if backwards { (second, first) } else { (first, second) };
            let offset = id.checked_sub(from).filter(|offset| *offset < count)?;
            to.checked_add(offset)
        })
    }
}

/// How a mount shows users and groups. One that is not idmapped shows them as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdMaps(Option<(Ranges, Ranges)>);

impl IdMaps {
    /// Parses maps of users and of groups: each line has the first id of the filesystem, the id
    /// that is shown in its place, and the length of the range.
    pub fn parse<'a>(users: impl Iterator<Item = &'a str>, groups: impl Iterator<Item = &'a str>) -> Option<Self> {
        Some(Self(Some((Ranges::parse(users)?, Ranges::parse(groups)?))))
    }

    /// Returns whether the mount is idmapped.
    pub fn is_mapped(&self) -> bool {
        self.0.is_some()
    }

    /// The user id that is shown in place of the filesystem's `user`; `None` if the map has none.
    pub fn shown_user(&self, user: u32) -> Option<u32> {
        self.0.as_ref().map_or(Some(user), |(users, _)| users.map(user, false))
    }

    /// The same of a group.
    pub fn shown_group(&self, group: u32) -> Option<u32> {
        self.0.as_ref().map_or(Some(group), |(_, groups)| groups.map(group, false))
    }

    /// The user id of the filesystem that is shown as `shown`; `None` if the map has none.
    pub fn user(&self, shown: u32) -> Option<u32> {
        self.0.as_ref().map_or(Some(shown), |(users, _)| users.map(shown, true))
    }

    /// The same of a group.
    pub fn group(&self, shown: u32) -> Option<u32> {
        self.0.as_ref().map_or(Some(shown), |(_, groups)| groups.map(shown, true))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_there_and_back_within_their_ranges() {
        let maps = IdMaps::parse(["0 5000 10", "  100   7 1"].into_iter(), ["4294967290 1 5"].into_iter()).unwrap();
        for (user, shown) in [(0, Some(5000)), (9, Some(5009)), (10, None), (100, Some(7)), (5000, None)] {
            assert_eq!(maps.shown_user(user), shown);
            assert!(shown.is_none_or(|shown| maps.user(shown) == Some(user)));
        }
        assert_eq!((maps.user(0), maps.user(5010)), (None, None));
        assert_eq!((maps.shown_group(u32::MAX - 1), maps.group(5)), (Some(5), Some(u32::MAX - 1)));
        assert_eq!((maps.shown_group(u32::MAX), maps.group(6)), (None, None));
    }

    #[test]
    fn a_mount_without_a_map_shows_all_as_they_are() {
        let maps = IdMaps::default();
        assert_eq!((maps.shown_user(7), maps.user(7), maps.shown_group(8), maps.group(8)), {
            (Some(7), Some(7), Some(8), Some(8))
        });
    }

    #[test]
    fn what_is_no_map_is_refused() {
        for odd in ["", "1 2", "1 2 3 4", "1 2 x", "-1 2 3"] {
            assert_eq!(IdMaps::parse([odd].into_iter(), std::iter::empty()), None, "{odd:?}");
        }
        assert_eq!(Ranges(vec![(0, u32::MAX, 5)]).map(3, false), None);
    }
}
