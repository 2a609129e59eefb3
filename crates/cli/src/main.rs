//! fairq
fn main() {}
