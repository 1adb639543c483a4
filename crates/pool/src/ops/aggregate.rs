//! Combining the results of several branches into one.
//!
//! An operation that acts on several branches gets one result from each and returns a single one. The rules for
//! this are called A to D. All slices are in branch order.

use crate::config::StatfsIgnore;
pub use canopy_branch::branch::figures::Figures;
use canopy_branch::branch::list::Mode;
use canopy_branch::fs::filesystem_id::FilesystemId;
use rustix::io::Errno;

/// The result of an operation on one branch.
pub type Outcome = Result<(), Errno>;

/// Applies rule A: success if any branch succeeded, otherwise the first error; ENOENT if no branch was tried.
pub fn any_success(results: &[Outcome]) -> Outcome {
    if results.iter().any(Result::is_ok) {
        Ok(())
    } else {
        results.first().copied().unwrap_or(Err(Errno::NOENT))
    }
}

/// Applies rule B: success if no branch failed, and the first error if all failed. If the results differ, the
/// result of the branch that the search policy shows to the user counts.
///
/// `results` pairs each branch with its result. `shown` runs the search policy, only if needed, and returns the
/// first branch that it picks. If `shown` fails, its error is the result. If that branch is not in `results`, the
/// result is ENOENT.
pub fn by_search<K: PartialEq>(
    results: &[(K, Outcome)],
    shown: impl FnOnce() -> Result<K, Errno>,
) -> Outcome {
    let first_error = results.iter().find_map(|(_, result)| result.err());
    let Some(first_error) = first_error else { return Ok(()) };
    if results.iter().all(|(_, result)| result.is_err()) {
        return Err(first_error);
    }
    let shown = shown()?;
    results.iter().find(|(branch, _)| *branch == shown).map_or(Err(Errno::NOENT), |(_, result)| *result)
}

/// Applies rule C, for rmdir: the last "not empty" (EEXIST or ENOTEMPTY) if there is one, otherwise the last
/// result; ENOENT if no branch was tried.
///
/// A directory that is not empty on one branch still has entries in the pool, whatever the other branches
/// return.
pub fn rmdir(results: &[Outcome]) -> Outcome {
    let not_empty = |result: &&Outcome| matches!(**result, Err(Errno::EXIST | Errno::NOTEMPTY));
    results.iter().rev().find(not_empty).or(results.last()).copied().unwrap_or(Err(Errno::NOENT))
}

/// Applies rule D, for link: success if any branch succeeded, otherwise the last error; ENOENT if no branch was
/// tried.
pub fn link(results: &[Outcome]) -> Outcome {
    if results.iter().any(Result::is_ok) {
        Ok(())
    } else {
        results.last().copied().unwrap_or(Err(Errno::NOENT))
    }
}

/// Returns whether `statfs-ignore` leaves a branch's available space out: `ro` leaves out branches on which nothing
/// can be created (mode RO or NC, or a read-only filesystem), `nc` those of mode NC, and `none` leaves out none.
///
/// The code of mergerfs differs from its manual here: with `ro`, it counts a read-only filesystem whose branch mode
/// is RW, and even with `none`, it leaves out a read-only filesystem of mode RO or NC. Canopy does what the
/// names of the values say.
fn ignored(ignore: StatfsIgnore, branch: &BranchStat) -> bool {
    match ignore {
        StatfsIgnore::None => false,
        StatfsIgnore::Ro => branch.readonly || matches!(branch.mode, Mode::Ro | Mode::Nc),
        StatfsIgnore::Nc => branch.mode == Mode::Nc,
    }
}

/// The statfs result of one branch. Block counts are in units of `frsize` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BranchStat {
    /// The filesystem of the queried file: branches on one filesystem count once.
    pub filesystem: FilesystemId,
    pub mode: Mode,
    /// Whether the filesystem is mounted read-only (ST_RDONLY).
    pub readonly: bool,
    pub figures: Figures,
}

impl BranchStat {
    /// Returns whether two branches of one filesystem have the same space. In two projects they have not, unless no quota
    /// is enforced: then both show the figures of the filesystem.
    fn shares_space(&self, other: &BranchStat) -> bool {
        let size = |of: &BranchStat| (of.figures.blocks, of.figures.bfree);
        self.filesystem == other.filesystem || size(self) == size(other)
    }
}

