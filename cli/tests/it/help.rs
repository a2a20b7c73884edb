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

#[tokio::test]
async fn a_shell_takes_its_completions() {
    for (shell, check) in [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")] {
        let ended = end(nestlock(&["completions", shell])).await;
        assert!(ended.status == Some(0) && ended.out.contains("at-least"), "{ended:?}");
        assert!(!ended.out.contains("internal"), "{}", ended.out);
        let mut parse = tokio::process::Command::new(check);
        parse.args(["-n", "/dev/stdin"]).stdin(std::process::Stdio::piped()).kill_on_drop(true);
        // A machine may lack some of these shells.
        let Ok(mut parse) = parse.spawn() else { continue };
        let mut input = parse.stdin.take().unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut input, ended.out.as_bytes()).await.unwrap();
        drop(input);
        assert!(parse.wait().await.unwrap().success(), "{shell}");
    }
    assert_eq!(end(nestlock(&["completions", "cmd"])).await.status, Some(64));
}

#[tokio::test]
async fn there_is_a_man_page_of_each_subcommand() {
    let page = end(nestlock(&["man"])).await;
    assert!(page.out.contains(".TH nestlock 1") && page.out.contains("NESTLOCK_PASSWORD"), "{page:?}");
    for call in ["exec", "ls", "show", "watch", "release", "completions", "man"] {
        let page = end(nestlock(&["man", call])).await;
        assert_eq!(page.status, Some(0), "{page:?}");
        assert!(page.out.contains(&format!(".TH nestlock-{call} 1")), "{}", page.out);
        assert!(!page.out.contains(".SH EXTRA"), "{}", page.out);
        // The options are listed below, each with its value.
        let synopsis =
            page.out.split(".SH SYNOPSIS\n").nth(1).and_then(|after| after.lines().next()).unwrap();
        assert!(synopsis.contains(&format!("nestlock {call}")) && !synopsis.contains("url"), "{synopsis}");
    }
    assert_eq!(end(nestlock(&["man", "such"])).await.status, Some(64));
    let completions = end(nestlock(&["completions", "bash"])).await;
    assert!(completions.out.contains("exec ls show watch release completions man"), "{}", completions.out);
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
