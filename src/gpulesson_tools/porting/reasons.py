"""From an error to a change: which tensor it was about, and where a person would move it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import libcst as cst

from gpulesson_tools.porting.edits import Binding, Source, called
from gpulesson_tools.porting.facts import CHOICE, Failure, Name, Scene, Spot, Thing

CONSTANT = frozenset(("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "zeros"))
"""What makes a tensor of nothing but numbers in the code: it is not data."""
_CHAINED = frozenset(("train", "eval", "apply", "double", "float", "half", "requires_grad_"))


class Verb(NamedTuple):
    """What happens to one thing, and to several."""

    one: str
    several: str


MOVES = Verb("moves to the device", "move to the device")
COMES_BACK = Verb("comes back to the CPU", "come back to the CPU")
MADE_THERE = Verb("makes its tensor on the device", "make their tensors on the device")
GOES = Verb("goes to the device", "go to the device")
BUFFER = Verb(
    "becomes a buffer of its module, which moves with it",
    "become buffers of their module, which move with it",
)
NOT_ALWAYS_CPU = Verb("is no longer always the CPU", "are no longer always the CPU")
CHOSEN = Verb("is chosen once", "are chosen once")


class Change(NamedTuple):
    """A change in one file."""

    file: str
    text: bytes  # the whole file afterwards
    subjects: tuple[str, ...]  # what changes, in a few words each: ("x", "y")
    verb: Verb
    lesson: int
    message: str = ""  # what the GPU says without it; "" if it says nothing
    line: int = 0  # where it stands in the file in the end
    inside: bool = False
    """In a method of a module, or where a tensor is computed or used: a person would put it there last."""

    @property
    def what(self) -> str:
        """The change in words: ``"x and y move to the device"``."""
        several = len(self.subjects) > 1
        return f"{listed(self.subjects)} {self.verb.several if several else self.verb.one}"


def listed(words: Sequence[str]) -> str:
    """Return words with commas between, and "and" before the last."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class Files:
    """The files of a script, by their path from its folder: their texts, and those of the changed ones."""

    def __init__(self, originals: Mapping[str, bytes], texts: Mapping[str, bytes] | None = None) -> None:
        self.originals, self.texts = originals, texts or {}
        self._sources: dict[bytes, Source] = {}
        self.devices: dict[str, str] = {}

    def changed(self, file: str, text: bytes | None) -> Files:
        """Return files of which one has another text, or that of the reader again."""
        others = {name: each for name, each in self.texts.items() if name != file}
        after = Files(self.originals, others if text is None else {**others, file: text})
        after._sources, after.devices = self._sources, self.devices
        return after

    def __getitem__(self, file: str) -> Source:
        text = self.texts.get(file) or self.originals[file]
        if text not in self._sources:
            self._sources[text] = Source(text)
        return self._sources[text]

    def device(self, file: str) -> str:
        """Return the name that the device has, or will have, in a file."""
        if file not in self.devices:
            source = self[file]
            free = [name for name in ("device", "gpu_or_cpu") if not source.binds(name)]
            self.devices[file] = source.device_name() or (free[0] if free else "the_device")
        return self.devices[file]

    def moved(self, spot: Spot, node: Any, subject: str = "", lesson: int = 2) -> Change:
        """Return the change that moves an expression, by itself or under the name of its subject."""
        source = self[spot.file]
        text = source.append(node, "to", self.device(spot.file))
        return Change(spot.file, text, (subject or source.code(node),), MOVES, lesson)


def model(files: Files, thing: Thing, frames: tuple[Spot, ...]) -> Change | None:
    """Move a module where it is made, or after the place where it gets its name."""
    named = f"the model {_shown(thing)}".removesuffix(" model")
    for spot in _made_at(files, thing, frames):
        source = files[spot.file]
        call = source.expression(spot)
        if isinstance(call, cst.Call) and not source.is_moved(call):
            return files.moved(spot, _chain(source, call), named, lesson=4)
    for name in thing.names:
        if name.held or name.module or name.name.startswith("self."):
            continue
        spot = frames[name.frame]
        source, device = files[spot.file], files.device(spot.file)
        found = source.binding(name.name, spot)
        if found is not None and found.kind in ("assign", "part") and not _sent(source, found, device):
            after = source.statement(found.node)
            text = source.move([name.name], device, after=after)
            return Change(spot.file, text, (named,), MOVES, 4)
    return None


