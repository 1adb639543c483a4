//! Why a choice falls as it does: what the filters and picks that make it say of each branch.

use super::model::{BranchView, Category, Exclusion, Pick, Policy, weight};
use super::{action, create, search};

/// What a policy makes of its views. One entry a branch, in branch-list order.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// Why the category did not admit the branch; None when it did, and the policy had the choice.
    pub exclusions: Vec<Option<Exclusion>>,
    /// The probability of each branch, where chance decides among several.
    pub chances: Option<Vec<f64>>,
}

/// The reasons for a choice on one level of the tree.
pub fn explain(policy: Policy, category: Category, views: &[BranchView]) -> Explanation {
    let pick = policy.pick();
    let admit = |view| match (pick, category) {
        // Nothing is looked at, everything is refused.
        (Pick::Refuse, _) => Ok(()),
        (_, Category::Action) => action::admit(view),
        (_, Category::Create) => create::admit(policy, view),
        (_, Category::Search) => search::admit(policy, view),
    };
    let exclusions: Vec<Option<Exclusion>> = views.iter().map(|view| admit(view).err()).collect();
    let chances = chances(pick, views, &exclusions);
    Explanation { exclusions, chances }
}

fn chances(pick: Pick, views: &[BranchView], exclusions: &[Option<Exclusion>]) -> Option<Vec<f64>> {
    let share = |view| match pick {
        Pick::Weighted => Some(weight(view) as f64),
        Pick::Uniform => Some(1.0),
        _ => None,
    };
    let shares = views.iter().zip(exclusions).map(|(view, bar)| match bar {
        Some(_) => Some(0.0),
        None => share(view),
    });
    let shares: Vec<f64> = shares.collect::<Option<_>>()?;
    let total: f64 = shares.iter().sum();
    let by_chance = shares.iter().filter(|&&share| share > 0.0).count() > 1;
    by_chance.then(|| shares.iter().map(|share| share / total).collect())
}
