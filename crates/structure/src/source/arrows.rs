//! Arrows between the files of a package: a file imports the file that defines what it names.
//!
//! A `use` of a module alone makes no arrow; the paths that go through it do. Re-exports are followed to the definition.
//! A module that re-exports what lies within it does not import it, unless its own code names it.

use super::methods::Types;
use super::modules::{Binding, FileId, Import, ModuleId, Modules};
use std::collections::{BTreeMap, BTreeSet};

/// Every import of a package, by importing and imported file.
pub(crate) type Arrows = BTreeMap<(FileId, FileId), Arrow>;

/// What one file imports from another.
#[derive(Default)]
pub(crate) struct Arrow {
    /// The first line that says so.
    pub(crate) line: usize,
    pub(crate) names: BTreeSet<String>,
}

/// What a path leads to.
#[derive(Clone, PartialEq, Eq)]
enum Target {
    Module(ModuleId),
    /// An item and the module that defines it.
    Item(ModuleId, String),
    /// Something in another crate.
    Outside,
}

/// The names that are being looked up, so that a glob or an import that leads back to itself ends.
type Path = Vec<(ModuleId, String)>;

/// Returns the arrows between a package's files.
pub(crate) fn arrows(modules: &Modules) -> Arrows {
    let mut arrows = Arrows::new();
    let types = Types::of(modules);
    for (id, module) in modules.list.iter().enumerate() {
        let mut add_one = |file: FileId, name: String, line: usize| {
            if file != module.file {
                let arrow = arrows.entry((module.file, file)).or_default();
                arrow.line = if arrow.names.is_empty() { line } else { arrow.line.min(line) };
                arrow.names.insert(name);
            }
        };
        for call in &module.calls {
            if let Some((file, name)) = types.called(id, call) {
                add_one(file, name, call.line);
            }
        }
        let mut add = |targets: Vec<Target>, line: usize| {
            for target in targets {
                if let Target::Item(definer, name) = target {
                    add_one(modules.list[definer].file, name, line);
                }
            }
        };
        for import in &module.imports {
            add(modules.imported(id, import), import.line);
        }
        for mention in &module.mentions {
            add(modules.resolve(id, &mention.path, &mut Path::new()), mention.line);
        }
    }
    arrows
}

impl Modules {
    /// Returns the module that defines the type that a path in a module names, and the type's name.
    pub(super) fn type_at(&self, module: ModuleId, path: &[String]) -> Option<(ModuleId, String)> {
        self.resolve(module, path, &mut Path::new()).into_iter().find_map(|target| match target {
            Target::Item(definer, name) => Some((definer, name)),
            _ => None,
        })
    }

    /// Returns what an import makes its module depend on.
    fn imported(&self, module: ModuleId, import: &Import) -> Vec<Target> {
        let names_it = |name: &str| self.list[module].first_names.contains(name);
        let found = self.resolve(module, &import.path, &mut Path::new());
        let (mut targets, named) = match &import.name {
            Some(name) => (found, names_it(name)),
            None => (self.taken_by_glob(module, import, &found), false),
        };
        if import.is_reexport && !named {
            targets.retain(|target| match target {
                Target::Item(definer, name) => {
                    !self.is_within(*definer, module) || (import.name.is_none() && names_it(name))
                }
                _ => false,
            });
        }
        targets
    }

    /// Returns what a module takes by a glob: what its code names, or everything that it re-exports.
    fn taken_by_glob(&self, module: ModuleId, import: &Import, bases: &[Target]) -> Vec<Target> {
        let mut taken = Vec::new();
        for base in bases {
            let Target::Module(base) = *base else {
                taken.push(base.clone());
                continue;
            };
            for name in self.exports(base, &mut BTreeSet::new()) {
                if import.is_reexport || self.list[module].first_names.contains(&name) {
                    taken.extend(self.look_up(base, &name, &mut Path::new()));
                }
            }
        }
        taken
    }

    /// Returns the names that a glob of a module brings.
    fn exports(&self, module: ModuleId, visited: &mut BTreeSet<ModuleId>) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        if visited.insert(module) {
            names.extend(self.list[module].names.keys().cloned());
            for glob in self.list[module].imports.iter().filter(|import| import.name.is_none()) {
                for target in self.resolve(module, &glob.path, &mut Path::new()) {
                    if let Target::Module(base) = target {
                        names.append(&mut self.exports(base, visited));
                    }
                }
            }
        }
        names
    }

    /// Returns what a path that stands in a module leads to; nothing if its first name is not known there.
    fn resolve(&self, from: ModuleId, path: &[String], visiting: &mut Path) -> Vec<Target> {
        let Some((first, mut rest)) = path.split_first() else { return vec![Target::Module(from)] };
        let mut targets = match first.as_str() {
            "crate" => vec![Target::Module(self.root(from))],
            "self" => vec![Target::Module(from)],
            "super" => vec![Target::Module(self.list[from].parent.unwrap_or(from))],
            name => match (self.look_up(from, name, visiting), &self.library) {
                (found, Some((library, root))) if found.is_empty() && library == name => {
                    vec![Target::Module(*root)]
                }
                (found, _) => found,
            },
        };
        while let Some((name, further)) = rest.split_first() {
            targets = self.step(&targets, name, visiting);
            rest = further;
        }
        targets
    }

    /// Returns what a name means after what came before it in a path.
    fn step(&self, before: &[Target], name: &str, visiting: &mut Path) -> Vec<Target> {
        let mut after = Vec::new();
        let mut in_module = false;
        for target in before {
            let Target::Module(module) = *target else { continue };
            in_module = true;
            match name {
                "self" => after.push(Target::Module(module)),
                "super" => after.push(Target::Module(self.list[module].parent.unwrap_or(module))),
                _ => {
                    let found = self.look_up(module, name, visiting);
                    // A name that is not known there is one that a macro defines.
                    after.extend(if found.is_empty() {
                        vec![Target::Item(module, name.to_owned())]
                    } else {
                        found
                    });
                }
            }
        }
        // A variant, an associated item, or something in another crate.
        if in_module { after } else { before.to_vec() }
    }

    /// Returns what a name stands for in a module; nothing if the module does not have it.
    fn look_up(&self, module: ModuleId, name: &str, visiting: &mut Path) -> Vec<Target> {
        if visiting.iter().any(|(m, n)| *m == module && n == name) {
            return Vec::new();
        }
        visiting.push((module, name.to_owned()));
        let mut found = Vec::new();
        let here = &self.list[module];
        for binding in here.names.get(name).into_iter().flatten() {
            match *binding {
                Binding::Item => found.push(Target::Item(module, name.to_owned())),
                Binding::ItemOf(definer) => found.push(Target::Item(definer, name.to_owned())),
                Binding::Module(inner) => found.push(Target::Module(inner)),
                Binding::Import(import) => {
                    let targets = self.resolve(module, &here.imports[import].path, visiting);
                    found.extend(if targets.is_empty() { vec![Target::Outside] } else { targets });
                }
            }
        }
        if found.is_empty() {
            for glob in here.imports.iter().filter(|import| import.name.is_none()) {
                for target in self.resolve(module, &glob.path, visiting) {
                    if let Target::Module(base) = target {
                        found.extend(self.look_up(base, name, visiting));
                    }
                }
            }
        }
        visiting.pop();
        found
    }
}
