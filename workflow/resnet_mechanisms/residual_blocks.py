"""Residual blocks of any torch module: which submodules add their input to what they compute of it,
and the Residual Jacobian of each.

A block with h_l = act(skip(h_{l-1}) + F_l(h_{l-1})) is run once while its additions are watched:
what reaches the output from the input through additions alone is the skip, what those additions add
is the branch F_l. Several on one path (attention and MLP of a transformer's block) make one branch,
their sum. Then, at a given input,

    J_l = D_l dF_l/dh,   D_l = diag(act'(skip + F_l)),   held constant,

for relu the mask of Li & Papyan 2023 (see jacobians.py); where nothing follows the addition,
D_l = I and J_l is the Jacobian of the block minus the identity, as in Transformer Block Coupling
(ICLR 2025). Where the skip is a projection, no path is free of weights: the operand of the last
addition that depends on the input through more layers with weights is the branch.
"""

import re
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from .errors import UserError
from .jacobians import ModuleJacobian

ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
ACTIVATIONS = {
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "gelu", "silu", "elu", "elu_",
    "hardtanh", "hardswish", "mish", "softplus", "tanh", "sigmoid", "selu", "celu",
}  # fmt: skip
# What leaves a state as it is in evaluation mode.
UNCHANGED = {"dropout", "dropout1d", "dropout2d", "dropout3d", "clone", "contiguous"}
WEIGHTED = {
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "bilinear",
    "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum",
    "multi_head_attention_forward", "scaled_dot_product_attention",
}  # fmt: skip
# A product with J by forward mode takes about two passes through the branch, by reverse mode three.
PASSES = 3


@dataclass(frozen=True)
class Additions:
    """Where the branch of a block is: (index among the additions the block does, operand 0 or 1) of
    every addition on the way of the skip; whether the skip is the identity; the activation that
    follows, a function of z, or None."""

    operands: tuple
    identity: bool
    activation: object = None


