//! Measures index, allocator and re-attach of the daemon for `tender bench --suite`: `tender-bench-parts [--quick]`. Prints
//! its rows as JSON.

use tender_tests::parts::{Failure, Sizes, rows};

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let sizes = match words[..] {
        [] => Sizes::FULL,
        ["--quick"] => Sizes::QUICK,
        _ => return Err("usage: tender-bench-parts [--quick]".into()),
    };
    let rows = rows(sizes, &|what| eprintln!("tender-bench-parts: {what}"))?;
    println!("{}", serde_json::json!({ "rows": rows }));
    Ok(())
}
