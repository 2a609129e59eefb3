//! Checks that keep the sources in order: columns, lengths of files, import cycles, and documents
//! that name only existing things. Reads the sources of the whole workspace, and runs only
//! `checks/cycles` and `bench/performance`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The widest line, in characters.
const COLUMNS: usize = 100;
/// Number of wider lines, in macros that rustfmt skips. The number may only fall.
const WIDE_IN_MACROS: usize = 98;
/// The longest source file, in lines, and the longest file of tests.
const LINES: usize = 800;
const LINES_OF_TESTS: usize = 1000;
/// The longest header of a module, in lines, without text between fences. Proofs are next to their
/// subject, records of attempts in docs/decisions.
const LINES_OF_HEADER: usize = 40;

/// Number of sentences without a named subject in comments and documents. It may only fall.
const HEADLESS: usize = 0;
/// The first words of such sentences, unless they are questions.
const HEADS: [&str; 7] = ["What", "How", "Who", "Whoever", "Whatever", "Those", "So"];
/// Number of private verbs in comments and documents. It may only fall.
const PRIVATE: usize = 3;
/// Verbs for which the field has others: report, read, request, charge, wait, complete, retry.
const VERBS: [&str; 30] = [
    "tell", "tells", "told", "telling", "hear", "hears", "heard", "ask", "asks", "asked", "asking",
    "owe", "owes", "owed", "owing", "hurry", "hurries", "hurried", "touch", "touches", "touched",
    "settle", "settles", "settled", "linger", "lingers", "lingered", "look", "looks", "looked",
];

