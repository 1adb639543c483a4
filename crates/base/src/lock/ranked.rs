//! Locks that check the lock order.
//!
//! [`Mutex`], [`RwLock`] and [`Condvar`] are those of `parking_lot`, with a [`Rank`] as a type parameter. In debug builds each
//! thread keeps a list of the ranks it holds, and panics when it takes a lock whose rank is not above all of them: such an
//! order can deadlock with a thread that takes the same locks the other way round. In release builds the wrappers have the
//! size and the code of the locks they wrap.
//!
//! A lock that is taken without waiting (`try_lock`, `try_read`, `try_write`) cannot deadlock. It may be taken in any order,
//! but counts as held. A lock with a time limit (`try_lock_for` and the like) is checked: running into the limit is a failure
//! that a right order avoids.
//!
//! [`rank`](super::rank) lists the ranks.

use super::held::HeldRank;
use parking_lot::WaitTimeoutResult;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// A place in the lock order. Declared by `lock_ranks!`.
pub trait Rank {
    /// A thread takes locks in rising order.
    const ORDER: u16;
    /// The name in messages.
    const NAME: &'static str;
}

/// Declares ranks, outermost first, each as `/// What is locked` `Name = number;`. Numbers that do not rise are
/// compile errors.
#[macro_export]
macro_rules! lock_ranks {
    ($($(#[$doc:meta])* $name:ident = $order:literal;)+) => {
        $(
            $(#[$doc])*
            #[allow(unreachable_pub)]
            #[derive(Clone, Copy, Debug)]
            pub enum $name {}

            impl $crate::lock::ranked::Rank for $name {
                const ORDER: u16 = $order;
                const NAME: &'static str = stringify!($name);
            }
        )+

        const _: () = {
            let orders = [$($order),+];
            let mut at = 1;
            while at < orders.len() {
                assert!(orders[at - 1] < orders[at], "lock ranks are listed in rising order");
                at += 1;
            }
        };
    };
}

/// Panics in debug builds unless the calling thread may take locks of this rank. For functions that take such a lock
/// only sometimes, and for calls out of the crate.
#[inline]
#[track_caller]
pub fn assert_may_take<R: Rank>() {
    drop(HeldRank::next(R::ORDER, R::NAME));
}

/// A rank that is held without a lock: for work that excludes other work as a lock would.
#[derive(Debug)]
pub struct Hold<R> {
    _held: HeldRank,
    // HeldRank by the thread that took it.
    _rank: PhantomData<(*const (), R)>,
}

impl<R: Rank> Hold<R> {
    /// Checks the order and counts as held until dropped.
    #[inline]
    #[track_caller]
    pub fn take() -> Hold<R> {
        Hold { _held: HeldRank::next(R::ORDER, R::NAME), _rank: PhantomData }
    }
}

/// [`parking_lot::Mutex`] with a rank.
pub struct Mutex<T: ?Sized, R> {
    rank: PhantomData<fn() -> R>,
    inner: parking_lot::Mutex<T>,
}

/// Holds a [`Mutex`].
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized, R> {
    inner: parking_lot::MutexGuard<'a, T>,
    _held: HeldRank,
    _rank: PhantomData<fn() -> R>,
}

impl<T, R> Mutex<T, R> {
    pub const fn new(value: T) -> Self {
        Mutex { rank: PhantomData, inner: parking_lot::Mutex::new(value) }
    }

    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized, R: Rank> Mutex<T, R> {
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, R> {
        let held = HeldRank::next(R::ORDER, R::NAME);
        MutexGuard { inner: self.inner.lock(), _held: held, _rank: PhantomData }
    }

    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, R>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, _held: HeldRank::note(R::ORDER, R::NAME), _rank: PhantomData })
    }

    #[inline]
    #[track_caller]
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T, R>> {
        let held = HeldRank::next(R::ORDER, R::NAME);
        Some(MutexGuard { inner: self.inner.try_lock_for(limit)?, _held: held, _rank: PhantomData })
    }

    #[inline]
    #[track_caller]
    pub fn try_lock_until(&self, until: Instant) -> Option<MutexGuard<'_, T, R>> {
        let held = HeldRank::next(R::ORDER, R::NAME);
        Some(MutexGuard { inner: self.inner.try_lock_until(until)?, _held: held, _rank: PhantomData })
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default, R> Default for Mutex<T, R> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized, R> Deref for MutexGuard<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized, R> DerefMut for MutexGuard<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// [`parking_lot::Condvar`] for a ranked [`Mutex`]. The mutex counts as held while the thread waits.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub const fn new() -> Self {
        Condvar(parking_lot::Condvar::new())
    }

    #[inline]
    pub fn wait<T: ?Sized, R>(&self, guard: &mut MutexGuard<'_, T, R>) {
        self.0.wait(&mut guard.inner);
    }

    #[inline]
    pub fn wait_for<T: ?Sized, R>(
        &self,
        guard: &mut MutexGuard<'_, T, R>,
        limit: Duration,
    ) -> WaitTimeoutResult {
        self.0.wait_for(&mut guard.inner, limit)
    }

    #[inline]
    pub fn wait_until<T: ?Sized, R>(
        &self,
        guard: &mut MutexGuard<'_, T, R>,
        until: Instant,
    ) -> WaitTimeoutResult {
        self.0.wait_until(&mut guard.inner, until)
    }

    #[inline]
    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    #[inline]
    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}

/// [`parking_lot::RwLock`] with a rank. A thread must not hold it twice, not even shared.
pub struct RwLock<T: ?Sized, R> {
    rank: PhantomData<fn() -> R>,
    inner: parking_lot::RwLock<T>,
}

/// Holds an [`RwLock`] shared.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized, R> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: HeldRank,
    _rank: PhantomData<fn() -> R>,
}

/// Holds an [`RwLock`] exclusively.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized, R> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: HeldRank,
    _rank: PhantomData<fn() -> R>,
}

impl<T, R> RwLock<T, R> {
    pub const fn new(value: T) -> Self {
        RwLock { rank: PhantomData, inner: parking_lot::RwLock::new(value) }
    }

    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized, R: Rank> RwLock<T, R> {
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T, R> {
        let held = HeldRank::next(R::ORDER, R::NAME);
        RwLockReadGuard { inner: self.inner.read(), _held: held, _rank: PhantomData }
    }

    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, R> {
        let held = HeldRank::next(R::ORDER, R::NAME);
        RwLockWriteGuard { inner: self.inner.write(), _held: held, _rank: PhantomData }
    }

    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, R>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _held: HeldRank::note(R::ORDER, R::NAME), _rank: PhantomData })
    }

    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, R>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, _held: HeldRank::note(R::ORDER, R::NAME), _rank: PhantomData })
    }

    /// As `parking_lot`'s `try_write_until`, for one of several locks of this rank, which all threads take in the same order.
    #[inline]
    #[track_caller]
    pub fn try_write_sibling_until(&self, until: Instant) -> Option<RwLockWriteGuard<'_, T, R>> {
        let held = HeldRank::sibling(R::ORDER, R::NAME);
        Some(RwLockWriteGuard { inner: self.inner.try_write_until(until)?, _held: held, _rank: PhantomData })
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: Default, R> Default for RwLock<T, R> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug, R> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized, R> Deref for RwLockReadGuard<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized, R> Deref for RwLockWriteGuard<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized, R> DerefMut for RwLockWriteGuard<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(test)]
mod tests;
