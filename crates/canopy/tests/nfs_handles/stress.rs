//! Random operations on files and directories, checked against a table of their handles.

use super::rig::{Bed, handle, layouts};
use canopy_testkit::Rng;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs;

/// A handle and the file it was made from. Each file and directory has a unique number: the content of a file, and the
/// name of the first file in a directory.
struct Known {
    handle: Vec<u8>,
    number: usize,
    is_dir: bool,
}

impl Known {
    /// Opens the handle. If that succeeds, it must lead to the file that the handle was made from.
    #[track_caller]
    fn seen(&self, bed: &Bed) -> Result<(), Errno> {
        if self.is_dir {
            let mark = format!("{}.mark", self.number);
            let names = bed.list(&self.handle)?;
            assert!(names.contains(&mark), "{:?} without {mark}: seed {}", names, seed());
        } else {
            let content = bed.read(&self.handle)?;
            assert_eq!(content, self.number.to_string(), "seed {}", seed());
        }
        Ok(())
    }
}

/// Returns `CANOPY_TEST_SEED`, or a seed that differs between runs. Failure messages include it.
fn seed() -> u64 {
    let given = std::env::var("CANOPY_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| u64::from(std::process::id()))
}

#[test]
fn no_handle_ever_leads_to_another_file() {
    let mut rng = Rng::new(seed());
    for layout in layouts() {
        let mut bed = Bed::new(layout, 3, "");
        let mut known: Vec<Known> = Vec::new();
        // Maps paths to numbers.
        let (mut files, mut dirs): (HashMap<String, usize>, Vec<(String, usize)>) = Default::default();
        let (mut found, mut stale) = (0, 0);
        for step in 0..600 {
            let parent = if dirs.is_empty() || rng.below(3) == 0 {
                String::new()
            } else {
                format!("{}/", dirs[rng.index(dirs.len())].0)
            };
            let name = format!("{parent}n{}", rng.below(12));
            let any_file = |rng: &mut Rng, files: &HashMap<String, usize>| {
                let mut paths: Vec<&String> = files.keys().collect();
                paths.sort();
                (!paths.is_empty()).then(|| paths[rng.index(paths.len())].clone())
            };
            match rng.below(12) {
                0..=3 if !dirs.iter().any(|(path, _)| *path == name) && !files.contains_key(&name) => {
                    fs::write(bed.at(&name), step.to_string()).unwrap();
                    known.push(Known { handle: handle(bed.at(&name)), number: step, is_dir: false });
                    files.insert(name, step);
                }
                4 => {
                    let taken = dirs.iter().any(|(path, _)| *path == name) || files.contains_key(&name);
                    if !taken && name.matches('/').count() < 3 {
                        fs::create_dir(bed.at(&name)).unwrap();
                        let mark = format!("{name}/{step}.mark");
                        fs::write(bed.at(&mark), step.to_string()).unwrap();
                        known.push(Known { handle: handle(bed.at(&name)), number: step, is_dir: true });
                        dirs.push((name, step));
                    }
                }
                5 | 6 => {
                    if let Some(path) = any_file(&mut rng, &files) {
                        fs::remove_file(bed.at(&path)).unwrap();
                        files.remove(&path);
                    }
                }
                7 => {
                    // rename(2) between two names of one file removes neither.
                    if let Some(path) = any_file(&mut rng, &files)
                        && !dirs.iter().any(|(dir, _)| *dir == name)
                        && files.get(&name) != Some(&files[&path])
                    {
                        fs::rename(bed.at(&path), bed.at(&name)).unwrap();
                        let number = files.remove(&path).unwrap();
                        files.insert(name, number);
                    }
                }
                8 => {
                    if let Some(path) = any_file(&mut rng, &files)
                        && !dirs.iter().any(|(dir, _)| *dir == name)
                        && !files.contains_key(&name)
                    {
                        fs::hard_link(bed.at(&path), bed.at(&name)).unwrap();
                        files.insert(name, files[&path]);
                    }
                }
                9 if !dirs.is_empty() => {
                    let (from, number) = dirs[rng.index(dirs.len())].clone();
                    let from: String = from;
                    let taken = dirs.iter().any(|(path, _)| *path == name) || files.contains_key(&name);
                    if !taken && !format!("{name}/").starts_with(&format!("{from}/")) {
                        fs::rename(bed.at(&from), bed.at(&name)).unwrap();
                        let below = format!("{from}/");
                        let moved =
                            |path: &str| path.strip_prefix(&below).map(|rest| format!("{name}/{rest}"));
                        files = files
                            .drain()
                            .map(|(path, number)| (moved(&path).unwrap_or(path), number))
                            .collect();
                        for (path, _) in &mut dirs {
                            *path = moved(path).unwrap_or_else(|| path.clone());
                        }
                        dirs.retain(|(_, of)| *of != number);
                        dirs.push((name, number));
                    }
                }
                10 => bed.forget(),
                11 if step % 10 == 0 => bed.restart(),
                _ => {}
            }
            if known.is_empty() {
                continue;
            }
            for _ in 0..3 {
                let one = &known[rng.index(known.len())];
                let alive = if one.is_dir {
                    dirs.iter().any(|(_, number)| *number == one.number)
                } else {
                    files.values().any(|number| *number == one.number)
                };
                match (one.seen(&bed), alive) {
                    (Ok(()), true) => found += 1,
                    (Err(Errno::STALE), false) => stale += 1,
                    // A file that was open when it was removed exists until the kernel closes it.
                    (Ok(()), false) => {}
                    other => panic!("{layout:?}, step {step}, {}, seed {}: {other:?}", one.number, seed()),
                }
            }
        }
        bed.restart();
        for one in &known {
            let alive = if one.is_dir {
                dirs.iter().any(|(_, number)| *number == one.number)
            } else {
                files.values().any(|number| *number == one.number)
            };
            let expected = if alive { Ok(()) } else { Err(Errno::STALE) };
            assert_eq!(one.seen(&bed), expected, "{layout:?}, {}, seed {}", one.number, seed());
        }
        assert!(found > 100 && stale > 50, "{layout:?}: {found} found, {stale} stale");
        bed.end();
    }
}
