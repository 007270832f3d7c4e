"""Five one-statement queries: shown in the README and answered in every report."""

QUESTIONS: dict[str, str] = {
    "How good was each version of the weights, and how long were its answers?": """\
SELECT weights_version // width * width AS versions_from, count(*) FILTER (turn = 0) AS attempts,
       round(avg(reward) FILTER (turn = 0), 3) AS reward, round(avg(accuracy) FILTER (turn = 0), 3) AS solve_rate,
       round(avg(len(response_tokens)), 1) AS response_tokens, count(DISTINCT weights_hash) AS weights
FROM experience, (SELECT least(greatest(max(weights_version) // 5, 1), 50) AS width FROM experience)
WHERE status IN ('ok', 'no_variance') GROUP BY 1 ORDER BY 1""",
    "Which tasks are the hardest to learn?": """\
SELECT any_value(prompt) AS prompt, count(*) AS rollouts, round(avg(reward), 3) AS reward,
       round(avg(accuracy), 3) AS solve_rate
FROM experience WHERE turn = 0 GROUP BY task_id HAVING count(reward) > 0
ORDER BY coalesce(avg(accuracy), avg(reward)), prompt LIMIT 5""",
    "What did curation drop, and why?": """\
SELECT operator, count(*) AS rows, min(reason) AS for_instance
FROM rejected GROUP BY operator ORDER BY rows DESC, operator""",
    "Do rollout engine and trainer agree on the probability of a token?": """\
WITH pairs AS (
    SELECT staleness, list_where(rollout_logprobs, action_mask::BOOL[]) AS rolled, train_logprobs AS trained
    FROM experience JOIN trained USING (run, experience_id))
SELECT staleness, count(*) AS rows,
       avg(list_avg(list_transform(list_zip(rolled, trained), lambda p: abs(p[1] - p[2])))) AS mean_difference
FROM pairs
WHERE len(trained) > 0 GROUP BY staleness ORDER BY staleness""",
    "Where did the time go?": """\
SELECT regexp_replace(stage, '-[0-9a-f]+$', '') AS stage, count(*) AS steps, round(sum(seconds), 1) AS seconds,
       round(sum(rollout_seconds), 1) AS rollout, round(sum(train_seconds), 1) AS training,
       round(sum(sync_seconds), 2) AS sync, round(sum(train_wait_seconds), 1) AS trainer_waits
FROM steps GROUP BY 1 ORDER BY min(seconds)""",
}
