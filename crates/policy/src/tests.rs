use super::*;

const GIB: u64 = 1 << 30;

/// Always returns the same number, or the highest in range.
struct Loaded(u64);

impl Random for Loaded {
    fn below(&mut self, n: u64) -> u64 {
        assert_ne!(n, 0);
        self.0.min(n - 1)
    }
}

const HIGHEST: Loaded = Loaded(u64::MAX);

/// Counts: returns every number in turn.
struct Counting(u64);

impl Random for Counting {
    fn below(&mut self, n: u64) -> u64 {
        self.0 += 1;
        (self.0 - 1) % n
    }
}

fn view(mode: Mode, present: bool, avail: u64, used: u64, mtime: i64) -> BranchView {
    let space = Some(Space { avail, used, readonly: false, inodes: None });
    BranchView { mode, unwell: false, min_free: 4, present, mtime, space, outside: false, asleep: false }
}

/// An RW branch that holds the path.
fn plain(avail: u64, used: u64) -> BranchView {
    view(Mode::Rw, true, avail, used, 0)
}

fn run(
    category: Category,
    policy: Policy,
    views: &[BranchView],
    random: &mut impl Random,
) -> Result<Vec<usize>, Refusal> {
    let choice = match category {
        Category::Action => action(policy, views, random),
        Category::Create => create(policy, views, random),
        Category::Search => search(policy, views, random),
    };
    choice.map(|choice| choice.to_vec())
}

fn pool_of_seven() -> [BranchView; 7] {
    [
        view(Mode::Rw, false, 60, 5, 0),
        view(Mode::Rw, true, 10, 90, 5),
        view(Mode::Nc, true, 80, 1, 9),
        view(Mode::Ro, true, 5, 200, 10),
        view(Mode::Rw, true, 30, 20, 5),
        view(Mode::Rw, true, 30, 20, 5),
        view(Mode::Rw, false, 8, 300, 99),
    ]
}

#[test]
fn every_policy_chooses_in_every_category() {
    let views = pool_of_seven();
    for (policy, creates, acts_on, finds) in [
        (Policy::All, &[0, 1, 4, 5, 6][..], &[1, 2, 4, 5][..], &[1, 2, 3, 4, 5][..]),
        (Policy::EpAll, &[1, 4, 5], &[1, 2, 4, 5], &[1, 2, 3, 4, 5]),
        (Policy::EpFf, &[1], &[1], &[1]),
        (Policy::EpLfs, &[1], &[1], &[3]),
        (Policy::EpLus, &[4], &[2], &[2]),
        (Policy::EpMfs, &[5], &[2], &[2]),
        (Policy::EpPfrd, &[5], &[5], &[5]),
        (Policy::EpRand, &[5], &[5], &[5]),
        (Policy::Erofs, &[], &[], &[]),
        (Policy::Ff, &[0], &[1], &[1]),
        (Policy::Lfs, &[6], &[1], &[3]),
        (Policy::Lup, &[0], &[2], &[2]),
        (Policy::Lus, &[0], &[2], &[2]),
        (Policy::Mfs, &[0], &[2], &[2]),
        (Policy::MspLfs, &[1], &[1], &[3]),
        (Policy::MspLus, &[4], &[2], &[2]),
        (Policy::MspMfs, &[5], &[2], &[2]),
        (Policy::MspPfrd, &[5], &[5], &[5]),
        (Policy::Newest, &[5], &[2], &[3]),
        (Policy::Pfrd, &[6], &[5], &[5]),
        (Policy::Rand, &[6], &[5], &[5]),
    ] {
        for (category, expected) in
            [(Category::Create, creates), (Category::Action, acts_on), (Category::Search, finds)]
        {
            let expected = if expected.is_empty() { Err(Refusal::ReadOnly) } else { Ok(expected.to_vec()) };
            assert_eq!(
                run(category, policy, &views, &mut { HIGHEST }),
                expected,
                "{policy} {}",
                category.name()
            );
        }
    }
}

#[test]
fn without_branches_every_policy_refuses() {
    for policy in Policy::ALL {
        for category in Category::ALL {
            let expected = if policy == Policy::Erofs { Refusal::ReadOnly } else { Refusal::NotFound };
            assert_eq!(
                run(category, policy, &[], &mut { HIGHEST }),
                Err(expected),
                "{policy} {}",
                category.name()
            );
        }
    }
}

