"""The web page, in a real browser: it shows the server's values, the page sends requests only to the server's address,
and only users with the token can change weights. $FAIRQ_PICTURES names a folder for screenshots of it."""

import base64
import contextlib
import json
import os
import re
import socket
import urllib.error
import urllib.request

import browser
import rig

TOKEN = "0123456789-for-the-tests"
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
UNITS |= {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "%": 0.01}


@contextlib.contextmanager
def served(folder, *tenants, token=True, port=None, policy="mqfq", groups=()):
    """A server with the page on a port of its own."""
    if port is None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
    path = os.path.join(folder, "fairq.toml")
    with open(path, "w", encoding="utf-8") as config:
        if token:
            config.write(f'web-token = "{secret(folder)}"\n')
    args = [arg for tenant in tenants for arg in ("--tenant", tenant)]
    args += [arg for group in groups for arg in ("--group", group)]
    device = ["--device", "nvme-soft,backing=ram,size=512M" if policy == "d2fq" else "paced,size=512M,iops=20k,latency=200us"]
    server = rig.Server(
        folder, "--config", path, "--metrics", f"tcp:127.0.0.1:{port}", "--control", os.path.join(folder, "ctl"),
        "--policy", policy, *device, *args,
    )
    server.page, server.port = f"http://127.0.0.1:{port}", port
    try:
        yield server
    finally:
        server.kill()


def secret(folder):
    path = os.path.join(folder, "token")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(TOKEN + "\n")
    return path


def load(server, *tenants):
    args = [arg for tenant in tenants for arg in ("--tenant", tenant)]
    return rig.start([rig.fairq(), "bench", "--connect", f"nbd+unix:///?socket={server.socket}", *args,
                      "--seconds", "120s", "--warmup", "0s"])


def number(text):
    value, _, unit = text.replace("\u00a0", " ").partition(" ")
    return float(value) * UNITS[unit]


def close(text, value, what):
    """Checks that the text is the page's form of the value: three digits, or one behind the point."""
    rig.check(abs(number(text) - value) <= max(0.006 * abs(value), 0.0006), f"{what}: the page says {text}, the server {value}")


