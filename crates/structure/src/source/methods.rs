//! Method calls: a file that calls a method depends on the file with the `impl` block that has it.
//!
//! A receiver's type is followed from `self`, parameters, fields, `let` and what methods return. Where it stays unknown,
//! the call counts only if the package has one method of that name with as many parameters, in an `impl` outside of its
//! type's own file.

use super::modules::{FileId, ModuleId, Modules};
use syn::{Expr, FnArg, GenericArgument, Pat, PathArguments, ReturnType, Signature, Type};

/// Types that a method call looks through.
const WRAPPERS: [&str; 11] =
    ["Arc", "Box", "Rc", "Option", "Result", "Mutex", "RwLock", "Ranked", "Cow", "OnceLock", "ManuallyDrop"];
/// Methods that give what they are called on, or what is in it.
const TRANSPARENT: [&str; 15] = [
    "clone",
    "as_ref",
    "as_mut",
    "as_deref",
    "borrow",
    "lock",
    "read",
    "write",
    "unwrap",
    "expect",
    "load",
    "cloned",
    "upgrade",
    "get_mut",
    "unwrap_or_default",
];

/// A method of an inherent `impl`.
pub(crate) struct Method {
    pub(crate) of: Vec<String>,
    pub(crate) name: String,
    /// Without `self`; `None` for a function that is called by its type.
    pub(crate) parameters: Option<usize>,
    /// The type that it returns, without wrappers.
    pub(crate) returns: Option<Vec<String>>,
}

/// A named field of a struct.
pub(crate) struct Field {
    pub(crate) of: String,
    pub(crate) name: String,
    pub(crate) has: Vec<String>,
}

pub(crate) struct Call {
    /// `None` where the type is not known.
    pub(crate) on: Option<Chain>,
    pub(crate) name: String,
    pub(crate) arguments: usize,
    pub(crate) line: usize,
}

/// A type, and the fields and methods that lead from a value of it to another value.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) start: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone)]
pub(crate) enum Step {
    Field(String),
    Call(String),
}

/// What the names in a function stand for.
#[derive(Clone, Default)]
pub(crate) struct Scope {
    pub(crate) own: Option<Vec<String>>,
    pub(crate) locals: Vec<(String, Option<Chain>)>,
}

impl Scope {
    /// Adds the parameters of a function.
    pub(crate) fn enter(&mut self, signature: &Signature) {
        for input in &signature.inputs {
            if let FnArg::Typed(input) = input
                && let Pat::Ident(name) = &*input.pat
            {
                let start = type_path(&input.ty, self.own.as_ref());
                let chain = start.map(|start| Chain { start, steps: Vec::new() });
                self.locals.push((name.ident.to_string(), chain));
            }
        }
    }

    /// Returns how an expression's type is found.
    pub(crate) fn chain(&self, expr: &Expr) -> Option<Chain> {
        match expr {
            Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                if name == "self" {
                    return self.own.clone().map(|start| Chain { start, steps: Vec::new() });
                }
                self.locals.iter().rev().find(|(local, _)| *local == name)?.1.clone()
            }
            Expr::Field(field) => {
                let syn::Member::Named(name) = &field.member else { return None };
                self.step(&field.base, Step::Field(name.to_string()))
            }
            Expr::MethodCall(call) if TRANSPARENT.contains(&call.method.to_string().as_str()) => {
                self.chain(&call.receiver)
            }
            Expr::MethodCall(call) => self.step(&call.receiver, Step::Call(call.method.to_string())),
            Expr::Call(call) => {
                let Expr::Path(path) = &*call.func else { return None };
                let names: Vec<String> =
                    path.path.segments.iter().map(|part| part.ident.to_string()).collect();
                let [of @ .., name] = &names[..] else { return None };
                let start = match of {
                    [only] if only == "Self" => self.own.clone()?,
                    [.., last] if is_type(last) => of.to_vec(),
                    _ => return None,
                };
                Some(Chain { start, steps: vec![Step::Call(name.clone())] })
            }
            Expr::Reference(inner) => self.chain(&inner.expr),
            Expr::Paren(inner) => self.chain(&inner.expr),
            Expr::Try(inner) => self.chain(&inner.expr),
            Expr::Unary(inner) => self.chain(&inner.expr),
            _ => None,
        }
    }

    fn step(&self, base: &Expr, step: Step) -> Option<Chain> {
        let mut chain = self.chain(base)?;
        chain.steps.push(step);
        Some(chain)
    }
}

/// Returns whether a name in a path is that of a type.
pub(crate) fn is_type(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
}

