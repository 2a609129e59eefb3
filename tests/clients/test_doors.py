"""The other ways to connect: TCP, TLS with client certificates, sockets passed by a service manager, standard input."""

import contextlib
import json
import os
import shutil
import socket
import ssl
import sys
import tempfile

import nbd
from rig import MI, Process, Skip, check, fairq, greets, need, pattern, run, serve, until

TWO = ("--device", "ram,size=64M", "--tenant", "db=32M,weight=300", "--tenant", "batch=32M,weight=100")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_tcp():
    need("nbdinfo", "nbdcopy")
    port = free_port()
    with serve(*TWO, "--listen", f"tcp:127.0.0.1:{port}") as server:
        source = pattern(os.path.join(server.folder, "in"), 32 * MI)
        run("nbdcopy", source, f"nbd://127.0.0.1:{port}/db")
        run("nbdcopy", server.uri("db"), source + ".back")
        run("cmp", source, source + ".back")


class Authority:
    """A certificate authority in a folder, and the certificates that it issues."""

    def __init__(self, folder, name):
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        self.cert, self.key = self.path("ca-cert.pem"), self.path("ca-key.pem")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.cert)  # fmt: skip

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def issue(self, name, alternative, usage, prefix="client", kind=("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
        """A folder as libnbd and qemu expect it: the authority's certificate, and the holder's with its key."""
        holder = self.path(name)
        os.mkdir(holder)
        key, request, cert = (os.path.join(holder, f"{prefix}-{x}.pem") for x in ("key", "request", "cert"))
        extensions = os.path.join(holder, "extensions")
        with open(extensions, "w", encoding="utf-8") as f:
            f.write(f"subjectAltName={alternative}\nextendedKeyUsage={usage}\nbasicConstraints=CA:FALSE\n"
                    "keyUsage=digitalSignature\n")  # fmt: skip
        openssl("req", "-new", "-newkey", *kind, "-nodes", "-subj", f"/CN={name}",
                "-keyout", key, "-out", request)  # fmt: skip
        openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-CAcreateserial", "-days", "2",
                "-extfile", extensions, "-out", cert)  # fmt: skip
        shutil.copy(self.cert, os.path.join(holder, "ca-cert.pem"))
        return holder


def openssl(*args):
    run("openssl", *args)


def test_tls():
    """A tenant's export opens with its own certificate, but not with another one, without one, or without TLS."""
    need("openssl", "nbdinfo", "nbdcopy", "qemu-img")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
        host = ours.issue("localhost", "DNS:localhost,IP:127.0.0.1", "serverAuth", "server")
        db = ours.issue("db.example.org", "DNS:db.example.org", "clientAuth")
        batch = ours.issue("batch.example.org", "DNS:batch.example.org", "clientAuth")
        forged = theirs.issue("db.example.org", "DNS:db.example.org", "clientAuth")
        shutil.copy(ours.cert, os.path.join(forged, "ca-cert.pem"))
        bare = os.path.join(folder, "bare")
        os.mkdir(bare)
        shutil.copy(ours.cert, os.path.join(bare, "ca-cert.pem"))
        port = free_port()
        with serve("--device", "ram,size=64M", "--tenant", "db=32M,identity=db.example.org",
                   "--tenant", "batch=32M,identity=batch.example.org", "--listen", f"tcp:127.0.0.1:{port}",
                   "--tls-cert", f"{host}/server-cert.pem", "--tls-key", f"{host}/server-key.pem",
                   "--tls-client-ca", ours.cert) as server:  # fmt: skip

            def uri(export, holder):
                return f"nbds://localhost:{port}/{export}?tls-certificates={holder}"

            source = pattern(os.path.join(folder, "in"), 32 * MI)
            run("nbdcopy", source, uri("db", db))
            run("nbdcopy", uri("db", db), source + ".back")
            run("cmp", source, source + ".back")
            creds = f"tls-creds-x509,id=t,endpoint=client,dir={db}"
            image = f"driver=nbd,host=localhost,port={port},export=db,tls-creds=t"
            raw = f"driver=file,filename={source}"
            run("qemu-img", "compare", "--object", creds, "--image-opts", image, raw)
            run("nbdinfo", "--size", uri("batch", batch))
            # fairq's own load generator takes the same addresses.
            bench = [fairq(), "bench", "--seconds", "1", "--warmup", "0", "--json", "-",
                     "--tenant", "load=bs:64k,rw:randrw,depth:8"]  # fmt: skip
            done = json.loads(run(*bench, "--connect", uri("batch", batch)).stdout)["runs"][0]
            check(done["iops"] > 0, f"64 KiB reads and writes over TLS: {done['iops']} a second")
            refused = run(*bench, "--connect", uri("db", batch), ok=False)
            check(refused.returncode != 0, "the load ran with another tenant's certificate")
            for why, export, holder in (
                ("another tenant's certificate", "db", batch),
                ("another tenant's certificate", "batch", db),
                ("a certificate of another authority", "db", forged),
                ("no certificate", "db", bare),
            ):
                done = run("nbdinfo", "--size", uri(export, holder), ok=False)
                check(done.returncode != 0, f"{export} opened to {why}")
            for clear in (f"nbd://localhost:{port}/db", server.uri("db")):
                check(run("nbdinfo", "--size", clear, ok=False).returncode != 0, f"{clear} opened without TLS")


def test_tls_ends_with_an_upgrade():
    """Requests that wait for a cap get ESHUTDOWN, the session ends in order, and the client reconnects and finds its data."""
    need("openssl")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        ours, port, control = Authority(folder, "ours"), free_port(), os.path.join(folder, "c")
        host = ours.issue("localhost", "DNS:localhost,IP:127.0.0.1", "serverAuth", "server")
        context = ssl.create_default_context(cafile=ours.cert)
        context.check_hostname = False
        with serve("--device", "ram,size=64M", "--tenant", "db=32M,max-iops=1", "--listen", f"tcp:127.0.0.1:{port}",
                   "--control", control, "--tls-cert", f"{host}/server-cert.pem", "--tls-key", f"{host}/server-key.pem"):  # fmt: skip

            def ctl(*words):
                return json.loads(run(fairq(), "ctl", "--control", control, "--json", *words).stdout)

            client = nbd.Client(("127.0.0.1", port), "db", tls=context)
            check(client.ask(nbd.WRITE, 0, data=b"kept")[0] == 0, "a write")
            for _ in range(16):
                client.send(nbd.READ, 0, 4)
            until(lambda: ctl("tenants")[0]["in_flight"] >= 8, 60, "requests wait for the cap")
            ctl("upgrade")
            errors = []
            with contextlib.suppress(nbd.Gone):
                while True:
                    errors.append(client.receive()[1])
            check(errors.count(108) >= 8 and len(errors) == 16, f"errors {errors}")
            ctl("caps", "db", "off")
            again = nbd.Client(("127.0.0.1", port), "db", tls=context)
            check(again.ask(nbd.READ, 0, 4) == (0, b"kept"), "what was written")


def test_tls_key_lengths():
    """A certificate for an RSA key of an unsupported length is refused for that reason, the server's and a client's."""
    need("openssl", "nbdinfo")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        ours = Authority(folder, "ours")
        odd = ours.issue("odd", "DNS:localhost", "serverAuth", "server", ("rsa:2500",))
        host = ours.issue("localhost", "DNS:localhost,IP:127.0.0.1", "serverAuth", "server", ("rsa:2048",))
        short = ours.issue("short", "DNS:short", "clientAuth", kind=("rsa:1024",))
        fine = ours.issue("fine", "DNS:fine", "clientAuth", kind=("rsa:2500",))
        port = free_port()

        def args(server):
            return ("--device", "ram,size=64M", "--tenant", "db=32M,identity=any", "--listen", f"tcp:127.0.0.1:{port}",
                    "--tls-cert", f"{server}/server-cert.pem", "--tls-key", f"{server}/server-key.pem",
                    "--tls-client-ca", ours.cert)  # fmt: skip

        done = run(fairq(), "serve", *args(odd), ok=False)
        check(done.returncode == 2 and "RSA key of 2500 bits" in done.stderr, f"{done.returncode}: {done.stderr}")
        with serve(*args(host)) as server:
            run("nbdinfo", "--size", f"nbds://localhost:{port}/db?tls-certificates={fine}")
            # Most clients do not even try.
            context = ssl.create_default_context(cafile=ours.cert)
            context.set_ciphers("DEFAULT@SECLEVEL=0")
            context.load_cert_chain(f"{short}/client-cert.pem", f"{short}/client-key.pem")
            client = nbd.Client(("127.0.0.1", port))
            client._option(5, b"")
            with contextlib.suppress(OSError), context.wrap_socket(client.s, server_hostname="localhost") as encrypted:
                check(not encrypted.recv(1), "a key of 1024 bits was taken")
            until(lambda: "RSA key of 1024 bits" in server.said(), 10, f"the log says why: {server.said()[-600:]}")


def test_silent_clients():
    """Clients that connect and send nothing, more than there are places, delay no other client."""
    need("nbdinfo")
    # No handshake times out here, so these clients lose their places only to others.
    with serve(*TWO, timeouts={"handshake": "1h"}) as server, contextlib.ExitStack() as crowd:
        for _ in range(300):
            silent = crowd.enter_context(socket.socket(socket.AF_UNIX))
            silent.settimeout(5)
            silent.connect(server.socket)
        run("nbdinfo", "--size", server.uri("db"))


@contextlib.contextmanager
def network():
    """A network of this machine and one more: a prefix that runs a command on the other one, and our address."""
    need("ip")
    other, ours, theirs = (f"fairq{kind}{os.getpid()}" for kind in ("n", "a", "b"))
    net = f"169.254.{os.getpid() % 254 + 1}"
    if run("ip", "netns", "add", other, ok=False).returncode:
        raise Skip("may not make a network namespace")
    try:
        run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", other)
        run("ip", "addr", "add", f"{net}.1/30", "dev", ours)
        run("ip", "link", "set", ours, "up")
        run("ip", "-n", other, "addr", "add", f"{net}.2/30", "dev", theirs)
        run("ip", "-n", other, "link", "set", theirs, "up")
        yield other, f"{net}.1"
    finally:
        run("ip", "netns", "del", other, ok=False)
        run("ip", "link", "del", ours, ok=False)


def test_a_machine_that_goes_away():
    """Clients over TCP whose machine is gone lose their places, idle or not."""
    client = "import nbd, sys, time; c = nbd.Client((sys.argv[1], int(sys.argv[2])), 'db'); [c.send(nbd.READ, 0, 1 << 20) for _ in range(int(sys.argv[3]))]; time.sleep(300)"
    with network() as (other, address), contextlib.ExitStack() as clean:
        port = free_port()
        folder = clean.enter_context(tempfile.TemporaryDirectory())
        control = os.path.join(folder, "ctl")
        # Linux counts in seconds, and probes four times.
        args = (*TWO, "--listen", f"tcp:{address}:{port}", "--control", control)
        server = clean.enter_context(serve(*args, timeouts={"peer": "2s"}))

        def connections():
            return json.loads(run(fairq(), "ctl", "--control", control, "--json", "status").stdout)["connections"]

        for requests in (0, 32):
            argv = ["ip", "netns", "exec", other, sys.executable, "-c", client, address, str(port), str(requests)]
            gone = Process(argv, folder, name=f"client{requests}", env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)})
            clean.callback(gone.kill)
        until(lambda: connections() == 2, 20, "both are in")
        run("ip", "-n", other, "link", "set", f"fairqb{os.getpid()}", "down")
        until(lambda: connections() == 0, 60, "the server ends them")
        check(server.alive(), "it goes on")