def _sent(source: Source, found: Binding, device: str) -> bool:
    """Return whether a name gets its value on the device: once more would not help."""
    return found.kind == "assign" and source.code(found.node).endswith(f".to({device})")


def _made_at(files: Files, thing: Thing, frames: tuple[Spot, ...]) -> Iterator[Spot]:
    """Yield the calls that make a module: the outermost one that gives it its name, then its own."""
    for spot in thing.made[:-1]:
        source = files[spot.file]
        call = source.expression(spot)
        if call is None:
            continue
        statement = source.statement(call)
        targets = [source.code(each.target) for each in getattr(statement, "targets", ())]
        same = {frame.function for frame in frames}
        named = any(name.name in targets and frames[name.frame].function in same for name in thing.names)
        if named and getattr(statement, "value", None) is call:
            yield spot
    yield from thing.made[-1:]


def _chain(source: Source, call: Any) -> Any:
    """Return the whole of ``Net().double().eval()``."""
    while True:
        attribute, *above = source.above(call)
        if not (isinstance(attribute, cst.Attribute) and attribute.attr.value in _CHAINED):
            return call
        if not (isinstance(above[0], cst.Call) and above[0].func is attribute):
            return call
        call = above[0]


def trained(files: Files, thing: Thing, frames: tuple[Spot, ...]) -> Change | None:
    """Move what is trained: a module, or a tensor by itself, which has to be made on the device."""
    return model(files, thing, frames) if thing.is_module else next(_made_trained(files, thing), None)


def _made_trained(files: Files, thing: Thing) -> Iterator[Change]:
    """Make a tensor that is trained on the device, before it asks for a gradient.

    What is moved after that is another tensor, which gets none.
    """
    roots = [each for each in thing.line() if each.root]
    here = len(roots) == 1 and roots[0].factory and (roots[0].asks or not roots[0].random)
    if here and (change := _made_there(files, roots[0])):
        yield change
    before = next((each.made[-1] for each in thing.line() if each.made and not each.asks), None)
    made = files[before.file].expression(before) if before is not None else None
    if before is not None and made is not None and not files[before.file].is_moved(made):
        yield files.moved(before, made, _shown(thing))  # x.to(device).requires_grad_()
    elif roots[:1] == [thing] and thing.made:  # torch.randn(3, generator=g, requires_grad=True)
        spot = thing.made[-1]
        if text := files[spot.file].ask_later(spot, files.device(spot.file)):
            yield Change(spot.file, text, (_shown(thing),), MOVES, 2)


def fix(files: Files, failure: Failure) -> Iterator[Change]:
    """Yield the changes that may fix an error, the best first."""
    if not failure.frames:
        return
    first = failure.message.splitlines()[0] if failure.message else failure.kind
    message = f"{failure.kind}: {first}"
    to_host = _wants_host(failure)
    things = reversed(failure.things) if "'lengths' argument" in first else failure.things
    for thing in sorted(things, key=lambda each: each.factory):
        if to_host != (thing.device != "cpu"):
            continue
        for change in (_to_host if to_host else _to_device)(files, failure, thing):
            yield change._replace(message=message)


def to_device(files: Files, scene: Scene) -> Iterator[Change]:
    """Yield the changes that may bring to the device what the CPU computes by itself."""
    for thing in scene.things:
        yield from _to_device(files, scene, thing)


def _wants_host(failure: Failure) -> bool:
    text = failure.message
    return (
        "to numpy" in text
        or "should be a 1D CPU" in text
        or "device type for generator" in text  # the CPU's generator draws for the CPU
        or "expected tensor_indices_or_sections to be on cpu" in text
        or ("Could not run 'aten::" in text and "'CUDA' backend" in text)  # only the CPU has it
    )


# -- to the device


