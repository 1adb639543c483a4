use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

lock_ranks! {
    Outer = 1;
    Middle = 2;
    Inner = 3;
}

/// Returns the message if `order` panics.
fn panic_message(order: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(order)).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn rising_order_is_accepted() {
    let (outer, middle, inner) =
        (Mutex::<_, Outer>::new(1), RwLock::<_, Middle>::new(2), Mutex::<_, Inner>::new(3));
    let message = panic_message(|| {
        let (one, two, three) = (outer.lock(), middle.read(), inner.lock());
        assert_eq!((*one, *two, *three), (1, 2, 3));
    });
    assert_eq!(message, None);
}

#[test]
fn a_released_lock_does_not_count() {
    let (outer, inner) = (Mutex::<(), Outer>::default(), RwLock::<(), Inner>::default());
    let message = panic_message(|| {
        drop(inner.write());
        let first = outer.lock();
        let second = inner.read();
        // In another order than the reverse one.
        drop(first);
        drop(second);
        drop(outer.lock());
    });
    assert_eq!(message, None);
}

#[test]
#[cfg(debug_assertions)]
fn a_wrong_order_panics_and_names_both_locks() {
    let (outer, middle, inner) =
        (Mutex::<(), Outer>::default(), RwLock::<(), Middle>::default(), Mutex::<(), Inner>::default());
    let soon = || Instant::now() + Duration::from_millis(1);
    let orders: [(&str, &dyn Fn()); 7] = [
        ("Outer", &|| drop((inner.lock(), outer.lock()))),
        ("Outer", &|| drop((inner.lock(), outer.try_lock_for(Duration::from_millis(1))))),
        ("Outer", &|| drop((inner.lock(), outer.try_lock_until(soon())))),
        ("Middle", &|| drop((inner.lock(), middle.read()))),
        ("Middle", &|| drop((inner.lock(), middle.write()))),
        ("Middle", &|| drop((inner.lock(), middle.try_write_sibling_until(soon())))),
        ("Middle", &|| drop((inner.lock(), Hold::<Middle>::take()))),
    ];
    for (taken, order) in orders {
        let message = panic_message(order).unwrap_or_default();
        assert!(
            message.contains(&format!("{taken} (rank ")) && message.contains("Inner (rank 3, taken at "),
            "{message}"
        );
        // The thread holds nothing afterwards.
        assert_eq!(panic_message(assert_may_take::<Outer>), None);
    }
}

#[test]
#[cfg(debug_assertions)]
fn two_locks_of_one_rank_need_an_order_among_them() {
    let locks = [RwLock::<(), Middle>::default(), RwLock::<(), Middle>::default()];
    let until = Instant::now() + Duration::from_secs(1);
    assert!(panic_message(|| drop((locks[0].read(), locks[1].read()))).is_some());
    assert!(panic_message(|| drop((locks[0].read(), locks[0].read()))).is_some(), "not shared twice either");
    let siblings = || locks.iter().map(|lock| lock.try_write_sibling_until(until)).collect::<Vec<_>>();
    assert_eq!(panic_message(|| assert!(siblings().iter().all(Option::is_some))), None);
}

#[test]
#[cfg(debug_assertions)]
fn a_tried_lock_may_be_taken_in_any_order_and_counts_as_held() {
    let (outer, middle, inner) =
        (Mutex::<(), Outer>::default(), RwLock::<(), Middle>::default(), Mutex::<(), Inner>::default());
    assert_eq!(panic_message(|| drop((inner.lock(), outer.try_lock(), middle.try_read()))), None);
    assert_eq!(panic_message(|| drop((inner.lock(), middle.try_write()))), None);
    let message = panic_message(|| drop((inner.try_lock(), outer.lock())));
    assert!(message.is_some_and(|message| message.contains("Inner")));
    // A lock that was not obtained does not count as held.
    let locked = outer.try_lock();
    assert!(locked.is_some());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert!(outer.try_lock().is_none() && outer.try_lock_for(Duration::from_millis(1)).is_none());
            panic_message(assert_may_take::<Outer>)
        });
        assert_eq!(other.join().unwrap(), None);
    });
}

#[test]
#[cfg(debug_assertions)]
fn a_rank_can_be_held_without_a_lock() {
    let outer = Mutex::<(), Outer>::default();
    let message = panic_message(|| {
        let _hold = Hold::<Middle>::take();
        drop(outer.lock());
    });
    assert!(message.is_some_and(|message| message.contains("Middle (rank 2, taken at ")));
}

#[test]
#[cfg(debug_assertions)]
fn nothing_is_taken_under_a_leaf() {
    use crate::lock::rank::{Handles, Leaf};
    let (table, one, other) =
        (Mutex::<(), Handles>::default(), Mutex::<(), Leaf>::default(), RwLock::<(), Leaf>::default());
    assert_eq!(panic_message(|| drop((table.lock(), one.lock()))), None);
    assert_eq!(panic_message(|| drop((table.lock(), other.read()))), None);
    // Many locks are leaves, so the message says which one is held.
    let here = format!("leaf (rank 65535, taken at {}:", file!()).to_lowercase();
    for order in
        [&|| drop((one.lock(), other.read())), &|| drop((one.lock(), table.lock()))] as [&dyn Fn(); 2]
    {
        let message = panic_message(order).unwrap_or_default();
        assert!(message.to_lowercase().contains(&here), "{message}");
    }
}

#[test]
fn a_waiting_thread_gets_the_mutex_back() {
    let (mutex, changed) = (Mutex::<u32, Outer>::new(0), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *mutex.lock() += 1;
            changed.notify_all();
        });
        let mut value = mutex.lock();
        while *value == 0 {
            changed.wait(&mut value);
        }
        assert_eq!(*value, 1);
        assert!(changed.wait_for(&mut value, Duration::from_millis(1)).timed_out());
    });
}

#[test]
#[cfg(not(debug_assertions))]
fn release_builds_have_no_overhead() {
    assert_eq!(size_of::<Mutex<u64, Outer>>(), size_of::<parking_lot::Mutex<u64>>());
    assert_eq!(size_of::<MutexGuard<'_, u64, Outer>>(), size_of::<parking_lot::MutexGuard<'_, u64>>());
    assert_eq!(size_of::<RwLock<u64, Outer>>(), size_of::<parking_lot::RwLock<u64>>());
    assert_eq!(
        size_of::<RwLockReadGuard<'_, u64, Outer>>(),
        size_of::<parking_lot::RwLockReadGuard<'_, u64>>()
    );
    assert_eq!(
        size_of::<RwLockWriteGuard<'_, u64, Outer>>(),
        size_of::<parking_lot::RwLockWriteGuard<'_, u64>>()
    );
    assert_eq!(size_of::<Hold<Outer>>(), 0);
}
