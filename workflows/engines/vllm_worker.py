"""vLLM worker extension: loads and verifies weights inside the worker.

vLLM mixes this class into its worker (`worker_extension_cls`), so `self.model_runner` is vLLM's own.
"""

from copy import copy

from vllm.config import ModelConfig

from ouroboros.workflows.engines.host_weights import HostWeights
from ouroboros.workflows.engines.kept_logprobs import keep, of_first, of_second
from ouroboros.workflows.engines.vllm_past_loaders import PastLoaders
from ouroboros.workflows.protocol.kept import Kept

# vLLM's names of where weights are, and of what frees memory
OF_NO_GRAPH = {"model": "", "enable_sleep_mode": False, "enable_cumem_allocator": False}
IN_ORDER = ("qkv_proj", "gate_up_proj")  # layers of vLLM whose weight is that of its parts, one behind the other


def share_graphs(extension: type) -> type:
    """Makes vLLM find the graphs that it compiled for another checkpoint of a model: the trained one, to evaluate it,
    or the next stage's. They take weights as arguments, and the hash of what they depend on has the model's whole
    configuration; vLLM puts the directory into it too. Each of its processes imports the extension before it compiles.
    """
    whole = ModelConfig.compute_hash

    def of_shape(config: ModelConfig) -> str:
        if config.trust_remote_code or config.quantization:  # code or hf_quant_config.json in the directory, too
            return whole(config)
        shape = copy(config)
        shape.__dict__.update(OF_NO_GRAPH)
        return whole(shape)

    ModelConfig.compute_hash = of_shape
    return extension


@share_graphs
class WeightLoader:
    """Methods called by `LLM.collective_rpc`."""

    def load_weights_from(self, directory: str) -> None:
        """Loads the weights of a published version, whole or a delta, and verifies their hashes meanwhile.

        On CPU the output head is kept as a packed copy. When it shares storage with the embedding, reloading refreshes
        the embedding but not the packed copy (seen with vLLM 0.32), so it is packed again. Experts are packed only
        where their kernel is set up, so on CPU that is repeated too.
        """
        model = self.model_runner.get_model()
        if not hasattr(self, "host_weights"):
            self.host_weights = HostWeights()
        if next(model.parameters()).device.type == "cpu":
            _forget_expert_kernels(model)
        with self.host_weights.verified(directory) as tensors:
            text = getattr(model, "language_model", model)  # of a model that reads images too
            if not hasattr(text, "lm_head"):  # Gemma 2: its embedding is its head
                tensors = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
            with PastLoaders(model):
                self.model_runner.reload_weights(weights_iterator=iter(tensors.items()))
            inner = getattr(text, "model", None)
            head, embedding = (getattr(part, name, None) for part, name in (
                (text, "lm_head"), (getattr(inner, "text_model", inner), "embed_tokens")))  # text_model: Idefics 3
            tied = head is not None and embedding is not None and head.weight.data_ptr() == embedding.weight.data_ptr()
            if tied and head.weight.device.type == "cpu":
                head.quant_method.process_weights_after_loading(head)
            compare_tensors(model, tensors, directory)

    def keep_logprobs(self, second: bool) -> None:
        """Keeps log-probs of sampled tokens with the sampler (workflows/engines/kept_logprobs.py). second: whether
        vLLM's second model runner is at work."""
        runner = self.model_runner
        batch_of = of_second if second else of_first(runner)
        # with asynchronous scheduling a request that ended may be computed for one position more
        self.kept = keep(runner.sampler, runner.max_num_reqs, runner.max_model_len + 2, runner.device, batch_of)

    def take_logprobs(self, wanted: list[tuple[int, int, int]]) -> list[list[float]]:
        return self.kept.take(wanted)

    def drop_logprobs(self, numbers: list[int]) -> None:
        self.kept.drop(numbers)

    def keep_sets(self, second: bool) -> None:
        """Finds or makes what keeps the tokens that others were sampled among (workflows/engines/vllm_truncation.py).
        second: whether vLLM's second model runner is at work."""
        if second:
            from ouroboros.workflows.engines.vllm_truncation import truncate_in

            self.sets = truncate_in(self.model_runner.sampler)
        else:
            processors = self.model_runner.input_batch.logitsprocs.argmax_invariant
            self.sets = next(one.sets for one in processors if hasattr(one, "sets"))

    def take_kept(self, wanted: list[tuple[int, int, int]]) -> list[Kept | None]:
        return self.sets.take(wanted)

    def drop_kept(self, keys: list[int]) -> None:
        self.sets.drop(keys)

    def compare_adapter(self, number: int, directory: str) -> None:
        """Raises RuntimeError unless adapter `number` is active with the A matrices of `directory`.

        As `compare_tensors` does for whole models. B is left to the probe: vLLM multiplies it by alpha / rank.
        """
        import torch
        from safetensors import safe_open

        manager = self.model_runner.lora_manager._adapter_manager
        if number not in manager.lora_index_to_id:
            raise RuntimeError(f"{directory} was loaded as adapter {number}, but the engine has "
                               f"{manager.lora_index_to_id} at work")
        held = manager.get_adapter(number).loras
        with safe_open(f"{directory}/adapter_model.safetensors", "pt") as file:
            keys = set(file.keys())
            for name, layer in held.items():
                key = f"base_model.model.{name}.lora_A.weight"
                if key in keys and not torch.equal(layer.lora_a, file.get_tensor(key).to(layer.lora_a)):
                    raise RuntimeError(f"{directory} was loaded, but the engine's adapter for {name} is another")


def _forget_expert_kernels(model) -> None:
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def compare_tensors(model, tensors: dict, directory: str) -> None:
    """Raises RuntimeError when a tensor that the engine holds as published differs from the published one.

    The probe cannot see a single stale tensor: a training step changes log-probs by less than two right ways to compute
    them differ in 16 bits. Compared are tensors of the same name and shape, and those that vLLM merges in order, of
    queries, keys and values, and of an MLP's gate and its product; what is packed otherwise is left to the probe, as
    all matrices are on a CPU, which keeps packed copies alone.
    """
    import torch

    for name, held in model.named_parameters():
        parts = [tensors[part] for part in _merged(model, name) if part in tensors]
        if not parts or held.shape != (sum(len(part) for part in parts), *parts[0].shape[1:]):
            continue
        given = torch.cat([part.to(held.device, held.dtype) for part in parts])
        if not torch.equal(held.data, given):
            raise RuntimeError(f"{directory} was loaded, but the engine's {name} holds something else")


def _merged(model, name: str) -> list[str]:
    """The published tensors that a parameter of vLLM holds, one behind the other."""
    *path, layer, kind = name.split(".")
    parts = getattr(model, "packed_modules_mapping", {}).get(layer) if layer in IN_ORDER else None
    return [".".join([*path, part, kind]) for part in parts] if parts else [name]
