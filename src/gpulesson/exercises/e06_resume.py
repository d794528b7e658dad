"""Exercise 6: a training that is stopped and resumed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import causes, definitions, evidence, source_text, steps
from gpulesson.exercises.trace import OptimizerSeen, SaveSeen, Site, Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NO_CHECKPOINT = Diagnosis(
    "no-checkpoint",
    "What is not in a file is lost when the program stops.",
    "Save a dictionary with everything that changes during training: torch.save({…}, path).",
)
CHECKPOINT_WITHOUT_OPTIMIZER = Diagnosis(
    "checkpoint-without-optimizer",
    "Adam keeps averages of past gradients. A new Adam has none, so the resumed run takes other steps.",
    "Save optimizer.state_dict() as well, and load it into the new optimizer.",
)
OPTIMIZER_NOT_RESTORED = Diagnosis(
    "optimizer-not-restored",
    "The optimizer's state is in the file, but the resumed run began with a new optimizer.",
    "Load it into the new optimizer, with load_state_dict().",
)
RANDOM_STATE_NOT_SAVED = Diagnosis(
    "random-state-not-saved",
    "Dropout and shuffling draw random numbers. If the resumed run draws other numbers, it ends with "
    "other weights.",
    "Save torch.get_rng_state() with the rest, and restore it last, with torch.set_rng_state().",
)
RANDOM_STATE_NOT_RESTORED = Diagnosis(
    "random-state-not-restored",
    "Dropout and shuffling draw random numbers. If the resumed run draws other numbers, it ends with "
    "other weights.",
    "Restore the saved state last, directly before you train on, with torch.set_rng_state().",
)
SEEDED_AGAIN = Diagnosis(
    "seeded-again",
    "A seed starts the random numbers from the beginning. The run was stopped in the middle of them.",
    "Save torch.get_rng_state() when the run stops, and restore it here instead of the seed, with "
    "torch.set_rng_state().",
)
EPOCH_NOT_RESTORED = Diagnosis(
    "epoch-not-restored",
    "The resumed run has to do the epochs that are left: no more and no fewer.",
    "Save the number of finished epochs, and begin there.",
)
LOADS_ANYTHING = Diagnosis(
    "loads-anything",
    "With weights_only=False a file can run any code on your machine.",
    "Write weights_only=True, and save only tensors and plain values.",
)
MODEL_NOT_RESTORED = Diagnosis(
    "model-not-restored",
    "A new model has random weights until you load the saved ones.",
    "Load them into the new model, with load_state_dict().",
)
RANDOM_STATE_TOO_EARLY = Diagnosis(
    "random-state-too-early",
    "Every epoch draws random numbers. The resumed run needs the state at the moment of the stop.",
    "Call torch.get_rng_state() when you save, after the last epoch before the stop.",
)
RANDOM_STATE_LOST = Diagnosis(
    "random-state-lost",
    "torch.manual_seed(…), which make() calls, overwrites the random state that you restored.",
    "Restore the random state last, directly before you train on.",
)
NOT_RESUMED = Diagnosis(
    "not-resumed",
    "A checkpoint is useful only if a run can go on from it.",
    "Make a new model and optimizer, load the file into them, and train the epochs that are left.",
)
NOT_ANEW = Diagnosis(
    "not-anew",
    "After a real stop only the file is left. The resumed run has to begin with new objects, and with "
    "that file.",
    "Call make() again, and load what this run has saved into the new model and optimizer.",
)
TASK_CHANGED = Diagnosis(
    "task-changed",
    "Without dropout and shuffling nothing is random, and there is nothing to restore.",
    "Put Dropout and shuffle=True back. Then save the random state and restore it.",
)
NO_SEED = Diagnosis(
    "no-seed",
    "Two runs can be compared only if they begin with the same weights, from the same seed.",
    "Call torch.manual_seed(0) in make(), before the model is made.",
)
NOT_THE_SAME_BITS = Diagnosis(
    "not-the-same-bits",
    "Weights, optimizer, epoch and random state must all be saved and restored, and nothing may draw a "
    "random number in between.",
    "Restore the random state last, directly before you train on.",
)


def resuming(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what a resumed training lacks: the first thing, in the order in which one meets them."""
    saves = [save for save in trace.saves if save.has_model]
    runs = [optimizer for optimizer in trace.optimizers if optimizer.steps]
    unsafe = next((load for load in trace.loads if not load.safe), None)
    if not saves:
        yield source.failure(NO_CHECKPOINT, 0, "No file with the model's weights was saved.")
        return
    if unsafe is not None:
        yield source.failure(LOADS_ANYTHING, unsafe.site, "The file was loaded with weights_only=False.")
    if not trace.loads or "anew" not in trace.facts:
        what = f"A file was saved, but no new run went on from it. Files loaded: {len(trace.loads)}."
        yield source.failure(NOT_RESUMED, saves[-1].site, what)
        return
    for finding in list(_lacking(trace, source, saves, runs))[:1]:
        yield _in_own_names(finding, source)


