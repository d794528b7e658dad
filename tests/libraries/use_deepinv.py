"""A blurred picture is restored by an iteration, and by a network that is trained for it."""

import deepinv
import torch

LIBRARY = "deepinv"


def train(device):
    picture = torch.rand(2, 1, 16, 16).to(device)
    blur = deepinv.physics.Blur(
        filter=deepinv.physics.blur.gaussian_blur(sigma=1.0), padding="circular", device=device
    )
    blurred = blur(picture)
    iteration = deepinv.optim.optim_builder(
        iteration="PGD",
        data_fidelity=deepinv.optim.L2(),
        prior=deepinv.optim.TVPrior(n_it_max=5),
        params_algo={"stepsize": 1.0, "lambda": 0.01},
        max_iter=4,
    )
    restored = iteration(blurred, blur)

    network = deepinv.models.DnCNN(1, 1, depth=3, nf=8, pretrained=None).to(device)
    model = deepinv.models.ArtifactRemoval(network, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = deepinv.loss.SupLoss()(x=picture, x_net=model(blurred, blur)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, restored, deepinv.metric.PSNR()(restored, picture), blur.A_adjoint(blurred)
