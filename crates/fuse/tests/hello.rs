//! The example filesystem `hello`.

pub(crate) mod common;
#[allow(dead_code, unreachable_pub, reason = "it is a program")]
#[path = "../examples/hello.rs"]
mod example;

use common::{Scratch, can_mount};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

fn is_served(point: &Path) -> bool {
    point.join("greeting").exists()
}

#[test]
fn the_example_serves_its_file_until_it_is_unmounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let point = scratch.path();
    thread::scope(|scope| {
        let server = scope.spawn(|| example::serve(point).map_err(|error| error.to_string()));
        let started = Instant::now();
        while !is_served(point) && !server.is_finished() && started.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(1));
        }
        let names: Vec<_> = fs::read_dir(point).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["greeting"]);
        assert_eq!(fs::read(point.join("greeting")).unwrap(), b"Hello, world!\n");
        assert_eq!(fs::metadata(point.join("greeting")).unwrap().len(), 14);
        assert_eq!(fs::read(point.join("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::write(point.join("greeting"), "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        canopy_fuse::mount::unmount_path(point, false).unwrap();
        assert_eq!(server.join().unwrap(), Ok(()));
    });
}
