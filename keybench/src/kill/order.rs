//! Whether there is one order of mutations that explains all keys together.
//!
//! A graph: mutations, and the stamps at which they began and ended. An edge means *before*. Stamps follow one another;
//! a mutation lies after the stamp at which it began and before the one at which it ended; and it lies before the one that
//! came last on a key that both wrote. An order exists if and only if there is no cycle (Kahn, "Topological sorting of
//! large networks", CACM 1962). O(mutations log mutations + operations).

use super::journal::{Mutation, Print};
use std::collections::HashMap;

/// What is known of the order.
pub struct Order<'a> {
    /// All mutations since the last check.
    pub mutations: &'a [Mutation],
    /// The mutations that wrote each key.
    pub writes: &'a HashMap<&'a [u8], Vec<(usize, Option<Print>)>>,
    /// For keys where only one explains what was found: which came last, or none if it is as it was before all.
    pub last: &'a [(&'a [u8], Option<usize>)],
}

impl Order<'_> {
    /// Mutations that certainly happened: the acknowledged ones, and those that show.
    pub fn shown(&self) -> impl Iterator<Item = usize> {
        let mut happened: Vec<bool> = self.mutations.iter().map(|m| m.acknowledged).collect();
        for (_, last) in self.last {
            if let Some(m) = last {
                happened[*m] = true;
            }
        }
        happened.into_iter().enumerate().filter(|(_, h)| *h).map(|(m, _)| m)
    }

    /// A contradiction in words, if there is one.
    pub fn contradiction(&self) -> Option<String> {
        let shown: Vec<usize> = self.shown().collect();
        let mut node_of = vec![None; self.mutations.len()];
        shown.iter().enumerate().for_each(|(node, m)| node_of[*m] = Some(node));
        let mut graph = Graph::default();
        for (key, last) in self.last {
            let others = self.writes.get(key).into_iter().flatten().filter(|(w, _)| Some(*w) != *last);
            for (node, w) in others.filter_map(|(w, _)| node_of[*w].map(|node| (node, *w))) {
                match last.and_then(|last| node_of[last]) {
                    Some(last) => graph.edges.push((node, last)),
                    None => {
                        let m = self.mutations[w].describe();
                        return Some(format!("{m} is there in part: key '{}' is as before", key.escape_ascii()));
                    }
                }
            }
        }
        self.add_time(&shown, &mut graph);
        let cycle = graph.cycle()?;
        let named: Vec<String> =
            cycle.iter().filter_map(|n| shown.get(*n)).take(6).map(|m| self.mutations[*m].describe()).collect();
        Some(format!("no order explains these, each of which must come before the next: {}", named.join(" ")))
    }

    /// Adds stamps, and edges between them and the mutations.
    fn add_time(&self, shown: &[usize], graph: &mut Graph) {
        let mut stamps: Vec<u64> =
            shown.iter().flat_map(|m| [self.mutations[*m].begun, self.mutations[*m].ended]).collect();
        stamps.sort_unstable();
        stamps.dedup();
        let node = |stamp: u64| shown.len() + stamps.partition_point(|s| *s < stamp);
        graph.edges.extend((1..stamps.len()).map(|i| (shown.len() + i - 1, shown.len() + i)));
        for (i, m) in shown.iter().enumerate() {
            let Mutation { begun, ended, .. } = self.mutations[*m];
            graph.edges.extend([(node(begun), i), (i, node(ended))]);
        }
        graph.nodes = shown.len() + stamps.len();
    }
}

#[derive(Default)]
struct Graph {
    nodes: usize,
    edges: Vec<(usize, usize)>,
}

impl Graph {
    /// The nodes of a cycle, in order.
    fn cycle(mut self) -> Option<Vec<usize>> {
        self.edges.sort_unstable();
        let from = |node: usize| self.edges.partition_point(|e| e.0 < node);
        let starts: Vec<usize> = (0..=self.nodes).map(from).collect();
        let next = |node: usize| self.edges[starts[node]..starts[node + 1]].iter().map(|e| e.1);
        let mut before = vec![0u32; self.nodes];
        self.edges.iter().for_each(|e| before[e.1] += 1);
        let mut ready: Vec<usize> = (0..self.nodes).filter(|n| before[*n] == 0).collect();
        let mut left = self.nodes;
        while let Some(node) = ready.pop() {
            left -= 1;
            for n in next(node) {
                before[n] -= 1;
                if before[n] == 0 {
                    ready.push(n);
                }
            }
        }
        if left == 0 {
            return None;
        }
        // Every node that is left has one before it that is left: going back from any of them meets a cycle.
        let mut back = vec![usize::MAX; self.nodes];
        for (a, b) in &self.edges {
            if before[*a] > 0 && before[*b] > 0 {
                back[*b] = *a;
            }
        }
        let mut at = (0..self.nodes).find(|n| before[*n] > 0)?;
        let mut seen = vec![false; self.nodes];
        while !std::mem::replace(&mut seen[at], true) {
            at = back[at];
        }
        let mut cycle = vec![at];
        let mut n = back[at];
        while n != at {
            cycle.push(n);
            n = back[n];
        }
        cycle.reverse();
        Some(cycle)
    }
}
