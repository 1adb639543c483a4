//! Reads the files of a package into its module tree.

use super::attributes::{is_for_tests, item_attributes, path_attribute};
use super::methods::{Call, Chain, Field, Method, Scope, is_type, returned, type_path};
use super::modules::{Binding, Import, Mention, ModuleId, Modules};
use super::tokens::Seen;
use crate::workspace::{Package, Workspace};
use proc_macro2::TokenStream;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItem, Item, ItemMod, ItemUse, Meta, TraitItem, UseTree, Visibility};

impl Modules {
    /// Reads the libraries and programs of a package.
    pub(crate) fn read(workspace: &Workspace, package: &Package) -> Result<Self, String> {
        let mut modules = Self::default();
        for target in &package.targets {
            let root = read_file(workspace, &mut modules, &target.file, None, true)?;
            if target.is_library {
                modules.library = Some((target.name.clone(), root));
            }
        }
        Ok(modules)
    }
}

/// Reads a file and the files of its modules.
fn read_file(
    workspace: &Workspace,
    modules: &mut Modules,
    path: &str,
    parent: Option<ModuleId>,
    is_root: bool,
) -> Result<ModuleId, String> {
    let text = workspace.text(path).ok_or_else(|| format!("{path}: no such file"))?;
    let syntax = syn::parse_file(text)
        .map_err(|error| format!("{path}:{}: does not parse: {error}", error.span().start().line))?;
    let module = modules.add(path, parent);
    let path = Path::new(path);
    let own_dir = path.parent().unwrap_or(Path::new("")).to_owned();
    let children_dir =
        if is_root || path.ends_with("mod.rs") { own_dir.clone() } else { path.with_extension("") };
    let mut reader = Reader {
        workspace,
        modules,
        module,
        own_dir,
        children_dir,
        inline: 0,
        in_function: 0,
        scope: Scope::default(),
        failed: None,
    };
    reader.visit_file(&syntax);
    match reader.failed {
        Some(error) => Err(error),
        None => Ok(module),
    }
}

