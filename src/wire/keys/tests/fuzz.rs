use super::*;
use crate::base::testing::{fuzz, text};

#[test]
fn any_name_is_taken_or_rejected_with_a_short_message() {
    fuzz((text(), text()), |(name, prefix)| match check(&name, &prefix) {
        Ok(()) => {
            let keys = Keys::new(&prefix, &name);
            assert_eq!((&*keys.name, &*keys.key), (&*name, &*[&*prefix, &*name].concat()));
            assert!(keys.channel().starts_with(&prefix) && keys.channel().contains(&name));
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() < 2_000 && !message.contains(['\u{0}', '\u{1b}', '\n']), "{message:?}");
        }
    });
}