#[test]
fn a_choice_uses_only_what_needs_declares() {
    for policy in Policy::ALL {
        for category in Category::ALL {
            let views = pool_of_seven();
            let expected = run(category, policy, &views, &mut { HIGHEST });
            let needs = needs(policy, category);
            let mut scrambled = views;
            for view in &mut scrambled {
                if !needs.presence {
                    (view.present, view.mtime) = (!view.present, -view.mtime);
                }
                if !needs.space {
                    view.space = None;
                }
            }
            let seen = run(category, policy, &scrambled, &mut { HIGHEST });
            assert_eq!(seen, expected, "{policy} {}", category.name());
            if first_only(policy, category) {
                let first = views.iter().position(|view| view.present).expect("one is present");
                let mut cut = views;
                cut[first + 1..].iter_mut().for_each(|view| view.present = false);
                assert_eq!(run(category, policy, &cut, &mut { HIGHEST }), expected, "{policy}");
            }
        }
    }
}

#[test]
fn policies_declare_what_they_need() {
    let both = Needs { presence: true, space: true };
    let presence = Needs { presence: true, space: false };
    let space = Needs { presence: false, space: true };
    let nothing = Needs { presence: false, space: false };
    for (policy, category, expected) in [
        (Policy::Pfrd, Category::Create, space),
        (Policy::Ff, Category::Create, space),
        (Policy::Lup, Category::Create, space),
        (Policy::EpFf, Category::Create, both),
        (Policy::MspMfs, Category::Create, both),
        (Policy::Newest, Category::Create, both),
        (Policy::Erofs, Category::Create, nothing),
        (Policy::EpAll, Category::Action, both),
        (Policy::All, Category::Action, both),
        (Policy::Erofs, Category::Action, nothing),
        (Policy::Ff, Category::Search, presence),
        (Policy::All, Category::Search, presence),
        (Policy::Newest, Category::Search, presence),
        (Policy::Rand, Category::Search, presence),
        (Policy::Mfs, Category::Search, both),
        (Policy::Pfrd, Category::Search, both),
        (Policy::Lup, Category::Search, both),
        (Policy::Erofs, Category::Search, nothing),
    ] {
        assert_eq!(needs(policy, category), expected, "{policy} {}", category.name());
    }
    let firsts: Vec<_> = Policy::ALL
        .into_iter()
        .flat_map(|policy| Category::ALL.map(|category| (policy, category)))
        .filter(|&(policy, category)| first_only(policy, category))
        .collect();
    assert_eq!(firsts, [(Policy::EpFf, Category::Search), (Policy::Ff, Category::Search)]);
}

#[test]
fn ties_go_to_the_last_branch_or_for_least_used_to_the_first() {
    let equal = [plain(50, 50), plain(50, 50), plain(50, 50)];
    for (policy, expected) in [
        (Policy::Mfs, 2),
        (Policy::EpMfs, 2),
        (Policy::MspMfs, 2),
        (Policy::Lfs, 2),
        (Policy::EpLfs, 2),
        (Policy::MspLfs, 2),
        (Policy::Newest, 2),
        (Policy::Lus, 0),
        (Policy::EpLus, 0),
        (Policy::MspLus, 0),
        (Policy::Lup, 0),
    ] {
        for category in Category::ALL {
            assert_eq!(run(category, policy, &equal, &mut { HIGHEST }), Ok(vec![expected]), "{policy}");
        }
    }
}

/// An example: A(10G free, 90G used) B(50G, 50G) C(50G, 10G).
fn worked() -> [BranchView; 3] {
    [(10, 90), (50, 50), (50, 10)].map(|(avail, used)| BranchView {
        mode: Mode::Rw,
        unwell: false,
        min_free: 4 * GIB,
        present: false,
        mtime: 0,
        outside: false,
        asleep: false,
        space: Some(Space { avail: avail * GIB, used: used * GIB, readonly: false, inodes: None }),
    })
}

