"""A small shop behind a real nginx, for `logs_live.py`: its clients, its faults, and its access logs.

nginx, the backend and all clients run on the loopback interface. The server writes each request twice, in the
same order: as a combined line and as JSON. Each client has its own address, which nginx takes from the header
X-Forwarded-For. A fault is injected for some seconds among the normal traffic. Its lines are known by the
address of the client. If the backend has the fault, they are known by their status or time. A probe checks
the shop twenty times a second. If the probe or all clients stop, the lines around the pause show the fault.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

HOST = "127.0.0.1"
SLOW = 0.8  # seconds that a slow backend takes
FAILING = 0.4  # share of the requests to a failing cart that are not found

CONFIGURATION = """
daemon off; worker_processes 1; pid {out}/nginx.pid; error_log {out}/error.log;
events {{ worker_connections 512; }}
http {{
  set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; access_log off; keepalive_requests 1000000;
  client_body_temp_path {out}/body; proxy_temp_path {out}/proxy; fastcgi_temp_path {out}/fastcgi;
  uwsgi_temp_path {out}/uwsgi; scgi_temp_path {out}/scgi;
  log_format full escape=json '{{"time":"$time_iso8601","remote_addr":"$remote_addr",'
    '"method":"$request_method","uri":"$request_uri","status":$status,"bytes":$body_bytes_sent,"request_time":$request_time,'
    '"user_agent":"$http_user_agent"}}';
  upstream shop {{ server 127.0.0.1:{backend} max_fails=0; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    access_log {out}/combined.log combined; access_log {out}/json.log full;
    location / {{
      proxy_pass http://shop; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_connect_timeout 1s; proxy_read_timeout 5s;
    }}
  }}
}}
"""

AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Version/17.5 Safari/604.1",
    "shop-app/3.2 (Android 14)",
)

# The backend

_SIZES = {"static": 40_000, "items": 9_000, "users": 3_000, "search": 6_000, "health": 20}


async def backend(port: int) -> None:
    """Serve the shop until the process ends: SIGUSR1 makes it slow, SIGHUP its cart fail, SIGUSR2 it well."""
    random = np.random.default_rng(0)
    state = ""

    def become(now: str) -> None:
        nonlocal state
        state = now

    loop = asyncio.get_running_loop()
    for told, now in ((signal.SIGUSR1, "slow"), (signal.SIGHUP, "failing"), (signal.SIGUSR2, "")):
        loop.add_signal_handler(told, become, now)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            method, path, _ = head.split("\r\n")[0].split(" ")
            await asyncio.sleep(float(random.exponential(0.01)) + SLOW * (state == "slow"))
            status, size = _answer(method, path, random)
            if state == "failing" and path.startswith("/cart") and random.random() < FAILING:
                status, size = 404, 180  # a status that other pages have
            writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size)
            await writer.drain()

    server = await asyncio.start_server(serve, HOST, port)
    await server.serve_forever()


def _answer(method: str, path: str, random: np.random.Generator) -> tuple[int, int]:
    """Status and size in bytes."""
    part = path.split("?")[0].strip("/").split("/")[0]
    size = int(_SIZES.get(part, 1_500) * random.uniform(0.5, 1.5))
    if method not in ("GET", "POST", "HEAD"):
        return 405, 150
    if part == "login":
        return (302, 0) if method == "GET" or path.endswith("good") else (401, 90)
    if part not in ("", "static", "items", "users", "search", "cart", "login", "favicon.ico", "health"):
        return 404, 180
    if part == "static" and random.random() < 0.3:
        return 304, 0
    return (404, 180) if part == "items" and random.random() < 0.01 else (200, size)


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return ""


# Clients


class Client:
    """A client that keeps a connection to nginx open.

    Args:
        port: port of nginx.
        address, agent: address and agent that it sends.
    """

    def __init__(self, port: int, address: str, agent: str) -> None:
        self._port, self._address, self._agent = port, address, agent
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, method: str = "GET") -> None:
        """One request, and its whole answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port)
        reader, writer = self._streams
        length = "Content-Length: 0\r\n" if method != "GET" else ""
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: shop\r\nX-Forwarded-For: {self._address}\r\n"
            f"User-Agent: {self._agent}\r\n{length}\r\n".encode()
        )
        head = await _head(reader)
        if not head:
            return self.close()
        sizes = [
            line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")
        ]
        if sizes and method != "HEAD" and " 304 " not in head.split("\r\n")[0]:
            await reader.readexactly(int(sizes[0]))
        if "connection: close" in head.lower():
            self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def visitor(site: Site, number: int, until: float, think: float) -> None:
    """Visits one after the other until a time of the loop, with pauses of `think` seconds on average."""
    random = np.random.default_rng((7, number))
    while time.monotonic() < until:
        await site.asking.wait()
        address = f"10.{random.integers(256)}.{random.integers(256)}.{1 + random.integers(254)}"
        client = Client(site.port, address, AGENTS[int(random.integers(len(AGENTS)))])
        try:
            for path in _visit(random):
                await site.asking.wait()
                method = "POST" if path.startswith(("/cart", "/login/")) else "GET"
                await client.ask(path, method)
                await asyncio.sleep(float(random.exponential(think)))
                if time.monotonic() >= until:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            await asyncio.sleep(think)
        finally:
            client.close()


