//! The house rules: what each folder may import and do, and that ARCHITECTURE.md and docs/lab name only
//! folders, code and tests that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the source, the lowest first. Each imports only from the folders before it.
const FOLDERS: [&str; 12] = [
    "holder", "error", "base", "owner", "wire", "table", "memory", "config", "backend", "quorum", "session",
    "client",
];

/// How many of the folders make decisions without a clock and without I/O.
const PURE: usize = 8;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns all files of the source except `lib.rs` and unit tests, with the name of their top-level module.
fn sources() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if ["lib.rs", "tests", "tests.rs", "testing.rs"].iter().any(|name| path.ends_with(name)) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
                found.insert(path.strip_prefix(root().join("src")).unwrap().to_owned(), code);
            }
        }
    }
    found
}

fn top_folder(path: &Path) -> String {
    path.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

fn rank(folder: &str) -> usize {
    FOLDERS.iter().position(|known| *known == folder).unwrap_or_else(|| panic!("{folder} is unknown"))
}

/// Returns what a file imports from this crate, outside its comments: the parts of each path below `crate`.
fn imports(code: &str) -> Vec<Vec<String>> {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let named = lines.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned).collect::<Vec<_>>());
    let parts = |rest: String| {
        let path = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').next().unwrap();
        path.split("::").map(str::to_owned).filter(|part| !part.is_empty()).collect::<Vec<_>>()
    };
    let is_module = |name: &String| name.starts_with(|c: char| c.is_ascii_lowercase());
    named.map(parts).filter(|path| path.first().is_some_and(is_module)).collect()
}

#[test]
fn a_folder_imports_only_what_stands_below_it() {
    for (path, code) in sources() {
        let here = top_folder(&path);
        for import in imports(&code).into_iter().filter(|import| import[0] != here) {
            assert!(
                rank(&import[0]) < rank(&here),
                "{} imports {import:?}, which is a higher folder",
                path.display()
            );
        }
    }
}

/// Files that import each other in a circle should be one file.
#[test]
fn no_files_import_each_other_in_a_circle() {
    let sources = sources();
    let arrows: BTreeMap<&Path, BTreeSet<&Path>> = sources
        .iter()
        .filter(|(path, _)| !path.ends_with("mod.rs"))
        .map(|(path, code)| (path.as_path(), neighbours(path, code, &sources)))
        .collect();
    // A file that imports only files outside circles is outside circles itself.
    let mut left: BTreeSet<&Path> = arrows.keys().copied().collect();
    while let Some(free) = left.iter().find(|path| arrows[*path].is_disjoint(&left)).copied() {
        left.remove(free);
    }
    assert!(left.is_empty(), "{left:?}");
}

/// Returns the files in its own folder that a file imports.
fn neighbours<'a>(path: &Path, code: &str, sources: &'a BTreeMap<PathBuf, String>) -> BTreeSet<&'a Path> {
    let folder = path.parent().unwrap();
    let named = imports(code).into_iter().filter_map(|import| {
        let module: PathBuf = import.iter().take(folder.components().count() + 1).collect();
        let (file, _) = sources.get_key_value(&module.with_extension("rs"))?;
        (file.parent() == Some(folder) && file != path).then_some(file.as_path())
    });
    named.collect()
}

#[test]
fn what_decides_reads_no_clock_and_moves_no_bytes() {
    for (path, code) in sources().into_iter().filter(|(path, _)| rank(&top_folder(path)) < PURE) {
        let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for forbidden in ["now()", ".await", "spawn", "time::sleep", "TcpStream", "MultiplexedConnection"] {
            assert!(!code.contains(forbidden), "{} has `{forbidden}`", path.display());
        }
    }
}

/// A timer that tokio's clock sets to the end of a lease is late by the time for which the machine sleeps. `clock.rs` sets such timers in
/// slices. Outside `clock.rs`, only `valid_until` uses the instant, and returns it.
#[test]
fn only_the_clock_sets_a_timer_by_a_lease() {
    for (path, code) in sources() {
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let local = lines.filter(|line| line.contains(".local(")).count();
        let allowed = match path.to_str() {
            Some("session/clock.rs") => local,
            Some("client/hold.rs") => 1,
            _ => 0,
        };
        assert_eq!(local, allowed, "{}", path.display());
    }
}

