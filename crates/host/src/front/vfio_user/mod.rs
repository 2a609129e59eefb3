//! vfio-user: tenants as NVMe controllers on the PCI bus of virtual machines.
//!
//! ```text
//!   socket ─ session (a thread for each controller): configuration, registers, admin queue
//!      │  doorbell: a word, and a kick ─▶ front ─▶ group of queues ─▶ orders ─▶ data path
//!      │  shadow doorbells: words of the guest's memory ─────▶ ┘
//!   eventfd of an interrupt ◀─ ring of the shard ◀─ completion queue ◀─ finished ◀──┘
//! ```
//!
//! | module | its content |
//! |---|---|
//! | `framing` | the protocol's messages on a socket |
//! | `controllers`, `controller_state` | the controllers of a server, and the state of each |
//! | `bridge` | the state that sessions share with shards |
//! | `dialogue` | one client: version, memory, interrupts, regions |
//! | `pci_config` | the PCI configuration space |
//! | `nvme_registers` | registers and doorbells, enabling and disabling |
//! | `admin_queue` | admin commands |
//! | `left_controller` | a controller between two programs |
//! | `decode` | I/O commands, checked |
//! | `queue_group` | the I/O queues of a controller on a shard |
//! | `interrupts` | the interrupts of controllers on a shard |
//! | `queue_groups` | the front end of a shard |
//!
//! The guest and its virtual machine monitor are strangers. Their memory may change at any time, so
//! each entry is copied once and the copy is checked, and no Rust reference points into it.
//! Anything that is against the rules fails the controller of this guest, and of no other.

mod admin_queue;
pub mod bridge;
mod controller_state;
pub mod controllers;
mod decode;
mod dialogue;
pub mod framing;
mod interrupts;
pub mod left_controller;
mod nvme_registers;
pub mod pci_config;
pub mod queue_group;
pub mod queue_groups;
#[cfg(test)]
mod tests;
