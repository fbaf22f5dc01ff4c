"""Run the steps of the Dockerfile in clean roots without a container engine, and ask the server there a question.

    python scripts/test_container.py [FOLDER]

Needs root, Linux, debootstrap and Debian's packages. Each stage is a root that debootstrap makes; each RUN is a command
in it (chroot). The server runs as the Dockerfile's user, with its ENTRYPOINT and CMD, in a network of its own that has
only the loopback interface. The size of each layer is printed. A problem of the image is an error; a missing tool is a
skip. With FOLDER, a clean root that an earlier run has left there is used again.
"""

from __future__ import annotations

import fnmatch
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 900_000_000  # bytes of all layers
# Settings of this machine's network, which an engine would pass on too. They are no part of a layer.
NETWORK = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/xdg/pip", "/etc/ssl/certs/ca-certificates.crt")
NETWORK_VARIABLES = re.compile(r"(PIP_\w+|\w*_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE)", re.IGNORECASE)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OTHER_ADDRESS = "10.77.0.1"  # of the server's own network; requests to it are not local
NOTE = "The caretaker holds the keys. They hang in the blue cupboard."


@dataclass
class Stage:
    """A stage of a Dockerfile: its base image, its name, and its instructions as (keyword, text)."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, keyword: str) -> str:
        """Return the text of the last instruction of this kind, or ""."""
        return next((text for key, text in reversed(self.steps) if key == keyword), "")

    def environ(self) -> dict[str, str]:
        """Return the variables of ENV, and of ARG with their defaults."""
        texts = [text for key, text in self.steps if key in ("ENV", "ARG")]
        return variables(" ".join(texts))


def variables(text: str) -> dict[str, str]:
    """Return the variables of an ENV or ARG instruction."""
    return dict(word.split("=", 1) for word in shlex.split(text))


def stages(text: str) -> list[Stage]:
    """Return the stages of a Dockerfile."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found: list[Stage] = []
    for line in filter(None, map(str.strip, lines.replace("\\\n", " ").splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base.strip(), name.strip()))
        else:
            found[-1].steps.append((keyword, " ".join(rest.split()) if keyword != "RUN" else rest.strip()))
    return found


def ignored(path: str, patterns: list[str]) -> bool:
    """Return whether .dockerignore excludes a path: the last pattern that matches it or a folder above it decides."""
    excluded = False
    for line in patterns:
        pattern = line.removeprefix("!")
        parts = path.split("/")
        above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        names = [*above, *parts] if pattern.startswith("**/") else above
        if any(fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in names):
            excluded = not line.startswith("!")
    return excluded


