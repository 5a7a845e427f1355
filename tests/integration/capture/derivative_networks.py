"""Networks whose loss contains gradients, in the manner of public code: forces, penalties, equations, scores, inner steps.

NETWORKS[name]() gives model, loss_of(model, batch) and a batch. Names in HELD_BACK ran for the first time when the code that
differentiates was done.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

NETWORKS = {}
HELD_BACK = {
    "painn_energy_and_stress",
    "dragan_with_attention",
    "r1_group_norm",
    "heat_with_fourier_features",
    "poisson_in_two_dimensions",
    "sliced_score_matching_in_time",
    "lagrangian_network",
    "maml_classification",
    "flow_by_hutchinson",
    "convex_potential_flow",
    "critic_over_tokens",
    "langevin_conv",
    "sharpness_of_cross_entropy",
    "contractive_conv",
    "input_gradients_of_text",
    "hessian_vector_penalty",
}


def network(body):
    NETWORKS[body.__name__] = body
    return body


def rand(*shape, seed=3):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def seeded(make):
    torch.manual_seed(11)
    return make()


def mlp(*widths, act=nn.Tanh):
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Linear(i, o), act()]
    return nn.Sequential(*layers[:-1])


def grad(y, x, **more):
    return torch.autograd.grad(y, x, create_graph=True, **more)[0]


# Molecules
def edges(n):
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    return torch.tensor(pairs).t().contiguous()


class ShiftedSoftplus(nn.Module):
    def forward(self, x):
        return F.softplus(x) - math.log(2.0)


class SchNetLike(nn.Module):
    """Filters of distances, sums over neighbours, an energy per atom."""

    def __init__(self, width=16, rbf=8, layers=2):
        super().__init__()
        self.embed = nn.Embedding(10, width, padding_idx=0)
        self.register_buffer("centres", torch.linspace(0, 4, rbf))
        self.filters = nn.ModuleList(mlp(rbf, width, width, act=ShiftedSoftplus) for _ in range(layers))
        self.inner = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.outer = nn.ModuleList(mlp(width, width, width, act=ShiftedSoftplus) for _ in range(layers))
        self.readout = mlp(width, width, 1, act=ShiftedSoftplus)

    def forward(self, z, pos, index, molecule, count):
        i, j = index
        distance = (pos[j] - pos[i]).norm(dim=-1)
        basis = torch.exp(-2.0 * (distance.unsqueeze(-1) - self.centres) ** 2)
        cut = 0.5 * (torch.cos(distance * math.pi / 5.0) + 1.0)
        h = self.embed(z)
        for filters, inner, outer in zip(self.filters, self.inner, self.outer):
            w = filters(basis) * cut.unsqueeze(-1)
            message = inner(h)[j] * w
            h = h + outer(torch.zeros_like(h).index_add(0, i, message))
        return torch.zeros(count, 1).index_add(0, molecule, self.readout(h)).squeeze(-1)


@network
def schnet_forces():
    model = seeded(SchNetLike)

    def loss_of(model, batch):
        z, pos, index, molecule, energy, force = batch
        pos = pos.clone().requires_grad_(True)
        e = model(z, pos, index, molecule, 2)
        f = -grad(e.sum(), pos, retain_graph=True)
        return F.mse_loss(e, energy) + 10 * F.mse_loss(f, force)

    index = torch.cat([edges(4), edges(4) + 4], 1)
    batch = (
        torch.tensor([6, 1, 1, 8, 7, 1, 1, 1]),
        rand(8, 3),
        index,
        torch.tensor([0] * 4 + [1] * 4),
        rand(2),
        rand(8, 3, seed=4),
    )
    return model, loss_of, batch


class EquivariantLayer(nn.Module):
    """E(n)-equivariant messages with coordinates that move."""

    def __init__(self, width):
        super().__init__()
        self.edge = mlp(2 * width + 1, width, width, act=nn.SiLU)
        self.move = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))
        self.node = mlp(2 * width, width, width, act=nn.SiLU)
        self.gate = nn.Sequential(nn.Linear(width, 1), nn.Sigmoid())
        self.norm = nn.LayerNorm(width)

    def forward(self, h, x, index):
        i, j = index
        gap = x[i] - x[j]
        square = (gap**2).sum(-1, keepdim=True)
        m = self.edge(torch.cat([h[i], h[j], square], -1))
        m = m * self.gate(m)
        x = x + torch.zeros_like(x).index_add_(0, i, gap / (square.sqrt() + 1) * self.move(m)) / (len(x) - 1)
        total = torch.zeros_like(h).scatter_add(0, i.unsqueeze(-1).expand_as(m), m)
        return self.norm(h + self.node(torch.cat([h, total], -1))), x


@network
def equivariant_forces():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(5, 16)
            self.layers = nn.ModuleList(EquivariantLayer(16) for _ in range(2))
            self.out = nn.Linear(16, 1)

        def forward(self, h, x, index):
            h = self.embed(h)
            for layer in self.layers:
                h, x = layer(h, x, index)
            return self.out(h).sum()

    def loss_of(model, batch):
        h, x, force = batch
        x.requires_grad_()
        return (grad(-model(h, x, edges(5)), x) - force).abs().mean()

    return seeded(Net), loss_of, (F.one_hot(torch.tensor([0, 1, 2, 2, 4]), 5).float(), rand(5, 3), rand(5, 3, seed=5))


@network
def painn_energy_and_stress():
    """Scalars and vectors; forces and the virial by a strain."""

    class Net(nn.Module):
        def __init__(self, width=12):
            super().__init__()
            self.embed = nn.Embedding(10, width)
            self.phi = mlp(width, width, 3 * width, act=nn.SiLU)
            self.rbf = nn.Linear(6, 3 * width)
            self.u, self.v = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.mix = mlp(2 * width, width, 3 * width, act=nn.SiLU)
            self.out = mlp(width, width, 1, act=nn.SiLU)

        def forward(self, z, r, index):
            i, j = index
            d = torch.linalg.norm(r, dim=1, keepdim=True)
            n = torch.arange(1, 7) * math.pi / 5.0
            w = self.rbf(torch.sin(d * n) / d) * (0.5 * torch.cos(math.pi * d / 5.0) + 0.5)
            s = self.embed(z)
            v = torch.zeros(len(z), 3, s.shape[1])
            ds, dv, dr = (self.phi(s)[j] * w).split(s.shape[1], dim=-1)
            s = s.index_add(0, i, ds)
            v = v.index_add(0, i, v[j] * dv.unsqueeze(1) + (r / d).unsqueeze(-1) * dr.unsqueeze(1))
            uv, vv = self.u(v), self.v(v)
            a, b, c = self.mix(torch.cat([s, (vv**2).sum(1).add(1e-6).sqrt()], -1)).chunk(3, -1)
            s = s + a + b * (uv * vv).sum(1)
            v = v + c.unsqueeze(1) * uv
            return self.out(s + v.square().mean(1)).sum()

    def loss_of(model, batch):
        z, pos, energy, force = batch
        index = edges(5)
        strain = torch.zeros(3, 3, requires_grad=True)
        pos.requires_grad_(True)
        symmetric = 0.5 * (strain + strain.t())
        moved = pos + pos @ symmetric
        e = model(z, moved[index[1]] - moved[index[0]], index)
        f, virial = torch.autograd.grad([e], [pos, strain], create_graph=True)
        return (e - energy).square() + (f + force).square().mean() + 0.1 * virial.diagonal().sum().square()

    return seeded(Net), loss_of, (torch.tensor([6, 1, 8, 1, 7]), rand(5, 3), torch.tensor(0.3), rand(5, 3, seed=6))


# Discriminators
class ConvCritic(nn.Module):
    def __init__(self, norm=lambda c: nn.InstanceNorm2d(c, affine=True)):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 16, 4, 2, 1, bias=False),
            norm(16),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 1, 4),
        )

    def forward(self, x):
        return self.body(x).flatten(1)


@network
def wgan_gp():
    class Gan(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = nn.Sequential(
                nn.ConvTranspose2d(4, 8, 4, 1, 0),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.ConvTranspose2d(8, 3, 6, 4, 1),
                nn.Tanh(),
            )
            self.critic = ConvCritic()

    def loss_of(model, batch):
        real, z = batch
        fake = model.generator(z)[:, :, :16, :16].detach()
        alpha = torch.rand(real.size(0), 1, 1, 1)
        between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        score = model.critic(between)
        (slope,) = torch.autograd.grad(
            outputs=score,
            inputs=between,
            grad_outputs=torch.ones_like(score),
            create_graph=True,
            retain_graph=True,
            only_inputs=True,
        )
        slope = slope.view(slope.size(0), -1)
        penalty = 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
        return model.critic(fake).mean() - model.critic(real).mean() + penalty

    return seeded(Gan), loss_of, (rand(3, 3, 16, 16), rand(3, 4, 1, 1, seed=5))


@network
def r1_penalty():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 8, 1)
            self.block = nn.Conv2d(8, 8, 3, padding=1)
            self.skip = nn.Conv2d(8, 8, 1, bias=False)
            self.out = nn.Linear(8 * 4 * 4, 1)

        def forward(self, x):
            x = F.leaky_relu(self.first(x), 0.2)
            y = F.avg_pool2d(F.leaky_relu(self.block(x), 0.2) * math.sqrt(2), 2)
            x = (y + self.skip(F.avg_pool2d(x, 2))) / math.sqrt(2)
            group = x.view(2, -1, *x.shape[1:])
            spread = (group - group.mean(0)).square().mean(0).add(1e-8).sqrt().mean((1, 2, 3), keepdim=True)
            return self.out((x + spread.repeat(2, 1, 1, 1)).flatten(1))

    def loss_of(model, batch):
        real, fake = batch
        real = real.detach().requires_grad_(True)
        logits = model(real)
        r1 = grad(logits.sum(), real).square().sum([1, 2, 3])
        return F.softplus(-logits).mean() + F.softplus(model(fake)).mean() + (r1 * 5).mean()

    return seeded(Net), loss_of, (rand(4, 3, 8, 8), rand(4, 3, 8, 8, seed=4))


@network
def r1_group_norm():
    model = seeded(lambda: ConvCritic(lambda c: nn.GroupNorm(4, c)))

    def loss_of(model, batch):
        real, fake = batch
        real.requires_grad_()
        score = model(F.interpolate(real, scale_factor=2, mode="bilinear"))
        zero = ((grad(score.sum(), real).flatten(1)) ** 2).sum(1).mean()
        return F.relu(1 - score).mean() + F.relu(1 + model(fake)).mean() + 0.5 * zero

    return model, loss_of, (rand(2, 3, 8, 8), rand(2, 3, 16, 16, seed=4))


@network
def dragan_with_attention():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3, 2, 1)
            self.q, self.k, self.v = (nn.Conv2d(8, w, 1) for w in (4, 4, 8))
            self.gamma = nn.Parameter(torch.full((1,), 0.5))
            self.pool = nn.MaxPool2d(2)
            self.out = nn.Linear(8, 1)

        def forward(self, x):
            x = F.elu(self.stem(x))
            n, c, h, w = x.shape
            q, k, v = self.q(x).flatten(2), self.pool(self.k(x)).flatten(2), self.pool(self.v(x)).flatten(2)
            a = torch.bmm(q.transpose(1, 2), k).softmax(-1)
            x = x + self.gamma * torch.bmm(v, a.transpose(1, 2)).view(n, c, h, w)
            return self.out(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def loss_of(model, batch):
        real, fake = batch
        near = real + 0.5 * real.std() * torch.rand_like(real)
        near.requires_grad_()
        score = model(near)
        slope = grad(score, near, grad_outputs=torch.ones(score.size()))
        target = torch.ones(len(real), 1)
        adversarial = F.binary_cross_entropy_with_logits(model(real), target) + F.binary_cross_entropy_with_logits(
            model(fake), 1 - target
        )
        return adversarial + 10 * ((slope.flatten(1).norm(2, 1) - 1) ** 2).mean()

    return seeded(Net), loss_of, (rand(3, 1, 8, 8), rand(3, 1, 8, 8, seed=4))


# Equations
@network
def burgers():
    model = seeded(lambda: mlp(2, 16, 16, 16, 1))

    def loss_of(model, batch):
        x, t, x0, u0 = batch
        x.requires_grad_(True)
        t.requires_grad_(True)
        u = model(torch.cat([x, t], dim=1))
        ones = torch.ones_like(u)
        u_t = torch.autograd.grad(u, t, grad_outputs=ones, retain_graph=True, create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, grad_outputs=ones, retain_graph=True, create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, grad_outputs=torch.ones_like(u_x), retain_graph=True, create_graph=True)[0]
        f = u_t + u * u_x - (0.01 / math.pi) * u_xx
        start = model(torch.cat([x0, torch.zeros_like(x0)], 1))
        return F.mse_loss(start, u0) + F.mse_loss(f, torch.zeros_like(f))

    x0 = rand(8, 1, seed=8)
    return model, loss_of, (rand(12, 1), rand(12, 1, seed=4).abs(), x0, -torch.sin(math.pi * x0))


@network
def heat_with_fourier_features():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("B", rand(2, 8, seed=9))
            self.net = nn.Sequential(
                nn.Linear(16, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1)
            )
            self.conductivity = nn.Parameter(torch.tensor(0.1))

        def forward(self, x, t):
            z = torch.stack([x, t], -1) @ self.B
            return self.net(torch.cat([z.sin(), z.cos()], -1)).squeeze(-1)

    def loss_of(model, batch):
        x, t = (item.requires_grad_() for item in batch)
        u = model(x, t) * x * (1 - x)
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        u_xx = grad(u_x.sum(), x)
        return (u_t - model.conductivity.exp() * u_xx).pow(2).mean() + (
            model(x, torch.zeros_like(t)) - torch.sin(x)
        ).pow(2).mean()

    return seeded(Net), loss_of, (torch.rand(10), torch.rand(10))


@network
def poisson_in_two_dimensions():
    """The Laplacian row by row of the Hessian, weights by an adaptive factor."""
    model = seeded(lambda: mlp(2, 12, 12, 1, act=nn.Softplus))

    def loss_of(model, batch):
        xy = batch.requires_grad_(True)
        u = model(xy)
        du = grad(u, xy, grad_outputs=torch.ones_like(u))
        laplacian = 0
        for i in range(2):
            laplacian = laplacian + grad(du[:, i], xy, grad_outputs=torch.ones(len(xy)))[:, i]
        source = torch.sin(xy[:, 0]) * torch.cos(xy[:, 1])
        return (laplacian - source).abs().pow(1.5).mean() + u.square().mean()

    return model, loss_of, rand(9, 2)


# Scores
@network
def score_with_divergence():
    class Score(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Softplus(), nn.Conv2d(8, 1, 3, padding=1)
            )

        def forward(self, x, sigma):
            return self.net(x) / sigma.view(-1, 1, 1, 1)

    def loss_of(model, batch):
        x, sigma = batch
        x = x.requires_grad_()
        v = torch.randn_like(x).sign()
        s = model(x, sigma)
        divergence = (grad((s * v).sum(), x) * v).flatten(1).sum(1)
        return (divergence + 0.5 * s.flatten(1).square().sum(1)).mean()

    return seeded(Score), loss_of, (rand(3, 1, 6, 6), torch.tensor([0.5, 1.0, 2.0]))


@network
def sliced_score_matching_in_time():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Linear(8, 16)
            self.inp, self.mid, self.out = nn.Linear(3, 16), nn.Linear(16, 16), nn.Linear(16, 3)
            self.norm = nn.LayerNorm(16)

        def forward(self, x, t):
            f = t[:, None] * torch.exp(torch.arange(4) * -1.0)
            e = self.time(torch.cat([f.sin(), f.cos()], -1))
            return self.out(F.silu(self.norm(self.mid(F.silu(self.inp(x) + e)))))

    def loss_of(model, batch):
        x, t = batch
        x = x.detach().clone().requires_grad_(True)
        t = t.detach().clone().requires_grad_(True)
        v = torch.randn(x.shape)
        s = model(x, t)
        gv = torch.sum(s * v)
        dx, dt = torch.autograd.grad(gv, [x, t], create_graph=True)
        return (torch.sum(dx * v, -1) + 0.5 * (s * v).sum(-1) ** 2 + 0.1 * dt.pow(2)).mean()

    return seeded(Net), loss_of, (rand(7, 3), torch.rand(7))


# Mechanics
@network
def hamiltonian_network():
    model = seeded(lambda: mlp(4, 24, 24, 1))

    def loss_of(model, batch):
        z, dz = batch
        z = z.requires_grad_(True)
        h = model(z).sum()
        dh = grad(h, z)
        q, p = dh.chunk(2, dim=-1)
        return F.mse_loss(torch.cat([p, -q], -1), dz)

    return model, loss_of, (rand(6, 4), rand(6, 4, seed=4))


@network
def lagrangian_network():
    """Accelerations from a Hessian, solved for; two steps of an integrator."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mass = mlp(2, 8, 3)
            self.potential = mlp(2, 8, 1, act=nn.Softplus)

        def forward(self, q, v):
            a, b, c = self.mass(q).unbind(-1)
            m = torch.stack([torch.stack([a.exp(), b], -1), torch.stack([torch.zeros_like(b), c.exp()], -1)], -2)
            return 0.5 * (m @ v.unsqueeze(-1)).square().sum((-1, -2)) - self.potential(q).squeeze(-1)

    def acceleration(model, q, v):
        energy = model(q, v).sum()
        dq, dv = torch.autograd.grad(energy, (q, v), create_graph=True)
        rows = [torch.autograd.grad(dv[:, i].sum(), (q, v), create_graph=True) for i in range(2)]
        mixed, mass = (torch.stack([row[k] for row in rows], 1) for k in range(2))
        right = dq - (mixed @ v.unsqueeze(-1)).squeeze(-1)
        return torch.linalg.solve(mass + 1e-2 * torch.eye(2), right)

    def loss_of(model, batch):
        q, v, target = batch
        q, v = q.requires_grad_(), v.requires_grad_()
        a = acceleration(model, q, v)
        a = acceleration(model, q + 0.1 * v, v + 0.1 * a)
        return (a - target).abs().mean()

    return seeded(Net), loss_of, (rand(4, 2), rand(4, 2, seed=4), rand(4, 2, seed=5))