def test_bench_holds_back():
    """A client load with a rate stays below it; one with a think time is slowed down by it."""
    with serve(*TWO) as server:
        done = run(fairq(), "bench", "--connect", server.uri(), "--seconds", "1", "--warmup", "0", "--json", "-",
                   "--tenant", "db=iops:2000,jobs:2,rw:randwrite", "--tenant", "batch=think:10ms,depth:1")  # fmt: skip
        db, batch = json.loads(done.stdout)["runs"][0]["flows"]
        check(0 < db["iops"] < 2100, f"asked for 2000 a second, got {db['iops']:.0f}")
        check(0 < batch["iops"] < 105, f"a pause of 10 ms after each, and {batch['iops']:.0f} a second")


def test_a_trickle_beside_a_flood_on_one_shard():
    """Connections of one shard submit in turn, whatever the policy, so that a connection that always has requests is not always first. Without
    turns the trickle has one request for 700 of the flood's."""
    for policy in ("none", "mqfq"):
        tenants = ("--tenant", "flood=32M", "--tenant", "trickle=32M")
        with serve("--device", "ram,size=64M", "--shards", "1", "--policy", policy, *tenants) as server:
            done = run(fairq(), "bench", "--connect", server.uri(), "--seconds", "0.5", "--warmup", "0", "--json", "-",
                       "--tenant", "flood=depth:256", "--tenant", "trickle=depth:4")  # fmt: skip
            flood, trickle = (flow["iops"] for flow in json.loads(done.stdout)["runs"][0]["flows"])
            check(flood <= 200 * trickle, f"{policy}: {flood / trickle:.0f} for each of the other's")


