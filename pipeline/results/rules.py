"""The rules of `ouro doctor`: what is often wrong with a training, each as a question to the tables of the run.

A rule's SQL returns a row for each stage (or evaluation set, or pair of components) that it can judge: the stage, the
judged value, further evidence. There is a fault where the value is above the limit, or below with under=True. Where
there is no row, or the value is NULL, the run lacks what the rule reads, or has too little of it. The limit is not in
the query, so that `ouro sql` shows the value of a healthy run too.
"""

from dataclasses import dataclass

from ouroboros.pipeline.job.no_signal import ALWAYS, EITHER, FEW, NEVER, STEPS
from ouroboros.pipeline.store.tables import STAGE_NAME

FEWEST = 20  # steps of a stage whose first and last quarter are compared
ROWS = 16  # the fewest of which a share is taken
RATE = "algorithm.optimizer.lr"


@dataclass(frozen=True)
class Rule:
    """One way in which a training goes wrong. finds: a sentence. change: the settings to change, or what to look at.

    complete: only judged of stages that are complete.
    """

    name: str
    finds: str
    sql: str
    limit: float
    change: str
    under: bool = False
    complete: bool = False


def _of(table: str) -> str:
    """SQL: the rows of a table, with the names of stages in place of their directories."""
    return f"(SELECT * REPLACE ({STAGE_NAME} AS stage) FROM {table})"


def _quarters(table: str, least: int = FEWEST) -> str:
    """SQL: the same of stages with that many steps; quarter: of the steps, 0 to 3."""
    return (f"(SELECT *, (step - 1) * 4 // last AS quarter FROM (SELECT *, max(step) OVER (PARTITION BY stage) AS last "
            f"FROM {_of(table)}) WHERE last >= {least})")


def _last(value: str, name: str) -> str:
    """SQL: the mean of a value over the last quarter of the steps of each stage."""
    return f"SELECT stage, avg({value}) AS {name} FROM {_quarters('steps')} WHERE quarter = 3 GROUP BY stage"


def _means(values: dict[str, str], early: str, late: str) -> str:
    """SQL: the mean of each value, by the beginning of its name, where `early` holds and where `late` does."""
    return ", ".join(f"avg({value}) FILTER ({when}) AS {name}{end}" for name, value in values.items()
                     for end, when in (("early", early), ("late", late)))


def _ends(value: str) -> str:
    """SQL: means of a value over the first and the last quarter of a stage's steps, as early and late, and of the
    reward; growth, rise: their differences in standard errors of the means of steps, 0 where it does not vary."""
    means = _means({"": value, "reward_": "reward"}, "quarter = 0", "quarter = 3")
    error = "sqrt({}) AS {{1}}error".format(" + ".join(
        f"var_samp({{0}}) FILTER (quarter = {q}) / count({{0}}) FILTER (quarter = {q})" for q in (0, 3)))
    return (f"(SELECT *, if(error > 0, (late - early) / error, 0) AS growth, if(reward_error > 0, (reward_late - "
            f"reward_early) / reward_error, 0) AS rise FROM (SELECT stage, {means}, {error.format(value, '')}, "
            f"{error.format('reward', 'reward_')} FROM {_quarters('steps')} GROUP BY stage))")


def _failed(status: str) -> str:
    """SQL: the share of attempts with this status, and the commonest reason."""
    return (f"SELECT stage, avg((status = '{status}')::INT) AS share_of_attempts, left(mode(reason) FILTER (status = "
            f"'{status}'), 200) AS commonest_reason FROM {_of('experience')} WHERE turn = 0 GROUP BY stage "
            f"HAVING count(*) >= {ROWS}")


ATTEMPTS = f"(FROM {_of('experience')} WHERE turn = 0 AND status IN ('ok', 'no_variance'))"
EACH_STEP = (f"(SELECT stage, step, min(reward) AS low, max(reward) AS high, avg(reward) AS mean FROM {ATTEMPTS} "
             "GROUP BY ALL HAVING count(*) > 1)")
PIECES = "[{0}[i:i + 4] for i in range(1, len({0}) - 3)]"
LAST_WORD = (r"regexp_extract(lower(regexp_replace({}, '<[^<>]*>', ' ', 'g')), '([\w/+-]+(?:[.,]\w+)*)\W*$', 1)"
             )  # without tags, such as </answer>

