//! Violations, as text.

use crate::checker::{Confirmed, Findings, History, Misclaim, Overlap, Try};
use crate::clock::seconds;

/// Something that must not happen.
pub(crate) struct Violation {
    at: u64,
    /// Faults from this time on may be related to it.
    from: u64,
    what: String,
}

impl Violation {
    /// Returns all violations, the earliest first.
    pub(crate) fn all(history: &History, findings: &Findings) -> Vec<Violation> {
        let when = |at| When { at, begun: history.begun.unwrap_or_default() };
        let mut all = Vec::new();
        for Overlap { name, first, second, .. } in &findings.overlaps {
            let mut what = format!("{name} was held twice");
            for hold in [first, second] {
                let (granted, end) = (when(hold.granted), when(hold.end));
                what += &format!("\n    {}, granted at {granted}, held until {end}", hold.who);
            }
            all.push(Violation { at: second.granted, from: first.asked, what });
        }
        for (name, before, hold) in &findings.disorders {
            let token = |hold: &crate::checker::Hold| hold.token.unwrap_or_default();
            let first = format!("{} got the token {}", before.who, token(before));
            let what = format!("{name}: {first}, and then {} got {}", hold.who, token(hold));
            all.push(Violation { at: hold.granted, from: before.granted, what });
        }
        for (name, hold) in &findings.lost {
            let (who, granted) = (&hold.who, when(hold.granted));
            let what = format!("{name} was gone without a reason: {who}, granted at {granted}");
            all.push(Violation { at: hold.gone.unwrap_or(hold.end), from: hold.asked, what });
        }
        for Confirmed { name, hold, at, other } in &findings.confirmed {
            let (who, granted) = (&other.who, when(other.granted));
            let other = format!("\n    {who}, granted at {granted}");
            let what = format!("a check confirmed a hold of {name} that was over: {}{other}", hold.who);
            all.push(Violation { at: *at, from: hold.asked, what });
        }
        for Misclaim { name, hold, tries, twice } in &findings.misclaims {
            let fate = if *twice { "resumed more than once" } else { "good, and refused" };
            let mut what = format!("a claim of {name} was {fate}: {}", hold.who);
            for Try { who, asked, granted, .. } in tries {
                let answer =
                    granted.map_or("not resumed".to_owned(), |at| format!("resumed at {}", when(at)));
                what += &format!("\n    {who}, asked at {}, {answer}", when(*asked));
            }
            all.push(Violation { at: hold.end, from: hold.asked, what });
        }
        for (name, before, hold) in &findings.too_early {
            let kept = when(before.kept.unwrap_or(before.end));
            let what = format!(
                "{name} was kept until {kept} by {}, and granted at {} to {}",
                before.who,
                when(hold.granted),
                hold.who
            );
            all.push(Violation { at: hold.granted, from: before.asked, what });
        }
        for wait in findings.slow() {
            let calm = if wait.calm { "nothing failed" } else { "there were faults" };
            let (name, long) = (&wait.name, seconds(wait.nanos));
            let what = format!("{name} was free and waited for, for {long:.3} s; {calm}");
            all.push(Violation { at: wait.from, from: wait.from, what });
        }
        all.extend(history.wrong.iter().map(|(at, what)| Violation {
            at: *at,
            from: *at,
            what: what.clone(),
        }));
        all.sort_by_key(|violation| violation.at);
        all
    }

    /// Describes the violation, with the faults at that time and shortly before.
    pub(crate) fn in_words(&self, history: &History) -> String {
        let when = |at| When { at, begun: history.begun.unwrap_or_default() };
        let mut text = format!("\nVIOLATION at {}: {}", when(self.at), self.what);
        let shortly = self.from.saturating_sub(4_000_000_000);
        for fault in history.faults.iter().filter(|fault| fault.from <= self.at && shortly <= fault.to) {
            text += &format!("\n    fault from {} to {}: {}", when(fault.from), when(fault.to), fault.what);
        }
        text
    }
}

/// A time as a reader of the report counts it: from the start of the first process.
struct When {
    at: u64,
    begun: u64,
}

impl std::fmt::Display for When {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} s", seconds(self.at.saturating_sub(self.begun)))
    }
}