#[test]
fn create_policies_choose_as_documented() {
    const A: usize = 0;
    const B: usize = 1;
    const C: usize = 2;
    let created = |policy, views: &[BranchView]| run(Category::Create, policy, views, &mut { HIGHEST });
    for (policy, expected) in [
        (Policy::Ff, &[A][..]),
        (Policy::Mfs, &[C]),
        (Policy::Lfs, &[A]),
        (Policy::Lus, &[C]),
        (Policy::Lup, &[C]),
        (Policy::All, &[A, B, C]),
    ] {
        assert_eq!(created(policy, &worked()), Ok(expected.to_vec()), "{policy}");
    }

    let mut views = worked();
    views[C].mode = Mode::Nc;
    assert_eq!(created(Policy::Mfs, &views), Ok(vec![B]));
    assert_eq!(created(Policy::Lus, &views), Ok(vec![B]));

    let full = |view: &mut BranchView| {
        view.space = Some(Space { avail: 4 * GIB - 1, used: GIB, readonly: false, inodes: None })
    };
    let mut views = worked();
    views[A].mode = Mode::Ro;
    full(&mut views[B]);
    full(&mut views[C]);
    assert_eq!(created(Policy::Mfs, &views), Err(Refusal::ReadOnly), "A RO, the others full");

    let mut views = worked();
    full(&mut views[A]);
    views[B].space = None;
    full(&mut views[C]);
    assert_eq!(created(Policy::Mfs, &views), Err(Refusal::NoSpace), "B missing, the others full");

    let mut views = worked();
    views.iter_mut().for_each(|view| view.space = None);
    assert_eq!(created(Policy::Mfs, &views), Err(Refusal::NotFound), "all missing");

    let mut views = worked();
    views[A].mode = Mode::Nc;
    full(&mut views[B]);
    assert_eq!(created(Policy::Mfs, &views[..2]), Err(Refusal::ReadOnly), "one NC, one full");
}

#[test]
fn epmfs_chooses_as_documented() {
    let views = [plain(10, 90), view(Mode::Rw, false, 50, 50, 0)];
    assert_eq!(run(Category::Create, Policy::EpMfs, &views, &mut { HIGHEST }), Ok(vec![0]));
}

#[test]
fn action_policies_choose_as_documented() {
    let rw = plain(10, 10);
    let ro = view(Mode::Ro, true, 10, 10, 0);
    let absent = |view: BranchView| BranchView { present: false, ..view };
    for (views, expected) in [
        ([rw, ro], Ok(vec![0])),
        ([absent(rw), ro], Err(Refusal::ReadOnly)),
        ([absent(rw), absent(ro)], Err(Refusal::ReadOnly)),
        ([absent(rw), absent(rw)], Err(Refusal::NotFound)),
    ] {
        assert_eq!(run(Category::Action, Policy::EpAll, &views, &mut { HIGHEST }), expected);
    }
}

#[test]
fn each_category_admits_the_branches_of_its_filter() {
    let good = plain(10, 10);
    let readonly =
        BranchView { space: Some(Space { avail: 10, used: 10, readonly: true, inodes: None }), ..good };
    let full = BranchView { min_free: 11, ..good };
    let exact = BranchView { min_free: 10, ..good };
    let dead = BranchView { space: None, ..good };
    let absent = BranchView { present: false, ..good };
    let absent_and_full = BranchView { present: false, ..full };
    let readonly_and_full = BranchView { min_free: 11, ..readonly };
    let (ro, nc) = (BranchView { mode: Mode::Ro, ..good }, BranchView { mode: Mode::Nc, ..good });
    let unwell = BranchView { unwell: true, ..good };
    use Refusal::{NoSpace, NotFound, ReadOnly};
    for (what, view, creates, creates_existing, acts, finds, finds_by_space) in [
        ("good", good, Ok(()), Ok(()), Ok(()), Ok(()), Ok(())),
        ("readonly", readonly, Err(ReadOnly), Err(ReadOnly), Err(ReadOnly), Ok(()), Ok(())),
        ("full", full, Err(NoSpace), Err(NoSpace), Ok(()), Ok(()), Ok(())),
        ("exactly minfreespace", exact, Ok(()), Ok(()), Ok(()), Ok(()), Ok(())),
        ("dead", dead, Err(NotFound), Err(NotFound), Err(NotFound), Ok(()), Err(NotFound)),
        ("absent", absent, Ok(()), Err(NotFound), Err(NotFound), Err(NotFound), Err(NotFound)),
        (
            "absent, full",
            absent_and_full,
            Err(NoSpace),
            Err(NotFound),
            Err(NotFound),
            Err(NotFound),
            Err(NotFound),
        ),
        ("readonly, full", readonly_and_full, Err(ReadOnly), Err(ReadOnly), Err(ReadOnly), Ok(()), Ok(())),
        ("unwell", unwell, Err(ReadOnly), Err(ReadOnly), Err(ReadOnly), Ok(()), Ok(())),
        ("RO", ro, Err(ReadOnly), Err(ReadOnly), Err(ReadOnly), Ok(()), Ok(())),
        ("NC", nc, Err(ReadOnly), Err(ReadOnly), Ok(()), Ok(()), Ok(())),
    ] {
        for (category, policy, expected) in [
            (Category::Create, Policy::Mfs, creates),
            (Category::Create, Policy::Lup, creates),
            (Category::Create, Policy::EpMfs, creates_existing),
            (Category::Create, Policy::MspLus, creates_existing),
            (Category::Create, Policy::Newest, creates_existing),
            (Category::Action, Policy::All, acts),
            (Category::Search, Policy::Ff, finds),
            (Category::Search, Policy::Newest, finds),
            (Category::Search, Policy::Mfs, finds_by_space),
            (Category::Search, Policy::EpPfrd, finds_by_space),
        ] {
            let seen = run(category, policy, &[view], &mut { HIGHEST }).map(|choice| assert_eq!(choice, [0]));
            assert_eq!(seen, expected, "{what}: {policy} {}", category.name());
        }
    }
}