def _to_device(files: Files, scene: Scene, thing: Thing) -> Iterator[Change]:
    for known in thing.line():
        if known.owner is not None and (change := model(files, known.owner, scene.frames)):
            part = known.owner.by
            if part.endswith("Loss"):
                subject = f"the loss function {part}, which holds a tensor,"
                change = change._replace(subjects=(subject,), lesson=7)
            yield change
        for name in known.names:
            if name.module and not name.held:
                read = any(b"load_state_dict" in files[spot.file].text for spot in scene.frames)
                yield from _attribute(files, scene.frames[name.frame], name, saved=not read)
    for known in thing.line():
        if known.leaf and known.owner is None:  # what was made moves, not what is computed with it
            yield from _made_trained(files, known)
    if thing.leaf:
        return
    yield from _with_its_batch(files, scene, thing)
    yield from _constants(files, scene, thing)
    for inside, used in itertools.product((False, True), repeat=2):
        for known in thing.line():
            if not known.leaf:
                for change in _by_name(files, scene, known, inside, used):
                    yield change._replace(inside=inside or used)
    for change in _where_made(files, thing):
        yield change._replace(inside=True)


def _where(files: Files, scene: Scene, made: Spot) -> str:
    """Return an expression for the device in the function in which something was made, or ""."""
    source = files[made.file]
    for spot, where in zip(scene.frames, scene.where, strict=True):
        if spot.file == made.file and next(source.scopes(spot)) is next(source.scopes(made)):
            return where
    return ""


def _constants(files: Files, scene: Scene, thing: Thing) -> Iterator[Change]:
    """Make on the device what was made of nothing: in each step, or once and without random numbers.

    What is computed once of constants is a table, as a schedule is; so is what only a library's object has.
    """
    roots = [each for each in thing.line() if each.root and each.factory and not (each.drawn or each.fed)]
    alone = len({each.made for each in thing.line() if each.root}) == 1
    computed = (each for each in thing.ancestors if each.made and not each.root)
    table = any(not _again(files, each) for each in computed) or not any(
        each.names for each in thing.ancestors
    )
    for root in roots:
        once = not root.random and (_together(files, thing, root) or (table and root.by in CONSTANT))
        here = alone and _again(files, root)
        if (here or once) and (change := _made_there(files, root, scene)):
            yield change


def _together(files: Files, thing: Thing, root: Thing) -> bool:
    """Return whether a tensor, and what it was made of, was made by one statement."""
    last = next((each.made[-1] for each in thing.line() if each.made), None)
    if last is None or not root.made or last.file != root.made[-1].file:
        return False
    source = files[last.file]
    return source.statement_at(last) is source.statement_at(root.made[-1])


def _again(files: Files, thing: Thing) -> bool:
    """Return whether a tensor is made in each step: in a loop, or in a function that one calls."""
    return any(True for spot in thing.made for _ in files[spot.file].loops(spot))


def _with_its_batch(files: Files, scene: Scene, thing: Thing) -> Iterator[Change]:
    """Move it at the head of the loop that draws it, or after the call that returns it with others.

    Of those that came with it, what it was made of moves in the same line.
    """
    batches: dict[int, tuple[Spot, Binding, list[str]]] = {}
    for known in thing.line():
        for name in known.names:
            if name.name.startswith("self.") or name.held or name.shared or scene.inside[name.frame]:
                continue
            spot = scene.frames[name.frame]
            found = files[spot.file].binding(name.name, spot)
            there = found is not None and not thing.fed and found.line > files[spot.file].device_from()
            if found is not None and (found.kind == "for" or (found.kind == "part" and there)):
                names = batches.setdefault(id(found.node), (spot, found, []))[2]
                names += [name.name] * (name.name not in names)  # a closure's names are in two frames
    for spot, found, names in sorted(batches.values(), key=lambda each: -len(each[2])):
        if found.kind == "part" and len(names) == 1:
            continue  # not before it is known whether a better place has its name
        source, device = files[spot.file], files.device(spot.file)
        groups = [names] if len(names) == 1 or found.kind == "part" else [names, *([each] for each in names)]
        for group in groups:
            place = {"first_in" if found.kind == "for" else "after": found.node}
            text = source.move(group, device, **place)
            yield Change(spot.file, text, (f"the batch's {group[0]}", *group[1:]), MOVES, 4)


def _made_there(files: Files, thing: Thing, scene: Scene | None = None) -> Change | None:
    """Give the call that makes a tensor the device, or that of a tensor which the function was given."""
    if not thing.made:
        return None
    spot = thing.made[-1]
    source = files[spot.file]
    call = source.expression(spot)
    if not isinstance(call, cst.Call):
        return None
    given = {each.keyword.value for each in call.args if each.keyword is not None}
    name = source.code(call.func).split(".")[-1]
    if given & {"device", "generator", "out"} or name != thing.by or source.is_moved(call):
        return None
    where = _where(files, scene, spot) if scene is not None else ""
    text = source.keyword(call, "device", where or files.device(spot.file))
    return Change(spot.file, text, (f"torch.{name}(…)",), MADE_THERE, 2)


