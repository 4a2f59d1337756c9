//! A directed graph with kinds of edges: strongly connected components (Tarjan 1972) and shortest paths, both with only
//! some kinds of edges and in time linear in the size of the graph.

use std::collections::{HashMap, VecDeque};

pub type Node = u32;

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Edge {
    /// It overwrote the other's version.
    WriteWrite = 0,
    /// It read the other's version.
    WriteRead = 1,
    /// Its version replaced one that the other had read.
    ReadWrite = 2,
    /// It found a key absent from a range because the other had deleted it.
    WritePredicate = 3,
    /// It put a key into a range in which the other had not found it.
    PredicateWrite = 4,
    /// It began when the other's outcome was known.
    RealTime = 5,
    /// From a transaction's begin to its commit.
    Inner = 6,
}

impl Edge {
    const ALL: [Edge; 7] = [
        Edge::WriteWrite,
        Edge::WriteRead,
        Edge::ReadWrite,
        Edge::WritePredicate,
        Edge::PredicateWrite,
        Edge::RealTime,
        Edge::Inner,
    ];

    pub fn is_anti(self) -> bool {
        matches!(self, Edge::ReadWrite | Edge::PredicateWrite)
    }
}

/// A set of kinds of edges.
#[derive(Clone, Copy)]
pub struct Kinds(u32);

impl Kinds {
    pub const ALL: Kinds = Kinds(0x7f);

    pub const fn of(kinds: &[Edge]) -> Kinds {
        let (mut set, mut i) = (0, 0);
        while i < kinds.len() {
            set |= 1 << kinds[i] as u32;
            i += 1;
        }
        Kinds(set)
    }

    pub const fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    fn has(self, packed: u32) -> bool {
        self.0 >> (packed >> SHIFT) & 1 == 1
    }
}

/// An edge's target in the low bits, its kind above.
const SHIFT: u32 = 29;

/// Edges as they are gathered.
#[derive(Default)]
pub struct Edges(Vec<(Node, u32)>);

