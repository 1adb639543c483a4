//! Imports that run up a floor.
//!
//! Rooms on one floor may import each other as long as they do not do so in a circle.

use super::{Imports, graph, listed};
use crate::fault::Faults;
use crate::table::{Crate, Room, TABLE, Table};
use std::collections::BTreeSet;
use std::path::Path;

/// Checks the imports of a package against its floors in the table.
pub(crate) fn check(imports: &Imports<'_>, table: &Table, faults: &mut Faults) {
    let name = &imports.package.name;
    // A crate without an entry is a fault already.
    let Some(entry) = table.crates.get(name) else { return };
    let rooms: Vec<Option<&Room>> =
        imports.files.iter().map(|file| entry.room(imports.place(file))).collect();

    let mut without = BTreeSet::new();
    for (file, _) in imports.files.iter().zip(&rooms).filter(|(_, room)| room.is_none()) {
        let place = imports.place(file);
        let room = place.split('/').next().unwrap_or(place);
        if without.insert(room) {
            faults.add(file, 1, format!("{room} has no floor: add it to [crate.{name}] in {TABLE}"));
        }
    }
    for room in &entry.rooms {
        if !imports.files.iter().any(|file| Path::new(imports.place(file)).starts_with(&room.name)) {
            faults.add(
                TABLE,
                room.line,
                format!("{name} has no file or folder {}: rename or remove the room", room.name),
            );
        }
    }

    for (&(from, to), arrow) in &imports.arrows {
        let (Some(lower), Some(upper)) = (rooms[from], rooms[to]) else { continue };
        if lower.floor > upper.floor {
            let (names, definer) = (listed(&arrow.names), &imports.files[to]);
            let text = format!(
                "imports {names} from {definer}, up from room {} to {}: move what both need down, or the importer up",
                lower.name, upper.name
            );
            faults.add(&imports.files[from], arrow.line, text);
        }
    }
    check_equals(imports, entry, &rooms, faults);
}

/// Checks that rooms on one floor do not import each other in a circle.
fn check_equals(imports: &Imports<'_>, entry: &Crate, rooms: &[Option<&Room>], faults: &mut Faults) {
    let index = |room: &Room| entry.rooms.iter().position(|it| it.name == room.name);
    let mut next = vec![Vec::new(); entry.rooms.len()];
    let mut level = Vec::new();
    for (&(from, to), arrow) in &imports.arrows {
        let (Some(one), Some(other)) = (rooms[from], rooms[to]) else { continue };
        if one.floor == other.floor && one.name != other.name {
            let (Some(one), Some(other)) = (index(one), index(other)) else { continue };
            next[one].push(other);
            level.push((one, other, &imports.files[from], arrow, &imports.files[to]));
        }
    }
    for circle in graph::circles(&next) {
        let names: Vec<&str> = circle.iter().map(|&room| entry.rooms[room].name.as_str()).collect();
        let ties = level.iter().filter(|(one, other, ..)| circle.contains(one) && circle.contains(other));
        let details = ties.map(|(_, _, from, arrow, to)| {
            format!("{from}:{} -> {to} ({})", arrow.line, listed(&arrow.names))
        });
        let text = format!(
            "{} stand on one floor and import each other in a circle: cut the arrows of one direction",
            names.join(", ")
        );
        faults.add_with(TABLE, entry.rooms[circle[0]].line, text, details.collect());
    }
}