def _lacking(
    trace: Trace, source: Source, saves: list[SaveSeen], runs: list[OptimizerSeen]
) -> Iterator[Finding]:
    facts, load = trace.facts, trace.loads[-1]
    resumed, longest = runs[-1], max(run.steps for run in runs)
    save = next((save for save in reversed(saves) if save.step <= load.step), saves[-1])
    resumed_at = source_text.loop_around(source.lines, facts["resumed_at"][1])
    restored = _given(facts["model_loaded"]) or Site(*facts["loaded_at"])
    if not facts["anew"]:
        what = "The last run used a model or an optimizer that had trained before the file was loaded."
        yield source.failure(NOT_ANEW, load.site, what)
    if not load.saved_here or not save.own_steps:
        what = "The loaded file is not one that this run saved after training."
        yield source.failure(NOT_ANEW, load.site, what)
    if not any(save.has_optimizer for save in saves):
        what = "The file has the model's weights, but not the optimizer's state."
        yield source.failure(CHECKPOINT_WITHOUT_OPTIMIZER, _collected(source, save.site), what)
    elif not resumed.state_loaded:
        what = f"The {resumed.name} of the resumed run began without its state."
        yield source.failure(OPTIMIZER_NOT_RESTORED, restored, what)
    if not facts["weights_loaded"]:
        what = "The resumed run began with new weights, not with those in the file."
        yield source.failure(MODEL_NOT_RESTORED, restored, what)
    if not facts["dropout"]:
        what = "The model has no dropout any more."
        yield source.failure(TASK_CHANGED, Site(*facts["made"]), what)
    elif not facts["shuffled"]:
        what = "Every epoch uses the same order of samples."
        line = definitions.first_match(source.lines, r"shuffle\s*=\s*False|\bBatches\(|\bDataLoader\(")
        yield source.failure(TASK_CHANGED, line or Site(*facts["made"]), what)
    if not facts["same_start"]:
        what = "The undisturbed run and the stopped run began with different weights."
        yield source.failure(NO_SEED, Site(*facts["made"]), what)
    if not facts["same"]:  # the bits are the proof
        if any(save.old_random_state for save in trace.saves):  # in a file of its own, too
            what = "The random state was read too early: random numbers were drawn before the file was saved."
            read = definitions.first_match(source.lines, r"get_(rng_)?state\(")
            yield source.failure(RANDOM_STATE_TOO_EARLY, _given(facts["rng_read"]) or read, what)
        elif not facts["rng_restored"][1] and facts["seeded_again"][1]:
            saved = any(save.random_state for save in trace.saves)
            lacks = "the saved random state was not restored" if saved else "no random state had been saved"
            what = f"After loading, a new seed was set, and {lacks}."
            yield source.failure(SEEDED_AGAIN, Site(*facts["seeded_again"]), what)
        elif not any(save.random_state for save in trace.saves):
            what = "The file has no random state."
            yield source.failure(RANDOM_STATE_NOT_SAVED, _collected(source, save.site), what)
        elif not facts["rng_restored"][1]:
            what = "The random state is in the file. After loading, it was not restored."
            yield source.failure(RANDOM_STATE_NOT_RESTORED, resumed_at, what)
        elif facts["rng_lost"]:
            what = "The random state was restored, but then torch.manual_seed(…) set another one."
            yield source.failure(RANDOM_STATE_LOST, Site(*facts["rng_restored"]), what)
    if save.own_steps + resumed.steps != longest:
        what = (
            f"The resumed run took {plural(resumed.steps, 'step')}; expected "
            f"{longest - save.own_steps}, because "
            f"{save.own_steps} of {longest} were done before the stop."
        )
        steps_left = longest - save.own_steps
        diagnosis = _epochs(source, facts["resumed_at"], longest, steps_left, resumed.steps)
        yield source.failure(diagnosis, resumed_at, what)
    if not facts["same"]:
        what = "At the end the weights of the two models differ."
        yield source.failure(NOT_THE_SAME_BITS, resumed_at, what)


