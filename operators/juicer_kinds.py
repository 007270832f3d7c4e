"""Types of the arguments in a Data-Juicer recipe, which the operators' constructors do not look at."""

import inspect


def wrong_kinds(name: str, kind: type, arguments: dict) -> list[str]:
    """Arguments of an operator whose values are not of the annotated types, one line each.

    Annotations that pydantic cannot read are left out.
    """
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

    found, hints = [], {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base):
            hints |= {one.name: one.annotation for one in inspect.signature(base.__init__).parameters.values()}
    for argument, value in arguments.items():
        hint = hints.get(argument, inspect.Parameter.empty)
        try:
            if value is not None and hint is not inspect.Parameter.empty:
                TypeAdapter(hint).validate_python(value)
        except ValidationError as error:
            found.append(f"operator '{name}': {argument}={value!r}: {error.errors()[0]['msg'].lower()}.")
        except (PydanticSchemaGenerationError, NameError, TypeError):
            continue  # an annotation of no plain type
    return found
