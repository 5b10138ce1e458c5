//! Doors for the fuzz targets of `tests/`: parts of the client that are private to it, as they are. Only builds with
//! the feature `fuzzing` have this module.

pub use crate::transport::fuzzing::read_answer;
