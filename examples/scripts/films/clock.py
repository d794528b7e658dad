"""The time of three products of matrices."""

import time

import torch

x = torch.rand(1000, 1000, device="cuda")

torch.cuda.synchronize()  # before the first look
start = time.perf_counter()
y = x @ x
y = y @ x
y = y @ x
torch.cuda.synchronize()  # before the last look
seconds = time.perf_counter() - start
print(seconds, y.sum().item())

# variant: as it should be
# variant: no wait at the end
# - torch.cuda.synchronize()  # before the last look
# + # no wait before the last look
# variant: no wait at the start
# - torch.cuda.synchronize()  # before the first look
# + # no wait before the first look
