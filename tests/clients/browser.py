"""Drives a headless Chromium over its two debugging pipes (--remote-debugging-pipe), which needs no package of Python.

Its messages are JSON, each ended by a zero byte. Every event is kept, so that a test can check requests, their responses and
the messages on the console."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import rig

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync", "--no-first-run",
    "--no-default-browser-check", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
]


class Page:
    """One tab."""

    def __init__(self, chromium, folder):
        to_it, ours = os.pipe()
        theirs, from_it = os.pipe()
        # Chromium reads from 3 and writes to 4; a shell moves our descriptors to these numbers.
        script = f'exec "$@" 3<&{to_it} 4>&{from_it}'
        argv = ["sh", "-c", script, "sh", chromium, *FLAGS, f"--user-data-dir={folder}/profile", "about:blank"]
        with open(os.path.join(folder, "chromium.log"), "w", encoding="utf-8") as log:
            self.child = subprocess.Popen(
                argv, pass_fds=(to_it, from_it), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        os.close(to_it)
        os.close(from_it)
        self.write, self.read = ours, theirs
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        targets = rig.until(lambda: self.call("Target.getTargets")["targetInfos"], 30, "Chromium has a tab")
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def take(self, seconds):
        """The next message; None if none comes."""
        deadline = time.monotonic() + seconds
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            got = os.read(self.read, 1 << 16)
            rig.check(got, "Chromium has ended")
            self.rest += got
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.take(30)
            rig.check(answer is not None, f"Chromium does not answer {method}")
            if answer.get("id") == self.number:
                rig.check("error" not in answer, f"{method}: {answer.get('error')}")
                return answer["result"]
            self.events.append(answer)

    def listen(self, seconds=0.0):
        """Collects the events of this time."""
        deadline = time.monotonic() + seconds
        while True:
            event = self.take(max(0.0, deadline - time.monotonic()))
            if event is None:
                return
            self.events.append(event)

    def of(self, method):
        self.listen()
        return [event["params"] for event in self.events if event.get("method") == method]

    def run(self, script):
        """The value of an expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        rig.check("exceptionDetails" not in done, f"{script}: {done.get('exceptionDetails')}")
        return done["result"].get("value")

    def until(self, script, seconds, what):
        return rig.until(lambda: self.run(script), seconds, what)

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? null")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'", 30, f"{url} is there")

    def size(self, width, height, scale=1, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)

    def like(self, deficiency="none", **features):
        """Sets media features (prefers_color_scheme="dark") and simulates a deficiency of vision."""
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setEmulatedVisionDeficiency", type=deficiency)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code, number, text=""):
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=number, **more)

    def shoot(self, path, whole=True):
        """A picture of the page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def end(self):
        os.close(self.write)
        os.close(self.read)
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, 9)
            self.child.wait()


@contextlib.contextmanager
def page():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        raise rig.Skip("not installed: chromium")
    with tempfile.TemporaryDirectory(prefix="fairq-chromium-", ignore_cleanup_errors=True) as folder:
        tab = Page(chromium, folder)
        try:
            yield tab
        finally:
            tab.end()
