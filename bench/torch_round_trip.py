"""Measures how long PyTorch takes to round a tensor to half precision and back.

Prints the median seconds of x.half().float(). Arguments: elements, threads.
"""

import statistics
import sys
import time

import torch

ROUNDS = 15


def main() -> None:
    count, threads = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    x = torch.randn(count, generator=torch.Generator().manual_seed(1))
    seconds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        x.half().float()
        seconds.append(time.perf_counter() - begin)
    print(statistics.median(seconds))


main()