/// Returns the pool's statfs: the sum over all filesystems, in units of the smallest fragment size.
///
/// The sizes of blocks, fragments and names are the smallest non-zero ones of all branches. Each filesystem
/// counts once, with the figures of its first branch. Its available blocks and files count unless every
/// branch on it is ignored, so that the result does not depend on the order of an RO and an RW branch on one disk.
/// Of a filesystem of which all branches are in projects with quotas, each quota counts.
/// Without branches, all figures are zero.
pub fn statfs(branches: &[BranchStat], ignore: StatfsIgnore) -> Figures {
    let least = |field: fn(&Figures) -> u64| {
        branches.iter().map(|branch| field(&branch.figures)).filter(|&value| value != 0).min().unwrap_or(0)
    };
    let mut sum = Figures {
        bsize: least(|figures| figures.bsize),
        frsize: least(|figures| figures.frsize),
        namemax: least(|figures| figures.namemax),
        ..Figures::default()
    };
    for (index, branch) in branches.iter().enumerate() {
        let on_same = |other: &&BranchStat| other.filesystem.filesystem == branch.filesystem.filesystem;
        let counted = branches[..index].iter().filter(on_same).any(|earlier| earlier.shares_space(branch));
        let is_part = branch.filesystem.project != 0
            && branches.iter().filter(on_same).any(|whole| whole.filesystem.project == 0);
        if counted || is_part {
            continue;
        }
        let figures = &branch.figures;
        let scale = |blocks: u64| scaled(blocks, figures.frsize, sum.frsize);
        let (blocks, bfree, bavail) = (scale(figures.blocks), scale(figures.bfree), scale(figures.bavail));
        let counts = branches.iter().filter(on_same).any(|other| !ignored(ignore, other));
        sum.blocks = sum.blocks.saturating_add(blocks);
        sum.bfree = sum.bfree.saturating_add(bfree);
        sum.files = sum.files.saturating_add(figures.files);
        sum.ffree = sum.ffree.saturating_add(figures.ffree);
        if counts {
            sum.bavail = sum.bavail.saturating_add(bavail);
            sum.favail = sum.favail.saturating_add(figures.favail);
        }
    }
    sum
}

