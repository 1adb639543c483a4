pub(crate) mod busy_dirs;
pub(crate) mod dir_listings;
pub(crate) mod freshness;
pub(crate) mod in_flight;
pub(crate) mod invalidate;
pub(crate) mod recent_files;