struct Reader<'a> {
    workspace: &'a Workspace,
    modules: &'a mut Modules,
    module: ModuleId,
    /// The directory of the file.
    own_dir: PathBuf,
    /// The directory in which the files of the module's children lie.
    children_dir: PathBuf,
    /// How many inline modules are around the place.
    inline: usize,
    /// How many blocks of functions are around the place.
    in_function: usize,
    scope: Scope,
    failed: Option<String>,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut super::modules::Module {
        &mut self.modules.list[self.module]
    }

    fn define(&mut self, name: &Ident) {
        // An item inside of a function cannot be imported.
        if self.in_function == 0 {
            self.module().define(name.to_string(), Binding::Item);
        }
    }

    fn read_module(&mut self, item: &ItemMod) {
        let name = item.ident.to_string();
        let outer = self.module;
        let (inner, items) = match &item.content {
            Some((_, items)) => {
                let file = self.modules.files[self.modules.list[outer].file].clone();
                (self.modules.add(&file, Some(outer)), Some(items))
            }
            None => match self.read_child(item, &name) {
                Ok(inner) => (inner, None),
                Err(error) => {
                    self.failed.get_or_insert(error);
                    return;
                }
            },
        };
        self.module().define(&name, Binding::Module(inner));
        if let Some(items) = items {
            self.module = inner;
            self.children_dir.push(&name);
            self.inline += 1;
            items.iter().for_each(|item| self.visit_item(item));
            self.inline -= 1;
            self.children_dir.pop();
            self.module = outer;
        }
    }

    /// Reads the file of a module without a body.
    fn read_child(&mut self, item: &ItemMod, name: &str) -> Result<ModuleId, String> {
        let candidates = match path_attribute(&item.attrs) {
            Some(path) if self.inline == 0 => vec![self.own_dir.join(path)],
            Some(path) => vec![self.children_dir.join(path)],
            None => vec![
                self.children_dir.join(format!("{name}.rs")),
                self.children_dir.join(name).join("mod.rs"),
            ],
        };
        let found = candidates
            .iter()
            .find_map(|path| path.to_str().filter(|path| self.workspace.text(path).is_some()));
        let path = found.ok_or_else(|| format!("{}: no such file", candidates[0].display()))?;
        read_file(self.workspace, self.modules, path, Some(self.module), false)
    }

    fn read_use(&mut self, item: &ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited) && self.in_function == 0;
        if item.leading_colon.is_none() {
            self.read_use_tree(&item.tree, &mut Vec::new(), is_reexport);
        }
    }

    fn read_use_tree(&mut self, tree: &UseTree, path: &mut Vec<String>, is_reexport: bool) {
        let (last, name) = match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.read_use_tree(&part.tree, path, is_reexport);
                path.pop();
                return;
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.read_use_tree(tree, path, is_reexport));
                return;
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.module().import(Import { path: path.clone(), name: None, is_reexport, line });
                return;
            }
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.ident, &rename.rename),
        };
        let mut path = path.clone();
        let mut local = name.to_string();
        if last == "self" && !path.is_empty() {
            if name == last {
                local.clone_from(&path[path.len() - 1]);
            }
        } else {
            path.push(last.to_string());
        }
        let line = last.span().start().line;
        self.module().import(Import { path, name: Some(local), is_reexport, line });
    }

    /// Reads an `impl` block: which type has which methods, if it is not of a trait, and what they say.
    fn read_impl(&mut self, block: &syn::ItemImpl) {
        let own = type_path(&block.self_ty, None);
        if let (Some(of), None) = (&own, &block.trait_) {
            let functions = block.items.iter().filter_map(|item| match item {
                ImplItem::Fn(function) if !is_for_tests(&function.attrs) => Some(function),
                _ => None,
            });
            let methods = functions.map(|function| {
                let returns = returned(&function.sig.output, own.as_ref());
                let signature = &function.sig;
                let parameters = signature.receiver().map(|_| signature.inputs.len() - 1);
                Method { of: of.clone(), name: signature.ident.to_string(), parameters, returns }
            });
            let methods: Vec<Method> = methods.collect();
            self.module().methods.extend(methods);
        }
        let outer = std::mem::replace(&mut self.scope, Scope { own, locals: Vec::new() });
        visit::visit_item_impl(self, block);
        self.scope = outer;
    }

    fn read_fields(&mut self, item: &syn::ItemStruct) {
        for field in &item.fields {
            if let (Some(name), Some(has)) = (&field.ident, type_path(&field.ty, None)) {
                let (of, name) = (item.ident.to_string(), name.to_string());
                self.module().fields.push(Field { of, name, has });
            }
        }
    }

    /// Reads a function, whose names are its own; `own` is what `self` is in it.
    fn within(&mut self, own: Option<Vec<String>>, signature: &syn::Signature, read: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.scope, Scope { own, locals: Vec::new() });
        self.scope.enter(signature);
        read(self);
        self.scope = outer;
    }

    /// Adds a call of `Self::name` or `Type::name`.
    fn read_associated(&mut self, names: &[String], line: usize) {
        let [of @ .., name] = names else { return };
        let start = match of {
            [only] if only == "Self" => self.scope.own.clone(),
            [.., last] if is_type(last) => Some(of.to_vec()),
            _ => None,
        };
        if let Some(start) = start {
            let on = Some(Chain { start, steps: Vec::new() });
            self.module().calls.push(Call { on, name: name.clone(), arguments: 0, line });
        }
    }

    fn read_tokens(&mut self, tokens: &TokenStream, may_define: bool) {
        let seen = Seen::in_stream(tokens);
        let module = self.module();
        module.first_names.extend(seen.first_names);
        module.mentions.extend(seen.paths.into_iter().map(|(path, line)| Mention { path, line }));
        if may_define {
            seen.definitions.into_iter().for_each(|name| module.define(name, Binding::Item));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(item_attributes(item)) {
            return;
        }
        match item {
            Item::Mod(item) => return self.read_module(item),
            Item::Use(item) => return self.read_use(item),
            Item::Const(item) => self.define(&item.ident),
            Item::Enum(item) => self.define(&item.ident),
            Item::Fn(function) => {
                self.define(&function.sig.ident);
                return self.within(None, &function.sig, |reader| visit::visit_item(reader, item));
            }
            Item::Impl(block) => return self.read_impl(block),
            Item::Static(item) => self.define(&item.ident),
            Item::Struct(item) => {
                self.define(&item.ident);
                self.read_fields(item);
            }
            Item::Trait(item) => self.define(&item.ident),
            Item::TraitAlias(item) => self.define(&item.ident),
            Item::Type(item) => self.define(&item.ident),
            Item::Union(item) => self.define(&item.ident),
            Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    self.define(name);
                    if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
                        let (root, here) = (self.modules.root(self.module), self.module);
                        self.modules.list[root].define(name.to_string(), Binding::ItemOf(here));
                    }
                }
                // What the macro will define here is among its tokens or in its own body.
                self.visit_path(&item.mac.path);
                return self.read_tokens(&item.mac.tokens, self.in_function == 0);
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_foreign_item(&mut self, item: &'ast syn::ForeignItem) {
        match item {
            syn::ForeignItem::Fn(item) => self.define(&item.sig.ident),
            syn::ForeignItem::Static(item) => self.define(&item.ident),
            _ => {}
        }
        visit::visit_foreign_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if is_for_tests(attributes) {
            return;
        }
        match item {
            ImplItem::Fn(function) => {
                let own = self.scope.own.clone();
                self.within(own, &function.sig, |reader| visit::visit_impl_item(reader, item));
            }
            _ => visit::visit_impl_item(self, item),
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        match item {
            TraitItem::Fn(method) if is_for_tests(&method.attrs) => {}
            _ => visit::visit_trait_item(self, item),
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.in_function += 1;
        let known = self.scope.locals.len();
        visit::visit_block(self, block);
        self.scope.locals.truncate(known);
        self.in_function -= 1;
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        visit::visit_local(self, local);
        let (pattern, typed) = match &local.pat {
            syn::Pat::Type(typed) => (&*typed.pat, Some(&*typed.ty)),
            pattern => (pattern, None),
        };
        if let syn::Pat::Ident(name) = pattern {
            let chain = match (typed, &local.init) {
                (Some(ty), _) => {
                    type_path(ty, self.scope.own.as_ref()).map(|start| Chain { start, steps: Vec::new() })
                }
                (None, Some(init)) => self.scope.chain(&init.expr),
                (None, None) => None,
            };
            self.scope.locals.push((name.ident.to_string(), chain));
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let (on, name) = (self.scope.chain(&call.receiver), call.method.to_string());
        let line = call.method.span().start().line;
        self.module().calls.push(Call { on, name, arguments: call.args.len(), line });
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && !path.segments.is_empty() {
            let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let line = path.segments[0].ident.span().start().line;
            let module = self.module();
            module.first_names.insert(names[0].clone());
            if names.len() > 1 {
                self.read_associated(&names, line);
                let module = self.module();
                module.mentions.push(Mention { path: names, line });
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        visit::visit_macro(self, item);
        self.read_tokens(&item.tokens, false);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.read_tokens(&list.tokens, false);
        }
    }

    /// `pub(in path)` is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}