#[test]
fn refusals_rank_and_do_not_depend_on_order() {
    assert!(Refusal::NotFound < Refusal::NoSpace && Refusal::NoSpace < Refusal::ReadOnly);
    let missing = BranchView { space: None, ..plain(10, 10) };
    let full = BranchView { min_free: 11, ..plain(10, 10) };
    let ro = BranchView { mode: Mode::Ro, ..plain(10, 10) };
    for (views, expected) in [
        (&[missing, full][..], Refusal::NoSpace),
        (&[full, missing], Refusal::NoSpace),
        (&[ro, full], Refusal::ReadOnly),
        (&[full, ro, missing], Refusal::ReadOnly),
        (&[missing, ro], Refusal::ReadOnly),
        (&[missing], Refusal::NotFound),
    ] {
        assert_eq!(run(Category::Create, Policy::Ff, views, &mut { HIGHEST }), Err(expected));
    }
}

#[test]
fn newest_takes_the_last_of_equal_times_even_before_1970() {
    let at = |mtime| view(Mode::Rw, true, 10, 10, mtime);
    for (mtimes, expected) in
        [(&[5, 9, 9, 1][..], 2), (&[-5, -9], 0), (&[i64::MIN, i64::MIN], 1), (&[0, -1], 0)]
    {
        let views: Vec<_> = mtimes.iter().map(|&mtime| at(mtime)).collect();
        for category in Category::ALL {
            assert_eq!(
                run(category, Policy::Newest, &views, &mut { HIGHEST }),
                Ok(vec![expected]),
                "{mtimes:?}"
            );
        }
    }
    let mut views = [at(9), at(5)];
    views[0].min_free = 11;
    assert_eq!(
        run(Category::Create, Policy::Newest, &views, &mut { HIGHEST }),
        Ok(vec![1]),
        "the newest is full"
    );
}

#[test]
fn lup_compares_fractions_exactly() {
    let lup = |spaces: &[(u64, u64)]| {
        let views: Vec<_> =
            spaces.iter().map(|&(avail, used)| BranchView { min_free: 0, ..plain(avail, used) }).collect();
        run(Category::Create, Policy::Lup, &views, &mut { HIGHEST }).expect("one is chosen")[0]
    };
    for (spaces, expected) in [
        (&[(10, 90), (50, 50), (50, 10)][..], 2),
        (&[(1, 1), (100, 100)], 0),
        (&[(1, 1), (0, 0)], 1),
        (&[(0, 0), (1, 0)], 0),
        (&[(1, 0), (0, 0)], 0),
        (&[(0, 5), (0, 7)], 0),
        (&[(0, 5), (1, u64::MAX)], 1),
        (&[(u64::MAX, u64::MAX), (u64::MAX, u64::MAX - 1)], 1),
        (&[(u64::MAX - 1, u64::MAX), (u64::MAX, u64::MAX)], 1),
    ] {
        assert_eq!(lup(spaces), expected, "{spaces:?}");
    }
}

