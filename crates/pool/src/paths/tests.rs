use super::*;
use canopy_base::ids::NodeId;
use smallvec::smallvec;

/// Directories 1 (the root), 2 in it, 3 in 2, 4 in the root; the files 13 in 3, and 24 in 2 and 4.
struct Small;

fn parents(node: u64) -> &'static [u64] {
    match node {
        2 | 4 => &[1],
        3 => &[2],
        13 => &[3],
        24 => &[2, 4],
        _ => &[],
    }
}

impl Tree for Small {
    fn is_within(&self, node: NodeId, dir: NodeId) -> bool {
        node == dir || parents(node.0).iter().any(|&parent| self.is_within(NodeId(parent), dir))
    }
}

fn node(id: u64) -> Uses {
    Uses::node(NodeId(id))
}

fn name(dir: u64, name: &str) -> Uses {
    Uses::name(NodeId(dir), name.as_bytes())
}

#[cfg(not(loom))]
mod plain {
    use super::*;
    use std::sync::atomic::AtomicI64;

    /// Whether another thread is granted a claim at once while this is used.
    fn claims_beside(uses: Uses, scope: Scope) -> bool {
        let paths = Paths::default();
        let _used = paths.using(uses, &Small);
        std::thread::scope(|scope_| {
            scope_.spawn(|| paths.claim(&scope, Some(Duration::ZERO), &Small).is_some()).join().unwrap()
        })
    }

    #[test]
    fn a_claim_waits_for_what_it_changes_only() {
        let below = |dir| smallvec![Changing::Below(NodeId(dir))];
        let named = |dir, text: &str| smallvec![Changing::name(NodeId(dir), text.as_bytes())];
        let file = |id| smallvec![Changing::Node(NodeId(id))];
        let both = |one: Uses, other: Uses| one.and(other);
        let table: [(Uses, Scope, bool); 18] = [
            (node(3), below(2), false),
            (node(13), below(2), false),
            (node(24), below(2), false),
            (node(24), below(4), false),
            (node(13), below(4), true),
            (node(1), below(2), true),
            (name(3, "a"), below(2), false),
            (name(1, "two"), below(2), true),
            (name(1, "two"), named(1, "two"), false),
            (name(1, "else"), named(1, "two"), true),
            (node(1), named(1, "two"), false),
            (node(2), named(1, "two"), true),
            (node(13), file(13), false),
            (node(24), file(13), true),
            (both(name(1, "a"), name(3, "b")), below(2), false),
            (both(name(1, "a"), name(4, "b")), below(2), true),
            (Uses::EVERYTHING, file(13), false),
            (node(4), smallvec![Changing::Everything], false),
        ];
        for (uses, scope, granted) in table {
            assert_eq!(claims_beside(uses, scope.clone()), granted, "{uses:?} {scope:?}");
        }
    }

    #[test]
    fn claims_exclude_each_other_only_where_they_meet() {
        let rename = |dir: u64, parent: u64, text: &str| -> Scope {
            smallvec![Changing::Below(NodeId(dir)), Changing::name(NodeId(parent), text.as_bytes())]
        };
        let table = [
            (rename(3, 2, "three"), rename(4, 1, "four"), true),
            (rename(3, 2, "three"), rename(2, 1, "two"), false),
            (rename(2, 1, "two"), rename(4, 1, "four"), true),
            (rename(2, 1, "two"), rename(4, 1, "two"), false),
            (rename(3, 2, "three"), smallvec![Changing::Node(NodeId(13))], false),
            (rename(4, 1, "four"), smallvec![Changing::Node(NodeId(13))], true),
        ];
        for (one, other, granted) in table {
            for (first, second) in [(&one, &other), (&other, &one)] {
                let paths = Paths::default();
                let _claimed = paths.claim(first, None, &Small).unwrap();
                let second = std::thread::scope(|scope| {
                    let claim = || paths.claim(second, Some(Duration::ZERO), &Small).is_some();
                    scope.spawn(claim).join().unwrap()
                });
                assert_eq!(second, granted, "{first:?} {other:?}");
            }
        }
    }

