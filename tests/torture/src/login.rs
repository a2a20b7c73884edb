//! The user and password of all servers of a run, and the search for the password in everything that the run has written.

mod scan;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{IntoConnectionInfo, RedisConnectionInfo, RedisResult};

pub(crate) use scan::{Leak, Scan, Searched};

/// The user of the processes. Servers and sentinels use `default` among themselves, with the same password.
pub(crate) const USER: &str = "torturer";

/// The number of characters in a word of the password: so many that it appears in no text by chance.
const WORD: usize = 10;

/// A user and a password.
///
/// They follow from the seed. So the processes, and a later check of the logs, can make them again, and they are in no file and on no
/// command line.
#[derive(Clone)]
pub(crate) struct Login {
    words: [String; 3],
}

impl Login {
    pub(crate) fn of(seed: u64) -> Login {
        let mut random = StdRng::seed_from_u64(seed ^ 0x5ec2_e700_0000);
        let mut word = || {
            let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
            (0..WORD).map(|_| char::from(letters[random.random_range(0..letters.len())])).collect()
        };
        Login { words: [word(), word(), word()] }
    }

    /// Returns the password. The characters between its words have a meaning in a URL: so a part that was cut out of a URL is recognized
    /// too.
    pub(crate) fn password(&self) -> String {
        let [one, two, three] = &self.words;
        format!("{one}@{two}/{three}")
    }

    /// Returns the words of the rule that makes this user on a server.
    pub(crate) fn rule(&self) -> [String; 6] {
        [USER, "on", &format!(">{}", self.password()), "~*", "&*", "+@all"].map(str::to_owned)
    }

    /// Returns what stands before the host in a URL.
    pub(crate) fn in_url(&self) -> String {
        let [one, two, three] = &self.words;
        format!("{USER}:{one}%40{two}%2F{three}@")
    }

    /// Returns a client for the conductor's own commands.
    pub(crate) fn client(&self, port: u16) -> RedisResult<redis::Client> {
        let settings = RedisConnectionInfo::default().set_username(USER).set_password(self.password());
        redis::Client::open(("127.0.0.1", port).into_connection_info()?.set_redis_settings(settings))
    }
}
