//! Which tables there are, and how large they are made.

mod data;
mod goals;
mod meta;

use crate::error::{Fault, Tried};
use crate::floor::{COPIED, THROUGH};
use crate::measure::{Row, Table};
use crate::server::Server;
use crate::statistics::{Goal, Unit};
use crate::testbed::Stage;
use crate::workload::{Kind, Place, Work};
use canopy_config::Config;
use canopy_config::source::command_line::{self, Arg};
use canopy_config::values::IoUring;
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A table of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Which {
    /// What every kind of work costs, beside the goal for it
    Goals,
    /// Metadata over 1, 8 and 32 branches
    Meta,
    /// Metadata by 1, 2, 4 and 8 at once
    Concurrency,
    /// A large file written and read, in each way data can travel
    Dd,
    /// Sequential and random reads, with and without passthrough
    Reads,
    /// Blocks of 1 MiB against blocks of 512 bytes
    Blocks,
    /// 1 to 32 writers, on a file each or all on one
    Jobs,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub rounds: usize,
    /// Operations of one round.
    pub ops: usize,
    /// Those that cost little.
    pub cheap: usize,
    pub entries: usize,
    /// Entries of the directory that lies on all branches.
    pub many: usize,
    /// Bytes.
    pub dd: u64,
    pub stream: u64,
    pub reads: [u64; 3],
    /// Reads of one round of the random kind.
    pub most_reads: u64,
    /// How long jobs write.
    pub lasting: Duration,
    /// Longer than a name is remembered.
    pub pause: Duration,
    /// Rounds of rows that take long, if there are more.
    pub few: usize,
}

impl Size {
    pub(crate) const FULL: Size = Size {
        rounds: 15,
        ops: 500,
        cheap: 4000,
        entries: 10_000,
        many: 200_000,
        dd: 256 * MIB,
        stream: 256 * MIB,
        reads: [MIB, 500 * MIB, 1000 * MIB],
        most_reads: 2048,
        lasting: Duration::from_millis(60),
        pause: Duration::from_millis(2200),
        few: 5,
    };

    /// Shows that everything works. The figures are of no use.
    pub(crate) const QUICK: Size = Size {
        rounds: 2,
        ops: 40,
        cheap: 200,
        entries: 500,
        many: 960,
        dd: 8 * MIB,
        stream: 4 * MIB,
        reads: [MIB, 2 * MIB, 4 * MIB],
        most_reads: 32,
        lasting: Duration::from_millis(5),
        pause: Duration::from_millis(1100),
        few: 1,
    };

    /// Bytes that a table leaves on the branches while it is measured.
    pub(crate) fn need(&self, which: Which) -> u64 {
        let data = match which {
            Which::Dd => 2 * self.dd,
            Which::Reads => self.reads.iter().sum(),
            Which::Goals => 3 * self.stream,
            Which::Blocks => self.stream,
            // Sparse, or names only.
            Which::Meta | Which::Concurrency | Which::Jobs => 0,
        };
        // Small files, on each side.
        data + 64 * MIB
    }
}

/// Branch counts of the pools, where the branches are our own.
pub(crate) const COUNTS: [usize; 3] = [1, 8, 32];

/// What tables are made with.
pub(crate) struct Bench<'s> {
    pub stage: &'s Stage,
    /// The user's, as given to `-o`.
    pub options: String,
    pub size: Size,
}

impl<'s> Bench<'s> {
    pub(crate) fn table(&self, which: Which) -> Result<Table<'s>, Fault> {
        match which {
            Which::Goals => goals::goals(self),
            Which::Meta => meta::meta(self),
            Which::Concurrency => meta::concurrency(self),
            Which::Dd => data::dd(self),
            Which::Reads => data::reads(self),
            Which::Blocks => data::blocks(self),
            Which::Jobs => data::jobs(self),
        }
    }

    /// Whether the pools are to be served over io_uring. What is wrong with the options they tell themselves.
    fn io_uring(&self) -> bool {
        let mut config = Config::default();
        let _ = command_line::apply(&mut config, [Arg::Options(self.options.clone().into())]);
        config.kernel.io_uring != IoUring::Off
    }

    /// Options of a pool, the user's last: later ones win.
    fn pool_options(&self, own: &str) -> String {
        // On branches as small as these, `auto` would have writers served by the daemon, lest they meet the end of one.
        let parts = ["minfreespace=0", "moveonenospc=false", "fsname=canopy-bench", own, &self.options];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",")
    }
}

/// The places of one table, and the servers behind them.
struct Places<'b, 's> {
    bench: &'b Bench<'s>,
    servers: Vec<Server>,
}

const DATA: &str = "data";

impl<'b, 's> Places<'b, 's> {
    fn new(bench: &'b Bench<'s>) -> Result<Self, Fault> {
        let data = bench.stage.branches()[0].join(DATA);
        fs::create_dir_all(&data).tried("make", &data)?;
        Ok(Places { bench, servers: Vec::new() })
    }

    /// The first branch itself.
    fn branch(&self) -> Result<Place, Fault> {
        self.branch_in(&self.bench.stage.branches()[0])
    }

    /// The same for metadata: where no pool is told of what happens. To tell is part of what a pool costs.
    fn unwatched(&self) -> Result<Place, Fault> {
        self.branch_in(&self.bench.stage.apart(1)?[0])
    }

