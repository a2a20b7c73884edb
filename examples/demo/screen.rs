//! The output for the user. Colour and moving bars are used on a terminal only; NO_COLOR turns colour off.

use std::io::{IsTerminal, Write};

use crate::Result;

const WIDTH: usize = 40;

#[derive(Clone, Copy)]
pub(crate) enum Colour {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Yellow = 33,
    Cyan = 36,
}

pub(crate) struct Screen {
    colour: bool,
    moving: bool,
    bars: usize,
    tenths: usize,
}

impl Screen {
    pub(crate) fn new() -> Screen {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let moving = std::io::stdout().is_terminal() && !dumb;
        Screen { colour: moving && !set("NO_COLOR"), moving, bars: 0, tenths: 0 }
    }

    pub(crate) fn paint(&self, colour: Colour, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", colour as u8) } else { text.to_owned() }
    }

    pub(crate) fn heading(&mut self, text: &str) -> Result<()> {
        self.line("")?;
        self.line(&self.paint(Colour::Bold, text))
    }

    /// Prints a line below everything else; bars that were drawn before stay above it.
    pub(crate) fn line(&mut self, text: &str) -> Result<()> {
        self.bars = 0;
        Ok(writeln!(std::io::stdout().lock(), "{text}")?)
    }

    pub(crate) fn verdict(&mut self, good: bool, text: &str) -> Result<()> {
        let (mark, colour) = if good { ("✓", Colour::Green) } else { ("✗", Colour::Red) };
        self.line(&format!("  {} {text}", self.paint(colour, mark)))
    }

    /// Begins new bars, at zero.
    pub(crate) fn new_bars(&mut self) {
        (self.bars, self.tenths) = (0, 0);
    }

    /// Draws a bar for each worker over the bars drawn last. If the output is not a terminal, prints a line at each fifth of the whole
    /// instead.
    pub(crate) fn bars(&mut self, workers: &[(&str, usize, Option<&str>)], whole: usize) -> Result<()> {
        let done: usize = workers.iter().map(|(_, done, _)| done).sum();
        let mut out = std::io::stdout().lock();
        if !self.moving {
            let tenths = done * 5 / whole.max(1);
            if tenths > self.tenths {
                self.tenths = tenths;
                let counts: Vec<String> =
                    workers.iter().map(|(name, done, _)| format!("{name} {done}")).collect();
                writeln!(out, "  {done:>4} of {whole} orders done ({})", counts.join(", "))?;
            }
            return Ok(());
        }
        if self.bars > 0 {
            write!(out, "\x1b[{}A", self.bars)?;
        }
        for (name, done, note) in workers {
            let full = (done * WIDTH).div_ceil(whole.max(1)).min(WIDTH);
            let colour = if note.is_some() { Colour::Red } else { Colour::Cyan };
            let bar = self.paint(colour, &"█".repeat(full));
            let rest = self.paint(Colour::Dim, &"░".repeat(WIDTH - full));
            let note = note.map(|note| format!(" {note}")).unwrap_or_default();
            writeln!(out, "\r\x1b[K  {name} {bar}{rest} {done:>4}{note}")?;
        }
        self.bars = workers.len();
        Ok(out.flush()?)
    }
}