/// Converts `blocks` of `from` bytes to units of `to` bytes, rounding down.
fn scaled(blocks: u64, from: u64, to: u64) -> u64 {
    if from == to || to == 0 {
        return blocks;
    }
    u64::try_from(u128::from(blocks) * u128::from(from) / u128::from(to)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: Outcome = Ok(());
    const ACCES: Outcome = Err(Errno::ACCESS);
    const IO: Outcome = Err(Errno::IO);
    const NOENT: Outcome = Err(Errno::NOENT);
    const EXIST: Outcome = Err(Errno::EXIST);
    const NOTEMPTY: Outcome = Err(Errno::NOTEMPTY);
    const PERM: Outcome = Err(Errno::PERM);
    const XDEV: Outcome = Err(Errno::XDEV);

    #[test]
    fn by_rule_a_any_success_suffices() {
        for (results, expected) in [
            (&[ACCES, OK][..], OK),
            (&[OK, ACCES], OK),
            (&[ACCES, IO], ACCES),
            (&[OK], OK),
            (&[IO], IO),
            (&[], NOENT),
        ] {
            assert_eq!(any_success(results), expected, "{results:?}");
        }
    }

    #[test]
    fn by_rule_b_the_searched_branch_decides() {
        const A: u32 = 1;
        const B: u32 = 2;
        const C: u32 = 3;
        for (results, shown, expected) in [
            (&[(A, OK), (B, PERM)][..], Ok(A), OK),
            (&[(A, OK), (B, PERM)], Ok(B), PERM),
            (&[(A, OK), (B, PERM)], Ok(C), NOENT),
            (&[(A, OK), (B, PERM)], Err(Errno::IO), IO),
            (&[(A, PERM), (B, ACCES), (C, OK)], Ok(B), ACCES),
        ] {
            assert_eq!(by_search(results, || shown), expected, "{results:?} {shown:?}");
        }
        let never = || unreachable!("the search policy runs only for mixed results");
        assert_eq!(by_search(&[(A, OK), (B, OK)], never), OK);
        assert_eq!(by_search(&[(A, PERM), (B, ACCES)], never), PERM);
        assert_eq!(by_search::<u32>(&[], never), OK);
    }

    #[test]
    fn by_rule_c_a_nonempty_directory_decides_and_else_the_last_branch() {
        for (results, expected) in [
            (&[OK, ACCES][..], ACCES),
            (&[ACCES, OK], OK),
            (&[NOTEMPTY, OK], NOTEMPTY),
            (&[ACCES, NOTEMPTY], NOTEMPTY),
            (&[NOTEMPTY, EXIST], EXIST),
            (&[EXIST, NOTEMPTY, OK, ACCES], NOTEMPTY),
            (&[OK, OK], OK),
            (&[ACCES, IO], IO),
            (&[], NOENT),
        ] {
            assert_eq!(rmdir(results), expected, "{results:?}");
        }
    }

    #[test]
    fn by_rule_d_one_success_suffices() {
        for (results, expected) in [
            (&[NOENT, ACCES][..], ACCES),
            (&[XDEV, OK, IO], OK),
            (&[OK], OK),
            (&[ACCES, IO], IO),
            (&[], NOENT),
        ] {
            assert_eq!(link(results), expected, "{results:?}");
        }
    }

    fn disk(dev: u64, mode: Mode) -> BranchStat {
        let figures = Figures {
            bsize: 4096,
            frsize: 4096,
            blocks: 1000,
            bfree: 500,
            bavail: 400,
            files: 100,
            ffree: 60,
            favail: 50,
            namemax: 255,
        };
        BranchStat { filesystem: FilesystemId::by_device(dev), mode, readonly: false, figures }
    }

    #[test]
    fn statfs_of_nothing_is_zero() {
        assert_eq!(statfs(&[], StatfsIgnore::None), Figures::default());
    }

    #[test]
    fn statfs_adds_filesystems_and_counts_each_once() {
        let twice = [disk(1, Mode::Rw), disk(2, Mode::Rw), disk(1, Mode::Rw)];
        let expected = Figures {
            blocks: 2000,
            bfree: 1000,
            bavail: 800,
            files: 200,
            ffree: 120,
            favail: 100,
            ..disk(1, Mode::Rw).figures
        };
        assert_eq!(statfs(&twice, StatfsIgnore::None), expected);
    }

    #[test]
    fn statfs_counts_each_quota_of_a_filesystem_but_not_beside_the_whole() {
        let part = |project: u32, blocks: u64| {
            let mut part = disk(1, Mode::Rw);
            part.filesystem.project = project;
            part.figures.blocks = blocks;
            part
        };
        for (branches, blocks, why) in [
            (vec![part(7, 100), part(8, 200), part(7, 100)], 300, "each project once"),
            (vec![part(7, 100), part(0, 1000), part(8, 200)], 1000, "the whole filesystem holds them"),
            (vec![part(7, 1000), part(8, 1000)], 1000, "no quota is enforced"),
            (vec![part(7, 100), disk(2, Mode::Rw)], 1100, "another filesystem"),
        ] {
            assert_eq!(statfs(&branches, StatfsIgnore::None).blocks, blocks, "{why}");
        }
    }

    #[test]
    fn statfs_scales_to_the_smallest_fragment() {
        let mut small = disk(2, Mode::Rw);
        small.figures = Figures { bsize: 512, frsize: 1024, namemax: 143, ..small.figures };
        let sum = statfs(&[disk(1, Mode::Rw), small], StatfsIgnore::None);
        assert_eq!((sum.bsize, sum.frsize, sum.namemax), (512, 1024, 143));
        assert_eq!((sum.blocks, sum.bfree, sum.bavail), (4000 + 1000, 2000 + 500, 1600 + 400));
        assert_eq!((sum.files, sum.ffree, sum.favail), (200, 120, 100), "files are not scaled");
    }

    #[test]
    fn statfs_truncates_odd_ratios_and_skips_zero_sizes() {
        let mut odd = disk(1, Mode::Rw);
        odd.figures = Figures { frsize: 1000, blocks: 7, bfree: 7, bavail: 7, ..odd.figures };
        let mut base = disk(2, Mode::Rw);
        base.figures = Figures { frsize: 300, blocks: 0, bfree: 0, bavail: 0, ..base.figures };
        let mut strange = disk(3, Mode::Rw);
        strange.figures =
            Figures { bsize: 0, frsize: 0, namemax: 0, blocks: 9, bfree: 9, bavail: 9, ..strange.figures };
        let sum = statfs(&[odd, base, strange], StatfsIgnore::None);
        assert_eq!((sum.bsize, sum.frsize, sum.namemax), (4096, 300, 255));
        assert_eq!(
            (sum.blocks, sum.bfree, sum.bavail),
            (23, 23, 23),
            "7000 / 300, and nothing for size zero"
        );
    }

    #[test]
    fn statfs_never_overflows() {
        let mut huge = disk(1, Mode::Rw);
        huge.figures = Figures {
            frsize: 1 << 20,
            blocks: u64::MAX,
            bfree: u64::MAX,
            bavail: u64::MAX,
            files: u64::MAX,
            ffree: u64::MAX,
            favail: u64::MAX,
            ..huge.figures
        };
        let sum = statfs(&[huge, disk(2, Mode::Rw)], StatfsIgnore::None);
        assert_eq!((sum.blocks, sum.files, sum.bavail), (u64::MAX, u64::MAX, u64::MAX));
    }

    #[test]
    fn statfs_ignore_leaves_out_branches_by_mode() {
        use StatfsIgnore::{Nc, None, Ro};
        for (mode, readonly, ignored_by) in [
            (Mode::Rw, false, &[][..]),
            (Mode::Rw, true, &[Ro]),
            (Mode::Ro, false, &[Ro]),
            (Mode::Ro, true, &[Ro]),
            (Mode::Nc, false, &[Ro, Nc]),
            (Mode::Nc, true, &[Ro, Nc]),
        ] {
            for ignore in [None, Ro, Nc] {
                let mut branch = disk(1, mode);
                branch.readonly = readonly;
                let sum = statfs(&[branch], ignore);
                let expected = if ignored_by.contains(&ignore) { (0, 0) } else { (400, 50) };
                assert_eq!((sum.bavail, sum.favail), expected, "{mode} {readonly} {ignore}");
                assert_eq!((sum.blocks, sum.bfree, sum.files, sum.ffree), (1000, 500, 100, 60), "kept");
            }
        }
    }

    #[test]
    fn statfs_ignore_does_not_depend_on_branch_order() {
        for pair in [[disk(1, Mode::Ro), disk(1, Mode::Rw)], [disk(1, Mode::Rw), disk(1, Mode::Ro)]] {
            assert_eq!(statfs(&pair, StatfsIgnore::Ro).bavail, 400);
        }
    }
}
