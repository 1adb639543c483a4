//! Medians, ratios and verdicts on goals.

use serde::Serialize;
use std::collections::BTreeMap;

/// The unit of a row's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) enum Unit {
    /// Nanoseconds per operation or entry; less is better.
    #[serde(rename = "ns")]
    Time,
    /// Bytes per second; more is better.
    #[serde(rename = "bytes/s")]
    Rate,
    /// Bytes per name; less is better.
    #[serde(rename = "bytes")]
    Size,
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

/// Requests for one operation by the kernel's name of their kind.
pub(crate) type RequestsEach = BTreeMap<&'static str, f64>;

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
    /// The requests that the kernel sent for one operation, by kind, if they were counted.
    pub requests: Option<RequestsEach>,
    pub goal: Option<GoalResult>,
}

/// A goal and its outcome.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GoalResult {
    pub limit: f64,
    /// What the limit is a ratio to: a side, or a sum such as `branch + floor + 3 us`.
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
            Unit::Time | Unit::Size => ratio <= limit,
            Unit::Rate => ratio >= limit,
        };
        let near = if unit == Unit::Rate { 1.0 / NEAR } else { NEAR };
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
    /// What was not measured, and why.
    pub notes: Vec<String>,
    pub rows: Vec<RowFigures>,
}

/// The figures of one side, one per round: times or rates.
pub(crate) struct SideRounds {
    pub side: String,
    pub floor: bool,
    pub figures: Vec<f64>,
    /// The requests that the kernel sent for one operation, by kind, if they were counted.
    pub requests: Option<RequestsEach>,
}

/// A goal of a row: the figure of `side` is at most `limit` times the sum of `of` and `plus`, or at least that for a
/// rate. Sides are indexes into the targets.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub side: usize,
    pub of: Vec<usize>,
    /// Nanoseconds.
    pub plus: f64,
    pub limit: f64,
}

impl Goal {
    /// Returns the sum in each round.
    fn base(&self, rounds: &[SideRounds]) -> Vec<f64> {
        let count = rounds[self.side].figures.len();
        let sum = |round: usize| self.of.iter().map(|&of| rounds[of].figures[round]).sum::<f64>();
        (0..count).map(|round| sum(round) + self.plus).collect()
    }

    fn words(&self, rounds: &[SideRounds]) -> String {
        let mut words: Vec<String> = self.of.iter().map(|&of| rounds[of].side.clone()).collect();
        if self.plus > 0.0 {
            words.push(format!("{} us", self.plus / 1e3));
        }
        words.join(" + ")
    }
}

/// Computes the figures of a row. Ratios are taken within a round, because other load affects both of its figures.
pub(crate) fn evaluate(work: &str, unit: Unit, rounds: &[SideRounds], goals: &[Goal]) -> RowFigures {
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
        let judged = goals.iter().find(|goal| goal.side == index).and_then(|goal| {
            let base = goal.base(rounds);
            let median = |these: &[f64]| by(these, &base).map(|spread| spread.median);
            let bound =
                |by: Option<Spread>, own: &[f64]| Some(RatioBound { by: by?.median, own: median(own)? });
            let ratio = median(&side.figures)?;
            // The floor is no bound for a goal that refers to the floor.
            let floor = floor
                .filter(|floor| !goal.of.contains(floor))
                .and_then(|floor| bound(by_floor, figures(floor)));
            let both = both.as_ref().and_then(|both| bound(by_both, both));
            let verdict = Verdict::of(unit, goal.limit, ratio, floor, both);
            Some(GoalResult { limit: goal.limit, of: goal.words(rounds), ratio, verdict })
        });
        Some(SideFigures {
            side: side.side.clone(),
            floor: side.floor,
            figure: Spread::of(side.figures.clone())?,
            ratio: by(&side.figures, figures(0))?,
            by_floor,
            by_both,
            requests: side.requests.clone(),
            goal: judged,
        })
    };
    RowFigures { work: work.to_owned(), unit, sides: rounds.iter().enumerate().filter_map(cell).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(side: &str, floor: bool, figures: &[f64]) -> SideRounds {
        SideRounds { side: side.into(), floor, figures: figures.to_vec(), requests: None }
    }

    fn ratio_to(of: usize, limit: f64) -> Vec<Goal> {
        vec![Goal { side: 1, of: vec![of], plus: 0.0, limit }]
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
        let row = evaluate("work", Unit::Time, &rounds, &ratio_to(0, 2.0));
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
        let cells = evaluate("work", Unit::Time, &sides, &ratio_to(0, 4.9)).sides;
        let spread = cells[1].by_both.unwrap();
        assert_eq!((spread.lowest, spread.highest), (1.1, 1.2));
        assert!(cells[0].by_both.is_none() && cells[2].by_both.is_none());
        let verdict = |cells: &[SideFigures]| cells[1].goal.as_ref().unwrap().verdict;
        assert_eq!(verdict(&cells), Verdict::FloorAndBranch);
        // Both together would reach the goal.
        assert_eq!(
            verdict(&evaluate("work", Unit::Time, &sides, &ratio_to(2, 1.3)).sides),
            Verdict::NotReached
        );
        // Rates do not add up.
        assert!(evaluate("work", Unit::Rate, &sides, &ratio_to(0, 4.9)).sides[1].by_both.is_none());
    }

    #[test]
    fn a_goal_may_be_a_sum() {
        let sides = [
            side("branch", false, &[1000.0, 2000.0]),
            side("pool", false, &[8000.0, 10_000.0]),
            side("wide", false, &[9000.0, 12_000.0]),
            side("floor", true, &[5000.0, 5000.0]),
        ];
        let goals = [
            Goal { side: 1, of: vec![0, 3], plus: 3000.0, limit: 1.0 },
            Goal { side: 2, of: vec![1], plus: 0.0, limit: 1.15 },
        ];
        let cells = evaluate("work", Unit::Time, &sides, &goals).sides;
        let goal = cells[1].goal.as_ref().unwrap();
        // 8 of 9 in the first round, 10 of 10 in the second.
        assert!((goal.ratio - (8.0 / 9.0 + 1.0) / 2.0).abs() < 1e-9, "{goal:?}");
        assert_eq!((goal.of.as_str(), goal.verdict), ("branch + floor + 3 us", Verdict::Reached));
        let goal = cells[2].goal.as_ref().unwrap();
        assert_eq!((goal.of.as_str(), goal.verdict), ("pool", Verdict::NotReached));
        let strict = [Goal { side: 1, of: vec![0, 3], plus: 500.0, limit: 1.0 }];
        let cells = evaluate("work", Unit::Time, &sides, &strict).sides;
        assert_eq!(cells[1].goal.as_ref().unwrap().verdict, Verdict::NotReached);
    }
}
