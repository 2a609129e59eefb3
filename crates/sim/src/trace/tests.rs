use super::*;

fn read(format: Format, text: &str) -> Result<Vec<Asked>, String> {
    Trace::read(format, text.as_bytes(), None)
        .map(|trace| trace.asked().to_vec())
        .map_err(|error| error.to_string())
}

fn asked(at_ns: u64, op: Op, offset: u64, length: u32) -> Asked {
    Asked { at_ns, op, offset, length }
}

#[test]
fn every_format_of_lines() {
    use Format::{Alibaba, Blkparse, Fairq, Mqsim, Msr, Systor, Tencent};
    let two = |second: Asked| Ok(vec![asked(0, Op::Read, 8192, 4096), second]);
    let msr = "128166372003061629,usr,0,Read,8192,4096,41286\n128166372003061729,usr,1,Write,1024,512,100\n";
    assert_eq!(read(Msr, msr), two(asked(10_000, Op::Write, 1024, 512)));
    let systor = "Timestamp,Response,IOType,LUN,Offset,Size\n1455591804.5,0.006,R,0,8192,4096\n1455591804.500001,0.1,W,1,0,1\n";
    assert_eq!(read(Systor, systor), two(asked(1000, Op::Write, 0, 1)));
    assert_eq!(
        read(Tencent, "7,16,8,0,1058\n9,2,1,1,3\n"),
        two(asked(2_000_000_000, Op::Write, 1024, 512))
    );
    assert_eq!(
        read(Alibaba, "419,R,8192,4096,1577808000000046\n725,W,0,512,1577808000000047\n"),
        two(asked(1000, Op::Write, 0, 512))
    );
    assert_eq!(
        read(Mqsim, "938513000 4 16 8 1\n938828000 3 2 1 0\n"),
        two(asked(315_000, Op::Write, 1024, 512))
    );
    let blkparse = "  8,0    3        1     0.000000000   697  Q   R 16 + 8 [fio]\n  8,0    3        2     0.000000100   697  D   R 16 + 8 [fio]\n  \
                    8,0    3        3     0.000000250   697  Q  WS 2 + 1 [fio]\n  8,0    3        \
                    4     0.000000300   697  Q FWS [fio]\n\
                    CPU3 (8,0):\n Reads Queued:           1,        4KiB\n";
    assert_eq!(read(Blkparse, blkparse), two(asked(250, Op::Write, 1024, 512)));
    let fairq = "time_ns,shard,event,tenant,tag,op,offset,bytes,class,free_slots,virtual_time,start_tag,why\n\
                 700,0,complete,db,3,read,0,4096,medium,,,,\n1000,0,arrive,db,7,read,8192,4096,medium,,5,9,\n\
                 1000,0,held,,,,,,,,5,9,ahead\n1200,1,arrive,web,7,flush,0,0,medium,,,,\n1250,1,arrive,web,8,write,1024,512,high,,,,\n";
    assert_eq!(read(Fairq, fairq), two(asked(250, Op::Write, 1024, 512)));
    let with_d = "time_ns,shard,event,tenant,tag,op,offset,bytes,class,free_slots,virtual_time,start_tag,why,\
                  store,slots,least_slots,requests_per_s,bytes_per_s\n\
                  950,,depth,,,,,,,,,,found,ram,12,10,20000,81920000\n1000,0,arrive,db,7,read,8192,4096,medium,,5,9,,,,,,\n\
                  1250,1,arrive,web,8,write,1024,512,high,,,,,,,,,\n";
    assert_eq!(read(Fairq, with_d), two(asked(250, Op::Write, 1024, 512)));
    let web = Trace::read(Fairq, fairq.as_bytes(), Some("web")).unwrap();
    assert_eq!(web.asked(), [asked(0, Op::Write, 1024, 512)], "a tenant is a volume");
}

