"""Takes FP32 training steps of a built-in model's twin in PyTorch, one for every line on stdin.

Arguments: model, batch, threads. Answers each line with the seconds of its step; the line "memory" with
the peak resident set in bytes. The batch is fixed and drawn before; a step is zero_grad, forward,
backward and SGD with momentum, fused, as PyTorch is fastest. Weights are PyTorch's own.
"""

import os
import resource
import sys
import time

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # threads that spin for long would slow the other program

import torch  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "integration"))
import torch_models as twins  # noqa: E402

MODELS = {
    "mlp": (lambda: twins.Mlp(512, 512), (1, 28, 28), 0),
    "resnet20": (twins.Resnet20, (3, 32, 32), 0),
    "gpt": (twins.Gpt, None, 128),
}
CLASSES = {"mlp": 10, "resnet20": 10, "gpt": 65}


def main() -> None:
    name, batch, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    make, image, context = MODELS[name]
    model = make()
    classes = CLASSES[name]
    if image:
        data = {"images": torch.randn(batch, *image), "labels": torch.randint(0, classes, (batch,))}
    else:
        data = {"tokens": torch.randint(0, classes, (batch, context)),
                "labels": torch.randint(0, classes, (batch * context,))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def masks(x):
        return torch.nn.functional.dropout(x, 0.1)

    for line in sys.stdin:
        if line.strip() == "memory":
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)
            continue
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(data, masks).backward()
        optimizer.step()
        print(time.perf_counter() - begin, flush=True)


main()
