"""Rules between sections: what the settings of one stage must have in common. Rules of one section are in its class."""

import contextlib
import re
from collections.abc import Iterator, Mapping

from ouroboros.pipeline.settings import reward_rules, trainer, truncation
from ouroboros.pipeline.settings.algorithms import COMPARE, OF_PAIRS, WITH_TEACHER
from ouroboros.pipeline.settings.arguments.experience import CHANGE_REWARDS
from ouroboros.pipeline.settings.columns import unweighed_steps
from ouroboros.pipeline.settings.data import SHOWN
from ouroboros.pipeline.settings.declared import ADVANTAGES
from ouroboros.pipeline.settings.remote import UNTOLD
from ouroboros.pipeline.settings.setting import Absent
from ouroboros.pipeline.settings.train_batch import given_batch
from ouroboros.pipeline.store.errors import Problem, nearest

EVAL_SETS = "buffer.explorer_input.eval_tasksets"
COLDEST, HOTTEST = 0.01, 100  # temperatures: vLLM samples below 0.01 at 0.01; logits differ by some tens
LONGEST_NAME = 200  # bytes; file systems take 255, and names of files are made of it
Found = Iterator[Problem]


def names(c) -> Found:
    for key in ("project", "name"):
        if not re.fullmatch(r"\w[\w.,=-]*", getattr(c, key)):
            yield Problem(key, "needed letters, digits, '_', '-' and '.', beginning with none of the last two; it "
                          "becomes a directory name.", found=getattr(c, key))
        elif len(getattr(c, key).encode()) > LONGEST_NAME:
            yield Problem(key, f"needed at most {LONGEST_NAME} bytes; it becomes a directory name.",
                          found=getattr(c, key))
    if re.search(r"[{}]", c.checkpoint_root_dir):
        yield Problem("checkpoint_root_dir", "braces have a meaning to Snakemake; needed a path without.",
                      found=c.checkpoint_root_dir)


def exploring_given_responses(c) -> Found:
    if not c.of_mode.trains and not c.only_evaluates and not c.algorithm.on_rollouts:
        yield Problem("mode", f"{c.algorithm.algorithm_type} learns from given responses and explores nothing; needed "
                      "mode=train or both.", found=c.mode)


def evaluation_without_sets(c) -> Found:
    every = c.explorer.eval_interval
    if c.buffer.explorer_input.eval_tasksets:
        return
    if every:
        yield Problem("explorer.eval_interval", f"there is nothing to evaluate on; needed a set in {EVAL_SETS}, or "
                      "null.", found=every)
    if c.only_evaluates:
        yield Problem("mode", f"there is nothing to evaluate on; needed a set in {EVAL_SETS}.", found=c.mode)


def loss_of_pairs(c) -> Found:
    """A loss on pairs goes with an algorithm that reads pairs; a user's loss may be for either."""
    a, kind, loss = c.algorithm, c.algorithm.algorithm_type, c.algorithm.policy_loss_fn or ":"
    if not c.kind.trains:
        return
    if a.on_pairs and a.entropy_loss_fn == "mix":
        yield Problem("algorithm.entropy_loss_fn", f"with algorithm.algorithm_type={kind}: pairs hold no "
                      "demonstrations.", "Set default or none.", found="mix")
    elif not a.on_given_tokens and ":" not in loss and a.loss.compares_pairs != a.on_pairs:
        advice = "Choose a loss of those names" if a.on_pairs else "Choose another loss"
        yield Problem("algorithm.policy_loss_fn", f"with algorithm.algorithm_type={kind}: {', '.join(OF_PAIRS)} "
                      "compare pairs of responses, which the types of the same names read, and no other loss does.",
                      f"{advice}, or the type that goes with it.", found=loss)


def greedy_baseline(c) -> Found:
    asks = c.kind.learns_from_rollouts and "baseline_reward" in c.algorithm.reads
    if asks and not c.algorithm.greedy_baseline:
        yield Problem("algorithm.advantage_fn", "needs the reward of a greedy response to each task.",
                      "Set algorithm.greedy_baseline=true.", found=c.algorithm.advantage_fn)


