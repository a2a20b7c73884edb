use redis::{Client, IntoConnectionInfo};

use super::*;

fn of(client: &Client, node_timeout: u64) -> redis::ConnectionInfo {
    tuned(client, Duration::from_secs(node_timeout)).unwrap().get_connection_info().clone()
}

#[test]
fn a_client_keeps_the_settings_that_it_was_given() {
    let client = Client::open("redis://host:1").unwrap();
    let info = of(&client, 3);
    assert_eq!(info.redis_settings().lib_name(), Some(env!("CARGO_PKG_NAME")));
    assert_eq!(info.redis_settings().protocol(), ProtocolVersion::RESP3);
    assert!(info.tcp_settings().nodelay() && info.tcp_settings().keepalive().is_some());
    #[cfg(target_os = "linux")]
    for (node_timeout, seconds) in [(3, 12), (0, 2), (3600, 60)] {
        let limit = of(&client, node_timeout).tcp_settings().user_timeout();
        assert_eq!(limit, Some(Duration::from_secs(seconds)), "{node_timeout}");
    }
    assert_eq!(
        for_messages(&client).unwrap().get_connection_info().redis_settings().protocol(),
        ProtocolVersion::RESP2
    );

    let given = || "redis://host:1".into_connection_info().unwrap();
    let settings = |settings| of(&Client::open(given().set_redis_settings(settings)).unwrap(), 3);
    let named = settings(given().redis_settings().clone().set_lib_name("theirs", "1"));
    assert_eq!(named.redis_settings().lib_name(), Some("theirs"));
    let unnamed = settings(given().redis_settings().clone().set_skip_set_lib_name());
    assert_eq!(unnamed.redis_settings().lib_name(), None);
    #[cfg(target_os = "linux")]
    {
        let tcp = TcpSettings::default().set_user_timeout(Duration::from_secs(7));
        let client = Client::open(given().set_tcp_settings(tcp)).unwrap();
        assert_eq!(of(&client, 3).tcp_settings().user_timeout(), Some(Duration::from_secs(7)));
    }
}
