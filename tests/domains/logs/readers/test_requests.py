"""Requests of access logs: what makes two of one kind, in every form they are written in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.logs.readers import READERS
from seqmlm.domains.logs.readers.requests import of_line, request, shape
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.log_values import LogValues

HEAD = "10.0.0.1 - ann [10/Oct/2000:13:55:36 +0000] "


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("/", "/"),
        ("", "/"),
        ("/users/4711", "/users/*"),
        ("/users/4711/orders?page=2#top", "/users/*/orders"),
        ("/items/3f2504e0-4f89-11d3-9a0c-0305e82c3301", "/items/*"),
        ("/static/app.9f86d081884c7d65.js;v=1", "/static/*.js"),
        ("/static/site.css", "/static/site.css"),
        ("/blog/a/some-words.html", "/blog/a/*.html"),
        ("/a/b/c/d/logo.png", "/a/b/*.png"),
        ("/a/b/c/d/", "/a/b/*"),
        ("http://shop.example:8080/cart", "/cart"),
        ("/2015/05/17/a-post", "/*/*/*"),
        ("*", "/*"),
        ("/%2e%2e/etc", "/%2e%2e/etc"),
    ],
)
def test_shape(target: str, wanted: str) -> None:
    assert shape(target) == wanted


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ('"GET /items/7?q=1 HTTP/1.1" 200 123', "GET:/items/*:200OK"),
        ('"POST /login HTTP/2.0" 401 -', "POST:/login:401Unauthorized"),
        ('"GET / HTTP/1.1" 499 0', "GET:/:499Unknown"),
        (r'"\x16\x03\x01" 400 150', "malformed:/:400BadRequest"),
        ('"" 408 0', "malformed:/:408RequestTimeout"),
        ("something else", "something else"),
    ],
)
def test_a_line_becomes_a_word(message: str, wanted: str) -> None:
    assert of_line(message) == wanted
    assert len(LogValues().words(wanted)) == len(wanted.split())


@pytest.mark.parametrize("status", [200, 301, 404, 502, 599])
@pytest.mark.parametrize("method", ["GET", "PROPFIND"])
def test_templates_do_not_replace_what_makes_a_kind(method: str, status: int) -> None:
    word = request(method, "/users/12/cart", status, 0.5)
    assert LogValues().words(word) == (word,)


def read(tmp_path: Path, lines: list[str], **options: Any) -> list[str]:
    path = tmp_path / "access.log"
    path.write_text("\n".join(lines) + "\n")
    return [line for record in READERS["auto"](path, Problems(), **options) for line in record.raw.lines]


def test_all_forms_of_a_log_say_the_same(tmp_path: Path) -> None:
    asked = [("GET", "/items/7", 200), ("POST", "/cart", 502), ("GET", "/", 304)] * 3
    common = [f'{HEAD}"{m} {t} HTTP/1.1" {s} 12' for m, t, s in asked]
    combined = [f'{line} "http://shop/" "Mozilla/5.0"' for line in common]
    fields = [{"time": "2000-10-10T13:55:36Z", "method": m, "uri": t, "status": s} for m, t, s in asked]
    whole = [{"request": f"{m} {t} HTTP/1.1", "status": str(s)} for m, t, s in asked]
    wanted = [request(*one) for one in asked]
    assert read(tmp_path, common) == wanted
    assert read(tmp_path, combined) == wanted
    assert read(tmp_path, [json.dumps(row) for row in fields]) == wanted
    assert read(tmp_path, [json.dumps(row) for row in whole]) == wanted
    assert read(tmp_path, combined, fields="none")[1] == '"POST /cart HTTP/1.1" 502 12'
    said = [json.dumps({**row, "msg": "done", "request_time": 0.25}) for row in fields]
    assert read(tmp_path, said)[1] == "POST:/cart:502BadGateway:under1s done"
    assert read(tmp_path, said, fields="none")[1] == "done"
    assert read(tmp_path, said, message_field="msg")[1] == "done"
    with pytest.raises(UsageError, match="fields is auto or none"):
        read(tmp_path, common, fields="some")


@pytest.mark.parametrize(
    "row", [{"method": 3}, {"status": "x"}, {"status": True}, {"status": 1e400}, {"uri": None}, {"status": 7}]
)
def test_an_object_that_is_no_request_needs_a_message(tmp_path: Path, row: dict[str, Any]) -> None:
    good = {"method": "GET", "uri": "/", "status": 200}
    with pytest.raises(DataError, match="no message in the field"):
        read(tmp_path, [json.dumps(good), json.dumps({**good, **row})])
    assert read(tmp_path, [json.dumps(good), json.dumps({**good, **row, "message": "m"})]) == [
        "GET:/:200OK",
        "m",
    ]
