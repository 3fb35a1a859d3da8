//! The commands as a client sees them.
