"""How far is a lane on the GPU from its software lane?

    python tests/gpu/compare_lanes.py RUN.h5...

For every pair of lanes POLICY@hopper and POLICY@cuda (or any chip and engine) of a run file: the losses, how many sites
have the same bits, and the first site whose bits differ, in the order in which the steps compute them. Needs h5py.
"""

import sys

import h5py
import numpy as np

ENGINES = ("cuda", "cuda-host")


def compare(path):
    with h5py.File(path) as file:
        lanes = file["lanes"]
        for name in lanes:
            policy, _, target = name.partition("@")
            if target not in ENGINES:
                continue
            software = next((other for other in lanes if other.startswith(f"{policy}@")
                             and other.partition("@")[2] not in ENGINES), None)
            if software is None:
                print(f"{path}: {name}: no lane {policy}@CHIP to compare with")
                continue
            ours, theirs = lanes[software], lanes[name]
            losses = np.stack([ours["loss"][:], theirs["loss"][:]])
            apart = np.abs(losses[0] - losses[1]) / np.abs(losses[0])
            counted = ours["counts/count"][0] > 0
            same = (ours["bits_hash"][:] == theirs["bits_hash"][:])[:, counted]  # (steps, sites)
            text = (f"{path}: {name} against {software}: {same.sum()} of {same.size} tensors of {same.shape[0]} steps "
                    "have the same bits")
            if not same.all():
                step = int(np.argwhere(~same)[0][0])
                others = np.flatnonzero(counted)[~same[step]]
                site = min(others, key=lambda index: file["sites/order"][int(index)])
                where = " ".join(file[f"sites/{key}"].asstr()[int(site)] for key in ("layer", "op", "role", "point"))
                text += f"; first others: step {step}, {where}"
            print(f"{text}; losses apart by at most {apart.max():.1e} of their size")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        compare(path)
