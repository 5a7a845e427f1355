"""A refusal inside a library names the user's line first, then the library's."""

import importlib
import sys

import torch
from lockstep_capture import check

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
    assert (
        f"in part  (test_capture_lines.py:{line_of('# the user' + chr(39) + 's')}, in oddities __init__.py:7)" in text
    ), text
    sys.modules.pop("oddities")