/// Returns the path of a type, without references and wrappers; `own` is what `Self` stands for.
pub(crate) fn type_path(ty: &Type, own: Option<&Vec<String>>) -> Option<Vec<String>> {
    match ty {
        Type::Reference(inner) => type_path(&inner.elem, own),
        Type::Paren(inner) => type_path(&inner.elem, own),
        Type::Path(path) if path.qself.is_none() => {
            let last = path.path.segments.last()?;
            if last.ident == "Self" {
                return own.cloned();
            }
            if let PathArguments::AngleBracketed(arguments) = &last.arguments
                && WRAPPERS.contains(&last.ident.to_string().as_str())
            {
                let is_type = |argument: &&GenericArgument| matches!(argument, GenericArgument::Type(_));
                let Some(GenericArgument::Type(inner)) = arguments.args.iter().find(is_type) else {
                    return None;
                };
                return type_path(inner, own);
            }
            Some(path.path.segments.iter().map(|segment| segment.ident.to_string()).collect())
        }
        _ => None,
    }
}

pub(crate) fn returned(output: &ReturnType, own: Option<&Vec<String>>) -> Option<Vec<String>> {
    match output {
        ReturnType::Type(_, ty) => type_path(ty, own),
        ReturnType::Default => None,
    }
}

/// A type of the package: the module that defines it, and its name.
type Known = (ModuleId, String);

/// A method, the file of its `impl`, and what it returns.
struct Defined {
    of: Known,
    name: String,
    parameters: Option<usize>,
    module: ModuleId,
    returns: Option<Vec<String>>,
}

/// What is known of a receiver's type.
enum Receiver {
    Own(Known),
    /// A type of another crate, which has no methods here.
    Foreign,
    Unknown,
}

/// The methods and fields of a package's types.
pub(crate) struct Types<'a> {
    modules: &'a Modules,
    methods: Vec<Defined>,
}

impl<'a> Types<'a> {
    pub(crate) fn of(modules: &'a Modules) -> Self {
        let mut methods = Vec::new();
        for (module, content) in modules.list.iter().enumerate() {
            for method in &content.methods {
                let Some(of) = modules.type_at(module, &method.of) else { continue };
                let (name, parameters, returns) =
                    (method.name.clone(), method.parameters, method.returns.clone());
                methods.push(Defined { of, name, parameters, module, returns });
            }
        }
        Self { modules, methods }
    }

    /// Returns the file that has the method of a call in a module, and the method's name with its type's.
    pub(crate) fn called(&self, from: ModuleId, call: &Call) -> Option<(FileId, String)> {
        let receiver = call.on.as_ref().map_or(Receiver::Unknown, |chain| self.receiver(from, chain));
        let found = match receiver {
            // Without such a method, it is a trait's.
            Receiver::Own(known) => self.method(&known, &call.name),
            Receiver::Foreign => None,
            Receiver::Unknown => self.only(&call.name, call.arguments),
        }?;
        let file = self.modules.list[found.module].file;
        Some((file, format!("{}::{}", found.of.1, found.name)))
    }

    fn method(&self, of: &Known, name: &str) -> Option<&Defined> {
        self.methods.iter().find(|method| method.of == *of && method.name == name)
    }

    /// Returns the only method of that name, if its `impl` is not in its type's file.
    fn only(&self, name: &str, arguments: usize) -> Option<&Defined> {
        let mut found = self.methods.iter().filter(|method| method.name == name);
        let (first, second) = (found.next()?, found.next());
        let file = |module: ModuleId| self.modules.list[module].file;
        let is_apart = file(first.module) != file(first.of.0);
        (second.is_none() && is_apart && first.parameters == Some(arguments)).then_some(first)
    }

    fn receiver(&self, from: ModuleId, chain: &Chain) -> Receiver {
        let Some(mut known) = self.modules.type_at(from, &chain.start) else { return Receiver::Foreign };
        for step in &chain.steps {
            let (module, path) = match step {
                Step::Field(name) => {
                    let fields = &self.modules.list[known.0].fields;
                    match fields.iter().find(|field| field.of == known.1 && field.name == *name) {
                        Some(field) => (known.0, &field.has),
                        None => return Receiver::Unknown,
                    }
                }
                Step::Call(name) => {
                    match self.method(&known, name).map(|method| (method.module, &method.returns)) {
                        Some((module, Some(path))) => (module, path),
                        _ => return Receiver::Unknown,
                    }
                }
            };
            let Some(next) = self.modules.type_at(module, path) else { return Receiver::Foreign };
            known = next;
        }
        Receiver::Own(known)
    }
}
