"""Which streams go on: with other models, with requests of earlier versions; which are refused, and why."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqmlm.errors import StateError
from seqmlm.streams.cursor import DEFAULTS
from seqmlm.watch.config import WatchConfig
from seqmlm.watch.request import JUDGES, continued, judged_by, stream_request

OUT = Path("rows.jsonl")


def request(
    reference: str = "app:1", digest: str = "1", *, sensitive: bool = False, **settings: Any
) -> dict[str, Any]:
    """A request of a model, as the database has it."""
    digests = {f"/models/{reference}/model.safetensors": digest}
    model: Any = SimpleNamespace(reference=reference, digests=digests, sensitive=sensitive)
    config = WatchConfig(model="app", paths=("*.log",), out=OUT, **settings)
    return json.loads(json.dumps(stream_request(config, ["/logs/*.log"], model), default=str))  # type: ignore[no-any-return]


def earlier(**changed: Any) -> dict[str, Any]:
    """A request as the version before stored it, with the values that it chose."""
    now = request(fpr=0.01)
    chosen = {"mode": "one-pass", "level": "session", "precision": "fp32"}
    stored = {name: value for name, value in now.items() if name not in (JUDGES, "sensitive")}
    model = {"model file": {"/models/app:1/model.safetensors": "1"}, "counts": "none", "source": None}
    defaults = now[DEFAULTS] | chosen | {"source": None, "calibration": "fixed"}
    return {**stored, **chosen, **model, DEFAULTS: defaults, **changed}


def test_the_same_model_goes_on_without_a_word() -> None:
    assert continued(request(), request(), OUT).notes == []
    assert continued(earlier(), request(fpr=0.01), OUT).notes == []


def test_another_version_and_another_calibration_are_told_and_kept() -> None:
    newer = continued(request(), request("app:2", "2"), OUT)
    assert newer.notes == ["app:2 scores the rows from here on, app:1 scored the earlier rows"]
    assert newer.recalibrated
    assert list(newer.request[JUDGES]) == ["app:1", "app:2"]
    changed = continued(newer.request, request("app:2", "3"), OUT)
    assert changed.notes == ["app:2 has changed, and scores later rows in its new state"]
    back = continued(changed.request, request("app:1", "1"), OUT)
    assert back.notes == ["app:1 scores the rows from here on, app:2 scored the earlier rows"]
    assert list(back.request[JUDGES]) == ["app:2", "app:1"]


def test_a_stream_knows_its_models() -> None:
    stored = continued(request(), request("web:2", "2"), OUT).request
    for names in ({"app"}, {"app:1"}, {"web"}, {"web:2", "web"}):
        assert judged_by(stored, names, ())
    assert not judged_by(stored, {"app:2"}, ())
    assert judged_by(stored, (), {"/models/app:1"})
    assert judged_by({"model": "app@live"}, {"app"}, ())
    assert not judged_by({"files": []}, {"app"}, ())


def test_settings_that_an_earlier_version_chose_are_chosen_anew() -> None:
    assert continued(earlier(mode="exact", level="line"), request(fpr=0.01, mode="exact", level="line"), OUT)
    with pytest.raises(StateError, match="mode was exact and is not given"):
        continued(earlier(mode="exact"), request(fpr=0.01), OUT)


def test_removed_settings_are_dropped_with_a_message_or_refused_with_a_remedy() -> None:
    rolling = continued(earlier(calibration="rolling"), request(fpr=0.01), OUT)
    assert rolling.notes == ["the model's calibration replaces the rolling calibration of this stream"]
    alias = earlier(model="app@live")
    del alias["model file"]
    assert continued(alias, request("app:2", fpr=0.01), OUT).notes == [
        "app:2 scores the rows from here on, app@live scored the earlier rows"
    ]
    with pytest.raises(StateError, match=r"its rows came from the systemd journal .*another --out"):
        continued(earlier(source="journald -u a", files=["/x"]), request(fpr=0.01), OUT)


@pytest.mark.parametrize(
    ("later", "sentence"),
    [
        (request(fpr=0.1), "fpr was 0.01 and is 0.1; give the earlier settings"),
        (request(), "fpr was 0.01 and is not given"),
        (request(fpr=0.01, level="line"), "level was not given and is line"),
        (request(fpr=0.01, options={"window": 8}), "options window is new"),
        (request(fpr=0.01, sensitive=True), "one is for sensitive data, the other is not"),
    ],
)
def test_other_settings_are_refused(later: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StateError, match=sentence):
        continued(request(fpr=0.01), later, OUT)