# Steps inside of the step
@network
def maml_regression():
    model = seeded(lambda: mlp(1, 16, 16, 1, act=nn.ReLU))

    def loss_of(model, batch):
        total = 0.0
        for xs, ys, xq, yq in zip(*batch):
            fast = dict(model.named_parameters())
            loss = F.mse_loss(torch.func.functional_call(model, fast, (xs,)), ys)
            grads = torch.autograd.grad(loss, fast.values(), create_graph=True)
            fast = {name: w - 0.1 * g for (name, w), g in zip(fast.items(), grads)}
            total = total + F.mse_loss(torch.func.functional_call(model, fast, (xq,)), yq)
        return total / len(batch[0])

    return model, loss_of, tuple(rand(2, 5, 1, seed=s) for s in range(4))


@network
def maml_classification():
    """Two inner steps with learned rates; convolutions, batch norm of the batch, cross entropy."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 6, 3, padding=1, bias=False),
                nn.BatchNorm2d(6, track_running_stats=False),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
            self.head = nn.Linear(6 * 16, 3)
            self.rate = nn.Parameter(torch.tensor(0.2))

        def forward(self, x):
            return self.head(self.features(x).flatten(1))

    def loss_of(model, batch):
        xs, ys, xq, yq = batch
        fast = {name: w for name, w in model.named_parameters() if name != "rate"}
        for _ in range(2):
            loss = F.cross_entropy(torch.func.functional_call(model, fast, xs), ys)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: w - model.rate * g for (name, w), g in zip(fast.items(), grads)}
        return F.cross_entropy(torch.func.functional_call(model, fast, xq), yq, label_smoothing=0.1)

    labels = torch.tensor([0, 1, 2, 0, 1])
    return seeded(Net), loss_of, (rand(5, 1, 8, 8), labels, rand(5, 1, 8, 8, seed=4), labels.flip(0))


@network
def reptile_like_learned_loss():
    """First order only: the inner gradients are detached."""
    model = seeded(lambda: mlp(3, 8, 2, act=nn.GELU))

    def loss_of(model, batch):
        x, y = batch
        fast = dict(model.named_parameters())
        loss = F.cross_entropy(torch.func.functional_call(model, fast, x), y)
        grads = torch.autograd.grad(loss, list(fast.values()))
        fast = {name: w - 0.5 * g for (name, w), g in zip(fast.items(), grads)}
        return F.cross_entropy(torch.func.functional_call(model, fast, -x), y)

    return model, loss_of, (rand(6, 3), torch.tensor([0, 1, 0, 1, 1, 0]))


# Flows
@network
def flow_with_exact_trace():
    model = seeded(lambda: mlp(3, 12, 12, 2))

    def loss_of(model, batch):
        z, log_density = batch.requires_grad_(True), torch.zeros(len(batch))
        for step in range(3):
            dz = model(torch.cat([z, torch.full_like(z[:, :1], step / 3)], 1))
            trace = 0.0
            for i in range(z.shape[1]):
                trace = trace + grad(dz[:, i].sum(), z)[:, i].contiguous()
            z, log_density = z + dz / 3, log_density - trace / 3
        prior = -0.5 * (z**2).sum(1) - math.log(2 * math.pi)
        return -(prior - log_density).mean()

    return model, loss_of, rand(6, 2)


@network
def flow_by_hutchinson():
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 4)])
            self.gates = nn.ModuleList([nn.Linear(1, 16), nn.Linear(1, 16), nn.Linear(1, 4)])

        def forward(self, t, x):
            for i, (layer, gate) in enumerate(zip(self.layers, self.gates)):
                x = layer(x) * torch.sigmoid(gate(t.reshape(1, 1)))
                x = F.softplus(x) if i < 2 else x
            return x

    def loss_of(model, batch):
        e = torch.randn_like(batch)
        x, total, kinetic = batch, torch.zeros(batch.shape[0], 1), 0.0
        with torch.set_grad_enabled(True):
            x.requires_grad_(True)
            for k in range(2):
                y = model(torch.tensor(k / 2), x)
                e_dzdx = torch.autograd.grad(y, x, e, create_graph=True)[0]
                total = total - (e_dzdx * e).view(len(x), -1).sum(1, keepdim=True) / 2
                kinetic = kinetic + e_dzdx.pow(2).mean() + y.pow(2).mean()
                x = x + y / 2
        return (0.5 * x.pow(2).sum(1, keepdim=True) - total).mean() + 0.01 * kinetic

    return seeded(Field), loss_of, rand(5, 4)


# Convex networks, critics, energies
class Convex(nn.Module):
    def __init__(self, inp=2, width=12):
        super().__init__()
        self.w0 = nn.Linear(inp, width)
        self.w1 = nn.Linear(inp, width)
        self.u1 = nn.Parameter(rand(width, width, seed=1) * 0.1)
        self.out = nn.Parameter(rand(1, width, seed=2) * 0.1)

    def forward(self, x):
        z = F.celu(self.w0(x)) ** 2
        z = F.softplus(self.w1(x) + F.linear(z, F.softplus(self.u1)))
        return F.linear(z, F.relu(self.out)).squeeze(-1) + 0.1 * x.square().sum(-1)


@network
def icnn_transport():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.g = Convex(), Convex()

    def loss_of(model, batch):
        source, target = batch
        y = target.requires_grad_()
        moved = grad(model.g(y).sum(), y)
        return (
            (model.f(moved) - (moved * y).sum(-1)).mean()
            - model.f(source).mean()
            + 0.1 * F.relu(-model.g.u1).square().sum()
        )

    return seeded(Pair), loss_of, (rand(7, 2), rand(7, 2, seed=4))


@network
def convex_potential_flow():
    """The gradient of a convex network is the map; the log-determinant of its Jacobian from all rows."""
    model = seeded(Convex)

    def loss_of(model, batch):
        x = batch.clone().requires_grad_()
        f = grad(model(x).sum(), x)
        rows = torch.stack([grad(f[:, i].sum(), x, retain_graph=True) for i in range(2)], 1)
        det = rows[:, 0, 0] * rows[:, 1, 1] - rows[:, 0, 1] * rows[:, 1, 0]
        return (0.5 * f.square().sum(1) - det.abs().clamp(min=1e-6).log()).mean()

    return model, loss_of, rand(6, 2)


@network
def critic_with_penalty():
    """A Q-function whose slope in the action is bounded, a target network, an actor."""

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = mlp(6, 16, 16, 1, act=nn.ReLU)
            self.target = mlp(6, 16, 16, 1, act=nn.ReLU).requires_grad_(False)
            self.actor = mlp(4, 16, 2, act=nn.ReLU)

    def loss_of(model, batch):
        s, a, r, s2 = batch
        with torch.no_grad():
            a2 = model.actor(s2).tanh()
            goal = r + 0.99 * model.target(torch.cat([s2, a2], 1)).squeeze(1)
        td = F.smooth_l1_loss(model.q(torch.cat([s, a], 1)).squeeze(1), goal)
        policy = model.actor(s).tanh()
        free = policy.detach().requires_grad_(True)
        slope = grad(model.q(torch.cat([s, free], 1)).sum(), free)
        penalty = F.relu(slope.norm(dim=-1) - 0.05).square().mean()
        return td + penalty - 0.1 * model.q(torch.cat([s, policy], 1)).mean()

    return seeded(Agent), loss_of, (rand(5, 4), rand(5, 2, seed=4), rand(5, seed=5), rand(5, 4, seed=6))


@network
def critic_over_tokens():
    """Adversarial imitation over embedded tokens: penalty by the embeddings, through attention written out."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 8)
            self.place = nn.Parameter(rand(1, 5, 8, seed=2) * 0.1)
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
            self.n1, self.n2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.ff = nn.Sequential(nn.Linear(8, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 8))
            self.out = nn.Linear(8, 1)

        def scored(self, e):
            n, t, c = e.shape
            h = self.n1(e + self.place)
            q, k, v = (x.view(n, t, 2, c // 2).transpose(1, 2) for x in self.qkv(h).split(c, dim=2))
            a = (q @ k.transpose(-2, -1)) / math.sqrt(c // 2)
            a = a.masked_fill(torch.ones(t, t).tril() == 0, float("-inf")).softmax(-1)
            h = e + self.proj((a @ v).transpose(1, 2).reshape(n, t, c))
            return self.out((h + self.ff(self.n2(h))).mean(1))

    def loss_of(model, batch):
        expert, policy = batch
        a, b = model.embed(expert), model.embed(policy)
        share = torch.rand(len(expert), 1, 1)
        mixed = share * a.data + (1 - share) * b.data
        mixed.requires_grad = True
        slope = grad(model.scored(mixed).sum(), mixed)
        penalty = (slope.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
        return F.logsigmoid(-model.scored(a)).mean() * -1 - F.logsigmoid(model.scored(b)).mean() + penalty

    return seeded(Net), loss_of, (torch.arange(10).view(2, 5), torch.arange(10).flip(0).view(2, 5) + 2)


@network
def langevin_energy():
    model = seeded(lambda: mlp(2, 16, 16, 1, act=nn.SiLU))

    def loss_of(model, batch):
        x = torch.randn_like(batch)
        for _ in range(3):
            x = x.detach().requires_grad_()
            slope = torch.autograd.grad(model(x).sum(), x)[0]
            x = x - 0.1 * slope + 0.1 * torch.randn_like(x)
        real, fake = model(batch), model(x.detach())
        return real.mean() - fake.mean() + 0.1 * (real**2 + fake**2).mean()

    return model, loss_of, rand(6, 2)


@network
def langevin_conv():
    """The last step keeps its graph (improved contrastive divergence); clamped gradients, images."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 6, 3, 1, 1),
                nn.SiLU(),
                nn.AvgPool2d(2),
                nn.Conv2d(6, 8, 3, 1, 1),
                nn.BatchNorm2d(8),
                nn.SiLU(),
            )
            self.out = nn.Linear(8, 1)

        def forward(self, x):
            return self.out(F.silu(self.body(x)).sum(dim=(2, 3)))

    def loss_of(model, batch):
        x = torch.rand_like(batch)
        model.eval()
        for k in range(2):
            x = x.detach().requires_grad_(True)
            slope = torch.autograd.grad(model(x).sum(), [x], create_graph=k == 1)[0]
            x = (x - 10 * slope.clamp(-0.03, 0.03) + torch.randn_like(x) * 0.005).clamp(0, 1)
        model.train()
        real, fake = model(batch), model(x)
        return (real - fake).mean() + 0.1 * (real.pow(2) + fake.pow(2)).mean()

    return seeded(Net), loss_of, rand(3, 1, 8, 8).abs().clamp(0, 1)


# Penalties on weights and representations
@network
def sharpness_penalty():
    model = seeded(
        lambda: nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
    )

    def loss_of(model, batch):
        x, y = batch
        loss = F.mse_loss(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        norm = torch.sqrt(sum(g.pow(2).sum() for g in grads) + 1e-12)
        return loss + 0.05 * norm

    return model, loss_of, (rand(6, 5), rand(6, 3, seed=4))


@network
def sharpness_of_cross_entropy():
    """Classification: the norm of the gradient by some weights, with class weights and ignored labels."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(9, 8)
            self.rnn_like = nn.Linear(16, 8)
            self.out = nn.Linear(8, 9)

        def forward(self, tokens):
            e = self.embed(tokens)
            h, found = torch.zeros(e.shape[0], 8), []
            for t in range(e.shape[1]):
                h = torch.tanh(self.rnn_like(torch.cat([h, e[:, t]], -1)))
                found.append(h)
            return self.out(torch.stack(found, 1))

    def loss_of(model, batch):
        tokens, labels = batch
        logits = model(tokens)
        loss = F.cross_entropy(
            logits.view(-1, 9), labels.view(-1), ignore_index=-100, weight=torch.arange(1, 10).float()
        )
        grads = torch.autograd.grad(loss, [model.out.weight, model.embed.weight], create_graph=True)
        return loss + 0.1 * sum(g.norm() for g in grads)

    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    labels = torch.tensor([[2, 3, 4, -100], [6, 7, 8, 0]])
    return seeded(Net), loss_of, (tokens, labels)


@network
def contractive_autoencoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(4, 6)

    def loss_of(model, batch):
        x = batch.requires_grad_(True)
        h = torch.sigmoid(model.encoder(x))
        size = 0.0
        for k in range(h.shape[1]):
            size = size + torch.autograd.grad(h[:, k].sum(), x, create_graph=True, retain_graph=True)[0].pow(2).sum()
        return F.mse_loss(model.decoder(h), x) + 1e-2 * size

    return seeded(Net), loss_of, rand(5, 6)


@network
def contractive_conv():
    """A random projection of the code; strided and transposed convolutions, upsampling, PReLU."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(2, 6, 3, 2, 1), nn.PReLU(6), nn.Conv2d(6, 4, 3, 2, 1, groups=2))
            self.decoder = nn.Sequential(
                nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1),
                nn.Hardswish(),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(6, 2, 3, padding=1),
            )

    def loss_of(model, batch):
        x = batch.detach().requires_grad_()
        h = model.encoder(x)
        y = model.decoder(h)
        v = F.normalize(torch.randn_like(h).flatten(1), dim=1).view_as(h)
        push = grad(h, x, grad_outputs=v)
        back = grad(y, h, grad_outputs=F.normalize(x, dim=1))
        return F.l1_loss(y, x) + push.square().mean() + back.square().mean()

    return seeded(Net), loss_of, rand(2, 2, 8, 8)


@network
def saliency_of_text():
    """Adversarial training on embeddings: the perturbation is the detached gradient."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.out = nn.Linear(8, 2)

        def forward(self, e):
            return self.out(self.layer(e).mean(1))

    def loss_of(model, batch):
        tokens, labels = batch
        e = model.embed(tokens)
        loss = F.cross_entropy(model(e), labels)
        slope = torch.autograd.grad(loss, e, retain_graph=True)[0]
        moved = e + 0.1 * slope / (slope.norm(dim=-1, keepdim=True) + 1e-8)
        return loss + F.cross_entropy(model(moved), labels)

    return seeded(Net), loss_of, (torch.arange(12).view(3, 4), torch.tensor([0, 1, 1]))


@network
def input_gradients_of_text():
    """Right for the right reasons: gradients of log-probabilities by embeddings where a mask says so; double backward
    through an attention layer of PyTorch's."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.norm = nn.LayerNorm(8)
            self.out = nn.Linear(8, 3)

        def forward(self, e):
            a, _ = self.attention(e, e, e)
            return self.out(self.norm(e + a).amax(1)).log_softmax(-1)

    def loss_of(model, batch):
        tokens, labels, mask = batch
        e = model.embed(tokens)
        log_p = model(e)
        slope = grad(log_p.sum(), e)
        return F.nll_loss(log_p, labels) + 5 * (mask.unsqueeze(-1) * slope).pow(2).sum()

    return (
        seeded(Net),
        loss_of,
        (torch.arange(8).view(2, 4), torch.tensor([0, 2]), torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0]])),
    )


@network
def hessian_vector_penalty():
    """torch.autograd.functional.jvp and a Hessian-vector product of the loss by the weights."""
    model = seeded(lambda: mlp(3, 8, 8, 2))

    def loss_of(model, batch):
        x, y, v = batch
        _, along = torch.autograd.functional.jvp(model, x, v, create_graph=True)
        loss = F.mse_loss(model(x), y)
        weights = list(model.parameters())
        grads = torch.autograd.grad(loss, weights, create_graph=True)
        product = torch.autograd.grad(sum((g * g.detach()).sum() for g in grads), weights, create_graph=True)
        return loss + along.square().mean() + 0.1 * sum(p.square().sum() for p in product)

    return model, loss_of, (rand(5, 3), rand(5, 2, seed=4), rand(5, 3, seed=5))


@network
def sdf_eikonal():
    """A signed distance function: sines, a slope of one, normals."""

    class Sine(nn.Module):
        def forward(self, x):
            return torch.sin(3.0 * x)

    model = seeded(lambda: mlp(3, 16, 16, 1, act=Sine))

    def loss_of(model, batch):
        points, normals = batch
        points = points.detach().requires_grad_(True)
        d = model(points)
        n = torch.autograd.grad(
            d, points, torch.ones_like(d, requires_grad=False), create_graph=True, retain_graph=True
        )[0]
        return (
            d.abs().mean()
            + 0.1 * ((n.norm(dim=-1) - 1) ** 2).mean()
            + (1 - F.cosine_similarity(n, normals, dim=-1)).mean()
            + 0.1 * torch.exp(-100 * d.abs()).mean()
        )

    return model, loss_of, (rand(6, 3), rand(6, 3, seed=4))


@network
def path_length():
    """StyleGAN2's path length regularisation, with a running mean in a buffer."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mapping = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8))
            self.start = nn.Parameter(rand(1, 8, 4, 4, seed=1))
            self.style = nn.Linear(8, 8)
            self.conv = nn.Conv2d(8, 3, 3, padding=1)
            self.register_buffer("mean", torch.tensor(0.1))

        def forward(self, w):
            x = self.start * (1 + self.style(w))[:, :, None, None]
            return self.conv(F.interpolate(F.leaky_relu(x, 0.2), scale_factor=2, mode="nearest"))

    def loss_of(model, z):
        w = model.mapping(z)
        image = model(w)
        noise = torch.randn_like(image) / math.sqrt(image.shape[2] * image.shape[3])
        (slope,) = torch.autograd.grad([(image * noise).sum()], [w], create_graph=True, only_inputs=True)
        lengths = slope.square().sum(1).sqrt()
        mean = model.mean.lerp(lengths.mean(), 0.01)
        model.mean.copy_(mean.detach())
        return (lengths - mean).square().mean() + image.square().mean()

    return seeded(Net), loss_of, rand(3, 4)
