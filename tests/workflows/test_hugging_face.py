"""What the import of transformers brings in."""

import subprocess
import sys

import pytest

LOADED = """
import sys
from workflows.engines.hugging_face import import_transformers
transformers = import_transformers()
transformers.AutoTokenizer, transformers.AutoModelForCausalLM
print(*sorted({"sklearn", "scipy", "pandas", "torch"} & set(sys.modules)), transformers.utils.is_sklearn_available())
"""


@pytest.mark.slow
def test_models_and_tokenizers_come_without_scikit_learn_which_others_still_find():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "torch True\n"
