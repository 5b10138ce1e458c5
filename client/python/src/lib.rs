//! Python extension.
