//! Which ports are near each other, and the tree that both the mindicator and the token tree are
//! built on.
//!
//! The paper's trees have a leaf per queue and a node per core, socket and machine (Sections 3.1
//! and 3.2). A node with a single child would cost an atomic operation and localize nothing, so
//! such a level is left out: with one port per core the leaves hang from the socket, on one socket
//! the cores hang from the root, and a lone port hangs from the root itself. The proximity matrix
//! needs no table of its own: the nearest of several ports is the one found under the lowest node
//! on the way up.
//!
//! ```text
//!   2 sockets, 2 cores each, 2 ports per core       1 socket, 1 port per core
//!                 root                                       root
//!           /             \                              /  |    |  \
//!       socket           socket                         0   1    2   3
//!       /    \           /    \
//!     core   core     core   core
//!     0 1    2 3      4 5    6 7
//! ```

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::contract::port_set::{PortId, PortSet};

/// Where each port runs: its socket and its core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    places: Vec<(u16, u16)>,
}

impl Topology {
    /// The `(socket, core)` of each port, by port index. Core numbers may be counted per socket or
    /// over the whole machine.
    pub fn new(places: Vec<(u16, u16)>) -> Self {
        Topology { places }
    }

    /// So many ports on as many cores of one socket.
    pub fn flat(ports: usize) -> Self {
        Topology { places: (0..ports).map(|core| (0, core as u16)).collect() }
    }

    /// How many ports there are.
    pub fn ports(&self) -> usize {
        self.places.len()
    }

    /// The tree of cores and sockets.
    pub(crate) fn tree(&self) -> Tree {
        let mut tree = Tree::with_root(self.ports());
        let everyone: Vec<usize> = (0..self.ports()).collect();
        let levels: [&dyn Fn(usize) -> (u16, u16); 2] =
            [&|port| (self.places[port].0, 0), &|port| self.places[port]];
        tree.grow(Tree::ROOT, &everyone, &levels);
        tree
    }

    /// The tree without levels between the ports and the machine.
    pub(crate) fn scan(&self) -> Tree {
        let mut tree = Tree::with_root(self.ports());
        let everyone: Vec<usize> = (0..self.ports()).collect();
        tree.grow(Tree::ROOT, &everyone, &[]);
        tree
    }
}

/// A tree over the ports. Nodes are numbered: the root is 0, the other inner nodes follow, the
/// leaves are last, by port index.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    parents: Box<[u16]>,
    children: Box<[Box<[u16]>]>,
    /// The ports below each inner node.
    members: Box<[u64]>,
    ports: usize,
}

impl Tree {
    /// The node above all others.
    pub(crate) const ROOT: usize = 0;

    fn with_root(ports: usize) -> Tree {
        Tree {
            parents: Box::new([]),
            children: Box::new([]),
            members: vec![PortSet::first(ports).bits()].into_boxed_slice(),
            ports,
        }
    }

    /// Hangs `ports` below `node`, through one node for each distinct value of the first of
    /// `levels`, and so on.
    fn grow(&mut self, node: usize, ports: &[usize], levels: &[&dyn Fn(usize) -> (u16, u16)]) {
        let mut builder = Builder {
            parents: vec![0],
            leaf_parents: vec![0; self.ports],
            members: vec![self.members[0]],
        };
        builder.grow(node, ports, levels);
        let inner = builder.parents.len();
        let parents: Vec<u16> =
            builder.parents.iter().chain(&builder.leaf_parents).copied().collect();
        let children_of = |node: usize| {
            (1..parents.len())
                .filter(|&child| usize::from(parents[child]) == node)
                .map(|child| child as u16)
                .collect()
        };
        self.children = (0..inner).map(children_of).collect();
        self.members = builder.members.into_boxed_slice();
        self.parents = parents.into_boxed_slice();
    }

    /// How many nodes there are, leaves included.
    pub(crate) fn nodes(&self) -> usize {
        self.parents.len()
    }

    /// How many ports there are.
    pub(crate) fn ports(&self) -> usize {
        self.ports
    }

    /// The port's leaf.
    #[inline]
    pub(crate) fn leaf(&self, port: PortId) -> usize {
        self.children.len() + usize::from(port.0)
    }

    /// The node above; the root is above itself.
    #[inline]
    pub(crate) fn parent(&self, node: usize) -> usize {
        self.parents.get(node).copied().map_or(Self::ROOT, usize::from)
    }

    /// The nodes below an inner node.
    #[inline]
    pub(crate) fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.children.get(node).into_iter().flatten().map(|&child| usize::from(child))
    }

    /// The ports below an inner node.
    #[inline]
    pub(crate) fn members(&self, node: usize) -> u64 {
        self.members.get(node).copied().unwrap_or(0)
    }

    /// The nearest to `port` of the ports in `candidates`, and the lowest node above both. Among
    /// equally near ones it is the next after `port` in cyclic order, so that none is always passed
    /// over.
    pub(crate) fn nearest(&self, port: PortId, candidates: u64) -> Option<(PortId, usize)> {
        let candidates = candidates & !PortSet::only(port).bits();
        if candidates == 0 {
            return None;
        }
        let mut node = self.leaf(port);
        // A round a level.
        loop {
            node = self.parent(node);
            let near = candidates & self.members(node);
            if near != 0 {
                let start = u32::from(port.0) & 63;
                let found = near.rotate_right(start).trailing_zeros().wrapping_add(start) & 63;
                return Some((PortId(found as u8), node));
            }
            if node == Self::ROOT {
                return None;
            }
        }
    }
}

