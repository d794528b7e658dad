"""Functions that are half written, or wrong in ways that no exercise knows: `test_contracts` checks them."""

BEGUN = """torch.manual_seed(1)
    model = MLP(784, 64, 10).to(pixels.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for step in range(steps):
        images, targets = batch(pixels, labels, step)
        kept.append(torch.nn.functional.cross_entropy(model(images), targets).detach())
"""
UNCALLED = """model.zero_grad()
    for x, y in zip(inputs.split(rows), labels.split(rows)):
        (loss_fn(model(x), y) * len(x) / len(inputs)).backward"""
WARM_UP = "for _ in range(20): one_run(machine, work)\n    "
WRAPPED = """torch.cuda.set_device(rank := int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel = nn.parallel.DistributedDataParallel(model.cuda())
"""
OUTPUTS = """    for epoch in {}:
        for rows in my_batches(len(inputs), 32, epoch, rank, 2):
            outputs = parallel(inputs[rows].cuda())
"""
BACKWARD = "            outputs.sum().backward()\n"
FASTEST = "return min(one_run(machine, work) for _ in range(20))"
NOTHING = "weights=missing; adam=missing; random=missing; counted=missing"
ASKING = """times = []
    for _ in range(20):
        start = machine.now
        machine.run(work)
        times.append(machine.now - start)
    machine.synchronize()
    return statistics.median(times)"""
SIXTY_FOUR = """for first in range(0, len(pictures), 64):
        pixels, labels = pictures[range(first, min(first + 64, len(pictures)))]
        yield floats(pixels, device), labels.to(device)"""
ONE_BATCH = """model.train()
    for inputs, labels in batches:
        loss = loss_fn(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()"""
SHARES = "confusion.diag() / confusion.sum(dim=1)"
WEIGHTS = "torch.randn(10, 784, device=device)"
PRODUCT = f"torch.rand(count, 784, device=device) @ {WEIGHTS}.T"
ON_CUDA = PRODUCT.replace("device=device", "device='cuda'")
LOSSES = """losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = loss_fn(model(X), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())"""
ITEMS = "return [loss_fn(model(x), y).item for x, y in batches]"
LBFGS = """torch.manual_seed(seed)
    model = make_model().to(device).train()
    X, y, loss_fn = X_train.to(device), y_train.to(device), nn.CrossEntropyLoss()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = loss_fn(model(X), y)
        loss.backward()
        return loss

    for _ in range(epochs):
        optimizer.step(closure)
    return accuracy(model, X_test.to(device), y_test.to(device))"""
EPOCHS = """model.to(device)
    optimizer, loss_fn = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    for _ in {}:
        for batch in DataLoader(train_set, batch_size=32, shuffle=True):
            train_step(model, *batch, loss_fn, optimizer, device)
    return accuracy(model, DataLoader(test_set, batch_size=64), device)"""

UNFINISHED = [
    ("04", "train_step", "loss_fn(model.train()(inputs.to(device)), targets.to(device))", "", "backwards"),
    ("13", "accumulate", UNCALLED, "", "backward"),
    ("13", "accumulate", "model.zero_grad()", "", "seen"),
    ("04", "accuracy", "model.eval()\n    for _ in batches: pass\n    return 0", "", "rows"),
    ("11", "losses", f"{BEGUN}    return torch.stack(kept).tolist()", "", "backward"),
    ("11", "losses", f"{BEGUN}        return torch.stack(kept).tolist()", "", "backward"),
    ("08", "stopwatch", "for _ in range(20): machine.run(work)", "", "measured"),
    ("03", "train", "losses = []\n    for _ in range(epochs): ...\n    return losses", "", "trained"),
    ("05", "per_class", "return confusion.diag().tolist()", "over=none", ""),
    ("05", "per_class", "return [60.0, 37.0, 53.0, 0.0]", "", "empty"),
    ("05", "per_class", "return confusion / 2", "", "kind"),
    ("05", "per_class", f"return ({SHARES}).tolist()[:3]", "", "count"),
    ("05", "per_class", f"s = {SHARES}\n    return s[~s.isnan()].tolist()", "empty=left out", ""),
    ("01", "scores", f"w = {WEIGHTS}", "returns=nothing", "on the GPU"),
    ("01", "scores", f"return ({PRODUCT}).double()", "", ""),
    ("01", "scores", f"return {ON_CUDA}", "asked=cuda", ""),
    ("01", "scores", f"return {PRODUCT} + torch.randn(10, device=device) * 9", "", "product"),
    ("01", "scores", "return torch.zeros(count, 10, device=device)", "", "on the GPU"),
    ("01", "scores", f"return ({PRODUCT}).relu()", "", "values"),
    ("01", "scores", f"return {PRODUCT.replace('.T', '.reshape(784, 10)')}", "", "product"),
    ("03", "train", f"{LOSSES}\n    return sum(losses) / epochs", "", "kind"),
    ("03", "run", LBFGS, "", ""),
    ("04", "run", EPOCHS.format("range(1, epochs)"), "passes=one less", ""),
    ("04", "run", EPOCHS.format("range(1)"), "", "epochs"),
    ("06", "save", "torch.save({}, path)", NOTHING, ""),
    ("07", "batch_losses", ITEMS, "", "kind"),
    ("07", "batch_losses", "return sum(loss_fn(model(x), y).detach() for x, y in batches)", "", "kind"),
    ("07", "probabilities", "return outputs.detach().cpu().softmax(dim=0).tolist()", "softmax=0", "kind"),
    ("08", "stopwatch", f"{WARM_UP}times = []", "returns=nothing", ""),
    ("08", "stopwatch", f"{WARM_UP}return sum(one_run(machine, work) for _ in range(30)) / 7", "", "summary"),
    ("08", "stopwatch", f"{WARM_UP}{FASTEST}", "summary=fastest", ""),
    ("08", "stopwatch", f"{WARM_UP}{ASKING}", "after=no", ""),
    ("09", "feed", "yield 5", "", "calls"),
    ("09", "feed", "import torch; yield torch.tensor(5)", "", "calls"),
    ("09", "feed", SIXTY_FOUR, "", "size"),
    ("10", "train", ONE_BATCH, "rows=first", ""),
    ("14", "run", WRAPPED, "", "gradients"),
    ("14", "run", WRAPPED + OUTPUTS.format("range(epochs)"), "", "gradients"),
    ("14", "run", WRAPPED + OUTPUTS.format("range(1)") + BACKWARD, "", "epochs"),
]  # fmt: skip
"""The exercise, its function, what stands in that, which mistakes are named, and what else is said."""
