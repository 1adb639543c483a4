//! The reference model without a mount: a random sequence of operations has the same results on a pool as on a plain
//! directory.
//!
//! `CANOPY_MODEL_SEQUENCES` sets the number of sequences of each test, `CANOPY_MODEL_SEED` the first seed.

mod common;

use canopy_base::inode_number::InodeCalc;
use canopy_branch::branch::Mode;
use canopy_policy::{Category, Policy, ThreadRandom};
use canopy_pool::config::{Config, Func, ReaddirMode};
use canopy_pool::ops;
use canopy_testkit::LoopFs;
use canopy_testkit::model::{Plain, Rules, World, check};
use common::{TestKernel, pool};
use std::sync::Arc;

const OPERATIONS: usize = 60;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect(name))
}

fn run(sequences: u64, branches: usize, config: &Config) {
    let sequences = number("CANOPY_MODEL_SEQUENCES", sequences);
    let first = number("CANOPY_MODEL_SEED", 1);
    let create = config.policies.get(Func::Create);
    let rules = Rules { path_preserving: create.is_path_preserving(), holes_unknown: false, every: 15 };
    let started = std::time::Instant::now();
    for seed in first..first + sequences {
        check(seed, OPERATIONS, rules, || world(seed, branches, config));
    }
    let rate = sequences as f64 / started.elapsed().as_secs_f64();
    println!("{create} over {branches}: {sequences} sequences of {OPERATIONS}, {rate:.0} a second");
}

fn world(seed: u64, branches: usize, config: &Config) -> World {
    ThreadRandom::seed(seed);
    let made = pool(&vec![Mode::Rw; branches], config.clone());
    if !seed.is_multiple_of(3) {
        ops::settings::connect(&made.pool, Arc::new(TestKernel::default()), false);
    }
    let plain = made.home.path().join("plain");
    std::fs::create_dir(&plain).expect("the plain directory");
    common::chmod(&plain, 0o755);
    World {
        plain: Plain::new(plain),
        subject: Box::new(made.client()),
        branches: made.branches.clone(),
        keep: Box::new(made),
    }
}

/// Runs sequences on two branches. The first gets all new files and has room for two pages, so larger files move.
fn run_on_full_branches(sequences: u64, config: &Config) {
    let first = number("CANOPY_MODEL_SEED", 1);
    let (small, large) = (LoopFs::tmpfs(32 << 10), LoopFs::tmpfs(256 << 20));
    std::fs::write(small.path().join("filler"), [0; 6 * 4096]).expect("a file");
    let rules = Rules { path_preserving: false, holes_unknown: true, every: 15 };
    for seed in first..first + number("CANOPY_MODEL_SEQUENCES", sequences) {
        check(seed, OPERATIONS, rules, || {
            ThreadRandom::seed(seed);
            let homes = [&small, &large].map(|disk| {
                let home = tempfile::tempdir_in(disk.path()).expect("a directory");
                common::chmod(home.path(), 0o755);
                home
            });
            let branches: Vec<_> = homes.iter().map(|home| home.path().to_owned()).collect();
            let plain = common::home();
            common::chmod(plain.path(), 0o755);
            let pool = common::over(&branches, &[Mode::Rw, Mode::Rw], config.clone());
            if !seed.is_multiple_of(3) {
                ops::settings::connect(&pool, Arc::new(TestKernel::default()), false);
            }
            World {
                plain: Plain::new(plain.path()),
                subject: Box::new(common::Client::new(pool)),
                branches,
                keep: Box::new((homes, plain)),
            }
        });
    }
}

fn with(create: Policy) -> Config {
    let mut config = Config::default();
    config.policies.set_category(Category::Create, create);
    config
}

#[test]
fn one_branch_looks_like_its_directory() {
    run(500, 1, &with(Policy::Ff));
}

#[test]
fn two_branches_with_ff_look_like_one_directory() {
    run(200, 2, &with(Policy::Ff));
}

#[test]
fn two_branches_with_mfs_look_like_one_directory() {
    run(200, 2, &with(Policy::Mfs));
}

#[test]
fn two_branches_with_pfrd_look_like_one_directory() {
    run(600, 2, &with(Policy::Pfrd));
}

#[test]
fn four_branches_with_rand_look_like_one_directory() {
    run(600, 4, &with(Policy::Rand));
}

/// Directories are made on every branch, files on the first that the policy chooses.
#[test]
fn four_branches_with_all_look_like_one_directory() {
    let mut config = with(Policy::All);
    for func in [Func::Mknod, Func::Symlink] {
        config.policies.set(func, Policy::Rand);
    }
    run(200, 4, &config);
}

/// The attributes of a directory come from its newest copy.
#[test]
fn four_branches_searched_by_newest_look_like_one_directory() {
    let mut config = with(Policy::Rand);
    config.policies.set_category(Category::Search, Policy::Newest);
    run(400, 4, &config);
}

#[test]
fn four_branches_with_getattr_by_newest_look_like_one_directory() {
    let mut config = with(Policy::Rand);
    config.policies.set(Func::Getattr, Policy::Newest);
    run(200, 4, &config);
}

/// Returns a configuration that makes directories on every branch, so that path-preserving policies have a choice.
fn preserving(create: Policy) -> Config {
    let mut config = with(create);
    config.policies.set(Func::Mkdir, Policy::Rand);
    config
}

#[test]
fn two_branches_with_epmfs_look_like_one_directory() {
    run(200, 2, &preserving(Policy::EpMfs));
}

#[test]
fn four_branches_with_epff_look_like_one_directory() {
    run(200, 4, &preserving(Policy::EpFf));
}

#[test]
fn four_branches_with_eprand_look_like_one_directory() {
    run(200, 4, &preserving(Policy::EpRand));
}

#[test]
fn four_branches_with_msppfrd_look_like_one_directory() {
    run(200, 4, &preserving(Policy::MspPfrd));
}

/// Without path preservation for rename and link, none of them fails with EXDEV.
#[test]
fn ignoring_path_preservation_no_rename_or_link_is_refused() {
    let config = Config { ignore_path_preservation: true, ..preserving(Policy::EpRand) };
    run(200, 4, &config);
}

#[test]
fn concurrent_readdir_looks_like_one_directory() {
    for readdir in [ReaddirMode::Cosr { threads: 2, depth: 0 }, ReaddirMode::Cor { threads: 2, depth: 0 }] {
        run(40, 4, &Config { readdir, ..with(Policy::Rand) });
    }
}

/// Covers the algorithms that do not hash the path, so that all names of a file have one number.
#[test]
fn with_32_bit_inode_numbers_a_pool_looks_like_one_directory() {
    for inode in [InodeCalc::DevinoHash32, InodeCalc::HybridHash32] {
        run(60, 2, &Config { inode, ..with(Policy::Rand) });
    }
}

/// Needs root.
#[test]
fn files_that_move_off_a_full_branch_look_unmoved() {
    run_on_full_branches(300, &with(Policy::Ff));
}