def _epochs(source: Source, resumed_at: list[Any], all_steps: int, left: int, taken: int) -> Diagnosis:
    """Say with which epoch the run goes on; and which + 1 or - 1 is wrong, where the line has one."""
    epoch = all_steps // 6
    if not epoch or left % epoch:
        return EPOCH_NOT_RESTORED
    done = 6 - left // epoch
    remedy = (
        f"Save the number of finished epochs, {done}, and begin there: the next ones are range({done}, 6)."
    )
    text = source.line(resumed_at[1])
    for sign, missing in (("+", epoch), ("-", -epoch)):
        if left - taken == missing and re.search(rf"[\w\])]\s*\{sign}\s*1\b", text):
            remedy = (
                f"Leave out the {sign} 1: {done} epochs are done, and the next ones are range({done}, 6)."
            )
    return EPOCH_NOT_RESTORED._replace(remedy=remedy)


_ROLES = {
    OPTIMIZER_NOT_RESTORED.kind: ("optimizer", "Load it: {optimizer}.load_state_dict({entry})."),
    MODEL_NOT_RESTORED.kind: ("model", "Load them: {model}.load_state_dict({entry})."),
    RANDOM_STATE_NOT_RESTORED.kind: (
        "random",
        "Restore the saved state last, directly before you train on: torch.set_rng_state({entry}).",
    ),
    SEEDED_AGAIN.kind: ("random", "Restore the saved state here instead: torch.set_rng_state({entry})."),
}
"""What of the saved dictionary a kind of fault is about, and what to do with it."""


def _in_own_names(finding: Finding, source: Source) -> Finding:
    """Return a finding whose next step has the names that the learner's file gives the saved things."""
    role, remedy = _ROLES.get(finding.kind, ("", ""))
    entry, owner = _entry(source, role) if role else ("", "")
    if not entry:
        return finding
    return replace(finding, remedy=remedy.format(entry=entry, **{role: owner}))


_OPTIMIZER = r"(?i)opt|adam|sgd"


