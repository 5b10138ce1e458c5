//! Traces of requests, one JSON object a line: of each request the ids of its blocks, in order. Blocks with one id have
//! the same tokens before and in them, so an id is a chunk's key. Other fields (time, lengths) are not used here.

use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use super::failed;
use crate::error::ClientError;

/// Longest request that is replayed: 2 million tokens in blocks of 512.
const MAX_BLOCKS: usize = 4096;

/// One request.
#[derive(Deserialize, PartialEq, Eq, Debug)]
pub(super) struct Request {
    #[serde(rename = "hash_ids")]
    pub(super) blocks: Vec<u64>,
}

/// The first requests of a trace, or all.
pub(super) fn read(path: &Path, limit: Option<usize>) -> Result<Vec<Request>, ClientError> {
    let open = std::fs::File::open(path);
    let file =
        open.map_err(|error| failed("the trace", format!("{} cannot be read: {error}", path.display())))?;
    let requests = parse(BufReader::new(file), limit.unwrap_or(usize::MAX))
        .map_err(|why| failed("the trace", format!("{}: {why}", path.display())))?;
    if requests.is_empty() {
        return Err(failed("the trace", format!("{} has no requests", path.display())));
    }
    Ok(requests)
}

fn parse(lines: impl BufRead, limit: usize) -> Result<Vec<Request>, String> {
    let mut requests = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        if requests.len() == limit {
            break;
        }
        let line = line.map_err(|error| format!("line {number}: {error}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let request: Request =
            serde_json::from_str(&line).map_err(|error| format!("line {number}: {error}"))?;
        if request.blocks.len() > MAX_BLOCKS {
            let blocks = request.blocks.len();
            return Err(format!("line {number}: {blocks} blocks in one request, more than {MAX_BLOCKS}"));
        }
        requests.push(request);
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_request_and_fields_that_are_not_used_may_be_there() {
        let text = "{\"timestamp\": 0, \"input_length\": 700, \"hash_ids\": [4, 9]}\n\n{\"hash_ids\": []}\n";
        let requests = parse(text.as_bytes(), usize::MAX).unwrap();
        assert_eq!(requests, [Request { blocks: vec![4, 9] }, Request { blocks: vec![] }]);
        assert_eq!(parse(text.as_bytes(), 1).unwrap().len(), 1);
    }

    #[test]
    fn a_line_that_is_no_request_is_named() {
        let long = format!("{{\"hash_ids\": {:?}}}", vec![1; MAX_BLOCKS + 1]);
        for bad in ["{\"timestamp\": 0}", "{\"hash_ids\": [-1]}", "no", &long] {
            let text = format!("{{\"hash_ids\": [1]}}\n{bad}\n");
            assert!(parse(text.as_bytes(), usize::MAX).unwrap_err().starts_with("line 2: "), "{bad}");
        }
    }
}
