//! Medians, ratios and verdicts on goals.

use serde::Serialize;

/// The unit of a row's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) enum Unit {
    /// Nanoseconds per operation or entry; less is better.
    #[serde(rename = "ns")]
    Time,
    /// Bytes per second; more is better.
    #[serde(rename = "bytes/s")]
    Rate,
}

/// The median and the extremes over the rounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

impl Spread {
    /// Returns `None` without rounds.
    pub(crate) fn of(mut figures: Vec<f64>) -> Option<Spread> {
        figures.sort_by(f64::total_cmp);
        let (lowest, highest) = (*figures.first()?, *figures.last()?);
        let half = figures.len() / 2;
        let median = match figures.len() % 2 {
            0 => f64::midpoint(figures[half - 1], figures[half]),
            _ => figures[half],
        };
        Some(Spread { median, lowest, highest })
    }
}

/// One side's figures in a row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SideFigures {
    pub side: String,
    /// The side is the server that answers from memory.
    pub floor: bool,
    pub figure: Spread,
    /// Each round's figure divided by that of the row's first side.
    pub ratio: Spread,
    /// The same, divided by the floor's figure. Not for the first side and the floor.
    pub by_floor: Option<Spread>,
    /// The same, divided by the sum of the floor's and the first side's figures, for times. No server with files on a
    /// branch can be faster: it receives requests as the floor does, and uses the branch as its other users do.
    pub by_both: Option<Spread>,
    pub goal: Option<GoalResult>,
}

/// A goal and its outcome.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GoalResult {
    pub limit: f64,
    /// The side that the limit is a ratio to.
    pub of: String,
    /// The ratio that was measured.
    pub ratio: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Reached,
    /// The floor misses the goal too, and is at most 15 % better.
    Floor,
    /// The floor and the branch together miss the goal too, and are at most 15 % better.
    FloorAndBranch,
    NotReached,
}

/// The ratio up to which a figure counts as near the floor.
const NEAR: f64 = 1.15;

/// A bound that a figure is compared with: the ratio of the figure to the bound, and that of the bound to the side that
/// the goal refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RatioBound {
    by: f64,
    own: f64,
}

