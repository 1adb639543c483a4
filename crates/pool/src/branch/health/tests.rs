use super::*;

const FINE: CheckResult = Ok(());
const RO: CheckResult = Err((Health::ReadOnly, Errno::ROFS));
const EIO: CheckResult = Err((Health::Failing, Errno::IO));

/// Looks, one a line: the second, what operations have noticed and failed with since the last one, the finding, and
/// what the branch is afterwards.
#[track_caller]
fn course(looks: &[(u64, u32, u32, CheckResult, Health)]) {
    let (mut record, start) = (Record::default(), Instant::now());
    for &(second, noticed, failed, finding, expected) in looks {
        record.judge(start + Duration::from_secs(second), finding, noticed, failed);
        assert_eq!(record.health, expected, "second {second}");
    }
}

#[test]
fn it_takes_a_look_to_fall_ill_and_some_quiet_to_be_well() {
    use Health::{Failing, ReadOnly, Well};
    // One error that a look does not confirm is nobody's illness.
    course(&[(0, 1, 0, FINE, Well), (1, 3, 1, FINE, Well)]);
    course(&[
        (0, 1, 0, RO, ReadOnly),
        (1, 0, 0, RO, ReadOnly),
        (2, 0, 0, FINE, ReadOnly),
        (4, 0, 0, FINE, Well),
    ]);
    // What others still meet counts.
    course(&[
        (0, 1, 1, EIO, Failing),
        (2, 1, 0, FINE, Failing),
        (4, 1, 0, FINE, Failing),
        (6, 0, 0, FINE, Well),
    ]);
    // One illness may turn into another.
    course(&[
        (0, 1, 0, RO, ReadOnly),
        (1, 0, 0, EIO, Failing),
        (2, 0, 0, FINE, Failing),
        (3, 0, 0, RO, ReadOnly),
    ]);
}

#[test]
fn each_relapse_takes_twice_the_quiet() {
    use Health::{Failing, Well};
    course(&[
        (0, 1, 1, EIO, Failing),
        (1, 0, 0, FINE, Failing),
        (3, 0, 0, FINE, Well),
        (4, 1, 1, EIO, Failing),
        (5, 0, 0, FINE, Failing),
        (8, 0, 0, FINE, Failing),
        (9, 0, 0, FINE, Well),
        (10, 1, 1, EIO, Failing),
        (11, 0, 0, FINE, Failing),
        (18, 0, 0, FINE, Failing),
        (19, 0, 0, FINE, Well),
        // An hour later nobody remembers.
        (3620, 1, 1, EIO, Failing),
        (3621, 0, 0, FINE, Failing),
        (3623, 0, 0, FINE, Well),
    ]);
}

#[test]
fn quiet_has_an_end() {
    let (mut record, start) = (Record::default(), Instant::now());
    let mut second = 0;
    for _ in 0..80 {
        record.judge(start + Duration::from_secs(second), EIO, 0, 0);
        record.judge(start + Duration::from_secs(second + 1), FINE, 0, 0);
        record.judge(start + Duration::from_secs(second + 1) + QUIET_AT_MOST, FINE, 0, 0);
        assert_eq!(record.health, Health::Well);
        second += 2 + QUIET_AT_MOST.as_secs();
    }
}

#[test]
fn changes_that_fail_again_and_again_are_believed_and_reads_are_not() {
    use Health::{Failing, Well};
    let strike = |second, expected| (second, 2, 1, FINE, expected);
    course(&[strike(0, Well), strike(1, Well), strike(2, Well), strike(3, Well), strike(4, Failing)]);
    // Not when they are far apart, nor when files are only read.
    course(&[strike(0, Well), strike(20, Well), strike(40, Well), strike(59, Well), strike(61, Well)]);
    course(&[
        (0, 9, 0, FINE, Well),
        (1, 9, 0, FINE, Well),
        (2, 9, 0, FINE, Well),
        (3, 9, 0, FINE, Well),
        (4, 9, 0, FINE, Well),
        (5, 9, 0, FINE, Well),
    ]);
}

/// A snapshot below the branch says so for ever, and nothing is wrong with the branch.
#[test]
fn refused_changes_are_not_failed_ones() {
    for (errno, expected) in [(Errno::ROFS, Health::Well), (Errno::IO, Health::Failing)] {
        let condition = BranchHealth::default();
        for _ in 0..STRIKES {
            condition.record_error(errno, OpKind::Change);
            assert!(condition.needs_check());
            condition.look(|| FINE);
        }
        assert_eq!(condition.health(), expected, "{errno}");
    }
}

#[test]
fn looks_at_what_stays_unwell_become_rare() {
    let (mut record, mut now) = (Record::default(), Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..7 {
        record.judge(now, EIO, 0, 0);
        let next = record.next_look.expect("another look");
        pauses.push(next.duration_since(now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 16, 16]);
}

#[test]
fn only_what_is_the_branchs_own_doing_is_noticed() {
    for (errno, is_illness) in [
        (Errno::IO, true),
        (Errno::ROFS, true),
        (Errno::UCLEAN, true),
        (Errno::SHUTDOWN, true),
        (Errno::NOTCONN, true),
        (Errno::NODEV, true),
        (Errno::NOSPC, false),
        (Errno::DQUOT, false),
        (Errno::NOENT, false),
        (Errno::ACCESS, false),
        (Errno::PERM, false),
        (Errno::NAMETOOLONG, false),
        (Errno::INVAL, false),
        (Errno::STALE, false),
        (Errno::LOOP, false),
    ] {
        let condition = BranchHealth::default();
        condition.record_error(errno, OpKind::Change);
        assert_eq!(condition.is_due(Instant::now()), is_illness, "{errno}");
        assert!(condition.is_well(), "to notice is not to judge");
    }
}

#[test]
fn who_hangs_is_told_so_and_is_afterwards_what_he_was() {
    let condition = BranchHealth::default();
    assert!(condition.hangs(true) && !condition.hangs(true));
    assert_eq!(condition.report().map(|ill| (ill.health, ill.cause)), Some((Health::Hung, Errno::TIMEDOUT)));
    // A look that comes back late does not make it answer.
    condition.judge(Instant::now(), RO);
    assert_eq!(condition.health(), Health::Hung);
    assert!(condition.hangs(false) && !condition.hangs(false));
    assert_eq!(condition.health(), Health::ReadOnly);
}