async def probe(site: Site, until: float) -> None:
    """Asks whether the shop is well."""
    client = Client(site.port, "10.0.0.1", "probe/1.0")
    while time.monotonic() < until:
        await asyncio.sleep(0.05)
        await site.asking.wait()
        await site.probing.wait()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await client.ask("/health")
    client.close()


def _visit(random: np.random.Generator) -> list[str]:
    user = int(random.integers(100, 9_000))
    paths = ["/", "/static/site.css", "/static/site.js", "/static/logo.png"]
    if random.random() < 0.2:
        paths.append("/favicon.ico")
    for _ in range(int(random.geometric(0.3))):
        if random.random() < 0.3:
            paths.append(f"/search?q=word{random.integers(2000)}")
        paths += [f"/items?page={1 + random.integers(40)}", f"/items/{random.integers(1, 5000)}"]
    if random.random() < 0.4:
        paths.append("/login")
        paths += ["/login/bad"] if random.random() < 0.1 else []
        paths += ["/login/good", f"/users/{user}"]
        if random.random() < 0.5:
            paths += [f"/cart/{user}", "/cart"]
    return paths


# Faults


@dataclass
class Site:
    """nginx and the backend while they run.

    Args:
        out: where logs are written.
        port, backend_port: their ports on the loopback interface.
    """

    out: Path
    port: int
    backend_port: int

    def __post_init__(self) -> None:
        self.nginx: subprocess.Popen[bytes] | None = None
        self.backend: subprocess.Popen[bytes] | None = None
        self.asking, self.probing = asyncio.Event(), asyncio.Event()  # whether anybody does, and the probe
        self.asking.set()
        self.probing.set()

    def start(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        configuration = self.out / "nginx.conf"
        configuration.write_text(
            CONFIGURATION.format(out=self.out.resolve(), port=self.port, backend=self.backend_port)
        )
        self.start_backend()
        self.nginx = subprocess.Popen(
            [nginx(), "-c", str(configuration.resolve())], stderr=subprocess.DEVNULL
        )
        time.sleep(1.0)

    def start_backend(self) -> None:
        self.backend = subprocess.Popen([sys.executable, __file__, str(self.backend_port)])
        time.sleep(0.5)

    def stop_backend(self) -> None:
        if self.backend is not None:
            self.backend.kill()
            self.backend.wait()

    def stop(self) -> None:
        if self.nginx is not None:
            self.nginx.terminate()
            self.nginx.wait()
        self.stop_backend()

    def tell(self, signal_: signal.Signals) -> None:
        assert self.backend is not None
        self.backend.send_signal(signal_)


def nginx() -> str:
    """The program, or "" where it is not installed."""
    return shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin") or ""


Fault = Callable[[Site, float], Awaitable[None]]

SCANNED = (
    "/.env",
    "/wp-login.php",
    "/phpmyadmin/",
    "/.git/config",
    "/admin.php",
    "/cgi-bin/test",
    "/backup.zip",
)


async def _down(site: Site, seconds: float) -> None:
    site.stop_backend()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(site.start_backend)


def _told(signal_: signal.Signals) -> Fault:
    """Send a signal that changes the state of the backend."""

    async def fault(site: Site, seconds: float) -> None:
        site.tell(signal_)
        await asyncio.sleep(seconds)
        site.tell(signal.SIGUSR2)

    return fault


def _stopped(name: str) -> Fault:
    """Stop all clients, or only the probe."""

    async def fault(site: Site, seconds: float) -> None:
        getattr(site, name).clear()
        await asyncio.sleep(seconds)
        getattr(site, name).set()

    return fault


def _attack(kind: str, asked: Sequence[tuple[str, str]], each: float) -> Fault:
    """Requests of one client, each a number of seconds after the answer to the one before."""

    async def fault(site: Site, seconds: float) -> None:
        client, until = Client(site.port, ATTACKERS[kind], AGENTS[0]), time.monotonic() + seconds
        for method, path in cycle(asked):
            await client.ask(path, method)
            await asyncio.sleep(each)
            if time.monotonic() >= until:
                return client.close()

    return fault


ATTACKERS = {
    "path scan": "203.0.113.1",
    "method never seen": "203.0.113.2",
    "brute force": "203.0.113.3",
    "scraping": "203.0.113.4",
}
FAULTS: Mapping[str, Fault] = {
    "backend down": _down,
    "path scan": _attack("path scan", [("GET", path) for path in SCANNED], 0.1),
    "method never seen": _attack("method never seen", [("PROPFIND", "/"), ("DELETE", "/items/7")], 0.8),
    "brute force": _attack("brute force", [("POST", "/login/bad")], 0.0),
    "scraping": _attack("scraping", [("GET", f"/items/{number}") for number in range(1, 5000)], 0.0),
    "slow responses": _told(signal.SIGUSR1),
    "failing cart": _told(signal.SIGHUP),
    "probe gone": _stopped("probing"),
    "silence": _stopped("asking"),
}


# The two hours


async def _traffic(
    site: Site,
    seconds: float,
    clients: int,
    think: float,
    seed: int,
    rest: Coroutine[Any, Any, None] | None = None,
) -> None:
    until = time.monotonic() + seconds
    work = [visitor(site, seed * 1000 + number, until, think) for number in range(clients)]
    await asyncio.gather(*work, probe(site, until), *(() if rest is None else (rest,)))


async def _faults(site: Site, quiet: float, seconds: float, told: list[dict[str, Any]]) -> None:
    for kind, fault in FAULTS.items():
        await asyncio.sleep(quiet)
        begin = time.time()
        await fault(site, seconds)
        told.append({"kind": kind, "begin": begin, "end": time.time()})


def record(out: Path, *, normal: float, quiet: float, seconds: float, clients: int, think: float) -> None:
    """Write a normal and a faulty stretch of traffic: `combined.log` and `json.log` in a folder for each.

    Args:
        out: a folder.
        normal: length of the normal stretch in seconds.
        quiet: seconds of normal traffic before each fault; before the first fault, five times as many.
        seconds: length of a fault.
        clients: number of clients at a time.
        think: mean number of seconds between two requests of a client.
    """
    for name in ("normal", "faulty"):
        site, told = Site(out / name, 18_080, 18_081), list[dict[str, Any]]()
        shutil.rmtree(out / name, ignore_errors=True)
        site.start()
        try:
            if name == "normal":
                asyncio.run(_traffic(site, normal, clients, think, 1))
            else:
                whole = 5 * quiet + len(FAULTS) * (quiet + seconds) + quiet
                asyncio.run(_traffic(site, whole, clients, think, 2, _delayed(site, quiet, seconds, told)))
        finally:
            site.stop()
    (out / "faults.json").write_text(json.dumps(told, indent=1))


async def _delayed(site: Site, quiet: float, seconds: float, told: list[dict[str, Any]]) -> None:
    await asyncio.sleep(4 * quiet)
    await _faults(site, quiet, seconds, told)


def kinds(out: Path) -> list[str]:
    """For each line of the faulty stretch, the fault it shows, or "" for a normal line."""
    when = {one["kind"]: (one["begin"], one["end"]) for one in json.loads((out / "faults.json").read_text())}
    found = list[str]()
    for line in (out / "faulty" / "json.log").read_text().splitlines():
        row = json.loads(line)
        at = datetime.fromisoformat(row["time"]).timestamp()  # of the second
        near = {kind for kind, (begin, end) in when.items() if begin - 1 <= at <= end + 1}
        inside = {kind for kind, (begin, end) in when.items() if begin + 0.5 <= at <= end - 1}
        kind = next((kind for kind, address in ATTACKERS.items() if row["remote_addr"] == address), "")
        if "backend down" in near and row["status"] >= 500:
            kind = "backend down"
        if "slow responses" in near and row["request_time"] >= SLOW:
            kind = "slow responses"
        if "failing cart" in near and row["uri"].startswith("/cart") and row["status"] == 404:
            kind = "failing cart"
        if "probe gone" in inside:
            kind = "probe gone"
        if at > sum(when["silence"]) / 2 and "silence" not in found:  # the first line behind it
            kind = "silence"
        found.append(kind)
    return found


if __name__ == "__main__":
    asyncio.run(backend(int(sys.argv[1])))