def components(c) -> Found:
    """An advantage that reads the components of a reward sees nothing of what is subtracted from their sum."""
    a, operators = c.algorithm, c.data_processor.experience_pipeline.operators
    if not c.kind.learns_from_rollouts or not a.advantage.reads_components:
        return
    if a.kl_penalty_fn not in (None, "none"):
        yield Problem("algorithm.kl_penalty_fn", f"with advantage_fn={a.advantage_fn}, which reads the components of "
                      "the reward: the penalty is subtracted from their sum.", "Take kl_loss_fn, or set none.",
                      found=a.kl_penalty_fn)
    if a.reward_weights:
        yield Problem("algorithm.reward_weights", f"with advantage_fn={a.advantage_fn}, which reads components as "
                      "they are, by algorithm.advantage_fn_args.", "Set {}.", found=a.reward_weights)
    for name in (str(one.get("name")) for one in operators):
        if name in CHANGE_REWARDS or ":" in name:
            yield Problem("data_processor.experience_pipeline.operators", f"with algorithm.advantage_fn="
                          f"{a.advantage_fn}, which reads the components of the reward: {name} "
                          f"{'may change' if ':' in name else 'changes'} their sum alone.", "Take it out, or choose "
                          "another advantage.", found=name)


def taught(c) -> Found:
    """A loss of a teacher's likeliest tokens needs that teacher, and reads no advantage. What is asked can answer."""
    a, m = c.algorithm, c.model
    if m.teacher_url is not None or m.teacher_name is not None:
        yield from _named_teacher(c)
    if not c.kind.learns_from_rollouts or not a.loss.needs_teacher:
        return
    if not a.has_teacher:
        yield Problem("algorithm.policy_loss_fn", f"reads log-probs of a teacher, and advantage_fn={a.advantage_fn} "
                      "asks none.", f"Set advantage_fn={' or '.join(WITH_TEACHER)}.", found=a.policy_loss_fn)
    for key, unset in (("kl_penalty_fn", "none"), ("advantage_fn_args", {})):
        if getattr(a, key) not in (None, unset):
            yield Problem(f"algorithm.{key}", f"with policy_loss_fn={a.policy_loss_fn}, which reads no advantage.",
                          f"Set {unset}.", found=getattr(a, key))


def _named_teacher(c) -> Found:
    """A teacher that is asked answers at temperature 1; one on an engine is a model that nothing else asks."""
    m, name = c.model, c.model.teacher_name
    if not c.asks_teacher:
        if c.kind.is_online and c.own_teacher:
            yield Problem("model.teacher_name", "names a model of explorer.auxiliary_models, and advantage_fn="
                          f"{c.algorithm.advantage_fn} asks no teacher.", "Write it into the stage that learns from a "
                          "teacher.", found=name)
        return
    key, found = ("model.teacher_name", name) if m.teacher_url is None else ("model.teacher_url", m.teacher_url)
    if m.temperature != 1 or truncation.is_truncated(m.top_p, m.top_k, m.min_p):
        yield Problem(key, "gives log-probs of all tokens at temperature 1, and the policy is sampled otherwise.",
                      "Set temperature=1, top_p=1, top_k=-1 and min_p=0, or leave it out.", found=found)
    if m.teacher_url is not None:
        return
    if not c.kind.explores:
        yield Problem(key, "names a model of explorer.auxiliary_models, and this stage has no explorer.",
                      "Set model.teacher_url, or leave it out.", found=name)
    elif c.own_teacher is None:
        yield Problem(key, "no model of explorer.auxiliary_models has that name.",
                      nearest(name, (one.name for one in c.explorer.auxiliary_models if one.name)), found=name)
    elif c.own_teacher.model_path != m.teacher_model_path:
        yield Problem("model.teacher_model_path", f"is not that of the model {name}, which answers for the teacher: "
                      f"{c.own_teacher.model_path}.", "Set both to one.", found=m.teacher_model_path)
    elif name in set.union(*reward_rules.asked_models(c)):
        yield Problem(key, "is asked by a reward function too.", "Give that an entry of explorer.auxiliary_models with "
                      "another name.", found=name)


def weighed(c) -> Found:
    """Weights of components reach the reward of a row alone."""
    if c.kind.learns_from_rollouts and c.algorithm.reward_weights and c.algorithm.greedy_baseline:
        yield Problem("algorithm.reward_weights", "with algorithm.greedy_baseline: the reward of the greedy response "
                      "is compared as the plain sum.", "Set {}, or greedy_baseline=false with another advantage.",
                      found=c.algorithm.reward_weights)
    yield from unweighed_steps(c, ADVANTAGES.get(c.algorithm.advantage_fn))


def whole_matrices(c) -> Found:
    """Muon needs a matrix whole, where ZeRO-3 cuts each one up and an offloaded one is on the CPU."""
    trainer = c.trainer
    if not (c.kind.trains and (trainer.zero_stage == 3 or trainer.offload_optimizer)):
        return
    cause = "zero_stage=3" if trainer.zero_stage == 3 else "offload_optimizer=true"
    for owner, one in ("algorithm", c.algorithm), ("trainer.critic", trainer.critic):
        if one.optimizer.optimizer_type == "muon":
            yield Problem(f"{owner}.optimizer.optimizer_type", f"with trainer.{cause}: a step takes matrices whole, on "
                          "the GPU.", "Set adamw, or zero_stage=2 without offload_optimizer.", found="muon")


