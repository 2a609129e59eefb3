#!/usr/bin/env python3
"""Writes the seeds: what real clients send, as the drivers in src/ want it. Run it in this directory."""

import json
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



def layout(name, *ranges, size=64 << 20, fresh=None, first=1, **more):
    body = {"id": "id-1", "size": size, "fresh": size if fresh is None else fresh, "ranges": ranges, **more}
    save("layout_record", name, bytes([first]) + json.dumps(body, separators=(",", ":")).encode())


layout("empty", fresh=0)
layout("two", ["a", 0, 16 << 20, True], ["b", 16 << 20, 16 << 20, False], fresh=32 << 20)
layout("renamed", ["b", 512, 512, True], size=1 << 63, former={"b": "a"})
layout("overlap", ["a", 0, 1024, True], ["b", 512, 512, True])
layout("end", ["a", (1 << 64) - 512, 512, True], size=(1 << 64) - 1)
save("layout_record", "cut-off", b"\0fairqlay\1\0\0\0\xff\xff\xff\xff" + bytes(48))


BUS = 0x10000


def sqe(opcode, cid=0, nsid=0, data=(0, 0), words=(), flags=0):
    words = list(words) + [0] * (6 - len(words))
    return struct.pack("<BBHIQQQQ6I", opcode, flags, cid, nsid, 0, 0, *data, *words)


def admin(*entry, **more):
    return b"\0\0" + sqe(*entry, **more)


def io(queue, *entry, **more):
    return bytes([1, queue - 1]) + sqe(*entry, **more)


def register(offset, value):
    return b"\2\0" + struct.pack("<HI", offset, value) + bytes(58)


def memory(address, *words):
    return b"\3\0" + struct.pack("<H", (address - BUS) // 64) + struct.pack(f"<{len(words)}Q", *words)[2:].ljust(62, b"\0")


def queues(queue, priority=1):
    at = BUS + queue * 0x2000
    return (admin(5, 1, data=(at + 0x1000, 0), words=(15 << 16 | queue, queue << 16 | 3))
            + admin(1, 2, data=(at, 0), words=(15 << 16 | queue, queue << 16 | priority << 1 | 1)))


def controller(name, *records):
    save("nvme_controller", name, b"".join(records))


PAGE = BUS + 0x40000
controller("identify", *(admin(6, cns, nsid, (PAGE, 0), (cns,)) for cns, nsid in ((1, 0), (0, 1), (2, 0), (3, 1), (9, 9))))
controller("features", admin(9, words=(7, 3 << 16 | 3)), admin(9, words=(1, 0x08020000)), admin(10, words=(1,)),
           admin(9, words=(1 << 31 | 1,)), admin(2, data=(PAGE, 0), words=(127 << 16 | 2,)), admin(8), admin(12))
controller("io", queues(1), io(1, 2, 1, 1, (PAGE, PAGE + 4096), (0, 0, 15)), io(1, 1, 2, 1, (PAGE + 512, PAGE + 4096), (7,)),
           io(1, 2, 3, 2, (PAGE + 3, 4096), (0, 0, 7), flags=64), io(1, 0, 4, 0xFFFFFFFF), io(1, 8, 5, 1, words=(5, 0, 99)),
           io(1, 9, 6, 1, (PAGE, 0), (0, 4)), io(1, 2, 7, 1, (PAGE, 0), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF)))
controller("delete", queues(1), queues(2, 3), admin(4, words=(1,)), admin(0, words=(1,)), admin(4, words=(1,)),
           io(1, 2, 1, 1, (PAGE, 0)), io(2, 2, 1, 1, (PAGE, 0)))
controller("lists", queues(1), memory(PAGE, PAGE + 4096, PAGE + 8192), io(1, 2, 1, 1, (PAGE, PAGE), (0, 0, 31)),
           io(1, 2, 2, 1, (PAGE, 32 | 0x20 << 56), (0, 0, 31), flags=64), io(1, 1, 3, 1, (PAGE, 16 | 0x30 << 56), flags=64))