/// Two records, with the fields in the order of the version.
fn records(version: u16, commands: [u16; 2]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, command) in commands.into_iter().enumerate() {
        let (sn, segments, time, block) =
            (number as u32, 1u32, 1_000_000 + 7 * number as u64, 16u64);
        let head = [command.to_le_bytes(), (version << 8).to_le_bytes()].concat();
        let middle: Vec<u8> = [sn, 4096, segments].into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend(if version == 1 { [middle, head].concat() } else { [head, middle].concat() });
        bytes.extend([block.to_le_bytes(), time.to_le_bytes()].concat());
        if version == 2 {
            bytes.extend(99u64.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn both_versions_of_records() {
    for version in [1, 2] {
        let trace = Trace::read(Format::Vscsi, &records(version, [0x28, 0x8a])[..], None).unwrap();
        assert_eq!(
            trace.asked(),
            [asked(0, Op::Read, 8192, 4096), asked(7000, Op::Write, 8192, 4096)]
        );
        let trace = Trace::read(Format::Vscsi, &records(version, [0x35, 0x28])[..], None).unwrap();
        assert_eq!(trace.asked().len(), 1, "a cache flush is not replayed");
    }
    let error = |bytes: &[u8]| Trace::read(Format::Vscsi, bytes, None).unwrap_err().to_string();
    assert_eq!(error(&records(1, [0x28, 0x28])[..50]), "record 2: it ends in the middle");
    assert_eq!(error(&records(2, [0x28, 0x28])[..35]), "record 1: it ends in the middle");
    assert_eq!(error(&[0; 64]), "record 1: neither version 1 nor version 2 of vscsi");
    assert_eq!(error(&[]), "no requests");
}

#[test]
fn one_volume_only() {
    let text = "7,16,8,0,1058\n9,2,1,1,3\n";
    let of = |volume| Trace::read(Format::Tencent, text.as_bytes(), Some(volume));
    assert_eq!(of("3").unwrap().asked(), [asked(0, Op::Write, 1024, 512)]);
    assert_eq!(of("4").unwrap_err().to_string(), "no requests of volume 4");
}

#[test]
fn strangers_lines_are_refused_with_their_number() {
    let error = |format, text: &str| read(format, text).unwrap_err();
    assert_eq!(
        error(Format::Tencent, "7,16,8,0,1\n\n7,16,x,0,1\n"),
        "line 3: size `x` is not a whole number"
    );
    assert_eq!(error(Format::Tencent, "7,16,8\n"), "line 1: fewer than 5 fields: `7,16,8`");
    assert_eq!(
        error(Format::Tencent, "7,16,8,0,1,2\n"),
        "line 1: more than 5 fields: `7,16,8,0,1,2`"
    );
    assert_eq!(
        error(Format::Tencent, "7,16,8,2,1\n"),
        "line 1: `2` is neither 0 (a read) nor 1 (a write)"
    );
    assert_eq!(
        error(Format::Tencent, "7,16,0,0,1\n"),
        "line 1: a request of 0 bytes: there must be 1 to 67108864"
    );
    assert_eq!(
        error(Format::Tencent, "7,18446744073709551615,8,0,1\n"),
        "line 1: offset `18446744073709551615` is too large"
    );
    assert_eq!(
        error(Format::Alibaba, "1,R,18446744073709551000,4096,1\n"),
        "line 1: a request at 18446744073709551000, which is beyond any device"
    );
    assert_eq!(
        error(Format::Systor, "1.5e3,0,R,0,0,512\n"),
        "line 1: time `1.5e3` is not a number of seconds"
    );
    assert_eq!(error(Format::Mqsim, "-1 0 0 8 1\n"), "line 1: time `-1` is not a whole number");
    assert_eq!(error(Format::Msr, ""), "no requests");
    assert!(error(Format::Msr, &"x".repeat(5000)).starts_with("line 1: longer than 4096 bytes"));
    let binary = Trace::read(Format::Msr, &[0x1f, 0x8b, 8, 0, 0xff, b'\n'][..], None)
        .unwrap_err()
        .to_string();
    assert_eq!(binary, "line 1: not text: unpack the file first");
}

#[test]
fn time_does_not_go_back() {
    let times: Vec<u64> =
        read(Format::Mqsim, "100 0 0 8 1\n50 0 0 8 1\n170 0 0 8 1\n160 0 0 8 1\n")
            .unwrap()
            .iter()
            .map(|asked| asked.at_ns)
            .collect();
    assert_eq!(times, [0, 0, 70, 70]);
}
