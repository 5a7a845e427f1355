"""What many networks of the zoo share: random batches and common losses."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def own_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Of models that compute it when they are given labels."""
    return model(**batch).loss


def labelled(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def squared(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return F.mse_loss(model(x), y)


def images(classes: int = 5, size: int = 32, channels: int = 3, count: int = 2) -> Any:
    return lambda: (normal(count, channels, size, size), ints(classes, count))


def next_tokens(vocabulary: int = 64, length: int = 6, count: int = 2) -> Any:
    def batch() -> dict[str, torch.Tensor]:
        tokens = ints(vocabulary, count, length)
        return {"input_ids": tokens, "labels": tokens}

    return batch
