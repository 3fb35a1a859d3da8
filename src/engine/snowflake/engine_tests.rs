//! Tests, to be written.
