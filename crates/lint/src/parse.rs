//! What a Rust file defines and imports, module by module.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItem, Item, ItemMod, ItemUse, Macro, Meta, UseTree, Visibility};

/// The names of a path: from the root if it is that of a module, or as in the source.
pub type Names = Vec<String>;

/// A module's own text, without tests.
#[derive(Default)]
pub struct Module {
    /// The names of the items that it defines.
    pub items: BTreeSet<String>,
    /// The names that it imports.
    pub uses: Vec<Use>,
    /// Paths in its code, as names, and their lines.
    pub paths: Vec<(Names, usize)>,
}

/// One name of a `use`.
pub struct Use {
    /// The name by which the module knows it; none if it imports all of a module.
    pub name: Option<String>,
    /// The path that it imports.
    pub path: Names,
    /// The line in the file.
    pub line: usize,
    /// Whether other modules may import it from here.
    pub is_export: bool,
}

/// Modules of a file, by their names from the root.
#[derive(Default)]
pub struct Parsed {
    /// The file's own module, and those inside it.
    pub modules: BTreeMap<Names, Module>,
    /// Modules for tests, in files of their own.
    pub tests: Vec<Names>,
}

/// Reads the file of a module, or returns the line of the syntax error.
pub fn parse(module: &[String], text: &str) -> Result<Parsed, usize> {
    let file = syn::parse_file(text).map_err(|error| error.span().start().line)?;
    let mut reader = Reader { at: module.to_vec(), parsed: Parsed::default() };
    reader.module();
    reader.visit_file(&file);
    Ok(reader.parsed)
}

/// Returns the lines of the items that are for tests alone; none if the file can't be parsed.
pub fn lines_of_tests(text: &str) -> Vec<std::ops::RangeInclusive<usize>> {
    struct Tests(Vec<std::ops::RangeInclusive<usize>>);
    impl Visit<'_> for Tests {
        fn visit_item(&mut self, item: &Item) {
            if is_for_tests(attributes(item)) {
                self.0.push(item.span().start().line..=item.span().end().line);
            } else {
                visit::visit_item(self, item);
            }
        }
    }
    let mut tests = Tests(Vec::new());
    if let Ok(file) = syn::parse_file(text) {
        tests.visit_file(&file);
    }
    tests.0
}

struct Reader {
    at: Names,
    parsed: Parsed,
}

impl Reader {
    fn module(&mut self) -> &mut Module {
        self.parsed.modules.entry(self.at.clone()).or_default()
    }

    fn name(&mut self, names: Names, line: usize) {
        self.module().paths.push((names, line));
    }

    fn import(&mut self, tree: &UseTree, mut path: Names, is_export: bool) {
        let (name, last) = match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                return self.import(&tree.tree, path, is_export);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, path.clone(), is_export));
            }
            UseTree::Name(tree) => (Some(&tree.ident), Some(&tree.ident)),
            UseTree::Rename(tree) => (Some(&tree.rename), Some(&tree.ident)),
            UseTree::Glob(_) => (None, None),
        };
        // `a::{self}` is `a`.
        let name = match last {
            Some(last) if last == "self" && !path.is_empty() => {
                name.filter(|name| *name != "self").map(Ident::to_string).or(path.last().cloned())
            }
            _ => {
                path.extend(last.map(Ident::to_string));
                name.map(Ident::to_string)
            }
        };
        self.module().uses.push(Use { name, path, line: tree.span().start().line, is_export });
    }

    /// Collects the paths in the arguments of a macro.
    fn scan(&mut self, tokens: TokenStream) {
        let mut names: Names = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.name(std::mem::take(&mut names), line);
                        line = ident.span().start().line;
                    }
                    names.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.name(std::mem::take(&mut names), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
        self.name(names, line);
    }
}

impl Visit<'_> for Reader {
    fn visit_item(&mut self, item: &Item) {
        if is_for_tests(attributes(item)) {
            if let Item::Mod(ItemMod { ident, content: None, .. }) = item {
                self.parsed.tests.push([self.at.as_slice(), &[ident.to_string()]].concat());
            }
            return;
        }
        if let Some(name) = defined(item) {
            self.module().items.insert(name.to_string());
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &ImplItem) {
        let for_tests = match item {
            ImplItem::Fn(function) => is_for_tests(&function.attrs),
            ImplItem::Const(constant) => is_for_tests(&constant.attrs),
            _ => false,
        };
        if !for_tests {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &ItemMod) {
        if module.content.is_some() {
            self.at.push(module.ident.to_string());
            self.module();
            visit::visit_item_mod(self, module);
            self.at.pop();
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, Vec::new(), !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name(names, path.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }

    fn visit_visibility(&mut self, _: &Visibility) {}

    fn visit_attribute(&mut self, _: &Attribute) {}
}

/// Returns whether a file contains only tests, by its name.
pub fn is_of_tests(file: &str) -> bool {
    file.ends_with("tests.rs") || file.split('/').any(|part| part == "tests")
}

/// Returns whether an item with these attributes is compiled for tests alone.
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test ,")
        }
        _ => false,
    })
}

/// The attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}
