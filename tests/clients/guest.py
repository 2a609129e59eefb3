"""A small guest with its monitor (vhost-user-blk, split rings): it can keep requests in flight, connect again with the in-flight
area after its server was lost, and break every rule of the protocol."""

import mmap
import os
import random
import select
import socket
import struct
import time

READ, WRITE, FLUSH, ID, DISCARD = 0, 1, 4, 8, 11
OK, FAILED, UNSUPPORTED = 0, 1, 2
SIZE = 64  # descriptors of a queue
GUEST, USER = 1 << 32, 1 << 40
AVAILABLE, USED, REQUESTS = 0x1000, 0x2000, 0x10000
DATA = 0x10000  # bytes of a request's data, at most
MEMORY = REQUESTS + SIZE * (DATA + 0x1000)
GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE, SET_NUM, SET_ADDR, SET_BASE, GET_BASE = 1, 2, 3, 5, 8, 9, 10, 11
SET_KICK, SET_CALL, SET_ERR, GET_PROTOCOL, SET_PROTOCOL, SET_ENABLE, GET_CONFIG, GET_INFLIGHT, SET_INFLIGHT = 12, 13, 14, 15, 16, 18, 24, 31, 32
FEATURES = 1 << 32 | 1 << 30 | 1 << 9  # version 1, protocol features, flush
PROTOCOL = 1 | 1 << 3 | 1 << 9 | 1 << 12  # queues, acknowledgements, configuration, in-flight area


class Gone(Exception):
    """The server has closed the connection."""


