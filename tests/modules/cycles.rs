//! Import cycles between the files of one module.
//!
//! A file imports another if a `use` declaration or a path in its code names an item of that file.
//! A `pub use` declaration counts if the file itself uses the name. `mod` declarations do not
//! count, and neither do tests. A re-exported name belongs to the file that defines the item.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// The path of a file's module below the crate: `["cpu", "placement", "plan"]`.
type ModulePath = Vec<String>;

/// The path behind a re-exported name.
type Reexports = BTreeMap<String, ModulePath>;

/// The imports and re-exports of one file.
struct File {
    /// Paths in the file's code, from the crate or relative to the file.
    paths: Vec<ModulePath>,
    /// The names that the file's `pub use` declarations re-export.
    reexports: Reexports,
    /// The modules whose public names are all re-exported.
    globs: Vec<ModulePath>,
}

/// Collects the paths in code outside of tests.
#[derive(Default)]
struct Collector {
    paths: Vec<ModulePath>,
    /// The names with which paths begin. A name that is also re-exported is an import.
    used: BTreeSet<String>,
    reexports: Reexports,
    globs: Vec<ModulePath>,
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Use(item) if is_test(&item.attrs) => {}
            Item::Use(item) => {
                let mut names = Vec::new();
                flatten(&item.tree, &mut Vec::new(), &mut names);
                let is_private = matches!(item.vis, Visibility::Inherited);
                for (name, path) in names {
                    match name {
                        _ if is_private => self.paths.push(path),
                        Some(name) => drop(self.reexports.insert(name, path)),
                        None => self.globs.push(path),
                    }
                }
            }
            Item::Mod(item) if is_test(&item.attrs) => {}
            Item::Fn(item) if is_test(&item.attrs) => {}
            Item::Impl(item) if is_test(&item.attrs) => {}
            item => visit::visit_item(self, item),
        }
    }

    /// `pub(super)` and `pub(in path)` import nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    /// A path of one segment is a local name or the name of an import.
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let first = path.segments.first();
        self.used.extend(first.map(|part| part.ident.to_string()));
        if path.segments.len() > 1 {
            let names = path.segments.iter().map(|part| part.ident.to_string());
            self.paths.push(names.collect());
        }
        visit::visit_path(self, path);
    }

    /// The arguments of a macro are no syntax tree, so each name in them may be the name of an
    /// import.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let text = call.tokens.to_string();
        let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        self.used.extend(words.map(str::to_owned));
        visit::visit_macro(self, call);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|path| path.is_ident("test"))
    })
}

/// The names that a tree of imports declares, with the paths. A glob declares no name.
fn flatten(tree: &UseTree, above: &mut ModulePath, names: &mut Vec<(Option<String>, ModulePath)>) {
    let joined = |above: &ModulePath, name: &syn::Ident| {
        let own = (name != "self").then(|| name.to_string());
        above.iter().cloned().chain(own).collect::<ModulePath>()
    };
    match tree {
        UseTree::Path(path) => {
            above.push(path.ident.to_string());
            flatten(&path.tree, above, names);
            above.pop();
        }
        UseTree::Name(name) => {
            let path = joined(above, &name.ident);
            names.push((path.last().cloned(), path));
        }
        UseTree::Rename(name) => {
            names.push((Some(name.rename.to_string()), joined(above, &name.ident)));
        }
        UseTree::Glob(_) => names.push((None, above.clone())),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, above, names);
            }
        }
    }
}

/// All files of the crate except tests, by the path of the module.
struct Crate(BTreeMap<ModulePath, File>);

impl Crate {
    fn read(src: &Path, files: &[std::path::PathBuf]) -> Self {
        let mut all = BTreeMap::new();
        for file in files {
            let path = file.strip_prefix(src).unwrap().to_str().unwrap();
            if path == "main.rs" || path.ends_with("/tests.rs") || path.contains("/tests/") {
                continue;
            }
            let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
            let module: ModulePath = match module {
                "lib" => Vec::new(),
                module => module.split('/').map(str::to_owned).collect(),
            };
            let text = std::fs::read_to_string(file).unwrap();
            all.insert(module, parse(&text));
        }
        Self(all)
    }

