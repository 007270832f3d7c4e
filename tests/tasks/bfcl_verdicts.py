"""What bfcl_eval itself says of calls: reads jsonl of [functions, calls, possible answers, set], prints true or false.

It runs with the package alone on its path. The table of models, which imports the clients of all of them, only decides
whether dots in names became underscores.
"""

import ast
import json
import sys
from types import ModuleType, SimpleNamespace

models = sys.modules["bfcl_eval.constants.model_config"] = ModuleType("model_config")
models.MODEL_CONFIG_MAPPING = {"none": SimpleNamespace(underscore_to_dot=False)}
for name in ("java", "js"):  # of other languages, with parsers of their own
    converter = sys.modules[f"bfcl_eval.eval_checker.ast_eval.type_convertor.{name}_type_converter"] = ModuleType(name)
    setattr(converter, f"{name}_type_converter", None)

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402

for line in sys.stdin:
    functions, calls, answers, category = json.loads(line)
    try:
        said = ast_checker(functions, ast.literal_eval(calls), answers, Language.PYTHON, category, "none")["valid"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # it does not expect such a value
        said = repr(error)
    print(json.dumps(said))
