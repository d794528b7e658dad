"""The exercises: what each one asks, the hints in their order, and what is looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes
    ----------
    number : str
        Two digits, those of its lesson.
    lesson : str
        The lesson's title.
    name : str
        The starter's file name, without ``.py``.
    title, goal, prediction : str
    difficulty : str
        ``"easy"``, ``"medium"`` or ``"hard"``.
    steps : tuple of str
    hints : tuple of str
        Each says a little more than the one before.
    demands : frozenset of str
        What must have been seen: ``"training"`` and ``"device"`` (steps were taken, on the GPU),
        ``"modes"``, ``"accuracy"``, ``"any machine"``, ``"places"``, ``"kinds"``, ``"resuming"``.
    """

    number: str
    lesson: str
    name: str
    title: str
    difficulty: str
    goal: str
    prediction: str
    steps: tuple[str, ...]
    hints: tuple[str, ...]
    demands: frozenset[str]


EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        number="01",
        lesson="Is there a GPU?",
        name="01_any_machine",
        title="One script for every machine",
        difficulty="easy",
        goal="The script runs on any machine, and uses a GPU where there is one.",
        prediction="What will it print on this machine, and which line stops it if there is no GPU?",
        steps=(
            "Run the starter and compare the error's last line with your prediction.",
            "Choose the device from what is there.",
        ),
        hints=(
            "Only one line decides on the device. Which?",
            "torch.cuda.is_available() answers True or False. An accelerator need not be CUDA, though.",
            "gpulesson.device.choose_device() returns the accelerator if there is one, else the CPU.",
        ),
        demands=frozenset({"any machine"}),
    ),
    Exercise(
        number="02",
        lesson="Tensors and devices",
        name="02_where_is_it",
        title="Where does it live?",
        difficulty="easy",
        goal="You can say where each of eight tensors lives, before you run anything.",
        prediction="“cpu” or “cuda:0”, for each name in ANSWERS.",
        steps=("Read the eight lines under “# the tensors”.", "Fill in ANSWERS.", "Check."),
        hints=(
            "Three things decide: device=…, a default device around the line, and what it is made from.",
            "tensor.to(device) returns a copy. Which names are bound to one?",
            "NumPy's memory is in the host, and a tensor without dimensions may join from the CPU.",
        ),
        demands=frozenset({"places"}),
    ),
    Exercise(
        number="03",
        lesson="A first model on the GPU",
        name="03_train_iris",
        title="Take this training to a device",
        difficulty="medium",
        goal="The training runs on the chosen device, and the accuracy on the test flowers is printed.",
        prediction="How many lines must change to train on a GPU? Which ones?",
        steps=(
            "Choose a device at the top, and move what must be moved.",
            "Print where the model's parameters are after the move.",
            "Compute the accuracy on X_test and y_test, without gradients, and print it.",
        ),
        hints=(
            "Everything that meets in model(X_train) and loss_fn(outputs, y_train) must be on one device.",
            "Five things move: the model, and inputs and targets of both parts. The loop stays as it is.",
            "After training: model.eval(), with torch.inference_mode(), argmax(dim=1), == y_test, sum(), and "
            "divide by len(y_test).",
        ),
        demands=frozenset({"training", "device", "modes", "accuracy"}),
    ),
    Exercise(
        number="04",
        lesson="The training loop on a device",
        name="04_training_loop",
        title="Bring this loop to a device",
        difficulty="medium",
        goal="The loop trains on the chosen device, and the accuracy is right answers divided by samples.",
        prediction="Which lines must change? Mark them before you edit.",
        steps=(
            "Move the model, and build the optimizer after it. Move each batch, both halves.",
            "Count right answers, and divide once.",
            "Evaluate in eval() mode and without gradients, on the device.",
        ),
        hints=(
            "Two changes bring a loop to a device: one before the loop, one inside it.",
            "model.to(device) once, before the optimizer; inputs and targets .to(device), in both loops.",
            "Before judging: model.eval(). While judging: with torch.inference_mode().",
            "correct += (model(inputs).argmax(dim=1) == targets).sum(), and in the end correct.item() / "
            "len(test_set).",
        ),
        demands=frozenset({"training", "device", "modes", "accuracy"}),
    ),
    Exercise(
        number="05",
        lesson="Fashion-MNIST end to end",
        name="05_each_kind",
        title="How good is it at each kind?",
        difficulty="medium",
        goal="Ten accuracies, one for each kind, the hardest first, that add up to the one printed before.",
        prediction="Which kind will be the hardest?",
        steps=(
            "Compute the accuracy of each kind from the confusion matrix.",
            "Print the kinds, the hardest first.",
            "Add up the diagonal, divide by all, and print it.",
        ),
        hints=(
            "Row i of the matrix holds the pictures that truly are of kind i.",
            "Right ones are on the diagonal; the pictures of a kind are the sum of its row: sum(dim=1).",
            "argsort() of the ten accuracies gives the order of printing.",
        ),
        demands=frozenset({"training", "device", "kinds"}),
    ),
    Exercise(
        number="06",
        lesson="Save, load, resume",
        name="06_resume",
        title="Resume without a trace",
        difficulty="medium",
        goal="A training that is stopped and resumed ends with the same bits as one that was not.",
        prediction="Name everything in this script that has a state besides the weights.",
        steps=("Run it: it says “another run”.", "Save and restore what has a state.", "Check."),
        hints=(
            "Which object, besides the model, remembers past steps?",
            "Dropout and shuffling draw random numbers. Where does the sequence stand when the run stops?",
            "Save a dictionary: epoch, model, optimizer, torch.get_rng_state(). Restore the last one last.",
        ),
        demands=frozenset({"resuming"}),
    ),
    Exercise(
        number="07",
        lesson="The common mistakes",
        name="07_five_mistakes",
        title="Five mistakes in one script",
        difficulty="hard",
        goal="All five mistakes are mended: it prints the same accuracy twice, and keeps no history.",
        prediction="Mark what you find, before you run it.",
        steps=(
            "Run it, and mend what stops it, one by one.",
            "Find the two that give no message.",
        ),
        hints=(
            "Three stop it: look at the loss's weights, at the labels, and at NumPy.",
            "The two silent ones: what is appended to losses, and in which mode the model is judged.",
            "nn.CrossEntropyLoss(…).to(device); targets.to(device); held_out.detach(); model.eval(); "
            "predictions.cpu().numpy().",
        ),
        demands=frozenset({"training", "device", "modes"}),
    ),
    Exercise(
        number="08",
        lesson="Was it faster?",
        name="08_stopwatch",
        title="Mend a stopwatch",
        difficulty="medium",
        goal="The stopwatch is right on a device that has a queue, a slow start and a busy neighbour.",
        prediction="Is the result of stopwatch too large or too small? By how much?",
        steps=("Run it, and compare.", "Mend stopwatch: warm up, wait, repeat, take the median."),
        hints=(
            "When run() returns, what has the device done?",
            "The device may be busy when you begin: wait before you look at the clock, and after.",
            "Fifteen calls to warm up, then twenty measurements, then statistics.median.",
        ),
        demands=frozenset({"stopwatch"}),
    ),
    Exercise(
        number="09",
        lesson="Feeding the GPU",
        name="09_fewer_calls",
        title="Fewer calls, fewer bytes",
        difficulty="medium",
        goal="The same images arrive in the same order, with one call a batch and a quarter of the bytes.",
        prediction="How many calls, and how many bytes, for 2,000 images of 784 pixels in batches of 64?",
        steps=("Fetch each batch with one call.", "Send bytes, and make floats of them on the device."),
        hints=(
            "pixels[index] also takes a list of numbers.",
            "A BatchSampler yields such lists. DataLoader(…, sampler=batches, batch_size=None) uses it.",
            "Move .float() / 255 out of __getitem__, behind inputs.to(device).",
        ),
        demands=frozenset({"feeding"}),
    ),
    Exercise(
        number="11",
        lesson="Profile before you optimise",
        name="11_slow_loop",
        title="Three things that nobody needs",
        difficulty="hard",
        goal="mine returns the same losses as slow, without the work that nobody needs.",
        prediction="Read slow. What would you change first?",
        steps=("Profile it: python 11_slow_loop.py profile.", "Change mine; the losses must stay."),
        hints=(
            "Which line works on all 4,000 images, and how many of them does the step use?",
            "Who looks at the norms of the gradients? What stops when one of them is infinite?",
            "How often must a loss come to the host, if nobody looks at it before the end?",
        ),
        demands=frozenset({"lean"}),
    ),
    Exercise(
        number="12",
        lesson="The speed ladder",
        name="12_larger_batch",
        title="A batch sixteen times as large",
        difficulty="medium",
        goal="The large batch needs at most one and a half times the epochs of the small one, for each seed.",
        prediction="With the same rate: as many epochs, sixteen times as many, or something between?",
        steps=("Run it.", "Change RATE, until the large batch pays.", "Find the rate that is too much."),
        hints=(
            "An epoch of the large batch has a sixteenth of the steps. How long must each be?",
            "A rule of thumb for Adam: the root of the factor, so four times the rate. Go on from there.",
            "Double RATE until it prints that it pays, and once more.",
        ),
        demands=frozenset({"larger batch"}),
    ),
)
"""In the order of the lessons."""


def numbers() -> str:
    """Return the numbers that there are, for a message."""
    return ", ".join(exercise.number for exercise in EXERCISES)


def find(number: str | int) -> Exercise:
    """Return an exercise by its number.

    Parameters
    ----------
    number : str or int
        ``4``, ``"4"`` or ``"04"``.

    Raises
    ------
    ValueError
        There is no such exercise; the message says which there are.

    Examples
    --------
    >>> find(4).title
    'Bring this loop to a device'
    """
    wanted = str(number).strip().zfill(2)
    for exercise in EXERCISES:
        if exercise.number == wanted:
            return exercise
    raise ValueError(f"there is no exercise {number}: the numbers are {numbers()}")
