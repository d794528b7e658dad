"""Exercise 1, right: the choice in a variable, the work in a function."""

import torch

HAS_GPU: bool = torch.cuda.is_available()


def main() -> None:
    device = torch.device("cpu")
    if HAS_GPU:
        device = torch.device("cuda", 0)
    weights = torch.randn(10, 784).to(device)
    images = torch.rand(64, 784).to(device)
    scores = torch.nn.functional.linear(images, weights)
    print("done on", scores.device, tuple(scores.shape), "scores")


if __name__ == "__main__":
    main()