    /// The file that defines `path` as seen from the file `from`; `None` if the path leaves the crate.
    fn file_of(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        // Chains of re-exports end after a few steps, unless the chain is circular.
        if depth > 8 {
            return None;
        }
        let mut module = from.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                module.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    module.pop()?;
                    rest = &rest[1..];
                }
            }
            name => {
                // A relative path begins with a module below this file, or leaves the crate.
                let below: ModulePath = module.iter().cloned().chain([name.to_owned()]).collect();
                if !self.0.contains_key(&below) {
                    return None;
                }
            }
        }
        for (index, name) in rest.iter().enumerate() {
            let below: ModulePath = module.iter().cloned().chain([name.clone()]).collect();
            if self.0.contains_key(&below) {
                module = below;
                continue;
            }
            let file = self.0.get(&module)?;
            if let Some(target) = file.reexports.get(name) {
                let target: Vec<String> =
                    target.iter().chain(&rest[index + 1..]).cloned().collect();
                return self.file_of(&module, &target, depth + 1);
            }
            let glob = file.globs.iter().find_map(|glob| {
                let from = self.file_of(&module, glob, depth + 1)?;
                self.0[&from].reexports.contains_key(name).then_some(from)
            });
            return glob.or(Some(module));
        }
        Some(module)
    }

    /// The files that each file of a module imports, of the same module.
    fn imports(&self, module: &str) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let is_inside = |path: &ModulePath| path.first().is_some_and(|first| first == module);
        let files = self.0.iter().filter(|(path, _)| is_inside(path));
        files
            .map(|(path, file)| {
                let imported = file.paths.iter();
                let imported = imported.filter_map(|name| self.file_of(path, name, 0));
                let others = imported.filter(|other| other != path && is_inside(other));
                (path.clone(), others.collect())
            })
            .collect()
    }
}

fn parse(text: &str) -> File {
    let mut collector = Collector::default();
    collector.visit_file(&syn::parse_file(text).unwrap());
    let Collector {
        mut paths,
        used,
        reexports,
        globs,
    } = collector;
    let own_use = reexports.iter().filter(|(name, _)| used.contains(*name));
    paths.extend(own_use.map(|(_, path)| path.clone()));
    File {
        paths,
        reexports,
        globs,
    }
}

/// Files that import each other, directly or through others. Empty without a cycle.
fn cycle(imports: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<String> {
    let mut left = imports.clone();
    loop {
        let before = left.len();
        // A file without remaining imports, or without a remaining importer, is in no cycle.
        let names: BTreeSet<ModulePath> = left.keys().cloned().collect();
        left.retain(|_, others| others.iter().any(|other| names.contains(other)));
        let imported: BTreeSet<ModulePath> = left.values().flatten().cloned().collect();
        left.retain(|path, _| imported.contains(path));
        if left.len() == before {
            break;
        }
    }
    let names: BTreeSet<ModulePath> = left.keys().cloned().collect();
    left.iter()
        .map(|(path, others)| {
            let others: Vec<String> = others
                .intersection(&names)
                .map(|other| other.join("::"))
                .collect();
            format!("{} imports {}", path.join("::"), others.join(", "))
        })
        .collect()
}

#[test]
fn no_import_cycle() {
    let mut files = Vec::new();
    super::sources(&super::src(), &mut files);
    let all = Crate::read(&super::src(), &files);
    let mut edges = 0;
    let mut cycles = Vec::new();
    for (module, _) in super::MODULES {
        let imports = all.imports(module);
        edges += imports.values().map(BTreeSet::len).sum::<usize>();
        let cycle = cycle(&imports);
        if !cycle.is_empty() {
            cycles.push(format!("{module}:\n{}", cycle.join("\n")));
        }
    }
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
    assert!(edges > 40, "{edges} imports only: are paths still found?");
}

#[test]
fn a_cycle_is_found() {
    let module = |path: &str| -> ModulePath { path.split("::").map(str::to_owned).collect() };
    let files = [
        ("a", "mod x; mod y; pub use y::Thing;"),
        ("a::x", "use super::Thing; pub struct Other;"),
        ("a::y", "pub struct Thing; fn f(_: crate::a::x::Other) {}"),
        (
            "a::z",
            "use super::x::Other; #[cfg(test)] mod tests { use super::super::y; }",
        ),
    ];
    let files = files.map(|(path, text)| (module(path), parse(text)));
    let all = Crate(BTreeMap::from(files));
    assert_eq!(
        cycle(&all.imports("a")),
        ["a::x imports a::y", "a::y imports a::x"]
    );
}

#[test]
fn a_reexported_name_that_the_file_uses_itself_is_an_import() {
    let module = |path: &str| -> ModulePath { path.split("::").map(str::to_owned).collect() };
    let cycle_with = |declaring: &str| {
        let files = [
            ("a", "mod x; mod y;"),
            ("a::x", declaring),
            ("a::y", "use super::x::Other; pub struct Thing;"),
        ];
        let files = files.map(|(path, text)| (module(path), parse(text)));
        cycle(&Crate(BTreeMap::from(files)).imports("a"))
    };
    let only_passed_on = "pub use super::y::Thing; pub struct Other;";
    assert!(cycle_with(only_passed_on).is_empty());
    for own_use in [
        "pub use super::y::Thing; pub struct Other(Thing);",
        "pub use super::y::Thing; pub struct Other; fn f() { Thing::new(); }",
        "pub use super::y::Thing; pub struct Other; fn f() { assert_eq!(1, Thing::ONE); }",
    ] {
        assert_eq!(
            cycle_with(own_use),
            ["a::x imports a::y", "a::y imports a::x"],
            "{own_use}"
        );
    }
}
