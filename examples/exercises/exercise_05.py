"""Exercise 5: Compute the accuracy of each class.

Three functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_05.py
"""

import torch


def per_class(confusion):
    """Return the accuracy of each class: a list of numbers (floats) from 0 to 1.

    confusion: whole numbers [classes, classes], a tensor on the CPU, with a row for
    each true class and a column for each answer. The accuracy of a class: its right
    answers, divided by all of its images. A class without images gets nan ("not a
    number", in Python float("nan")).
    """


def hardest(accuracies, class_names):
    """Return a list of all class names, that with the lowest accuracy first.

    accuracies, class_names: two lists of the same length, in the order of the classes.
    They stay as they are. No two accuracies are equal, and none is nan.
    """


def class_accuracies(model, batches, number_of_classes, device):
    """Return the accuracy of each class, as per_class does, over all the batches.

    batches: pairs of images [N, 1, height, width] and labels [N], on the CPU. The last
    one may be shorter, and a class may have no images. The model is on the device; its
    outputs are [N, number_of_classes]. It may be in any mode: compute in evaluation
    mode, without gradients.
    """


def main():
    """Train on some clothes, and look for the classes that are hard."""
    from gpulesson.data import Batches, load_fashion_mnist
    from gpulesson.device import choose_device
    from gpulesson.models import MLP
    from gpulesson.training import fit

    print("accuracies:", per_class(torch.tensor([[3, 1], [2, 2]])))
    print("expected:   [0.75, 0.5]")

    device, data = choose_device(), load_fashion_mnist()
    images = data.train_images[:6000].to(device).float() / 255
    labels = data.train_targets[:6000].to(device)
    tests = data.test_images.float() / 255, data.test_targets  # on the CPU

    torch.manual_seed(0)
    model = MLP(784, 128, 64, 10).to(device)
    loss_fn = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = Batches(images, labels, batch_size=64, shuffle=True)
    fit(model, batches, loss_fn, optimizer, device, epochs=2)
    found = class_accuracies(model, Batches(*tests, batch_size=1000), 10, device)
    if found is None:
        print("class_accuracies returned nothing")
        return
    for name in hardest(found, data.class_names) or data.class_names:
        print(f"{name:<12} {found[data.class_names.index(name)]:.1%}")


if __name__ == "__main__":
    main()
