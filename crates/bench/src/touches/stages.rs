//! The stages of histories, given by the functions that perform them.

use super::callgrind::{Cost, Costs};

/// A stage.
pub struct Stage {
    /// Its name in the table.
    pub name: &'static str,
    /// Module and name of the function that performs it.
    pub function: &'static str,
    /// The number of stages above it that include its cost.
    pub depth: usize,
}

/// The stages of a history.
pub struct Stages {
    /// The name of the history.
    pub history: &'static str,
    /// The unit that is changed.
    pub unit: &'static str,
    /// The number of changed units.
    pub count: u64,
    /// The stages of the changes.
    operations: &'static [Stage],
    /// The stages of the commit after them, if there is one.
    commit: &'static [Stage],
}

impl Stages {
    /// Returns all stages; parts of a stage follow it.
    pub fn iter(&self) -> impl Iterator<Item = &Stage> {
        self.operations.iter().chain(self.commit)
    }
}

const fn stage(name: &'static str, function: &'static str) -> Stage {
    Stage { name, function, depth: 0 }
}

const fn part(name: &'static str, function: &'static str) -> Stage {
    Stage { name, function, depth: 1 }
}

impl Stage {
    /// Returns its cost; `None` if the function was not called, or if the compiler inlined it.
    pub fn cost(&self, costs: &Costs) -> Option<Cost> {
        let (module, name) = self.function.rsplit_once("::")?;
        let is_it = |function: &&String| {
            function
                .strip_prefix(module)
                .and_then(|rest| rest.strip_suffix(name))
                .is_some_and(|between| between.starts_with("::") && between.ends_with("::"))
        };
        let mut sum = None;
        for (_, cost) in costs.iter().filter(|(function, _)| is_it(function)) {
            *sum.get_or_insert_with(Cost::default) += *cost;
        }
        sum
    }
}

/// The stages of every commit.
const COMMIT: &[Stage] = &[
    stage("commit", "ubtrfs_fs::commit::sequence::commit"),
    part("writeback of large files", "ubtrfs_fs::writeback::ordered::write_back_pending"),
    part("writeback of the rest", "ubtrfs_fs::writeback::ordered::write_back_all_frozen"),
    part("edits of subvolumes", "ubtrfs_fs::commit::merge_trees::build_subvolumes"),
    part("subvolume's leaves", "ubtrfs_fs::commit::merge_trees::merge_subvolume"),
    part("edits of extents and checksums", "ubtrfs_fs::commit::data_edits::data_edits"),
    part("checksum tree's leaves", "ubtrfs_fs::commit::merge_trees::merge_checksums"),
    part("edits of tree blocks", "ubtrfs_fs::commit::nodes::take_extent_edits"),
    part("edits of free space", "ubtrfs_space::free_space_tree::take_group_edits"),
    part("extent tree's leaves", "ubtrfs_fs::commit::merge_trees::merge_extents"),
    part("free-space tree's leaves", "ubtrfs_fs::commit::merge_trees::merge_free_space"),
    part("checksums of nodes", "ubtrfs_tree::dirty::into_sealed"),
    part("writes, publication", "ubtrfs_fs::commit::write::write"),
];

/// The histories, with the unit that each changes.
pub const STAGES: &[Stages] = &[
    Stages {
        history: "overwrite 2,000 random sectors of 64 MiB, sync",
        unit: "changed extent",
        count: 2000,
        operations: &[stage("write", "ubtrfs_fs::ops::write::write_by")],
        commit: COMMIT,
    },
    Stages {
        history: "16 random sectors of 64 MiB, fsync; 100 times",
        unit: "fsynced extent",
        count: 1600,
        operations: &[
            stage("write", "ubtrfs_fs::ops::write::write_by"),
            stage("fsync", "ubtrfs_fs::ops::fsync::wait_for_sync"),
            part("writeback", "ubtrfs_fs::log::queue::write_back_for_log"),
            part("items of the log", "ubtrfs_fs::log::gather::gather"),
            part("leaves of the log", "ubtrfs_fs::log::write::merge_log"),
        ],
        commit: &[],
    },
    Stages {
        history: "create 2,000 files, sync",
        unit: "created file",
        count: 2000,
        operations: &[
            stage("create", "ubtrfs_fs::ops::create::create"),
            stage("write", "ubtrfs_fs::ops::write::write_by"),
        ],
        commit: COMMIT,
    },
    Stages {
        history: "rename 2,000 files after an fsync, sync",
        unit: "renamed file",
        count: 2000,
        operations: &[stage("rename", "ubtrfs_fs::ops::rename::rename_only")],
        commit: COMMIT,
    },
    Stages {
        history: "unlink 2,000 files, sync",
        unit: "unlinked file",
        count: 2000,
        operations: &[stage("unlink", "ubtrfs_fs::ops::link::remove")],
        commit: COMMIT,
    },
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    /// Without this, a table would silently lack the stage.
    #[test]
    fn every_stage_is_a_function_of_its_module() {
        for stage in STAGES.iter().flat_map(Stages::iter) {
            let (module, name) = stage.function.rsplit_once("::").unwrap();
            let (library, module) = module.split_once("::").unwrap();
            let library = library.strip_prefix("ubtrfs_").unwrap();
            let file = format!("{}/../{library}/src/{}.rs", env!("CARGO_MANIFEST_DIR"), module.replace("::", "/"));
            let source = std::fs::read_to_string(&file).unwrap();
            let is_there = source.contains(&format!("fn {name}(")) || source.contains(&format!("fn {name}<"));
            assert!(is_there, "{file} has no function {name}");
        }
    }

    #[test]
    fn costs_are_found_by_module_and_name_whatever_they_are_methods_of() {
        let cost = Cost { instructions: 5, ..Cost::default() };
        let name = "ubtrfs_fs::ops::write::<impl ubtrfs_fs::ops::operations::FileOperations>::write";
        let costs = Costs::from([(name.to_owned(), cost), (format!("{name}::{{{{closure}}}}"), cost)]);
        assert_eq!(stage("write", "ubtrfs_fs::ops::write::write").cost(&costs), Some(cost));
        assert_eq!(stage("read", "ubtrfs_fs::ops::read::read").cost(&costs), None);
    }
}
