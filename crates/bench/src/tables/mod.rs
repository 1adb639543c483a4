//! The tables, and their sizes.

mod data;
mod goals;
mod meta;
mod programs;
mod survive;
mod walks;

use crate::error::{Error, ErrorContext};
use crate::floor::{COPIED_DIR, PASSTHROUGH_DIR};
use crate::measure::{Clients, Row, Table};
use crate::server::Server;
use crate::statistics::{Goal, Unit};
use crate::testbed::{Against, Testbed};
use crate::workload::tree::TreeShape;
use crate::workload::{Target, TargetKind, Workload};
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
pub enum TableId {
    /// Every workload, with its goal
    Goals,
    /// Metadata over 1, 8 and 32 branches, with goals
    Meta,
    /// Programs that walk a known tree
    Walks,
    /// Programs that make, change and remove files
    Programs,
    /// Metadata with 1, 2, 8 and 32 threads
    Concurrency,
    /// A large file written and read on each data path
    Dd,
    /// Sequential and random reads, with and without passthrough
    Reads,
    /// Blocks of 1 MiB against blocks of 512 bytes
    Blocks,
    /// 1 to 32 writers, with a file each or one file for all
    Jobs,
    /// What the option survive costs
    Survive,
    /// Walks a minute later, and after the kernel has forgotten all
    Cold,
}

/// How much a run does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub rounds: usize,
    /// Operations per round.
    pub ops: usize,
    /// The same for cheap operations.
    pub cheap_ops: usize,
    pub entries: usize,
    /// Entries of the directory that all branches have.
    pub many_entries: usize,
    /// The tree that programs walk.
    pub tree: TreeShape,
    /// The tree that programs copy and remove, the files that they compile, and the transactions of a database.
    pub program_tree: TreeShape,
    pub program_sources: usize,
    pub program_commits: usize,
    /// Bytes that `dd` writes and reads.
    pub dd: u64,
    pub stream: u64,
    pub reads: [u64; 3],
    /// The most random reads per round.
    pub max_random_reads: u64,
    /// How long jobs write.
    pub job_duration: Duration,
    /// Longer than the kernel caches a name.
    pub pause: Duration,
    /// The most rounds of slow rows.
    pub slow_rounds: usize,
    /// How long a file with data must have rested for its attributes to be kept in a catalogue.
    pub rested: Duration,
}

impl Scale {
    pub(crate) const FULL: Scale = Scale {
        rounds: 15,
        ops: 500,
        cheap_ops: 4000,
        entries: 10_000,
        many_entries: 200_000,
        tree: TreeShape { dirs: [12, 12, 14], files: 7 },
        program_tree: TreeShape { dirs: [8, 8, 12], files: 9 },
        program_sources: 40,
        program_commits: 1000,
        dd: 256 * MIB,
        stream: 256 * MIB,
        reads: [MIB, 500 * MIB, 1000 * MIB],
        max_random_reads: 2048,
        job_duration: Duration::from_millis(60),
        pause: Duration::from_millis(2200),
        slow_rounds: 5,
        rested: Duration::from_secs(65),
    };

    /// Shows that everything works. The figures mean little.
    pub(crate) const QUICK: Scale = Scale {
        rounds: 2,
        ops: 40,
        cheap_ops: 200,
        entries: 500,
        many_entries: 960,
        tree: TreeShape { dirs: [2, 3, 2], files: 4 },
        program_tree: TreeShape { dirs: [2, 2, 2], files: 3 },
        program_sources: 2,
        program_commits: 5,
        dd: 8 * MIB,
        stream: 4 * MIB,
        reads: [MIB, 2 * MIB, 4 * MIB],
        max_random_reads: 32,
        job_duration: Duration::from_millis(5),
        pause: Duration::from_millis(1100),
        slow_rounds: 1,
        rested: Duration::ZERO,
    };