def token_budget(c) -> Found:
    budget, longest = c.trainer.max_token_len_per_gpu, c.model.longest
    if budget * c.trainer.ulysses_sequence_parallel_size < longest:
        yield Problem("trainer.max_token_len_per_gpu", "a sequence is not cut, and the longest (model.max_model_len, "
                      f"or prompt + response) has {longest} tokens.", found=budget)


def sampling_of_training(c) -> Found:
    """What each token was sampled among is kept, where that is not the whole vocabulary."""
    yield from truncation.unfit(c) if c.kind.explores else ()


def groups(c) -> Found:
    """An advantage that compares the rollouts of a group needs several."""
    if c.kind.is_online and c.algorithm.advantage.compares_groups and c.algorithm.repeat_times < 2:
        yield Problem("algorithm.repeat_times", f"{c.algorithm.advantage_fn} compares the rollouts of a group; needed "
                      "at least 2.", found=1)


def critic(c) -> Found:
    waits, function = c.trainer.critic_warmup, c.algorithm.advantage_fn
    if c.kind.learns_from_rollouts and waits and not c.algorithm.has_critic:
        yield Problem("trainer.critic_warmup", f"with algorithm.advantage_fn={function}: only ppo has a critic.",
                      "Set it to 0, or advantage_fn=ppo.", found=waits)


def resampling(c) -> Found:
    """Groups are replaced where their responses are compared. What an explore-only stage is for is set by later
    stages."""
    a, advantage = c.algorithm, c.algorithm.advantage_fn
    alone = c.kind.is_online and advantage in ADVANTAGES and advantage not in COMPARE
    if not c.kind.explores or not a.max_resample_rounds:
        return
    if (a.repeat_times or 1) < 2 or alone:
        among, one_of = (f"advantage_fn={advantage} and ", f" and one of {', '.join(COMPARE)}") if c.kind.is_online \
            else ("", "")
        yield Problem("algorithm.max_resample_rounds", f"with {among}repeat_times={a.repeat_times}: it replaces groups "
                      "whose responses are equally good, which teach nothing where they are compared; needed "
                      f"repeat_times of at least 2{one_of}, or 0.", found=a.max_resample_rounds)


def passes(c) -> Found:
    """Mini-batches of a batch that ends with an expert's rows are of both kinds where they are shuffled."""
    size = c.trainer.ppo_mini_batch_size
    if c.kind.learns_from_rollouts and size is not None and not c.trainer.shuffle_mini_batches and (
            c.algorithm.sample_strategy == "mix"):
        yield Problem("trainer.ppo_mini_batch_size", "with algorithm.sample_strategy=mix, whose batches end with the "
                      "rows of the expert: the last mini-batches would hold no others.", "Set trainer."
                      "shuffle_mini_batches=true.", found=size)


def reference_update(c) -> Found:
    """The reference of rollouts may follow the policy: its log-probs are of one train batch."""
    update = c.trainer.reference_update
    if update.interval is None or not c.kind.trains:
        return
    if c.algorithm.on_pairs and not c.algorithm.scores_responses:
        yield Problem("trainer.reference_update.interval", f"{c.algorithm.algorithm_type} scores all of its pairs by "
                      "the reference once, before the first step.", "Set null for this stage.", found=update.interval)
    elif c.model.lora_configs and update.mix < 1:
        yield Problem("trainer.reference_update.mix", "the weights of an adapter are factors of a product, which is "
                      "not mixed by mixing them.", "Set 1, or model.lora_configs=[].", found=update.mix)


def towers(c) -> Found:
    """An adapter is on the text alone."""
    if not c.trainer.freeze_vision_tower and c.model.lora_configs and c.kind.trains:
        yield Problem("trainer.freeze_vision_tower", "an adapter is on linear layers of the text, and nothing else is "
                      "trained.", "Set true, or model.lora_configs=[].", found=False)


