//! Compiles the .proto files with protox, so that no protoc is needed on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=tender");
    let files = protox::compile(
        [
            "tender/v1/store.proto",
            "tender/v1/events.proto",
            "tender/v1/peer.proto",
            "tender/v1/takeover.proto",
        ],
        ["."],
    )?;
    // `Bytes` fields slice the received buffer instead of copying out of it.
    tonic_prost_build::configure().bytes(".tender.v1").compile_fds(files)?;
    Ok(())
}
