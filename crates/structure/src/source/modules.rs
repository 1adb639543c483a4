//! The module tree of a package: what each module defines, imports and mentions.

use super::methods::{Call, Field, Method};
use std::collections::{HashMap, HashSet};

pub(crate) type FileId = usize;
pub(crate) type ModuleId = usize;

/// The modules of a package. Code under `#[cfg(test)]` is left out.
#[derive(Default)]
pub(crate) struct Modules {
    /// Paths from the root of the workspace.
    pub(crate) files: Vec<String>,
    pub(crate) list: Vec<Module>,
    /// The package's own library, as its programs name it.
    pub(crate) library: Option<(String, ModuleId)>,
}

/// A module.
pub(crate) struct Module {
    pub(crate) file: FileId,
    pub(crate) parent: Option<ModuleId>,
    /// What each name stands for. One name can be a module, a function and a macro at once.
    pub(crate) names: HashMap<String, Vec<Binding>>,
    pub(crate) imports: Vec<Import>,
    pub(crate) mentions: Vec<Mention>,
    /// The names with which paths in the module's own code begin; `use` declarations do not count.
    pub(crate) first_names: HashSet<String>,
    pub(crate) methods: Vec<Method>,
    pub(crate) fields: Vec<Field>,
    pub(crate) calls: Vec<Call>,
}

/// What a name stands for.
#[derive(Clone, Copy)]
pub(crate) enum Binding {
    Item,
    /// A macro that another module exports from the crate's root.
    ItemOf(ModuleId),
    Module(ModuleId),
    /// An index into [`Module::imports`].
    Import(usize),
}

/// One name of a `use` declaration.
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// The name that it gets here; `None` is a glob.
    pub(crate) name: Option<String>,
    /// Whether it is more than private.
    pub(crate) is_reexport: bool,
    pub(crate) line: usize,
}

/// A path of two names or more outside of `use`.
pub(crate) struct Mention {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

impl Modules {
    /// Adds an empty module.
    pub(crate) fn add(&mut self, file: &str, parent: Option<ModuleId>) -> ModuleId {
        let file = self.files.iter().position(|known| known == file).unwrap_or_else(|| {
            self.files.push(file.to_owned());
            self.files.len() - 1
        });
        self.list.push(Module {
            file,
            parent,
            names: HashMap::new(),
            imports: Vec::new(),
            mentions: Vec::new(),
            first_names: HashSet::new(),
            methods: Vec::new(),
            fields: Vec::new(),
            calls: Vec::new(),
        });
        self.list.len() - 1
    }

    /// Returns the module at the top of a module's tree, which `crate` names.
    pub(crate) fn root(&self, mut module: ModuleId) -> ModuleId {
        while let Some(parent) = self.list[module].parent {
            module = parent;
        }
        module
    }

    /// Returns whether a module lies within another.
    pub(crate) fn is_within(&self, mut module: ModuleId, outer: ModuleId) -> bool {
        while let Some(parent) = self.list[module].parent {
            if parent == outer {
                return true;
            }
            module = parent;
        }
        false
    }
}

impl Module {
    pub(crate) fn define(&mut self, name: impl Into<String>, binding: Binding) {
        self.names.entry(name.into()).or_default().push(binding);
    }

    pub(crate) fn import(&mut self, import: Import) {
        if let Some(name) = &import.name {
            let binding = Binding::Import(self.imports.len());
            self.names.entry(name.clone()).or_default().push(binding);
        }
        self.imports.push(import);
    }
}
