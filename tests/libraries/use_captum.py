"""What a network looks at: gradients, occlusion, and the neurons of a layer."""

import torch
from captum.attr import GradientShap, IntegratedGradients, LayerGradCam, NoiseTunnel, Occlusion, Saliency
from torch import nn

LIBRARY = "captum"


def train(device):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).to(device).eval()
    pictures = torch.rand(2, 3, 8, 8).to(device).requires_grad_()
    blank = torch.zeros_like(pictures)
    attributed, delta = IntegratedGradients(model).attribute(
        pictures, blank, target=1, n_steps=8, return_convergence_delta=True
    )
    torch.manual_seed(1)
    return (
        attributed,
        delta,
        Saliency(model).attribute(pictures, target=0),
        Occlusion(model).attribute(pictures, sliding_window_shapes=(3, 4, 4), strides=4, target=2),
        LayerGradCam(model, model[0]).attribute(pictures, target=1),
        NoiseTunnel(Saliency(model)).attribute(pictures, nt_samples=3, target=0),
        GradientShap(model).attribute(pictures, baselines=blank, n_samples=3, target=0).shape,
    )