#[test]
fn weighted_choices_are_in_exact_proportion() {
    let views = [plain(10, 0), plain(0, 0), plain(50, 0), plain(50, 0)]
        .map(|view| BranchView { min_free: 0, ..view });
    for policy in [Policy::Pfrd, Policy::EpPfrd, Policy::MspPfrd] {
        for category in Category::ALL {
            let mut random = Counting(0);
            let mut counts = [0; 4];
            for _ in 0..110 {
                counts[run(category, policy, &views, &mut random).expect("chosen")[0]] += 1;
            }
            assert_eq!(counts, [10, 0, 50, 50], "{policy} {}", category.name());
        }
    }
}

#[test]
fn weighted_choices_of_the_thread_generator_are_near_proportion() {
    let mut counts = [0u32; 3];
    for _ in 0..110_000 {
        counts[run(Category::Create, Policy::Pfrd, &worked(), &mut ThreadRandom).expect("chosen")[0]] += 1;
    }
    // Ten standard deviations of each binomial are below 1700.
    for (count, expected) in counts.iter().zip([10_000u32, 50_000, 50_000]) {
        assert!(count.abs_diff(expected) < 1_700, "{counts:?}");
    }
}

/// mergerfs refuses with ENOENT: a name that exists is not found, and a file that is created neither.
#[test]
fn branches_without_space_are_equally_likely_in_a_weighted_choice() {
    let empty = BranchView { min_free: 0, ..plain(0, 100) };
    let ro = BranchView { mode: Mode::Ro, ..empty };
    for category in Category::ALL {
        let chosen = [0, 1].map(|point| run(category, Policy::Pfrd, &[empty, empty], &mut Loaded(point)));
        assert_eq!(chosen, [Ok(vec![0]), Ok(vec![1])]);
    }
    assert_eq!(run(Category::Create, Policy::Pfrd, &[ro, empty], &mut { HIGHEST }), Ok(vec![1]));
    assert_eq!(run(Category::Create, Policy::Pfrd, &[ro, ro], &mut { HIGHEST }), Err(Refusal::ReadOnly));
}

#[test]
fn a_weighted_sum_may_exceed_64_bits() {
    let huge = plain(u64::MAX, 0);
    for (point, expected) in [(0, 0), (1 << 62, 1), (u64::MAX, 2)] {
        let seen = run(Category::Create, Policy::Pfrd, &[huge, huge, huge], &mut Loaded(point));
        assert_eq!(seen, Ok(vec![expected]), "{point}");
    }
}

#[test]
fn a_uniform_choice_covers_every_admitted_branch() {
    let views = pool_of_seven();
    for (category, policy, admitted) in [
        (Category::Create, Policy::Rand, &[0, 1, 4, 5, 6][..]),
        (Category::Create, Policy::EpRand, &[1, 4, 5]),
        (Category::Action, Policy::Rand, &[1, 2, 4, 5]),
        (Category::Search, Policy::EpRand, &[1, 2, 3, 4, 5]),
    ] {
        let mut random = Counting(0);
        let seen: Vec<usize> =
            admitted.iter().map(|_| run(category, policy, &views, &mut random).expect("chosen")[0]).collect();
        assert_eq!(seen, admitted, "{policy} {}", category.name());
    }
}

/// Creates over a table of levels, and returns the choice and the paths asked for.
fn climb(
    policy: Policy,
    path: &[u8],
    levels: &[(&[u8], &[BranchView])],
) -> (Result<Vec<usize>, Refusal>, Vec<Vec<u8>>) {
    let mut asked = Vec::new();
    let level = |path: &[u8]| {
        asked.push(path.to_vec());
        assert!(asked.len() < 100, "the climb does not end");
        let (_, views) = levels.iter().find(|(level, _)| *level == path).expect("a level of the test");
        Ok::<_, std::convert::Infallible>(views.to_vec())
    };
    let Ok(choice) = create_climbing(policy, path, level, &mut { HIGHEST });
    (choice.map(|choice| choice.to_vec()), asked)
}