def context_files() -> list[str]:
    """Return the files that a build sees: those of the repository that .dockerignore leaves."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.splitlines() if (ROOT / path).is_file() and not ignored(path, patterns)]


class Image:
    """A root in which the steps of a stage run. `layers` are the bytes that each step has added."""

    def __init__(self, stage: Stage, folder: Path, clean: Path, built: dict[str, Image]) -> None:
        self.stage, self.folder, self.built = stage, folder, built
        self.layers: list[tuple[str, int]] = []
        self.place, self.environ = "/", dict[str, str]()
        subprocess.run(["cp", "-a", clean, folder], check=True)
        self.layers.append((f"FROM {stage.base}", size(folder)))

    def build(self) -> None:
        for keyword, text in self.stage.steps:
            before = size(self.folder)
            if keyword == "RUN":
                with network_of_this_machine(self.folder):
                    self.run(f"cd {self.place} && {text}")
            elif keyword == "WORKDIR":
                self.place = text
                (self.folder / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif keyword == "COPY":
                self.copy(shlex.split(text))
            elif keyword in ("ENV", "ARG"):
                self.environ |= variables(text)
            if keyword in ("RUN", "COPY"):
                self.layers.append((f"{keyword} {text}"[:60], size(self.folder) - before))

    def copy(self, words: list[str]) -> None:
        """Copy files of the build's context, or of another stage."""
        if words[0].startswith("--from="):
            source = self.built[words.pop(0).removeprefix("--from=")].folder / words[0].lstrip("/")
            target = self.folder / words[1].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", source, target], check=True)
            return
        files, target = context_files(), self.folder / self.place.lstrip("/") / words[-1]
        for source in words[:-1]:
            chosen = [path for path in files if path == source or path.startswith(f"{source.rstrip('/')}/")]
            if not chosen:
                sys.exit(f"COPY {source}: the context of the build has no such file")
            for path in chosen:
                rest = path.removeprefix(source) if source.endswith("/") else Path(path).name
                (target / rest).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, target / rest)

    def run(self, text: str) -> None:
        """Run a command of the shell in the root, as root. Ends this script if the command fails."""
        kept = {name: value for name, value in os.environ.items() if NETWORK_VARIABLES.fullmatch(name)}
        path = {"PATH": SYSTEM_PATH, "DEBIAN_FRONTEND": "noninteractive"}
        line = [*entering(self.folder), "sh", "-c", text]
        done = subprocess.run(line, env={**kept, **path, **self.environ}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{text[:200]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def entering(root: Path, user: str = "0:0") -> list[str]:
    """Return the beginning of a command line that runs a program in a root as a user."""
    return [shutil.which("chroot") or "chroot", f"--userspec={user}", str(root)]


class network_of_this_machine:
    """Lends a root the network settings of this machine while a step runs."""

    def __init__(self, root: Path) -> None:
        self.targets = [(Path(name), root / name.lstrip("/")) for name in NETWORK if Path(name).exists()]

    def __enter__(self) -> None:
        self.kept = {}
        for source, target in self.targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_file():
                self.kept[target] = target.read_bytes()
            shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, target)

    def __exit__(self, *_: object) -> None:
        for _, target in self.targets:
            if target in self.kept:
                target.write_bytes(self.kept[target])
            elif target.is_dir():
                shutil.rmtree(target)
            elif "ssl" not in target.parts:  # the certificates that a step has installed stay
                target.unlink(missing_ok=True)


def size(folder: Path) -> int:
    """Return the bytes of the files of a root. Hard links count once. Lists and caches of downloaded packages do not
    count, because the slim image keeps none of them."""
    unkept = (folder / "var/lib/apt/lists", folder / "var/cache/apt")
    seen: dict[tuple[int, int], int] = {}
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(path, name) not in unkept]
        for name in files:
            stat = Path(path, name).lstat()
            seen[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(seen.values())


def clean_root(folder: Path, release: str) -> Path:
    """Return a clean root of Debian, made by debootstrap unless an earlier run has left it."""
    root = folder / f"clean-{release}"
    if not (root / "etc" / "debian_version").exists():
        subprocess.run(["debootstrap", "--variant=minbase", release, str(root)], check=True, stdout=subprocess.DEVNULL)
        for part in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt/archives"):
            shutil.rmtree(root / part, ignore_errors=True)  # the slim image has none of them
    return root


def ask(image: Image) -> None:
    """Start the server as the image does, and ask it a question about an uploaded note."""
    stage = image.stage
    environ = stage.environ()
    line = [*json.loads(stage.last("ENTRYPOINT")), *json.loads(stage.last("CMD"))]
    user = entering(image.folder, stage.last("USER"))
    added = subprocess.run(
        [*user, "agentformer", "keys", "add", "test", "--json"], env=environ, capture_output=True, text=True
    )
    if added.returncode:
        sys.exit(f"the first key cannot be created: {added.stderr}")
    key = json.loads(added.stdout)["key"]
    mounts = f"mount -t proc proc {image.folder}/proc && mount -t tmpfs tmpfs {image.folder}/tmp"  # as an engine does
    network = f"ip link set lo up && ip address add {OTHER_ADDRESS}/32 dev lo"
    setup = f"{mounts} && {network} && exec {shlex.join([*user, *line])}"
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", setup],
            env={**environ, "PATH": f"{environ['PATH']}:{SYSTEM_PATH}"},
            stdout=log,
            stderr=log,
        )
        inside = ["nsenter", f"--net=/proc/{server.pid}/ns/net", "curl", "-sS", "--fail-with-body", "--max-time", "60"]
        headers = ["-H", f"Authorization: Bearer {key}"]

        def call(*words: str) -> str:
            done = subprocess.run([*inside, *words], capture_output=True, text=True, input=NOTE)
            return done.stdout if done.returncode == 0 else ""

        try:
            begun = time.monotonic()
            while not call(f"http://{OTHER_ADDRESS}:8808/healthz"):
                if server.poll() is not None or time.monotonic() - begun > 120:
                    log.seek(0)
                    sys.exit(f"the server does not answer:\n{log.read()[-3000:]}")
                time.sleep(0.2)
            print(f"the server answered after {time.monotonic() - begun:.1f} s")
            for path in ("healthz", "readyz"):  # without a key, from an address that is not local: the probes
                print(f"{path}: {call(f'http://{OTHER_ADDRESS}:8808/{path}').strip()}")
            check = json.loads(stage.last("HEALTHCHECK").partition("CMD ")[2])
            health = ["nsenter", f"--net=/proc/{server.pid}/ns/net", *user, *check]
            print("health check:", "ok" if subprocess.run(health, env=environ).returncode == 0 else sys.exit("fails"))
            base = "http://127.0.0.1:8808/api/rag"
            call(*headers, "-F", "file=@-;filename=notes.txt", f"{base}/upload")
            body = ["-H", "Content-Type: application/json", "-d", '{"question": "Who has the keys?"}']
            answer = json.loads(call(*headers, *body, f"{base}/query") or "{}")
            quotes = [citation["quote"] for citation in answer.get("citations", [])]
            if not quotes or "caretaker" not in quotes[0]:
                log.seek(0)
                sys.exit(f"the answer does not cite the note: {answer}\n{log.read()[-3000:]}")
            print(f"answer: {quotes[0]}")
            owner = (image.folder / "data" / "indexes").stat().st_uid
            print(f"user of the server and of its files: {owner}")
        finally:
            server.terminate()
            server.wait(60)


def missing() -> Iterator[str]:
    """Yield a reason for each thing without which nothing can be run here."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        yield "this needs root on Linux"
    for name in ("debootstrap", "unshare", "nsenter", "chroot", "ip", "curl"):
        if not shutil.which(name):
            yield f"the program {name} is not installed"


def main() -> None:
    """Build the stages of the Dockerfile, and ask the server of the last one."""
    if reasons := [*missing()]:
        print("skipped:", "; ".join(reasons))
        return
    with tempfile.TemporaryDirectory(prefix="agentformer-container-") as own:
        folder = Path(sys.argv[1]) if sys.argv[1:] else Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        built: dict[str, Image] = {}
        for number, stage in enumerate(stages((ROOT / "Dockerfile").read_text())):
            release = re.fullmatch(r"debian:(\w+)-slim", stage.base)
            if not release:
                sys.exit(f"the base {stage.base} is no slim image of Debian")
            image = Image(stage, Path(own) / str(number), clean_root(folder, release[1]), built)
            image.build()
            built[stage.name or str(number)] = image
        total = sum(added for _, added in image.layers)
        for step, added in image.layers:
            print(f"{added / 1e6:8.1f} MB  {step}")
        print(f"{total / 1e6:8.1f} MB  in all; at most {MOST / 1e6:.0f} MB")
        if total > MOST:
            sys.exit("the image is too large")
        ask(image)


if __name__ == "__main__":
    main()