impl Edges {
    pub fn add(&mut self, from: Node, to: Node, kind: Edge) {
        assert!(to < 1 << SHIFT, "too many nodes for the packing");
        self.0.push((from, to | (kind as u32) << SHIFT));
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Out-edges of each node, one after the other.
pub struct Graph {
    offsets: Vec<u32>,
    targets: Vec<u32>,
}

const UNSEEN: u32 = u32::MAX;

impl Graph {
    pub fn new(nodes: usize, edges: &Edges) -> Graph {
        let mut offsets = vec![0u32; nodes + 1];
        edges.0.iter().for_each(|e| offsets[e.0 as usize + 1] += 1);
        for i in 0..nodes {
            offsets[i + 1] += offsets[i];
        }
        let mut next = offsets.clone();
        let mut targets = vec![0; edges.0.len()];
        for (from, packed) in &edges.0 {
            let at = &mut next[*from as usize];
            targets[*at as usize] = *packed;
            *at += 1;
        }
        Graph { offsets, targets }
    }

    pub fn nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    fn packed(&self, node: Node) -> &[u32] {
        &self.targets[self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize]
    }

    pub fn out(&self, node: Node, kinds: Kinds) -> impl Iterator<Item = (Node, Edge)> {
        let unpack = |p: &u32| (p & ((1 << SHIFT) - 1), Edge::ALL[(p >> SHIFT) as usize]);
        self.packed(node).iter().filter(move |p| kinds.has(**p)).map(unpack)
    }

    /// The components of more than one node.
    pub fn cycles(&self, kinds: Kinds) -> Vec<Vec<Node>> {
        let n = self.nodes();
        let mut tarjan = Tarjan { order: vec![UNSEEN; n], low: vec![0; n], stack: Vec::new(), found: Vec::new() };
        let mut next = 0;
        let mut path: Vec<(Node, u32)> = Vec::new();
        for root in 0..n as Node {
            if tarjan.order[root as usize] != UNSEEN {
                continue;
            }
            tarjan.enter(root, &mut next);
            path.push((root, self.offsets[root as usize]));
            while let Some((node, edge)) = path.last_mut() {
                let node = *node;
                if *edge == self.offsets[node as usize + 1] {
                    path.pop();
                    tarjan.leave(node, path.last().map(|p| p.0));
                    continue;
                }
                let packed = self.targets[*edge as usize];
                *edge += 1;
                let to = packed & ((1 << SHIFT) - 1);
                if !kinds.has(packed) {
                    continue;
                }
                if tarjan.order[to as usize] == UNSEEN {
                    tarjan.enter(to, &mut next);
                    path.push((to, self.offsets[to as usize]));
                } else {
                    tarjan.meet(node, to);
                }
            }
        }
        tarjan.found
    }

    /// The part of the graph between these nodes, which get the numbers of their places.
    pub fn within(&self, nodes: &[Node]) -> Graph {
        let places: HashMap<Node, Node> = nodes.iter().enumerate().map(|(i, n)| (*n, i as Node)).collect();
        let mut edges = Edges::default();
        for (i, node) in nodes.iter().enumerate() {
            for (to, kind) in self.out(*node, Kinds::ALL) {
                if let Some(place) = places.get(&to) {
                    edges.add(i as Node, *place, kind);
                }
            }
        }
        Graph::new(nodes.len(), &edges)
    }

    /// A shortest path, as the edges taken and where they lead.
    pub fn path(&self, from: Node, to: Node, kinds: Kinds) -> Option<Vec<(Edge, Node)>> {
        let mut came: Vec<Option<(Node, Edge)>> = vec![None; self.nodes()];
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            if node == to {
                let mut path = Vec::new();
                let mut at = to;
                while at != from {
                    let (before, kind) = came[at as usize].expect("visited");
                    path.push((kind, at));
                    at = before;
                }
                path.reverse();
                return Some(path);
            }
            for (next, kind) in self.out(node, kinds) {
                if next != from && came[next as usize].is_none() {
                    came[next as usize] = Some((node, kind));
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// A cycle of one edge of the `first` kinds and then a shortest path of edges of the `rest` kinds: its nodes, each with
    /// the edge that leaves it.
    pub fn cycle(&self, first: Kinds, rest: Kinds) -> Option<Vec<(Node, Edge)>> {
        /// Nodes visited before a search is given up.
        const EFFORT: usize = 20_000_000;
        for component in self.cycles(first.or(rest)) {
            let part = self.within(&component);
            let nodes = 0..part.nodes() as Node;
            let starts = nodes.flat_map(|n| part.out(n, first).map(move |(to, kind)| (n, to, kind)));
            for (from, to, kind) in starts.take((EFFORT / part.nodes()).clamp(1, 2000)) {
                let Some(path) = part.path(to, from, rest) else { continue };
                let mut cycle = vec![(component[from as usize], kind)];
                let mut at = to;
                for (kind, next) in path {
                    cycle.push((component[at as usize], kind));
                    at = next;
                }
                return Some(cycle);
            }
        }
        None
    }
}

struct Tarjan {
    /// In which order nodes were found; `UNSEEN` before.
    order: Vec<u32>,
    /// The earliest node on the stack that can be reached; `DONE` once its component is known.
    low: Vec<u32>,
    stack: Vec<Node>,
    found: Vec<Vec<Node>>,
}

const DONE: u32 = u32::MAX;

impl Tarjan {
    fn enter(&mut self, node: Node, next: &mut u32) {
        self.order[node as usize] = *next;
        self.low[node as usize] = *next;
        *next += 1;
        self.stack.push(node);
    }

    fn meet(&mut self, node: Node, other: Node) {
        if self.low[other as usize] != DONE {
            self.low[node as usize] = self.low[node as usize].min(self.order[other as usize]);
        }
    }

    fn leave(&mut self, node: Node, parent: Option<Node>) {
        let low = self.low[node as usize];
        if low == self.order[node as usize] {
            let from = self.stack.iter().rposition(|n| *n == node).expect("on the stack");
            if self.stack.len() - from > 1 {
                self.found.push(self.stack[from..].to_vec());
            }
            for n in self.stack.drain(from..) {
                self.low[n as usize] = DONE;
            }
        }
        if let Some(parent) = parent {
            let low = self.low[node as usize];
            if low != DONE {
                self.low[parent as usize] = self.low[parent as usize].min(low);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    /// Components are exactly the classes of nodes that reach each other.
    #[test]
    fn components_are_mutual_reachability() {
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let n = 1 + rng.below(12) as usize;
            let mut edges = Edges::default();
            let mut reach = vec![vec![false; n]; n];
            for _ in 0..rng.below(20) {
                let (a, b) = (rng.below(n as u64) as usize, rng.below(n as u64) as usize);
                let kind = if rng.one_in(4) { Edge::ReadWrite } else { Edge::WriteWrite };
                edges.add(a as Node, b as Node, kind);
                reach[a][b] |= kind == Edge::WriteWrite;
            }
            for k in 0..n {
                for i in 0..n {
                    for j in 0..n {
                        reach[i][j] |= reach[i][k] && reach[k][j];
                    }
                }
            }
            let graph = Graph::new(n, &edges);
            let found = graph.cycles(Kinds::of(&[Edge::WriteWrite]));
            let class = |i: usize| found.iter().position(|c| c.contains(&(i as Node)));
            for (i, from_i) in reach.iter().enumerate() {
                for (j, from_j) in reach.iter().enumerate() {
                    let together = class(i).is_some() && class(i) == class(j);
                    assert_eq!(together, i != j && from_i[j] && from_j[i] || i == j && class(i).is_some());
                    let path = graph.path(i as Node, j as Node, Kinds::of(&[Edge::WriteWrite]));
                    assert_eq!(path.is_some(), i == j || from_i[j]);
                }
            }
        }
    }
}
