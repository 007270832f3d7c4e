"""The proof, before a stage's first step, that the trainer scores rows as the model's own forward does, each alone.

What can be proved exactly is: the positions of packed rows; that the gradient of row 2's outputs with respect to row
1's input embeddings is 0, as no operation leads from one row to the other (log-probs of a model that leaks look right
within rounding); and that each layer with a window reaches as far back as in transformers' own forward. What a layer or
the output head computes is compared in float32, where two right ways differ by about 1e-5 nats, over a row longer than
each window. Last, outputs in the model's own precision are compared, which proves its kernels.

Rows are text that the stage trains on: on random tokens a trained model is ill-conditioned (transformers' own bfloat16
is up to 1.9 nats from its float32 for SmolLM2-135M, 0.1 to 0.3 on text). Allowed is what two right ways of the model's
own forward differ by on the same rows.

A model whose packed rows fail goes on by rows (way.py), unless `trainer.packing` is packed. Rows that share prefixes
are compared likewise; where they fail none are shared, unless `trainer.share_prompts` is true.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ouroboros.pipeline.settings.config import Config, longest_sequence
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Fill, MicroBatch, pack
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.way import Way, decoder, places, set_packed
from ouroboros.stages.learner.teacher import Teacher
from ouroboros.workflows.protocol.hugging_face import set_exact_attention
from ouroboros.workflows.protocol.routing import Routers

FIRST, SECOND = 13, 10  # tokens; the first row is longer, so that attention pads the second
SHORT = 40  # tokens of the row that is compared, where nothing in config.json depends on a length
COMPARED = 64  # last tokens of it
EXACT = 8192  # tokens of the longest row that is compared in float32
LENGTHS = re.compile(r"window|chunk|topk|original_max|floor_scale")  # keys of lengths from which on layers do otherwise
# mean and 95th percentile of differences, nats at temperature 1 (lower ones divide logits, and so these too); where it
# is more, ROUNDED times what another rounding of each layer changes, in float32 at most LIMIT times these
ALLOWED = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (0.02, 0.2)}
ROUNDED, LIMIT, DRAWS = 2.0, 5.0, 2
UNFIT = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)  # of code that is called otherwise
VANISHED = 1e-30  # of a gradient: attention this small is 0 in one of two right ways, by the end of the range of floats


def prove_policy(actor: Actor, config: Config, text: list[int], former: str | None = None) -> None:
    """Of log-probs, in the state in which the policy is trained. Raises ModelError. Collective.

    config: the stage's settings (trainer, model), text: token ids that it trains on, former: the way of the checkpoint
    that is resumed, all as below.
    """
    module = actor.zero.module
    proof = _Proof(actor.process, module.model, module.way, config, text,
                   lambda micro: module(**micro.inputs(actor.process.device))[0], module.temperature)
    proof.settle(lambda tokens: _own_logprobs(module, tokens), former)


def prove_critic(critic: Critic | Actor, config: Config, text: list[int], former: str | None = None) -> None:
    """Of the last hidden states, weighted: the head of a critic, or of a reward model, begins at zero, and would hide
    them. Raises ModelError. Collective."""
    module, device = critic.zero.module, critic.process.device

    def outputs(micro: MicroBatch) -> Tensor:
        given = micro.inputs(device)
        part = module.way.part(given["source"], len(micro.input_ids))
        states = module.hidden(given["input_ids"], given["positions"], given["segments"])
        return part.whole(_weighted(states[part.places]))

    _Proof(critic.process, module.transformer, module.way, config, text, outputs).settle(
        lambda tokens: _weighted(module.transformer(input_ids=tokens[None], use_cache=False).last_hidden_state[0, :-1]),
        former)


def prove_teacher(teacher: Teacher, config: Config, text: list[int]) -> None:
    """Of log-probs, in the state in which the teacher scores. Raises ModelError. Collective."""
    policy, device = teacher.policy, teacher.process.device
    with teacher.on_device(), torch.compiler.set_stance("force_eager"):  # its graphs have no gradient
        _Proof(teacher.process, policy.model, policy.way, config, text,
               lambda micro: policy(**micro.inputs(device))[0], policy.temperature).settle(
                   lambda tokens: _own_logprobs(policy, tokens))


def _weighted(states: Tensor) -> Tensor:
    """[N, width] -> [N], from -1 to 1."""
    states = states.float()
    return functional.cosine_similarity(states, torch.arange(states.shape[-1], device=states.device).cos()[None])


def _own_logprobs(policy: nn.Module, tokens: Tensor) -> Tensor:
    """[L] -> log-prob of each token after the first [L - 1], by the forward of transformers."""
    logits = policy.model(input_ids=tokens[None], use_cache=False).logits[0, :-1].float() / policy.temperature
    return logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]


class _Proof:
    def __init__(self, process: Process, model: nn.Module, way: Way, config: Config, text: list[int],
                 outputs: Callable[[MicroBatch], Tensor], temperature: float = 1.0):
        """model: of transformers. outputs(micro): one number per action token [N], of about the size of log-probs.
        temperature: by which logits are divided, and their differences with them."""
        self.process, self.model, self.way, self.outputs, self.tokens = process, model, way, outputs, text
        self.packing, self.longest = config.trainer.packing, longest_sequence(config.model)
        self.allowed = {dtype: np.array(bounds) / min(temperature, 1.0) for dtype, bounds in ALLOWED.items()}
        self.name = f"{model.config.name_or_path} ({model.config.model_type})"
        self.text = model.config.get_text_config()
        said = {**self.text.to_dict(), **(getattr(self.text, "rope_parameters", None) or {})}
        self.exact = False  # whether it computes in float32 for a comparison
        self.bounds = [value for key, value in said.items()
                       if LENGTHS.search(key) and isinstance(value, int) and 1 < value < self.longest]

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return torch.float32 if self.exact else self.model.dtype

    def settle(self, own: Callable[[Tensor], Tensor], former: str | None = None) -> None:
        """Chooses the way of the rows. own(tokens): the output at each token after the first [L] -> [L - 1], by the
        model's own forward. former: of a checkpoint; its stage goes on by rows where it went by rows."""
        with torch.random.fork_rng(devices=[self.process.device] if self.process.device.type == "cuda" else []):
            kept = "those of the checkpoint were not" if (former, self.packing) == ("rows", "auto") else None
            if self.way.packed and (obstacle := kept or self._obstacle(own)):
                if self.packing == "packed":
                    raise ModelError(f"{self.name}: trainer.packing=packed, and {obstacle}. Set trainer.packing=auto "
                                     "or rows.")
                self.way.by_rows(self.model, obstacle)
            if self.way.packed and self.way.share and (obstacle := self._difference(own, Fill.SHARED)):
                if self.way.every:
                    raise ModelError(f"{self.name}: trainer.share_prompts=true, and {obstacle}. Set "
                                     "trainer.share_prompts=auto or false.")
                self.way.share, self.way.unshared = False, obstacle
            if self.way.packed or not (wrong := self._difference(own)):
                return
            if not self.way.single:
                self.way.single = True
                wrong = self._difference(own)
        if wrong:
            raise ModelError(f"{self.name}: the trainer cannot score its rows: {wrong}. Each row was a forward of its "
                             "own in both, so what the model does between its last hidden states and its logits is "
                             "not what the trainer knows: a product with the output head, factors, a cap.")

    def _obstacle(self, own: Callable[[Tensor], Tensor]) -> str | None:
        """Returns why rows cannot be packed."""
        try:
            across, within, misplaced = self._of_all_ranks(self._largest_gradients())
            if not within > 0.0:
                raise ModelError(f"{self.name}: whether packed rows touch one another cannot be proved, because the "
                                 f"gradient of a row's outputs with respect to its own input embeddings is {within:g}; "
                                 "needed weights that are finite, with an output head that is not 0.")
            if across != 0.0:
                return (f"rows packed into one sequence touch one another: the gradient of row 2's outputs with "
                        f"respect to row 1's input embeddings is up to {across:.2g}, needed exactly 0")
            if misplaced:
                return "the positions of tokens in packed rows do not count from 0 in each row"
            return self._other_reach() or self._difference(own)
        except torch.OutOfMemoryError:
            raise
        except UNFIT as error:  # our attention lacks its arguments; layers take one row alone
            return f"packed rows cannot go through its code in transformers ({type(error).__name__}: {error})"

    def _difference(self, own: Callable[[Tensor], Tensor], fill: Fill | None = None) -> str | None:
        """Returns how far the outputs of rows in a micro-batch are from those of each alone, if too far.

        fill: SHARED compares three that share prefixes, but not of a model with `_routers`, whose choices are given row
        by row; None: two, none within another."""
        with self._in_float32() as exact:
            found = self._compared(own, fill, min(self._length(), EXACT)) if exact else None
        long = self.longest if self.process.device.type == "cuda" else self._length()
        return found or self._compared(own, fill, long)

    def _compared(self, own: Callable[[Tensor], Tensor], fill: Fill | None, length: int) -> str | None:
        """`_difference` in the precision that the model has now; the first row has `length` tokens."""
        rows = self._tree() if fill else self._rows(length, SECOND)
        with torch.no_grad(), self._routers() as routers:
            if routers and fill:
                return None
            with self._own_forward():
                alone, experts = self._alone(own, rows, routers)
            scored = []
            fill = fill or (Fill.FLAT if self.way.packed else self.way.fill)
            for micro in pack(rows, len(rows) * max(len(row.tokens) for row in rows), 0, 1, fill=fill):
                if routers:
                    every = torch.arange(len(micro.input_ids), device=self.process.device)
                    part = self.way.part(every, len(every))
                    routers.give(places(micro.segments, part.places, self.way),
                                 torch.cat([experts[i] for i in micro.rows])[part.own])
                scored += [values[-COMPARED:] for _, values in sorted(micro.by_row(self.outputs(micro)).items())]
            found = self._apart(scored, alone)
            allowed = self.allowed.get(self.dtype, self.allowed[torch.bfloat16])
            if not (found <= allowed).all():
                allowed = np.maximum(allowed, self._allowed_by_rounding(own, rows, routers, alone, experts))
        if (found <= allowed).all():
            return None
        return (f"outputs at the last {COMPARED} tokens of {len(rows)} rows of text, up to {length} tokens long, in "
                f"{str(self.dtype).removeprefix('torch.')} differ from those of transformers' own forward by "
                f"{found[0]:.2g} in the mean and {found[1]:.2g} at the 95th percentile, allowed {allowed[0]:.2g} and "
                f"{allowed[1]:.2g}")

    def _allowed_by_rounding(self, own: Callable[[Tensor], Tensor], rows: list[Row], routers: Routers | None,
                             alone: list[np.ndarray], experts: list) -> np.ndarray:
        """What is allowed because right ways to compute the same differ by it, [2] as ALLOWED."""
        found = np.zeros(2)
        with self._own_forward(), rounded_again(self._layers()):
            for _ in range(DRAWS):
                others, _ = self._alone(own, rows, routers, experts)
                found = np.maximum(found, ROUNDED * self._apart(others, alone))
        return np.minimum(found, LIMIT * self.allowed[torch.float32]) if self.dtype == torch.float32 else found

    def _alone(self, own: Callable[[Tensor], Tensor], rows: list[Row], routers: Routers | None,
               experts: list | None = None) -> tuple[list[np.ndarray], list]:
        """Returns the last outputs of each row by the model's own forward, and the experts of its tokens.

        experts: those to take, of a call before."""
        outputs, chosen = [], []
        for i, row in enumerate(rows):
            if routers and experts:
                routers.give(torch.arange(len(row.tokens), device=self.process.device), experts[i])
            found = own(torch.tensor(row.tokens, device=self.process.device))
            outputs.append(found[-COMPARED:].float().cpu().numpy())
            chosen.append(routers and routers.last(len(row.tokens)))
        return outputs, chosen

    def _apart(self, some: list[np.ndarray], others: list[np.ndarray]) -> np.ndarray:
        """The mean and the 95th percentile of differences, the largest of all ranks [2]."""
        return self._of_all_ranks(np.array(apart(np.concatenate(some), np.concatenate(others))))

    def _other_reach(self) -> str | None:
        """Returns which layers attend to other tokens than in transformers' own forward, of those with windows.

        Of each layer alone the gradient of its output at the last token with respect to its input is exactly 0 where
        the input is out of reach, in any precision."""
        if not (layers := self._layers()) or not self.bounds or self.way.sequence or self._partitioned():
            return None
        (row,) = self._rows(min(self._length(), EXACT))
        (micro,) = pack([row], len(row.tokens), 0, 1)
        tokens = torch.tensor(row.tokens, device=self.process.device)[None]
        with self._evaluated():
            ours = self._reached(layers, lambda: self.outputs(micro))
        with self._own_forward():
            own = self._reached(layers, lambda: self._part()(input_ids=tokens, use_cache=False))
        others = [i for i, pair in enumerate(zip(ours, own, strict=True)) if reach_differs(*pair)]
        if not self.process.any(bool(others)):
            return None
        place = others[0] if others else 0
        return (f"{len(others)} of {len(layers)} layers attend to other tokens than in transformers' own forward "
                f"(layer {place}: {int((ours[place] > 0).sum())} of {len(row.tokens)} tokens, there "
                f"{int((own[place] > 0).sum())})")

    def _reached(self, layers: nn.ModuleList, forward: Callable[[], object]) -> list[Tensor]:
        """Of each layer the magnitude of the gradient of its output at the last token by its input at each, [T]."""
        leaves, ends, hooks = {}, {}, []
        for i, layer in enumerate(layers):
            def enter(_, given: tuple, named: dict, i: int = i) -> tuple[tuple, dict]:
                states = given[0] if given else named["hidden_states"]
                leaves[i] = states.detach().requires_grad_()
                return ((leaves[i], *given[1:]), named) if given else (given, named | {"hidden_states": leaves[i]})

            def leave(_, __, output: Tensor | tuple, i: int = i) -> Tensor | tuple:
                states = output if isinstance(output, Tensor) else output[0]
                (found,) = torch.autograd.grad(states[0, -1].float().sum(), leaves[i], allow_unused=True)
                ends[i] = (torch.zeros_like(leaves[i]) if found is None else found)[0].float().abs().amax(-1)
                return states.detach() if isinstance(output, Tensor) else (states.detach(), *output[1:])

            hooks += [layer.register_forward_pre_hook(enter, with_kwargs=True), layer.register_forward_hook(leave)]
        try:
            with torch.enable_grad():
                forward()
        finally:
            for hook in hooks:
                hook.remove()
        return [ends[i] for i in range(len(layers))]

    def _part(self) -> nn.Module:
        """The part of the model under its output head."""
        return self.model if hasattr(self.model, "layers") else decoder(self.model)

    def _layers(self) -> nn.ModuleList | None:
        """Those of the model's text, where they are in one list."""
        found = getattr(self._part(), "layers", None)
        return found if isinstance(found, nn.ModuleList) else None

    @contextmanager
    def _routers(self) -> Iterator[Routers | None]:
        """Those of a model whose precision lets experts with nearly equal scores change places: their choices are made
        the same, so that the rest is compared. Compiled layers are run as they are written."""
        layers, routers = self._layers(), None
        if self.dtype != torch.float32 and layers:
            with self._own_forward():
                routers = Routers(self.model, layers)
        if not (routers and routers.found):
            yield None
            return
        try:
            with torch.compiler.set_stance("force_eager"):
                yield routers
        finally:
            routers.remove()

    def _of_all_ranks(self, values: np.ndarray) -> np.ndarray:
        """The largest of each value; nan where one is."""
        return np.max(self.process.gather_rows({self.process.rank: values}), axis=0)

    @contextmanager
    def _evaluated(self) -> Iterator[None]:
        """Context in which the model is in evaluation, as it is written."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            for module, trains in modes.items():
                module.training = trains

    @contextmanager
    def _own_forward(self) -> Iterator[None]:
        """Context in which the model computes as transformers evaluates it."""
        if self.way.packed:
            set_exact_attention(self.model)
        try:
            with self._evaluated():
                yield
        finally:
            if self.way.packed:
                set_packed(self.model, self.way.packed)

    @contextmanager
    def _in_float32(self) -> Iterator[bool]:
        """Context in which a model below float32 computes in it, exactly, with the weights of one layer at a time in
        float32: on a small GPU an engine starts meanwhile. False where it cannot."""
        if self.model.dtype == torch.float32:
            yield False
            return
        obstacle = self._inexact()
        if self.process.any(bool(obstacle)):
            self.way.unproved = obstacle or "another rank cannot compute the model in it"
            yield False
            return
        packed, layers = self.way.packed, self._layers() or nn.ModuleList()
        of_layers = [_floating(layer) for layer in layers]
        inner = {id(one) for held in of_layers for one, _ in held}
        outer = [(one, data) for one, data in _floating(self.model) if id(one) not in inner]
        hooks = [hook for layer, held in zip(layers, of_layers, strict=True) for hook in (
            layer.register_forward_pre_hook(lambda *_, held=held: _set(held, torch.float32)),
            layer.register_forward_hook(lambda *_, held=held: _set(held)))]
        try:
            _set(outer, torch.float32)
            self.exact = True
            if packed:
                self.way.packed = "padded"  # the kernels of GPUs take no float32
                set_packed(self.model, self.way.packed)
            with torch.compiler.set_stance("force_eager"):
                yield True
        finally:
            self.exact = False
            for hook in hooks:
                hook.remove()
            for held in (outer, *of_layers):
                _set(held)
            if packed:
                self.way.packed = packed
                set_packed(self.model, packed)
            if self.process.device.type == "cuda":
                torch.cuda.empty_cache()

    def _inexact(self) -> str:
        """Why this rank cannot compute the model in float32."""
        if self._partitioned():
            return "ranks hold parts of its weights (trainer.zero_stage=3)"
        if self.process.device.type == "cpu":
            return ""
        if self.way.recurrent:
            return "its layers with a state use kernels of bfloat16"
        logits = min(self._length(), EXACT) * self.text.vocab_size
        free = torch.cuda.mem_get_info(self.process.device)[0]
        whole = sum(one.numel() for one in self.model.parameters())
        layers = [{id(one): one.numel() for one in layer.parameters()} for layer in self._layers() or ()]
        inner, largest = dict(ChainMap(*layers)), max((sum(one.values()) for one in layers), default=0)
        # 10% of all for what is computed between; copies, of the longest row
        needed = 4 * (whole - sum(inner.values()) + largest) + 0.4 * whole + 3 * 4 * logits
        return f"{needed / 2**30:.1f} GiB of GPU memory are needed, {free / 2**30:.1f} free" * (free < needed)

    def _partitioned(self) -> bool:
        """Whether ranks hold parts of each weight (ZeRO-3), which are whole in the forward of its module alone."""
        return any(hasattr(one, "ds_tensor") for one in self.model.parameters())

    def _largest_gradients(self) -> np.ndarray:
        """Returns the largest absolute gradient of row 2's outputs with respect to the input embeddings of row 1, and
        of row 2 itself, and whether the positions of their tokens are wrong, [3]."""
        embeddings: list[Tensor] = []
        positions: list[Tensor] = []

        def leaf(_, __, found: Tensor) -> Tensor:
            embeddings.append(found.detach().requires_grad_())
            return embeddings[-1]

        hooks = [self.model.get_input_embeddings().register_forward_hook(leaf),
                 self._part().register_forward_pre_hook(
                     lambda _, __, named: positions.append(named["position_ids"][0].tolist()), with_kwargs=True)]
        try:
            (micro,) = pack(self._rows(FIRST, SECOND), FIRST + SECOND, 0, 1)
            second = self.outputs(micro)[torch.from_numpy(micro.row_in_micro == 1)]
        finally:
            for hook in hooks:
                hook.remove()
        if len(embeddings) != 1:
            raise RuntimeError(f"{len(embeddings)} calls of the input embedding in one forward")
        (gradient,) = torch.autograd.grad(second.sum(), embeddings)  # [1, T, width]
        gradient = gradient[0].float().abs()
        misplaced = positions != [[*range(FIRST), *range(SECOND)]] and not self.way.sequence
        if self.way.sequence:
            gradient = self.way.sequence.joined(gradient)
        first, own, _ = gradient.split([FIRST, SECOND, len(gradient) - FIRST - SECOND])
        return np.array([first.max().item(), own.max().item(), misplaced])

    def _length(self) -> int:
        """Tokens of a row that is longer than every length from which on layers do otherwise."""
        return min(self.longest, max([SHORT, *(bound + COMPARED for bound in self.bounds)]))

    def _tree(self) -> list[Row]:
        """Three rows, of which two continue a half and three quarters of the first, and none is longer."""
        first, *ends = self._rows(min(self._length(), EXACT), SECOND, SECOND)
        made, whole = [first], len(first.tokens)
        for quarters, end in zip((2, 3), ends, strict=True):
            tokens = (first.tokens[: whole * quarters // 4] + end.tokens)[:whole]
            made.append(Row(end.id, tokens, 1, [1] * (len(tokens) - 1)))
        return made

    def _rows(self, *lengths: int) -> list[Row]:
        room = getattr(self.text, "max_position_embeddings", None) or max(lengths)
        tokens = np.resize(self.tokens, sum(lengths)).tolist()
        starts = np.cumsum([0, *lengths])
        made = [tokens[start : start + min(length, room)] for start, length in zip(starts, lengths, strict=False)]
        return [Row(f"row {i}", row, 1, [1] * (len(row) - 1)) for i, row in enumerate(made, 1)]


def _floating(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The parameters and buffers of a module that are floating point numbers, with what they hold."""
    return [(one, one.data) for one in (*module.parameters(), *module.buffers()) if one.is_floating_point()]


