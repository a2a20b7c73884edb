//! The report's text, with `{{name}}` where a figure goes.
//!
//! Lines between `{{#name}}` and `{{/name}}` are left out if there is no such figure.

use std::collections::BTreeMap;

use crate::server::Result;

/// The figures for the text, by their names in it.
pub(crate) type Figures = BTreeMap<String, String>;

pub(crate) fn fill(text: &str, figures: &Figures) -> Result<String> {
    let mut filled = String::new();
    let mut left_out = None;
    for line in text.lines() {
        if let Some(name) = marker(line, "{{#") {
            if left_out.is_none() && !figures.contains_key(name) {
                left_out = Some(name);
            }
        } else if let Some(name) = marker(line, "{{/") {
            left_out = left_out.filter(|other| *other != name);
        } else if left_out.is_none() {
            fill_line(&mut filled, line, figures)?;
        }
    }
    Ok(filled)
}

/// Returns the name on a line that begins or ends a part that may be left out.
fn marker<'a>(line: &'a str, begin: &str) -> Option<&'a str> {
    line.strip_prefix(begin)?.strip_suffix("}}")
}

fn fill_line(filled: &mut String, line: &str, figures: &Figures) -> Result<()> {
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once("{{") {
        let (name, after) = behind.split_once("}}").ok_or_else(|| format!("`{line}` lacks its `}}}}`"))?;
        let figure = figures.get(name).ok_or_else(|| format!("the report has no figure for `{name}`"))?;
        *filled += before;
        *filled += figure;
        rest = after;
    }
    *filled += rest;
    filled.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Figures, fill};

    const TEXT: &str = "{{a}} of {{b}}\n{{#c}}\nand {{c}}\n{{/c}}\nend\n";

    fn figures(given: &[(&str, &str)]) -> Figures {
        given.iter().map(|(name, figure)| ((*name).to_owned(), (*figure).to_owned())).collect()
    }

    #[test]
    fn figures_stand_where_they_are_named() {
        let page = fill(TEXT, &figures(&[("a", "1"), ("b", "2"), ("c", "3")])).unwrap();
        assert_eq!(page, "1 of 2\nand 3\nend\n");
    }

    #[test]
    fn lines_whose_figure_was_not_measured_are_left_out() {
        assert_eq!(fill(TEXT, &figures(&[("a", "1"), ("b", "2")])).unwrap(), "1 of 2\nend\n");
    }

    #[test]
    fn a_figure_that_is_named_and_missing_is_an_error() {
        let error = fill(TEXT, &figures(&[("a", "1")])).unwrap_err();
        assert_eq!(error.to_string(), "the report has no figure for `b`");
    }
}
