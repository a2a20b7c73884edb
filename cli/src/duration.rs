//! Durations as people write them, and points in time.

use std::time::{Duration, SystemTime};

/// Parses a duration such as `10s`, `500ms`, `2m` or `1h 30m`, and also `0`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "it takes a number and a unit, such as 500ms, 10s, 2m or 1h".to_owned())
}

/// Parses a duration that is not zero.
pub(crate) fn positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("it must be more than zero".to_owned()),
        duration => Ok(duration),
    }
}

/// Returns the duration in whole seconds or, if it is shorter, in milliseconds.
pub(crate) fn shown(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{} ms", duration.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

/// Returns a point in time as `2026-01-31T23:59:59Z`, which is the same in every log.
pub(crate) fn point(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        for (text, millis) in
            [("10s", 10_000), ("500ms", 500), ("2m", 120_000), ("1h 30m", 5_400_000), ("0", 0)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "10", "-1s", "ten seconds", "1x"] {
            assert!(parse(text).is_err_and(|why| why.contains("unit")), "{text}");
        }
        assert!(positive("0s").is_err());
    }
}
