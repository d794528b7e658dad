"""Agents learn to balance a pole and to swing a pendulum, with PPO and with SAC."""

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO, SAC

LIBRARY = "stable-baselines3"


def train(device):
    pole = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, seed=0, device=device)
    torch.manual_seed(1)  # from here on it draws on the device only
    pole.learn(64)
    pole.save("pole")
    again = PPO.load("pole", device=device)
    assert again.policy.device.type == device
    states = np.linspace(-0.1, 0.1, 20, dtype="float32").reshape(5, 4)
    actions, _ = again.predict(states, deterministic=True)

    pendulum = SAC(
        "MlpPolicy",
        gymnasium.make("Pendulum-v1"),
        learning_starts=20,
        batch_size=16,
        policy_kwargs={"net_arch": [16]},
        seed=0,
        device=device,
    )
    torch.manual_seed(1)
    pendulum.learn(24)
    weights = [*pole.policy.state_dict().values(), *pendulum.policy.state_dict().values()]
    return torch.from_numpy(actions), weights