/// If connections were made in several places, one kind could lack what the others have: deadlines,
/// certificate authorities, an end with the last handle.
#[test]
fn connections_are_made_in_one_place() {
    for (path, code) in sources() {
        let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let has = |text: &str| code.iter().any(|line| line.contains(text));
        let is_at = |place: &str| path == Path::new(place);
        assert_eq!(has("TcpStream::connect("), is_at("backend/resp/socket.rs"), "{}", path.display());
        let tls = has("tokio_rustls") || has("tokio_native_tls");
        assert_eq!(tls, is_at("backend/resp/tls.rs"), "{}", path.display());
        assert!(!has("redis::aio") && !has("redis::Client::"), "{}", path.display());
    }
}

#[test]
fn only_telemetry_names_tracing() {
    for (path, code) in sources() {
        let names = code.lines().any(|line| !line.trim_start().starts_with("//") && line.contains("tracing"));
        assert_eq!(names, path == Path::new("base/telemetry.rs"), "{}", path.display());
    }
}

#[test]
fn only_the_recorder_names_metrics() {
    for (path, code) in sources() {
        let used = |line: &&str| {
            !line.trim_start().starts_with("//")
                && (line.contains("use metrics") || line.contains("metrics::"))
        };
        assert_eq!(
            code.lines().any(|line| used(&line)),
            path == Path::new("base/meter/recorder.rs"),
            "{}",
            path.display()
        );
    }
}

/// `fork` copies a generator inside this process: both processes would then write the same fields, and take each other's holds for their
/// own. `tests/forks` forks, but a program may have used such a generator before it does. So this test looks at the source of the ids.
#[test]
fn ids_come_from_the_operating_system() {
    let locks = sources().remove(Path::new("client/locks.rs")).unwrap();
    let uuid = locks.split("fn uuid()").nth(1).unwrap().split("\n}\n").next().unwrap();
    assert!(uuid.contains("SysRng.try_fill_bytes(&mut bytes)"), "{uuid}");
}

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Also checks their order: each may import only from those before it.
#[test]
fn the_architecture_names_every_folder() {
    let text = page("ARCHITECTURE.md");
    let picture = text.split("\n## The folders\n").nth(1).unwrap().split("```").nth(1).unwrap();
    let named: Vec<&str> =
        picture.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    let folders = FOLDERS.map(|name| {
        let file = format!("{name}.rs");
        if root().join("src").join(&file).is_file() { file } else { format!("{name}/") }
    });
    assert_eq!(named, folders);
}

/// Someone who changes the code reads the whole page first.
#[test]
fn the_architecture_is_read_in_half_an_hour() {
    let bytes = page("ARCHITECTURE.md").len();
    assert!(bytes <= 16_384, "{bytes} bytes; details belong in docs/lab");
}

