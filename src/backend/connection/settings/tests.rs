#[cfg(feature = "redis-1")]
use redis::IntoConnectionInfo;

use super::*;
use crate::config::Server;

fn of(server: Server, node_timeout: u64) -> Destination {
    tuned(&server.destination().unwrap(), Duration::from_secs(node_timeout))
}

#[test]
fn a_server_keeps_the_settings_that_it_was_given() {
    let server = Server::from("redis://host:1");
    let to = of(server.clone(), 3);
    assert_eq!(to.redis_settings().lib_name(), Some(env!("CARGO_PKG_NAME")));
    assert!(to.tcp_settings().nodelay() && to.tcp_settings().keepalive().is_some());
    #[cfg(target_os = "linux")]
    for (node_timeout, seconds) in [(3, 12), (0, 2), (3600, 60)] {
        let limit = of(server.clone(), node_timeout).tcp_settings().user_timeout();
        assert_eq!(limit, Some(Duration::from_secs(seconds)), "{node_timeout}");
    }
}

#[cfg(feature = "redis-1")]
#[test]
fn a_client_of_the_redis_crate_keeps_its_settings() {
    let given = || "redis://host:1".into_connection_info().unwrap();
    let settings = |settings| of(given().set_redis_settings(settings).into(), 3);
    let named = settings(given().redis_settings().clone().set_lib_name("theirs", "1"));
    assert_eq!(named.redis_settings().lib_name(), Some("theirs"));
    let unnamed = settings(given().redis_settings().clone().set_skip_set_lib_name());
    assert_eq!(unnamed.redis_settings().lib_name(), None);
    #[cfg(target_os = "linux")]
    {
        let tcp = TcpSettings::default().set_user_timeout(Duration::from_secs(7));
        let limit = of(given().set_tcp_settings(tcp).into(), 3).tcp_settings().user_timeout();
        assert_eq!(limit, Some(Duration::from_secs(7)));
    }
}
