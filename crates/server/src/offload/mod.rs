pub(crate) mod deadline;
pub(crate) mod interrupts;