class Guest:
    """One queue. Each request has a place of its own, whose number identifies the request."""

    def __init__(self, path):
        self.memory = os.memfd_create("guest")
        os.ftruncate(self.memory, MEMORY)
        self.map = mmap.mmap(self.memory, MEMORY)
        self.kick, self.call, self.error = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3))
        self.free, self.taken, self.next, self.seen = list(range(SIZE // 3)), {}, 0, 0
        self.inflight = None
        self.connect(path)

    def connect(self, path):
        """Attaches the disk: at first, and again after the server was lost."""
        deadline = time.monotonic() + 60
        while True:
            self.s = socket.socket(socket.AF_UNIX)
            self.s.settimeout(60)
            try:
                self.s.connect(path)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self.send(SET_OWNER)
        offered = self.word(GET_FEATURES)
        assert offered & FEATURES == FEATURES
        self.send(SET_FEATURES, struct.pack("=Q", FEATURES))
        assert self.word(GET_PROTOCOL) & PROTOCOL == PROTOCOL
        self.send(SET_PROTOCOL, struct.pack("=Q", PROTOCOL))
        if self.inflight is None:
            self.send(GET_INFLIGHT, struct.pack("=QQHH4x", 0, 0, 1, SIZE))
            body, fds = self.receive()
            self.inflight = (body, fds[0])
        self.send(SET_INFLIGHT, self.inflight[0], [self.inflight[1]])
        self.send(SET_MEM_TABLE, struct.pack("=IIQQQQ", 1, 0, GUEST, MEMORY, USER, 0), [self.memory])
        self.send(SET_NUM, struct.pack("=II", 0, SIZE))
        self.send(SET_BASE, struct.pack("=II", 0, self.seen & 0xFFFF))
        self.send(SET_ADDR, struct.pack("=IIQQQQ", 0, 0, USER, USER + USED, USER + AVAILABLE, 0))
        for request, fd in ((SET_CALL, self.call), (SET_ERR, self.error), (SET_KICK, self.kick)):
            self.send(request, struct.pack("=Q", 0), [fd])
        self.send(SET_ENABLE, struct.pack("=II", 0, 1))

    def send(self, request, body=b"", fds=()):
        message = struct.pack("=III", request, 1, len(body)) + body
        try:
            socket.send_fds(self.s, [message], list(fds)) if fds else self.s.sendall(message)
        except OSError as error:
            raise Gone(str(error)) from error

    def receive(self):
        header, fds, _, _ = socket.recv_fds(self.s, 12, 4)
        if len(header) < 12:
            raise Gone("no answer")
        _, _, length = struct.unpack("=III", header)
        return self.s.recv(length, socket.MSG_WAITALL), fds

    def word(self, request):
        self.send(request)
        return struct.unpack("=Q", self.receive()[0])[0]

    def capacity(self):
        self.send(GET_CONFIG, struct.pack("=III", 0, 8, 0) + bytes(8))
        return struct.unpack("=Q", self.receive()[0][12:])[0] * 512

    def submit(self, op, offset=0, data=b"", length=0):
        """Makes a request available; returns its number, which `wait` takes."""
        number = self.free.pop()
        at = REQUESTS + number * (DATA + 0x1000)
        self.map[at : at + 16] = struct.pack("<IIQ", op, 0, offset // 512)
        self.map[at + 16] = 0xFF
        self.map[at + 0x1000 : at + 0x1000 + len(data)] = data
        length = length or len(data)
        parts = [(at, 16, 0)] + ([(at + 0x1000, length, 0 if data else 2)] if length else []) + [(at + 16, 1, 2)]
        for index, (place, size, flags) in enumerate(parts):
            last = index == len(parts) - 1
            flags, link = (flags, 0) if last else (flags | 1, 3 * number + index + 1)
            self.put(16 * (3 * number + index), struct.pack("<QIHH", GUEST + place, size, flags, link))
        self.put(AVAILABLE + 4 + 2 * (self.next % SIZE), struct.pack("<H", 3 * number))
        self.next += 1
        self.put(AVAILABLE + 2, struct.pack("<H", self.next & 0xFFFF))
        os.eventfd_write(self.kick, 1)
        return number

    def put(self, at, data):
        self.map[at : at + len(data)] = data

    def poll(self):
        """Takes the used buffers."""
        used = struct.unpack("<H", self.map[USED + 2 : USED + 4])[0]
        while self.seen & 0xFFFF != used:
            at = USED + 4 + 8 * (self.seen % SIZE)
            head, written = struct.unpack("<II", self.map[at : at + 8])
            assert head % 3 == 0 and head // 3 not in self.taken, f"buffer {head} came back twice"
            self.taken[head // 3] = written
            self.seen += 1

    def wait(self, number, seconds=60):
        """The status of a request, and the bytes that the device has written."""
        deadline = time.monotonic() + seconds
        while number not in self.taken:
            select.select([self.call], [], [], 0.05)
            try:
                os.eventfd_read(self.call)
            except BlockingIOError:
                pass
            self.poll()
            if time.monotonic() > deadline:
                raise Gone(f"request {number} has no answer")
        written = self.taken.pop(number)
        self.free.append(number)
        at = REQUESTS + number * (DATA + 0x1000)
        return self.map[at + 16], self.map[at + 0x1000 : at + 0x1000 + written - 1]

    def ask(self, *args, **more):
        return self.wait(self.submit(*args, **more))

    def has_failed(self):
        """Whether the server has reported that the device has failed."""
        return bool(select.select([self.error], [], [], 0)[0])

    def scribble(self, seed):
        """Random rings, some of which are nearly right."""
        rng = random.Random(seed)
        for index in range(SIZE):
            address = rng.choice((GUEST + rng.randrange(MEMORY), rng.getrandbits(64), GUEST + MEMORY - 8, GUEST))
            fields = (address, rng.choice((16, 1, 512, 0, 1 << 31)), rng.getrandbits(3), rng.choice((index, index + 1, 9999)))
            self.put(16 * index, struct.pack("<QIHH", *fields))
            self.put(AVAILABLE + 4 + 2 * index, struct.pack("<H", rng.choice((index, rng.getrandbits(16)))))
        self.next += rng.choice((1, 5, SIZE, 3000))
        self.put(AVAILABLE + 2, struct.pack("<H", self.next & 0xFFFF))
        os.eventfd_write(self.kick, 1)

    def close(self):
        self.s.close()
        self.map.close()
        for fd in (self.memory, self.kick, self.call, self.error):
            os.close(fd)
