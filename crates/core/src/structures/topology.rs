//! The proximity of ports, and the tree that both the mindicator and the token tree are built on.
//!
//! The paper's trees have a leaf per queue and a node per core, socket and machine (Sections 3.1
//! and 3.2). A node with a single child would cost an atomic operation and localize nothing, so
//! such a level is left out: with one port per core the leaves hang from the socket, on one socket
//! the cores hang from the root, and a lone port hangs from the root itself. The proximity matrix
//! needs no table of its own: the nearest of several ports is the one found under the lowest node
//! on the way up.
//!
//! A node has at most [`FAN_OUT`] children, so that a scan of them is bounded whatever the number
//! of ports is. Where a machine has more children at one level, groups of neighbours get a node of
//! their own.
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
use core::ops::Range;

use crate::contract::port_set::{PortId, PortSet};

/// The most children of a node: publishing a lead reads all children of a node.
const FAN_OUT: usize = 64;

/// The place of each port: its socket and its core.
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

    /// `ports` ports on as many cores of one socket.
    pub fn flat(ports: usize) -> Self {
        Topology { places: (0..ports).map(|core| (0, core as u16)).collect() }
    }

    /// The number of ports.
    pub fn ports(&self) -> usize {
        self.places.len()
    }

    /// The tree of cores and sockets.
    #[doc(hidden)]
    pub fn tree(&self) -> Tree {
        let ports = self.ports();
        let mut builder = Builder {
            parents: vec![0],
            leaf_parents: vec![0; ports],
            members: vec![PortSet::first(ports)],
        };
        // A core is named with its socket, because core numbers may begin anew on each socket.
        let levels: [&dyn Fn(usize) -> (u16, u16); 2] =
            [&|port| (self.places[port].0, 0), &|port| self.places[port]];
        builder.grow(Tree::ROOT, &(0..ports).collect::<Vec<usize>>(), &levels);
        let Builder { parents: mut all, leaf_parents, members } = builder;
        let inner = all.len();
        all.extend(leaf_parents);
        let children_of = |node: usize| {
            // The root is its own parent, but no node's child.
            (1..all.len())
                .filter(|&child| usize::from(all[child]) == node)
                .map(|child| child as u16)
                .collect()
        };
        let children = (0..inner).map(children_of).collect();
        Tree { parents: all.into(), children, members: members.into(), ports }
    }

    /// The tree without levels between the ports and the machine, however wide: the paper's array,
    /// for the laboratory.
    #[doc(hidden)]
    pub fn scan(&self) -> Tree {
        let ports = self.ports();
        let children = Box::new([(1..=ports as u16).collect()]);
        let members = Box::new([PortSet::first(ports)]);
        Tree { parents: vec![0; ports + 1].into(), children, members, ports }
    }
}

/// A tree over the ports. Nodes are numbered: the root is 0, the other inner nodes follow, the
/// leaves are last, by port index.
#[derive(Clone, Debug)]
pub struct Tree {
    parents: Box<[u16]>,
    children: Box<[Box<[u16]>]>,
    /// The ports below each inner node.
    members: Box<[PortSet]>,
    ports: usize,
}

impl Tree {
    /// The node above all others.
    pub const ROOT: usize = 0;

    /// The number of nodes, leaves included.
    pub fn nodes(&self) -> usize {
        self.parents.len()
    }

    /// The number of inner nodes, which have the first numbers.
    pub fn inner(&self) -> usize {
        self.children.len()
    }

    /// The number of ports.
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// The port's leaf.
    #[inline]
    pub fn leaf(&self, port: PortId) -> usize {
        self.children.len() + usize::from(port.0)
    }

    /// The parent of a node; the root is its own parent.
    #[inline]
    pub fn parent(&self, node: usize) -> usize {
        self.parents.get(node).copied().map_or(Self::ROOT, usize::from)
    }

