use super::*;
use crate::branch::state::Standing;

const FINE: CheckResult = Ok(());
const RO: CheckResult = Err((Health::ReadOnly, Errno::ROFS));
const EIO: CheckResult = Err((Health::Failing, Errno::IO));

/// Runs a series of checks. Each has the second, the errors and the failed changes since the last check, the result,
/// and the expected health afterwards.
#[track_caller]
fn course(checks: &[(u64, u32, u32, CheckResult, Health)]) {
    let (mut record, start) = (Record::default(), Instant::now());
    for &(second, errors, failed_changes, finding, expected) in checks {
        record.judge(start + Duration::from_secs(second), finding, errors, failed_changes);
        assert_eq!(record.health, expected, "second {second}");
    }
}

#[test]
fn a_branch_fails_by_a_check_and_recovers_after_a_while() {
    use Health::{Failing, ReadOnly, Well};
    // An error that a check does not confirm changes nothing.
    course(&[(0, 1, 0, FINE, Well), (1, 3, 1, FINE, Well)]);
    course(&[
        (0, 1, 0, RO, ReadOnly),
        (1, 0, 0, RO, ReadOnly),
        (2, 0, 0, FINE, ReadOnly),
        (4, 0, 0, FINE, Well),
    ]);
    // Errors of operations delay the recovery.
    course(&[
        (0, 1, 1, EIO, Failing),
        (2, 1, 0, FINE, Failing),
        (4, 1, 0, FINE, Failing),
        (6, 0, 0, FINE, Well),
    ]);
    // One failure may turn into another.
    course(&[
        (0, 1, 0, RO, ReadOnly),
        (1, 0, 0, EIO, Failing),
        (2, 0, 0, FINE, Failing),
        (3, 0, 0, RO, ReadOnly),
    ]);
}

#[test]
fn each_relapse_doubles_the_time_to_recover() {
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
        // An hour later, earlier failures do not count.
        (3620, 1, 1, EIO, Failing),
        (3621, 0, 0, FINE, Failing),
        (3623, 0, 0, FINE, Well),
    ]);
}

#[test]
fn the_time_to_recover_is_limited() {
    let (mut record, start) = (Record::default(), Instant::now());
    let mut second = 0;
    for _ in 0..80 {
        record.judge(start + Duration::from_secs(second), EIO, 0, 0);
        record.judge(start + Duration::from_secs(second + 1), FINE, 0, 0);
        record.judge(start + Duration::from_secs(second + 1) + RECOVERY_AT_MOST, FINE, 0, 0);
        assert_eq!(record.health, Health::Well);
        second += 2 + RECOVERY_AT_MOST.as_secs();
    }
}

#[test]
fn repeated_failed_changes_count_and_failed_reads_do_not() {
    use Health::{Failing, Well};
    let strike = |second, expected| (second, 2, 1, FINE, expected);
    course(&[strike(0, Well), strike(1, Well), strike(2, Well), strike(3, Well), strike(4, Failing)]);
    // Not when they are far apart, nor when only reads fail.
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

/// A snapshot below the branch always refuses changes, and the branch is healthy.
#[test]
fn refused_changes_are_not_failures() {
    for (errno, expected) in [(Errno::ROFS, BranchState::Up), (Errno::IO, BranchState::Failing)] {
        let health = BranchHealth::default();
        for _ in 0..STRIKES {
            health.record_error(errno, OpKind::Change);
            assert!(health.needs_check());
            health.look(|| FINE);
        }
        assert_eq!(health.state(), expected, "{errno}");
    }
}

#[test]
fn checks_of_an_unhealthy_branch_become_rarer() {
    let (mut record, mut now) = (Record::default(), Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..7 {
        record.judge(now, EIO, 0, 0);
        let next = record.next_check.expect("another check");
        pauses.push(next.duration_since(now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 16, 16]);
}

#[test]
fn only_errors_of_the_branch_itself_are_recorded() {
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
        let health = BranchHealth::default();
        health.record_error(errno, OpKind::Change);
        assert_eq!(health.is_due(Instant::now()), is_illness, "{errno}");
        assert!(health.is_well(), "recording an error does not make the branch unhealthy");
    }
}

#[test]
fn a_hung_branch_returns_to_its_former_health() {
    let health = BranchHealth::default();
    assert!(health.turn(Turn::LeaveOut) && !health.turn(Turn::LeaveOut));
    assert_eq!(health.report().map(|ill| (ill.state, ill.cause)), Some((BranchState::Hung, Errno::TIMEDOUT)));
    // The late result of a check does not make it answer.
    health.judge(Instant::now(), RO);
    assert_eq!(health.state(), BranchState::Hung);
    assert!(health.turn(Turn::TakeBack) && !health.turn(Turn::TakeBack));
    assert_eq!(health.state(), BranchState::ReadOnly);
}

/// However well what is in its place: what the pool has let go of is another branch when it is back.
#[test]
fn a_branch_that_is_gone_stays_gone() {
    for before in [&[][..], &[Turn::LeaveOut], &[Turn::LeaveOut, Turn::Return]] {
        let health = BranchHealth::default();
        before.iter().for_each(|turn| assert!(health.turn(*turn)));
        health.look(|| Err((Health::Gone, Errno::NODEV)));
        assert!(health.turn(Turn::Go));
        health.judge(Instant::now(), FINE);
        health.judge(Instant::now() + RECOVERY_AT_MOST, FINE);
        assert!(!health.turn(Turn::TakeBack) && !health.turn(Turn::Go));
        assert_eq!(health.contact(|contact| (contact.standing(), contact.is_out())), (Standing::Gone, false));
        assert_eq!(health.report().map(|ill| ill.state), Some(BranchState::Gone));
        // It has what was known of the disk before.
        let back = BranchHealth::default();
        back.inherit(&health);
        assert_eq!((back.state(), back.report()), (BranchState::Up, None));
    }
}
