#!/usr/bin/env python3
"""Writes the seeds: what real clients send, as the drivers in src/nbd.rs want it. Run it in this directory."""

import struct
from pathlib import Path

EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED, LIST_META, SET_META, EXTENDED = 1, 2, 3, 5, 6, 7, 8, 9, 10, 11
READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES, STATUS = range(8)
OFF, OPTIONAL, REQUIRED, DEFAULT = 0, 1, 2, 4


def save(target, name, data):
    path = Path("seeds") / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def option(number, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data


def sized(text):
    return struct.pack(">I", len(text)) + text


def info(number, name, *wanted):
    return option(number, sized(name) + struct.pack(f">H{len(wanted)}H", len(wanted), *wanted))


def meta(number, name, *queries):
    return option(number, sized(name) + struct.pack(">I", len(queries)) + b"".join(map(sized, queries)))


def handshake(name, setting, *parts, flags=3, step=0):
    first = setting | (8 | (step - 1) << 4 if step else 0)
    save("nbd_handshake", name, bytes([first]) + struct.pack(">I", flags) + b"".join(parts))


def compact(command, offset=0, length=0, flags=0, payload=b""):
    return struct.pack(">IHHQQI", 0x25609513, flags, command, 7, offset, length or len(payload)) + payload


def extended(command, offset=0, length=0, flags=0, payload=b""):
    flags |= 32 if payload else 0
    return struct.pack(">IHHQQQ", 0x21E41C71, flags, command, 7, offset, length or len(payload)) + payload


def transmission(name, bits, sizes, *parts):
    save("nbd_transmission", name, bytes([bits, sizes]) + b"".join(parts))


handshake("qemu", OFF, option(EXTENDED), meta(SET_META, b"db", b"base:allocation"), info(GO, b"db", 3), b"request")
handshake("libnbd", OFF, option(EXTENDED), option(STRUCTURED), meta(LIST_META, b"db"), info(INFO, b"db", 1, 2, 3),
          meta(SET_META, b"db", b"base:allocation", b"qemu:allocation-depth"), info(GO, b"db", 1, 2, 3), b"request")
handshake("fio", DEFAULT, option(STRUCTURED), info(GO, b"", 3), b"request", step=7)
handshake("nbd-client", OFF, info(GO, b"nothing"), option(EXPORT_NAME, b"db"), b"request")
handshake("old", OFF, option(EXPORT_NAME, b"db"), b"request", flags=0)
handshake("list", OFF, option(LIST), option(ABORT), step=1)
handshake("wildcards", OFF, option(STRUCTURED), meta(LIST_META, b"ro", b"base:"), meta(SET_META, b"ro", b"base:"))
handshake("starttls", OPTIONAL, info(GO, b"mine"), option(STARTTLS, b"x"), option(STARTTLS), b"\x16\x03\x01\x00\x05hello")
handshake("required", REQUIRED, option(LIST), info(GO, b"db"), option(99, b"data"), option(STARTTLS))
handshake("unknown", OFF, option(0x07654321, b"data"), option(STARTTLS), info(GO, b"mine"), option(LIST, b"x"), option(2))
handshake("too-long", OFF, option(LIST)[:12] + b"\0\1\0\1" + bytes(40))
handshake("endless", OFF, option(99, b"data"), b"IHAVEOPT\0\0\0\3\xff\xff\xff\xff")

transmission("linux", 0b000000, 0xA0, compact(READ, 0, 4096), compact(WRITE, 512, flags=1, payload=bytes(512)),
             compact(FLUSH), compact(TRIM, 0, 1 << 20), compact(ZEROES, 0, 4096, 2), compact(DISC))
transmission("structured", 0b010010, 0xA0, compact(READ, 0, 65536, 4), compact(STATUS, 0, 1 << 20, 8) + b"\1" + bytes(6),
             compact(CACHE, 0, 4096))
transmission("extended", 0b010101, 0xF0, extended(READ, 1 << 40, 4096), extended(WRITE, 8, payload=b"12345678"),
             extended(STATUS, 0, 1 << 50), b"\0\0\0\0\0\0\0\1\0\3\0\0\0\0\0\0\2\0")
transmission("refused", 0b001000, 0x09, compact(WRITE, 0, payload=b"read-only"), compact(READ, 1, 511),
             compact(77, 0, 1), compact(READ, 0, 512, 0x8000), compact(READ, (1 << 64) - 1, 2))
transmission("framing", 0b000001, 0x00, extended(CACHE, 0, flags=0, payload=b"unwanted"), extended(WRITE, 0, 5))
transmission("endless", 0b000010, 0x00, compact(WRITE, 0, 0xFFFFFFFF))

# Found by the fuzzer: extents that together are longer than 64 bits can say.
transmission("extents-overflow", 0b010101, 0x00, extended(STATUS, 0, (1 << 64) - 1),
             b"\5" + struct.pack(">Q", 1 << 63), b"\0" + struct.pack(">Q", 1 << 63))
