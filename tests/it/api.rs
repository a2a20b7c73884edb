//! The public API, compared with its snapshot in `tests/api.txt`, so that a review sees what is added, removed or changed.
//!
//! To renew the snapshot: `RENEW_API=1 cargo test --locked --all-features --test it -- the_public_api`.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the pages of the API documentation: what users see, including what macros have made.
fn pages() -> Vec<(String, String)> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    // cargo sets these variables for a test. A build script that looks at one of them would run again, and everything that depends on it
    // would be built again, here and in the next run of the tests.
    for (name, _) in std::env::vars_os() {
        let of_test = name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
        if of_test {
            command.env_remove(name);
        }
    }
    let built = command
        .args(["doc", "--quiet", "--locked", "--lib", "--no-deps", "--all-features", "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(built.success(), "cargo doc");
    let folder = target.join("doc/nestlock");
    let all = fs::read_to_string(folder.join("all.html")).unwrap();
    let items = all.split("<li><a href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut items: Vec<_> = items.filter(|item| item.ends_with(".html")).map(str::to_owned).collect();
    items.sort();
    let read = |item: String| (fs::read_to_string(folder.join(&item)).unwrap(), item);
    items.into_iter().map(read).map(|(page, item)| (item, page)).collect()
}

/// Returns what a reader sees of the page, in one line.
fn text(html: &str) -> String {
    let mut text = String::new();
    for (at, part) in html.split('<').enumerate() {
        match part.split_once('>') {
            Some((tag, rest)) if at > 0 => {
                let breaks = ["div", "/div", "br"].iter().any(|name| tag.starts_with(name));
                text.extend(breaks.then_some(' '));
                text.push_str(rest);
            }
            _ => text.push_str(part),
        }
    }
    for (from, to) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")]
    {
        text = text.replace(from, to);
    }
    let text = text.replace('ⓘ', " ");
    // Rustdoc breaks long lines, and then ends lists with a comma.
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace("( ", "(").replace(", )", ")").replace(" )", ")").replace("{ }", "{}")
}

/// Returns the texts from each `begin` to the next `end`.
fn between<'a>(html: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    html.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

/// Returns a page as lines: what the item is, its methods, and its traits.
fn lines(page: &str) -> Vec<String> {
    let mut lines: Vec<_> =
        between(page, "item-decl\"><code>", "</code></pre>").into_iter().map(text).collect();
    let (own, rest) = page.split_once("id=\"trait-implementations\"").unwrap_or((page, ""));
    let own = own.split_once("id=\"implementations\"").map_or("", |(_, own)| own);
    let own = own.split("id=\"deref-methods").next().unwrap_or_default();
    lines.extend(
        between(own, "<h4 class=\"code-header\">", "</h4>")
            .into_iter()
            .map(|one| format!("    {}", text(one))),
    );
    // Leaves out traits that every type has or gets automatically: `traits` checks `Send` and `Sync`.
    let rest = rest.split("id=\"synthetic-implementations\"").next().unwrap_or_default();
    let mut traits: Vec<_> = between(rest, "<h3 class=\"code-header\">", "</h3>")
        .into_iter()
        .map(|one| format!("    {}", text(one)))
        .collect();
    // Leaves out what the compiler and `pin_project!` add.
    traits.retain(|line| !line.contains("StructuralPartialEq") && !line.contains("__pin"));
    traits.sort();
    lines.extend(traits);
    lines
}

#[test]
fn the_public_api_is_the_one_in_the_snapshot() {
    let mut shown = String::new();
    for (item, page) in pages() {
        let module =
            item.rsplit_once('/').map_or("nestlock".to_owned(), |(module, _)| format!("nestlock::{module}"));
        shown.push_str(&format!("{module}: {}\n\n", lines(&page).join("\n")));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api.txt");
    if std::env::var_os("RENEW_API").is_some() {
        fs::write(&path, &shown).unwrap();
    }
    let snapshot = fs::read_to_string(&path).unwrap_or_default();
    // Each line with its item: two items may have a method of the same text.
    let lines = |text: &str| -> Vec<String> {
        let items = text.split("\n\n").filter_map(|item| Some((item.lines().next()?, item)));
        items
            .flat_map(|(item, all)| all.lines().map(move |line| format!("{item}: {}", line.trim())))
            .collect()
    };
    let missing = |from: &str, other: &str| {
        let (from, other) = (lines(from), lines(other));
        from.into_iter().filter(|line| !other.contains(line)).collect::<Vec<_>>().join("\n")
    };
    assert!(
        shown == snapshot,
        "the public API differs from tests/api.txt\nnow:\n{}\nbefore:\n{}\n\
         if that is meant: RENEW_API=1 cargo test --locked --all-features --test it -- the_public_api",
        missing(&shown, &snapshot),
        missing(&snapshot, &shown)
    );
}
