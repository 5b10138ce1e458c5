"""The fence between Tender and the engine's step."""

from __future__ import annotations

import pytest

from tender_kv.vllm.guard import hook, nothing


class Side:
    def __init__(self):
        self.broken = None
        self.faults = []

    def on_fault(self, name):
        self.faults.append(name)

    @hook(lambda self, value: f"instead of {value}")
    def answer(self, value):
        if value == "bad":
            raise ValueError(value)
        return value

    @hook(nothing)
    def act(self):
        self.acted = True

    @hook(nothing)
    def interrupted(self):
        raise KeyboardInterrupt


def test_a_fault_is_answered_and_switches_every_hook_off():
    side = Side()
    assert side.answer("good") == "good"
    assert side.answer("bad") == "instead of bad"
    assert side.answer("good") == "instead of good"
    side.act()
    assert not hasattr(side, "acted")
    assert side.faults == ["answer"]


def test_an_interrupt_is_not_a_fault():
    side = Side()
    with pytest.raises(KeyboardInterrupt):
        side.interrupted()
    assert side.broken is None
