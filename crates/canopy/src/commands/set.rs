//! `canopy set`: changes an option of a running pool, and the config file it came from if that is wanted.

use crate::cli::{self, SetArgs};
use crate::control_client::Live;
use crate::error::Error;
use canopy_config::Config;
use canopy_config::control_api::COMMAND;
use canopy_config::options::{self, Changes, Spec};
use canopy_config::source::named::restore_names;
use canopy_config::source::persist::{Origin, Rewrite};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub fn run(args: &SetArgs) -> Result<(), Error> {
    let pool = Live::at(&args.mount)?;
    let pair = args.pair.as_bytes();
    let equals = pair.iter().position(|&byte| byte == b'=');
    let (key, value) = pair.split_at(equals.unwrap_or(pair.len()));
    let key = String::from_utf8_lossy(key.trim_ascii()).into_owned();
    // A word that takes no value is complete, and the pool says what is to be said of it.
    let is_word = options::find(&key).is_some_and(|spec| spec.accepted().is_none());
    if equals.is_none() && !is_word && !key.starts_with(COMMAND) {
        return Err(Error::NoValue { key, path: args.mount.clone() });
    }
    let value = OsStr::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
    if args.persist { persist(&pool, &args.mount, &key, value) } else { pool.set(&key, value) }
}

fn persist(pool: &Live, mount: &Path, key: &str, value: &OsStr) -> Result<(), Error> {
    let spec = options::find(key).filter(|spec| spec.key);
    let kept = spec.filter(|spec| spec.changes == Changes::Live && !spec.hidden && spec.name != "config");
    let Some(spec) = kept else {
        // Whatever is to be said of a key that cannot be set at all.
        if spec.is_none_or(|spec| spec.changes != Changes::Live) && !key.starts_with(COMMAND) {
            return pool.set(key, value);
        }
        return Err(Error::NotPersistent { key: key.to_owned() });
    };
    let file = PathBuf::from(pool.get("config")?);
    if file.as_os_str().is_empty() {
        return Err(Error::NoConfigFile(mount.to_owned()));
    }
    let origin = cli::mount_words(&pool.process()?).and_then(|mut said| {
        if said.by_mount {
            // At boot all is mounted from there.
            restore_names(&mut said.in_order, Path::new("/"), |word| file.file_stem() == Some(word));
        }
        Origin::of(said.in_order, said.sloppy, file.clone())
    });
    let origin = origin.ok_or_else(|| Error::OtherConfigFile {
        key: spec.name.to_string(),
        file: file.clone(),
        path: mount.to_owned(),
    })?;
    let failed = |why: io::Error| canopy_config::Error::Persist { file: file.clone(), why: why.to_string() };
    let (mut rewrite, text) = Rewrite::begin(&file).map_err(failed)?;
    let value = match spec.name == "branches" {
        true => {
            whole_list(pool, value)?.ok_or_else(|| failed(io::Error::other("no branch would be left")))?
        }
        false => value.to_owned(),
    };
    let edited = origin.edited(&text, spec, &value)?;
    rewrite.write_new(&edited).map_err(failed)?;
    // All that is left is to rename a file; what can go wrong before has gone wrong by now.
    let before = values(pool)?;
    pool.set(&spec.name, &value)?;
    rewrite.commit().map_err(|why| match set_back(pool, &before) {
        Ok(()) => failed(why).into(),
        Err(kept) => Error::HalfPersisted { file: file.clone(), why: why.to_string(), kept: kept.line() },
    })
}

/// What an instruction makes of the pool's branches, unless that is nothing: the next mount would have none. The file
/// and the pool are told the same.
fn whole_list(pool: &Live, value: &OsStr) -> Result<Option<OsString>, Error> {
    let mut config = Config::default();
    canopy_config::source::set(&mut config, "branches", &pool.get("branches")?)?;
    canopy_config::source::set(&mut config, "branches", value)?;
    Ok((!config.branches.is_empty()).then(|| config.branches.to_os_string()))
}

/// Everything that can be changed, as it is now.
fn values(pool: &Live) -> Result<Vec<(&'static Spec, OsString)>, Error> {
    let changeable = |spec: &&Spec| {
        spec.key && !spec.hidden && spec.changes == Changes::Live && spec.name != "config" && !is_group(spec)
    };
    options::table().iter().filter(changeable).map(|spec| Ok((spec, pool.get(&spec.name)?))).collect()
}

/// Shows several values at once, which are other options' own.
fn is_group(spec: &Spec) -> bool {
    spec.name.starts_with("category.")
}

fn set_back(pool: &Live, before: &[(&'static Spec, OsString)]) -> Result<(), Error> {
    for (spec, value) in before {
        if pool.get(&spec.name)? != *value {
            pool.set(&spec.name, value)?;
        }
    }
    Ok(())
}
