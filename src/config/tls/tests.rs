use super::*;

#[test]
fn what_is_shown_of_the_settings_is_where_they_come_from() {
    let tls = Tls::new().authorities("secret").client_certificate("secret", "secret");
    assert_eq!(
        format!("{tls:?}"),
        "Tls { authorities: Some(text), client_certificate: Some(text), client_key: Some(text), insecure: false }"
    );
    let tls = Tls::new().authorities_file("ca.pem").insecure();
    assert_eq!(
        format!("{tls:?}"),
        r#"Tls { authorities: Some("ca.pem"), client_certificate: None, client_key: None, insecure: true }"#
    );
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
mod pem {
    use super::*;
    use crate::Server;
    use crate::error::ErrorKind;

    fn certificate() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["host".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn check(tls: Tls) -> Option<String> {
        let error = Server::from("rediss://:secret@host").tls(tls).destination().err()?;
        assert_eq!(error.kind(), ErrorKind::Config);
        Some(format!("{error} {error:?}"))
    }

    #[test]
    fn pem_that_can_be_used_is_taken() {
        let (certificate, key) = certificate();
        let (other, _) = self::certificate();
        for tls in [
            Tls::new(),
            Tls::new().authorities(&certificate),
            Tls::new().authorities(format!("a comment\n{certificate}{other}")),
            Tls::new().client_certificate(&certificate, &key).insecure(),
            Tls::new().client_certificate(&certificate, &key).authorities(&other),
            Tls::new().authorities_file("read at each connection").client_certificate_files("x", "y"),
        ] {
            assert_eq!(check(tls.clone()), None, "{tls:?}");
        }
    }

    #[test]
    fn pem_that_cannot_be_used_is_reported_without_any_part_of_it() {
        let ((certificate, key), (_, other)) = (certificate(), certificate());
        let broken = |pem: &str| pem.replacen("\nM", "\n!secret", 1);
        for (tls, word) in [
            (Tls::new().authorities(""), "authorities"),
            (Tls::new().authorities("secret"), "authorities"),
            (Tls::new().authorities(&key), "authorities"),
            (Tls::new().authorities(broken(&certificate)), "authorities"),
            (Tls::new().authorities("-----BEGIN secret"), "authorities"),
            (Tls::new().client_certificate("secret", &key), "certificate"),
            (Tls::new().client_certificate(&key, &key), "certificate"),
            (Tls::new().client_certificate(&certificate, "secret"), "private key"),
            (Tls::new().client_certificate(&certificate, broken(&key)), "private key"),
            (Tls::new().client_certificate(&certificate, "-----BEGIN secret"), "private key"),
            (Tls::new().client_certificate(&certificate, &certificate), "private key"),
            (Tls::new().client_certificate(&certificate, &other), "private key"),
        ] {
            let text = check(tls.clone()).unwrap_or_else(|| panic!("{word}: {tls:?}"));
            assert!(text.contains(word) && text.contains("host:6379"), "{text}");
            let lines = key.lines().chain(other.lines()).filter(|line| !line.starts_with("--"));
            assert!(!text.contains("secret") && lines.into_iter().all(|line| !text.contains(line)), "{text}");
        }
    }
}
