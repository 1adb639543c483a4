//! `Pool::explain` predicts what the operations then do.

mod common;

use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_branch::branch::Mode;
use canopy_policy::{Category, Exclusion, Policy};
use canopy_pool::config::{Config, Func};
use canopy_pool::ops;
use std::fs;

fn config(category: Category, policy: Policy) -> Config {
    let mut config = Config::default();
    config.policies.set_category(category, policy);
    config
}

#[test]
fn a_new_name_is_created_where_explain_predicts() {
    for policy in Policy::ALL {
        let made = common::pool(&[Mode::Rw, Mode::Rw, Mode::Nc, Mode::Rw], config(Category::Create, policy));
        fs::create_dir_all(made.on(1, "x/y")).unwrap();
        fs::create_dir_all(made.on(2, "x/y")).unwrap();
        let x = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"x").unwrap().node;
        let y = ops::names::lookup::lookup(&made.pool, x, b"y").unwrap().node;
        let explained = ops::explain::explain(&made.pool, Func::Mkdir, y, Some(b"f")).unwrap();
        let done = ops::names::create::mkdir(&made.pool, &common::ROOT, y, b"f", 0o755);
        assert_eq!(explained.policy, policy);
        let on: Vec<usize> = (0..4).filter(|&branch| made.on(branch, "x/y/f").exists()).collect();
        match (&explained.outcome, &explained.chances) {
            (Err(error), _) => assert_eq!(done.unwrap_err(), *error, "{policy}"),
            (Ok(choice), None) => assert_eq!(on, choice.to_vec(), "{policy}"),
            (Ok(_), Some(chances)) => assert!(on.iter().all(|&index| chances[index] > 0.0), "{policy}"),
        }
        if policy != Policy::Erofs {
            assert_eq!(explained.exclusions[2], Some(Exclusion::Mode), "{policy}");
        }
    }
}

#[test]
fn explain_names_the_path_and_the_reason_for_a_failure() {
    let made = common::pool(&[Mode::Rw, Mode::Ro], config(Category::Create, Policy::MspMfs));
    fs::create_dir_all(made.on(1, "r/s")).unwrap();
    fs::write(made.on(1, "r/s/f"), "").unwrap();
    let r = ops::names::lookup::lookup(&made.pool, NodeId::ROOT, b"r").unwrap().node;
    let s = ops::names::lookup::lookup(&made.pool, r, b"s").unwrap().node;
    let explain = |func, node, name| ops::explain::explain(&made.pool, func, node, name).unwrap();
    let explained = explain(Func::Create, s, Some(b"new"));
    assert_eq!(
        (explained.looked_at.as_slice(), explained.outcome.unwrap().to_vec()),
        (&b""[..], vec![0]),
        "the policy climbs to the root"
    );
    assert!(explained.preserves_paths);
    assert_eq!(explain(Func::Create, s, Some(b"f")).outcome, Err(Error::Exists));
    assert!(explain(Func::Create, s, None).outcome.is_ok(), "for any new name");
    let explained = explain(Func::Unlink, s, Some(b"f"));
    assert_eq!(
        (explained.looked_at.as_slice(), &explained.exclusions[..]),
        (&b"r/s/f"[..], &[Some(Exclusion::Absent), Some(Exclusion::Mode)][..])
    );
    assert_eq!(explained.outcome.unwrap_err().errno(), rustix::io::Errno::ROFS);
    assert_eq!(explain(Func::Getattr, s, Some(b"f")).outcome.unwrap().to_vec(), [1]);
    assert_eq!(explain(Func::Getattr, NodeId::ROOT, None).outcome.unwrap().to_vec(), [0]);
    assert_eq!(explain(Func::Getattr, s, Some(b"none")).outcome, Err(Error::Absent));
    let f = ops::names::lookup::lookup(&made.pool, s, b"f").unwrap().node;
    assert_eq!(explain(Func::Open, f, None).looked_at, b"r/s/f");
    assert_eq!(
        ops::explain::explain(&made.pool, Func::Open, f, Some(b"x")).unwrap_err(),
        Error::NotDirectory
    );
    assert_eq!(ops::explain::explain(&made.pool, Func::Create, f, None).unwrap_err(), Error::NotDirectory);
    for name in [&b""[..], b".", b"..", b"s/f", b"../../etc"] {
        assert_eq!(
            ops::explain::explain(&made.pool, Func::Getattr, r, Some(name)).unwrap_err(),
            Error::Invalid
        );
    }
}
