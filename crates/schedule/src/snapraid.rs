//! What `snapraid diff` says before a sync: what was deleted since the last one cannot be got back after it.

/// Returns how many files were removed, as the summary of `snapraid diff` says.
pub(crate) fn removed(output: &[String]) -> Option<u64> {
    output.iter().rev().find_map(|line| {
        let (number, word) = line.trim().split_once(' ')?;
        (word == "removed").then(|| number.parse().ok()).flatten()
    })
}

/// Returns whether a line says nothing of what a run was about: it keeps its books at the end.
pub(crate) fn is_noise(line: &str) -> bool {
    ["Saving state", "Verifying", "Verified", "Loading state"].iter().any(|begin| line.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read() {
        // As snapraid 12.2 prints it.
        let said = "Loading state from /c/snapraid.content...\nComparing...\nremove 7 removed\nremove a\n\n       2 equal\n       \
                    0 added\n       1 removed\n       0 updated\n       0 moved\n       0 copied\n       0 restored\nThere are \
                    differences!";
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(removed(&lines(said)), Some(1));
        assert_eq!(removed(&lines("Comparing...\nNo differences")), None);
        assert!(is_noise("Verified /c/snapraid.content in 0 seconds") && !is_noise("Everything OK"));
    }
}
