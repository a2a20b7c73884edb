//! Names that work, and names that don't.

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
    let (mut guards, mut waiting, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for name in names {
        guards.push(locks.mutex(name).lock().await.unwrap());
        keys.push(name);
        keys.sort();
        assert_eq!(home.keys().await, keys);
        let stranger = others.mutex(name);
        assert!(stranger.try_lock().await.unwrap().is_none(), "{name:?}");
        waiting.push(tokio::spawn(async move { stranger.lock().await.unwrap().release().await }));
    }
    home.channels(names.len()).await;
    for (guard, waits) in guards.into_iter().zip(waiting) {
        let name = guard.name().to_owned();
        guard.release().await.unwrap();
        crate::support::soon(&name, waits).await.unwrap().unwrap();
    }
    assert!(home.keys().await.is_empty());
}
