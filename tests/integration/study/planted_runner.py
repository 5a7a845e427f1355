"""Captures, replays and reads one case: what the raw datasets of its run file say, and what the report names.

`Raw` answers from counts and moments alone, without the report: the truth of a planted fault is checked with it.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np
import torch

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(SOURCE / "python")] * (str(SOURCE / "python") not in sys.path)
import lockstep_capture  # noqa: E402

CHEAP = ["--threads", "1", "--histogram-every", "1000000", "--checkpoint-every", "1000000", "--quiet"]


class Refused(Exception):
    """The program or the capture refused a case; it is drawn again, and counted."""


def binary():
    folder = os.environ.get("LOCKSTEP_BINARY_DIR", str(SOURCE / "build" / "ci"))
    return str(pathlib.Path(folder) / "lockstep")


def lockstep(folder, *args):
    """Runs the program in a folder, so that the names of files, and with them those of lanes, are short."""
    done = subprocess.run([binary(), *map(str, args)], capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise Refused(f"lockstep {args[0]}: exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def capture(path, drawn, loss_of, optimizer, amp=None, scaler=None):
    """An ordinary loop over the batches of `drawn`. Returns its losses."""
    losses, dtype = [], {None: None, "fp16": torch.float16, "bf16": torch.bfloat16}[amp]
    try:
        with lockstep_capture.Capture(
            str(path),
            drawn.model,
            optimizer,
            loss_of,
            steps=len(drawn.batches),
            verify=[],
            scaler=scaler,
            autocast=None if dtype is None else str(dtype)[6:],
        ) as cap:
            for batch in drawn.batches:
                with cap.step(batch):
                    region = contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)
                    with region:
                        loss = loss_of(drawn.model, batch)
                    (loss if scaler is None else scaler.scale(loss)).backward()
                    if scaler is None:
                        optimizer.step()
                    else:
                        scaler.step(optimizer)
                        scaler.update()
                    optimizer.zero_grad()
                losses.append(loss.item())
    except lockstep_capture.CaptureError as error:
        raise Refused(f"capture: {error}") from error
    return losses


class Raw:
    """The datasets of one lane of a run file, and the site table."""

    def __init__(self, path, lane):
        with h5py.File(path, "r") as file:
            text = lambda values: [v.decode() if isinstance(v, bytes) else v for v in values]
            self.steps = int(file.attrs["steps_complete"])
            sites = file["sites"]
            self.order = np.argsort(sites["order"][()], kind="stable")
            self.layer, self.op, self.role, self.point, self.node = (
                text(sites[k][()]) for k in ("layer", "op", "role", "point", "node")
            )
            self.exempt, self.scaled = sites["stat_exempt"][()], sites["scaled"][()]
            name = lane.replace("%", "%25").replace("/", "%2F")
            name = "%2E" if name == "." else name
            if name not in file["lanes"]:
                raise KeyError(f"no lane {lane}: {list(file['lanes'])}")
            self.data, self.ref = {}, {}
            for store, group in ((self.data, file["lanes"][name]), (self.ref, file["lanes"]["fp32"])):
                group.visititems(
                    lambda key, obj, store=store: (
                        store.__setitem__(key, obj[()])
                        if isinstance(obj, h5py.Dataset) and "histogram" not in key
                        else None
                    )
                )
            self.died_at = int(file["lanes"][name].attrs["died_at"])
            self.formats = text(file["lanes"][name]["site_formats"][()])

    def __getitem__(self, name):
        return self.data[name]

    def site(self, s):
        return f"{self.layer[s]} {self.op[s]} {self.role[s]} {self.point[s]} ({self.formats[s]})"

    def lived(self):
        return self.steps if self.died_at < 0 else self.died_at

    def reference_is_finite(self):
        bad = self.ref["counts/to_infinity"] + self.ref["counts/nan"]
        return not bad[: self.steps, self.exempt == 0].any() and np.isfinite(self.ref["loss"][: self.steps]).all()

    @staticmethod
    def _bad(data):
        return ((data["counts/to_infinity"] + data["counts/nan"]) > 0) | np.isinf(data["moments/abs_max"])

    def first_bad(self, step=None):
        """(step, site) of the first value in execution order that overflowed, is NaN or arrived as an infinity (from a
        sum that overflowed); None: there is none."""
        bad = self._bad(self.data) & ~self._bad(self.ref)
        for t in range(self.lived()) if step is None else [step]:
            for s in self.order:
                if bad[t, s]:
                    return t, int(s)
        return None

    def lost_energy(self):
        """[step, site]: share of the squared norm before the rounding that the rounding took away, or 0."""
        total, lost = self["moments/sum_sq"], self["moments/round_err_sq"]
        with np.errstate(all="ignore"):
            share = np.where(total > 0, lost / total, 0.0)
        return np.nan_to_num(share[: self.lived()])

    def matching(self, layer=None, **keys):
        """Numbers of the sites of a layer (a glob-free name or a set) with these op, role, point, in order."""
        wanted = {layer} if isinstance(layer, str) else layer
        return [
            int(s)
            for s in self.order
            if (wanted is None or self.layer[s] in wanted) and all(getattr(self, k)[s] == v for k, v in keys.items())
        ]


def report(run, lane):
    """The lane's object of the JSON report."""
    found = json.loads(lockstep(run.parent, "report", run.name, "--format", "json"))
    return next(row for row in found["lanes"] if row["name"] == lane)


def named(lane_report):
    """(kind, layer, short sentence) of the first finding; (None, None, '') without any."""
    if not lane_report["findings"]:
        return None, None, ""
    first = lane_report["findings"][0]
    return first["kind"], (first.get("site") or {}).get("layer"), first["sentence"]
