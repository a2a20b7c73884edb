use super::*;
use crate::backend::resp::testing::open_simulated;

fn settings() -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_lib_name("nestlock", "1")
}

fn sent(settings: &RedisConnectionInfo) -> Vec<String> {
    let text = |cmd: &Cmd| {
        let words = cmd.args_iter().map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => panic!("no cursor is sent"),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    commands(settings).iter().map(text).collect()
}

const NAME: &str = "CLIENT SETINFO LIB-NAME nestlock";
const VERSION: &str = "CLIENT SETINFO LIB-VER 1";

#[test]
fn what_is_sent_first() {
    assert_eq!(sent(&settings()), ["HELLO 3", NAME, VERSION]);
    let with_password = settings().set_password("pw").set_db(7);
    assert_eq!(sent(&with_password), ["HELLO 3 AUTH default pw", "SELECT 7", NAME, VERSION]);
    let with_user = with_password.set_username("bob").set_skip_set_lib_name();
    assert_eq!(sent(&with_user), ["HELLO 3 AUTH bob pw", "SELECT 7"]);
}

#[test]
fn what_is_refused_is_an_error_without_the_password() {
    let refused = || {
        let frame =
            b"-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `bob`, `hunter2`\r\n";
        redis::parse_redis_value(frame).unwrap()
    };
    let settings = settings().set_username("bob").set_password("hunter2");
    let error = check(&settings, vec![refused(), Value::Okay, Value::Okay]).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    check(&settings, vec![Value::Okay, refused(), refused()]).unwrap();
    let settings = settings.set_db(7);
    let error = check(&settings, vec![Value::Okay, refused(), Value::Okay]).unwrap_err();
    assert!(error.to_string().contains("switch database"), "{error}");
    // This passes, and the database is not to blame.
    let busy = redis::parse_redis_value(b"-BUSY Redis is busy running a script.\r\n").unwrap();
    let error = check(&settings, vec![Value::Okay, busy, Value::Okay]).unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("switch database")), (Some("BUSY"), false));
}

/// Returns the error of a connection attempt if the server sends this and hangs up.
async fn turned_away(settings: &RedisConnectionInfo, sent: &str) -> redis::RedisError {
    let (ours, mut server) = tokio::io::duplex(1024);
    let sent = sent.to_owned();
    tokio::spawn(async move {
        tokio::io::AsyncWriteExt::write_all(&mut server, sent.as_bytes()).await.unwrap();
        tokio::io::AsyncReadExt::read(&mut server, &mut [0; 1024]).await.unwrap();
    });
    open_simulated(ours, settings, Box::new(drop)).await.err().expect("the server has hung up")
}

#[tokio::test(start_paused = true)]
async fn why_a_server_hangs_up_is_the_error() {
    const FULL: &str = "-ERR max number of clients reached\r\n";
    const PROTECTED: &str = "-DENIED Redis is running in protected mode because no password is set\r\n";
    for settings in [settings(), settings().set_password("hunter2").set_db(7)] {
        for (sent, why) in [(FULL, "max number of clients"), (PROTECTED, "protected mode")] {
            let error = turned_away(&settings, sent).await;
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.kind() != ErrorKind::AuthenticationFailed, "{error}");
        }
    }
}

/// An old server refuses a command that is not needed. Its answer is not taken for the reason of the break.
#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_after_an_answer_is_lost() {
    let sent = "%0\r\n-ERR Unknown subcommand or wrong number of arguments for 'SETINFO'\r\n";
    let error = turned_away(&settings(), sent).await;
    assert!(error.is_connection_dropped(), "{error}");
}