MODEL = STAGE_NAME.replace("stage", "model")
BASE = f"""SELECT {MODEL} AS stage, max(value) AS accuracy, taskset FROM scores
    WHERE metric = 'sampled_accuracy' AND step = 0 GROUP BY ALL"""

REWARDS = [
    Rule("constant_reward", "Most steps pay every reply the same reward.", f"""
        SELECT stage, avg((low = high)::INT) AS share_of_steps, count(*) AS steps, min(low) AS lowest,
            max(high) AS highest FROM {EACH_STEP} GROUP BY stage HAVING steps > 1""", 0.5, EITHER),
    Rule("saturated_reward", "Most steps pay nearly every reply the highest reward there is.", f"""
        SELECT stage, avg((mean > top - 0.05 * (top - bottom))::INT) AS share_of_steps, any_value(top) AS highest
        FROM (SELECT *, max(high) OVER (PARTITION BY stage) AS top, min(low) OVER (PARTITION BY stage) AS bottom
            FROM {EACH_STEP}) WHERE top > bottom GROUP BY stage HAVING count(*) > 1""", 0.5, ALWAYS),
    Rule("unsolvable_tasks", "The model that a training begins with solves no task of an evaluation set.", BASE, 0.005,
         NEVER, under=True),
    Rule("solved_tasks", "The model that a training begins with solves every task of an evaluation set.", BASE, 0.995,
         ALWAYS),
    Rule("never_solved", "No task is solved, although replies are rewarded.", f"""
        SELECT stage, max(solve_rate) AS highest_solve_rate, count(*) AS steps, max(reward) AS highest_reward
        FROM {_of('steps')} WHERE solve_rate IS NOT NULL GROUP BY stage
        HAVING steps >= {STEPS} AND max(reward) > min(reward)""", 0.001, NEVER, under=True),
    Rule("flat_groups", "Most rows that are trained on have the advantage 0: no reply of their group is better.", f"""
        SELECT stage, avg(share) AS share_of_rows, count(*) AS steps FROM (
            SELECT e.stage, train_step, avg((advantage = 0)::INT) AS share FROM {_of('experience')} AS e
            JOIN trained USING (run, experience_id) GROUP BY ALL HAVING max(reward) > min(reward))
        GROUP BY stage HAVING steps >= {STEPS}""", 0.8, "tasks that are solved now and then, algorithm.repeat_times, "
         "algorithm.max_resample_rounds, buffer.explorer_input.taskset.data_selector"),
    Rule("falling_reward", "Rewards fall: the last quarter of the steps is worse than the first.", f"""
        SELECT stage, rise AS standard_errors, reward_early, reward_late FROM {_ends('reward')}
        WHERE reward_early IS NOT NULL""", -4, f"{RATE}; unless tasks become harder", under=True),
    Rule("watch_diverges", "The reward rises, and the one that watches it falls.", f"""
        SELECT stage, if(rise > 2, growth, 0) AS standard_errors, early AS watch_early, late AS watch_late,
            reward_early, reward_late FROM {_ends('watch_reward')} WHERE early IS NOT NULL""", -3,
         "the reward function: look at its newest replies (explorer.watch)", under=True),
    Rule("past_its_best", "An evaluation on the way was better than the last one, beyond both intervals.", f"""
        SELECT {MODEL} AS stage, max(low) - arg_max(high, step) AS lead, taskset, arg_max(step, value) AS best_step,
            max(value) AS best, arg_max(value, step) AS last
        FROM scores WHERE metric IN ('sampled_accuracy', 'sampled_reward', 'pair_accuracy') GROUP BY ALL
        HAVING count(DISTINCT step) > 1""", 0, f"buffer.total_steps, {RATE}; `ouro weights` has earlier ones"),
    Rule("unread_answers", "Replies that were not rewarded end with the truth: the reward does not find answers.", f"""
        SELECT e.stage, avg(({LAST_WORD.format('response')} = {LAST_WORD.format('answer')})::INT) AS share_of_unsolved,
            count(*) AS unsolved
        FROM {_of('experience')} AS e JOIN (SELECT DISTINCT task_id, answer FROM tasks) USING (task_id)
        WHERE accuracy = 0 AND length(answer) < 200 AND NOT contains(answer, chr(92)) GROUP BY e.stage
        HAVING unsolved >= {ROWS}""", 0.1,
         "the reward function or its arguments; the form of answers in buffer.explorer_input.system_prompt"),
    Rule("components_fight", "Two components of the reward cancel each other.", f"""
        SELECT stage, -2 * covar_samp(x, y) / (var_samp(x) + var_samp(y)) AS share_of_variance, a AS one, b AS other,
            corr(x, y) AS correlation, count(*) AS attempts
        FROM (SELECT stage, a, b, reward_components[a] AS x, reward_components[b] AS y
            FROM {_quarters('experience', 4)}, unnest(map_keys(reward_components)) AS p(a),
                unnest(map_keys(reward_components)) AS q(b) WHERE a < b AND turn = 0 AND quarter = 3)
        GROUP BY ALL HAVING attempts >= {ROWS} AND max(abs(x * y)) > 0""", 0.4,
         "the reward functions or their arguments: a component that another one takes back teaches nothing"),
    Rule("judge_failures", "Rewards failed: their rows are not trained on.", _failed("reward_failed"), 0.01,
         "the reward function, or the judge's server and time limit"),
    Rule("failed_attempts", "Attempts failed: their rows are not trained on.", _failed("workflow_failed"), 0.05,
         "the workflow, its tools or explorer.max_timeout"),
    Rule("long_prompts", "Prompts are longer than the model is given room for.", _failed("prompt_too_long"), 0.05,
         "model.max_prompt_tokens"),
]

