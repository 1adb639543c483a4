//! Circles in a graph.

/// Returns the groups of two nodes or more in which every node reaches every other. `next[n]` are the nodes that `n` has
/// an arrow to.
pub(crate) fn circles(next: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<Vec<bool>> = (0..next.len()).map(|start| reach(next, start)).collect();
    let mut seen = vec![false; next.len()];
    let mut circles = Vec::new();
    for start in 0..next.len() {
        if seen[start] {
            continue;
        }
        let circle: Vec<usize> = (start..next.len())
            .filter(|&node| node == start || (reached[start][node] && reached[node][start]))
            .collect();
        circle.iter().for_each(|&node| seen[node] = true);
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

/// Returns which nodes a node reaches.
fn reach(next: &[Vec<usize>], start: usize) -> Vec<bool> {
    let mut reached = vec![false; next.len()];
    let mut left = vec![start];
    while let Some(node) = left.pop() {
        for &to in &next[node] {
            if !reached[to] {
                reached[to] = true;
                left.push(to);
            }
        }
    }
    reached
}