    /// Returns the space that a table needs on the branches.
    pub(crate) fn bytes_needed(&self, which: TableId) -> u64 {
        let data = match which {
            TableId::Dd => 2 * self.dd,
            TableId::Reads => self.reads.iter().sum(),
            TableId::Goals => 3 * self.stream,
            TableId::Blocks => self.stream,
            // The branch, the pool and what it is compared with.
            TableId::Walks | TableId::Cold => 3 * self.tree.bytes(),
            // The tree, its archive, a copy, and what a round makes.
            TableId::Programs => 3 * 4 * self.program_tree.bytes(),
            // Sparse files, or names only.
            TableId::Meta | TableId::Concurrency | TableId::Jobs | TableId::Survive => 0,
        };
        // The small files of all sides.
        data + 64 * MIB
    }
}

/// How many branches the pools have, unless the user says so.
pub(crate) const BRANCH_COUNTS: [usize; 3] = [1, 8, 32];

/// What all tables need.
pub(crate) struct Bench<'s> {
    pub testbed: &'s Testbed,
    /// The options that the user gave with `-o`.
    pub options: String,
    pub scale: Scale,
    /// How many branches the pools of the table `meta` have, in ascending order.
    pub counts: Vec<usize>,
    /// Rows with a single client are measured with each of these.
    pub clients: Vec<Clients>,
}

impl<'s> Bench<'s> {
    pub(crate) fn table(&self, which: TableId) -> Result<Table<'s>, Error> {
        match which {
            TableId::Goals => goals::goals(self),
            TableId::Meta => meta::meta(self),
            TableId::Walks => walks::walks(self),
            TableId::Programs => programs::programs(self),
            TableId::Concurrency => meta::concurrency(self),
            TableId::Dd => data::dd(self),
            TableId::Reads => data::reads(self),
            TableId::Blocks => data::blocks(self),
            TableId::Jobs => data::jobs(self),
            TableId::Survive => survive::survive(self),
            TableId::Cold => walks::cold(self),
        }
    }

    /// Returns whether the pools use io_uring. Mistakes in the options are reported by the pools.
    fn io_uring(&self) -> bool {
        let mut config = Config::default();
        let _ = command_line::apply(&mut config, [Arg::Options(self.options.clone().into())]);
        config.kernel.io_uring != IoUring::Off
    }

    /// Returns the options of a pool. The user's come last, because later options win.
    fn pool_options(&self, own: &str) -> String {
        // Without moveonenospc=false, `passthrough.io=auto` does not pass writers through on branches as small as these.
        let parts = ["minfreespace=0", "moveonenospc=false", "fsname=canopy-bench", own, &self.options];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",")
    }
}

/// The targets of one table, and the servers behind them.
struct Targets<'b, 's> {
    bench: &'b Bench<'s>,
    servers: Vec<Server>,
}

const DATA: &str = "data";

impl<'b, 's> Targets<'b, 's> {
    fn new(bench: &'b Bench<'s>) -> Result<Self, Error> {
        let data = bench.testbed.branches()[0].join(DATA);
        fs::create_dir_all(&data).context("make", &data)?;
        Ok(Targets { bench, servers: Vec::new() })
    }

    /// Returns the first branch itself.
    fn branch(&self) -> Result<Target, Error> {
        self.branch_in(&self.bench.testbed.branches()[0])
    }

    /// Returns a branch without a pool, for metadata: notifying a pool of changes is a cost of the pool.
    fn isolated_branch(&self) -> Result<Target, Error> {
        self.branch_in(&self.bench.testbed.isolated_branches(1)?[0])
    }

    fn branch_in(&self, dir: &Path) -> Result<Target, Error> {
        let root = dir.join("branch");
        fs::create_dir_all(&root).context("make", &root)?;
        let data = self.bench.testbed.branches()[0].join(DATA);
        Ok(Target {
            name: "branch".into(),
            kind: TargetKind::Branch,
            branch_dirs: vec![root.clone()],
            root,
            branch_data: Some(data.clone()),
            data,
            process: None,
        })
    }

