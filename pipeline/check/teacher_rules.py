"""Checks models of one stage that another one asks: teachers, whose GPU memory is estimated, and auxiliary models."""


from ouroboros.pipeline.check.memory import GIB, USABLE, layer_tokens, training
from ouroboros.pipeline.check.model_size import Size
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.algorithms import OF_SCORES, WITH_TEACHER
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.model import TEACHER, Model
from ouroboros.pipeline.settings.reward_rules import asked_models
from ouroboros.pipeline.store.digests import StageModel
from ouroboros.pipeline.store.errors import Problem, nearest
from ouroboros.pipeline.store.model_shape import absent_model


def unfit_teachers(recipe: Recipe) -> list[Problem]:
    """Lists teachers that are missing, cannot be one, or that nobody asks. Stages must have valid names and order."""
    found, given = [], recipe.run.model.teacher_model_path
    asking = {name: settings for name, settings in recipe.settings.items() if settings.asks_teacher}
    for name, settings in asking.items():
        path, function = settings.model.teacher_model_path, settings.algorithm.advantage_fn
        if not path:
            found.append(Problem("algorithm.advantage_fn", "needs the log-probs of a teacher.", f"Set {TEACHER} to a "
                                 "Hugging Face directory with the policy's tokenizer, or to the name of a stage above "
                                 "that trains.", found=function, stages=[name]))
        elif path == recipe.models[name].model_path:
            found.append(Problem(TEACHER, "is the model that the stage begins with, so there is nothing to learn from "
                                 "it: every gradient is 0.", "Name another one.", found=path, stages=[name]))
        elif (taught_by := recipe.teacher_stage(name)) and not recipe.kinds[taught_by].trains:
            found.append(Problem(TEACHER, f"that stage makes no model (mode={recipe.settings[path].mode}); needed one "
                                 "that trains, or a Hugging Face directory.", found=path, stages=[name]))
    if given and not asking:
        found.append(Problem(TEACHER, "no stage asks a teacher.", f"Choose algorithm.advantage_fn="
                             f"{' or '.join(WITH_TEACHER)}, or leave it out.",
                             found=given))
    return found


def unfit_models(recipe: Recipe) -> list[Problem]:
    """Lists auxiliary models that are stages above and cannot do what they are asked for, and teachers that write
    nothing. Stages must have valid names and order."""
    found = []
    for name, settings in recipe.settings.items():
        models = settings.explorer.auxiliary_models
        for place, one in enumerate(models):
            if isinstance(one.model_path, StageModel) and (words := _unfit(recipe, settings, one)):
                found.append(Problem(f"explorer.auxiliary_models.{place}.model_path", *words, found=str(one.model_path),
                                     stages=[name]))
        if settings.asks_teacher and (taught_by := recipe.teacher_stage(name)) and (
                recipe.settings[taught_by].algorithm.scores_responses):
            found.append(Problem(TEACHER, "that stage trains a reward model, which has no log-probs of tokens; needed "
                                 "one that trains a policy.", found=taught_by, stages=[name]))
    return found


def _unfit(recipe: Recipe, settings, model) -> tuple[str, str] | None:
    """Returns what is wrong with an auxiliary model of a stage, and what to do."""
    path, (scoring, judging) = model.model_path, asked_models(settings)
    only = len(settings.explorer.auxiliary_models) == 1
    if not recipe.kinds[path].trains:
        return f"that stage makes no model (mode={recipe.settings[path].mode}).", "Name one that trains."
    if path.scores and model.name in judging:
        return "judge_reward asks it, and that stage trains a reward model, which writes nothing.", "Name a policy."
    if not path.scores and scoring & ({model.name, None} if only else {model.name}):
        return ("reward_model asks it, and that stage trains no reward model.",
                f"Name one with algorithm_type={' or '.join(OF_SCORES)}.")
    if not path.scores and settings.mode == "colocate":
        return "it is served by an engine of its own, beside the one that takes turns with the trainer.", (
            "Set mode=both.")
    return None


def absent_teacher(recipe: Recipe, model: Model | None) -> Problem | None:
    """Reports a teacher's architecture directory that does not exist."""
    if model is None or model.init.enable or not model.model_path:
        return None
    absent = absent_model(model.model_path, TEACHER)
    meant = nearest(model.model_path, recipe.kinds)
    return absent.but(do=f"Nor is it a stage above.{meant}") if absent and meant else absent


def scoring(teacher: Size, config: Config, element: int) -> float:
    """Returns a scoring teacher's bytes on a rank's GPU: its weights, one layer's tensors, a chunk of logits.

    c P + T x what a layer saves per token + (c + 16) chunk V: the logits, and in float32 they, their softmax, its
    product with them and its logarithm's. element: c, bytes of a weight.
    """
    settings = config.trainer
    tokens = settings.max_token_len_per_gpu
    layer = max(layer_tokens(teacher, layer, element, settings.attention) for _, layer in teacher.layers)
    logits = (element + 16) * min(settings.logprob_chunk_tokens, tokens) * teacher.vocabulary
    return element * teacher.parameters + tokens * layer + logits


def memory_problem(teacher: Size, policy: Size, config: Config, element: int, gib: float) -> Problem | None:
    """Reports a scoring teacher that, with the trainer's persistent memory, exceeds USABLE of a GPU of `gib`."""
    own, kept = scoring(teacher, config, element) / GIB, training(policy, config, element).idle / GIB
    if own + kept <= USABLE * gib:
        return None
    return Problem(TEACHER, f"while it scores, the teacher needs about {own:.1f} GiB on each GPU in addition to "
                   f"{kept:.1f} that the trainer keeps, and both may fill {USABLE:.0%} of {gib:g}.", "Lower "
                   "trainer.max_token_len_per_gpu, set trainer.offload_optimizer=true, or trainer.zero_stage=3 with "
                   "more ranks, or take a smaller teacher.")


def words(teacher: Size, config: Config, element: int) -> str:
    """Describes the cost of a teacher, for the plan."""
    size = element * teacher.parameters / GIB
    return (f"{size:.1f} GiB in host memory for each of {config.trainer.ranks} rank(s); on the GPU while it "
            f"scores: about {scoring(teacher, config, element) / GIB:.1f} GiB")
