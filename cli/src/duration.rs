//! Durations as people write them, and points in time.

use std::time::{Duration, SystemTime};

/// Parses a duration such as `10s`, `500ms`, `2m` or `1h 30m`. A number without a unit is seconds, as for `flock` and `sleep`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    if let Some(seconds) = seconds {
        return Ok(seconds);
    }
    humantime::parse_duration(text)
        .map_err(|_| "it takes seconds, or a number and a unit, such as 500ms, 10s, 2m or 1h".to_owned())
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
    fn a_duration_has_a_unit_or_is_seconds() {
        for (text, millis) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h 30m", 5_400_000),
            ("0", 0),
            ("10", 10_000),
            ("0.5", 500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1", "-1s", "ten seconds", "1x", "inf", "nan", "1e300"] {
            assert!(parse(text).is_err_and(|why| why.contains("unit")), "{text}");
        }
        assert!(positive("0s").is_err());
    }
}
