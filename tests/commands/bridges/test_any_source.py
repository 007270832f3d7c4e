"""Whatever the bridges are given: a translation that accounts for every key, or an error of ours."""

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ouroboros.commands.bridges.report import write
from ouroboros.commands.bridges.tables import keys, table
from ouroboros.pipeline.settings import guide
from ouroboros.pipeline.store.errors import OuroError
from tests.bridges import from_trinity, from_verl, launch, written

OF_VERL = st.sampled_from([*keys("verl"), *table("verl")["together"], "reward_model.overlong_buffer.len", "x.y",
                           "reward_model.overlong_buffer.enable", "reward_model.overlong_buffer.penalty_factor",
                           "actor_rollout_ref.rollout.val_kwargs.n"])
OF_SFT = st.sampled_from([*keys("verl_sft"), *table("verl_sft")["together"], "data.prompt_dict_keys", "x.y"])
OF_THE_GUIDE = st.sampled_from(sorted(guide.fates())).map(lambda key: key.replace("*", "x"))
SINGLE = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=8), st.sampled_from(
    ["1e-6", "[a,b]", "['a', 1]", "{a: 1}", "$X", "${X:-3}", "${a.b}", "$((2*3))", "$(nproc)", "$1", "-1", "True",
     "[]", "gae", "grpo", "~/x/train.parquet", "${model.model_path}", "${oc.env:HOME}", "sqlite:///x", "nccl", "cosine",
     "math_workflow"]))
NESTED = st.recursive(SINGLE, lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(
    st.one_of(OF_VERL, OF_THE_GUIDE, st.text(max_size=5)), below, max_size=3)), max_leaves=15)
SHELL = st.one_of(st.text(alphabet="ab= \\\n\"'$(){}[]#;|&<>`~+-*./:1,\t", max_size=20), st.sampled_from(
    ["if ", "for ", "done\n", "fi\n", "<<E", "E\n", "X=1\n", "$((", "${X:-", "A=(", "python ", "bash -c '",
     "f() {\n", "}\n", "f a.b=1 ", "set -- ", "shift\n", "$@ ", "${@:2} ", "$1", "X+=\" $(x)\"\n", "$X ", "eval "]))
MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(st.lists(st.tuples(OF_VERL, SINGLE), max_size=12), st.lists(SHELL, max_size=8))
def test_any_script(pairs, noise):
    overrides = (f"{key}={value}" for key, value in pairs)
    assert_accounted_for("".join(noise) + "\n" + launch("trainer.nnodes=1", *overrides) + "".join(noise), from_verl)


@MANY
@given(st.lists(st.tuples(OF_SFT, SINGLE), max_size=12))
def test_any_script_of_the_sft_trainers(pairs):
    overrides = [f"{key}={value}" for key, value in pairs]
    text = " \\\n".join(["torchrun --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer", "optim.lr=1e-5", *overrides])
    assert_accounted_for(text, from_verl)


@MANY
@given(NESTED)
def test_any_yaml_of_verl(value):
    assert_accounted_for(yaml.safe_dump(value, allow_unicode=True), lambda text: from_verl(text, "c.yaml"))


@MANY
@given(NESTED)
@example({"stages": [0, {"actor_rollout_ref.hybrid_engine": 0}]})
def test_any_yaml_of_trinity(value):
    assert_accounted_for(yaml.safe_dump(value, allow_unicode=True), from_trinity)


@MANY
@given(st.dictionaries(OF_THE_GUIDE, NESTED, max_size=6))
@example({"buffer.trainer_input.experience_buffer.replay_buffer.enable": [{}, False]})
@example({"algorithm.algorithm_type": [0]})
@example({"algorithm.algorithm_type": [0], "mode": "train"})
def test_any_values_of_the_guides_keys(pairs):
    assert_accounted_for(yaml.safe_dump(pairs, allow_unicode=True), from_trinity)


@MANY
@given(st.text(alphabet="ab: -[]{}\n\"'&*!|>#%@`,?1.\t", max_size=60))
def test_any_text(text):
    assert_accounted_for(text, from_trinity)
    assert_accounted_for(text, from_verl)


def assert_accounted_for(text: str, translate) -> None:
    """Translates or refuses; what is written is YAML that says again what was meant, key by key."""
    try:
        made = translate(text)
    except OuroError:
        return
    recipe = write(made, "x")
    recipe.encode()
    assert recipe.startswith("# @package _global_\n")
    told = [*made.kept, *(g for g, _ in [*made.renamed, *made.left_out, *made.idle]), *(u.given for u in made.unknown)]
    assert made.keys == len(told) == len({(g.path, g.line, str(g.value)) for g in told})
    values = {".".join(map(str, in_order(path, made.entries))): entry.value for path, entry in made.entries.items()}
    if any(isinstance(value, str) and "${" in value for value in values.values()):
        return  # OmegaConf refuses an interpolation that is none, and the composition says so
    back = written(made)
    plain = {k: v for k, v in values.items() if v is None or isinstance(v, (str, int))}
    assert {key: _said(back, key) for key in plain} == plain


def _said(back: dict, key: str):
    """What a recipe says of a key, be it an element of a list that `written` leaves whole."""
    whole, _, position = key.rpartition(".")
    return back[key] if key in back else back[whole][int(position)]


def in_order(path: tuple, paths) -> tuple:
    """A path as the recipe has it: elements of a list move up where one before them is left out."""
    def position(depth: int) -> int:
        return sorted({p[depth] for p in paths if p[:depth] == path[:depth] and len(p) > depth}).index(path[depth])

    return tuple(position(depth) if isinstance(part, int) else part for depth, part in enumerate(path))
