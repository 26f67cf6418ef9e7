//! Circles in a graph of names.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::{astar, greedy_feedback_arc_set, tarjan_scc};
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;

/// Names that all reach each other.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Circle {
    /// The names, in order.
    pub members: BTreeSet<String>,
    /// Edges without which no circle would be left. Each comes as the shortest circle that it
    /// closes, in which it is the first step; the first name isn't repeated at the end.
    pub closing: BTreeSet<Vec<String>>,
}

/// Returns all circles, which are the strongly connected parts of the graph with these edges.
pub fn circles<'a>(edges: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Circle> {
    let graph = graph(edges);
    let parts = tarjan_scc(&graph).into_iter().filter(|part| part.len() > 1);
    let mut circles: Vec<Circle> = parts.map(|part| circle(&graph, &part.into_iter().collect())).collect();
    circles.sort();
    circles
}

fn graph<'a>(edges: impl IntoIterator<Item = (&'a str, &'a str)>) -> StableDiGraph<&'a str, ()> {
    let mut graph = StableDiGraph::new();
    let mut nodes = BTreeMap::new();
    let edges: BTreeSet<_> = edges.into_iter().collect();
    for (from, to) in edges {
        let [from, to] = [from, to].map(|name| *nodes.entry(name).or_insert_with(|| graph.add_node(name)));
        graph.add_edge(from, to, ());
    }
    graph
}

fn circle(graph: &StableDiGraph<&str, ()>, part: &BTreeSet<NodeIndex>) -> Circle {
    let part = graph.filter_map(|node, name| part.contains(&node).then_some(*name), |_, ()| Some(()));
    let closing = greedy_feedback_arc_set(&part).filter_map(|edge| {
        let (_, back) = astar(&part, edge.target(), |node| node == edge.source(), |_| 1, |_| 0)?;
        let last = back.len() - 1;
        let names = std::iter::once(edge.source()).chain(back[..last].iter().copied());
        Some(names.map(|node| part[node].to_owned()).collect())
    });
    Circle { members: part.node_weights().map(|name| (*name).to_owned()).collect(), closing: closing.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_no_circle() {
        assert_eq!(circles([("a", "b"), ("a", "c"), ("b", "c")]), []);
    }

    #[test]
    fn each_circle_is_found_once_with_what_closes_it() {
        let found = circles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("e", "f")]);
        let members: Vec<String> = found.iter().map(|circle| circle.members.iter().cloned().collect()).collect();
        assert_eq!(members, ["abc", "de"]);
        for circle in found {
            let [closing] = Vec::from_iter(circle.closing).try_into().expect("one edge less, and it is none");
            assert_eq!(BTreeSet::from_iter(closing), circle.members);
        }
    }
}