REPLIES = [
    Rule("truncated", "Replies end at the length limit, before their end.", f"""
        SELECT stage, avg((finish_reason = 'length')::INT) AS share_of_replies, avg(reward) FILTER (
            finish_reason = 'length') AS reward, avg(reward) FILTER (finish_reason = 'stop') AS reward_of_others
        FROM {_quarters('experience', STEPS)} WHERE quarter = 3 AND finish_reason IS NOT NULL GROUP BY stage""", 0.4,
         "model.max_response_tokens"),
    Rule("longer_for_nothing", "Replies grow longer, and rewards do not.", f"""
        SELECT stage, if(rise > 2, 1, late / early) AS times_as_long, early, late, reward_early, reward_late
        FROM {_ends('response_tokens_mean')} WHERE reward_early IS NOT NULL""",
         1.5, "algorithm.loss_agg_mode, a reward for length, model.max_response_tokens"),
    Rule("repeated_prompts", "Replies come to consist of pieces of their prompt, five tokens each, and earn more.", f"""
        SELECT stage, if(reward_late > reward_early, late - early, 0) AS share_gained, early, late, reward_early,
            reward_late
        FROM (SELECT stage, {_means({'': 'repeated', 'reward_': 'reward'}, 'step <= 4', 'step > 4')}
            FROM (SELECT stage, step, reward, len(list_filter({PIECES.format('response_tokens')},
                    lambda piece: list_contains({PIECES.format('prompt_tokens')}, piece))) / (
                    len(response_tokens) - 4) AS repeated
                FROM {_quarters('experience')} WHERE turn = 0 AND len(response_tokens) > 4
                    AND (step <= 4 OR step > last - 4)) GROUP BY stage)""", 0.25,
         "the reward function: look whether such replies answer"),
    Rule("identical_replies", "The replies of groups without a solution are the same, although they are long.", f"""
        SELECT stage, avg((replies = 1)::INT) AS share_of_groups, count(*) AS groups FROM (
            SELECT stage, group_id, count(DISTINCT response) AS replies FROM {ATTEMPTS}
            GROUP BY ALL HAVING count(*) > 1 AND avg(len(response_tokens)) >= 16 AND coalesce(max(accuracy), 0) < 1)
        GROUP BY stage""", 0.3,
         "model.temperature, model.top_p, model.top_k, model.min_p"),
    Rule("constant_answer", "One answer is given more and more, while fewer tasks are solved by any attempt.", f"""
        WITH kept AS (SELECT stage, quarter, group_id, coalesce(accuracy, reward) AS solved,
                {LAST_WORD.format('response')} AS answer FROM {_quarters('experience')}
            WHERE status = 'ok' AND quarter IN (0, 3)),
        shares AS (SELECT stage, quarter, max(n) / sum(n) AS share, arg_max(answer, n) AS answer FROM (
            SELECT stage, quarter, answer, count(*) AS n FROM kept GROUP BY ALL) GROUP BY ALL),
        passes AS (SELECT stage, quarter, avg(best) AS pass FROM (
            SELECT stage, quarter, group_id, max(solved) AS best FROM kept GROUP BY ALL) GROUP BY ALL)
        SELECT stage, if(late.pass < 0.9 * early.pass, late.share - early.share, 0) AS share_gained, late.answer,
            early.pass AS pass_at_k_early, late.pass AS pass_at_k_late
        FROM (FROM shares JOIN passes USING (stage, quarter) WHERE quarter = 0) AS early
        JOIN (FROM shares JOIN passes USING (stage, quarter) WHERE quarter = 3) AS late USING (stage)""", 0.2,
         f"the reward function; {RATE}, algorithm.entropy_loss_fn_args, model.temperature"),
]

