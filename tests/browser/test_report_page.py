"""The report of a run in a browser, opened from disk: values on hover and by keys, and the choice of rollouts."""

import pytest

from tests.fake_run import FakeRun
from tests.pictures import png
from tests.stages.test_report import make

pytestmark = pytest.mark.browser


def test_values_and_rollouts(tmp_path, opened):
    """Of 6 steps of 8 rollouts, the first of each has the text of a script."""
    run = FakeRun(tmp_path, steps=6).data().images(png(200, 90)).rft("model")
    make(run)
    page = opened(f"file://{run.path}/report.html")
    chart = page.locator("svg[data-values]").first
    chart.hover()
    assert chart.locator("+ p").inner_text().startswith("step ")
    chart.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert chart.locator("+ p").inner_text().startswith("step 2: ")
    shown = page.locator("details.rollout:visible")
    assert shown.count() == 48
    page.locator("details.rollout").first.locator("summary").click()
    assert page.get_by_alt_text("image 1 of the prompt").first.evaluate("one => one.naturalWidth") == 160
    page.get_by_label("text").fill("ALERT(1)")
    assert shown.count() == 6
    page.get_by_label("steps from").fill("5")
    assert shown.count() == 2
    page.get_by_label("steps from").fill("")
    page.get_by_label("outcome").select_option("right")
    right = shown.count()
    page.get_by_label("outcome").select_option("wrong")
    assert right + shown.count() == 6
