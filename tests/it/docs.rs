//! Checks the README and the guides: each link has a target, in the repository and in the API documentation, and the samples run.

use std::fs;
use std::path::{Path, PathBuf};

/// The address of the guides in the API documentation. The README links there, since it is also shown in places that have no files.
const GUIDES: &str = "https://docs.rs/nestlock/latest/nestlock/guide/";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the pages in `docs`, by the names of their modules.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let mut names: Vec<_> =
        pages.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Returns the pages for users. The reports on speed and tests are in the repository only.
fn guides() -> Vec<String> {
    let for_users =
        |name: &String| !matches!(name.as_str(), "benchmarks" | "benchmarks-peers" | "reliability");
    pages().into_iter().filter(for_users).collect()
}

/// Returns the lines of a page that are not code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Returns the targets of links written as `[…](target)`.
fn inline(text: &str) -> impl Iterator<Item = &str> {
    let rests = prose(text).flat_map(|line| line.split("](").skip(1));
    rests.map(|rest| rest.split(')').next().unwrap())
}

/// Returns the targets of all links.
fn links(text: &str) -> Vec<&str> {
    inline(text).chain(definitions(text).into_iter().map(|(_, target)| target)).collect()
}

/// Turns a link to the API documentation of this version into the file that it shows. Returns any other link as it is.
fn file_of(link: &str) -> String {
    link.strip_prefix(GUIDES)
        .map_or_else(|| link.to_owned(), |guide| format!("docs/{}", guide.replacen("/index.html", ".md", 1)))
}

/// Returns links written as `[label]: target`.
fn definitions(text: &str) -> Vec<(&str, &str)> {
    prose(text).filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect()
}

/// Returns the names by which GitHub and rustdoc link to the headings of a page.
fn anchors(text: &str) -> Vec<String> {
    let headings =
        prose(text).filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    headings
        .map(|line| line.chars().filter(kept).collect::<String>().to_lowercase().replace(' ', "-"))
        .collect()
}

#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let docs = pages().into_iter().map(|name| PathBuf::from(format!("docs/{name}.md")));
    let lab = fs::read_dir(root().join("docs/lab")).unwrap().map(|entry| entry.unwrap().path());
    let top = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(PathBuf::from);
    for page in top.into_iter().chain(docs).chain(lab) {
        let text = read(&page);
        for link in links(&text).into_iter().map(file_of).filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').map_or((&*link, None), |(file, at)| (file, Some(at)));
            let file = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(root().join(&file).is_file(), "{}: {link}", page.display());
            if let Some(anchor) = anchor {
                assert!(
                    anchors(&read(&file)).iter().any(|name| name == anchor),
                    "{}: {link}",
                    page.display()
                );
            }
        }
    }
}

#[test]
fn each_page_is_linked_from_the_readme_and_is_a_guide_with_links_to_modules() {
    let (readme, lib) = (read("README.md"), read("src/lib.rs"));
    let guides = guides();
    for name in pages() {
        let address = match guides.contains(&name) {
            true => format!("{GUIDES}{name}/index.html"),
            false => format!("docs/{name}.md"),
        };
        assert!(links(&readme).contains(&&*address), "the README does not link to {address}");
    }
    for name in guides {
        let include = format!("    #[doc = include_str!(\"../docs/{name}.md\")]\n    pub mod {name} {{}}\n");
        let (before, _) = lib.split_once(&include).unwrap_or_else(|| panic!("{name} is not a guide"));
        let above = before.rsplit("\n\n").next().unwrap();
        assert!(lib.contains(&format!("](guide::{name})")), "the front page does not link to {name}");
        let text = read(format!("docs/{name}.md"));
        for (label, target) in definitions(&text) {
            let module = format!("    /// [{label}]: crate::guide::{}\n", target.replacen(".md", "", 1));
            assert!(above.contains(&module), "{name} lacks in src/lib.rs: {}", module.trim());
        }
        let to_files = inline(&text).any(|target| target.contains(".md"));
        assert!(!to_files, "{name} links to a file, which the API documentation does not have");
    }
}

#[test]
fn the_readme_is_read_in_a_few_minutes() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= 1_500, "{words} words; move what a newcomer does not need to the guides");
}

/// Returns the files in a folder and below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// `tests/samples` runs the samples that the crate itself ignores, and recognizes them by this fence.
#[test]
fn a_sample_that_is_ignored_is_a_guides_and_runs_elsewhere() {
    let mut ignored = 0;
    for path in ["src", "docs"].iter().flat_map(|folder| files(&root().join(folder))) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let is_guide = path.extension().is_some_and(|end| end == "md");
        let fences = text.lines().map(|line| line.trim_start_matches(['/', '!', ' ']));
        for fence in fences.filter(|line| line.starts_with("```") && line.contains("ignore")) {
            assert!(is_guide && fence == "```rust,ignore", "{}: {fence}", path.display());
            ignored += 1;
        }
    }
    assert!(ignored > 0 && !read("README.md").contains("ignore\n"));
}

/// Checks the versions of Redisson and redsync.
#[test]
fn the_versions_that_a_guide_says_were_run_are_those_that_are() {
    let pom = read("tests/interop/redisson/pom.xml");
    let (_, redisson) = pom.split_once("<artifactId>redisson</artifactId>").unwrap();
    let redisson = redisson.split_once("<version>").unwrap().1.split('<').next().unwrap();
    let module = read("tests/interop/redsync/go.mod");
    let redsync = module.split_once("go-redsync/redsync/v4 v").unwrap().1.lines().next().unwrap();
    let words = format!("has Redisson {redisson}, redsync {redsync} and this crate take the same locks");
    assert!(read("docs/migrating.md").contains(&words), "{words}");
}