def test_socket_activation():
    """Two listening sockets handed over as file descriptors 3 and 4."""
    need("nbdinfo")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        path = os.path.join(folder, "activated")
        with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
            unix.bind(path)
            tcp.bind(("127.0.0.1", 0))
            for s in (unix, tcp):
                s.listen(16)
            # The shell knows the process number that the variable must hold, and becomes the server.
            script = 'exec 3<&"$1" 4<&"$2"; shift 2; LISTEN_PID=$$ exec "$@"'
            spare = [os.dup2(s.fileno(), 50 + i, inheritable=True) for i, s in enumerate((unix, tcp))]
            server = Process(
                ["bash", "-c", script, "bash", *map(str, spare), fairq(), "serve", *TWO],
                folder, pass_fds=spare, env={**os.environ, "LISTEN_FDS": "2"},
            )  # fmt: skip
            for fd in spare:
                os.close(fd)
            try:
                for address, uri in (
                    (path, f"nbd+unix:///db?socket={path}"),
                    (tcp.getsockname(), f"nbd://127.0.0.1:{tcp.getsockname()[1]}/db"),
                ):
                    until(lambda at=address: greets(at) or not server.alive(), 30, f"{address} answers")
                    check(server.alive(), f"it ended: {server.said()[-600:]}")
                    check(run("nbdinfo", "--size", uri).stdout.strip() == str(32 * MI), "the wrong size")
                status = server.terminate()
                check(status == 0, f"SIGTERM: {status}, {server.said()[-400:]}")
                check(os.path.exists(path), "it removed a socket that is its service manager's")
            finally:
                server.kill()


