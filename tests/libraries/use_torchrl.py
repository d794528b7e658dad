"""An agent gathers steps in an environment, keeps them in a buffer, and learns by PPO's loss."""

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import CatTensors, Compose, PendulumEnv, StepCounter, TransformedEnv, UnsqueezeTransform
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

LIBRARY = "torchrl"


def train(device):
    network = nn.Sequential(MLP(in_features=2, out_features=2, num_cells=[16]), NormalParamExtractor())
    critic = ValueOperator(MLP(in_features=2, out_features=1, num_cells=[16]), in_keys=["state"]).to(device)
    actor = ProbabilisticActor(
        TensorDictModule(network, ["state"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
        return_log_prob=True,
    ).to(device)
    angles = UnsqueezeTransform(-1, in_keys=["th", "thdot"], in_keys_inv=["th", "thdot"])
    env = TransformedEnv(
        PendulumEnv(device=device),
        Compose(angles, CatTensors(["th", "thdot"], "state", del_keys=False), StepCounter(8)),
    )
    env.set_seed(1)
    torch.manual_seed(1)  # from here on it draws on the device only
    with torch.no_grad():
        steps = env.rollout(8, actor)
    assert steps["action"].device.type == device

    loss = ClipPPOLoss(actor, critic)
    with torch.no_grad():
        GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)(steps)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(16, device=device), batch_size=4)
    buffer.extend(steps.reshape(-1))
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    torch.manual_seed(2)
    losses = []
    for _ in range(3):
        parts = loss(buffer.sample())
        total = parts["loss_objective"] + parts["loss_critic"] + parts["loss_entropy"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
    return losses, steps["action"], steps["advantage"], actor.state_dict()