    /// The nodes below an inner node.
    #[inline]
    pub fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.children.get(node).into_iter().flatten().map(|&child| usize::from(child))
    }

    /// The ports below an inner node.
    #[inline]
    pub fn members(&self, node: usize) -> PortSet {
        self.members.get(node).copied().unwrap_or(PortSet::EMPTY)
    }

    /// The nearest to `port` of the ports in `candidates`, and the lowest node above both. Among
    /// equally near ones it is the next after `port` in cyclic order, so that no port is always
    /// passed over.
    pub fn nearest(&self, port: PortId, mut candidates: PortSet) -> Option<(PortId, usize)> {
        candidates.remove(port);
        if candidates.is_empty() {
            return None;
        }
        let mut node = self.leaf(port);
        // The loop takes one round on each level.
        loop {
            node = self.parent(node);
            if let Some(found) = candidates.and(self.members(node)).after(port) {
                return Some((found, node));
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
    members: Vec<PortSet>,
}

impl Builder {
    /// Hangs `ports` below `node`, through one node for each distinct value of the first of
    /// `levels`, and so on.
    fn grow(&mut self, node: usize, ports: &[usize], levels: &[&dyn Fn(usize) -> (u16, u16)]) {
        let Some((level, lower)) = levels.split_first() else { return self.hang(node, ports) };
        let mut places: Vec<(u16, u16)> = ports.iter().map(|&port| level(port)).collect();
        places.sort_unstable();
        places.dedup();
        // A node with a single child would cost an access and localize nothing.
        if let [_] = places[..] {
            return self.grow(node, ports, lower);
        }
        let ports_of = |place: (u16, u16)| {
            ports.iter().copied().filter(|&port| level(port) == place).collect::<Vec<usize>>()
        };
        for group in Self::groups(places.len()) {
            let here = places[group].iter().map(|&place| ports_of(place)).collect::<Vec<_>>();
            // A group that contains all places needs no node of its own.
            let above = match here.len() == places.len() {
                true => node,
                false => self.node(node, &here.concat()),
            };
            for ports in here {
                match ports[..] {
                    [port] => self.leaf_parents[port] = above as u16,
                    _ => {
                        let new = self.node(above, &ports);
                        self.grow(new, &ports, lower);
                    }
                }
            }
        }
    }

    /// Hangs the leaves of `ports` below `node`. Their parents are inner nodes, whose numbers do
    /// not change when leaves are appended.
    fn hang(&mut self, node: usize, ports: &[usize]) {
        for group in Self::groups(ports.len()) {
            let here = &ports[group];
            let above = if here.len() == ports.len() { node } else { self.node(node, here) };
            here.iter().for_each(|&port| self.leaf_parents[port] = above as u16);
        }
    }

    /// A new inner node above `ports` and below `parent`.
    fn node(&mut self, parent: usize, ports: &[usize]) -> usize {
        self.parents.push(parent as u16);
        self.members.push(ports.iter().map(|&port| PortId(port as u8)).collect());
        self.parents.len() - 1
    }

    /// Cuts `count` children into groups of at most [`FAN_OUT`] neighbours, alike in size.
    fn groups(count: usize) -> impl Iterator<Item = Range<usize>> {
        let groups = count.div_ceil(FAN_OUT).max(1);
        (0..groups).map(move |group| group * count / groups..(group + 1) * count / groups)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn paper_machine() -> Tree {
        // Figure 3: 2 sockets, 4 cores each, 2 threads per core.
        Topology::new((0..16).map(|port| (port / 8, port / 2)).collect()).tree()
    }

    fn set(ports: &[u8]) -> PortSet {
        ports.iter().map(|&port| PortId(port)).collect()
    }

    #[test]
    fn the_papers_machine_has_three_levels() {
        let tree = paper_machine();
        assert_eq!(tree.nodes(), 1 + 2 + 8 + 16);
        let core = tree.parent(tree.leaf(PortId(7)));
        assert_eq!(core, tree.parent(tree.leaf(PortId(6))));
        assert_eq!(tree.members(core), set(&[6, 7]));
        let socket = tree.parent(core);
        assert_eq!(tree.members(socket), PortSet::first(8));
        assert_eq!(tree.parent(socket), Tree::ROOT);
        assert_eq!(tree.members(Tree::ROOT), PortSet::first(16));
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
    }

    #[test]
    fn the_nearest_is_on_the_same_core_then_socket_then_elsewhere() {
        let tree = paper_machine();
        let nearest = |candidates: &[u8]| tree.nearest(PortId(2), set(candidates));
        let core = tree.parent(tree.leaf(PortId(2)));
        let socket = tree.parent(core);
        assert_eq!(nearest(&[3, 5, 9]), Some((PortId(3), core)));
        assert_eq!(nearest(&[5, 9]), Some((PortId(5), socket)));
        assert_eq!(nearest(&[9]), Some((PortId(9), Tree::ROOT)));
        assert_eq!(nearest(&[1, 2]), Some((PortId(1), socket)), "not itself; cyclic order wraps");
        assert_eq!(nearest(&[2]), None);
        assert_eq!(nearest(&[]), None);
        let full = Topology::flat(64).tree();
        assert_eq!(full.nearest(PortId(63), set(&[5, 60])), Some((PortId(5), Tree::ROOT)));
    }

    /// No node has more than 64 children, whatever the number of ports, and each port is below its
    /// ancestors.
    #[test]
    fn no_node_has_more_than_64_children() {
        for places in [
            (0..256).map(|port| (0, port)).collect::<Vec<(u16, u16)>>(),
            (0..256).map(|port| (port / 128, port)).collect(),
            (0..256).map(|port| (port / 128, port / 2)).collect(),
            (0..65).map(|port| (0, port)).collect(),
        ] {
            let ports = places.len();
            let tree = Topology::new(places).tree();
            let inner = tree.nodes() - ports;
            assert!((0..inner).all(|node| tree.children(node).count() <= FAN_OUT));
            for port in (0..ports).map(|port| PortId(port as u8)) {
                let mut node = tree.leaf(port);
                while node != Tree::ROOT {
                    node = tree.parent(node);
                    assert!(tree.members(node).contains(port), "{port:?} below {node}");
                }
            }
            assert_eq!(tree.members(Tree::ROOT), PortSet::first(ports));
        }
    }
}
