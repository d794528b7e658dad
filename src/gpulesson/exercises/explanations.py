"""Why each fault is one, and what to do next: the part of a diagnosis that does not depend on the run."""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """Why something is a fault, and the next step."""

    why: str
    remedy: str


EXPLANATIONS: dict[str, Explanation] = {
    # -- where things live
    "model-on-cpu": Explanation(
        "A GPU computes only with what is in its memory. A model is made on the CPU and stays there "
        "until you move it.",
        "Move it once, before the optimizer is made: model.to(device).",
    ),
    "inputs-on-cpu": Explanation(
        "The model's weights are on the GPU, and one operation needs both of its operands on one device.",
        "Move the inputs before the model sees them: inputs = inputs.to(device), with the assignment.",
    ),
    "labels-on-cpu": Explanation(
        "The model's answers are on the GPU, and they are compared with the labels: both must be there.",
        "Move both halves of a batch: inputs, targets = inputs.to(device), targets.to(device).",
    ),
    "loss-weights-on-cpu": Explanation(
        "Class weights are tensors of the loss function. They take part in the computation, so they must be "
        "where the logits are.",
        "Move the loss function as you move a model: loss_fn.to(device).",
    ),
    "optimizer-elsewhere": Explanation(
        "An optimizer changes the tensors that it was given when it was made, and no others. Those that the "
        "gradients belong to must be the same ones, on the same device.",
        "Make the optimizer last: build the model, move it, then pass model.parameters() of that very model.",
    ),
    "optimizer-before-move": Explanation(
        "For most optimizers this goes well, because a module is moved in place. Those that make their state "
        "at once, such as Adagrad, leave it behind on the CPU.",
        "Swap the two: first model.to(device), then the optimizer.",
    ),
    "cpu-tensor-in-forward": Explanation(
        "A tensor that forward makes is on the CPU, whatever the model was moved to.",
        "Make it where the input is: device=x.device, or torch.zeros_like(x); a constant belongs into "
        "register_buffer, which moves with the model.",
    ),
    "numpy-on-device": Explanation(
        "NumPy knows host memory only.",
        "Copy first, and leave autograd: tensor.detach().cpu().numpy().",
    ),
    "two-devices": Explanation(
        "One operation needs all its tensors on one device. Single numbers without dimensions may differ.",
        "Look at the devices above, and move the one that stayed behind.",
    ),
    "hard-coded-cuda": Explanation(
        "A device that is written down as “cuda” exists only on machines with such a GPU.",
        "Choose it in one place from what is there, for example with gpulesson.device.choose_device(), and "
        "use that everywhere.",
    ),
    "gpu-left-idle": Explanation(
        "A program that always takes the CPU runs everywhere, and is slow where it need not be.",
        "Let the program choose: the accelerator where there is one, else the CPU.",
    ),
    "evaluated-on-cpu": Explanation(
        "The model was trained on the GPU and carried back to be judged: a copy, and the slower place.",
        "Leave the model where it is, and move the test batches to it.",
    ),
    # -- the five steps
    "missing-zero-grad": Explanation(
        "backward() adds to the gradients that are there. Without zero_grad() every step goes along the sum "
        "of all gradients so far.",
        "Call optimizer.zero_grad() once in every step, before backward().",
    ),
    "zero-grad-after-backward": Explanation(
        "zero_grad() between backward() and step() throws away the very gradients that step() needs.",
        "Keep the order: zero_grad(), backward(), step().",
    ),
    "no-backward": Explanation(
        "Gradients are computed by backward(), and the optimizer needs them.",
        "In every step: loss = loss_fn(model(inputs), targets), zero_grad(), loss.backward(), step().",
    ),
    "no-step": Explanation(
        "backward() computes gradients; only optimizer.step() changes the weights.",
        "Call optimizer.step() after backward(), in every step.",
    ),
    "loss-not-falling": Explanation(
        "When steps, order and devices are right, a training loss that stays where it is mostly means a "
        "learning rate that is far too high or too low, or data whose labels do not fit.",
        "Print the loss of some epochs, and change the learning rate by a factor of ten.",
    ),
    "loss-not-finite": Explanation(
        "Once the loss is infinite or not a number, so are the weights, and nothing mends them.",
        "Lower the learning rate, and look for inputs that are not finite.",
    ),
    "missing-eval": Explanation(
        "Dropout and batch normalization work differently while training. A model that has such layers, and "
        "is judged in training mode, gives other answers than it would in use.",
        "Call model.eval() before you judge it, and model.train() before the next training epoch.",
    ),
    "missing-train": Explanation(
        "eval() stays in force until train() is called. Dropout and batch normalization, where a model has "
        "them, do not do their work meanwhile.",
        "Call model.train() at the beginning of every epoch.",
    ),
    "softmax-before-cross-entropy": Explanation(
        "CrossEntropyLoss takes logits and does the softmax itself. A second one flattens the differences: "
        "training becomes slow and stops early, without an error.",
        "Return the logits as they are. For probabilities, apply softmax afterwards, outside the loss.",
    ),
    "argmax-dimension": Explanation(
        "The output is [samples, classes]. Along dimension 0 one compares the samples of a batch with each "
        "other; the predicted class is the largest along dimension 1.",
        "Use argmax(dim=1).",
    ),
    # -- what is kept and fetched
    "losses-kept": Explanation(
        "A loss drags along the history of how it was computed. As long as you keep it, or a sum of such "
        "losses, that memory is not given back.",
        "Keep the number alone: loss.detach() stays on the device, loss.item() comes to the host.",
    ),
    "item-every-step": Explanation(
        "To hand over a number the GPU must have finished: the CPU waits, and prepares nothing meanwhile.",
        "Add up loss.detach() on the device, and fetch the sum once an epoch.",
    ),
    "gradients-while-judging": Explanation(
        "Without no_grad() or inference_mode() the model's answers keep their history, and memory with it.",
        "Judge inside: with torch.inference_mode():",
    ),
    # -- judging
    "no-accuracy": Explanation(
        "The exercise asks for the accuracy on the test data.",
        "Print a line with the word accuracy and the number, such as: accuracy 0.9500.",
    ),
    "mean-of-batch-means": Explanation(
        "The last batch is shorter than the others, and in a mean of batches its samples count for more.",
        "Add up the right answers of all batches, and divide once by the number of samples.",
    ),
    "wrong-accuracy": Explanation(
        "Accuracy is the number of right answers divided by the number of samples.",
        "Count (predictions == targets).sum() over all batches, and divide by len(test_set).",
    ),
    "not-all-samples": Explanation(
        "An accuracy of a part is an accuracy of that part. A loader with drop_last=True leaves samples out.",
        "Judge every test sample once.",
    ),
    "judged-on-training-data": Explanation(
        "Samples that the model has trained on say nothing about new ones.",
        "Judge the model on the test part.",
    ),
    # -- exercise 2
    "not-answered": Explanation(
        "A prediction made before the run shows what you know; one made after it does not.",
        'Replace each "?" by "cpu" or "cuda:0", then check again.',
    ),
    "made-on-cpu": Explanation(
        "Without device= and outside any “with torch.device(…)”, a tensor is made on the CPU.",
        "Look at the line that makes it: does anything say otherwise?",
    ),
    "made-on-device": Explanation(
        "A tensor made with device=…, or while that device is the default, is made there.",
        "Look at the line that makes it, and at the “with” above it.",
    ),
    "moved-copy": Explanation(
        "to(device) and cpu() return a copy on the other device; the original stays where it was.",
        "Ask which of the two the name stands for.",
    ),
    "result-thrown-away": Explanation(
        "d.to(device) returns a copy, and nobody keeps it. A tensor, unlike a module, is not moved in place.",
        "Which tensor does the name d stand for after that line?",
    ),
    "from-numpy-ignores-default": Explanation(
        "from_numpy shares memory with the array, which is in host memory: no default device changes that.",
        "Where is the memory of a NumPy array?",
    ),
    "number-may-join": Explanation(
        "A tensor without dimensions is a single number, and may join an operation from the CPU. The result "
        "is where the other operand is.",
        "Where is b?",
    ),
    "tensors-changed": Explanation(
        "The exercise is about these eight lines; with others there is nothing to compare.",
        "Put the lines under “# the tensors” back as they were.",
    ),
    # -- exercise 5
    "no-kinds": Explanation(
        "The exercise asks for one accuracy for each kind of picture.",
        "Print, for every kind, its name and its accuracy in percent, the hardest first.",
    ),
    "confusion-columns": Explanation(
        "A row of the matrix holds all pictures of one true kind. A column holds all that were *called* so; "
        "right ones divided by a column's sum is the precision.",
        "Divide the diagonal by the sum along dimension 1.",
    ),
    "kinds-wrong": Explanation(
        "The accuracy of a kind is its entry on the diagonal divided by the sum of its row.",
        "Check with one kind by hand.",
    ),
    "kinds-unordered": Explanation(
        "The exercise asks for the hardest kind first: it is the one that you would look at next.",
        "Sort by accuracy, ascending: argsort() gives the order.",
    ),
    "no-total": Explanation(
        "Adding up the diagonal and dividing by all pictures must give the accuracy that the script printed. "
        "If it does, the ten numbers belong to it.",
        "Print that quotient with the same number of digits, after the ten lines.",
    ),
    # -- exercise 6
    "no-checkpoint": Explanation(
        "What is not in a file is lost when the program stops.",
        "Save a dictionary with everything that has a state: torch.save({…}, path).",
    ),
    "checkpoint-without-optimizer": Explanation(
        "Adam remembers averages of past gradients. With a fresh one the resumed training goes another way.",
        "Save optimizer.state_dict() as well, and load it into the new optimizer.",
    ),
    "optimizer-not-restored": Explanation(
        "The optimizer's state is in the file, but the resumed training began with a fresh optimizer.",
        "Load it: optimizer.load_state_dict(checkpoint[…]).",
    ),
    "random-state-not-restored": Explanation(
        "Dropout and shuffling draw from torch's generator. A resumed training that draws other numbers goes "
        "another way.",
        "Save torch.get_rng_state(), and restore it last, with torch.set_rng_state(…).",
    ),
    "epoch-not-restored": Explanation(
        "The training must go on where it stopped: not from the beginning, and not one epoch further.",
        "Save the number of finished epochs, and begin the range there.",
    ),
    "loads-anything": Explanation(
        "With weights_only=False a file may run any code on your machine.",
        "Keep weights_only=True, and save nothing but tensors and plain values.",
    ),
    "not-the-same-bits": Explanation(
        "Everything that has a state must be saved and restored: weights, optimizer, epoch, random numbers. "
        "And in between nothing may draw a random number.",
        "Restore the random state last, directly before the training goes on.",
    ),
    # -- exercises 8, 9, 11 and 12
    "not-waited-for": Explanation(
        "run() returns as soon as the work is handed over. The clock must be read when it is done.",
        "Call machine.synchronize() after run(), before you look at the clock again.",
    ),
    "older-work-measured": Explanation(
        "The device was still busy with something older, and the measurement contains it.",
        "Call machine.synchronize() before the clock starts, too.",
    ),
    "not-warmed-up": Explanation(
        "The first calls pay for what is done only once.",
        "Run it some times before you measure. How many calls does this device need?",
    ),
    "neighbour-measured": Explanation(
        "Now and then somebody else uses the device. One measurement may be such a one, and a mean contains "
        "all of them.",
        "Measure many times, and take the median.",
    ),
    "called-for-each-sample": Explanation(
        "A loader that asks for one sample at a time calls Python for each, and stacks them afterwards.",
        "Fetch a whole batch with one call: a sampler that yields lists, and batch_size=None.",
    ),
    "floats-copied": Explanation(
        "A float32 takes four bytes, a pixel one. What is copied as bytes crosses in a quarter of the time "
        "that the link needs for floats.",
        "Copy the bytes, and make floats of them on the device.",
    ),
    "bytes-for-nothing": Explanation(
        "What is computed for the whole dataset in every step is mostly not used in that step.",
        "Choose the rows first, and convert only those.",
    ),
    "reads-for-nothing": Explanation(
        "A value that is read in every step makes the CPU wait in every step, when the device is a GPU.",
        "Keep loss.detach(), and read all of them together in the end.",
    ),
    "operators-for-nothing": Explanation(
        "Work whose result nobody uses costs as much as any other.",
        "Profile it, and ask of each line in the table who uses it.",
    ),
    "rate-too-small": Explanation(
        "A larger batch takes fewer steps through the same data, so each step has to be longer.",
        "Double RATE, and look again.",
    ),
    "rate-oversteps": Explanation(
        "Steps that are too long jump over what they look for, and the loss stays high.",
        "Halve RATE, and look again.",
    ),
    # -- how a program ends
    "error": Explanation(
        "The program stopped before it was done.",
        "Read the last line of the message above first: it says what was wrong, the line says where.",
    ),
    "syntax-error": Explanation(
        "Python cannot read the file, so nothing of it ran.",
        "Look at this line, and at the one above it: a bracket, a colon or a quotation mark.",
    ),
    "exited": Explanation(
        "A program that ends itself with a status other than 0 says that something went wrong.",
        "Find what made it stop here; or leave the sys.exit out.",
    ),
    "vanished": Explanation(
        "Nothing could be seen of what it did: os._exit, or a crash in a library, ends a process at once.",
        "Let the program run to its last line.",
    ),
    "time": Explanation(
        "Either a loop never ends, or the work is too much for the time.",
        "Look at the loop around this line: what makes it stop? If the work is meant, allow more: "
        "--time-limit 300.",
    ),
    "memory": Explanation(
        "Something grows without end, or is far larger than it looks.",
        "Look for a list that is only ever added to, and at the shapes of what is made here.",
    ),
    "asks-for-input": Explanation(
        "Nobody is there to answer while a program is checked.",
        "Replace input() by a value in the program.",
    ),
    "not-text": Explanation(
        "Python source is text in UTF-8.",
        "Save the file as UTF-8: every editor offers that under “save as” or in its status bar.",
    ),
    "no-torch": Explanation(
        "Without PyTorch there is nothing to check.",
        "Install it for your machine, as the page “Set up” shows; then: python -m gpulesson.",
    ),
    "no-practice-gpu": Explanation(
        "The practice GPU stands on parts of PyTorch that this version does not have.",
        "Install a version that the course supports: pip install torch.",
    ),
    "slow-start": Explanation(
        "Nothing of your program had run yet.",
        "Try again; if it stays so, see how long python -c “import torch” takes.",
    ),
}
