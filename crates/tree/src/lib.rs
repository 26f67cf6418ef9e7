//! Immutable copy-on-write B-tree snapshots and the merge of edits into them.
