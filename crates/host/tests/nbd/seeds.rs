//! The fuzzer's seeds and its findings, on the stable toolchain.

use std::path::Path;

use crate::drivers::{nbd, nvme, vfio_user, vhost};

/// Gives every seed of a target to its driver, which panics if a law is broken.
fn replay(target: &str, driver: fn(&[u8]), at_least: usize) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&dir).expect("the seeds are in the repository") {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display());
        driver(&std::fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count >= at_least, "{count} seeds in {}", dir.display());
}

#[test]
fn handshake() {
    replay("nbd_handshake", nbd::handshake, 10);
}

#[test]
fn transmission() {
    replay("nbd_transmission", nbd::transmission, 5);
}

#[test]
fn vhost_queue() {
    replay("vhost_queue", vhost::queue, 6);
}

#[test]
fn vhost_messages() {
    replay("vhost_messages", vhost::messages, 4);
}

#[test]
fn vfio_user_controller() {
    replay("vfio_user", vfio_user::controller, 7);
}

#[test]
fn nvme_controller() {
    replay("nvme_controller", nvme::controller, 6);
}
