//! User and password of all servers of a run, and the search for the password in what the run has put out.

mod scan;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{IntoConnectionInfo, RedisConnectionInfo, RedisResult};

pub(crate) use scan::{Leak, Scan, Searched};

/// The user of the processes. Servers and sentinels talk among themselves as `default`, with the same password.
pub(crate) const USER: &str = "torturer";

/// How many characters a word of the password has: so many that it is in no text by chance.
const WORD: usize = 10;

/// User and password.
///
/// They follow from the seed. So the processes, and who checks the logs later, make them again, and no file and no command line has them.
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

    /// What is between its words has a meaning in a URL: a part that was cut out of one shows too.
    pub(crate) fn password(&self) -> String {
        let [one, two, three] = &self.words;
        format!("{one}@{two}/{three}")
    }

    /// The words of the rule by which a server knows the user.
    pub(crate) fn rule(&self) -> [String; 6] {
        [USER, "on", &format!(">{}", self.password()), "~*", "&*", "+@all"].map(str::to_owned)
    }

    /// What stands before the host in a URL.
    pub(crate) fn in_url(&self) -> String {
        let [one, two, three] = &self.words;
        format!("{USER}:{one}%40{two}%2F{three}@")
    }

    /// For the looks of the conductor itself.
    pub(crate) fn client(&self, port: u16) -> RedisResult<redis::Client> {
        let settings = RedisConnectionInfo::default().set_username(USER).set_password(self.password());
        redis::Client::open(("127.0.0.1", port).into_connection_info()?.set_redis_settings(settings))
    }
}
