"""Matrices that are never written out are solved with, in closed form and step by step."""

import torch
from linear_operator import settings, to_linear_operator
from linear_operator.operators import DiagLinearOperator, KroneckerProductLinearOperator, RootLinearOperator

LIBRARY = "linear_operator"


def train(device):
    root, noise = torch.randn(20, 3).to(device), torch.rand(20).to(device) + 0.5
    right = torch.randn(20, 2).to(device).requires_grad_()
    matrix = RootLinearOperator(root) + DiagLinearOperator(noise)
    assert matrix.device.type == device
    solved = matrix.solve(right)
    solved.square().sum().backward()
    torch.manual_seed(1)
    with settings.max_cholesky_size(1), settings.num_trace_samples(5):
        quadratic, logdet = matrix.inv_quad_logdet(right.detach(), logdet=True)
    blocks = to_linear_operator(root[:3].mT @ root[:3] + torch.eye(3, device=device))
    product = KroneckerProductLinearOperator(blocks, blocks)
    return solved, right.grad, quadratic, logdet, product.to_dense(), product.logdet()