    /// Mounts a pool with `count` branches. Its files are on the last branch.
    fn pool(&mut self, name: &str, count: usize, options: &str) -> Result<Target, Error> {
        let branches = match count {
            1 => vec![self.bench.testbed.branches()[0].clone()],
            _ => self.bench.testbed.isolated_branches(count)?,
        };
        self.pool_over(name, branches, options)
    }

    /// Mounts a pool over a branch of its own, for pools that are compared with each other.
    fn isolated_pool(&mut self, name: &str, options: &str) -> Result<Target, Error> {
        self.pool_over(name, self.bench.testbed.isolated_branches(1)?, options)
    }

    fn pool_over(&mut self, name: &str, branches: Vec<PathBuf>, options: &str) -> Result<Target, Error> {
        let tag = format!("pool{}", self.servers.len());
        let (branch_dirs, branch_data) = self.dirs_on(&branches, &tag)?;
        let options = self.bench.pool_options(options);
        let server = Server::pool(self.bench.testbed, &tag, &branches, &options)?;
        let (root, data) = (server.mountpoint().join(&tag), server.mountpoint().join(DATA));
        let process = Some(server.process());
        self.servers.push(server);
        let (name, kind, branch_data) = (name.into(), TargetKind::Pool, Some(branch_data));
        Ok(Target { name, kind, root, branch_dirs, data, branch_data, process })
    }

    /// Starts the floor with the same transport as the pools.
    fn floor(&mut self) -> Result<Target, Error> {
        self.floor_over("floor", self.bench.io_uring())
    }

    fn floor_over(&mut self, name: &str, io_uring: bool) -> Result<Target, Error> {
        let tag = format!("floor{}", self.servers.len());
        let data = self.bench.testbed.branches()[0].join(DATA);
        let server = Server::floor(self.bench.testbed, &tag, io_uring, &data)?;
        // At the same depth as in the other targets.
        let root = server.mountpoint().join(&tag);
        fs::create_dir(&root).context("make", &root)?;
        let process = Some(server.process());
        self.servers.push(server);
        let (name, kind, branch_dirs, data) = (name.into(), TargetKind::Floor, Vec::new(), root.clone());
        Ok(Target { name, kind, root, branch_dirs, data, branch_data: None, process })
    }

    /// Returns the directory of a floor with passthrough to the files that the other targets use. Returns `None` if the
    /// kernel does not allow passthrough.
    fn floor_passthrough(&self, floor: &Target) -> Option<Target> {
        Some(self.floor_dir(floor, PASSTHROUGH_DIR)).filter(|target| target.data.is_dir())
    }

    /// Returns the directory of a floor that copies the data of these files.
    fn floor_copied(&self, floor: &Target) -> Target {
        self.floor_dir(floor, COPIED_DIR)
    }

    fn floor_dir(&self, floor: &Target, name: &str) -> Target {
        let branch_data = Some(self.bench.testbed.branches()[0].join(DATA));
        Target { data: floor.root.with_file_name(name), branch_data, ..floor.clone() }
    }

    /// Returns the filesystem of `--against` over branches of its own, if it was given.
    fn against(&mut self) -> Result<Option<Target>, Error> {
        let testbed = self.bench.testbed;
        self.against_over("against", || testbed.isolated_branches(1))
    }

    /// The same over the first branch, where the data files of the other targets are.
    fn against_data(&mut self) -> Result<Option<Target>, Error> {
        let testbed = self.bench.testbed;
        self.against_over("against", || Ok(vec![testbed.branches()[0].clone()]))
    }

    /// The same over each number of branches. Of a mounted filesystem that number is not known.
    fn against_wide(&mut self, counts: &[usize]) -> Result<Vec<Target>, Error> {
        if !matches!(self.bench.testbed.against(), Some(Against::Command(_))) {
            return Ok(self.against()?.into_iter().collect());
        }
        let testbed = self.bench.testbed;
        let mut all = Vec::new();
        for &count in counts {
            let target =
                self.against_over(&format!("against of {count}"), || testbed.isolated_branches(count))?;
            all.extend(target);
        }
        Ok(all)
    }

