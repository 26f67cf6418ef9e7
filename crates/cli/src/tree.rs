//! `ubtrfs tree`: lists the items of a volume's trees, one in a line.

use std::io::{BufWriter, Write};
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::items::RootItem;
use ubtrfs_format::{ItemType, Key, Node, Superblock, TreeId};
use ubtrfs_tree::{Block, Error, NodeRef, Snapshot, Walk};

use crate::args;
use crate::describe;
use crate::device::open_what_can_be_read;
use crate::failure::{Failure, Result};
use crate::output::{Output, is_lost};
use crate::reading::open_volume;
use crate::trees::{Trees, name, parse_id};

/// `ubtrfs tree`
pub fn run(arguments: &args::Tree) -> Result<()> {
    let wanted = arguments.id.as_deref().map(parse_id).transpose()?;
    let reading = open_what_can_be_read(&arguments.devices, arguments.window)?;
    let volume = open_volume(&arguments.devices, arguments.window, &reading.devices)?;
    let trees = Trees::new(&Arc::clone(&volume));
    let mut dump = Dump { out: BufWriter::new(Output::new()), superblock: trees.superblock().clone(), damaged: false };
    match wanted {
        Some(id) => one(&trees, id, &mut dump)?,
        None => all(&trees, &mut dump),
    }
    if dump.damaged { Err(Failure::new("some blocks could not be read")) } else { Ok(()) }
}

fn one(trees: &Trees, id: TreeId, dump: &mut Dump) -> Result<()> {
    let tree = match id {
        TreeId::ROOT => trees.root_tree(),
        TreeId::CHUNK => trees.chunk_tree(),
        TreeId::LOG => {
            if trees.log_root_tree().is_none() {
                return Err(Failure::new("the volume holds no log"));
            }
            logs(trees, dump);
            return Ok(());
        }
        _ => match trees.root_item(id)? {
            Some(item) => trees.described(id, &item),
            None => return Err(Failure::new(format!("the volume does not have a {}", name(id)))),
        },
    };
    dump.tree(&name(id), &tree);
    Ok(())
}

fn all(trees: &Trees, dump: &mut Dump) {
    dump.tree(&name(TreeId::ROOT), &trees.root_tree());
    dump.tree(&name(TreeId::CHUNK), &trees.chunk_tree());
    each_root(&trees.root_tree(), dump, |dump, key, item| {
        let id = TreeId(key.objectid);
        dump.tree(&name(id), &trees.described(id, item));
    });
    logs(trees, dump);
}

fn logs(trees: &Trees, dump: &mut Dump) {
    let Some(roots) = trees.log_root_tree() else { return };
    dump.tree("log roots", &roots);
    each_root(&roots, dump, |dump, key, item| {
        dump.tree(&format!("log of {}", name(TreeId(key.offset))), &trees.described(TreeId::LOG, item));
    });
}

/// Visits the root items of a tree. Blocks that can't be read were reported when the tree was
/// shown.
fn each_root(roots: &Snapshot, dump: &mut Dump, mut visit: impl FnMut(&mut Dump, Key, &RootItem)) {
    roots.walk(&mut |_, block| {
        if let Ok(Node::Leaf(leaf)) = block.map_err(|_| ()).and_then(|block| block.node().map_err(|_| ())) {
            for (key, data) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::ROOT_ITEM) {
                if let Ok(item) = RootItem::parse(data) {
                    visit(dump, key, &item);
                }
            }
        }
        next()
    });
}

/// Whether a walk goes on: not if nobody reads what it shows.
fn next() -> Walk {
    if is_lost() { Walk::Stop } else { Walk::Descend }
}

struct Dump {
    out: BufWriter<Output>,
    superblock: Superblock,
    /// A block could not be read.
    damaged: bool,
}

impl Dump {
    fn tree(&mut self, name: &str, tree: &Snapshot) {
        let root = tree.root();
        self.line(&format!("{name}: root at {} level {} generation {}", root.bytenr, root.level, root.generation));
        tree.walk(&mut |at, block| {
            self.node(at, block.as_ref().copied());
            next()
        });
    }

    fn node(&mut self, at: &NodeRef, block: std::result::Result<&Block, &Error>) {
        let node = match block {
            Ok(block) => block.node().map_err(|error| sentence(&error)),
            Err(error) => Err(sentence(error)),
        };
        match node {
            Ok(Node::Internal(node)) => {
                self.line(&format!("  node {} generation {}: {} children", at.bytenr, at.generation, node.len()));
                for child in node.iter() {
                    self.line(&format!("    {} -> {} generation {}", child.key, child.bytenr, child.generation));
                }
            }
            Ok(Node::Leaf(leaf)) => {
                self.line(&format!("  leaf {} generation {}: {} items", at.bytenr, at.generation, leaf.len()));
                for (key, data) in leaf.iter() {
                    let text = describe::item(&key, data, &self.superblock);
                    self.line(&format!("    {key} {text}"));
                }
            }
            Err(error) => {
                self.damaged = true;
                self.line(&format!("  block {} can't be read: {error}", at.bytenr));
            }
        }
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{}", text.trim_end());
    }
}
