//! What the fuzz targets (`fuzz/`) do with bytes from outside, and the tests with their seeds.

use crate::table::Table;
use crate::when::When;
use crate::work::drained;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::path::Path;

/// The tables `[[schedule]]` of a pool's file, and the words in them.
pub fn schedules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    std::hint::black_box(drained(text));
    for words in text.lines() {
        let Ok(when) = When::parse(words) else { continue };
        assert_eq!(When::parse(&when.to_string()).as_ref(), Ok(&when), "{words}");
        let now = Timestamp::from_second(1_795_819_231).expect("a time").to_zoned(TimeZone::UTC);
        let (last, next) =
            (when.latest(&now).expect("there was one"), when.next(&now).expect("there is one"));
        assert!(last <= now && now < next, "{words}: {last} {next}");
    }
    match Table::parse(Path::new("/f"), text, &|_| Ok(())) {
        Ok(table) => assert!(table.jobs.iter().all(|job| !job.name.contains('/'))),
        Err(why) => assert!(!canopy_base::text::one_line(&why.to_string()).contains('\n')),
    }
}

#[cfg(test)]
#[macro_use]
#[path = "../../../fuzz/smoke.rs"]
mod smoke;

#[cfg(test)]
seeds_and_what_is_near_them!(schedules);
