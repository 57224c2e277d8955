"""Keeps PyTorch's compiler out of this package: it would trace the calls, and knows nothing of a communicator."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_RULES = "torch._dynamo.trace_rules"


class _Import(MetaPathFinder):
    """Waits for the import of the compiler, which takes a second: programs that compile nothing are spared it."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _RULES:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def load_and_skip(module: ModuleType) -> None:
            load(module)
            module.add(__package__)

        spec.loader.exec_module = load_and_skip
        return spec


def keep_out() -> None:
    """Makes the compiler end its graph before a call of this package, and begin another one after it."""
    rules = sys.modules.get(_RULES)
    if rules is not None:
        rules.add(__package__)
    else:
        sys.meta_path.insert(0, _Import())