/// Returns all Rust and Lua text of the crate and its tests, by path.
fn texts() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = ["src", "lua", "tests"].map(|name| root().join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs" || end == "lua") {
                found.insert(path.clone(), fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns whether a file has this name, or each word of the name occurs somewhere.
fn is_code(texts: &BTreeMap<PathBuf, String>, all: &BTreeSet<&str>, name: &str) -> bool {
    match name.contains('.') {
        true => texts.keys().any(|path| path.ends_with(name)),
        false => words(name).all(|word| all.contains(word)),
    }
}

/// The models name the code that each of their steps stands for: in the table, and above each function.
#[test]
fn the_models_name_steps_and_code_that_exist() {
    let (page, texts) = (page("docs/lab/tests.md"), texts());
    let all: BTreeSet<&str> = texts.values().flat_map(|text| words(text)).collect();
    let section = page.split("\n## The models\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut named = 0;
    for model in ["hold", "wake"] {
        let file = |name: &str| fs::read_to_string(root().join("models/src").join(model).join(name)).unwrap();
        let steps = file("mod.rs");
        let steps = steps.split("pub enum Step {").nth(1).unwrap().split("\n}").next().unwrap();
        let table = section.split(&format!("| step of `{model}` |")).nth(1).unwrap();
        for row in table.split("\n\n").next().unwrap().lines().skip(2) {
            let (step, code) = row.trim_matches('|').split_once('|').unwrap();
            for step in quoted(step) {
                assert!(
                    steps.contains(&format!("    {step}(")) || steps.contains(&format!("    {step},")),
                    "{step}"
                );
            }
            for name in quoted(code) {
                assert!(is_code(&texts, &all, name), "`{name}` is not there");
                named += 1;
            }
        }
        let decisions = file(if model == "hold" { "client.rs" } else { "entry.rs" });
        for name in decisions.lines().filter(|line| line.trim_start().starts_with("///")).flat_map(quoted) {
            if name.contains("::") && !name.starts_with("HoldModel") && name != "Link::sets" {
                assert!(is_code(&texts, &all, name), "{model} names `{name}`, which is not there");
            }
        }
    }
    assert!(named > 40);
}

/// Renaming a function or test must not leave a rule or an invariant that nobody can look up. Each invariant belongs to one rule, or is
/// named below the rules.
#[test]
fn each_rule_and_invariant_has_its_number_and_names_code_and_tests_that_exist() {
    let (architecture, lab, texts) = (page("ARCHITECTURE.md"), page("docs/lab/invariants.md"), texts());
    let all: BTreeSet<&str> = texts.values().flat_map(|text| words(text)).collect();
    let tests =
        texts.values().flat_map(|text| text.split("fn ").skip(1)).filter_map(|rest| words(rest).next());
    let tests: BTreeSet<&str> = tests.collect();
    let is_code = |name: &str| is_code(&texts, &all, name);
    let entry = |text: &str, before: &str, number: usize| {
        assert!(
            text.starts_with(&format!("{before}{number}. ")),
            "{before}{number} is missing before: {text}"
        );
        let (claim, keeps) =
            text.split_once("\n*Kept by*").unwrap_or_else(|| panic!("what keeps {before}{number}?"));
        let keeps = keeps.split("\n\n").next().unwrap();
        let (code, named) =
            keeps.split_once("*tests:*").or(keeps.split_once("*test:*")).unwrap_or((keeps, ""));
        for name in quoted(code) {
            assert!(is_code(name), "{before}{number} names `{name}`, which is not there");
        }
        for name in quoted(named) {
            assert!(tests.contains(name), "{before}{number} names the test `{name}`, which is not there");
        }
        claim.to_owned()
    };
    let invariants: Vec<&str> =
        lab.split("\n## Invariants\n").nth(1).unwrap().split("\n**").skip(1).collect();
    for (at, invariant) in invariants.iter().enumerate() {
        entry(invariant, "", at + 1);
    }

    let section = architecture.split("\n## Rules\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut theirs = Vec::new();
    for (at, rule) in section.split("\n**").skip(1).enumerate() {
        let claim = entry(rule, "R", at + 1);
        theirs.extend(numbers(claim.rsplit('[').next().unwrap()));
    }
    theirs.extend(numbers(
        section.split("\nThe invariants ").nth(1).unwrap().split(" concern").next().unwrap(),
    ));
    theirs.sort_unstable();
    assert_eq!(theirs, Vec::from_iter(1..=invariants.len()), "each invariant is of one rule");
}

/// Reads a list like `1, 4–6 and 9`.
fn numbers(text: &str) -> Vec<usize> {
    let parts = text.split(|c: char| !c.is_ascii_digit() && c != '–').filter(|part| !part.is_empty());
    let range = |part: &str| {
        let (first, last) = part.split_once('–').unwrap_or((part, part));
        first.parse().unwrap()..=last.parse().unwrap()
    };
    parts.flat_map(range).collect()
}
