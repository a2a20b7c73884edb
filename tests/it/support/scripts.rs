//! The lock's scripts, read from their folder.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One script: a file of `lua/`, with the files for fencing tokens around it if it has any.
pub struct Script {
    /// The name of its own file: `acquire`, `release`, …
    pub name: &'static str,
    pub body: String,
    /// The hash by which `EVALSHA` runs it.
    pub sha: String,
}

/// Files that are put around others and are no scripts themselves: see `src/wire/script.rs`.
const PARTS: [&str; 9] = ["serve", "hold", "fields", "enter", "whose", "fence", "token", "raise", "count"];

/// Returns all scripts; none if the directory does not exist.
pub fn all() -> &'static [Script] {
    static ALL: OnceLock<Vec<Script>> = OnceLock::new();
    ALL.get_or_init(|| {
        let files =
            std::fs::read_dir(dir()).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let scripts = files.filter(|path| path.extension().is_some_and(|end| end == "lua"));
        let names: Vec<_> =
            scripts.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        let plain = names.into_iter().filter(|name| !PARTS.contains(&&**name));
        let plain: Vec<_> = plain.map(|name| script(name.clone().leak(), plain_body(&name))).collect();
        if plain.is_empty() {
            return plain;
        }
        let fenced = [("acquire", "token"), ("renew", "raise"), ("settle", "raise")];
        plain
            .into_iter()
            .chain(fenced.map(|(name, around)| script(name, fenced_body(name, around))))
            .chain([script("count", count_body())])
            .collect()
    })
}

/// Returns the body of a script that also acts on fencing tokens.
pub fn fenced_body(name: &str, around: &str) -> String {
    let keys = match name {
        "acquire" => "local KEYS = {KEYS[1], KEYS[3]}\n",
        _ => "",
    };
    format!("local function plain()\n{keys}{}end\n{}{}", plain_body(name), file("fence"), file(around))
}

/// Returns the body of a script that acts only on the lock.
pub fn plain_body(name: &str) -> String {
    match name {
        "release" => file("serve") + &file("hold") + &file(name),
        "settle" => "local serve\n".to_owned() + &file("hold") + &file(name),
        "acquire" => file("serve") + &file(name) + &file("fields") + &file("enter") + &file("whose"),
        "look" | "who" => file(name) + &file("fields") + &file("whose"),
        "force" => file("serve") + &file("who") + &file("fields") + &file(name),
        _ => file(name),
    }
}

/// Returns the body of the script that acts only on a fencing counter.
pub fn count_body() -> String {
    format!("{}{}", file("fence"), file("count"))
}

/// Returns the directory of the scripts: in this package's folder, or in that of the package that contains this one.
fn dir() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let beside = package.ancestors().map(|folder| folder.join("lua"));
    beside.into_iter().find(|lua| lua.is_dir()).unwrap_or_default()
}

fn file(name: &str) -> String {
    std::fs::read_to_string(dir().join(name).with_extension("lua")).unwrap()
}

fn script(name: &'static str, body: String) -> Script {
    let sha = redis::Script::new(&body).get_hash().to_owned();
    Script { name, body, sha }
}

/// Returns the script that an `EVALSHA` or `EVAL` runs.
pub fn named_by(command: &str, argument: &str) -> Option<&'static str> {
    let found = match command {
        "EVALSHA" | "EVALSHA_RO" => all().iter().find(|script| script.sha.eq_ignore_ascii_case(argument)),
        "EVAL" | "EVAL_RO" => all().iter().find(|script| script.body.trim() == argument.trim()),
        _ => None,
    };
    found.map(|script| script.name)
}
