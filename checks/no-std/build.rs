//! Links without start-up files, C library or any other library.

fn main() {
    // The compiler drives cc for the host, and the linker itself for a machine without a system.
    let for_host = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    let through_cc = [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--gc-sections",
        "-Wl,--build-id=none",
    ];
    for argument in if for_host { &through_cc[..] } else { &["--gc-sections"] } {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