    fn branch_in(&self, dir: &Path) -> Result<Place, Fault> {
        let root = dir.join("branch");
        fs::create_dir_all(&root).tried("make", &root)?;
        let data = self.bench.stage.branches()[0].join(DATA);
        Ok(Place {
            name: "branch".into(),
            kind: Kind::Branch,
            beneath: vec![root.clone()],
            root,
            data_beneath: Some(data.clone()),
            data,
        })
    }

    /// A pool over that many branches. What it works on lies on the last of them.
    fn pool(&mut self, name: &str, count: usize, options: &str) -> Result<Place, Fault> {
        let branches = match count {
            1 => vec![self.bench.stage.branches()[0].clone()],
            _ => self.bench.stage.apart(count)?,
        };
        let tag = format!("pool{}", self.servers.len());
        let beneath: Vec<PathBuf> = branches.iter().map(|branch| branch.join(&tag)).collect();
        if let Some(last) = beneath.last() {
            fs::create_dir_all(last).tried("make", last)?;
        }
        let options = self.bench.pool_options(options);
        let server = Server::pool(self.bench.stage, &tag, &branches, &options)?;
        let (root, data) = (server.point().join(&tag), server.point().join(DATA));
        fs::create_dir_all(branches[0].join(DATA)).tried("make", &branches[0])?;
        self.servers.push(server);
        let data_beneath = Some(branches[0].join(DATA));
        Ok(Place { name: name.into(), kind: Kind::Pool, root, beneath, data, data_beneath })
    }

    /// Over whichever transport the pools have.
    fn floor(&mut self) -> Result<Place, Fault> {
        self.floor_over("floor", self.bench.io_uring())
    }

    fn floor_over(&mut self, name: &str, io_uring: bool) -> Result<Place, Fault> {
        let tag = format!("floor{}", self.servers.len());
        let data = self.bench.stage.branches()[0].join(DATA);
        let server = Server::floor(self.bench.stage, &tag, io_uring, &data)?;
        // As deep as the others.
        let root = server.point().join(&tag);
        fs::create_dir(&root).tried("make", &root)?;
        self.servers.push(server);
        let (beneath, data) = (Vec::new(), root.clone());
        Ok(Place { name: name.into(), kind: Kind::Floor, root, beneath, data, data_beneath: None })
    }

    /// The same floor, where data is passed through it: to the files that the others work on as well. None where the
    /// kernel does not allow that.
    fn passing(&self, floor: &Place) -> Option<Place> {
        Some(self.existing(floor, THROUGH)).filter(|place| place.data.is_dir())
    }

    /// The same, where the server copies their data.
    fn copying(&self, floor: &Place) -> Place {
        self.existing(floor, COPIED)
    }

    fn existing(&self, floor: &Place, name: &str) -> Place {
        let data_beneath = Some(self.bench.stage.branches()[0].join(DATA));
        Place { data: floor.root.with_file_name(name), data_beneath, ..floor.clone() }
    }

    /// What the user put beside; none when nothing was.
    fn against(&self) -> Option<Place> {
        let root = self.bench.stage.against()?.to_owned();
        let (beneath, data) = (Vec::new(), root.clone());
        let name = "against".into();
        Some(Place { name, kind: Kind::Against, root, beneath, data, data_beneath: None })
    }

    fn table(self, which: Which, title: String, rows: Vec<Row<'s>>) -> Table<'s> {
        Table { id: which.id(), title, rows, servers: self.servers }
    }
}

impl Which {
    pub fn id(self) -> &'static str {
        match self {
            Which::Goals => "goals",
            Which::Meta => "meta",
            Which::Concurrency => "concurrency",
            Which::Dd => "dd",
            Which::Reads => "reads",
            Which::Blocks => "blocks",
            Which::Jobs => "jobs",
        }
    }
}

fn row<'s>(work: impl Into<String>, unit: Unit, does: impl Work + 's, places: &[&Place]) -> Row<'s> {
    Row {
        work: work.into(),
        unit,
        does: Box::new(does),
        places: places.iter().map(|&place| place.clone()).collect(),
        goal: None,
        pause: Duration::ZERO,
        most: usize::MAX,
    }
}

impl Row<'_> {
    fn most(mut self, rounds: usize) -> Self {
        self.most = rounds;
        self
    }

    /// The second side is judged by a ratio to another, the first (0) in most rows.
    fn goal(mut self, of: usize, limit: f64) -> Self {
        self.goal = Some(Goal { side: 1, of, limit });
        self
    }
}

/// Bytes as people say them.
fn bytes(count: u64) -> String {
    match count {
        _ if count >= MIB && count.is_multiple_of(MIB) => format!("{} MiB", count / MIB),
        _ if count >= 1024 && count.is_multiple_of(1024) => format!("{} KiB", count / 1024),
        _ => format!("{count} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_as_people_say_them() {
        for (count, text) in [(512, "512 bytes"), (4096, "4 KiB"), (128 << 10, "128 KiB"), (1 << 20, "1 MiB")]
        {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn ids_are_the_words_of_the_command_line() {
        for which in Which::value_variants() {
            let word = which.to_possible_value().map(|value| value.get_name().to_owned());
            assert_eq!(word.as_deref(), Some(which.id()));
        }
    }
}
