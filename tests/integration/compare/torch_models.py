"""The built-in models in torch.nn, with the parameter names and the forward order of the C++ ones.

Every model is called as model(batch, masks), where `masks` applies the dropout masks in the order in
which Lockstep's graph has its dropout nodes, and returns the loss. masks.drawn: those that Lockstep's
lstm drew between its layers.
"""

import math

import torch

nn = torch.nn
F = nn.functional


class Masks:
    """Dropout with masks from outside, as F.dropout rounds it on the CPU: x * (mask / (1 - p))."""

    def __init__(self, p, masks, drawn=None):
        self.p, self.left, self.drawn = p, list(masks), drawn

    def __call__(self, x):
        return x if self.p == 0 else self.apply(x, self.left.pop(0))

    def apply(self, x, mask):
        assert mask.shape == x.shape
        return x * (mask.to(x.dtype) / (1 - self.p))


class Mlp(nn.Module):
    def __init__(self, hidden1=128, hidden2=64, classes=10):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(784, hidden1), nn.Linear(hidden1, hidden2)
        self.fc3 = nn.Linear(hidden2, classes)

    def forward(self, batch, masks):
        x = torch.relu(self.fc1(batch["images"].flatten(1)))
        return F.cross_entropy(self.fc3(torch.relu(self.fc2(x))), batch["labels"])