def post(server, body, **headers):
    """The status and the response to a program's attempt to change a weight."""
    request = urllib.request.Request(server.page + "/weight", data=json.dumps(body).encode(), headers={
        name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=rig.PATIENCE) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        said = error.read().decode()
        return error.code, json.loads(said) if said.startswith("{") else said


def look(server):
    with urllib.request.urlopen(server.page + "/look.json", timeout=rig.PATIENCE) as answer:
        return json.loads(answer.read())


def weight(server, name):
    return next(t["weight"] for t in look(server)["tenants"] if t["name"] == name)


def asked(tab):
    """The page's requests for its data, and those that were answered."""
    numbers = {e["requestId"] for e in tab.of("Network.requestWillBeSent") if e["request"]["url"].endswith("/look.json")}
    return numbers, [e["requestId"] for e in tab.of("Network.loadingFinished") if e["requestId"] in numbers]


def next_look(tab):
    """Waits until the page has received new data."""
    before = len(asked(tab)[1])
    rig.until(lambda: len(asked(tab)[1]) > before, 20, "the page asks again")


def picture(tab, name):
    folder = os.environ.get("FAIRQ_PICTURES")
    if folder:
        next_look(tab)
        tab.shoot(os.path.join(folder, f"{name}.png"))


def last_look(tab):
    """The data that the page received last, as sent over the wire."""
    rig.until(lambda: len(asked(tab)[0]) == len(asked(tab)[1]), 20, "the page has its answers")
    body = tab.call("Network.getResponseBody", requestId=asked(tab)[1][-1])
    text = base64.b64decode(body["body"]).decode() if body["base64Encoded"] else body["body"]
    told = json.loads(text)
    tab.until(f"state.look.status.uptime_s === {told['status']['uptime_s']}", 20, "the page shows the last answer")
    return told


def complaints(tab):
    said = [e["entry"]["text"] for e in tab.of("Log.entryAdded") if e["entry"]["level"] in ("error", "warning")]
    said += [str(e["args"]) for e in tab.of("Runtime.consoleAPICalled") if e["type"] in ("error", "warning")]
    return said + [str(e["exceptionDetails"]) for e in tab.of("Runtime.exceptionThrown")]


def shows(tab, told):
    """Compares every number of the table, the tiles and the matrix."""
    cells = tab.run("""Object.fromEntries([...document.querySelectorAll('#rows tr')].map(tr =>
        [tr.dataset.tenant, Object.fromEntries([...tr.children].map(td => [td.dataset.of ?? 'name', td.innerText.trim()]))]))""")
    compared = 0
    for tenant in told["tenants"]:
        shown, last = cells[tenant["name"]], tenant["last_second"]
        rig.check(shown["weight"] == str(tenant["weight"]), f"weight {shown['weight']} of {tenant}")
        rig.check(shown["queue"] == f"{tenant['staged']}+{tenant['in_flight'] - tenant['staged']}", f"{shown} of {tenant}")
        for cell, key in (("due", "entitled"), ("share", "share"), ("iops", "iops"), ("bandwidth", "bytes_per_s"),
                          ("p50", "p50_ns"), ("p99", "p99_ns"), ("staged", "staged_ns"), ("device", "device_ns")):
            if last is None:
                rig.check(shown[cell] in ("–", ""), f"{tenant['name']} is idle and shows {shown[cell]}")
            else:
                close(shown[cell], last[key], f"{tenant['name']}'s {cell}")
                compared += 1
        target = tenant["latency_target"]
        shown["target"] = shown["target"].replace("\u00a0", " ")
        state = target and ("▲ " if "un" in target["state"] or "missed" in target["state"] else "", target["state"].split("-")[0])
        rig.check(target is None or (shown["target"].startswith(state[0]) and shown["target"].endswith(state[1])), f"{shown} of {target}")
        for by, part in (tenant["hurt_by"] or {}).items():
            cell = tab.text(f"#matrix tr[data-tenant='{tenant['name']}'] td[data-by='{by}']")
            rig.check(abs(int(cell) - 100 * part) <= 0.51, f"{tenant['name']} hurt by {by}: {cell} for {part}")
            compared += 1
    close(tab.text("[data-of=iops]"), sum(t["last_second"]["iops"] for t in told["tenants"] if t["last_second"]), "IOPS")
    policy = told["status"]["policy_state"]
    rig.check(tab.text("[data-of=slots]") == f"{policy['slots_in_use']} of {policy['slots']}", "slots in use")
    why = {None: "set", "searching": "searching", "found": "fill the device", "all-demand": "all is", "alone": "alone"}
    state = (policy["depth"] or {"state": None})["state"]
    is_held = any(t["latency_target"] and t["latency_target"]["slots_bound"] is not None for t in told["tenants"])
    reason = "for latency targets" if is_held else why[state]
    rig.check(reason in tab.text("[data-of=depth]"), f"why D is what it is: {state}")
    return compared


def sideways(tab):
    """Pixels by which the page is wider than the window."""
    return tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_page_shows_what_the_server_tells():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(rig.tempfile.TemporaryDirectory(prefix="fairq-"))
        tab = stack.enter_context(browser.page())
        server = stack.enter_context(served(
            folder, "db,weight=300,min-iops=100", "web,latency=10s", "batch,latency=1us,group=acme", "idle",
            groups=["acme=weight=50,max-iops=9k"]))
        busy = load(server, "db=depth:32", "web=depth:32", "batch=depth:4,bs:64k")
        stack.callback(busy.kill)
        tab.size(1280, 900)
        tab.open(server.page + "/")
        tab.until("document.querySelectorAll('#matrix tbody tr').length >= 3", 30, "the matrix has three rows")
        tab.until("document.querySelectorAll('#chart-share path.line').length >= 3", 30, "three lines are drawn")
        picture(tab, "desktop")
        tab.until("document.querySelector('#missed li')?.innerText.startsWith('batch: ')", 30, "the missed target is shown")
        tab.until("document.querySelector('#rows tr[data-tenant=db] .promised')?.innerText.includes('min-iops=100 met')", 30,
                  "the reservation is shown")
        rig.check(tab.text("#group-rows td.promised").startswith("max-iops=9000"), tab.text("#group-rows"))
        rig.check("acme" in tab.text("#rows tr[data-tenant=batch] .promised"), tab.text("#rows"))
        tab.run("document.getElementById('pause').click()")
        rig.check(tab.text("#state") == "paused", "it does not say that it pauses")
        rig.check(tab.run("document.querySelectorAll('#missed li').length") == 1, tab.text("#missed"))
        compared = shows(tab, last_look(tab))
        rig.check(compared >= 3 * 8 + 6, f"only {compared} numbers were compared")
        tab.run("document.getElementById('pause').click()")
        tab.until("document.getElementById('state').textContent === 'live'", 10, "it goes on")

        for name, like in {"dark": {"prefers_color_scheme": "dark"}, "contrast": {"forced_colors": "active"},
                           "deuteranopia": {"deficiency": "deuteranopia"}}.items():
            tab.like(**like)
            picture(tab, name)
        tab.like()
        shapes = tab.run("[...document.querySelectorAll('#key path')].map(p => p.getAttribute('d'))")
        rig.check(len(shapes) >= 4 and len(set(shapes)) == len(shapes), "tenants are told apart by colour alone")
        for chart in ("share", "latency"):
            for kind in ("shape", "hollow"):
                marks = tab.run(f"[...document.querySelectorAll('#chart-{chart} .{kind}')].map(p => p.getAttribute('d'))")
                rig.check(len(set(marks)) >= 3, f"lines of {chart} without their tenants' marks: {kind} {marks}")
        tab.size(360, 740, 2, True)
        next_look(tab)
        picture(tab, "phone")
        rig.check(sideways(tab) <= 0, f"a phone scrolls {sideways(tab)} pixels sideways")

        # The server ends and returns.
        tab.size(1280, 900)
        before = complaints(tab)
        rig.check(not before, f"the console says {before}")
        server.kill()
        tab.until("document.getElementById('state').dataset.state === 'gone'", 20, "the page says that the server is gone")
        rig.check("has not answered since" in tab.text("#state"), tab.text("#state"))
        picture(tab, "gone")
        again = stack.enter_context(served(folder, "db,weight=300", "web", "batch", "idle", port=server.port))
        tab.until("document.getElementById('state').textContent === 'live'", 20, "the page finds the server again")
        tab.until("/up \\d s/.test(document.getElementById('server').textContent)", 20, "the new server's time is shown")
        hosts = {e["request"]["url"] for e in tab.of("Network.requestWillBeSent")}
        rig.check(all(url.startswith((again.page + "/", "data:")) for url in hosts), f"it asked elsewhere: {hosts}")
        policy = next(e["response"]["headers"] for e in tab.of("Network.responseReceived") if e["type"] == "Document")
        policy = {name.lower(): value for name, value in policy.items()}["content-security-policy"]
        rig.check("default-src 'none'" in policy and "unsafe" not in policy, policy)
        return f"{compared} numbers as told"


def edit(tab, name, weight_):
    """As by keyboard: focuses the field, replaces its text and presses Enter."""
    field = f"document.querySelector('#rows tr[data-tenant=\"{name}\"] input')"
    tab.run(f"{field}.focus(); {field}.select()")
    tab.type(str(weight_))
    tab.press("Enter", "Enter", 13, "\r")


def test_page_changes_weights_with_the_token_only():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(rig.tempfile.TemporaryDirectory(prefix="fairq-"))
        server = stack.enter_context(served(folder, "db,weight=300", "web"))
        change, kind, right = {"tenant": "db", "weight": "500"}, "application/json", f"Bearer {TOKEN}"
        for code, headers in (
            (401, {"Content_Type": kind}),
            (401, {"Content_Type": kind, "Authorization": f"Bearer {TOKEN}x"}),
            (401, {"Content_Type": kind, "Authorization": TOKEN}),
            (415, {"Content_Type": "text/plain", "Authorization": right}),
            (403, {"Content_Type": kind, "Authorization": right, "Origin": "http://elsewhere"}),
            (403, {"Content_Type": kind, "Authorization": right, "Sec_Fetch_Site": "cross-site"}),
        ):
            status, said = post(server, change, **headers)
            rig.check(status == code and said["error"], f"{headers}: {status} {said}")
        rig.check(weight(server, "db") == 300, "a refused change was made")
        status, said = post(server, {"tenant": "db", "weight": "0"}, Content_Type=kind, Authorization=right)
        rig.check(status == 400 and "is not a weight" in said["error"], f"{status} {said}")
        status, said = post(server, {"tenant": "nobody", "weight": "1"}, Content_Type=kind, Authorization=right)
        rig.check(status == 409 and said["error"] == "there is no tenant nobody", f"{status} {said}")
        status, said = post(server, change, Content_Type=kind, Authorization=right)
        rig.check((status, said) == (200, {"tenant": "db", "from": 300, "to": 500}), f"{status} {said}")
        status, said = post(server, {"tenant": "x" * 70_000}, Content_Type=kind, Authorization=right)
        rig.check(status == 413, f"{status} {said}")
        with served(rig.tempfile.mkdtemp(dir=folder), "db", token=False) as closed:
            status, said = post(closed, change, Content_Type=kind, Authorization=right)
            rig.check(status == 403 and "set web-token" in said["error"], f"{status} {said}")

        tab = stack.enter_context(browser.page())
        tab.size(1000, 800)
        tab.open(server.page + "/")
        tab.until("!document.getElementById('token-label').hidden", 20, "the page asks for a token")
        rig.check(tab.run("[...document.querySelectorAll('#rows input')].every(e => e.hidden)"), "weights can be edited at once")
        tab.run("document.getElementById('token').focus()")
        tab.type("not-the-token-at-all")
        tab.until("!document.querySelector('#rows input').hidden", 20, "there are fields")
        edit(tab, "web", 250)
        tab.until("document.getElementById('said').textContent.includes('the token is wrong')", 20, "the page says why not")
        rig.check(weight(server, "web") == 100, "a wrong token changed a weight")
        tab.run("document.getElementById('token').select()")
        tab.type(TOKEN)
        edit(tab, "web", 250)
        tab.until("document.getElementById('said').textContent === 'web: weight 100 → 250'", 20, "the page says what changed")
        rig.check(weight(server, "web") == 250, "the weight is not changed")
        picture(tab, "weights")
        stored = tab.run("JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie + location.href")
        rig.check(TOKEN not in stored, "the token is kept somewhere")
        said = [text for text in complaints(tab) if "401" not in text]
        rig.check(not said, f"the console says {said}")


def test_page_holds_two_hundred_tenants():
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(rig.tempfile.TemporaryDirectory(prefix="fairq-"))
        tab = stack.enter_context(browser.page())
        names = [f"tenant-with-a-long-name-{n:03}" for n in range(200)]
        server = stack.enter_context(served(folder, *(f"{name},weight={n + 1}" for n, name in enumerate(names)), policy="d2fq"))
        busy = load(server, *(f"{name}=depth:4" for name in names[:20]))
        stack.callback(busy.kill)
        for width, height, scale, mobile in ((360, 740, 2, True), (1280, 900, 1, False)):
            tab.size(width, height, scale, mobile)
            tab.open(server.page + "/")
            tab.until("document.querySelectorAll('#chart-share path.line').length === 6", 30, "six lines are drawn")
            tab.until("document.querySelectorAll('#chart-classes path.line').length === 1", 30, "H/L is drawn")
            rig.check(sideways(tab) <= 0, f"at {width}: {sideways(tab)} pixels sideways")
            next_look(tab)
            picture(tab, f"many-{width}")
        count = "document.querySelectorAll('#rows tr').length"
        rig.check(tab.run(count) == 20, f"{tab.run(count)} rows")
        tab.run("document.getElementById('more').click()")
        rig.check(tab.run(count) == 40, f"{tab.run(count)} rows after more")
        tab.run("document.getElementById('find').focus()")
        tab.type("name-19")
        rig.check(tab.run(count) == 10 and tab.run("document.getElementById('more').hidden"), "finding 190 to 199")
        rig.check(tab.run("document.querySelectorAll('#matrix tbody tr').length") <= 8, "the matrix is bounded")
        rig.check(re.search("and 194 more", tab.text("#key")), tab.text("#key"))
        said = complaints(tab)
        rig.check(not said, f"the console says {said}")