def _by_name(files: Files, scene: Scene, thing: Thing, inside: bool, used: bool) -> Iterator[Change]:
    """Move a tensor where it gets its name, or where it is used; in a module's own methods or outside."""
    for name in thing.names:
        spot = scene.frames[name.frame]
        if inside != scene.inside[name.frame]:
            continue
        source, device = files[spot.file], files.device(spot.file)
        if name.name.startswith("self."):
            if not name.module and not name.held and not used:
                yield from _attribute(files, spot, name)
            continue
        found = source.binding(name.name, spot)
        if used:
            yield from _use(files, spot, name)
        elif found is None:
            continue
        elif name.held:
            if name.held.startswith("mixed"):  # what is used of it is less than all that it holds
                yield from _use(files, spot, name)
            yield from _container(files, spot, name, found)
        elif not thing.fed and found.line > source.device_from() and not _sent(source, found, device):
            if found.kind == "parameter":
                yield from _argument(files, scene, name, found)
            elif found.kind == "assign":
                yield files.moved(spot, found.node, name.name)
            elif found.kind == "part":
                text = source.move([name.name], device, after=found.node)
                yield Change(spot.file, text, (name.name,), MOVES, 2)
        if not used and not name.held and found is not None:
            yield from _before_loop(files, spot, name, found)


def _before_loop(files: Files, spot: Spot, name: Name, found: Binding) -> Iterator[Change]:
    """Move a tensor once, before the outermost loop that uses it and begins after it got its name."""
    source, device = files[spot.file], files.device(spot.file)
    behind = [loop for loop in source.loops(spot) if found.line < source.line(loop)]
    if behind:
        text = source.statement_before(behind[-1], f"{name.name} = {name.name}.to({device})")
        yield Change(spot.file, text, (name.name,), MOVES, 2)


def _use(files: Files, spot: Spot, name: Name, method: str = "to") -> Iterator[Change]:
    """Move a tensor in the expression that uses it."""
    source, device = files[spot.file], files.device(spot.file)
    expression = source.expression(spot)
    wanted = f"{name.name}{name.path}"
    kind = cst.Subscript | cst.Attribute if name.path else cst.Name
    uses = [
        each
        for each in source.within(expression, kind)
        if _plain(source, each) == wanted and not (_is_word(source, each) or source.is_moved(each))
    ]
    if uses:
        arguments = (device,) if method == "to" else ()
        change = {each: lambda node: called(node, method, *arguments) for each in uses}
        verb = MOVES if method == "to" else COMES_BACK
        yield Change(spot.file, source.changed(change), (wanted,), verb, 2)


def _plain(source: Source, node: cst.CSTNode) -> str:
    """Return the source of ``x["y"]`` as Python itself would write it."""
    return source.code(node).replace('"', "'")


def _is_word(source: Source, node: cst.CSTNode) -> bool:
    """Return whether a name is not a value: an attribute's, or a keyword's."""
    above = next(source.above(node))
    return (isinstance(above, cst.Attribute) and above.attr is node) or (
        isinstance(above, cst.Arg) and above.keyword is node
    )


def _container(files: Files, spot: Spot, name: Name, found: Binding) -> Iterator[Change]:
    """Move all tensors that a batch holds."""
    source, device = files[spot.file], files.device(spot.file)
    mixed = name.held.startswith("mixed ")
    kind = name.held.removeprefix("mixed ")
    moved = f"value.to({device})"
    if mixed:
        moved += f" if isinstance(value, {source.torch}.Tensor) else value"
    code: str | None = {
        "other": f"{name.name} = {name.name}.to({device})",
        "dict": f"{name.name} = {{key: {moved} for key, value in {name.name}.items()}}",
        "list": f"{name.name} = [{moved} for value in {name.name}]",
        "tuple": f"{name.name} = tuple({moved} for value in {name.name})",
    }.get(kind)
    subject = f"the batch {name.name}".removesuffix(" batch")
    if code and found.kind == "for" and isinstance(found.node.body, cst.IndentedBlock):
        text = source.statement_before(found.node.body.body[0], code)
        yield Change(spot.file, text, (subject,), MOVES, 4)
    elif kind == "other" and found.kind == "assign":
        yield files.moved(spot, found.node, name.name)
    fresh = cst.List | cst.Tuple | cst.Dict | cst.ListComp  # nobody else has it
    statement = source.statement_at(spot)
    if code and statement is not None and found.kind == "assign" and isinstance(found.node, fresh):
        yield Change(spot.file, source.statement_before(statement, code), (subject,), MOVES, 4)