class Lenet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 6, 5, padding=2), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, batch, masks):
        x = F.max_pool2d(torch.relu(self.bn1(self.conv1(batch["images"]))), 2)
        x = F.max_pool2d(torch.relu(self.bn2(self.conv2(x))), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return F.cross_entropy(self.fc3(torch.relu(self.fc2(x))), batch["labels"])


class BasicBlock(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride != 1:
            extra = y.shape[1] - x.shape[1]
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, extra // 2, extra - extra // 2))
        return torch.relu(y + x)


class Resnet20(nn.Module):
    def __init__(self, width=16, classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        inputs = width
        for stage in range(3):
            blocks = []
            for i in range(3):
                blocks.append(BasicBlock(inputs, width << stage, 2 if stage > 0 and i == 0 else 1))
                inputs = width << stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, batch, masks):
        x = torch.relu(self.bn1(self.conv1(batch["images"])))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return F.cross_entropy(x, batch["labels"])


class TwoConvolutions(nn.Module):
    def __init__(self, inputs, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(x)))


class Up(TwoConvolutions):
    def __init__(self, inputs, channels):
        super().__init__(2 * channels, channels)
        self.up = nn.ConvTranspose2d(inputs, channels, 2, 2)

    def forward(self, x, skip):
        return super().forward(torch.cat([skip, self.up(x)], 1))


class Unet(nn.Module):
    def __init__(self, width=16, classes=6):
        super().__init__()
        self.down1, self.down2 = TwoConvolutions(3, width), TwoConvolutions(width, 2 * width)
        self.bottom = TwoConvolutions(2 * width, 4 * width)
        self.up2, self.up1 = Up(4 * width, 2 * width), Up(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, batch, masks):
        wide = self.down1(batch["images"])
        half = self.down2(F.max_pool2d(wide, 2))
        x = self.bottom(F.max_pool2d(half, 2))
        x = self.up1(self.up2(x, half), wide)
        return F.cross_entropy(self.head(x), batch["labels"])


class Stage(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class Detector(nn.Module):
    def __init__(self, width=16, classes=6):
        super().__init__()
        self.classes = classes
        self.stage1, self.stage2 = Stage(3, width, 2), Stage(width, 2 * width, 2)
        self.stage3, self.stage4 = Stage(2 * width, 4 * width, 1), Stage(4 * width, 4 * width, 2)

        def head(outputs):
            return nn.Conv2d(4 * width, outputs, 3, 1, 1)

        self.head = nn.ModuleDict(
            {grid: nn.ModuleDict({"class": head(classes), "box": head(4)}) for grid in ("fine", "coarse")}
        )

    def forward(self, batch, masks):
        fine = self.stage3(self.stage2(self.stage1(batch["images"])))
        maps = {"fine": fine, "coarse": self.stage4(fine)}

        def gather(kind, numbers):
            parts = [self.head[grid][kind](x).permute(0, 2, 3, 1).flatten(1, 2) for grid, x in maps.items()]
            return torch.cat(parts, 1).reshape(-1, numbers)

        class_loss = F.cross_entropy(gather("class", self.classes), batch["labels"])
        return class_loss + F.smooth_l1_loss(gather("box", 4) * batch["box_mask"], batch["boxes"])


class Vae(nn.Module):
    def __init__(self, hidden=400, latent=20):
        super().__init__()
        self.encoder = nn.ModuleDict(
            {"fc": nn.Linear(784, hidden), "mean": nn.Linear(hidden, latent), "log_var": nn.Linear(hidden, latent)}
        )
        self.decoder = nn.ModuleDict({"fc": nn.Linear(latent, hidden), "out": nn.Linear(hidden, 784)})

    def forward(self, batch, masks):
        x = batch["images"].flatten(1)
        encoded = torch.relu(self.encoder["fc"](x))
        mean, log_var = self.encoder["mean"](encoded), self.encoder["log_var"](encoded)
        z = mean + torch.exp(0.5 * log_var) * batch["noise"]
        decoded = self.decoder["out"](torch.relu(self.decoder["fc"](z)))
        per_example = 0.5 / len(x)
        squares = F.mse_loss(decoded, x, reduction="sum") * per_example
        divergence = (mean * mean + torch.exp(log_var) - log_var - 1).sum() * per_example
        return squares + divergence


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, masks, hidden):
        b, t, c = x.shape
        q, k, v = (part.reshape(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(c, 2))
        scores = q @ k.transpose(2, 3) * (1 / math.sqrt(c // self.heads))
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        y = masks(torch.softmax(scores, -1)) @ v
        return masks(self.proj(y.transpose(1, 2).reshape(b, t, c)))


class FeedForward(nn.Module):
    def __init__(self, width, approximate):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximate = approximate

    def forward(self, x, masks):
        return masks(self.fc2(F.gelu(self.fc1(x), approximate=self.approximate)))


class Block(nn.Module):
    def __init__(self, width, heads, approximate, eps=1e-5):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attn, self.mlp = Attention(width, heads), FeedForward(width, approximate)

    def forward(self, x, masks, hidden=None):
        x = x + self.attn(self.ln1(x), masks, hidden)
        return x + self.mlp(self.ln2(x), masks)


class PostNormBlock(Block):
    def forward(self, x, masks, hidden=None):
        x = self.ln1(x + self.attn(x, masks, hidden))
        return self.ln2(x + self.mlp(x, masks))


class Vit(nn.Module):
    def __init__(self, layers=4, width=128, heads=4, patch=4, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (32 // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads, "none") for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, batch, masks):
        x = self.patches(batch["images"]).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        x = masks(x + self.position)
        for block in self.blocks:
            x = block(x, masks)
        return F.cross_entropy(self.head(self.ln(x)[:, 0]), batch["labels"])


class Gpt(nn.Module):
    def __init__(self, layers=4, width=256, heads=4, context=128, classes=65):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(classes, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads, "tanh") for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.hidden = torch.triu(torch.ones(context, context, dtype=torch.bool), 1)

    def forward(self, batch, masks):
        tokens = batch["tokens"]
        x = masks(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1])))
        for block in self.h:
            x = block(x, masks, self.hidden)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"])


class Bert(nn.Module):
    def __init__(self, layers=2, width=128, heads=4, context=64, classes=65):
        super().__init__()
        eps = 1e-12
        self.embeddings = nn.ModuleDict(
            {
                "token": nn.Embedding(classes, width),
                "position": nn.Embedding(context, width),
                "ln": nn.LayerNorm(width, eps),
            }
        )
        self.encoder = nn.ModuleList(PostNormBlock(width, heads, "none", eps) for _ in range(layers))
        self.head = nn.ModuleDict({"transform": nn.Linear(width, width), "ln": nn.LayerNorm(width, eps)})
        self.head.register_parameter("bias", nn.Parameter(torch.randn(classes)))

    def forward(self, batch, masks):
        tokens, e = batch["tokens"], self.embeddings
        x = e["token"](tokens) + e["position"](torch.arange(tokens.shape[1]))
        x = masks(e["ln"](x))
        for block in self.encoder:
            x = block(x, masks)
        x = self.head["ln"](F.gelu(self.head["transform"](x)))
        logits = F.linear(x, e["token"].weight, self.head.bias)
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"])


class Lstm(nn.Module):
    def __init__(self, layers=2, embedding=64, hidden=256, classes=65):
        super().__init__()
        self.embed = nn.Embedding(classes, embedding)
        self.rnn = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def layer(self, index, x):
        """nn.LSTM of that layer alone."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        own = {f"{name}_l0": getattr(self.rnn, f"{name}_l{index}") for name in names}
        with torch.device("meta"):
            single = nn.LSTM(x.shape[-1], self.rnn.hidden_size, batch_first=True)
        return torch.func.functional_call(single, own, (x,))[0]

    def forward(self, batch, masks):
        x = self.layer(0, self.embed(batch["tokens"]))
        for index in range(1, self.rnn.num_layers):
            if masks.drawn is not None:  # (layers - 1, T, N, H)
                x = masks.apply(x, masks.drawn[index - 1].transpose(0, 1))
            x = self.layer(index, x)
        x = masks(x)
        return F.cross_entropy(self.head(x.flatten(0, 1)), batch["labels"])
