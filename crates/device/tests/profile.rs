//! Profile files: refused contents, and the line that the error names.

use fairq_device::profile::{BUILT_IN, Interface, Wrr};
use fairq_device::{Profile, ProfileError};

fn z_ssd_with(from: &str, to: &str) -> Result<Profile, ProfileError> {
    let text = BUILT_IN[0].1;
    assert!(text.contains(from), "{from} is in the text");
    Profile::parse(&text.replacen(from, to, 1))
}

/// The error, and the number of the line that it shows.
fn refused(from: &str, to: &str) -> (String, usize) {
    let error = z_ssd_with(from, to).expect_err("it is refused").to_string();
    let line = error
        .split_once("line ")
        .and_then(|(_, rest)| rest.split([',', ' ', '\n']).next()?.parse().ok());
    (error, line.unwrap_or(0))
}

fn line_of(text: &str) -> usize {
    BUILT_IN[0].1.lines().position(|line| line.starts_with(text)).expect("there is such a line") + 1
}

#[test]
fn what_is_read_is_what_is_written() {
    let profile = Profile::named("z-ssd").unwrap();
    assert_eq!((profile.dies(), profile.host.window.get(), profile.host.wrr), (128, 64, Wrr::Yes));
    assert_eq!(profile.controller.read_us.ns(), 1333);
    assert_eq!(profile.link.read_mb_s.ns_per_mib(), 327_680);
    assert_eq!(profile.host.capacity(), 800_000_000_000 >> 20 << 20);
    assert_eq!(Profile::named("intel-530").unwrap().host.interface, Interface::Sata);
    // The profile can be written out and read again.
    let text = toml::to_string(&profile).unwrap();
    let again = Profile::parse(&text).unwrap();
    assert_eq!(toml::to_string(&again).unwrap(), text);
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = Profile::named("floppy").unwrap_err().to_string();
    assert!(
        error.contains("`floppy`") && error.contains("z-ssd") && error.contains("intel-530"),
        "{error}"
    );
}

#[test]
fn unknown_keys_are_refused_in_their_line() {
    let (error, line) = refused("channels = 8", "channels = 8\nplanes = 2");
    assert!(error.contains("planes"), "{error}");
    assert_eq!(line, line_of("channels") + 1, "{error}");
    let (error, _) = refused("[buffer]", "[cache]\nsize-kib = 4\n\n[buffer]");
    assert!(error.contains("cache"), "{error}");
}

#[test]
fn values_out_of_range_are_refused_in_their_line() {
    let cases = [
        ("channels = 8 ", "channels = 0 ", "1 to 1024"),
        ("read-us = 3 ", "read-us = -1 ", "0 to 10000000"),
        ("channel-mb-s = 800 ", "channel-mb-s = 0.5 ", "1 to 1000000"),
        ("window = 64 ", "window = 100000 ", "1 to 4096"),
        ("over-provisioning = 0.078 ", "over-provisioning = 0 ", "0.02 to 10"),
        ("wrr = \"yes\" ", "wrr = \"maybe\" ", "maybe"),
    ];
    for (from, to, says) in cases {
        let (error, line) = refused(from, to);
        assert!(error.contains(says), "{error}");
        // `read-us` is in two tables; the first is the controller's.
        assert_eq!(line, line_of(from.trim_end()), "{error}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let (error, _) = refused("channels = 8 ", "# ");
    assert!(error.contains("channels"), "{error}");
}

#[test]
fn values_that_do_not_go_together_are_refused() {
    let cases = [
        ("page-kib = 2 ", "page-kib = 3 ", "power of two"),
        ("interface = \"nvme\"", "interface = \"sata\"", "one queue"),
        ("latency-us = 16", "latency-us = 16\niops = 1", "one of"),
        ("latency-us = 16", "", "one of"),
        (
            "[buffer]",
            "[read-ahead]\nkib = 1\nstreams = 4\n[buffer]",
            "read-ahead.kib: 1 is less than a page (media.page-kib: 2)",
        ),
        (
            "[buffer]",
            "[read-ahead]\nkib = 2048\nstreams = 4\n[buffer]",
            "4 streams of 2048 KiB leave writes less than one program (media.program-kib: 4) of \
             the buffer (buffer.size-kib: 8192)",
        ),
    ];
    for (from, to, says) in cases {
        match z_ssd_with(from, to) {
            Err(ProfileError::Contradiction(error)) => assert!(error.contains(says), "{error}"),
            Err(error) => panic!("{to}: {error}"),
            Ok(_) => panic!("{to} was taken"),
        }
    }
    let text = BUILT_IN[0]
        .1
        .replace("size-kib = 8192", "size-kib = 16")
        .replace("program-kib = 4 ", "program-kib = 32 ");
    let error = Profile::parse(&text).unwrap_err().to_string();
    assert!(
        error.contains("16 is less than one program writes (media.program-kib: 32)"),
        "{error}"
    );
}
