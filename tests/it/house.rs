//! The house: who may import whom, how large a room may be, and that ARCHITECTURE.md draws it as it stands.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Ground floor first. A file imports from lower floors, and on its own floor from what stands before it.
const FLOORS: [&[&str]; 9] = [
    &["sync", "error", "deadline", "fate", "owner", "scope", "telemetry", "names", "nodes", "failure"],
    &[
        "server", "seeds", "fence", "script", "step", "question", "tally", "events", "outage", "counters",
        "store", "memory", "master", "limits", "config", "terms", "level", "hold", "remnants", "queue",
        "room", "turn", "answer", "upkeep", "hearing", "registry",
    ],
    &["clock", "backend"],
    &["quorum"],
    &["session", "asking", "wake", "watchdog"],
    &["guard", "wish", "attempts", "acquire"],
    &["request", "run"],
    &["mutex"],
    &["enroll", "locks"],
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files of the source but `lib.rs` and unit tests, by the name of their module on the top level.
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

fn module(path: &Path) -> String {
    path.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The modules of this crate that a file names, other than in its comments.
fn imports(code: &str) -> Vec<String> {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let named = lines.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned).collect::<Vec<_>>());
    let name =
        |rest: String| rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap().to_owned();
    named.map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn a_file_imports_only_what_stands_below_it() {
    let order: Vec<&str> = FLOORS.concat();
    let place = |name: &str| order.iter().position(|known| *known == name);
    for (path, code) in sources() {
        let name = module(&path);
        let here = place(&name).unwrap_or_else(|| panic!("{name} stands on no floor"));
        for import in imports(&code).into_iter().filter(|import| *import != name) {
            let there = place(&import).unwrap_or_else(|| panic!("{name} imports {import}, which is no file"));
            assert!(there < here, "{} imports {import}, which stands above it", path.display());
        }
    }
}

#[test]
fn the_two_lowest_floors_read_no_clock_and_move_no_bytes() {
    let pure: Vec<&str> = FLOORS[..2].concat();
    for (path, code) in sources().into_iter().filter(|(path, _)| pure.contains(&module(path).as_str())) {
        let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for forbidden in ["now()", ".await", "spawn", "time::sleep", "TcpStream", "MultiplexedConnection"] {
            assert!(!code.contains(forbidden), "{} has `{forbidden}`", path.display());
        }
    }
}

/// A timer that is set to a lease's end as tokio's clock has it is late by what the machine sleeps through. `clock.rs` sets such
/// timers in slices; beside it `valid_until` alone hands the instant out.
#[test]
fn only_the_clock_sets_a_timer_by_a_lease() {
    for (path, code) in sources() {
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let local = lines.filter(|line| line.contains(".local(")).count();
        let allowed = match path.to_str() {
            Some("clock.rs") => local,
            Some("guard.rs") => 1,
            _ => 0,
        };
        assert_eq!(local, allowed, "{}", path.display());
    }
}

/// Else one kind of connection would be left without the authorities that it is to trust.
#[test]
fn connections_are_made_in_one_place() {
    for (path, code) in sources() {
        let dials = ["get_multiplexed_async_connection", "get_async_pubsub"].map(|call| code.contains(call));
        assert_eq!(dials.contains(&true), path == Path::new("backend/dial.rs"), "{}", path.display());
    }
}

#[test]
fn only_telemetry_names_tracing() {
    for (path, code) in sources() {
        let names = code.lines().any(|line| !line.trim_start().starts_with("//") && line.contains("tracing"));
        assert_eq!(names, path == Path::new("telemetry.rs"), "{}", path.display());
    }
}

#[test]
fn the_architecture_names_every_file_on_its_floor() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let drawn = text.lines().filter_map(|line| {
        let (floor, rest) = line.split_once(' ')?;
        let file = rest.trim_start().strip_suffix(".rs").map(str::to_owned);
        let file = file.or_else(|| Some(rest.trim_start().split_once(".rs ")?.0.to_owned()));
        Some((floor.parse::<usize>().ok()?, file?))
    });
    let standing = FLOORS
        .iter()
        .enumerate()
        .flat_map(|(at, files)| files.iter().map(move |file| (at, (*file).to_owned())));
    assert_eq!(drawn.collect::<Vec<_>>(), standing.collect::<Vec<_>>());
}
