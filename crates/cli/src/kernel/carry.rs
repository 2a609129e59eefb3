//! `fairq kernel follow`: keeps `io.fairq.weight` equal to `io.weight`.
//!
//! `io.weight` belongs to io.cost, and no other part of the kernel can read it. So this command
//! copies its values, the default one and those of single drives, for the drives that have one of
//! fairq's schedulers. A drive that gets such a scheduler later is included in the next pass.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::Duration;

use fairq_config::refusal::Refusal;

use super::sysfs::{Cgroup, Machine, Weights};

/// Copies weights, once or periodically.
pub(super) fn run(machine: &Machine, every: Duration, once: bool) -> anyhow::Result<()> {
    let mut is_first = true;
    // A failed write is reported once.
    let mut reported = BTreeSet::new();
    loop {
        let Checked { seen, written, failed } = check(machine);
        if is_first && seen == 0 {
            if !machine.has_io_weights() {
                let text = "the kernel has no io.weight (CONFIG_BLK_CGROUP_IOCOST), so there is \
                            nothing to copy";
                return Err(Refusal::new(text).into());
            }
            // A cgroup that is made later may have an `io.weight`, so the program continues.
            eprintln!(
                "fairq: no cgroup has an io.weight yet, because the io controller is off for all \
                 cgroups (echo +io > /sys/fs/cgroup/cgroup.subtree_control)"
            );
        }
        if written > 0 {
            println!("lines copied: {written}, cgroups: {seen}");
        }
        for complaint in failed {
            if reported.insert(complaint.clone()) {
                eprintln!("fairq: {complaint}");
            }
        }
        if once {
            return Ok(());
        }
        if is_first {
            // Without systemd there is no manager to notify, which is not an error.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        }
        is_first = false;
        std::thread::sleep(every);
    }
}

/// The result of one pass.
#[derive(PartialEq, Debug)]
struct Checked {
    /// Cgroups with an `io.weight`.
    seen: usize,
    written: usize,
    failed: Vec<String>,
}

/// Writes the weights that differ.
fn check(machine: &Machine) -> Checked {
    let drives = machine.drives().into_iter().filter(|drive| drive.knobs.is_some());
    let numbers: Vec<_> = drives.map(|drive| drive.number).collect();
    let mut checked = Checked { seen: 0, written: 0, failed: Vec::new() };
    for Cgroup { name, weights, .. } in machine.cgroups() {
        let (Some(wanted), Some(has)) = (machine.io_weights(&name), weights) else { continue };
        checked.seen += 1;
        for line in lines(&wanted, &has, &numbers) {
            match machine.write_weight(&name, &line) {
                Ok(()) => checked.written += 1,
                // The cgroup has been removed.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => checked.failed.push(format!(
                    "cannot write `{line}` to io.fairq.weight of {name}: {error} (only root may \
                     write it)"
                )),
            }
        }
    }
    checked
}

/// The lines that have to be written so that `has` equals `wanted` on these drives.
fn lines(wanted: &Weights, has: &Weights, numbers: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    if wanted.usual != has.usual {
        lines.push(format!("default {}", wanted.usual));
    }
    for number in numbers {
        match (wanted.own.get(number), has.own.get(number)) {
            (Some(weight), has) if has != Some(weight) => lines.push(format!("{number} {weight}")),
            (None, Some(_)) => lines.push(format!("{number} default")),
            _ => {}
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tests::machine;
    use super::*;

    #[test]
    fn only_what_differs_is_written_and_only_for_drives_of_ours() {
        let parse = |text| Weights::parse(text).unwrap();
        let numbers = ["8:0".to_owned(), "8:16".to_owned()];
        let wanted = parse("default 500\n8:0 70\n7:0 9\n");
        let has = parse("default 100\n8:16 3\n");
        assert_eq!(lines(&wanted, &has, &numbers), ["default 500", "8:0 70", "8:16 default"]);
        assert_eq!(lines(&wanted, &parse("default 500\n8:0 70\n"), &numbers), [""; 0]);
    }

    #[test]
    fn weights_arrive() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path());
        let folder = root.path().join("cgroups/db");
        std::fs::write(folder.join("io.weight"), "default 700\n").unwrap();
        let Checked { seen, written, failed } = check(&machine);
        // `db` from 300 to 700, and `web/front` from 50 to 100.
        assert_eq!((seen, written, failed), (3, 2, vec![]));
        let has = std::fs::read_to_string(folder.join("io.fairq.weight")).unwrap();
        assert_eq!(has, "default 700");
    }

    #[test]
    fn without_an_io_weight_it_goes_on_unless_there_can_be_none() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("cgroups")).unwrap();
        let machine = Machine::at(root.path());
        let said = run(&machine, Duration::ZERO, true).unwrap_err().to_string();
        assert!(said.contains("the kernel has no io.weight"), "{said}");
        std::fs::write(root.path().join("cgroups/io.cost.qos"), "").unwrap();
        run(&machine, Duration::ZERO, true).unwrap();
    }
}
