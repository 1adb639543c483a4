//! Why a policy chooses as it does: what its category's filter and its pick say about each branch.

use super::model::{BranchView, Category, Exclusion, Pick, Policy, weight};
use super::{action, create, search};

/// The reasons for a choice. One entry per branch, in branch-list order.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// Why the category did not admit the branch; `None` if it did.
    pub exclusions: Vec<Option<Exclusion>>,
    /// The probability of each branch, if chance decides among several.
    pub chances: Option<Vec<f64>>,
}

/// Explains a choice on one level of the tree.
pub fn explain(policy: Policy, category: Category, views: &[BranchView]) -> Explanation {
    let pick = policy.pick();
    let admit = |view| match (pick, category) {
        // This policy refuses without looking at the branches.
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
    let shares = views.iter().zip(exclusions).map(|(view, exclusion)| match exclusion {
        Some(_) => Some(0.0),
        None => share(view),
    });
    let shares: Vec<f64> = shares.collect::<Option<_>>()?;
    let total: f64 = shares.iter().sum();
    let by_chance = shares.iter().filter(|&&share| share > 0.0).count() > 1;
    by_chance.then(|| shares.iter().map(|share| share / total).collect())
}