def _tensors(values):
    """The tensors among arguments or results, in lists and dicts as well."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


class _Watch(TorchFunctionMode):
    """Follows, from the input of a block, what the block calls.

    skip: {id: operands added so far} of tensors that are the input, or it plus branches. joined:
    the same of sums of two operands that both depend on the input through weights. activated:
    Additions of tensors to which one of these was turned by an activation. weights: {id: number of
    layers with weights between the input and it}. bent: tensors behind such a layer and an
    activation after it, which are no skip.
    """

    def __init__(self, h):
        super().__init__()
        self.skip, self.joined, self.activated = {id(h): ()}, {}, {}
        self.weights, self.bent = {id(h): 0}, set()
        self.additions = 0
        self.depends = set()  # additions whose branch depends on the input
        self.alive = [h]  # an id is one only as long as its tensor lives

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        given = [id(t) for t in _tensors([args, kwargs])]
        first = id(args[0]) if args else None
        skip, joined, activated = (
            known.get(first) for known in (self.skip, self.joined, self.activated)
        )
        deepest = max((self.weights[t] for t in given if t in self.weights), default=None)
        bent = not self.bent.isdisjoint(given) or (name in ACTIVATIONS and bool(deepest))
        added = self._addition(args, kwargs) if name in ADDITIONS else None
        result = function(*args, **kwargs)
        for tensor in _tensors(result):
            self.alive.append(tensor)
            for known in (self.skip, self.joined, self.activated):
                known.pop(id(tensor), None)  # in place the result is an argument
            if deepest is not None:
                self.weights[id(tensor)] = deepest + (name in WEIGHTED)
            if bent:
                self.bent.add(id(tensor))
        if not isinstance(result, torch.Tensor):
            return result
        if added is not None and all(operand.shape == result.shape for operand in args[:2]):
            known, operands = added
            known[id(result)] = operands
        elif name in UNCHANGED:
            for known, value in ((self.skip, skip), (self.joined, joined)):
                if value is not None:
                    known[id(result)] = value
            if activated is not None:
                self.activated[id(result)] = activated
        elif name in ACTIVATIONS and (skip or joined):
            activation = _activation(name.rstrip("_"), args[1:], kwargs)
            self.activated[id(result)] = Additions(skip or joined, bool(skip), activation)
        return result

    def _addition(self, args, kwargs):
        """Where an addition that may be the one of a block belongs, `skip` or `joined`, and its
        operands; None for others. Counts it."""
        index, self.additions = self.additions, self.additions + 1
        if len(args) < 2 or not all(isinstance(a, torch.Tensor) for a in args[:2]):
            return None
        ids = [id(a) for a in args[:2]]
        scaled = kwargs.get("alpha", 1) != 1  # the second operand
        on_skip = [i in self.skip for i in ids]
        if on_skip[0] != on_skip[1]:
            branch = on_skip.index(False)
            if scaled and branch == 0:
                return None
            if ids[branch] in self.weights:
                self.depends.add((index, branch))
            return self.skip, (*self.skip[ids[1 - branch]], (index, branch))
        depth = [self.weights.get(i) for i in ids]
        if None in depth or depth[0] == depth[1] or any(on_skip) or scaled:
            return None
        branch = int(depth[1] > depth[0])
        if ids[1 - branch] in self.bent:
            return None
        return self.joined, ((index, branch),)

    def found(self, output):
        """Additions of the block whose output this is, or None where it adds no branch to its
        input."""
        where = id(output)
        if where in self.activated:
            additions = self.activated[where]
        elif self.skip.get(where):
            additions = Additions(self.skip[where], True)
        elif where in self.joined:
            additions = Additions(self.joined[where], False)
        else:
            return None
        if additions.identity and not self.depends.intersection(additions.operands):
            return None  # the input plus a constant
        return additions


def _activation(name, arguments, keywords):
    """The activation as a function of z, not in place."""
    function = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    arguments = [value for value in arguments if not isinstance(value, bool)]  # in place or not
    keywords = {key: value for key, value in keywords.items() if key not in ("inplace", "input")}
    return lambda z: function(z, *arguments, **keywords)


class _Reached(Exception):
    """The last addition of a branch is reached."""


class _Branch(TorchFunctionMode):
    """Sums what the additions of a block add to its skip; `total` is the branch, `z` the sum with
    the skip. With `stop` the block ends there."""

    def __init__(self, additions, stop):
        super().__init__()
        self.operands, self.stop = dict(additions.operands), stop
        self.last = max(self.operands)
        self.count, self.total, self.z = 0, None, None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") not in ADDITIONS:
            return function(*args, **kwargs)
        index, self.count = self.count, self.count + 1
        if index in self.operands:
            added = args[self.operands[index]]
            added = added * kwargs.get("alpha", 1)  # anew: additions may be in place
            self.total = added if self.total is None else self.total + added
            if index == self.last and self.stop:
                raise _Reached
        result = function(*args, **kwargs)
        if index == self.last:
            self.z = result.clone()
        return result


@contextmanager
def differentiable():
    """Attention by products that have derivatives in both modes; fused kernels lack them."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@dataclass(frozen=True)
class ResidualBlock:
    """One residual block of a module: its name, itself, what else it is called with, and where its
    branch is."""

    name: str
    module: nn.Module
    additions: Additions
    arguments: tuple = ()
    keywords: tuple = ()

    def __call__(self, h):
        return self.module(h, *self.arguments, **dict(self.keywords))

    def branch(self, h):
        """F_l at states N x any shape."""
        with differentiable(), _Branch(self.additions, stop=True) as watched:
            try:
                self(h.clone())  # a block may work on its input in place
            except _Reached:
                return watched.total
        raise RuntimeError(f"{self.name} took another path than at the first inputs")

    @torch.no_grad()
    def linearise(self, h):
        """(Jacobian, masked branch f_l = D_l F_l, h_l) at states `h`, N x any shape."""
        with differentiable(), _Branch(self.additions, stop=False) as watched:
            state = self(h.clone())
        gates, f = None, watched.total
        if self.additions.activation is not None:
            ones = torch.ones_like(watched.z)
            _, gates = torch.func.jvp(self.additions.activation, (watched.z,), (ones,))
            f = gates * f
        with FlopCounterMode(display=False) as counter:
            self.branch(h[:1])
        flops = PASSES * counter.get_total_flops() or None
        return ModuleJacobian(self.branch, h, gates, flops), f, state


