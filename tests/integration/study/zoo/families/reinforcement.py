"""Reinforcement learning: the losses of one update."""

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import ints, normal
from ..registry import network


def _mlp(*sizes, last=nn.Identity):
    parts = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*parts[:-1], last())


def _transitions(actions=3, count=8):
    return lambda: (normal(count, 4), ints(actions, count), normal(count), normal(count, 4), torch.rand(count).round())


@network("reinforcement", quick=True)
def double_dqn():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.target = _mlp(4, 16, 3), _mlp(4, 16, 3).requires_grad_(False)

    def step(model, batch):
        x, a, r, y, done = batch
        with torch.no_grad():
            best = model.q(y).argmax(1, keepdim=True)
            goal = r + 0.9 * (1 - done) * model.target(y).gather(1, best)[:, 0]
        return F.smooth_l1_loss(model.q(x).gather(1, a[:, None])[:, 0], goal)

    return Net(), step, _transitions()


@network("reinforcement")
def ppo():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy, self.value = nn.Linear(4, 3), nn.Linear(4, 1)

    def step(model, batch):
        x, a, old, advantage, returns = batch
        chosen = torch.distributions.Categorical(logits=model.policy(x))
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (chosen.log_prob(a) - old).exp()
        return (
            -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            + 0.5 * F.mse_loss(model.value(x)[:, 0], returns)
            - 0.01 * chosen.entropy().mean()
        )

    return Net(), step, lambda: (normal(8, 4), ints(3, 8), -torch.rand(8), normal(8), normal(8))


@network("reinforcement")
def ppo_continuous():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.log_std, self.value = nn.Linear(4, 2), nn.Parameter(torch.zeros(2)), nn.Linear(4, 1)

    def step(model, batch):
        x, a, old, advantage, returns = batch
        chosen = torch.distributions.Normal(model.mean(x), model.log_std.exp())
        ratio = (chosen.log_prob(a).sum(-1) - old).exp()
        return (
            -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            + F.mse_loss(model.value(x)[:, 0], returns)
            - 0.01 * chosen.entropy().sum(-1).mean()
        )

    return Net(), step, lambda: (normal(8, 4), normal(8, 2), -torch.rand(8), normal(8), normal(8))


