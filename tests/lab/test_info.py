"""`anyscore info` about the C++ core."""

from __future__ import annotations

import pytest
from command_line import call, plain

from anyscore.kernels import cpu


def test_info_names_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "problem", lambda: None)
    monkeypatch.setattr(cpu, "isa", lambda: "avx512")
    assert "the C++ core computes with the instruction set avx512" in plain(call("info").output)


def test_info_says_why_there_is_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "problem", lambda: "there is none [yet]: build it")
    result = call("info")
    assert result.exit_code == 0
    assert "there is none [yet]: build it" in plain(result.output)
    assert "instruction set" not in plain(result.output)
