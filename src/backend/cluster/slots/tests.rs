use super::*;

mod fuzz;

fn node_address(port: u16) -> NodeAddress {
    NodeAddress { host: "host".into(), port }
}

#[test]
fn slots_are_those_of_redis() {
    assert_eq!(crc16(b"123456789"), 0x31c3);
    // These slots are those that a server's `CLUSTER KEYSLOT` reports.
    for (key, at) in [("foo", 12_182), ("bar", 5_061), ("user1000", 3_443), ("", 0)] {
        assert_eq!(slot(key), at, "{key}");
    }
}

#[test]
fn the_slot_is_that_of_the_text_between_the_first_braces() {
    for key in ["{user1000}.following", "{user1000}", "a{user1000}b{foo}", "x{user1000}}"] {
        assert_eq!(slot(key), slot("user1000"), "{key}");
    }
    assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
    for key in ["foo{}{bar}", "foo{bar", "foo}bar{", "{}"] {
        assert_eq!(slot(key), crc16(key.as_bytes()) % COUNT, "{key}");
    }
}

#[test]
fn a_redirection_names_host_and_port_or_the_port_alone() {
    let asked = node_address(1);
    let parsed = |address| NodeAddress::of(address, &asked).map(|node_address| node_address.to_string());
    assert_eq!(parsed("10.0.0.1:7000").as_deref(), Some("10.0.0.1:7000"));
    assert_eq!(parsed(":7000").as_deref(), Some("host:7000"));
    assert_eq!(parsed("?:7000").as_deref(), Some("host:7000"));
    assert_eq!(parsed("::1:7000").as_deref(), Some("[::1]:7000"));
    assert_eq!(parsed("[::1]:7000").as_deref(), Some("[::1]:7000"));
    assert_eq!(parsed("host"), None);
    assert_eq!(parsed("host:port"), None);
}

#[test]
fn slots_have_the_owner_that_was_assigned_last() {
    let mut slots = Slots::default();
    assert!(slots.is_empty() && slots.owner(7).is_none());
    assert!(slots.assign(0..=COUNT - 1, &node_address(1)));
    assert!(slots.assign(7..=7, &node_address(2)));
    assert!(!slots.assign(7..=7, &node_address(2)));
    assert_eq!([6, 7, 8].map(|slot| slots.owner(slot).unwrap().port), [1, 2, 1]);
    assert_eq!(slots.serving(), [&node_address(1), &node_address(2)]);
    let before = slots.clone();
    assert!(slots.assign(0..=u16::MAX, &node_address(2)));
    assert_eq!(slots.serving(), [&node_address(2)]);
    assert!(slots != before);
    assert!(slots.assign(0..=COUNT - 1, &node_address(1)) && slots.assign(7..=7, &node_address(2)));
    assert_eq!(slots, before);
    assert!(slots.owner(COUNT).is_none() && !slots.assign(COUNT..=COUNT, &node_address(3)));
}