def four_bits(c) -> Found:
    """Frozen weights alone are held in 4 bits, whole on each rank."""
    if not (c.model.load_in_4bit and c.kind.trains):
        return
    lacking = "" if c.model.lora_configs else "needs an adapter: weights in 4 bits are not trained"
    for reason, advice in (
            (lacking, "Set stages.NAME.model.load_in_4bit=false, or give the stage an adapter: "
                      "stages.NAME.model.lora_configs=[{}]."),
            ("with model.dtype=auto, which follows the machine, and the weights in 4 bits stand for others in each type"
             * (c.model.dtype == "auto"), "Set model.dtype=bfloat16, or float32 on a CPU."),
            ("with a critic, which learns all of its weights" if c.algorithm.has_critic else "",
             "Set algorithm.advantage_fn=grpo, or false."),
            ("with trainer.zero_stage=3, which divides weights that are not in 4 bits" * (c.trainer.zero_stage == 3),
             "Set trainer.zero_stage=1 or 2.")):
        if reason:
            yield Problem("model.load_in_4bit", f"{reason}.", advice, found=True)


def images(c) -> Found:
    """What trains on rows of text alone; images within messages are found when the trainer starts."""
    source, pool = c.buffer.explorer_input, c.data_processor.task_pipeline
    read = [c.buffer.trainer_input.experience_buffer.format] if c.kind.learns_from_given else [
        pool.format if one.path is None else one.format for _, one in source.train_places]
    if not c.kind.trains or not any(one.image_key for one in read):
        return
    ranks = c.trainer.ulysses_sequence_parallel_size
    for key, asked, found in (("trainer.ulysses_sequence_parallel_size", ranks > 1, ranks),
                              ("algorithm.advantage_fn", c.algorithm.has_critic, c.algorithm.advantage_fn),
                              ("model.teacher_model_path", c.asks_teacher, c.model.teacher_model_path)):
        if asked:
            yield Problem(key, "is for rows of text alone.", "Leave it out, or format.image_key.", found=found)


def refusal(config, critic: bool, inputs: Mapping, of_tasks: bool) -> str | None:
    """Returns why a stage does not train with images. critic: whether it has one; inputs: of the stage, by name;
    of_tasks: whether tasks have images, else agents alone: ranks then do not know who has some."""
    trainer = config.trainer
    lacking = {"trainer.ulysses_sequence_parallel_size is for rows of text alone: needed 1":
                   trainer.ulysses_sequence_parallel_size > 1,
               "a critic (algorithm.advantage_fn) reads text alone": critic, "a teacher reads text alone":
                   "teacher" in inputs,
               "trainer.zero_stage=3 needs tasks with images; needed 1 or 2": not of_tasks and trainer.zero_stage == 3,
               "trainer.freeze_vision_tower=false on several ranks needs tasks with images; needed true, or one rank":
                   not of_tasks and trainer.ranks > 1 and not trainer.freeze_vision_tower}
    found = [what for what, asked in lacking.items() if asked]
    return f"there are images, and {found[0]}." if found else None


def texts(c) -> Found:
    """cpt trains on plain text, the other algorithms on responses."""
    algorithm, buffer = c.algorithm.algorithm_type, c.buffer.trainer_input.experience_buffer
    on_texts = c.algorithm.data == "texts"
    if not c.kind.learns_from_given:
        return
    if on_texts and buffer.path is None:
        yield Problem(f"{SHOWN}.path", "algorithm_type=cpt needs files of plain text, under format.prompt_key.",
                      found=None)
    elif on_texts and buffer.format.prompt_type != "plaintext":
        yield Problem(f"{SHOWN}.format.prompt_type", "algorithm_type=cpt trains on plain text.", "Set plaintext, or "
                      "train on conversations with algorithm_type=sft.", found=buffer.format.prompt_type)
    elif not on_texts and buffer.format.response_key is None:
        yield Problem(f"{SHOWN}.format.response_key", f"{algorithm} trains on responses, and only cpt on plain text.",
                      "Name the column of the response.", found=None)


def sampling_of_sets(c) -> Found:
    """Sets that are trained on have one number of responses, and sample them; no set has longer responses."""
    for place, one in c.buffer.explorer_input.train_places if c.kind.explores else ():
        key, group = f"buffer.explorer_input.{place}", c.algorithm.repeat_times
        if one.repeat_times not in (None, group):
            yield Problem(f"{key}.repeat_times", f"rollouts to train on follow algorithm.repeat_times={group}.",
                          "Set that.", found=one.repeat_times)
        own = one.rollout_args.temperature
        if not COLDEST <= (given := c.model.temperature if own is None else own) <= HOTTEST:
            yield Problem("model.temperature" if own is None else f"{key}.rollout_args.temperature", "rollouts to "
                          "train on are sampled by the model: colder ones are identical in a group, and hotter ones "
                          "drawn whatever it knows, so that nothing is learned.", f"Needed {COLDEST} to {HOTTEST}.",
                          found=given)
    for place, one in c.buffer.explorer_input.places:
        if (one.rollout_args.max_tokens or 0) > c.model.max_response_tokens:
            yield Problem(f"buffer.explorer_input.{place}.rollout_args.max_tokens", "is longer than "
                          f"model.max_response_tokens={c.model.max_response_tokens}, which memory is reserved for.",
                          "Raise that, or lower it.", found=one.rollout_args.max_tokens)


