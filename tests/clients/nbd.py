"""A small NBD client: it can keep requests in flight, notices that the server dies, and knows which acknowledgements had
arrived by then. It uses simple replies, or negotiates structured ones."""

import socket
import struct

OPTS = struct.unpack(">Q", b"IHAVEOPT")[0]
OPT_REPLY = 0x3E889045565A9
REQUEST, SIMPLE, STRUCTURED = 0x25609513, 0x67446698, 0x668E33EF
OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_STRUCTURED, OPT_GO, OPT_CONTEXT = 2, 3, 5, 8, 7, 10
REP_ACK, REP_SERVER, REP_INFO = 1, 2, 3
READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES, STATUS = range(8)
FUA, NO_HOLE = 1, 2
HAS_FLUSH, HAS_FUA, READ_ONLY, MULTI_CONN = 1 << 2, 1 << 3, 1 << 1, 1 << 8


class Refused(Exception):
    """The server answered an option with an error."""


class Gone(Exception):
    """The server closed the connection."""


class Client:
    def __init__(self, address, export=None, structured=False, timeout=60, context=None, tls=None):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.s = socket.socket(family)
        self.s.settimeout(timeout)
        self.s.connect(address)
        self.lengths = {}
        self.cookie = 0
        magic, opts, flags = struct.unpack(">QQH", self._exactly(18))
        assert opts == OPTS and flags & 1, "not a fixed newstyle server"
        self.no_zeroes = flags & 2
        self.s.sendall(struct.pack(">I", flags & 3))
        if tls:
            self._option(OPT_STARTTLS, b"")
            self.s = tls.wrap_socket(self.s)
        if structured or context:
            self._option(OPT_STRUCTURED, b"")
        if context:
            name, context = export.encode(), context.encode()
            queries = struct.pack(">II", 1, len(context)) + context
            self._option(OPT_CONTEXT, struct.pack(">I", len(name)) + name + queries)
        if export is not None:
            self._go(export)

    def _exactly(self, n):
        parts = []
        while n:
            try:
                part = self.s.recv(min(n, 1 << 20))
            except (ConnectionError, BrokenPipeError) as e:
                raise Gone(str(e)) from e
            if not part:
                raise Gone("end of stream")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def _sendall(self, data):
        try:
            self.s.sendall(data)
        except (ConnectionError, BrokenPipeError) as e:
            raise Gone(str(e)) from e

    def _option(self, option, data):
        """Sends an option; returns the replies up to its acknowledgement."""
        self._sendall(struct.pack(">QII", OPTS, option, len(data)) + data)
        replies = []
        while True:
            magic, opt, kind, length = struct.unpack(">QIII", self._exactly(20))
            body = self._exactly(length)
            assert magic == OPT_REPLY and opt == option, "the reply is to another option"
            if kind & 0x80000000:
                raise Refused(f"error {kind & 0x7FFFFFFF}: {body.decode(errors='replace')}")
            if kind == REP_ACK:
                return replies
            replies.append((kind, body))

    def _go(self, export):
        name = export.encode()
        infos = self._option(OPT_GO, struct.pack(">I", len(name)) + name + struct.pack(">HH", 1, 3))
        for _, body in infos:
            if body[:2] == b"\0\0":
                self.size, self.flags = struct.unpack(">QH", body[2:12])

    def list(self):
        return [body[4 : 4 + struct.unpack(">I", body[:4])[0]].decode() for _, body in self._option(OPT_LIST, b"")]

    def send(self, command, offset=0, length=0, data=b"", flags=0):
        """Puts a request in flight; returns its cookie."""
        self.cookie += 1
        length = len(data) or length
        self.lengths[self.cookie] = (command, length)
        self._sendall(struct.pack(">IHHQQI", REQUEST, flags, command, self.cookie, offset, length) + data)
        return self.cookie

    def receive(self):
        """The next reply that completes a request: (cookie, error, data)."""
        magic = struct.unpack(">I", self._exactly(4))[0]
        if magic == SIMPLE:
            error, cookie = struct.unpack(">IQ", self._exactly(12))
            command, length = self.lengths.pop(cookie)
            return cookie, error, self._exactly(length) if command == READ and not error else b""
        assert magic == STRUCTURED, f"not a reply: {magic:#x}"
        return self._chunks()

    def _chunks(self):
        """Reads a structured reply; its first chunk's magic has been read already."""
        data, error = None, 0
        while True:
            flags, kind, cookie, length = struct.unpack(">HHQI", self._exactly(16))
            body = self._exactly(length)
            command, size = self.lengths[cookie]
            if data is None:
                data = bytearray(size if command == READ else 0)
            if kind == 1:
                offset = struct.unpack(">Q", body[:8])[0] - self.base(cookie)
                data[offset : offset + length - 8] = body[8:]
            elif kind & 0x8000:
                error = struct.unpack(">I", body[:4])[0]
            if flags & 1:
                del self.lengths[cookie]
                return cookie, error, bytes(data)
            assert struct.unpack(">I", self._exactly(4))[0] == STRUCTURED

    def base(self, cookie):
        """Offset of the request; only `ask` uses structured reads, one at a time."""
        return self.asked

    def ask(self, command, offset=0, length=0, data=b"", flags=0):
        """Sends one request with nothing else in flight; returns its error and data."""
        self.asked = offset
        cookie = self.send(command, offset, length, data, flags)
        answered, error, got = self.receive()
        assert answered == cookie, "an answer to something else"
        return error, got

    def close(self):
        try:
            self.s.sendall(struct.pack(">IHHQQI", REQUEST, 0, DISC, 0, 0, 0))
        except OSError:
            pass
        self.s.close()