    #[test]
    fn who_uses_what_is_claimed_waits_and_strangers_do_not() {
        let paths = Paths::default();
        let claimed = paths.claim(&smallvec![Changing::Below(NodeId(2))], None, &Small).unwrap();
        let entered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let _used = paths.using(node(13), &Small);
                entered.fetch_add(1, Ordering::Relaxed);
            });
            scope.spawn(|| drop(paths.using(node(4), &Small))).join().unwrap();
            assert_eq!(entered.load(Ordering::Relaxed), 0);
            drop(claimed);
            waiter.join().unwrap();
        });
        assert_eq!((entered.load(Ordering::Relaxed), paths.moves()), (1, 1));
    }

    /// A claim that waits for a use leaves the rest to others again and again.
    #[test]
    fn a_claim_that_waits_stops_nobody_for_long() {
        let paths = Paths::default();
        let slow = paths.using(node(13), &Small);
        std::thread::scope(|scope| {
            let claim = || drop(paths.claim(&smallvec![Changing::Below(NodeId(2))], None, &Small).unwrap());
            let claimant = scope.spawn(claim);
            while paths.claimed.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            // The same that it waits for.
            scope.spawn(|| drop(paths.using(node(3), &Small))).join().unwrap();
            assert!(!claimant.is_finished());
            drop(slow);
        });
    }

    #[test]
    fn many_threads_never_use_what_is_being_changed() {
        let paths = Paths::default();
        // For each node: how many use it; negative while it is changed.
        let state: Vec<AtomicI64> = (0..32).map(|_| AtomicI64::new(0)).collect();
        let all = [1, 2, 3, 4, 13, 24];
        std::thread::scope(|scope| {
            for thread in 0..6_usize {
                let (paths, state) = (&paths, &state);
                scope.spawn(move || {
                    for round in 0..3000_usize {
                        let id = all[(round * 7 + thread) % all.len()];
                        if thread < 4 {
                            let _used = paths.using(node(id), &Small);
                            assert!(state[id as usize].fetch_add(1, Ordering::SeqCst) >= 0);
                            state[id as usize].fetch_sub(1, Ordering::SeqCst);
                        } else if id != 1 {
                            let wanted: Scope = smallvec![Changing::Below(NodeId(id))];
                            let _claimed = paths.claim(&wanted, None, &Small).unwrap();
                            let within = all.iter().filter(|&&at| Small.is_within(NodeId(at), NodeId(id)));
                            for &at in within.clone() {
                                assert_eq!(state[at as usize].swap(-1000, Ordering::SeqCst), 0);
                            }
                            for &at in within {
                                assert_eq!(state[at as usize].swap(0, Ordering::SeqCst), -1000);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(paths.claimed.load(Ordering::Relaxed), 0);
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p canopy-pool --release --lib paths`
#[cfg(loom)]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    fn check(user: Uses, scope: Scope) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Arc::new((Paths::default(), AtomicBool::new(false)));
            let other = Arc::clone(&shared);
            let using = loom::thread::spawn(move || {
                let _used = other.0.using(user, &Small);
                assert!(!other.1.swap(true, Ordering::Relaxed), "used while it is changed");
                other.1.store(false, Ordering::Relaxed);
            });
            {
                let _claimed = shared.0.claim(&scope, None, &Small).unwrap();
                assert!(!shared.1.swap(true, Ordering::Relaxed), "changed while it is used");
                shared.1.store(false, Ordering::Relaxed);
            }
            using.join().unwrap();
        });
    }

    #[test]
    fn a_use_and_a_claim_exclude_each_other() {
        check(node(13), smallvec![Changing::Below(NodeId(2))]);
        check(name(1, "two"), smallvec![Changing::name(NodeId(1), b"two")]);
    }
}
