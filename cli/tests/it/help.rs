//! The help texts.

use crate::run::{end, nestlock};

#[tokio::test]
async fn the_help_names_calls_statuses_and_variables_and_no_password() {
    let mut command = nestlock(&["--help"]);
    command.env("REDIS_URL", "redis://:hunter2@host").env("NESTLOCK_PASSWORD", "hunter2");
    let help = end(command).await;
    assert_eq!(help.status, Some(0));
    for word in [
        "exec",
        "ls",
        "show",
        "watch",
        "release",
        "--url",
        "--sentinel",
        "75",
        "70",
        "REDIS_URL",
        "NESTLOCK_PASSWORD",
    ] {
        assert!(help.out.contains(word), "{word}: {}", help.out);
    }
    assert!(!help.out.contains("hunter2"));
    for call in ["exec", "ls", "show", "watch", "release"] {
        let help = end(nestlock(&[call, "--help"])).await;
        assert_eq!(help.status, Some(0));
        assert!(help.out.lines().all(|line| line.chars().count() <= 100), "{}", help.out);
        assert!(!help.out.contains("internal"));
    }
}

/// The guide has each option and each status.
#[tokio::test]
async fn the_guide_names_each_option() {
    let guide = include_str!("../../../docs/cli.md");
    let mut texts = Vec::new();
    for call in [
        &["--help"][..],
        &["exec", "--help"],
        &["ls", "--help"],
        &["watch", "--help"],
        &["release", "--help"],
    ] {
        texts.push(end(nestlock(call)).await.out);
    }
    let words = texts.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-'));
    for option in words.filter(|word| word.len() > 3 && word.starts_with("--")) {
        assert!(["--help", "--version"].contains(&option) || guide.contains(option), "{option}");
    }
    for status in [64, 69, 70, 71, 75, 77, 78, 126, 127] {
        assert!(guide.contains(&format!("| {status} |")), "{status}");
    }
}
