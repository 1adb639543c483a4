//! Tiers and rules as data, between the daemon and whoever asks it.

use canopy_control::messages::{MoveWhenReport, PlacementReport, RuleReport, TargetReport, TierReport};
use canopy_policy::placement::{MoveWhen, Pattern, Placement, Rule, Target, Tier};
use std::time::Duration;

/// Returns what is said of tiers and rules.
pub fn of_placement(placement: &Placement) -> PlacementReport {
    let texts = |patterns: &[Pattern]| patterns.iter().map(|it| it.as_str().to_owned()).collect();
    let when = |when: &MoveWhen| match *when {
        MoveWhen::Fuller { than, until } => MoveWhenReport::Fuller { than, until },
        MoveWhen::Older(age) => MoveWhenReport::OlderSeconds(age.as_secs()),
        MoveWhen::Larger(bytes) => MoveWhenReport::LargerBytes(bytes),
        MoveWhen::EveryNight { hour, minute } => MoveWhenReport::EveryNight { hour, minute },
    };
    let tier = |tier: &Tier| TierReport {
        name: tier.name.clone(),
        branches: texts(&tier.branches),
        move_when: tier.move_when.iter().map(when).collect(),
    };
    let rule = |rule: &Rule| RuleReport {
        path: rule.path.as_str().to_owned(),
        target: match &rule.target {
            Target::Anywhere => TargetReport::Anywhere,
            Target::Branches(patterns) => TargetReport::Branches(texts(patterns)),
            Target::Tier(name) => TargetReport::Tier(name.clone()),
        },
        copies: rule.copies,
        written: rule.written,
    };
    PlacementReport {
        tiers: placement.tiers.iter().map(tier).collect(),
        rules: placement.rules.iter().map(rule).collect(),
    }
}

/// Returns the tiers and rules that are meant; `None` if a glob is not understood here.
pub fn to_placement(report: &PlacementReport) -> Option<Placement> {
    let patterns = |texts: &[String]| texts.iter().map(|text| Pattern::new(text).ok()).collect::<Option<_>>();
    let when = |when: &MoveWhenReport| match *when {
        MoveWhenReport::Fuller { than, until } => MoveWhen::Fuller { than, until },
        MoveWhenReport::OlderSeconds(seconds) => MoveWhen::Older(Duration::from_secs(seconds)),
        MoveWhenReport::LargerBytes(bytes) => MoveWhen::Larger(bytes),
        MoveWhenReport::EveryNight { hour, minute } => MoveWhen::EveryNight { hour, minute },
    };
    let tier = |tier: &TierReport| {
        Some(Tier {
            name: tier.name.clone(),
            branches: patterns(&tier.branches)?,
            move_when: tier.move_when.iter().map(when).collect(),
        })
    };
    let rule = |rule: &RuleReport| {
        Some(Rule {
            path: Pattern::new(&rule.path).ok()?,
            target: match &rule.target {
                TargetReport::Anywhere => Target::Anywhere,
                TargetReport::Branches(texts) => Target::Branches(patterns(texts)?),
                TargetReport::Tier(name) => Target::Tier(name.clone()),
            },
            copies: rule.copies,
            written: rule.written,
        })
    };
    Some(Placement {
        tiers: report.tiers.iter().map(tier).collect::<Option<_>>()?,
        rules: report.rules.iter().map(rule).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{parse_rules, parse_tiers};

    #[test]
    fn tiers_and_rules_arrive_as_they_were() {
        let placement = Placement {
            tiers: parse_tiers("a=/s\\:d|fuller than 70% until 60%|older than 2 days;b=/d*|larger than 1G|every night at 03:05")
                .unwrap(),
            rules: parse_rules("films/**=/d1:/d2;*.part=a|copies 2;x\\;y=copies 3;z=copies 2 when written").unwrap(),
        };
        let json = serde_json::to_string(&of_placement(&placement)).unwrap();
        let report: PlacementReport = serde_json::from_str(&json).unwrap();
        assert_eq!(to_placement(&report), Some(placement));
        let mut other = report;
        other.rules[0].path = "a[".into();
        assert_eq!(to_placement(&other), None);
    }
}
