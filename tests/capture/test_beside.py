"""Work that is done beside a backward pass, where there is a GPU to be told of it; here its thread alone."""

from __future__ import annotations

import threading

import pytest
import torch

from whyformer.capture import beside as module
from whyformer.capture.beside import beside

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a GPU: its streams are all that is asked for."""
    import contextlib

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


def test_work_is_done_in_another_thread_by_the_end() -> None:
    threads: list[int] = []
    with beside([lambda: threads.append(threading.get_ident())], GPU):
        pass
    with beside([lambda: threads.append(threading.get_ident())], GPU):
        threading.Event().wait(0.05)
    assert threads and threading.get_ident() not in threads


def test_what_it_raises_is_raised() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), beside([fails], GPU):
        threading.Event().wait(0.05)


def test_what_the_pass_raises_goes_first_and_the_work_has_ended() -> None:
    ended = threading.Event()
    began = threading.Event()

    def work() -> None:
        began.set()
        threading.Event().wait(0.05)
        ended.set()

    with pytest.raises(KeyError), beside([work], GPU):
        began.wait(5)
        raise KeyError
    assert ended.is_set()


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_elsewhere_nothing_is_done(device: str) -> None:
    with beside([pytest.fail], torch.device(device)):
        pass


def test_not_under_autocast_whose_setting_is_of_one_thread() -> None:
    with torch.autocast("cuda", enabled=False):
        done: list[int] = []
        with beside([lambda: done.append(1)], GPU):
            threading.Event().wait(0.05)
        assert done


def test_a_forked_process_starts_its_own_thread() -> None:
    module._WORKER.started()
    module._WORKER.forget()
    done: list[int] = []
    with beside([lambda: done.append(1)], GPU):
        threading.Event().wait(0.05)
    assert done
