//! What the checks report.

/// The faults of a run.
#[derive(Default)]
pub(crate) struct Faults {
    list: Vec<Fault>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    file: String,
    line: usize,
    text: String,
    /// Further lines, printed indented.
    details: Vec<String>,
}

impl Faults {
    /// Records what is wrong at a line of a file and how to mend it.
    pub(crate) fn add(&mut self, file: &str, line: usize, text: impl Into<String>) {
        self.add_with(file, line, text, Vec::new());
    }

    /// As [`Faults::add`], with lines that explain the fault.
    pub(crate) fn add_with(
        &mut self,
        file: &str,
        line: usize,
        text: impl Into<String>,
        details: Vec<String>,
    ) {
        self.list.push(Fault { file: file.to_owned(), line, text: text.into(), details });
    }

    /// Prints the faults, ordered by file and line, and returns how many there are.
    pub(crate) fn print(mut self) -> usize {
        self.list.sort();
        self.list.dedup();
        for Fault { file, line, text, details } in &self.list {
            eprintln!("structure: {file}:{line}: {text}");
            for detail in details {
                eprintln!("    {detail}");
            }
        }
        self.list.len()
    }
}
