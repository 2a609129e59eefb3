"""The modules of a crate, one a file, and the files that each uses: for checks/core and checks/cycles.

Items for tests and for models are left out. A re-export (`pub use`) counts as the file that defines the item.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
WITHOUT = re.compile(r"#\[cfg\((test|loom|all\(test|any\(test|all\(loom)")


def production(text):
    """The lines of code, without comments, strings, and items for tests and models."""
    bare = lambda of: "" if of[0].startswith("//") else '"' + "\n-" * of[0].count("\n") + '"'
    text = re.sub(r"""'\\?.'|"(?:\\[\s\S]|[^"\\])*"|//.*""", bare, text)
    lines = iter([line.strip() for line in text.splitlines() if line.strip()])
    kept = []
    for line in lines:
        if not WITHOUT.match(line):
            kept.append(line)
            continue
        depth = 0
        for line in lines:
            depth += sum(line.count(c) for c in "{(") - sum(line.count(c) for c in "})")
            if depth == 0 and line[-1] in ";},":
                break
    return kept


def is_for_tests(path):
    return bool({"tests", "models"} & set(path.with_suffix("").parts))


def tree(text, before=()):
    """The paths of a tree of `use`, each with the name that its item has here."""
    for part in re.findall(r"(?:[^,{}]|\{(?:[^{}]|\{[^{}]*\})*\})+", text):
        names, _, inner = part.strip().partition("{")
        names, _, new = names.partition(" as ")
        path = before + tuple(name.strip() for name in names.split("::") if name.strip())
        if inner:
            yield from tree(inner[:-1], path)
        elif path:
            yield path, new.strip() or path[-1]


class Crate:
    def __init__(self, name):
        self.sources = ROOT / "crates" / name / "src"
        # Of a library and a program in one crate the library is read.
        paths = sorted(self.sources.rglob("*.rs"), key=lambda path: path.name == "main.rs")
        self.code, self.file = {}, {}
        for path in paths:
            module = self.module(path)
            if module not in self.code and not is_for_tests(path.relative_to(self.sources)):
                self.code[module] = production(path.read_text())
                self.file[module] = path.relative_to(ROOT).as_posix()
        # The declaration of a module for tests has been removed by now, so such a module is left out.
        for module in sorted(self.code, key=len):
            parent = self.code.get(module[:-1])
            if module and (parent is None or not re.search(rf"\bmod {module[-1]};", " ".join(parent))):
                del self.code[module]

    def module(self, path):
        """The names of the modules that lead to a file."""
        names = path.relative_to(self.sources).with_suffix("").parts
        return names[:-1] if names[-1] in ("mod", "lib", "main") else names

    def absolute(self, path, here):
        """A path from the root of the crate; None if it is another crate's."""
        if path[0] == "crate":
            return path[1:]
        above = len([name for name in path if name == "super"])
        if path[0] in ("self", "super") or here + path[:1] in self.code:
            path = path[above:] if path[0] != "self" else path[1:]
            return here[: len(here) - above] + path
        return None

    def exports(self, here):
        """The paths that a module re-exports, by their names here."""
        for use in re.findall(r"\bpub(?:\([^)]*\))? use ([^;]+);", " ".join(self.code[here])):
            for path, name in tree(use):
                if (path := self.absolute(path, here)) is not None:
                    yield name, path

    def defining(self, path):
        """The module whose file defines the item of a path."""
        depth = next(n for n in range(len(path), -1, -1) if path[:n] in self.code)
        here, item = path[:depth], path[depth:]
        for name, target in self.exports(here) if item else ():
            if name == item[0] and target != path:
                return self.defining(target + item[1:])
        return here

    def used(self, here):
        """The paths that a module names."""
        text = " ".join(self.code[here])
        for use in re.findall(r"\buse ([^;]+);", text):
            yield from (path for path, _ in tree(use))
        yield from (tuple(path.split("::")) for path in re.findall(r"(?<![\w:$])(?:crate|super)(?:::\w+)+", text))

    def uses(self, here):
        """The modules whose items a module uses."""
        paths = (self.absolute(path, here) for path in self.used(here))
        return {self.defining(path) for path in paths if path is not None} - {here}