controller("registers", register(0x14, 0), register(0x24, 0), register(0x14, 1), register(0x1000, 99), register(0x14, 0),
           register(0x28, 1), register(0x14, 0x460001), register(0x1004, 7), register(0x10F8, 3))


# A guest's virtqueue: records of 18 bytes, see src/vhost.rs. Its memory begins at GUEST.
GUEST = 0x100000000
NEXT, WRITE, INDIRECT = 1, 2, 4


def put(area, index, data):
    return bytes([area << 2, index]) + data.ljust(16, b"\0")


def split(address, length, flags=0, link=0):
    return struct.pack("<QIHH", address, length, flags, link)


def packed(address, length, flags=0, link=0):
    return struct.pack("<QIHH", address, length, link, flags)


def step(what, *data):
    return bytes([what, 0]) + bytes(data).ljust(16, b"\0")


def queue(name, bits, *records):
    save("vhost_queue", name, bytes([bits]) + b"".join(records))


AVAILABLE, TAKE, USE = 1, 2, 3
HEADER, DATA = GUEST + 0x8000, GUEST + 0x9000
READ_CHAIN = [(HEADER, 16, NEXT, 1), (DATA, 512, NEXT | WRITE, 2), (DATA + 512, 1, WRITE, 0)]
queue("read", 3 << 2, *(put(0, i, split(*d)) for i, d in enumerate(READ_CHAIN)), step(AVAILABLE, 0), step(TAKE), step(USE))
queue("packed", 3 << 2 | 3, *(put(0, i, packed(a, n, f | 1 << 7, i)) for i, (a, n, f, _) in enumerate(READ_CHAIN)), step(TAKE), step(USE), step(TAKE))
queue("table", 3 << 2, put(0, 0, split(GUEST + 0x3000, 48, INDIRECT)), *(put(3, i, split(*d)) for i, d in enumerate(READ_CHAIN)), step(AVAILABLE, 0),
      step(TAKE), step(AVAILABLE, 0), step(TAKE))
queue("loop", 3 << 2, put(0, 0, split(HEADER, 16, NEXT, 0)), step(AVAILABLE, 0), step(TAKE))
queue("outside", 3 << 2, put(0, 0, split(GUEST + (1 << 20) - 8, 16, NEXT, 1)), put(0, 1, split((1 << 64) - 1, 0xFFFFFFFF, WRITE)), step(AVAILABLE, 0), step(TAKE))
queue("jump", 3 << 2, step(AVAILABLE, 0), put(1, 0, b"\0\0\xff\xff"), step(TAKE), step(USE))


# The messages of a guest's monitor: request, bits, length, body; see src/vhost.rs.
def message(request, *words, bits=0, form="Q"):
    body = struct.pack("<" + form * len(words) if len(form) == 1 else "<" + form, *words)
    return bytes([request, bits, len(body)]) + body


def messages(name, *parts):
    save("vhost_messages", name, b"".join(parts))


MEMFD, EVENTFD, FILE = 1 << 1 | 0 << 4, 1 << 1 | 1 << 4, 1 << 1 | 2 << 4
ATTACH = [message(3), message(1), message(2, 1 << 32 | 1 << 30 | 1 << 28), message(15), message(16, 0x1B229), message(17), message(36),
          message(37, 0, GUEST, 0x10000, 1 << 40, 0, bits=MEMFD | 1), message(24, 0, 60, 0, *([0] * 60), form="III60B")]
RING = [message(8, 0, 16, form="I"), message(10, 0, 0, form="I"), message(9, 0, 0, 1 << 40, (1 << 40) + 0x2000, (1 << 40) + 0x1000, 0, form="IIQQQQ"),
        message(13, 0, bits=EVENTFD), message(14, 0, bits=EVENTFD), message(12, 0, bits=EVENTFD | 1), message(18, 0, 1, form="I", bits=1)]
