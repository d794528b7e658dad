"""Exercise 13, solved: each part by its share, and one step a batch."""


def accumulate(model, loss_fn, inputs, labels, rows):
    model.zero_grad()
    for start in range(0, len(inputs), rows):
        some = slice(start, start + rows)
        loss = loss_fn(model(inputs[some]), labels[some])
        loss = loss * len(labels[some]) / len(labels)
        loss.backward()


def train(model, optimizer, loss_fn, batches, device, rows):
    for inputs, labels in batches:
        inputs, labels = inputs.to(device), labels.to(device)
        accumulate(model, loss_fn, inputs, labels, rows)
        optimizer.step()
