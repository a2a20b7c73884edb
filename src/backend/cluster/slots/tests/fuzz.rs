use super::*;
use crate::base::testing::{fuzz, text};
use crate::wire::keys;

/// One script takes both the key and the counter, and a subscription goes to the node of the key. Names with unpaired braces are an
/// exception: Redisson forms both names in this way.
#[test]
fn channel_and_counter_of_any_name_are_in_the_slot_of_its_key() {
    fuzz((text(), text(), text()), |(name, tag, prefix)| {
        let plain = |text: &str| text.replace(['{', '}'], "");
        let (name, prefix) = (plain(&name), plain(&prefix));
        let tag = if tag.is_empty() { String::new() } else { format!("{{{}}}", plain(&tag)) };
        let name = if tag == "{}" { name } else { name.clone() + &tag + &name };
        if keys::check(&name, &prefix).is_ok() {
            let whole = [&*prefix, &*name].concat();
            assert_eq!(slot(&whole), slot(&keys::channel(&prefix, &name)), "channel");
            assert_eq!(slot(&whole), slot(&keys::counter(&prefix, &name)), "counter");
        }
    });
}

#[test]
fn any_address_of_a_redirection_is_read_or_ignored() {
    let asked = NodeAddress { host: "asked".into(), port: 1 };
    fuzz((text(), text()), |(host, port)| {
        for address in [format!("{host}:{port}"), host] {
            if let Some(node) = NodeAddress::of(&address, &asked) {
                assert!(!node.host.is_empty() && node.to_string().len() < address.len() + 20);
            }
        }
    });
}