/// Number of names of modules in two or more crates, or in two folders of one. It may only fall.
const SHARED_NAMES: usize = 50;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// All files below `folder` with one of the endings, except in build folders, with their text.
fn files(folder: &Path, endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the workspace") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending))
                && let Ok(text) = std::fs::read_to_string(&path)
            {
                let name = path.strip_prefix(root()).expect("below the workspace");
                found.push((name.to_string_lossy().into_owned(), text));
            }
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<(String, String)> {
    ["crates", "checks", "fuzz"]
        .iter()
        .flat_map(|folder| files(&root().join(folder), &[".rs"]))
        .collect()
}

/// Tables, drawings and strings cannot be wrapped without changing their contents.
fn may_be_wide(line: &str) -> bool {
    let line = line.trim_start();
    let is_comment = line.starts_with("//");
    let is_drawn = line.starts_with("//! |") || line.contains("  ") || line.contains('▶');
    line.contains('"') || line.ends_with('\\') || (is_comment && is_drawn)
}

#[test]
fn lines_have_at_most_100_columns() {
    let sources = sources();
    let wide: Vec<String> = sources
        .iter()
        .flat_map(|(name, text)| text.lines().enumerate().map(move |line| (name, line)))
        .filter(|(_, (_, line))| line.chars().count() > COLUMNS && !may_be_wide(line))
        .map(|(name, (at, line))| format!("{name}:{}: {line}", at + 1))
        .collect();
    let comments: Vec<&String> =
        wide.iter().filter(|line| line.contains(": //") || line.contains(":  //")).collect();
    assert!(comments.is_empty(), "comments wider than {COLUMNS} columns: {comments:#?}");
    assert!(
        wide.len() <= WIDE_IN_MACROS,
        "{} lines of code are wider than {COLUMNS} columns, {WIDE_IN_MACROS} are known: {wide:#?}",
        wide.len()
    );
}

#[test]
fn files_are_short_enough_to_read() {
    for (name, text) in sources() {
        let most = if name.contains("/tests/") { LINES_OF_TESTS } else { LINES };
        let lines = text.lines().count();
        assert!(lines <= most, "{name} has {lines} lines, at most {most} are allowed: split it");
    }
}

/// Lines of a module's header without drawings and programs.
fn header(text: &str) -> usize {
    let mut is_fenced = false;
    let lines = text.lines().take_while(|line| line.starts_with("//!")).filter(|line| {
        let is_fence = line.trim_start_matches("//!").trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fence && !is_fenced
    });
    lines.count()
}

#[test]
fn a_fence_is_not_of_the_header() {
    assert_eq!(header("//! One.\n//! ```text\n//! drawn\n//! ```\n//! Two.\n\nfn f() {}\n"), 2);
}

#[test]
fn headers_of_modules_are_read_at_once() {
    let sources = sources();
    let long: Vec<String> = sources
        .iter()
        .map(|(name, text)| (name, header(text)))
        .filter(|(_, lines)| *lines > LINES_OF_HEADER)
        .map(|(name, lines)| format!("{name}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "headers longer than {LINES_OF_HEADER} lines: {long:#?}");
}

/// The lines of a C source's comments; other lines are empty.
fn comments_of_c(text: &str) -> String {
    let (mut comments, mut is_comment) = (String::new(), false);
    for line in text.lines() {
        let mut rest = line;
        while !rest.is_empty() {
            let (mark, length) = if is_comment { ("*/", 2) } else { ("/*", 2) };
            let end = rest.find(mark);
            if is_comment {
                let part = rest[..end.unwrap_or(rest.len())].trim_start();
                comments += part.trim_start_matches('*').trim();
            }
            rest = end.map_or("", |end| &rest[end + length..]);
            is_comment ^= end.is_some();
            if !is_comment {
                comments += "\n";
            }
        }
        comments += "\n";
    }
    comments
}

/// The sentences of a source's comments, or of a document, without code and drawings.
fn sentences(name: &str, text: &str) -> Vec<String> {
    if name.ends_with(".c") || name.ends_with(".h") {
        return sentences("", &comments_of_c(text));
    }
    let comment = |line: &'_ str| -> Option<String> {
        let rest = line.trim_start().strip_prefix("//")?;
        Some(rest.trim_start_matches(['/', '!']).to_owned())
    };
    let (mut blocks, mut is_fenced) = (vec![String::new()], false);
    for line in text.lines() {
        let line = if name.ends_with(".rs") { comment(line) } else { Some(line.to_owned()) };
        let line = line.as_deref().map_or("", str::trim);
        is_fenced ^= line.starts_with("```");
        match blocks.last_mut() {
            Some(block) if !line.is_empty() && !is_fenced => *block += &format!("{line} "),
            _ => blocks.push(String::new()),
        }
    }
    let mut sentences = vec![String::new()];
    for block in blocks {
        let words: Vec<&str> = block.split('`').step_by(2).collect();
        for word in words.join("x").split_whitespace() {
            let sentence = sentences.last_mut().expect("there is one");
            *sentence += word;
            *sentence += " ";
            if word.ends_with(['.', '?', '!', '|']) || word.ends_with("**") {
                sentences.push(String::new());
            }
        }
        sentences.push(String::new());
    }
    sentences
}

fn is_headless(sentence: &str) -> bool {
    let first = sentence.trim_start_matches([' ', '-', '*', '#', '|', '(']);
    let first = first.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    let next = sentence.split_whitespace().nth(1).unwrap_or_default();
    let is_so_many = first != "So" || ["many", "much", "long", "far"].contains(&next);
    HEADS.contains(&first) && is_so_many && !sentence.trim_end().ends_with('?')
}

fn private_verbs(sentence: &str) -> usize {
    let is_letter = |c: char| c.is_alphabetic();
    sentence.split(|c| !is_letter(c)).filter(|word| VERBS.contains(word)).count()
}

#[test]
fn a_sentence_names_its_subject_by_the_words_of_the_field() {
    let text =
        "/// What it does. How fast?\n/// It is told `What` to do.\nlet a = 1; // So many.\n";
    let counts = |name: &str, text: &str| {
        let sentences = sentences(name, text);
        let headless = sentences.iter().filter(|sentence| is_headless(sentence)).count();
        (headless, sentences.iter().map(|sentence| private_verbs(sentence)).sum::<usize>())
    };
    assert_eq!(counts("a.rs", text), (1, 1));
    assert_eq!(counts("a.c", "/*\n * What it\n * does.\n */\nask(); /* It asks. */\n"), (1, 1));
    assert_eq!(counts("a.md", "Those.\n\n```\nWho is there\n```\n\n| So many | x |\n"), (2, 0));

    let kernel = ["kernel/module", "kernel/nvme", "kernel/check"]
        .map(|folder| files(&root().join(folder), &[".c", ".h"]));
    let all = sources().into_iter().chain(documents()).chain(kernel.into_iter().flatten());
    let counts: Vec<_> = all.map(|(name, text)| (counts(&name, &text), name)).collect();
    let (headless, private) =
        counts.iter().fold((0, 0), |(headless, private), ((h, p), _)| (headless + h, private + p));
    assert!(
        headless == HEADLESS && private <= PRIVATE,
        "{headless} sentences begin with one of {HEADS:?}, {HEADLESS} are known; {private} private \
         verbs, {PRIVATE} are known: {:#?}",
        counts.iter().filter(|(count, _)| *count != (0, 0)).collect::<Vec<_>>()
    );
}

/// A module's name occurs once, so that a search for it finds one place. Known exceptions are the
/// parts that each policy has (its port, its entry in the registry), and folders for the same thing
/// in several crates (arguments, reports, the policies).
#[test]
fn a_name_is_one_modules() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, _) in sources() {
        let Some((_, place)) = file.strip_prefix("crates/").and_then(|at| at.split_once("/src/"))
        else {
            continue;
        };
        let mut parts = place.trim_end_matches(".rs").rsplit('/');
        let name = parts.next().filter(|name| *name != "mod").or_else(|| parts.next());
        let name = name.unwrap_or(place);
        if !["lib", "main", "tests", "models", "laws"].contains(&name) {
            places.entry(name.to_owned()).or_default().push(file);
        }
    }
    places.retain(|_, files| files.len() > 1);
    assert!(
        places.len() <= SHARED_NAMES,
        "{} names are several modules', {SHARED_NAMES} are known: {places:#?}",
        places.len()
    );
}

/// Runs a script of the workspace, which prints the faults that it finds.
fn checks(script: &str, args: &[&str]) {
    let check = Command::new("python3").arg(root().join(script)).args(args).output();
    let check = check.expect("python3, which tests/setup installs");
    let said = String::from_utf8_lossy(&check.stdout) + String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "{script}: {said}");
}