@torch.no_grad()
def inspect_block(module, h, arguments=(), keywords=()):
    """Additions of a module at states `h` in evaluation mode, or None where it does not add its
    input to its output."""
    h = h.clone()
    with differentiable(), _Watch(h) as watch:
        output = module(h, *arguments, **dict(keywords))
    return watch.found(output) if isinstance(output, torch.Tensor) else None


@dataclass
class _Call:
    """One call of a submodule in a pass through the whole module."""

    name: str
    module: nn.Module
    h: torch.Tensor
    arguments: tuple
    keywords: tuple
    output: object = None


@contextmanager
def _recorded(modules, calls):
    """Every call of the modules {name: module} with one tensor among its arguments, while it lasts,
    in the order in which they begin."""
    open_calls = []

    def before(name):
        def hook(module, args, kwargs):
            tensors = list(_tensors([args, kwargs]))
            alone = len(tensors) == 1 and args and isinstance(args[0], torch.Tensor)
            call = None
            if alone:
                call = _Call(name, module, args[0].clone(), args[1:], tuple(kwargs.items()))
                calls.append(call)
            open_calls.append(call)

        return hook

    def after(module, args, output):
        call = open_calls.pop()
        if call is not None:
            call.output = output.clone() if isinstance(output, torch.Tensor) else None

    hooks = []
    for name, module in modules.items():
        hooks.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
        hooks.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _pattern(text):
    """A pattern of module names: * stands for anything within one part between dots, ** for
    anything."""
    parts = re.split(r"(\*\*|\*)", text)
    return "".join({"*": "[^.]*", "**": ".*"}.get(part, re.escape(part)) for part in parts)


def _listed(names, most=8):
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@torch.no_grad()
def find_blocks(module, x, patterns=None):
    """The residual blocks of a module in evaluation mode, in the order in which they are called.

    Args:
        module: torch module. x: inputs it takes, N first; two are enough.
        patterns: names of submodules, one or a list, with * for anything within one part of a name;
            by default every submodule that adds its input to what it computes of it, and has none
            inside.

    Returns: list of ResidualBlock. Raises UserError where there is none, where a named module is no
    residual block, and where a block does not begin at the state at which the one before it ended.
    """
    modules = {name: part for name, part in module.named_modules() if name}
    chosen = {name: part for name, part in modules.items() if not _builtin(part)}
    if patterns is not None:
        chosen = _named(module, x, modules, [patterns] if isinstance(patterns, str) else patterns)
    calls = []
    with differentiable(), _recorded(chosen, calls):
        module(x)
    calls = [call for call in calls if isinstance(call.output, torch.Tensor)]
    names = list(dict.fromkeys(call.name for call in calls))
    seen = {}
    for call in calls:
        if call.name not in seen:
            seen[call.name] = inspect_block(call.module, call.h, call.arguments, call.keywords)
    found = [call for call in calls if seen[call.name] is not None]
    if patterns is not None:
        for name in chosen:
            if seen.get(name) is None:
                how = "does not add its input to what it computes of it"
                if name not in seen:
                    how = "is not called with one tensor that it turns into another"
                others = _listed(_names_found(module, x)) or "none"
                raise UserError(
                    f"blocks: {name} ({type(modules[name]).__name__}) {how}; modules that add "
                    f"their input: {others}"
                )
    if not found:
        raise UserError(
            f"blocks: no module of {type(module).__name__} adds its input to what it computes of "
            f"it; modules looked at: {_listed(names) or 'none'}"
        )
    if patterns is None:
        outer = {
            a.name for a in found for b in found if b.name.startswith(f"{a.name}.")
        }  # a stage of blocks adds its input as well
        found = [call for call in found if call.name not in outer]
    for one, other in zip(found, found[1:], strict=False):
        if one.output.shape != other.h.shape or not torch.equal(one.output, other.h):
            hint = "blocks inside blocks" if other.name.startswith(f"{one.name}.") else "a gap"
            raise UserError(
                f"blocks: {other.name} does not begin at the state at which {one.name} ends "
                f"({hint}); name blocks that follow each other, found: "
                f"{_listed(dict.fromkeys(call.name for call in found))}"
            )
    return [
        ResidualBlock(call.name, call.module, seen[call.name], call.arguments, call.keywords)
        for call in found
    ]


