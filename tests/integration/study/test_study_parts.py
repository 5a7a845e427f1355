"""Study: the effect on the loss that parts predict, against the whole network's. Writes docs/study/parts.md when
LOCKSTEP_STUDY_DIR is set (`./dev study parts`). LOCKSTEP_STUDY_PARTS: how many networks, the families in turn; all
without it."""

import os
import pathlib
import time

import parts_composition as composition
import parts_networks
import parts_truth
import torch

STATES = {"untrained": 0, "trained": 120}  # steps of Adam
LEAST_CORRELATION = 0.9


def in_turn(networks):
    """The first of every family, then the second of every family, and so on."""
    families = {}
    for network in networks:
        families.setdefault(network.family, []).append(network)
    longest = max(map(len, families.values()))
    return [members[i] for i in range(longest) for members in families.values() if i < len(members)]


def test_parts_predict_the_whole(binary_dir, tmp_path):
    torch.set_num_threads(1)
    start = time.monotonic()
    networks = in_turn(parts_networks.networks())
    cells = []
    for number, network in enumerate(networks[: int(os.environ.get("LOCKSTEP_STUDY_PARTS", len(networks)))]):
        for steps in STATES.values():
            folder = tmp_path / f"{number}-{steps}"
            cells += parts_truth.measure(network, steps, folder, binary_dir / "lockstep")
    text = composition.page(cells, list(STATES), networks, time.monotonic() - start)
    print("\n" + text)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "parts.md").write_text(text, encoding="utf-8")
    counted = [cell for cell in cells if composition.is_counted(cell)]
    assert counted
    assert composition.median(map(composition.correlation, counted)) >= LEAST_CORRELATION
