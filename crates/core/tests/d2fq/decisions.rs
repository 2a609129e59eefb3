//! The tests that `decisions.md` names exist.

use std::path::Path;

const TABLE: &str = include_str!("../../src/policy/d2fq/decisions.md");

/// Prefixes before `::` in the table, and their files.
const FILES: [(&str, &str); 12] = [
    ("tests", "core/src/policy/d2fq/tests.rs"),
    ("models", "core/src/policy/d2fq/models.rs"),
    ("convergence", "core/tests/d2fq/convergence.rs"),
    ("laws", "core/tests/d2fq/laws.rs"),
    ("vtime", "core/src/contract/vtime.rs"),
    ("cost", "core/src/contract/cost.rs"),
    ("arbiter", "device/tests/arbiter/main.rs"),
    ("nvme_soft", "host/src/device/nvme_soft/tests.rs"),
    ("controller", "host/src/device/nvme/controller/tests.rs"),
    ("program", "cli/tests/program.rs"),
    ("policies", "cli/tests/operate/policies.rs"),
    ("clients", "../bench/clients/test_shares.py"),
];

fn file_of(name: &str) -> Option<String> {
    let (_, path) = FILES.iter().find(|(short, _)| *short == name)?;
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).ok()
}

#[test]
fn every_decision_has_tests_that_are_there() {
    let rows: Vec<&str> =
        TABLE.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |")).collect();
    let numbers: Vec<&str> =
        rows.iter().filter_map(|row| row.split('|').nth(1)).map(str::trim).collect();
    let expected: Vec<String> = (0..=15).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected);
    for row in TABLE.lines().filter(|line| line.starts_with("| ") && !line.contains("| decision |"))
    {
        let tests =
            row.split('|').nth(3).unwrap().split('`').filter_map(|word| word.split_once("::"));
        let missing: Vec<_> = tests
            .clone()
            .filter(|(file, test)| {
                let text = file_of(file).unwrap_or_default();
                !text.contains(&format!("fn {test}(")) && !text.contains(&format!("def {test}("))
            })
            .collect();
        assert!(tests.count() > 0 && missing.is_empty(), "{missing:?} of {row}");
    }
}