#[test]
fn files_of_a_crate_import_each_other_in_no_cycle() {
    checks("checks/cycles", &[]);
}

/// Words between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Documents of the present state; results and decisions describe their own day.
fn documents() -> Vec<(String, String)> {
    let mut documents = files(&root().join("docs"), &[".md"]);
    documents.retain(|(name, _)| !name.contains("RESULTS") && !name.contains("decisions/"));
    for name in ["README.md", "CONTRIBUTING.md"] {
        if let Ok(text) = std::fs::read_to_string(root().join(name)) {
            documents.push((name.to_owned(), text));
        }
    }
    documents
}

#[test]
fn documents_name_files_that_are_there() {
    let roots = ["crates/", "docs/", "tests/", "bench/", "contrib/", "checks/", "fuzz/"];
    for (document, text) in documents() {
        for word in code(&text) {
            let path = word.split_whitespace().next().unwrap_or("").trim_end_matches('/');
            let is_path = roots.iter().any(|root| path.starts_with(root));
            let is_pattern = path.contains(['{', '*', '<', 'N']);
            if is_path && !is_pattern {
                assert!(
                    root().join(path).exists(),
                    "{document} names `{path}`, which is not there"
                );
            }
        }
    }
}

/// The paths of an abbreviation such as `device/{ram,null}.rs`.
fn spelled_out(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((list, after)) = rest.split_once('}') else { return Vec::new() };
    list.split(',').map(|part| format!("{before}{part}{after}")).collect()
}

/// A document may name a source by the end of its path. Decisions may name sources, too.
#[test]
fn documents_name_sources_that_are_there() {
    let sources = sources();
    let is_there = |path: &str| {
        sources
            .iter()
            .any(|(name, _)| name.strip_suffix(path).is_some_and(|rest| rest.ends_with('/')))
            || root().join(path).exists()
    };
    let decisions = files(&root().join("docs/decisions"), &[".md"]);
    let mut checked = 0;
    for (document, text) in documents().into_iter().chain(decisions) {
        let words = code(&text).filter_map(|word| word.split_whitespace().next());
        let words = words.filter(|word| word.contains(".rs") && !word.contains(['*', '<']));
        for path in words.flat_map(spelled_out).filter(|path| path.ends_with(".rs")) {
            checked += 1;
            assert!(is_there(&path), "{document} names `{path}`, which is not there");
        }
    }
    assert!(checked > 50, "documents name sources: {checked} were found");
}

#[test]
fn documents_name_items_that_are_there() {
    let mut all = sources();
    all.extend(files(&root().join("tests"), &[""]));
    all.extend(files(&root().join("bench"), &[""]));
    let words: BTreeSet<&str> = all
        .iter()
        .flat_map(|(_, text)| text.split(|c: char| !(c.is_alphanumeric() || c == '_')))
        .collect();
    for (document, text) in documents() {
        for item in code(&text).filter(|word| word.contains("::") && !word.contains(' ')) {
            let parts = item.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            for part in parts.filter(|part| !part.is_empty()) {
                assert!(
                    words.contains(part),
                    "{document} names `{item}`, and there is no `{part}`"
                );
            }
        }
    }
}

/// Each program of `bench` records its figures and then makes the page; an edit by hand would be
/// lost.
#[test]
fn the_page_of_figures_is_made_of_the_recorded_bars() {
    checks("bench/performance", &["--check"]);
}
