"""What is known of a stage's text before its first step: rows of a data set, recorded rows, prompts with answers."""

from types import SimpleNamespace

import pytest

from ouroboros.pipeline.store import records, tables
from ouroboros.stages.learner.batches.data_set import DataSet
from ouroboros.stages.learner.batches.known_text import tokens_of_text
from tests.configs import TINY, overridden
from tests.factories import row


class Rows(DataSet):
    """Rows that are there."""

    def __init__(self, *tokens):
        self.rows = [SimpleNamespace(tokens=list(one)) for one in tokens]

    def tokenized(self, context, model, tasks):
        raise NotImplementedError


@pytest.mark.parametrize(("most", "found"), [(9, [1, 2, 3, 4, 5]), (4, [1, 2, 3, 4])])
def test_rows_of_a_data_set_one_behind_the_other(most, found):
    assert tokens_of_text(None, None, Rows([1, 2, 3], [4, 5]), most) == found


def test_recorded_text_begins_with_the_first_attempt_that_has_some(tmp_path):
    """Every attempt of step 1 failed."""
    for step, texts in enumerate([[([], [])], [([7, 8], [9]), ([5], [6, 4])], [([8], [9])]], 1):
        tables.write(tables.step_file(tmp_path, "experience", step), records.Experience, [
            row(records.Experience, step=step, prompt_tokens=one, response_tokens=other) for one, other in texts])
    context = SimpleNamespace(inputs={"experience": tmp_path})
    assert tokens_of_text(context, None, None, 99) == [7, 8, 9, 5, 6, 4, 8, 9]


def test_prompts_of_tasks_with_their_answers(tmp_path, tiny_model):
    """The tokenizer of the model has a token for each character; its template ends a prompt with a colon."""
    from ouroboros.workflows.protocol.prompts import load_tokenizer

    tasks = [row(records.Task, task_id=f"t{i}", row=i, split="train", question=question, answer=answer)
             for i, (question, answer) in enumerate([("1+2", "3"), ("2+2", "4")])]
    tables.write(tmp_path / "tasks.parquet", records.Task, tasks)
    found = tokens_of_text(SimpleNamespace(inputs={"tasks": tmp_path}, config=overridden(*TINY)), tiny_model, None, 99)
    assert "".join(load_tokenizer(tiny_model).decode(found).split()) == "1+2:32+2:4"