messages("attach", *ATTACH, *RING, message(11, 0, 0, form="I"), message(39, 15), message(40), message(34), message(38, 0, GUEST, 0x10000, 1 << 40, 0, bits=1))
messages("table", *ATTACH[:3], bytes([5, MEMFD | 1, 40]) + struct.pack("<IIQQQQ", 1, 0, 0, 0x10000, 1 << 40, 0), *RING)
messages("inflight", *ATTACH, message(31, 0, 0, 4, 16, form="QQHH"), message(32, 4096, 0, 4, 16, form="QQHH", bits=MEMFD), *RING)
messages("wrong", message(3, bits=1), message(2, (1 << 64) - 1, bits=1), message(8, 77, 16, form="I", bits=1), message(12, 0, bits=FILE | 1),
         message(37, 0, GUEST, 1 << 60, 1 << 40, 0, bits=MEMFD | 1), message(37, 0, GUEST, 4096, 1 << 40, 0, bits=FILE | 1), message(99), message(1))


# The lab. Lines are made up; the formats are those of the traces that they are called after.
def trace(number, name, text):
    save("lab_trace", name, bytes([number]) + (text if isinstance(text, bytes) else text.encode()))


trace(0, "msr", "128166372003061629,usr,0,Read,8192,4096,41286\n128166372003061729,usr,1,Write,1024,512,100\n")
trace(1, "systor", "Timestamp,Response,IOType,LUN,Offset,Size\n1455591804.5,0.006,R,0,8192,4096\n1455591804.500001,,W,1,0,1\n")
trace(2, "tencent", "7,16,8,0,1058\n9,2,1,1,3\n")
trace(3, "alibaba", "419,R,8192,4096,1577808000000046\n725,W,0,512,1577808000000047\n")
trace(4, "mqsim", "938513000 4 16 8 1\n938828000 3 2 1 0\n")
trace(5, "blkparse", "  8,0    3        1     0.000000000   697  Q   R 16 + 8 [fio]\n  8,0    3        3     0.000000250   697  Q  WS 2 + 1 [fio]\n"
      "  8,0    3        4     0.000000300   697  Q FWS [fio]\nCPU3 (8,0):\n Reads Queued: 1, 4KiB\n")
trace(6, "vscsi-1", b"".join(struct.pack("<IIIHHQQ", at, 4096, 1, command, 0x1FF, 8 * at, 100 * at) for at, command in ((1, 0x28), (2, 0x2A))))
trace(6, "vscsi-2", b"".join(struct.pack("<HHIIIQQQ", command, 0x2FF, at, 4096, 1, 8 * at, 100 * at, 7) for at, command in ((1, 0x28), (2, 0x8A))))
trace(7, "fairq", "ns,shard,event,tenant,tag,op,offset,bytes,class,free,now,start,why\n5,0,arrive,db,1,read,8192,4096,,,,,\n")
trace(15, "of-one-tenant", "5,0,arrive,1,1,write,0,512,,,,,\n6,0,arrive,2,1,read,0,512,,,,,\n")

for number in range(8):
    save("lab_scenario", f"mixed-{number}", bytes((index * (2 * number + 7) + number * number) % 256 for index in range(240)))


# A guest's NVMe controller: records of 66 bytes, see src/vfio_user.rs. Its memory begins at GUEST.
def queue_pair(queue, priority=0, flags=3):
    at = GUEST + queue * 0x2000
    return (admin(5, 1, data=(at + 0x1000, 0), words=(15 << 16 | queue, queue << 16 | flags))
            + admin(1, 2, data=(at, 0), words=(15 << 16 | queue, queue << 16 | priority << 1 | 1)))


def bar(offset, value):
    return b"\2\0" + struct.pack("<II", offset, value) + bytes(56)


def at_guest(offset, *words):
    return b"\3\0" + struct.pack("<I", offset // 64) + struct.pack(f"<{len(words)}Q", *words)[4:].ljust(60, b"\0")


def raw(number, body=b"", files=0):
    return bytes([4, number, files, len(body)]) + body.ljust(62, b"\0")


def vfio_user(name, *records):
    save("vfio_user", name, b"".join(records))


BLOCK = GUEST + 0x40000
vfio_user("io", queue_pair(1), io(1, 1, 1, 1, (BLOCK, BLOCK + 4096), (0, 0, 15)), io(1, 2, 2, 1, (BLOCK + 512, BLOCK + 4096), (7,)),
          io(1, 5, 3, 1, (BLOCK, BLOCK + 4096), (0, 0, 15)), io(1, 12, 4, 1, words=(0, 0, 2047)), io(1, 8, 5, 1, words=(5, 0, 99)), io(1, 0, 6, 1),
          io(1, 9, 7, 1, (BLOCK, 0), (0, 4)), io(1, 2, 8, 1, (BLOCK, 0), (2048, 0, 0)), io(1, 1, 9, 1, (BLOCK, 0), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF)))
