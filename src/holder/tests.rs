use super::*;

const UUID: &str = "4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a";

fn holder(field: String) -> Holder {
    Holder::new(field, 1, Duration::from_millis(12_700))
}

#[test]
fn a_name_is_what_stands_before_the_id_of_a_hold_and_nothing_else() {
    for name in ["billing@web-7", " ", "-", "ü", UUID] {
        assert_eq!(holder(format!("{name}:{UUID}:7")).name(), Some(name));
        assert_eq!(holder(format!("{name}:{UUID}:-7")).name(), Some(name));
    }
    for field in [
        format!("{UUID}:7"),
        format!(":{UUID}:7"),
        format!("a:b:{UUID}:7"),
        format!("{UUID}:7:write"),
        format!("a:{UUID}:"),
        format!("a:{UUID}:--7"),
        format!("a:{}:7", &UUID[1..]),
        format!("a:{}:7", UUID.replace('-', "_")),
        format!("a:{}:7", UUID.replace('b', "g")),
        format!("a:{UUID}-:7"),
        "a:b:7".to_owned(),
        "mode".to_owned(),
        String::new(),
    ] {
        assert_eq!(holder(field.clone()).name(), None, "{field}");
        assert_eq!(holder(field.clone()).hold_id(), field);
    }
}

#[test]
fn a_holder_is_shown_by_its_label_or_else_by_its_field() {
    assert_eq!(holder(format!("billing@web-7:{UUID}:7")).to_string(), "billing@web-7 for another 12 s");
    assert_eq!(holder(format!("{UUID}:7")).to_string(), format!("{UUID}:7 for another 12 s"));
    let brief = holder("a".to_owned()).with(2, Duration::from_micros(850_900));
    assert_eq!((brief.to_string().as_str(), brief.count()), ("a for another 850 ms", 2));
}

/// A field may have any text that another program wrote.
#[test]
fn a_foreign_field_is_escaped_and_cut_where_it_is_shown() {
    let shown = holder(format!("a\n\u{1b}[31m{}", "x".repeat(500))).to_string();
    assert!(shown.starts_with("a\\n\\u{1b}[31mxx") && shown.contains("x… for another"), "{shown}");
    assert!(shown.len() < 150, "{shown}");
}
