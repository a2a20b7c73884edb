use super::*;

#[test]
fn a_claim_is_read_as_it_was_written() {
    for field in ["me:7", "web@host:e4a85f5e:12", "ü:1", ":"] {
        for name in ["stock", "a:b:c", ":", "17:x", "{ü} \n"] {
            let claim = Claim::new(field.into(), name.into());
            let text = claim.to_string();
            assert_eq!(text.parse::<Claim>().unwrap(), claim, "{text}");
            assert_eq!((claim.hold_id(), claim.name()), (field, name));
        }
    }
}

#[test]
fn what_is_no_claim_is_refused() {
    let long = format!("{HEAD}600:{}:stock", "f".repeat(600));
    for text in [
        "",
        "stock",
        HEAD,
        "nestlock-claim:2:4:me:7:stock",
        "nestlock-claim:1:4:me:7",
        "nestlock-claim:1:4:me:7:",
        "nestlock-claim:1:3:me:7:stock",
        "nestlock-claim:1:5:me:7:stock",
        "nestlock-claim:1:04:me:7:stock",
        "nestlock-claim:1:+4:me:7:stock",
        "nestlock-claim:1:0::stock",
        "nestlock-claim:1:1:ü:stock",
        "nestlock-claim:1:99999999999999999999:me:7:stock",
        " nestlock-claim:1:4:me:7:stock",
        &long,
    ] {
        assert_eq!(text.parse::<Claim>().unwrap_err().kind(), ErrorKind::InvalidInput, "{text}");
    }
}
