//! How what is known is bounded: the rows of a directory are unpacked while they are used, else in the store, and what
//! finds no room there is forgotten.

use super::dirs::{Known, State};
use super::log::Log;
use super::rows::Rows;
use super::store::Extent;
use std::sync::Arc;

/// The most rows that are kept unpacked: some 30 MiB.
const MAX_HOT: usize = 1 << 16;

pub(super) enum DirRows {
    No,
    Hot(Hot),
    Stored(Extent),
}

pub(super) struct Hot {
    pub(super) rows: Rows,
    /// Where the same is stored.
    pub(super) stored: Option<Extent>,
    pub(super) used: bool,
}

impl State {
    /// Returns a directory with its rows, unpacked, and what has changed; `None` if there are no rows.
    pub(super) fn rows_of(&mut self, dir: &[u8]) -> Option<(&Known, &Rows, &Log)> {
        let stored = match &mut self.dirs.get_mut(dir)?.rows {
            DirRows::No => return None,
            DirRows::Hot(hot) => {
                hot.used = true;
                None
            }
            DirRows::Stored(extent) => Some(*extent),
        };
        if let Some(extent) = stored {
            let Some(rows) = self.store.read(extent).and_then(|bytes| Rows::decode(&bytes)) else {
                self.forget_rows(dir);
                return None;
            };
            self.keep(dir, Hot { rows, stored: Some(extent), used: true });
        }
        let known = self.dirs.get(dir)?;
        match &known.rows {
            DirRows::Hot(hot) => Some((known, &hot.rows, &self.log)),
            _ => None,
        }
    }

    /// Keeps unpacked rows, and packs others if these are too many.
    pub(super) fn keep(&mut self, dir: &[u8], hot: Hot) {
        let Some((path, _)) = self.dirs.get_key_value(dir) else { return };
        self.hot.push_back(Arc::clone(path));
        self.hot_rows += hot.rows.list().len();
        if let Some(known) = self.dirs.get_mut(dir) {
            known.rows = DirRows::Hot(hot);
        }
        let mut chances = 2 * self.hot.len();
        while self.hot_rows > MAX_HOT && chances > 0 {
            chances -= 1;
            let Some(oldest) = self.hot.pop_front() else { return };
            match self.dirs.get_mut(&oldest).map(|known| &mut known.rows) {
                Some(DirRows::Hot(hot)) if *oldest == *dir || hot.used => {
                    hot.used = false;
                    self.hot.push_back(oldest);
                }
                Some(DirRows::Hot(_)) => self.pack(&oldest),
                _ => {}
            }
        }
    }

    /// Stores the rows of a directory, instead of keeping them unpacked.
    pub(super) fn pack(&mut self, dir: &Arc<[u8]>) {
        let Some(known) = self.dirs.get_mut(dir) else { return };
        let DirRows::Hot(hot) = std::mem::replace(&mut known.rows, DirRows::No) else { return };
        self.hot_rows -= hot.rows.list().len();
        let stored = match hot.stored {
            Some(extent) if !self.store.is_old(extent) => Some(extent),
            stored => {
                stored.into_iter().for_each(|extent| self.store.remove(extent));
                let (stored, gone) = self.store.write(dir, &hot.rows.encode());
                gone.iter().for_each(|owner| self.lost(owner));
                stored
            }
        };
        if let Some(known) = self.dirs.get_mut(dir) {
            match stored {
                Some(extent) => known.rows = DirRows::Stored(extent),
                None => {
                    known.doubts.clear();
                    known.is_listed = false;
                }
            }
        }
    }

    /// Records that what was stored has made room.
    pub(super) fn lost(&mut self, dir: &[u8]) {
        let Some(known) = self.dirs.get_mut(dir) else { return };
        match &mut known.rows {
            DirRows::Hot(hot) => hot.stored = None,
            DirRows::Stored(_) => {
                known.rows = DirRows::No;
                known.doubts.clear();
                known.is_listed = false;
            }
            DirRows::No => {}
        }
    }
}