def _set(held: list[tuple[Tensor, Tensor]], dtype: torch.dtype | None = None) -> None:
    """Gives tensors what they held, in another precision if one is given."""
    for one, data in held:
        one.data = data if dtype is None else data.to(dtype)


def apart(some: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """The mean and the 95th percentile of absolute differences; nan where one is."""
    far = np.abs(some - others)
    return float(far.mean()), float(np.quantile(far, 0.95))


def reach_differs(some: Tensor, others: Tensor) -> bool:
    """Whether one of two lists of magnitudes is 0 where the other is not."""
    return bool((((some > 0) != (others > 0)) & (torch.maximum(some, others) > VANISHED)).any())


@contextmanager
def rounded_again(layers: nn.ModuleList | None) -> Iterator[None]:
    """Context in which the output of each layer is rounded otherwise, a third of its numbers to a neighbour: as far
    apart are two right ways to compute the model in its precision (beside PyTorch's two attentions, mean of differences
    in bfloat16: 0.0098 and 0.0215 nats on 24 and 28 layers of Qwen2.5's shapes with random weights, here 0.0094 and
    0.0209; 0.015 on text of sums by SmolLM2-135M, here 0.018)."""
    def rounded(_, __, output: Tensor | tuple) -> Tensor | tuple:
        states = output if isinstance(output, Tensor) else output[0]
        step = (torch.rand_like(states, dtype=torch.float32) - 0.5) * torch.finfo(states.dtype).eps
        states = (states.float() * (1 + step)).to(states.dtype)
        return states if isinstance(output, Tensor) else (states, *output[1:])

    hooks = [layer.register_forward_hook(rounded) for layer in layers or ()]
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices), torch.compiler.set_stance("force_eager"):
            torch.manual_seed(0)
            yield
    finally:
        for hook in hooks:
            hook.remove()
