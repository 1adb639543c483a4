use super::*;
use canopy_testkit::Rng;

const DEADLINE: Duration = Duration::from_secs(8);

fn after(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A branch with or without a disk.
fn disks(by_disk: bool) -> Vec<Disk> {
    if by_disk { vec![Disk::for_tests("sda")] } else { Vec::new() }
}

#[test]
fn a_branch_without_a_disk_is_asked_all_the_time_and_left_out_when_it_owes_an_answer() {
    let (mut contact, start) = (Contact::default(), Instant::now());
    let at = |seconds| start + after(seconds);
    let mut look = |seconds, waiting| {
        contact.look(at(seconds), Some(DEADLINE), waiting, || disks(false));
        let asks = contact.ask(at(seconds)).is_some();
        if seconds < 2.0 && asks {
            contact.answer(at(seconds + 0.1), true);
        }
        (asks, contact.wants(at(seconds)))
    };
    assert_eq!(look(0.0, None), (true, None));
    assert_eq!(look(0.5, None), (false, None), "a moment ago");
    assert_eq!(look(1.0, None), (true, None));
    assert_eq!(look(2.0, None), (true, None));
    assert_eq!(look(7.9, None), (false, None));
    assert_eq!(look(8.1, None), (false, Some(Turn::LeaveOut)), "after three quarters of the deadline");
}

#[test]
fn a_disk_is_asked_because_of_operations_alone() {
    let (mut contact, start) = (Contact::default(), Instant::now());
    let at = |seconds| start + after(seconds);
    let waits = Some(Waiting { requests: 1, since: start });
    let mut look = |seconds, waiting| {
        contact.look(at(seconds), Some(DEADLINE), waiting, || disks(true));
        (contact.ask(at(seconds)).is_some(), contact.wants(at(seconds)))
    };
    assert_eq!(look(0.4, waits), (false, None));
    assert_eq!(look(0.5, waits), (true, None));
    assert_eq!(look(7.6, waits), (false, None), "no operation has waited for the deadline");
    assert_eq!(look(8.0, waits), (false, Some(Turn::LeaveOut)));
    contact.turn(Turn::LeaveOut, at(8.0));
    contact.answer(at(9.0), true);
    assert_eq!(contact.wants(at(9.0)), Some(Turn::TakeBack));
    assert!(contact.turn(Turn::Return, at(9.0)) && contact.wants(at(60.0)).is_none());
    assert!(contact.turn(Turn::StayOut, at(60.0)) && contact.wants(at(69.0)).is_none());
    assert_eq!(contact.wants(at(70.0)), Some(Turn::TakeBack));
}

#[test]
fn stuck_operations_count_unless_the_disk_has_answered_since() {
    for (by_disk, expected) in [(true, None), (false, Some(Turn::LeaveOut))] {
        let (mut contact, start) = (Contact::default(), Instant::now());
        let waits = Some(Waiting { requests: 1, since: start });
        contact.look(start, Some(DEADLINE), waits, || disks(by_disk));
        contact.operation_stuck(start);
        assert_eq!(contact.wants(start), Some(Turn::LeaveOut));
        let later = start + after(1.0);
        contact.look(later, Some(DEADLINE), waits, || disks(by_disk));
        assert!(contact.ask(later).is_some());
        contact.answer(later + after(0.1), true);
        assert_eq!(contact.wants(later + after(0.2)), expected);
        contact.operation_ended();
        assert_eq!(contact.wants(later + after(0.2)), None);
    }
}

/// Whatever happens in whatever order, these hold.
#[test]
fn what_is_known_stays_consistent() {
    let mut rng = Rng::new(43);
    let (mut out, mut back, mut returned) = (0, 0, 0);
    for round in 0..400 {
        let (mut contact, mut now) = (Contact::default(), Instant::now());
        let by_disk = rng.below(2) == 0;
        let (mut asked, mut stuck, mut deadline) = (false, 0_usize, None);
        for _ in 0..300 {
            now += Duration::from_millis(rng.below(3000));
            match rng.below(8) {
                0 => contact.answer(now, rng.below(8) > 0),
                1 => contact.operation_stuck(now),
                2 => contact.operation_ended(),
                3 => contact.call_returned(now),
                _ => {
                    deadline = (rng.below(16) > 0 && round % 4 > 0).then_some(DEADLINE);
                    let waits = Duration::from_millis(rng.below(20_000));
                    let waiting = now.checked_sub(waits).map(|since| Waiting { requests: 1, since });
                    contact.look(now, deadline, waiting.filter(|_| rng.below(2) == 0), || disks(by_disk));
                    let open = contact.asked.is_some();
                    asked = contact.ask(now).is_some();
                    assert!(!(open && asked), "one question at a time");
                    assert!(!asked || contact.asked == Some(now));
                }
            }
            stuck = stuck.max(contact.stuck);
            assert_eq!(contact.stuck == 0, contact.stuck_since.is_none());
            assert!(contact.answered.is_none_or(|(asked, took)| asked + took <= now));
            assert!(
                deadline.is_some() || contact.stuck == 0 && !contact.overdue,
                "nobody has to answer in time"
            );
            let (was_out, wants) = (contact.is_out(), contact.wants(now));
            let turn = match wants {
                // Like a branch that has missed something, as often as not.
                Some(Turn::TakeBack) if rng.below(2) == 0 => Some(Turn::Return),
                None if contact.standing == Standing::Returning => {
                    [None, Some(Turn::StayOut), Some(Turn::TakeBack)][rng.below(3) as usize]
                }
                other => other,
            };
            let Some(turn) = turn else { continue };
            assert!(contact.turn(turn, now), "{turn:?} of {contact:?}");
            assert!(turn != Turn::LeaveOut || deadline.is_some() && !was_out, "{contact:?}");
            assert!(turn == Turn::TakeBack || contact.is_out());
            out += usize::from(turn == Turn::LeaveOut);
            back += usize::from(turn == Turn::TakeBack);
            returned += usize::from(turn == Turn::Return);
        }
        // When everything ends and it answers, it comes back.
        (0..contact.stuck).for_each(|_| contact.operation_ended());
        now += after(20.0);
        contact.answer(now, true);
        contact.look(now, deadline, None, || disks(by_disk));
        if contact.standing == Standing::Returning {
            contact.turn(Turn::TakeBack, now);
        }
        assert_eq!(contact.wants(now), contact.is_out().then_some(Turn::TakeBack), "{contact:?}");
        let _ = asked;
    }
    assert!(out > 100 && back > 100 && returned > 100, "{out} {back} {returned}");
}