def test_sockets_survive_a_crash():
    """The service manager keeps the listening socket: a client that connects between two servers waits, and the next one serves it."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        path, notify = os.path.join(folder, "s"), os.path.join(folder, "notify")
        argv, env = [fairq(), "serve", *TWO, "--listen", f"unix:{path}"], {**os.environ, "NOTIFY_SOCKET": notify}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(notify)
            manager.settimeout(60)

            def told(what):
                while True:
                    text, fds, _, _ = socket.recv_fds(manager, 4096, 4)
                    if what in text:
                        return dict(line.split("=", 1) for line in text.decode().splitlines()), fds

            server = Process(argv, folder, env=env)
            said, fds = told(b"FDSTORE=1")
            until(lambda: greets(path), 60, "the server greets")
            server.kill()
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(60)
            client.connect(path)
            script = 'exec 3<&"$1"; shift; LISTEN_PID=$$ exec "$@"'
            spare = os.dup2(fds[0], 50, inheritable=True)
            server = Process(["bash", "-c", script, "bash", str(spare), *argv], folder, pass_fds=[spare],
                             env={**env, "LISTEN_FDS": "1", "LISTEN_FDNAMES": said["FDNAME"]})  # fmt: skip
            for fd in (*fds, spare):
                os.close(fd)
            try:
                check(client.recv(8) == b"NBDMAGIC", "the next server serves a client that came before it")
                check(server.terminate() == 0, f"SIGTERM: {server.said()[-400:]}")
                check(told(b"FDSTOREREMOVE=1")[0]["FDNAME"] == said["FDNAME"], "it takes the socket out when it ends")
                check(not os.path.exists(path), "the server that made the socket removes its name")
            finally:
                server.kill()


def test_socket_activation_libnbd():
    """libnbd starts the server itself, with its own form of socket activation."""
    need("nbdkit", "nbdcopy")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        source = pattern(os.path.join(folder, "in"), 32 * MI)
        command = [fairq(), "serve", "--device", f"file,path={folder}/pool.img,size=32M,create", "--tenant", "db=32M"]
        proxy = ["nbdkit", "-U", "-", "nbd", f"command={command[0]}", *(f"arg={a}" for a in command[1:]),
                 "export=db", "--run"]  # fmt: skip
        run(*proxy, f'nbdcopy --flush {source} "$uri"')
        run(*proxy, f'nbdcopy "$uri" {source}.back')
        run("cmp", source, source + ".back")


def test_inetd():
    """socat as the inetd: a server on standard input and output for each connection, which ends with 0 when its client
    leaves; its writes are in the file that the next one serves."""
    need("socat", "nbdinfo", "nbdcopy")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        path, status = os.path.join(folder, "s"), os.path.join(folder, "status")
        uri = f"nbd+unix:///db?socket={path}"
        script = os.path.join(folder, "start")
        with open(script, "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\n{fairq()} serve --stdio --device file,path={folder}/pool.img,size=64M,create "
                    f"--tenant db=32M --tenant batch=32M\necho $? >> {status}\n")  # fmt: skip
        os.chmod(script, 0o755)
        door = Process(["socat", "-t20", f"UNIX-LISTEN:{path},fork", f"EXEC:{script}"], folder, name="socat")

        def ended(servers):
            said = open(status, encoding="utf-8").read().split() if os.path.exists(status) else []
            check(set(said) <= {"0"}, f"a server ended with {said}: {door.said()[-600:]}")
            return len(said) >= servers

        try:
            until(lambda: os.path.exists(path), 10, "socat listens")
            source = pattern(os.path.join(folder, "in"), 32 * MI)
            for turn, args in enumerate((("--flush", source, uri), (uri, source + ".back"))):
                run("nbdcopy", "--connections=1", *args)
                until(lambda: ended(turn + 1), 20, f"server {turn + 1} ends")
            run("cmp", source, source + ".back")
            client = nbd.Client(path)
            names = client.list()
            check(sorted(names) == ["batch", "db"], f"listed {names}")
            client.s.close()
            until(lambda: ended(3), 20, "the server ends after its client left in the handshake")
        finally:
            door.kill()


def test_nbd_tester_client():
    """The NBD project's tests: throughput with verification, its integrity logs, and its expectations of oversized requests."""
    tester = os.environ.get("NBD_TESTER_CLIENT")
    if not tester:
        raise Skip("no package ships it: build it from nbd's sources and set NBD_TESTER_CLIENT to it")
    logs, told = os.path.dirname(tester), []
    # The integrity test needs blocks that were never written. Its huge log is omitted: it has
    # requests of up to 50 MB, above the 32 MiB that a client may send without negotiation.
    tenants = (x for t in ("db", "one", "ro") for x in ("--tenant", f"{t}=64M" + ",read-only" * (t == "ro")))
    with serve("--device", "ram,size=192M", *tenants) as server:
        socket_path = ("-u", server.socket)
        inetd = ("-I", "--", fairq(), "serve", "--stdio", "--device", "ram,size=64M", "--tenant", "db=64M")
        for name, args in (
            ("read", ("-N", "db", *socket_path)),
            ("write", ("-N", "db", "-w", *socket_path)),
            ("write and flush", ("-N", "db", "-w", "-f", *socket_path)),
            ("write to a read-only export, to be refused", ("-N", "ro", "-w", "-F", *socket_path)),
            ("oversize", ("-N", "db", "-o", *socket_path)),
            ("handshake", ("-N", "db", "-h", *socket_path)),
            ("integrity", ("-N", "one", "-i", "-t", os.path.join(logs, "integrity-test.tr"), *socket_path)),
            ("inetd", ("-N", "db", *inetd)),
        ):
            done = run(tester, *args, timeout=120, ok=False)
            said = (done.stderr + done.stdout).strip()[-500:]
            if done.returncode == 77:  # built without it
                continue
            check(done.returncode == 0, f"{name}: it ended with {done.returncode}: {said}")
            told.append(name)
    return ", ".join(told)
