"""What the import of transformers brings in."""

import subprocess
import sys

import pytest

LOADED = """
import sys
from ouroboros.workflows.protocol.hugging_face import import_light, import_transformers
import_light()
transformers, utils = import_transformers(), import_transformers().utils
transformers.AutoTokenizer, transformers.AutoModelForCausalLM, transformers.Qwen2ForCausalLM
print(*sorted({"sklearn", "scipy", "pandas", "torch"} & set(sys.modules)))
print(utils.is_sklearn_available(), utils.is_scipy_available())
"""


@pytest.mark.slow
def test_models_and_tokenizers_come_without_scikit_learn_and_scipy_which_others_still_find():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "torch\nTrue True\n"
