//! Names that work, and names that do not.

use nestlock::ErrorKind;

use super::Home;

#[tokio::test]
async fn a_prefix_decides_where_the_name_begins() {
    let home = Home::start().await;
    let locks = home.builder().prefix("app:").connect().await.unwrap();
    let guard = locks.mutex("}stock").lock().await.unwrap();
    assert_eq!(home.keys().await, ["app:}stock"]);
    guard.release().await.unwrap();
    let error = home.builder().prefix("}app:").connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn unusual_names_are_locks_like_any_other() {
    let home = Home::start().await;
    let (locks, others) = (home.locks().await, home.locks().await);
    let longest = "x".repeat(1_024);
    let names =
        ["schön", "🔒", " ", "\n", "\0", "a b\tc", "{tag}:a", "{}", "a}", "{", "*", "h?llo", "%40", &longest];
    for name in names {
        let guard = locks.mutex(name).lock().await.unwrap();
        assert_eq!(home.keys().await, [name]);
        let stranger = others.mutex(name);
        assert!(stranger.try_lock().await.unwrap().is_none(), "{name:?}");
        let waits = tokio::spawn(async move { stranger.lock().await.unwrap().release().await });
        home.listened().await;
        guard.release().await.unwrap();
        crate::support::soon("the waiter", waits).await.unwrap().unwrap();
        home.silence().await;
        assert!(home.keys().await.is_empty());
    }
}
