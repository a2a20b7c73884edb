//! The lock's scripts, read where they are kept.

use std::path::Path;
use std::sync::OnceLock;

/// One file of `lua/`.
pub struct Script {
    /// The file's name: `acquire`, `release`, …
    pub name: &'static str,
    pub body: String,
    /// By what `EVALSHA` calls it.
    pub sha: String,
}

/// All of them; none where there is no such directory.
pub fn all() -> &'static [Script] {
    static ALL: OnceLock<Vec<Script>> = OnceLock::new();
    ALL.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let files = std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let scripts = files.filter(|path| path.extension().is_some_and(|end| end == "lua"));
        scripts.map(|path| read(&path)).collect()
    })
}

fn read(path: &Path) -> Script {
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let body = std::fs::read_to_string(path).unwrap();
    let sha = redis::Script::new(&body).get_hash().to_owned();
    Script { name: name.leak(), body, sha }
}

/// Which script an `EVALSHA` or `EVAL` runs.
pub fn named_by(command: &str, argument: &str) -> Option<&'static str> {
    let found = match command {
        "EVALSHA" | "EVALSHA_RO" => all().iter().find(|script| script.sha.eq_ignore_ascii_case(argument)),
        "EVAL" | "EVAL_RO" => all().iter().find(|script| script.body.trim() == argument.trim()),
        _ => None,
    };
    found.map(|script| script.name)
}