DATA = [
    Rule("duplicate_tasks", "Training tasks are there several times.", """
        SELECT coalesce(taskset, 'pool') AS stage, 1 - count(DISTINCT task_id) / count(*) AS share_of_tasks,
            count(*) AS tasks FROM (SELECT DISTINCT taskset, task_id, row FROM tasks WHERE split = 'train')
        GROUP BY ALL""", 0.1, "data_processor.task_pipeline (document_deduplicator)"),
    Rule("leak", "Evaluation tasks are in the data that the model was trained on.", f"""
        SELECT {MODEL} AS stage, max(trained_tasks / tasks) AS share_of_tasks, taskset, max(trained_tasks) AS
            trained_tasks FROM scores GROUP BY ALL""", 0, "the split, or the paths of the sets"),
]

LEARNING = [
    Rule("few_steps", "A stage has few optimizer steps.", f"""
        SELECT stage, count(*) AS steps FROM {_of('steps')} GROUP BY stage""", FEW,
         "buffer.total_steps or buffer.total_epochs; a smaller buffer.batch_size", under=True, complete=True),
    Rule("rate_zero", "Steps have the learning rate 0.", f"""
        SELECT stage, avg((lr = 0)::INT) AS share_of_steps, count(*) AS steps FROM {_of('steps')}
        WHERE coalesce(critic_lr, 0) = 0 GROUP BY stage HAVING steps > 4""", 0.2, RATE),
    Rule("gradient_zero", "Steps have no gradient, although their rows have advantages.", f"""
        SELECT stage, avg((grad_norm = 0)::INT) AS share_of_steps, count(*) AS steps FROM {_of('steps')} AS s
        LEFT JOIN (SELECT e.stage, train_step AS step, max(abs(advantage)) AS advantage FROM {_of('experience')} AS e
            JOIN trained USING (run, experience_id) GROUP BY ALL) USING (stage, step)
        WHERE lr > 0 AND advantage IS DISTINCT FROM 0 GROUP BY stage HAVING steps > 1""", 0.1,
         "algorithm.policy_loss_fn and its arguments, the mask of tokens"),
    Rule("not_finite", "Steps have a loss or a gradient that is not finite.", f"""
        SELECT stage, sum((NOT isfinite(loss + grad_norm))::INT) AS steps, min(step) FILTER (
            NOT isfinite(loss + grad_norm)) AS first_step FROM {_of('steps')} GROUP BY stage""", 0,
         f"{RATE}, model.dtype"),
    Rule("entropy_collapse", "The policy's entropy is a small part of what it was, and tasks are not solved.", f"""
        SELECT stage, if(coalesce(solved, 0) > 0.9, 1, late / early) AS ratio, early, late, solved
        FROM {_ends('entropy')} JOIN ({_last('solve_rate', 'solved')}) USING (stage)
        WHERE reward_early IS NOT NULL""", 0.1, f"clip_range_high of algorithm.policy_loss_fn_args, "
         f"algorithm.entropy_loss_fn_args, {RATE}", under=True),
    Rule("kl_drift", "The policy is far from its reference.", _last("abs(coalesce(kl_loss, kl_penalty))",
         "nats_a_token"), 1, f"kl_coef of algorithm.kl_loss_fn_args or algorithm.kl_penalty_fn_args, {RATE}"),
    Rule("ratio_outside", "Many tokens have a ratio of trained to rollout policy outside 0.8 to 1.2.", f"""
        SELECT stage, avg(mismatch_outside) AS share_of_tokens, max(staleness_max) AS staleness, count(*) AS steps
        FROM {_of('steps')} GROUP BY stage HAVING steps >= {STEPS}""", 0.25,
         f"synchronizer.sync_interval, synchronizer.sync_offset, {RATE}, algorithm.rollout_correction"),
    Rule("mismatch_growth", "Engine and trainer agree less and less on the log-probs of tokens.", f"""
        SELECT stage, late / greatest(early, 0.01) AS times_as_large, early, late FROM {_ends('mismatch_mean')}""", 3,
         "algorithm.rollout_correction, model.dtype"),
    Rule("few_effective_rows", "The weights of a few tokens outweigh all others.", _last("effective_sample_size",
         "effective_sample_size"), 0.5, "algorithm.rollout_correction, synchronizer.sync_offset", under=True),
    Rule("stale_rows", "Rows are too old to be trained on.", f"""
        SELECT stage, sum(stale_rows) / sum(stale_rows + trained_rows) AS share_of_rows, sum(stale_rows) AS rows
        FROM {_of('steps')} GROUP BY stage""", 0.1, "synchronizer.max_staleness, synchronizer.sync_interval"),
    Rule("blind_critic", "The critic explains less of the returns than their mean.", _last("vf_explained_variance",
         "explained_variance"), 0, "trainer.critic_warmup, trainer.critic.optimizer.lr", under=True),
]

