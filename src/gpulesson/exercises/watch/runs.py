"""Sums up each training of a program that trains several models: how it was set, and how far it came."""

from __future__ import annotations

from typing import Any

import torch

from gpulesson.exercises.watch.observer import Observer
from gpulesson.exercises.watch.rows import Part
from gpulesson.exercises.watch.training import parameters_of

_BY_CHANCE = 1 << 40
"""A seed as large as this was drawn, not given."""


def seen(observer: Observer, train: tuple[Any, Any], test: tuple[Any, Any]) -> list[dict[str, Any]]:
    """Say of each optimizer that took a step what it trained, and how its model was tested.

    Parameters
    ----------
    observer : Observer
        Of the run.
    train, test : tuple
        Inputs and labels of the training and of the test part.

    Returns
    -------
    list of dict
        In the order in which the optimizers were made. ``seed`` (-1: none given), ``rate``, ``batch``,
        ``optimizer``, ``parameters``; how many different rows of each part, and of neither, it was
        ``trained_on`` and ``tested_on`` at last (three numbers each); ``tests``: for each, the epochs until
        then and the share of right answers; ``ended``: all epochs; ``blind``: it could not be followed; and
        lines: ``made``, ``model_made``, ``trained_at``, ``tested_at``, ``ways``.
    """
    training = observer.training
    with observer.reader.unnoticed():
        inputs, labels = (
            torch.cat([torch.as_tensor(part) for part in pair]) for pair in zip(train, test, strict=True)
        )
        known = Part.of(inputs, labels)
        found = []
        for optimizer, how in training.groups:
            own = {id(tensor) for tensor in parameters_of(optimizer)}
            numbers = [
                number
                for number, (module, _) in enumerate(training.models.models)
                if any(id(parameter) in own for parameter in module.parameters())
            ]
            if not how.steps or not numbers:
                continue
            calls = [
                call for call in training.models.calls if call.seen.model in numbers and call.seen.finished
            ]
            model = training.models.models[numbers[0]][1]
            ways = training.made_ways.get(id(optimizer), []), training.first_ways.get(id(optimizer), [])
            found.append(
                {
                    "seed": how.seed if 0 <= how.seed < _BY_CHANCE else -1,
                    "rate": how.rate,
                    "optimizer": how.name,
                    "parameters": sum(tensor.numel() for tensor in parameters_of(optimizer)),
                    "made": how.made.line,
                    "model_made": model.made.line,
                    "ways": [[site.line for _, site in way if site.file == how.ran_in] for way in ways],
                    **_of_calls(calls, known, len(train[1])),
                }
            )
    return found


def _of_calls(calls: list[Any], known: Part, train: int) -> dict[str, Any]:
    """Follow the calls of one model: what it was trained on, and each test of it."""
    lost = [call for call in calls if call.marks is None]
    calls = [call for call in calls if call.marks is not None]
    every = known.find(torch.cat([call.marks for call in calls])) if calls else torch.zeros(0)
    samples, batch = 0, 0
    trained: list[Any] = []
    passes: dict[int, list[tuple[Any, int]]] = {}
    """By the samples trained on before: the rows of each call that tests, and how many answers were right."""
    places = {"trained_at": 0, "tested_at": 0}
    for call, place in zip(calls, torch.split(every, [len(call.marks) for call in calls]), strict=True):
        if call.seen.trained:
            samples, batch = samples + len(place), max(batch, len(place))
            trained.append(place)
            places["trained_at"] = call.seen.site.line
        elif samples:
            right = int((call.predictions == known.labels[place])[place >= 0].sum())
            passes.setdefault(samples, []).append((place, right))
            if places["tested_at"] == 0 or bool((place >= train).any()):
                places["tested_at"] = call.seen.site.line
    tests: list[list[float]] = []
    tested: list[Any] = []
    for number, (done, found) in enumerate(passes.items(), 1):
        some = [
            each for each in found if bool((each[0] >= train).any())
        ]  # the training part may be looked at
        tested = [place for place, _ in some or found]
        epochs = number if 0.6 < done / train / number < 1.1 else -(-done // train)
        tests.append([epochs, sum(right for _, right in some or found) / sum(map(len, tested))])
    return {
        "batch": batch,
        "tests": tests,
        "ended": max(-(-samples // train), int(tests[-1][0]) if tests else 0),
        "blind": any(call.seen.trained for call in lost) or (bool(lost) and samples not in passes),
        "trained_on": _different(trained, train),
        "tested_on": _different(tested, train),
        **places,
    }


def _different(places: list[Any], train: int) -> list[int]:
    """Count different rows of the training part and of the test part, and all rows of neither."""
    if not places:
        return [0, 0, 0]
    every = torch.cat(places)
    unique = torch.unique(every[every >= 0])
    inside = int((unique < train).sum())
    return [inside, len(unique) - inside, int((every < 0).sum())]
