//! Copies the guides to where their doctests are built. A copy runs exactly those samples that the guide
//! marks as `ignore`d. (`--include-ignored` doesn't work here: if rustdoc builds many samples as one program,
//! it reports the ignored ones as passed without running them.)

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

const IGNORED: &str = "```rust,ignore";

fn main() -> Result<(), Box<dyn Error>> {
    let docs = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../docs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", docs.display());

    let mut modules = String::new();
    for entry in fs::read_dir(&docs)? {
        let page = entry?.path();
        let Some(name) = page.file_name().and_then(|name| name.to_str()?.strip_suffix(".md")) else {
            continue;
        };
        let text = fs::read_to_string(&page)?;
        if !text.contains(IGNORED) {
            continue;
        }
        let mut inside = false;
        // The copy has as many lines as the guide, so a failure names the right line.
        let lines = text.lines().map(|line| match line.strip_prefix("```") {
            None => line,
            Some(_) => {
                inside = !inside;
                match line {
                    IGNORED => "```rust",
                    _ if inside => "```text",
                    _ => "```",
                }
            }
        });
        fs::write(out.join(format!("{name}.md")), lines.collect::<Vec<_>>().join("\n"))?;
        let place = format!("concat!(env!(\"OUT_DIR\"), \"/{name}.md\")");
        let module = name.replace('-', "_");
        writeln!(modules, "#[cfg_attr(doctest, doc = include_str!({place}))]\nmod {module} {{}}")?;
    }
    Ok(fs::write(out.join("pages.rs"), modules)?)
}