def pairs(c) -> Found:
    """Preference training needs pairs."""
    algorithm, pool = c.algorithm.algorithm_type, c.data_processor.task_pipeline
    buffer = c.buffer.trainer_input.experience_buffer
    if not c.algorithm.on_pairs or not c.kind.learns_from_given or c.mode == "explore":
        return
    size, batch = given_batch(c.buffer)
    if c.algorithm.policy_loss_fn_args.get("estimate_kl") is True and batch == 1:
        yield Problem(size, "with algorithm.policy_loss_fn_args.estimate_kl: a prompt of the batch is taken with the "
                      "responses of a pair with another one; needed at least 2.", found=1)
    if buffer.path is None and not pool.inputs and not pool.generator_args.get("pairs"):
        made = f"the generator {pool.generator} makes none" if pool.generator else "nothing gives rows"
        yield Problem("algorithm.algorithm_type", "trains on pairs of a preferred and a rejected response, and "
                      f"{made}.", f"Set {SHOWN}.path to a file of pairs; its columns are {SHOWN}.format.chosen_key "
                      "and rejected_key.", found=algorithm)
        return
    if buffer.path is None and not pool.inputs:
        return
    key, columns = (SHOWN, buffer.format) if buffer.path is not None else ("data_processor.task_pipeline", pool.format)
    for name in ("chosen_key", "rejected_key"):
        if getattr(columns, name) is None:
            yield Problem(f"{key}.format.{name}", f"needed the column of a pair's response, for algorithm_type="
                          f"{algorithm}; found null.")


def nodes(c) -> Found:
    """Ranks and engines are the same number on every node."""
    number, engine = c.cluster.node_num, c.explorer.rollout_model
    if number == 1:
        return
    spread = {"trainer.ranks": c.trainer.ranks} if c.kind.trains else {}
    if not c.kind.learns_from_given or c.buffer.explorer_input.eval_tasksets:
        spread["explorer.rollout_model.engine_num"] = engine.engine_num
    for key, count in spread.items():
        if count % number:
            yield Problem(key, f"needed a multiple of cluster.node_num={number}: every node has the same number.",
                          found=count)
    if c.explorer.auxiliary_models:
        yield Problem("explorer.auxiliary_models", f"with cluster.node_num={number}: auxiliary models run on one node "
                      "only.", "Set cluster.node_num=1 for this stage.")


def server(c) -> Found:
    """A server of OpenAI's interface answers tasks, and is not trained."""
    model = c.explorer.rollout_model
    if model.engine_type != "openai":
        return
    if not c.asks_server:
        yield Problem("explorer.rollout_model.engine_type", "a server gives neither the token ids nor the log-probs "
                      "that training needs.", "Set vllm or transformers; openai goes with mode=bench and "
                      "mode=explore.", found="openai")
    for name in ("base_url", "model_name"):
        if not ((given := getattr(model.external, name)) or "").strip():
            yield Problem(f"explorer.rollout_model.external.{name}", "needed with engine_type=openai.", found=given)
    if c.kind.explores:  # truncated sampling is refused there, whatever the server knows of it
        return
    for place, one in [("model", c.model), *((f"buffer.explorer_input.{at}.rollout_args", one.rollout_args)
                                             for at, one in c.buffer.explorer_input.eval_places)]:
        for name, off in UNTOLD.items():
            if (given := getattr(one, name)) not in (None, off):
                yield Problem(f"{place}.{name}", "is no sampling parameter of OpenAI's interface, so a server would "
                              "not be told of it.", f"Leave it out, or set {off:g}.", found=given)


def broken(c) -> Found:
    """Yields what every rule below finds; one that reads a value which is absent finds nothing."""
    for each in RULES:
        with contextlib.suppress(Absent):
            yield from each(c)


RULES = (names, exploring_given_responses, evaluation_without_sets, loss_of_pairs, greedy_baseline, components, taught,
         weighed, whole_matrices, token_budget, sampling_of_training, groups, critic, resampling, passes,
         reference_update, towers, four_bits, images, texts,
         sampling_of_sets, pairs, nodes, *reward_rules.RULES, *trainer.RULES, server)
