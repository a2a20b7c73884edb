//! `AddressMap`: maps the addresses that servers report to those to connect to.

use std::fmt;
use std::sync::Arc;

use crate::base::unless_it_panics;

type Map = dyn Fn(&str, u16) -> (String, u16) + Send + Sync;

/// The user's map, if one is given; otherwise each address is used as reported. It runs while nothing is locked.
#[derive(Clone)]
pub(crate) struct AddressMap(Option<Arc<Map>>);

impl AddressMap {
    pub(crate) const NONE: AddressMap = AddressMap(None);

    pub(crate) fn new(map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static) -> AddressMap {
        AddressMap(Some(Arc::new(map)))
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Returns where to connect to. `None` if there is no map or it panicked: the address is used as reported.
    pub(crate) fn get(&self, host: &str, port: u16) -> Option<(String, u16)> {
        let map = self.0.as_ref()?;
        unless_it_panics(|| map(host, port))
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "AddressMap(none)" } else { "AddressMap(..)" })
    }
}