def _entry(source: Source, role: str) -> tuple[str, str]:
    """Return a saved thing as the program gets it back, such as ``state["adam"]``, and what it belongs to."""
    nodes = source_text.all_nodes(source.lines)
    loaded = [
        target.id
        for node in nodes
        if isinstance(node, ast.Assign)
        and re.match(r"(torch\.)?load(_checkpoint)?\(", ast.unparse(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    if len(set(loaded)) != 1:
        return "", ""
    for node in nodes:
        pairs: list[tuple[str, str]] = []
        if isinstance(node, ast.Dict):
            keys = [(key, value) for key, value in zip(node.keys, node.values, strict=True)]
            pairs = [(repr(k.value), ast.unparse(v)) for k, v in keys if isinstance(k, ast.Constant)]
        elif isinstance(node, ast.Call) and source_text.called(node) == "dict":
            pairs = [(repr(each.arg), ast.unparse(each.value)) for each in node.keywords if each.arg]
        if not any("state_dict" in value for _, value in pairs):
            continue
        for key, value in pairs:
            if _role(key, value) == role:
                return f"{loaded[0]}[{key}]".replace("'", '"'), value.removesuffix(".state_dict()")
    return "", ""


def _role(key: str, value: str) -> str:
    """Tell what an entry of a saved dictionary is; an empty text if that is not clear."""
    if "state_dict" in value:
        return "optimizer" if re.search(_OPTIMIZER, value) or re.search(_OPTIMIZER, key) else "model"
    if "rng" in value or "get_state" in value:
        return "random"
    return ""


def _given(site: list[Any]) -> Site | None:
    return Site(*site) if site[1] else None


def _collected(source: Source, site: Site) -> int:
    """Return the line of the dictionary or list that a line saves, where it has a name; or that line."""
    nodes = source_text.all_nodes(source.lines)
    saves = [node for node in nodes if isinstance(node, ast.Call) and node.lineno == site.line]
    names = {argument.id for node in saves for argument in node.args if isinstance(argument, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Assign) and names & set(map(ast.unparse, node.targets)):
            is_call = isinstance(node.value, ast.Call) and source_text.called(node.value) == "dict"
            if is_call or isinstance(node.value, ast.Dict | ast.List | ast.Tuple):
                return node.lineno
    return site.line


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note how the last run began, and whether it ended with the bits of the undisturbed one."""
    import torch

    from gpulesson.exercises.watch import frames

    values, training = observer.values, observer.training
    groups = [(optimizer, seen) for optimizer, seen in training.groups if seen.steps]
    new_seeds = [site for site in values.seeded_since if site not in values.seeded_before]
    way = training.first_ways.get(id(groups[-1][0]), []) if groups else []
    loaded_at, resumed_at = frames.parted(values.load_way, way)
    trace.facts |= {
        "passes": 40,
        "rng_read": values.rng_read,
        "rng_restored": values.rng_restored,
        "rng_lost": values.rng_lost,
        "seeded_again": next(iter(new_seeds), Site()),
        "model_loaded": training.model_loaded,
        "loaded_at": loaded_at,
        "resumed_at": resumed_at,
    }
    owners = [(_owner(observer, optimizer), seen) for optimizer, seen in groups]
    owners = [(module, seen) for module, seen in owners if module is not None]
    if len(owners) < 2 or not values.loads:
        return
    last, resumed = owners[-1]
    whole, longest = max(owners[:-1], key=lambda pair: pair[1].steps)
    stopped = next(seen for _, seen in reversed(owners) if seen.first_step < values.loads[-1].step)
    with observer.reader.unnoticed():
        states = whole.state_dict(), last.state_dict()
        pairs = list(zip(training.first_weights(longest), training.first_weights(stopped), strict=False))
        begun = zip(training.first_weights(longest), training.first_weights(resumed), strict=False)
        trace.facts |= {
            "weights_loaded": not all(a.shape == b.shape and torch.equal(a, b) for a, b in begun),
            "anew": all(
                seen.first_step >= values.loads[-1].step for module, seen in owners if module is last
            ),
            "same": whole is not last
            and states[0].keys() == states[1].keys()
            and all(torch.equal(states[0][name], states[1][name]) for name in states[0]),
            "same_start": all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs),
        }
    model = next(seen for module, seen in training.models.models if module is whole)
    calls = [call for call in training.models.calls if call.seen.trained]
    calls = [call for call in calls if training.models.models[call.seen.model][0] is whole]
    epoch = max(1, longest.steps // 6)
    batches = [call.marks.tolist() for call in calls if call.marks is not None]
    trace.facts["dropout"] = model.moody
    trace.facts["shuffled"] = batches[:epoch] != batches[epoch : 2 * epoch]
    trace.facts["made"] = model.made


def _owner(observer: Observer, optimizer: Any) -> Any:
    """Return the model whose parameters an optimizer changes."""
    from gpulesson.exercises.watch.training import parameters_of

    wanted = {id(tensor) for tensor in parameters_of(optimizer)}
    models = [module for module, _ in observer.training.models.models]
    return next((each for each in models if wanted & {id(tensor) for tensor in each.parameters()}), None)


EXERCISE = Exercise(
    name="06_resume",
    lesson="Save, load, resume",
    title="Resume without a trace",
    demand="the resumed run goes on where the other stopped",
    demand_for={"loads-anything": "the file is loaded with weights_only=True"},
    ends_rule=frozenset({NO_CHECKPOINT.kind, NOT_RESUMED.kind}),
    difficulty="medium",
    hint_for={
        "random-state-not-saved": 2,
        "random-state-not-restored": 2,
        "random-state-too-early": 2,
        "seeded-again": 2,
        "random-state-lost": 3,
        "epoch-not-restored": 3,
        "optimizer-not-restored": 3,
        "model-not-restored": 3,
        "not-the-same-bits": 3,
    },
    hints=(
        "Which object, besides the model, remembers past steps?",
        "Dropout and shuffling draw random numbers. How far has the generator come when the run stops?",
        "Save a dictionary: epoch, model, optimizer, torch.get_rng_state(). Restore the random state last.",
    ),
    rules=(*COMMON, causes.own_work, resuming),
    last=(steps.taken, evidence.enough, steps.loss_falls),
    probe=probe,
    starts_empty=True,
)