MACHINE = [
    Rule("memory_growth", "The accelerator's peak memory grows.", f"""
        SELECT stage, max(peak_memory_gib) FILTER (quarter = 3) / max(peak_memory_gib) FILTER (quarter = 1) AS
            times_as_much, max(peak_memory_gib) AS gib FROM {_quarters('steps')} GROUP BY stage""", 1.25,
         "trainer.max_token_len_per_gpu"),
    Rule("host_memory_growth", "The memory in use on the trainer's machine grows.", f"""
        SELECT stage, max(host_memory_gib) FILTER (quarter = 3) / max(host_memory_gib) FILTER (quarter = 1) AS
            times_as_much, max(host_memory_gib) AS gib FROM {_quarters('steps')} GROUP BY stage""", 1.5,
         "look at the reward functions, the tools, and the other programs of the machine"),
    Rule("halved_budget", "The accelerator's memory did not suffice for a step, which was made in smaller parts.", f"""
        SELECT stage, max(token_budget) / min(token_budget) AS parts, min(token_budget) AS tokens
        FROM {_of('steps')} GROUP BY stage""", 1, "trainer.max_token_len_per_gpu"),
    Rule("straggler", "Most of the time of generation is spent waiting for a tenth of the attempts.", f"""
        SELECT stage, sum(rollout_tail_seconds) / sum(rollout_seconds) AS share_of_seconds FROM {_of('steps')}
        GROUP BY stage""", 0.5, "explorer.over_rollout, model.max_response_tokens; look whether an engine is slower"),
    Rule("failing_tools", "Calls of tools fail.", f"""
        SELECT stage, avg(failed::INT) AS share_of_calls, mode(name) FILTER (failed) AS most_often,
            mode(left(result, 100)) FILTER (failed) AS commonest_result
        FROM {_of('tool_calls')} GROUP BY stage HAVING count(*) >= {ROWS}""", 0.2, "the tools, or their descriptions"),
]

ONSET = f"""
    WITH rows AS (SELECT *, coalesce((PREDICATE), false) AS shows FROM {_of('experience')} WHERE status = 'ok'),
    shares AS (SELECT stage, step, avg(shows::INT) AS share FROM rows GROUP BY ALL),
    onsets AS (SELECT stage, min(step) AS onset, arg_min(share, step) AS share FROM (
        SELECT *, max(share) OVER (PARTITION BY stage) AS most FROM shares) WHERE share > 0 AND share >= most / 2
        GROUP BY stage)
    SELECT stage, onset, share, step, train_step, advantage, reward, experience_id, response
    FROM rows JOIN trained USING (run, experience_id) JOIN onsets USING (stage)
    WHERE shows AND advantage > 0 AND step <= onset ORDER BY advantage DESC, step, experience_id LIMIT 20"""

RULES = {rule.name: rule for rule in (*REWARDS, *REPLIES, *DATA, *LEARNING, *MACHINE)}
