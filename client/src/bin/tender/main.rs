//! The tool `tender`.
fn main() {}
