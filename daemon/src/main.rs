//! tenderd.
fn main() {}