    fn against_over(
        &mut self,
        name: &str,
        branches: impl FnOnce() -> Result<Vec<PathBuf>, Error>,
    ) -> Result<Option<Target>, Error> {
        let (name, kind) = (name.into(), TargetKind::Against);
        let command = match self.bench.testbed.against() {
            None => return Ok(None),
            Some(Against::Mounted(dir)) => {
                let (root, data, branch_dirs) = (dir.clone(), dir.clone(), Vec::new());
                let (branch_data, process) = (None, None);
                return Ok(Some(Target { name, kind, root, branch_dirs, data, branch_data, process }));
            }
            Some(Against::Command(command)) => command,
        };
        let (branches, tag) = (branches()?, format!("against{}", self.servers.len()));
        let (branch_dirs, branch_data) = self.dirs_on(&branches, &tag)?;
        let server = Server::against(self.bench.testbed, &tag, &branches, command)?;
        let (root, data) = (server.mountpoint().join(&tag), server.mountpoint().join(DATA));
        let (branch_data, process) = (Some(branch_data), Some(server.process()));
        self.servers.push(server);
        Ok(Some(Target { name, kind, root, branch_dirs, data, branch_data, process }))
    }

    /// Makes the directories of a target: that of its names on the last branch, that of its data on the first.
    fn dirs_on(&self, branches: &[PathBuf], tag: &str) -> Result<(Vec<PathBuf>, PathBuf), Error> {
        let branch_dirs: Vec<PathBuf> = branches.iter().map(|branch| branch.join(tag)).collect();
        if let Some(last) = branch_dirs.last() {
            fs::create_dir_all(last).context("make", last)?;
        }
        let data = branches[0].join(DATA);
        fs::create_dir_all(&data).context("make", &data)?;
        Ok((branch_dirs, data))
    }

    fn table(self, which: TableId, title: String, rows: Vec<Row<'s>>) -> Table<'s> {
        let clients = self.bench.clients.clone();
        Table { id: which.id(), title, rows, clients, notes: Vec::new(), servers: self.servers }
    }
}

impl TableId {
    pub fn id(self) -> &'static str {
        match self {
            TableId::Goals => "goals",
            TableId::Meta => "meta",
            TableId::Walks => "walks",
            TableId::Programs => "programs",
            TableId::Concurrency => "concurrency",
            TableId::Dd => "dd",
            TableId::Reads => "reads",
            TableId::Blocks => "blocks",
            TableId::Jobs => "jobs",
            TableId::Survive => "survive",
            TableId::Cold => "cold",
        }
    }
}

fn row<'s>(
    work: impl Into<String>,
    unit: Unit,
    workload: impl Workload + 's,
    targets: &[&Target],
) -> Row<'s> {
    Row {
        work: work.into(),
        unit,
        workload: Box::new(workload),
        targets: targets.iter().map(|&target| target.clone()).collect(),
        goals: Vec::new(),
        pause: Duration::ZERO,
        max_rounds: usize::MAX,
        count_requests: false,
    }
}

impl Row<'_> {
    fn max_rounds(mut self, rounds: usize) -> Self {
        self.max_rounds = rounds;
        self
    }

    /// Sets the goal of the second side: the limit of its ratio to the side `of`.
    fn goal(mut self, of: usize, limit: f64) -> Self {
        self.goals.push(Goal { side: 1, of: vec![of], plus: 0.0, limit });
        self
    }
}

/// Formats a size, such as `4 KiB`.
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
    fn sizes_have_units() {
        for (count, text) in [(512, "512 bytes"), (4096, "4 KiB"), (128 << 10, "128 KiB"), (1 << 20, "1 MiB")]
        {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn ids_match_the_command_line() {
        for which in TableId::value_variants() {
            let word = which.to_possible_value().map(|value| value.get_name().to_owned());
            assert_eq!(word.as_deref(), Some(which.id()));
        }
    }
}
