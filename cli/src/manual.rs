//! Completions for shells, and man pages.

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::options::Options;
use crate::output::line;
use crate::status::Failure;

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "nestlock", &mut text);
    print(&text)
}

/// Prints the page of the command or of a subcommand.
pub(crate) fn page(subcommand: Option<&str>) -> Result<u8, Failure> {
    let mut command = Options::command();
    command.build();
    let command = match subcommand {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found
                .ok_or_else(|| Failure::config(format!("there is no subcommand `{}`", name.escape_debug())))?
        }
    };
    let mut text = Vec::new();
    let written = Man::new(command).render(&mut text);
    written.map_err(|error| Failure::system("the page can't be made", &error))?;
    // The text below the help has headings of its own.
    let text = String::from_utf8_lossy(&text)
        .replace(".SH EXTRA\nExit status:", ".SH \"EXIT STATUS\"")
        .replace("\nEnvironment:", "\n.SH ENVIRONMENT");
    print(text.as_bytes())
}

fn print(text: &[u8]) -> Result<u8, Failure> {
    line(String::from_utf8_lossy(text).trim_end())?;
    Ok(0)
}
