use super::*;

#[test]
fn an_error_is_one_word_wide() {
    assert_eq!(size_of::<Error>(), size_of::<usize>());
}

/// `main() -> Result` prints the debug form after `Error: `.
#[test]
fn its_debug_is_a_line_that_reads_well_and_says_each_thing_once() {
    let name: Arc<str> = "stock".into();
    let lost = Error::lost(Loss::Gone).on(&name);
    assert_eq!(format!("{lost:?}"), format!("Lost: {lost}"));
    let io = || std::io::Error::other("connection reset\nby peer");
    let bare = Error::new(ErrorKind::Unavailable, "the answer did not arrive")
        .at(&"redis:6379".into())
        .because(io());
    let line =
        "Unavailable: the answer did not arrive (server redis:6379); caused by: connection reset\\nby peer";
    assert_eq!((format!("{bare:?}"), format!("{bare:#?}")), (line.to_owned(), line.to_owned()));
    // A text that the message quotes is not repeated.
    let quoted = Error::new(ErrorKind::Unavailable, format!("it can't be reached: {}", io())).because(io());
    assert_eq!(format!("{quoted:?}"), format!("Unavailable: {quoted}"));
}

#[test]
fn a_message_is_one_line_and_cut_where_it_is_long() {
    let message = rejected(format!("a page:\r\n\u{1b}[31m`\\n`{}", "x".repeat(5000))).to_string();
    assert!(message.starts_with("a page:\\r\\n\\u{1b}[31m`\\n`xx"), "{message}");
    assert!(message.ends_with("x…") && message.chars().count() < 1100, "{message}");
}

#[test]
fn a_name_is_escaped_and_cut_in_messages() {
    let name: Arc<str> = format!("a\n\u{1b}[31m{}", "x".repeat(200)).into();
    let message = Error::lost(Loss::Gone).on(&name).to_string();
    assert!(message.starts_with("lock `a\\n\\u{1b}[31mxx"), "{message}");
    assert!(message.contains("x…`"), "{message}");
    assert!(message.len() < 300, "{message}");
}
