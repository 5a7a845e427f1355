"""Runs FP32 training steps of a built-in model's twin in PyTorch, one for every line on stdin.

Arguments: model, batch, threads, classes, memory format (contiguous or channels_last), emulator: "none", or
"qpytorch" or "qpytorch-O3", which round what every module without others inside returns, and the gradient
that comes back to it, to FP16 with QPyTorch, compiled as shipped or with -O3. Answers each line
with the seconds of its step; the line "memory" with the peak of the resident set since the first step
began, in bytes above what was resident then. The batch is fixed and drawn before; a step is zero_grad,
forward, backward and SGD with momentum, fused, which is PyTorch's fastest form. Weights are PyTorch's own.
"""

import functools
import os
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "integration", "compare"))
import torch_models as twins


class Lstm(twins.Lstm):
    """With nn.LSTM's own loop over the layers, which is faster than the twin's."""

    def __init__(self, classes):
        super().__init__(classes=classes)
        self.rnn.dropout = 0.1

    def forward(self, batch, masks):
        x = masks(self.rnn(self.embed(batch["tokens"]))[0])
        return torch.nn.functional.cross_entropy(self.head(x.flatten(0, 1)), batch["labels"])


MODELS = {
    "mlp": (lambda classes: twins.Mlp(512, 512, classes), (1, 28, 28), 0),
    "resnet20": (lambda classes: twins.Resnet20(classes=classes), (3, 32, 32), 0),
    "gpt": (lambda classes: twins.Gpt(classes=classes), None, 128),
    "bert": (lambda classes: twins.Bert(classes=classes), None, 64),
    "lstm": (lambda classes: Lstm(classes), None, 64),
    "unet": (lambda classes: twins.Unet(classes=classes), (3, 32, 32), 0),
}
FP16_EXPONENT_BITS, FP16_FRACTION_BITS = 5, 10
IDLE_SECONDS = 5e-3  # until OpenMP's threads stop spinning, which would slow down the other program


def status_bytes(name):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def round_at_layer_borders(model, emulator):
    """Hooks QPyTorch's rounding to nearest after every module that has no others inside."""
    from torch.utils import cpp_extension

    if emulator == "qpytorch-O3":
        # A folder of its own: extensions are cached by name, whatever their flags.
        folder = os.path.join(cpp_extension.get_default_build_root(), "qpytorch-O3")
        os.makedirs(folder, exist_ok=True)
        cpp_extension.load = functools.partial(cpp_extension.load, extra_cflags=["-O3"], build_directory=folder)
    import qtorch
    import qtorch.quant

    number = qtorch.FloatingPoint(exp=FP16_EXPONENT_BITS, man=FP16_FRACTION_BITS)
    rounded = qtorch.quant.quantizer(
        forward_number=number, backward_number=number, forward_rounding="nearest", backward_rounding="nearest"
    )

    def hook(module, inputs, output):
        return (rounded(output[0]), *output[1:]) if isinstance(output, tuple) else rounded(output)

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(hook)


def main() -> None:
    name, batch, threads, classes, memory_format = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    emulator = sys.argv[6]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    make, image, context = MODELS[name]
    model = make(classes)
    if emulator != "none":
        round_at_layer_borders(model, emulator)
    if image:
        of_pixels = image[1:] if name == "unet" else ()
        data = {"images": torch.randn(batch, *image), "labels": torch.randint(0, classes, (batch, *of_pixels))}
    else:
        data = {
            "tokens": torch.randint(0, classes, (batch, context)),
            "labels": torch.randint(0, classes, (batch * context,)),
        }
    if memory_format == "channels_last":
        model = model.to(memory_format=torch.channels_last)
        data["images"] = data["images"].to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def masks(x):
        return torch.nn.functional.dropout(x, 0.1)

    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = status_bytes("VmRSS")
    for line in sys.stdin:
        if line.strip() == "memory":
            print(status_bytes("VmHWM") - before, flush=True)
            continue
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(data, masks).backward()
        optimizer.step()
        seconds = time.perf_counter() - begin
        time.sleep(IDLE_SECONDS)
        print(seconds, flush=True)


main()
