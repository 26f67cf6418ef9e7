//! Applying a batch to the items of one leaf.

use std::borrow::Cow;
use std::ops::Range;

use ubtrfs_format::{Key, Leaf, Logical, max_item_size};

use super::changes::Changes;
use super::contents::Replacement;
use super::merger::Merger;
use crate::edit::Edit;
use crate::error::{Error, Result};

impl Merger<'_> {
    /// Applies `changes` to `leaf`, which is at `bytenr` if the tree already has it. Returns the
    /// replacements in order; none if the leaf is unchanged.
    pub(super) fn resolve<'b>(
        &mut self,
        bytenr: Option<Logical>,
        leaf: &Leaf<'_>,
        mut changes: Changes<'b>,
    ) -> Result<Vec<Replacement<'b>>> {
        let mut resolved = Vec::with_capacity(changes.edits.len());
        let mut next = 0;
        for (key, edit) in changes.edits {
            let old = leaf.search(key).map_or_else(|slot| slot..slot, |slot| slot..slot + 1);
            self.clear(leaf, next..old.start, &mut changes, &mut resolved);
            next = old.end;
            let data = if old.is_empty() { None } else { leaf.data(old.start) };
            let covered = data.filter(|_| changes.deletes(key));
            if let Some(data) = covered {
                (self.removed)(key, data);
            }
            let base = if covered.is_some() { None } else { data };
            let new = self.apply(bytenr, *key, edit, base)?;
            if covered.is_some() || new.as_deref() != base {
                resolved.push(Replacement { old, new: new.map(|new| (*key, new)) });
            }
        }
        self.clear(leaf, next..leaf.len(), &mut changes, &mut resolved);
        Ok(resolved)
    }

    /// Removes those items in `slots` that a range deletes. No edit is about them.
    fn clear(
        &mut self,
        leaf: &Leaf<'_>,
        slots: Range<usize>,
        changes: &mut Changes<'_>,
        resolved: &mut Vec<Replacement<'_>>,
    ) {
        if changes.ranges.is_empty() {
            return;
        }
        for slot in slots {
            let Some((key, data)) = leaf.item(slot).filter(|(key, _)| changes.deletes(key)) else { continue };
            (self.removed)(&key, data);
            match resolved.last_mut() {
                Some(Replacement { old, new: None }) if old.end == slot => old.end += 1,
                _ => resolved.push(Replacement { old: slot..slot + 1, new: None }),
            }
        }
    }

    /// Applies `edit` to `base`, the item before.
    fn apply<'b>(
        &mut self,
        leaf: Option<Logical>,
        key: Key,
        edit: &'b Edit,
        base: Option<&[u8]>,
    ) -> Result<Option<Cow<'b, [u8]>>> {
        let new = edit.apply(&key, base).map_err(|problem| match (leaf, base) {
            (Some(bytenr), Some(_)) => Error::Corrupt { tree: self.owner, bytenr, key, problem },
            _ => Error::BadPatch { key, problem },
        })?;
        if let Some(old) = base
            && (new.as_deref() != base || !matches!(edit, Edit::Patch(_)))
        {
            (self.removed)(&key, old);
        }
        let (size, max) = (new.as_ref().map_or(0, |new| new.len()), max_item_size(self.node_size));
        if size > max {
            // By invariant 24 the operation that would have made it was refused.
            return Err(Error::ItemTooLarge { tree: self.owner, key, size, max });
        }
        Ok(new)
    }
}