/// The parents of inner nodes and of leaves while a tree grows.
struct Builder {
    parents: Vec<u16>,
    leaf_parents: Vec<u16>,
    members: Vec<u64>,
}

impl Builder {
    fn grow(&mut self, node: usize, ports: &[usize], levels: &[&dyn Fn(usize) -> (u16, u16)]) {
        let Some((level, lower)) = levels.split_first() else {
            // The leaves' parents are given as inner node numbers, which do not change when leaves
            // are appended.
            ports.iter().for_each(|&port| self.leaf_parents[port] = node as u16);
            return;
        };
        let mut places: Vec<(u16, u16)> = ports.iter().map(|&port| level(port)).collect();
        places.sort_unstable();
        places.dedup();
        for &place in &places {
            let here: Vec<usize> =
                ports.iter().copied().filter(|&port| level(port) == place).collect();
            if places.len() == 1 {
                self.grow(node, &here, lower);
            } else if let [port] = here[..] {
                self.leaf_parents[port] = node as u16;
            } else {
                let new = self.parents.len();
                self.parents.push(node as u16);
                self.members.push(here.iter().fold(0, |set, port| set | 1 << port));
                self.grow(new, &here, lower);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn paper_machine() -> Tree {
        // Figure 3: 2 sockets, 4 cores each, 2 threads per core.
        Topology::new((0..16).map(|port| (port / 8, port / 2)).collect()).tree()
    }

    #[test]
    fn the_papers_machine_has_three_levels() {
        let tree = paper_machine();
        assert_eq!(tree.nodes(), 1 + 2 + 8 + 16);
        let core = tree.parent(tree.leaf(PortId(7)));
        assert_eq!(core, tree.parent(tree.leaf(PortId(6))));
        assert_eq!(tree.members(core), 0b1100_0000);
        let socket = tree.parent(core);
        assert_eq!(tree.members(socket), 0xff);
        assert_eq!(tree.parent(socket), Tree::ROOT);
        assert_eq!(tree.members(Tree::ROOT), 0xffff);
        assert_eq!(tree.children(Tree::ROOT).count(), 2);
        assert_eq!(tree.children(socket).count(), 4);
        assert_eq!(
            tree.children(core).collect::<Vec<_>>(),
            [tree.leaf(PortId(6)), tree.leaf(PortId(7))]
        );
    }

    #[test]
    fn levels_that_localize_nothing_are_left_out() {
        for tree in [Topology::flat(1).tree(), Topology::new(vec![(3, 9)]).tree()] {
            assert_eq!(tree.nodes(), 2);
            assert_eq!(tree.parent(tree.leaf(PortId(0))), Tree::ROOT);
        }
        // One port per core: no core nodes. One socket: no socket node.
        assert_eq!(Topology::flat(4).tree().nodes(), 1 + 4);
        assert_eq!(Topology::new(vec![(0, 0), (0, 0), (0, 1), (0, 1)]).tree().nodes(), 1 + 2 + 4);
        assert_eq!(Topology::new(vec![(0, 0), (0, 1), (1, 0), (1, 1)]).tree().nodes(), 1 + 2 + 4);
        // A socket with one core of two ports has one node, not two.
        assert_eq!(Topology::new(vec![(0, 0), (0, 0), (1, 1)]).tree().nodes(), 1 + 1 + 3);
        assert_eq!(Topology::new(vec![(0, 0), (0, 0), (1, 1)]).scan().nodes(), 1 + 3);
    }

    #[test]
    fn the_nearest_is_on_the_same_core_then_socket_then_elsewhere() {
        let tree = paper_machine();
        let nearest = |candidates: u64| tree.nearest(PortId(2), candidates);
        let core = tree.parent(tree.leaf(PortId(2)));
        let socket = tree.parent(core);
        assert_eq!(nearest(1 << 3 | 1 << 5 | 1 << 9), Some((PortId(3), core)));
        assert_eq!(nearest(1 << 5 | 1 << 9), Some((PortId(5), socket)));
        assert_eq!(nearest(1 << 9), Some((PortId(9), Tree::ROOT)));
        assert_eq!(
            nearest(1 << 1 | 1 << 2),
            Some((PortId(1), socket)),
            "not itself; cyclic order wraps"
        );
        assert_eq!(nearest(1 << 2), None);
        assert_eq!(nearest(0), None);
        let full = Topology::flat(64).tree();
        assert_eq!(full.nearest(PortId(63), 1 << 5 | 1 << 60), Some((PortId(5), Tree::ROOT)));
    }
}
