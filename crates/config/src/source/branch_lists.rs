//! How one list of branches differs from another, for those who change it.

use canopy_base::text::one_line;
use canopy_branch::branch::BranchList;
use std::fmt::Write as _;

/// Returns the lines that differ, as diff(1) shows them, with the place of each in the list.
pub fn difference(place: &str, before: &BranchList, after: &BranchList) -> String {
    let lines = |list: &BranchList| -> Vec<String> {
        list.iter()
            .map(|spec| one_line(&[spec.clone()].into_iter().collect::<BranchList>().to_string()))
            .collect()
    };
    let (old, new) = (lines(before), lines(after));
    let mut text = format!("branches of {place}:\n");
    for line in &old {
        let mark = if new.contains(line) { ' ' } else { '-' };
        let _ = writeln!(text, "{mark} {line}");
        // A changed branch is shown next to what it was.
        let same_path = |other: &&String| line.split('=').next() == other.split('=').next();
        if mark == '-'
            && let Some(changed) = new.iter().find(same_path)
        {
            let _ = writeln!(text, "+ {changed}");
        }
    }
    let is_new = |line: &&String| {
        !old.contains(line) && !old.iter().any(|other| line.split('=').next() == other.split('=').next())
    };
    for line in new.iter().filter(is_new) {
        let at = match new.first() {
            Some(first) if first == line && new.len() > 1 => " (first)",
            _ => "",
        };
        let _ = writeln!(text, "+ {line}{at}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_show_what_goes_and_comes() {
        let list = |text: &str| BranchList::parse(text, &canopy_branch::branch::FileSystem).unwrap();
        let before = list("/x1=RW:/x2=RW,10G:/x3=NC");
        for (after, shown) in [
            ("/x1=RW:/x3=NC", "  /x1=RW\n- /x2=RW,10G\n  /x3=NC\n"),
            ("/x1=RW:/x2=RO,10G:/x3=NC", "  /x1=RW\n- /x2=RW,10G\n+ /x2=RO,10G\n  /x3=NC\n"),
            ("/x0=RW:/x1=RW:/x2=RW,10G:/x3=NC", "  /x1=RW\n  /x2=RW,10G\n  /x3=NC\n+ /x0=RW (first)\n"),
        ] {
            assert_eq!(difference("/p", &before, &list(after)), format!("branches of /p:\n{shown}"));
        }
    }
}