vfio_user("lists", queue_pair(1), at_guest(0x40000, BLOCK + 4096, BLOCK + 8192, BLOCK), io(1, 1, 1, 1, (BLOCK, BLOCK), (0, 0, 31)),
          io(1, 2, 2, 1, (BLOCK, 32 | 0x20 << 56), (0, 0, 31), flags=64), io(1, 1, 3, 1, (BLOCK, 16 | 0x30 << 56), flags=64))
vfio_user("delete", queue_pair(1), queue_pair(2, 3), queue_pair(3), *(io(1, 1, cid, 1, (BLOCK, 4096), (0, 0, 127)) for cid in range(12)), admin(4, words=(1,)),
          admin(0, words=(1,)), admin(4, words=(1,)), io(1, 2, 1, 1, (BLOCK, 0)), bar(0x14, 0), bar(0x14, 0x460801), queue_pair(1))
vfio_user("admin", *(admin(6, cns, nsid, (BLOCK, 0), (cns,)) for cns, nsid in ((1, 0), (0, 1), (2, 0), (3, 1), (6, 0), (9, 9))), admin(9, words=(7, 3 << 16 | 3)),
          admin(9, words=(1, 0x08020000)), admin(10, words=(1,)), admin(2, data=(BLOCK, 0), words=(127 << 16 | 5,)), admin(8), admin(12), admin(0x80), admin(0x18))
vfio_user("shadow", queue_pair(1), admin(0x7C, data=(BLOCK, BLOCK + 4096)), at_guest(0x40000, 5 << 32), io(1, 2, 1, 1, (BLOCK + 8192, 0)), bar(0x1008, 9),
          at_guest(0x40000, 0xFFFFFFFF << 32), bar(0x1008, 1))
MAP, UNMAP, MEMFD_1, EVENTFD_1 = 2, 3, 1, 1 | 4
vfio_user("memory", queue_pair(1), io(1, 1, 1, 1, (BLOCK, 0)), raw(UNMAP, struct.pack("<QQQ", 24, GUEST, 1 << 20)), io(1, 2, 2, 1, (BLOCK, 0)),
          raw(MAP, struct.pack("<IIQQQ", 32, 3, 0, GUEST, 0x10000), MEMFD_1), bar(0x14, 0), bar(0x14, 0x460001), queue_pair(1), io(1, 2, 1, 1, (BLOCK, 0)),
          raw(MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, 0x1000)), raw(UNMAP, struct.pack("<IIQQ", 24, 2, 0, 0)))
vfio_user("messages", raw(1, bytes(4)), raw(4, struct.pack("<IIII", 16, 0, 0, 0)), raw(5, struct.pack("<IIIIQQ", 32, 0, 0, 0, 0, 0)), raw(6, struct.pack("<IIII", 16, 0, 0, 0)),
          raw(7, struct.pack("<IIII", 16, 0, 2, 0)), raw(8, struct.pack("<IIIII", 20, 36, 2, 0, 1), EVENTFD_1), raw(8, struct.pack("<IIIII", 20, 33, 2, 0, 1)),
          raw(8, struct.pack("<IIIII", 20, 36, 2, 0, 1), MEMFD_1), raw(9, struct.pack("<QII", 0, 7, 256)), raw(9, struct.pack("<QII", 1 << 63, 0, 1 << 31)),
          raw(15, struct.pack("<QQIIQ", 1, 0x14, 0, 4, 0)), raw(15, struct.pack("<QQII", 1 << 60, 0x14, 0, 4)), raw(13), raw(16, bytes(16)), raw(99))