def _argument(files: Files, scene: Scene, name: Name, found: Binding) -> Iterator[Change]:
    """Move what was given for a parameter, in the call."""
    if name.frame == 0:
        return
    params = [each.name.value for each in found.scope.params.params]
    spot = scene.frames[name.frame - 1]
    call = files[spot.file].expression(spot)
    if not isinstance(call, cst.Call) or name.name not in params:
        return
    place = params.index(name.name) - (params[0] == "self")
    for number, each in enumerate(call.args):
        by_place = each.keyword is None and number == place and not each.star
        if by_place or (each.keyword is not None and each.keyword.value == name.name):
            yield files.moved(spot, each.value)


def _attribute(files: Files, spot: Spot, name: Name, saved: bool = True) -> Iterator[Change]:
    """Move a tensor where an object gets it; or let a module register it, where it is made.

    It is not saved with the module if the script reads files that may lack it.
    """
    source = files[spot.file]
    for each in _assignments(source, spot, name):
        if name.module and _in_init(source, each):
            owner, attribute = name.name.split(".")
            text = source.buffer(each, owner, attribute, saved)
            yield Change(spot.file, text, (name.name,), BUFFER, 7)
        else:
            yield files.moved(spot, each.value, name.name)


def _assignments(source: Source, spot: Spot, name: Name) -> Iterator[Any]:
    """Yield the statements that assign an attribute in the class of a method."""
    scope = next(source.scopes(spot))
    owner = next((each for each in source.above(scope) if isinstance(each, cst.ClassDef)), None)
    for each in source.within(owner, cst.Assign):
        same = len(each.targets) == 1 and source.code(each.targets[0].target) == name.name
        if same and source.code(each.value) != "None":
            yield each


def _in_init(source: Source, node: cst.CSTNode) -> bool:
    around = next(each for each in source.above(node) if isinstance(each, cst.FunctionDef | cst.ClassDef))
    return isinstance(around, cst.FunctionDef) and around.name.value == "__init__"


def _where_made(files: Files, thing: Thing) -> Iterator[Change]:
    """Move a tensor in the expression that makes it."""
    if thing.made and not thing.drawn and not thing.leaf:
        spot = thing.made[-1]
        made = files[spot.file].expression(spot)
        if made is not None and not isinstance(made, cst.Name):
            yield files.moved(spot, made)


# -- to the host


def _to_host(files: Files, scene: Scene, thing: Thing) -> Iterator[Change]:
    """Bring a tensor back to the CPU in the expression that needs it there."""
    spot = scene.frames[-1]
    source = files[spot.file]
    expression = source.expression(spot)
    if expression is None:
        return
    func = getattr(expression, "func", None)
    if isinstance(func, cst.Attribute) and func.attr.value in ("numpy", "__array__"):
        text = source.append(func.value, "cpu")
        yield Change(spot.file, text, (source.code(func.value),), COMES_BACK, 2)
        return
    direct = [name for name in thing.names if name.frame == len(scene.frames) - 1]
    for name in direct:
        if not name.held and not name.name.startswith("self."):
            yield from _use(files, spot, name, "cpu")
        elif name.path.endswith("]"):
            yield from _appended(files, spot, f"{name.name}{name.path.rpartition('[')[0]}")
    if thing.made and thing.made[-1].line >= spot.line and thing.made[-1].end_line <= spot.end_line:
        made = source.expression(thing.made[-1])
        if made is not None:
            text = source.append(made, "cpu")
            yield Change(spot.file, text, (source.code(made),), COMES_BACK, 2)


