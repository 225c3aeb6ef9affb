// SPDX-License-Identifier: Apache-2.0

//! A tree drawn as `git log --graph` draws history: the newest above, a lane for each branch.
//! Pure.
//!
//! ```text
//! * c
//! | * d
//! | * b
//! |/
//! * a
//! ```

/// What is drawn: each node with its parent, oldest first, so that a parent comes before its
/// children. One line for each, with what is between, newest first; the number of the node
/// whose text belongs beside a line is in it.
pub(super) fn lines(parents: &[Option<usize>]) -> Vec<(String, Option<usize>)> {
    let mut drawn = Vec::new();
    // Which node each lane leads down to.
    let mut lanes: Vec<usize> = Vec::new();
    for node in (0..parents.len()).rev() {
        let column = match lanes.iter().position(|to| *to == node) {
            Some(column) => column,
            None => {
                lanes.push(node);
                lanes.len() - 1
            }
        };
        while let Some(joins) = lanes
            .iter()
            .rposition(|to| *to == node)
            .filter(|at| *at > column)
        {
            drawn.push((join(lanes.len(), column, joins), None));
            lanes.remove(joins);
        }
        let cell = |lane| if lane == column { "* " } else { "| " };
        let line: String = (0..lanes.len()).map(cell).collect();
        drawn.push((line, Some(node)));
        match parents[node] {
            Some(parent) => lanes[column] = parent,
            None => {
                lanes.remove(column);
            }
        }
    }
    drawn
}

/// The line in which the lane `joins` reaches the lane `column`, and those right of it move up.
fn join(lanes: usize, column: usize, joins: usize) -> String {
    let mut line = String::new();
    for lane in 0..joins {
        line.push('|');
        line.push(match lane {
            lane if lane + 1 == joins => '/',
            lane if lane >= column => '_',
            _ => ' ',
        });
    }
    line.push_str(&" /".repeat(lanes - joins - 1));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(parents: &[Option<usize>]) -> String {
        let text = |(line, node): (String, Option<usize>)| match node {
            Some(node) => format!("{line}{node}"),
            None => line,
        };
        let lines: Vec<String> = lines(parents).into_iter().map(text).collect();
        lines.join("\n")
    }

    #[test]
    fn a_branch_has_a_lane_until_it_joins() {
        assert_eq!(drawn(&[]), "");
        assert_eq!(drawn(&[None, Some(0), Some(1)]), "* 2\n* 1\n* 0");
        // 1 and 2 go on from 0, 3 from 2, 4 from 1.
        let parents = [None, Some(0), Some(0), Some(2), Some(1)];
        assert_eq!(drawn(&parents), "* 4\n| * 3\n| * 2\n* | 1\n|/\n* 0");
    }

    #[test]
    fn a_lane_joins_over_others_and_what_is_right_of_it_moves_up() {
        // 1, 3 and 5 go on from 0, 2 and 4 from 1.
        let parents = [None, Some(0), Some(1), Some(0), Some(1), Some(0)];
        let expected = [
            "* 5",
            "| * 4",
            "| | * 3",
            "| | | * 2",
            "| |_|/",
            "| * | 1",
            "|_|/",
            "|/",
            "* 0",
        ];
        assert_eq!(drawn(&parents), expected.join("\n"));
        // 2 and 3 go on from 0, 1 has begun by itself.
        let two = [None, None, Some(0), Some(0)];
        assert_eq!(drawn(&two), "* 3\n| * 2\n| | * 1\n|/\n* 0");
    }
}
