//! Waiting for the copies that rules want.

use std::time::{Duration, Instant};

use super::Driver;
use crate::compare;
use crate::weather::Weather;

/// How long the mover may need for files of some bytes.
const PATIENCE: Duration = Duration::from_secs(9);
const PAUSE: Duration = Duration::from_millis(400);

impl Driver {
    /// Closes everything, has the mover make what rules want, and compares everything.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        self.calm()?;
        self.close();
        if !self.now.cannot_change() {
            self.make_copies()?;
        }
        self.compare()
    }

    fn make_copies(&mut self) -> Result<(), String> {
        let (started, hidden) = (Instant::now(), self.hidden());
        for round in 0.. {
            let wrong = compare::copies(&mut self.world, &hidden)?;
            if wrong.is_empty() || super::stopped() {
                return Ok(());
            }
            let mut said = self.world.run("tier POOL --once")?.describe();
            // What is old and not needed stays until somebody removes it.
            if round % 3 == 2 {
                said += &self.world.run("dedup POOL --write")?.describe();
            }
            if started.elapsed() > PATIENCE && round > 8 {
                return Err(format!("the copies are not made:\n  {}\n{said}", wrong.join("\n  ")));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Removes copies beyond the first, and has rules want them again.
    pub(super) fn dedup(&mut self) -> Result<(), String> {
        if !self.world.plan.weathers.has(Weather::Copies) {
            return Ok(());
        }
        self.calm()?;
        self.refusals.forget();
        let rules = self.world.place(self.world.plan.rules);
        self.world.set(&format!(
            "rules={}",
            rules.replace("copies 2 when written", "copies 1").replace("copies 2", "copies 1")
        ))?;
        self.world.run("dedup POOL --write")?;
        let compared = self.compare();
        self.world.set(&format!("rules={rules}"))?;
        compared.map_err(|what| format!("after dedup --write: {what}"))
    }

    /// Makes files and their copies without rules, which come later; then the files are written.
    pub(super) fn unruled(&mut self, files: usize) -> Result<(), String> {
        if !self.world.plan.rules.starts_with("**=copies") || self.gone.is_some() || self.now.cannot_change()
        {
            return Ok(());
        }
        self.settle()?;
        let tree = compare::expected(&mut self.world)?;
        let single = tree.entries.iter().filter(|(_, entry)| entry.nlink == 1 && entry.hash.is_some());
        let names: Vec<_> = single.map(|(path, _)| compare::text(path).to_owned()).take(files).collect();
        let rules = self.world.place(self.world.plan.rules);
        self.world.set("rules=")?;
        for name in &names {
            for path in [self.world.at(name), self.world.beside(name)] {
                std::fs::remove_file(&path)
                    .map_err(|error| format!("removing {}: {error}", name.display()))?;
                std::fs::write(&path, b"without rules")
                    .map_err(|error| format!("{}: {error}", name.display()))?;
            }
        }
        self.world.run("dup POOL TOP")?;
        self.world.set(&format!("rules={rules}"))?;
        // Two files of one name are copies once the mover has compared them (docs/copies.md).
        self.world.run("tier POOL --once")?;
        self.settle()?;
        for path in names.iter().flat_map(|name| [self.world.at(name), self.world.beside(name)]) {
            std::fs::write(&path, b"with them, and more")
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        self.settle()
    }
}