#[test]
fn mspmfs_climbs_as_documented() {
    // x/y on the RO branch A only, x on B, the root everywhere; C has the most space.
    let a = |present| view(Mode::Ro, present, 90, 0, 0);
    let b = |present| view(Mode::Rw, present, 50, 0, 0);
    let c = |present| view(Mode::Rw, present, 70, 0, 0);
    let levels: [(&[u8], &[BranchView]); 3] = [
        (b"x/y", &[a(true), b(false), c(false)]),
        (b"x", &[a(true), b(true), c(false)]),
        (b"", &[a(true), b(true), c(true)]),
    ];
    let (choice, asked) = climb(Policy::MspMfs, b"x/y", &levels);
    assert_eq!(choice, Ok(vec![1]));
    assert_eq!(asked, [&b"x/y"[..], b"x"]);
    let (choice, _) = climb(Policy::MspMfs, b"", &levels);
    assert_eq!(choice, Ok(vec![2]), "in the root");
}

#[test]
fn defect_01_climbing_ends_at_the_root() {
    let ro = [view(Mode::Ro, true, 90, 0, 0)];
    let levels: [(&[u8], &[BranchView]); 3] = [(b"x/y", &ro), (b"x", &ro), (b"", &ro)];
    for policy in Policy::ALL.into_iter().filter(|policy| policy.climbs()) {
        let (choice, asked) = climb(policy, b"x/y", &levels);
        assert_eq!(choice, Err(Refusal::ReadOnly), "{policy}");
        assert_eq!(asked, [&b"x/y"[..], b"x", b""], "{policy}: each level once, the root last");
        let (choice, asked) = climb(policy, b"", &levels);
        assert_eq!((choice, asked.len()), (Err(Refusal::ReadOnly), 1), "{policy} in the root");
    }
    // These are no paths of a pool, but the climb must end.
    for path in [&b"/"[..], b"//", b"a//b", b"/a"] {
        let count = path.len() + 1;
        let mut rounds = 0;
        let level = |_: &[u8]| {
            rounds += 1;
            Ok::<_, ()>(ro.to_vec())
        };
        assert_eq!(
            create_climbing(Policy::MspMfs, path, level, &mut { HIGHEST }),
            Ok(Err(Refusal::ReadOnly))
        );
        assert!(rounds <= count);
    }
}

#[test]
fn climbing_refusals_add_up_except_for_msppfrd() {
    let missing = view(Mode::Rw, false, 90, 0, 0);
    let full = BranchView { min_free: 91, ..view(Mode::Rw, true, 90, 0, 0) };
    let dead = BranchView { space: None, ..view(Mode::Rw, true, 0, 0, 0) };
    let levels: [(&[u8], &[BranchView]); 3] = [(b"x/y", &[missing]), (b"x", &[full]), (b"", &[dead])];
    for (policy, expected) in [
        (Policy::MspMfs, Refusal::NoSpace),
        (Policy::MspLfs, Refusal::NoSpace),
        (Policy::MspLus, Refusal::NoSpace),
        (Policy::MspPfrd, Refusal::NotFound),
    ] {
        assert_eq!(climb(policy, b"x/y", &levels).0, Err(expected), "{policy}");
    }
}

#[test]
fn other_policies_do_not_climb_and_errors_end_the_climb() {
    let ro = [view(Mode::Ro, true, 90, 0, 0)];
    for policy in Policy::ALL.into_iter().filter(|policy| !policy.climbs()) {
        let (choice, asked) = climb(policy, b"x/y", &[(b"x/y", &ro)]);
        assert_eq!((choice, asked.len()), (Err(Refusal::ReadOnly), 1), "{policy}");
    }
    let level = |path: &[u8]| if path == b"x" { Err("broken") } else { Ok(ro.to_vec()) };
    assert_eq!(create_climbing(Policy::MspMfs, b"x/y", level, &mut { HIGHEST }), Err("broken"));
}

#[test]
fn policy_names_parse_back() {
    let mut sorted = Policy::ALL.map(Policy::name);
    sorted.sort_unstable();
    assert_eq!(sorted, Policy::ALL.map(Policy::name), "ALL is sorted by name");
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    for text in ["", "FF", "eplup", "msp", "ff "] {
        assert_eq!(text.parse::<Policy>(), Err(UnknownPolicy(text.to_owned())));
    }
}