impl Verdict {
    pub(crate) fn of(
        unit: Unit,
        limit: f64,
        ratio: f64,
        floor: Option<RatioBound>,
        both: Option<RatioBound>,
    ) -> Verdict {
        let holds = |ratio: f64, limit: f64| match unit {
            Unit::Time => ratio <= limit,
            Unit::Rate => ratio >= limit,
        };
        let near = if unit == Unit::Time { NEAR } else { 1.0 / NEAR };
        let excuses = |bound: RatioBound| holds(bound.by, near) && !holds(bound.own, limit);
        match () {
            () if holds(ratio, limit) => Verdict::Reached,
            () if floor.is_some_and(excuses) => Verdict::Floor,
            () if both.is_some_and(excuses) => Verdict::FloorAndBranch,
            () => Verdict::NotReached,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct RowFigures {
    pub work: String,
    pub unit: Unit,
    pub sides: Vec<SideFigures>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TableFigures {
    pub table: &'static str,
    pub title: String,
    pub rows: Vec<RowFigures>,
}

/// The figures of one side, one per round: times or rates.
pub(crate) struct SideRounds {
    pub side: String,
    pub floor: bool,
    pub figures: Vec<f64>,
}

/// A goal of a row. `side` and `of` are indexes into the targets: the judged side, and the side it is compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub side: usize,
    pub of: usize,
    pub limit: f64,
}

/// Computes the figures of a row. Ratios are taken within a round, because other load affects both of its figures.
pub(crate) fn evaluate(work: &str, unit: Unit, rounds: &[SideRounds], goal: Option<Goal>) -> RowFigures {
    let by = |these: &[f64], those: &[f64]| Spread::of(these.iter().zip(those).map(|(a, b)| a / b).collect());
    let figures = |side: usize| rounds[side].figures.as_slice();
    let floor = rounds.iter().position(|side| side.floor).filter(|&floor| floor != 0);
    let both: Option<Vec<f64>> = floor
        .filter(|_| unit == Unit::Time)
        .map(|floor| figures(0).iter().zip(figures(floor)).map(|(a, b)| a + b).collect());
    let cell = |(index, side): (usize, &SideRounds)| {
        let compared = index != 0 && floor != Some(index);
        let by_floor = floor.filter(|_| compared).and_then(|floor| by(&side.figures, figures(floor)));
        let by_both = both.as_ref().filter(|_| compared).and_then(|both| by(&side.figures, both));
        let judged = goal.filter(|goal| goal.side == index).and_then(|goal| {
            let median = |these: &[f64]| by(these, figures(goal.of)).map(|spread| spread.median);
            let bound =
                |by: Option<Spread>, own: &[f64]| Some(RatioBound { by: by?.median, own: median(own)? });
            let ratio = median(&side.figures)?;
            // The floor is no bound for a goal that refers to the floor.
            let floor =
                floor.filter(|&floor| floor != goal.of).and_then(|floor| bound(by_floor, figures(floor)));
            let both = both.as_ref().and_then(|both| bound(by_both, both));
            let verdict = Verdict::of(unit, goal.limit, ratio, floor, both);
            Some(GoalResult { limit: goal.limit, of: rounds[goal.of].side.clone(), ratio, verdict })
        });
        Some(SideFigures {
            side: side.side.clone(),
            floor: side.floor,
            figure: Spread::of(side.figures.clone())?,
            ratio: by(&side.figures, figures(0))?,
            by_floor,
            by_both,
            goal: judged,
        })
    };
    RowFigures { work: work.to_owned(), unit, sides: rounds.iter().enumerate().filter_map(cell).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(side: &str, floor: bool, figures: &[f64]) -> SideRounds {
        SideRounds { side: side.into(), floor, figures: figures.to_vec() }
    }

    #[test]
    fn medians_and_extremes() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.lowest, spread.highest), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(vec![4.0, 1.0]).unwrap().median, 2.5);
        assert!(Spread::of(Vec::new()).is_none());
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The second round was slow for both.
        let rounds = [side("branch", false, &[1.0, 10.0, 1.0]), side("pool", false, &[2.0, 20.0, 2.0])];
        let goal = Goal { side: 1, of: 0, limit: 2.0 };
        let row = evaluate("work", Unit::Time, &rounds, Some(goal));
        assert_eq!(row.sides[1].ratio, Spread { median: 2.0, lowest: 2.0, highest: 2.0 });
        assert_eq!(row.sides[1].goal.as_ref().unwrap().verdict, Verdict::Reached);
        assert!(row.sides[0].goal.is_none() && row.sides[1].by_floor.is_none());
    }

    #[test]
    fn goals_that_the_floor_misses_get_their_own_verdict() {
        let (time, rate) = (Unit::Time, Unit::Rate);
        let is = |by, own| Some(RatioBound { by, own });
        assert_eq!(Verdict::of(time, 3.0, 2.9, is(1.5, 2.0), None), Verdict::Reached);
        assert_eq!(Verdict::of(time, 3.0, 5.0, is(1.1, 4.6), is(0.9, 5.6)), Verdict::Floor);
        assert_eq!(Verdict::of(time, 3.0, 5.0, is(1.2, 4.2), None), Verdict::NotReached);
        assert_eq!(Verdict::of(time, 3.0, 5.0, is(1.2, 4.2), is(1.0, 5.2)), Verdict::FloorAndBranch);
        assert_eq!(Verdict::of(time, 3.0, 5.0, is(1.6, 2.9), is(1.3, 3.9)), Verdict::NotReached);
        // The floor reaches the goal.
        assert_eq!(Verdict::of(time, 3.0, 3.1, is(1.1, 2.8), None), Verdict::NotReached);
        assert_eq!(Verdict::of(time, 3.0, 3.1, is(1.6, 1.9), is(1.1, 2.9)), Verdict::NotReached);
        assert_eq!(Verdict::of(time, 3.0, 3.1, None, None), Verdict::NotReached);
        assert_eq!(Verdict::of(rate, 0.6, 0.7, None, None), Verdict::Reached);
        assert_eq!(Verdict::of(rate, 0.6, 0.5, is(0.95, 0.53), None), Verdict::Floor);
        assert_eq!(Verdict::of(rate, 0.6, 0.5, is(0.8, 0.55), None), Verdict::NotReached);
    }

    #[test]
    fn times_are_compared_with_floor_and_branch_together() {
        let sides = [
            side("branch", false, &[1.0, 2.0]),
            side("pool", false, &[6.0, 11.0]),
            side("floor", true, &[4.0, 8.0]),
        ];
        let goal = |of, limit| Some(Goal { side: 1, of, limit });
        let cells = evaluate("work", Unit::Time, &sides, goal(0, 4.9)).sides;
        let spread = cells[1].by_both.unwrap();
        assert_eq!((spread.lowest, spread.highest), (1.1, 1.2));
        assert!(cells[0].by_both.is_none() && cells[2].by_both.is_none());
        let verdict = |cells: &[SideFigures]| cells[1].goal.as_ref().unwrap().verdict;
        assert_eq!(verdict(&cells), Verdict::FloorAndBranch);
        // Both together would reach the goal.
        assert_eq!(verdict(&evaluate("work", Unit::Time, &sides, goal(2, 1.3)).sides), Verdict::NotReached);
        // Rates do not add up.
        assert!(evaluate("work", Unit::Rate, &sides, goal(0, 4.9)).sides[1].by_both.is_none());
    }
}