def _builtin(module):
    """Whether a module is one layer of torch's own, which is no block."""
    return type(module).__module__.startswith("torch.nn.modules") and not [*module.children()]


def _named(module, x, modules, patterns):
    """The modules {name: module} whose names fit one of the patterns."""
    chosen = {}
    for pattern in patterns:
        matching = {n: part for n, part in modules.items() if re.fullmatch(_pattern(pattern), n)}
        if not matching:
            adding = _names_found(module, x)
            known = "that add their input" if adding else f"of {type(module).__name__}"
            raise UserError(
                f"blocks: no module is called {pattern}; modules {known}: "
                f"{_listed(adding or modules)}"
            )
        chosen |= matching
    return chosen


def _names_found(module, x):
    """Names of the blocks that `find_blocks` finds by itself; empty where it finds none."""
    try:
        return list(dict.fromkeys(block.name for block in find_blocks(module, x)))
    except UserError:
        return []


class ResidualModel:
    """Any torch module in evaluation mode, seen as a stack of residual blocks.

    Args: module, x, patterns as for `find_blocks`, whose errors it raises, and UserError where the
    module is in training mode. blocks: list of ResidualBlock. classifier: the last nn.Linear, where
    its output is the module's, else None.
    """

    def __init__(self, module, x, patterns=None):
        if module.training:
            raise UserError("Residual Jacobians are taken in evaluation mode; call eval() first")
        self.module = module
        self.blocks = find_blocks(module, x, patterns)
        self.classifier = self._classifier(x)

    @torch.no_grad()
    def _run(self, x, modules):
        calls = []
        with differentiable(), _recorded(modules, calls):
            output = self.module(x)
        return calls, output

    def _classifier(self, x):
        layers = {n: m for n, m in self.module.named_modules() if isinstance(m, nn.Linear)}
        calls, output = self._run(x, layers)
        last = calls[-1] if calls else None
        if (
            last is None
            or last.output.shape != output.shape
            or not torch.equal(last.output, output)
        ):
            return None
        return last.module

    def first_state(self, x):
        """h_0, the input of the first block, of inputs `x`."""
        calls, _ = self._run(x, {self.blocks[0].name: self.blocks[0].module})
        return calls[0].h

    @torch.no_grad()
    def states(self, x):
        """[h_0, ..., h_L], each N x any shape."""
        states = [self.first_state(x)]
        with differentiable():
            for block in self.blocks:
                states.append(block(states[-1].clone()))
        return states

    def linearise(self, x):
        """(states, jacobians, branches) as `jacobians.linearise` of our own networks."""
        states, jacobians, branches = [self.first_state(x)], [], []
        for block in self.blocks:
            jacobian, f, state = block.linearise(states[-1])
            jacobians.append(jacobian)
            branches.append(f)
            states.append(state)
        return states, jacobians, branches

    @torch.no_grad()
    def outputs(self, x, memory=1e9):
        """(outputs of the module, what its classifier sees, N x features, or None) of `x`, in
        batches whose states fit in about `memory` bytes."""
        state = self.first_state(x[:1])
        # Some states at once, those of the stem before it among them, which may be larger.
        batch = max(1, min(500, int(memory // (16 * state.numel() * state.itemsize))))
        outputs, features = [], []
        for part in x.split(batch):
            layer = {} if self.classifier is None else {"classifier": self.classifier}
            calls, output = self._run(part, layer)
            outputs.append(output)
            features += [call.h for call in calls[-1:]]
        return torch.cat(outputs), torch.cat(features) if features else None
