//! Changes one table of a list of tables in TOML, such as `[[schedule]]`, found by its name. Everything else keeps its order,
//! its formatting and its comments.

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, TomlError, Value};

/// What becomes of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// These keys get these values; an empty one takes the key away. If there is no such table, it is made.
    Set(Vec<(String, String)>),
    Drop,
}

/// Why nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unchanged {
    /// The text is not TOML: why, in one line.
    NotToml(String),
    /// Under the key of the list is something else.
    NoTables,
    /// There is no such table to be dropped.
    NoSuchTable,
    /// What is wrong with a value.
    Value(String),
}

/// A list of tables.
#[derive(Clone, Copy)]
pub struct Tables {
    pub key: &'static str,
    /// The keys from which a table without a `name` gets one. It keeps that, whatever they become.
    pub naming: &'static [&'static str],
    /// Returns the value of the type that a key has. Whether it is a good one shows when the text is read again.
    pub value: fn(key: &str, text: &str) -> Result<Value, String>,
}

/// Reads `KEY=VALUE`.
pub fn pair(word: &str) -> Option<(String, String)> {
    let (key, value) = word.split_once('=').filter(|(key, _)| !key.trim().is_empty())?;
    Some((key.trim().to_owned(), value.trim().to_owned()))
}

impl Tables {
    /// Returns the text with the change. `names` are those of the tables as they come in the text.
    ///
    /// # Errors
    /// If there is nothing to change or it cannot be changed.
    pub fn changed(
        &self,
        text: &str,
        names: &[&str],
        name: &str,
        change: &Change,
    ) -> Result<String, Unchanged> {
        let mut document: DocumentMut =
            text.parse().map_err(|why: TomlError| Unchanged::NotToml(why.message().replace('\n', ", ")))?;
        let none = || Item::ArrayOfTables(ArrayOfTables::new());
        let tables = document.entry(self.key).or_insert_with(none).as_array_of_tables_mut();
        let tables = tables.ok_or(Unchanged::NoTables)?;
        match (change, names.iter().position(|known| *known == name)) {
            (Change::Set(pairs), Some(at)) => {
                if let Some(table) = tables.get_mut(at) {
                    if pairs.iter().any(|(key, _)| self.naming.contains(&&**key))
                        && !table.contains_key("name")
                    {
                        table.insert("name", Item::Value(name.into()));
                    }
                    self.set(table, pairs)?;
                }
            }
            (Change::Set(pairs), None) => {
                let mut table = Table::new();
                table.insert("name", Item::Value(name.into()));
                self.set(&mut table, pairs)?;
                tables.push(table);
            }
            (Change::Drop, Some(at)) => drop(tables.remove(at)),
            (Change::Drop, None) => return Err(Unchanged::NoSuchTable),
        }
        Ok(document.to_string())
    }

    fn set(&self, table: &mut Table, pairs: &[(String, String)]) -> Result<(), Unchanged> {
        for (key, value) in pairs {
            if value.is_empty() {
                table.remove(key);
                continue;
            }
            let mut new = (self.value)(key, value).map_err(Unchanged::Value)?;
            match table.get_mut(key) {
                Some(Item::Value(old)) => {
                    *new.decor_mut() = old.decor().clone();
                    *old = new;
                }
                _ => drop(table.insert(key, Item::Value(new))),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PETS: Tables = Tables {
        key: "pet",
        naming: &["kind"],
        value: |key, text| match (key, text.parse::<i64>()) {
            ("age", Ok(age)) => Ok(age.into()),
            ("age", Err(_)) => Err("age is a number".into()),
            _ => Ok(text.into()),
        },
    };
    const FILE: &str =
        "# mine\n[[pet]]\nkind = 'cat' # soft\nage = 3\n\n[other]\nx=1\n\n[[pet]]\nname = 'rex'\n";

    fn set(words: &[&str]) -> Change {
        Change::Set(words.iter().map(|word| pair(word).unwrap()).collect())
    }

    fn changed(name: &str, change: &Change) -> Result<String, Unchanged> {
        PETS.changed(FILE, &["cat", "rex"], name, change)
    }

    #[test]
    fn one_table_changes_and_the_rest_stays() {
        assert_eq!(changed("cat", &set(&["age=4"])).unwrap(), FILE.replace("age = 3", "age = 4"));
        assert_eq!(changed("cat", &set(&["age="])).unwrap(), FILE.replace("age = 3\n", ""));
        assert_eq!(changed("rex", &set(&["kind=dog"])).unwrap(), format!("{FILE}kind = \"dog\"\n"));
        // It is found by the same name afterwards.
        let other = changed("cat", &set(&["kind=fox"])).unwrap();
        assert_eq!(
            other,
            FILE.replace("'cat' # soft\nage = 3\n", "\"fox\" # soft\nage = 3\nname = \"cat\"\n")
        );
        let new = changed("tom", &set(&["age=1"])).unwrap();
        assert_eq!(new.strip_prefix(FILE), Some("\n[[pet]]\nname = \"tom\"\nage = 1\n"));
        assert_eq!(changed("rex", &Change::Drop).unwrap(), FILE.replace("\n[[pet]]\nname = 'rex'\n", ""));
        assert_eq!(
            PETS.changed("", &[], "tom", &set(&["age=1"])).unwrap(),
            "[[pet]]\nname = \"tom\"\nage = 1\n"
        );
    }

    #[test]
    fn what_cannot_be_changed_is_told() {
        assert_eq!(changed("tom", &Change::Drop), Err(Unchanged::NoSuchTable));
        assert_eq!(changed("cat", &set(&["age=x"])), Err(Unchanged::Value("age is a number".into())));
        assert_eq!(PETS.changed("pet = 1\n", &[], "tom", &set(&["age=1"])), Err(Unchanged::NoTables));
        assert!(matches!(PETS.changed("pet = ", &[], "tom", &Change::Drop), Err(Unchanged::NotToml(_))));
        assert_eq!(pair(" a = b=c "), Some(("a".into(), "b=c".into())));
        assert_eq!((pair("x"), pair("=x"), pair("")), (None, None, None));
    }
}
