"""Numbers and a model go to the GPU, and answers come back."""

import torch

device = torch.device("cuda")
flowers = torch.rand(300, 4)
model = torch.nn.Linear(4, 3)

flowers = flowers.to(device)
model.to(device)
scores = model(flowers)
answers = scores.argmax(dim=1)
largest = scores.max().item()
answers = answers.cpu()
numbers = answers.numpy()

# variant: as it should be
# variant: the copy is not kept
# - flowers = flowers.to(device)
# + flowers.to(device)
# variant: made on the GPU at once
# - flowers = torch.rand(300, 4)
# + flowers = torch.rand(300, 4, device=device)
