"""A refusal inside a library names the user's line first, then the library's, and a switch of that library if one helps."""

import importlib
import sys

import pytest
import torch
from lockstep_capture import check
from lockstep_capture.ways_out import WAYS_OUT, way_out

nn = torch.nn

LIBRARY = """
import torch


class Odd(torch.nn.Module):
    def forward(self, x):
        return torch.erfinv(x.tanh())
"""


class Model(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.fc, self.part = nn.Linear(3, 3), part

    def forward(self, x):
        return self.part(self.fc(x)).mean()  # the user's


def line_of(text):
    return 1 + next(i for i, line in enumerate(open(__file__).read().splitlines()) if text in line)


def test_the_users_line_comes_first(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "oddities"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(package.parent))
    model = Model(importlib.import_module("oddities").Odd())
    text = str(check(model, lambda m, x: m(x), torch.ones(2, 3)))
    assert f"in part  (test_capture_ways_out.py:{line_of('# the user' + chr(39) + 's')}, in oddities __init__.py:7)" in text, text
    sys.modules.pop("oddities")


def test_rows_are_found_by_package_and_op():
    for row in WAYS_OUT:
        assert all(way_out(f"aten.{what}.default", row.package) == row.hint for what in row.what)
        assert way_out("aten.sin.default", row.package) == "" == way_out(f"aten.{row.what[0]}.default", "other")


def test_experts_of_transformers():
    """The way out that the message names is one."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(vocab_size=31, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_local_experts=4,
                                        num_attention_heads=2, num_key_value_heads=1)
    model, tokens = transformers.MixtralForCausalLM(config), torch.randint(1, 31, (2, 8))
    refused = check(model, lambda m, b: m(b, labels=b).loss, tokens)
    if not refused.ok:
        assert 'hint: model.set_experts_implementation("eager")' in str(refused) and f"{__name__}.py:" in str(refused), str(refused)
        model.set_experts_implementation("eager")
        assert check(model, lambda m, b: m(b, labels=b).loss, tokens).ok
