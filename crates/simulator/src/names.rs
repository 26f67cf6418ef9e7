//! The rules of names: no promised name is missing, no lost name reappears, and a rename neither
//! loses its inode nor leaves it under both names.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs::InodeId;

use crate::model::Dentry;
use crate::window::Window;
use crate::{Body, Model};

/// One link of an inode: the names that renames gave it, each with the first version that has it.
#[derive(Debug)]
struct Link {
    names: Vec<(usize, Dentry)>,
    removed: bool,
}

impl Link {
    /// Returns the names in a version and in later ones.
    fn names_since(&self, version: usize) -> &[(usize, Dentry)] {
        let after = self.names.partition_point(|(since, _)| *since <= version);
        if after == 0 { &[] } else { &self.names[after - 1..] }
    }
}

/// The change of an inode's names in one version.
#[derive(Default)]
struct Change<'a> {
    lost: Vec<&'a Dentry>,
    gained: Vec<&'a Dentry>,
}

/// Returns the inodes of the names of a volume.
pub(crate) fn places(model: &Model) -> BTreeMap<Dentry, InodeId> {
    let mut places = BTreeMap::new();
    for (dir, node) in &model.nodes {
        if let Body::Directory { entries, .. } = &node.body {
            places.extend(entries.iter().map(|(name, id)| (Dentry { dir: *dir, name: name.clone() }, *id)));
        }
    }
    places
}

impl Window<'_> {
    /// Returns what is wrong with the names that were found.
    pub fn about_names(&self, found: &Model) -> Vec<String> {
        let places = places(found);
        let mut wrong = Vec::new();
        let shown = |id: Option<InodeId>| id.map_or("nothing".into(), |id| self.called(id));
        for (place, line) in &self.lines.names {
            let (allowed, target) = (self.targets(place, line), places.get(place).copied());
            if !allowed.contains(&target) {
                let allowed: Vec<String> = allowed.into_iter().map(shown).collect();
                wrong.push(format!(
                    "{} points to {}, but since version {} it was {}",
                    self.shown(place),
                    shown(target),
                    self.name_since(place),
                    allowed.join(", then ")
                ));
            }
        }
        for (place, id) in places.iter().filter(|(place, _)| !self.lines.names.contains_key(place)) {
            wrong.push(format!("{} points to {}, but nobody made that name", self.shown(place), shown(Some(*id))));
        }
        wrong.extend(self.missing(found));
        for (id, links) in self.links() {
            wrong.extend(self.about_links(id, &links, &places).map(|what| format!("{}: {what}", self.called(id))));
        }
        for (id, node) in &found.nodes {
            let Some(line) = self.lines.nodes.get(id) else { continue };
            let most = line.since(self.base).flatten().map(|node| node.nlink).max().unwrap_or(0);
            if node.nlink > most {
                wrong.push(format!("{}: it has {} names, never more than {most} before", self.called(*id), node.nlink));
            }
        }
        wrong
    }

    /// Returns the inodes that were promised to exist, had names all the time since, and have none.
    fn missing(&self, found: &Model) -> Vec<String> {
        let named = |id: &InodeId, since: usize| {
            let line = self.lines.nodes.get(id);
            line.is_some_and(|line| line.since(since).all(|node| node.is_some_and(|node| node.nlink > 0)))
        };
        let of_base = self.lines.nodes.keys().map(|id| (*id, self.base));
        let promised = self.promises.iter().flat_map(|promise| {
            let version = promise.version();
            promise.covers.exist.iter().map(move |id| (*id, version))
        });
        let mut missing = BTreeMap::new();
        for (id, since) in of_base.chain(promised) {
            if !found.nodes.contains_key(&id) && named(&id, since) {
                missing.insert(id, since);
            }
        }
        let listed =
            |(id, since)| format!("{} has no name left, though it had one since version {since}", self.called(id));
        missing.into_iter().map(listed).collect()
    }

    /// Returns the links of all inodes that were renamed, linked or unlinked.
    fn links(&self) -> BTreeMap<InodeId, Vec<Link>> {
        let mut changes: BTreeMap<(InodeId, usize), Change<'_>> = BTreeMap::new();
        for (place, line) in &self.lines.names {
            for (version, before, now) in line.changes() {
                if let Some(id) = before {
                    changes.entry((*id, version)).or_default().lost.push(place);
                }
                if let Some(id) = now {
                    changes.entry((*id, version)).or_default().gained.push(place);
                }
            }
        }
        let mut links: BTreeMap<InodeId, Vec<Link>> = changes.keys().map(|(id, _)| (*id, Vec::new())).collect();
        for (place, line) in &self.lines.names {
            if let Some(links) = line.at(self.base).and_then(|id| links.get_mut(&id)) {
                links.push(Link { names: vec![(self.base, place.clone())], removed: false });
            }
        }
        for ((id, version), Change { lost, gained }) in changes {
            let links = links.entry(id).or_default();
            let bearer = |links: &mut Vec<Link>, place: &Dentry| {
                links.iter().position(|link| !link.removed && link.names.last().is_some_and(|(_, last)| last == place))
            };
            if let ([lost], [gained]) = (&lost[..], &gained[..])
                && let Some(at) = bearer(links, lost)
            {
                links[at].names.push((version, (*gained).clone()));
                continue;
            }
            for place in lost {
                if let Some(at) = bearer(links, place) {
                    links[at].removed = true;
                }
            }
            for place in gained {
                links.push(Link { names: vec![(version, place.clone())], removed: false });
            }
        }
        links
    }

    fn about_links(
        &self,
        id: InodeId,
        links: &[Link],
        places: &BTreeMap<Dentry, InodeId>,
    ) -> impl Iterator<Item = String> {
        let is_there = |place: &Dentry| places.get(place) == Some(&id);
        let mut wrong = Vec::new();
        for link in links.iter().filter(|link| link.names.len() > 1) {
            let names: BTreeSet<&Dentry> = link.names.iter().map(|(_, place)| place).collect();
            let there: Vec<&Dentry> = names.into_iter().filter(|place| is_there(place)).collect();
            if let [one, other, ..] = there[..]
                && !self.ever_together(id, one, other)
            {
                wrong.push(format!("a rename left it as {} and as {}", self.shown(one), self.shown(other)));
            }
            if link.removed {
                continue;
            }
            let of_base = std::iter::once((self.base..=self.base, None));
            let promised = self.promises.iter().map(|promise| (promise.during.clone(), Some(promise.covers)));
            for (during, covers) in of_base.chain(promised) {
                let names = link.names_since(*during.start());
                let covered = |(_, name): &(usize, Dentry)| covers.is_none_or(|covers| covers.has_name(name));
                let mut promised = names.iter().take_while(|(since, _)| since <= during.end()).peekable();
                if promised.peek().is_none() || !promised.all(covered) || names.iter().any(|(_, place)| is_there(place))
                {
                    continue;
                }
                let listed: Vec<String> = names.iter().map(|(_, place)| self.shown(place)).collect();
                wrong.push(format!(
                    "renames lost what was promised in version {}: none of these names is there: {}",
                    during.start(),
                    listed.join(", then ")
                ));
                break;
            }
        }
        wrong.into_iter()
    }

    /// Returns whether a version of the window has an inode under both names.
    fn ever_together(&self, id: InodeId, one: &Dentry, other: &Dentry) -> bool {
        let (Some(one), Some(other)) = (self.lines.names.get(one), self.lines.names.get(other)) else { return false };
        (self.base..=self.last).any(|version| *one.at(version) == Some(id) && *other.at(version) == Some(id))
    }
}
