//! What differs between two texts.

/// Returns the lines that go and those that come, in their order, each behind `-` or `+`: texts are compared line by line, by
/// their longest common part.
pub fn difference(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[same..], &new[same..]);
    let same = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[..old.len() - same], &new[..new.len() - same]);
    // How many lines the rests from here on have in common.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut shown) = (0, 0, String::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
            shown.push_str(&format!("- {}\n", old[i]));
            i += 1;
        } else {
            shown.push_str(&format!("+ {}\n", new[j]));
            j += 1;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_the_lines_that_differ() {
        for (before, after, expected) in [
            ("a\nb\n", "a\nb\n", ""),
            ("a\nb\nc\n", "a\nc\n", "- b\n"),
            ("a\n", "a\nb\nc\n", "+ b\n+ c\n"),
            ("a\nx\nb\ny\nc\n", "a\nX\nb\nY\nc\n", "- x\n+ X\n- y\n+ Y\n"),
            ("", "a", "+ a\n"),
        ] {
            assert_eq!(difference(before, after), expected, "{before:?} {after:?}");
        }
    }
}
