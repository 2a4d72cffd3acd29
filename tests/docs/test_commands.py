"""Commands of the docs that start other programs: they run as they stand on the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.proxy.upstream import Upstream, proxy
from tests.serve.served import running, served
from whyformer.proxy.chat import NOT_SET_UP
from whyformer.proxy.relay import application as relayed
from whyformer.serve.app import application

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
CURL = re.compile(r"^curl .*?(?<=')$", re.MULTILINE | re.DOTALL)
TRACED = re.compile(r"opentelemetry-instrument .*?--trace")


@pytest.mark.parametrize("text", [(GUIDE / "servers.md").read_text(encoding="utf-8"), NOT_SET_UP], ids=["page", "hint"])
def test_spans_are_written_by_the_documented_command(text: str) -> None:
    (command,) = TRACED.findall(text)
    words = command.replace("…", "--server http://127.0.0.1:9 --port 0").split()
    words[0] = str(Path(sys.executable).parent / words[0])
    environment = os.environ | {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    environment |= {"OTEL_LOGS_EXPORTER": "none", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as started:
        assert started.stdout is not None and started.stderr is not None
        assert "/v1 → http://127.0.0.1:9/v1" in (started.stdout.readline() or started.stderr.read())
        started.terminate()
        assert "discarded" not in started.stderr.read()


@contextmanager
def of_serve() -> Iterator[str]:
    whole = served("text")
    whole.models.by_name["sentiment"] = whole.models.by_name.pop("text")
    with running(application(whole)) as at:
        yield at


@contextmanager
def of_the_proxy() -> Iterator[str]:
    with running(relayed(proxy(Upstream(), local=False))) as at:
        yield at


@pytest.mark.parametrize(
    ("page", "server", "port", "field"),
    [("serve.md", of_serve, 8765, '"prediction"'), ("servers.md", of_the_proxy, 8766, '"whyformer"')],
)
def test_curl_of_a_page_is_answered(page: str, server: type, port: int, field: str) -> None:
    (command,) = CURL.findall((GUIDE / page).read_text(encoding="utf-8"))
    with server() as at:
        words = command.replace(f"localhost:{port}", at).replace("curl", "curl --silent --noproxy '*'", 1)
        told = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=300, check=True).stdout
    assert field in told
