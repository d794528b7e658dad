"""Exercise 6, solved: a run, stopped and resumed, that ends with the same bits."""

import torch


def save(path, model, optimizer, epoch):
    checkpoint = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),  # dropout and shuffling draw from this one
    }
    part = path.with_suffix(".part")
    torch.save(checkpoint, part)
    part.replace(path)  # a kill while saving leaves the file from before


def run(make_run, train, epochs, folder, stop_after=None):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "checkpoint.pt"
    model, optimizer = make_run()
    done = 0
    if path.exists():
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        torch.set_rng_state(checkpoint["rng"])  # last, so that nothing draws in between
        done = checkpoint["epoch"]
    for epoch in range(done, epochs):
        train(model, optimizer)
        save(path, model, optimizer, epoch + 1)
        if epoch + 1 == stop_after:
            break
    return model
