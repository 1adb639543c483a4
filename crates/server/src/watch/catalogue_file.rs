//! Where what is known of the branches is kept.

use canopy_config::Config;
use canopy_sys::own_dir;
use canopy_sys::shown::Show as _;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Makes the file of the catalogue, if the options ask for one. It has no name, so it ends with this process, and is no other
/// process's.
pub(crate) fn open(config: &Config) -> Option<File> {
    let dir = config.catalogue.dir().filter(|_| config.catalogue_size > 0)?;
    let opened = nameless(dir);
    if let Err(why) = &opened {
        tracing::warn!(
            "catalogue: no file can be made in {}, so nothing is kept of the branches: {why}",
            dir.shown()
        );
    }
    opened.ok()
}

fn nameless(dir: &Path) -> io::Result<File> {
    own_dir::make(dir)?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let path = dir.join(format!("catalogue.{}", std::process::id()));
            let file =
                rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)?;
            fs::remove_file(path)?;
            Ok(file.into())
        }
        opened => Ok(opened?.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_config::values::CataloguePlace;

    #[test]
    fn nothing_is_left_of_the_file() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("below/here");
        let config = Config { catalogue: CataloguePlace::In(dir.clone()), ..Config::default() };
        let file = open(&config).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::write(home.path().join("file"), "").unwrap();
        let unusable = Config { catalogue: CataloguePlace::In(home.path().join("file/in")), ..config };
        assert!(open(&unusable).is_none());
        assert!(open(&Config::default()).is_none());
        assert!(
            open(&Config { catalogue: CataloguePlace::In(dir), catalogue_size: 0, ..Config::default() })
                .is_none()
        );
    }
}
