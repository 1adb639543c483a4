//! Generates `docs/options.md` and the manual pages in `man/` from the option table and the command line:
//! `cargo run -p canopy --example gen-docs`. `tests/docs.rs` compares them with the committed files.
#![forbid(unsafe_code)]

mod pages;

use canopy_sys::shown::Show as _;
use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, content) in pages::all()? {
        let path = root.join(path);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(&path, content)?;
        println!("{}", path.shown());
    }
    Ok(())
}