@network("reinforcement")
def soft_actor():
    """SAC's actor step: a squashed Gaussian through two fixed critics."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor = _mlp(4, 16, 4)
            self.critics = nn.ModuleList([_mlp(6, 16, 1) for _ in range(2)]).requires_grad_(False)

    def step(model, x):
        mean, log_std = model.actor(x).chunk(2, -1)
        u = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = u.rsample()
        a = raw.tanh()
        log_p = (u.log_prob(raw) - torch.log(1 - a.square() + 1e-6)).sum(-1)
        q = torch.min(*[critic(torch.cat([x, a], -1))[:, 0] for critic in model.critics])
        return (0.2 * log_p - q).mean()

    return Net(), step, lambda: normal(8, 4)


@network("reinforcement")
def soft_critic():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor = _mlp(4, 16, 4).requires_grad_(False)
            self.critics = nn.ModuleList([_mlp(6, 16, 1) for _ in range(2)])
            self.targets = nn.ModuleList([_mlp(6, 16, 1) for _ in range(2)]).requires_grad_(False)

    def step(model, batch):
        x, a, r, y, done = batch
        with torch.no_grad():
            mean, log_std = model.actor(y).chunk(2, -1)
            u = torch.distributions.TransformedDistribution(
                torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp()),
                [torch.distributions.transforms.TanhTransform()],
            )
            b = u.sample()
            q = torch.min(*[target(torch.cat([y, b], -1))[:, 0] for target in model.targets])
            goal = r + 0.99 * (1 - done) * q
        return sum(F.mse_loss(critic(torch.cat([x, a], -1))[:, 0], goal) for critic in model.critics)

    return Net(), step, lambda: (normal(8, 4), torch.rand(8, 2), normal(8), normal(8, 4), torch.rand(8).round())


@network("reinforcement")
def quantile_regression_dqn():
    model = _mlp(4, 16, 3 * 5)
    middles = (torch.arange(5) + 0.5) / 5

    def step(model, batch):
        x, a, r, y, done = batch
        with torch.no_grad():
            later = model(y).view(-1, 3, 5)
            best = later.mean(-1).argmax(1)
            goal = r[:, None] + 0.9 * (1 - done)[:, None] * later[torch.arange(len(y)), best]
        now = model(x).view(-1, 3, 5)[torch.arange(len(x)), a]
        error = goal[:, None] - now[..., None]
        huber = torch.where(error.abs() < 1, 0.5 * error.square(), error.abs() - 0.5)
        return ((middles[None, :, None] - (error.detach() < 0).float()).abs() * huber).mean()

    return model, step, _transitions()


@network("reinforcement")
def reinforce_bernoulli():
    model = _mlp(4, 8, 1)

    def step(model, batch):
        x, r = batch
        chosen = torch.distributions.Bernoulli(logits=model(x)[:, 0])
        return -(chosen.log_prob(chosen.sample()) * r).mean()

    return model, step, lambda: (normal(8, 4), normal(8))


@network("reinforcement", "stable-baselines3")
def sb3_actor_critic():
    import gymnasium as gym
    import numpy as np
    from stable_baselines3.common.policies import ActorCriticPolicy

    box = gym.spaces.Box(-1, 1, (4,), np.float32)
    model = ActorCriticPolicy(box, gym.spaces.Discrete(3), lambda _: 1e-3, net_arch=[8])

    def step(model, batch):
        values, log_p, entropy = model.evaluate_actions(batch[0], batch[1])
        return -(log_p * batch[2]).mean() + F.mse_loss(values[:, 0], batch[3]) - 0.01 * entropy.mean()

    return model, step, lambda: (normal(8, 4), ints(3, 8), normal(8), normal(8))


@network("reinforcement", "stable-baselines3")
def sb3_gaussian_policy():
    import gymnasium as gym
    import numpy as np
    from stable_baselines3.common.policies import ActorCriticPolicy

    model = ActorCriticPolicy(
        gym.spaces.Box(-1, 1, (4,), np.float32),
        gym.spaces.Box(-1, 1, (2,), np.float32),
        lambda _: 1e-3,
        net_arch=[8],
        use_sde=True,
    )

    def step(model, batch):
        values, log_p, entropy = model.evaluate_actions(batch[0], batch[1])
        return -(log_p * batch[2]).mean() + F.mse_loss(values[:, 0], batch[3]) - 0.01 * entropy.mean()

    return model, step, lambda: (normal(8, 4), normal(8, 2), normal(8), normal(8))


@network("reinforcement", "stable-baselines3")
def sb3_nature_cnn():
    import gymnasium as gym
    import numpy as np
    from stable_baselines3.dqn.policies import CnnPolicy

    model = CnnPolicy(
        gym.spaces.Box(0, 255, (1, 40, 40), np.uint8),
        gym.spaces.Discrete(3),
        lambda _: 1e-3,
        features_extractor_kwargs=dict(features_dim=16),
    )
    return (
        model,
        lambda m, b: F.smooth_l1_loss(m.q_net(b[0]).gather(1, b[1])[:, 0], b[2]),
        lambda: (torch.randint(0, 256, (2, 1, 40, 40), dtype=torch.uint8), ints(3, 2, 1), normal(2)),
    )


@network("reinforcement", "torchrl")
def torchrl_dueling():
    from torchrl.modules import MLP

    class Dueling(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.value = MLP(4, 8, depth=1, num_cells=8), MLP(8, 1, depth=1, num_cells=8)
            self.advantage = MLP(8, 3, depth=1, num_cells=8)

        def forward(self, x):
            h = self.body(x)
            a = self.advantage(h)
            return self.value(h) + a - a.mean(-1, keepdim=True)

    return Dueling(), lambda m, b: F.smooth_l1_loss(m(b[0]).gather(1, b[1][:, None])[:, 0], b[2]), _transitions()


@network("reinforcement", "torchrl")
def torchrl_noisy_tanh_normal():
    from torchrl.modules import NoisyLinear, TanhNormal

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(NoisyLinear(4, 8), nn.ReLU(), NoisyLinear(8, 4))

        def forward(self, x):
            mean, scale = self.body(x).chunk(2, -1)
            return TanhNormal(mean, F.softplus(scale) + 1e-3)

    return (
        Net(),
        lambda m, b: -(m(b[0]).log_prob(b[1]) * b[2]).mean(),
        lambda: (normal(8, 4), torch.rand(8, 2) * 1.6 - 0.8, normal(8)),
    )


@network("reinforcement", "transformers")
def decision_transformer():
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    model = DecisionTransformerModel(
        DecisionTransformerConfig(
            state_dim=4, act_dim=2, hidden_size=16, n_layer=1, n_head=2, max_ep_len=20, n_positions=64
        )
    )

    def step(model, batch):
        states, actions, to_go, times = batch
        out = model(
            states=states,
            actions=actions,
            rewards=None,
            returns_to_go=to_go,
            timesteps=times,
            attention_mask=torch.ones(2, 5),
        )
        return F.mse_loss(out.action_preds, actions)

    return model, step, lambda: (normal(2, 5, 4), normal(2, 5, 2), normal(2, 5, 1), torch.arange(5).expand(2, 5))