def _appended(files: Files, spot: Spot, name: str) -> Iterator[Change]:
    """Bring tensors back to the CPU where they are put into a list."""
    source = files[spot.file]
    edits: dict[Any, Any] = {}
    for scope in source.scopes(spot):
        for call in source.within(scope, cst.Call):
            if _plain(source, call.func) in (f"{name}.append", f"{name}.extend") and len(call.args) == 1:
                edits[call.args[0].value] = lambda node: called(node, "cpu")
        if edits:
            yield Change(spot.file, source.changed(edits), (f"what {name} collects",), COMES_BACK, 2)
            return


def filled(files: Files, scene: Scene) -> Iterator[Change]:
    """Make a tensor on the device because results of the device are put into it, one by one."""
    message = "copies of a result to the CPU, one for each assignment"
    for thing in scene.things:
        if change := _made_there(files, thing, scene):
            yield change._replace(message=message)


def hard_coded(files: Files, file: str) -> Change | None:
    """Let a script that names the CPU as its device choose it."""
    source = files[file]
    found = source.device_assignments("cpu")
    if not found:
        return None
    texts = isinstance(found[0].value, cst.SimpleString)  # others may be joined with it
    chosen = (CHOICE if texts else f"torch.device({CHOICE})").replace("torch.", f"{source.torch}.")
    text = source.changed({found[0].value: lambda _: cst.parse_expression(chosen)})
    name = source.code(found[0].targets[0].target)
    return Change(file, text, (name,), NOT_ALWAYS_CPU, 1)


def without(files: Files, spot: Spot) -> bytes | None:
    """Return a file without a move that later ones made superfluous; None if the move is the reader's."""
    if spot.file not in files.texts:
        return None
    source, move = files[spot.file], f".to({files.device(spot.file)})"
    call = source.expression(spot)
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    moved, code = source.code(call.func.value), source.code(call)
    if code != moved + move or (moved.replace(move, "") + move).encode() in files.originals[spot.file]:
        return None
    statement = source.statement(call)
    if names := source.moved_names(statement, files.device(spot.file)):  # x = x.to(device)
        return source.move_less(statement, [each for each in names if each != moved], files.device(spot.file))
    targets = getattr(statement, "targets", ())
    if any(moved in source.code(each.target).split(", ") for each in targets):
        return None
    bare: Any = call.func.value
    if bare.lpar and moved.encode() not in files.originals[spot.file]:  # the move has put it into brackets
        bare = bare.with_changes(lpar=bare.lpar[1:], rpar=bare.rpar[:-1])
    return source.changed({call: lambda _: bare})


def loading(files: Files, spot: Spot) -> Change | None:
    """Map a file's tensors to the device: it may be read where there is no GPU."""
    call = files[spot.file].expression(spot)
    return _mapped(files, spot.file, call) if isinstance(call, cst.Call) else None


def _mapped(files: Files, file: str, call: cst.Call) -> Change:
    text = files[file].keyword(call, "map_location", files.device(file))
    message = (
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is "
        "False (on a computer without a GPU)"
    )
    return Change(file, text, ("what is loaded",), GOES, 6, message)


def silent_loads(files: Files, file: str, ran: set[int]) -> Iterator[tuple[int, Change | None]]:
    """Yield lines that load a file, and did not run; with a change if a model's weights come from there."""
    source = files[file]
    calls = list(source.within(source.module, cst.Call))
    saved = {
        source.code(call.args[1].value)
        for call in calls
        if source.code(call.func) == f"{source.torch}.save" and len(call.args) > 1
        if "state_dict" in source.code(call.args[0])
    }
    loaders = [
        each for each in calls if getattr(getattr(each.func, "attr", None), "value", "") == "load_state_dict"
    ]
    given = [source.within(each, cst.Call | cst.Name) for each in loaders]
    into = {each if isinstance(each, cst.Call) else each.value for part in given for each in part}
    for call in calls:
        words = {each.keyword.value for each in call.args if each.keyword is not None}
        if source.code(call.func) != f"{source.torch}.load" or "map_location" in words:
            continue
        statement = source.statement(call)
        if source.line(statement) in ran or len(call.args) - len(words) != 1:
            continue
        names = {source.code(each.target) for each in getattr(statement, "targets", ())}
        certain = call in into or names & into or source.code(call.args[0].value) in saved
        yield source.line(call), _mapped(files, file, call) if certain else None


def _shown(thing: Thing) -> str:
    """Return the name of a thing that a reader knows, or its class."""
    return next((name.name for name in thing.names if not name.held), thing.by if thing.is_module else "")