#[test]
fn the_prefix_of_a_name_tells_path_preserving_and_climbing_policies() {
    for policy in Policy::ALL {
        let (ep, msp) = (policy.name().starts_with("ep"), policy.name().starts_with("msp"));
        assert_eq!(policy.is_path_preserving(), ep || msp, "{policy}");
        assert_eq!(policy.climbs(), msp, "{policy}");
    }
}

#[test]
fn an_explanation_agrees_with_the_choice() {
    let views = pool_of_reasons();
    for (policy, category) in Policy::ALL.into_iter().flat_map(|p| Category::ALL.map(|c| (p, c))) {
        let explanation = explain(policy, category, &views);
        for number in 0..90 {
            let chosen = run(category, policy, &views, &mut Loaded(number));
            for &index in chosen.iter().flatten() {
                assert_eq!(explanation.exclusions[index], None, "{policy} {category:?}");
                assert!(explanation.chances.as_ref().is_none_or(|chances| chances[index] > 0.0));
            }
            if let (Err(refusal), true) = (chosen, policy != Policy::Erofs) {
                let worst =
                    explanation.exclusions.iter().flatten().map(|exclusion| exclusion.refusal()).max();
                assert_eq!(worst, Some(refusal), "{policy} {category:?}");
            }
        }
    }
}

/// A pool with a branch for each reason to be excluded.
fn pool_of_reasons() -> [BranchView; 8] {
    let seven = pool_of_seven();
    let mut views = std::array::from_fn(|index| seven[index % 7]);
    views[4].space = None;
    views[5].space = Some(Space { avail: 30, used: 20, readonly: true, inodes: None });
    views[6].space = Some(Space { avail: 3, used: 20, readonly: false, inodes: None });
    views[7] =
        BranchView { space: views[0].space.map(|space| Space { inodes: Some(0), ..space }), ..views[0] };
    views
}

#[test]
fn an_explanation_names_the_first_reason_to_exclude() {
    let views = pool_of_reasons();
    let exclusions = |policy, category| explain(policy, category, &views).exclusions;
    let (mode, absent, unknown) =
        (Some(Exclusion::Mode), Some(Exclusion::Absent), Some(Exclusion::SpaceUnknown));
    let (ro, full) = (Some(Exclusion::ReadOnly), Some(Exclusion::BelowMinFree));
    let none = Some(Exclusion::NoInodes);
    assert_eq!(exclusions(Policy::Mfs, Category::Create), [None, None, mode, mode, unknown, ro, full, none]);
    assert_eq!(
        exclusions(Policy::EpMfs, Category::Create),
        [absent, None, mode, mode, unknown, ro, absent, absent]
    );
    assert_eq!(
        exclusions(Policy::EpAll, Category::Action),
        [absent, None, None, mode, unknown, ro, absent, absent]
    );
    assert_eq!(
        exclusions(Policy::Ff, Category::Search),
        [absent, None, None, None, None, None, absent, absent]
    );
    let chances = explain(Policy::Pfrd, Category::Create, &views).chances.unwrap();
    assert_eq!(chances, [60.0 / 70.0, 10.0 / 70.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(explain(Policy::EpRand, Category::Create, &views).chances, None, "only one is left");
}

#[test]
fn branches_on_disks_that_sleep_are_left_out_if_another_is_accepted() {
    // Which ones sleep, which one is full, and the choice of ff, mfs and all.
    for (sleep, full, expected) in [
        (&[][..], None, [&[0][..], &[2], &[0, 1, 2]]),
        (&[0], None, [&[1], &[2], &[0, 1, 2]]),
        (&[2], None, [&[0], &[1], &[0, 1, 2]]),
        (&[1, 2], None, [&[0], &[0], &[0, 1, 2]]),
        (&[0, 1, 2], None, [&[0], &[2], &[0, 1, 2]]),
        // The one that is awake does not count if it cannot be chosen.
        (&[1, 2], Some(0), [&[1], &[2], &[1, 2]]),
    ] {
        for (policy, expected) in [Policy::Ff, Policy::Mfs, Policy::All].into_iter().zip(expected) {
            let mut views = worked();
            if let Some(full) = full {
                views[full].min_free = u64::MAX;
            }
            prefer_awake(policy, &mut views, |index| sleep.contains(&index));
            let chosen = run(Category::Create, policy, &views, &mut { HIGHEST });
            assert_eq!(chosen.as_deref(), Ok(expected), "{policy} {sleep:?} {full:?}");
        }
    }
}
